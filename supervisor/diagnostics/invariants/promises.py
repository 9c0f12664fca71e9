"""What was promised once: requests are answered, messages are delivered, tasks are held by one, each a single time."""

from __future__ import annotations

from typing import Any

from supervisor.diagnostics.invariants.catalogue import Say
from supervisor.diagnostics.invariants.shadow_state import Book, SessionBook, TaskBook
from supervisor.lifecycles.effects import ReplyToRequest
from supervisor.lifecycles.types import Exit, LifecycleEvent

__all__ = ["Promises"]

_HELD = frozenset({"CLAIMED", "IN_PROGRESS"})
_WORKED = frozenset({"CLAIMED", "IN_PROGRESS", "DONE"})
"""States of a task that somebody has taken."""


class Promises:
    """Requests, messages, claims."""

    def __init__(self, books: dict[str, Book], say: Say) -> None:
        self._books, self._say = books, say
        self._requests: set[str] = set()

    # ------------------------------------------------------------------ requests
    def requested(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        request_id = str(record.metadata.get("request_id"))
        if request_id in self._requests:
            self._say("once", book.id, f"the request {request_id} takes effect a second time")
        self._requests.add(request_id)
        book.unanswered[request_id] = None

    def answers(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        """The answers that a step gives. A message that had a turn of its own is answered, too; nobody asked."""
        for effect in step.effects:
            if type(effect) is not ReplyToRequest:
                continue
            known = effect.request_id in self._requests
            if known and effect.request_id not in book.unanswered:
                self._say("once", book.id, f"the request {effect.request_id} is answered a second time")
            book.unanswered.pop(effect.request_id, None)

    def _check_waiting(self, book: SessionBook, what: str, waiting: int) -> None:
        if book.data is not None and waiting > book.data.limits.waiting_max:
            self._say("bounded", book.id, f"has {waiting} {what} waiting; {book.data.limits.waiting_max} may be")

    # ------------------------------------------------------------------ messages
    def message(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        message_id = str(record.metadata.get("message_id"))
        if message_id in book.delivered:
            self._say("once", book.id, f"the message {message_id} comes again after it was delivered")
        if record.metadata.get("sender") == "supervisor":
            book.own.add(message_id)  # what it has to say itself of its aborts comes on top
        if message_id not in book.messages:
            book.messages.append(message_id)
            self._check_waiting(book, "messages", sum(one not in book.own for one in book.messages))

    def prompt_ready(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        number = record.metadata.get("messages")
        waiting = len(book.messages)
        book.offered = waiting if number is None else min(number, waiting)

    def message_heard(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        """Taken up within its turn, it is as if it had been in the prompt."""
        message_id = str(record.metadata.get("message_id"))
        if message_id in book.messages[book.offered :] and record.from_status != "Stopped":
            book.messages.remove(message_id)
            book.messages.insert(book.offered, message_id)
            book.offered += 1

    def session_exited(self, record: LifecycleEvent, book: SessionBook, step: Any) -> None:
        """What was in a prompt that succeeded has been delivered."""
        success = (record.metadata.get("verdict") or {}).get("exit") == Exit.SUCCESS.value
        if success and record.from_status in ("Running", "Interrupting"):
            book.delivered.update(book.messages[: book.offered])
            del book.messages[: book.offered]
            book.offered = 0
        if not book.lost and book.data is not None and [one.id for one in book.data.inbox] != book.messages:
            self._say("once", book.id, f"keeps {len(book.data.inbox)} messages; {len(book.messages)} wait for it")
            book.messages = [one.id for one in book.data.inbox]

    # ------------------------------------------------------------------ tasks
    def task_moved(self, record: LifecycleEvent, book: TaskBook, step: Any) -> None:
        if record.to_status not in _WORKED:
            book.holder = None

    def claimed(self, record: LifecycleEvent, book: TaskBook, step: Any) -> None:
        holder = str(record.metadata.get("by"))
        if book.holder is not None:
            self._say("one_holder", book.id, f"claimed by {holder} while {book.holder} holds it")
        session = self._books.get(holder)
        if not isinstance(session, SessionBook):
            self._say("intent_before_effect", book.id, f"claimed by {holder}, of whom there is no record")
        book.holder = holder

    # ------------------------------------------------------------------ in the end
    def check_end(self) -> None:
        for book in self._books.values():
            if isinstance(book, SessionBook):
                for request_id in book.unanswered:
                    self._say("nothing_lost", book.id, f"the request {request_id} was never answered")
            elif isinstance(book, TaskBook) and book.status in _HELD:
                holder = self._books.get(book.holder or "")
                if holder is None or holder.ended:
                    self._say("nothing_lost", book.id, f"is {book.status}, and {book.holder} does not live")
