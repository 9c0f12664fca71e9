"""Containment: the tree by our own reckoning, from ids, births and adoptions, and who may still be there at an end.

A session's parent is in its id (``lead/docs``), but for those whose id leaves the middle out (``lead/~/docs``): theirs
is whose turn caused their birth, or the session that the id begins with. Turns and agents name their session.
"""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import Say
from supervisor.diagnostics.invariants.shadow_state import RECOVERY, Book, SessionBook, TurnBook
from supervisor.lifecycles.types import LifecycleEvent, Stage

__all__ = ["Containment"]

Books = dict[str, Book]


class Containment:
    """Who is below whom."""

    def __init__(self, books: Books, whose: list[str], say: Say) -> None:
        self._books, self._whose, self._say = books, whose, say

    # ------------------------------------------------------------------ births
    def session_born(self, record: LifecycleEvent, book: SessionBook) -> None:
        book.started_by = self._call_of(record)
        parent_id = self._parent_of(record)
        if parent_id:
            self._join(book, parent_id)

    def worker_born(self, record: LifecycleEvent, book: Book) -> None:
        """A turn, or an agent."""
        self._join(book, str(record.metadata.get("session_id", "")))

    def _cause_of(self, record: LifecycleEvent) -> str:
        """The entity whose record led to this one."""
        cause = record.cause_id
        return self._whose[cause] if cause is not None and 0 < cause < record.seq else ""

    def _call_of(self, record: LifecycleEvent) -> str | None:
        turn = self._books.get(self._cause_of(record))
        number = turn.begun.get(record.cause_id or 0) if isinstance(turn, TurnBook) else None
        return f"{turn.id}:c{number}" if turn is not None and number is not None else None

    def _parent_of(self, record: LifecycleEvent) -> str:
        above, shortened, _ = record.entity_id.rpartition("/~/")
        if not shortened:
            return record.entity_id.rpartition("/")[0]
        asked_by = self._cause_of(record).partition(":")[0]
        return asked_by if isinstance(self._books.get(asked_by), SessionBook) else above

    def _join(self, book: Book, parent_id: str) -> None:
        parent = self._books.get(parent_id)
        if not isinstance(parent, SessionBook):
            self._say("containment", book.id, f"born below {parent_id or 'nobody'}, of whom there is no record")
            return
        if parent.stopping or parent.ended:
            how = "has ended" if parent.ended else "is ending"
            self._say("containment", book.id, f"born below {parent_id}, which {how}")
        book.parent = parent
        parent.live[book.id] = book

    # ------------------------------------------------------------------ changes
    def adopted(self, record: LifecycleEvent, book: Book, _: Any) -> None:
        """Its parent ends and it may live on: who is told to end all the same stays in that parent's reach."""
        heir_id, mode = record.metadata.get("parent"), record.metadata.get("mode")
        heir = self._books.get(str(heir_id)) if heir_id is not None else None
        left, book.parent = book.parent, heir if isinstance(heir, SessionBook) else None
        if left is not None:
            left.live.pop(book.id, None)
            book.left = None if mode == "abandon" else left
        if book.parent is not None and not book.ended:
            book.parent.live[book.id] = book
        if heir_id is not None and (book.parent is None or book.parent.stopping):
            self._say("containment", book.id, f"adopted by {heir_id}, which does not live")

    def ended(self, record: LifecycleEvent, book: Book) -> None:
        """Whoever is still below it was left behind.

        What the ladder gave up (``abandon``) is reported and waited for by nobody; it was told to end all the same.
        """
        if book.parent is not None:
            book.parent.live.pop(book.id, None)
        if not book.live:
            return
        given_up = record.metadata.get("rung") == Stage.ABANDON and record.actor != RECOVERY
        for one in book.live.values():
            if not given_up or (isinstance(one, SessionBook) and not one.stopping):
                self._say("containment", book.id, f"ended before {one.id}, which is below it and in {one.status}")
