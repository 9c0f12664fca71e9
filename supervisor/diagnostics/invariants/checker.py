"""The check of records as they are published: every law that records alone can show, record by record.

It keeps its own books (tree, counters, claims, what has ended) and takes only one thing from the code under test: the
tables, which say what is legal. A breach is reported once; the books then follow the record, so that one wrong record
is one report and not a thousand. Each record costs the same, however long the log is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from actors.machine import Step
from supervisor.diagnostics.event_replay import KINDS, Mismatch, data_of, event_of, step_of
from supervisor.diagnostics.invariants.aborting import Aborting
from supervisor.diagnostics.invariants.catalogue import Violation
from supervisor.diagnostics.invariants.containment import Containment
from supervisor.diagnostics.invariants.counting import Counting
from supervisor.diagnostics.invariants.honesty import Honesty
from supervisor.diagnostics.invariants.promises import Promises
from supervisor.diagnostics.invariants.shadow_state import Book, SessionBook, TurnBook, book_of
from supervisor.diagnostics.work_invariants import WorkInvariants
from supervisor.lifecycles.types import LifecycleEvent

__all__ = ["RecordChecker"]

Hear = Callable[[LifecycleEvent, Any, Any], None]
"""A law looks at a record, the book that its kind of entity has (:func:`book_of`), after it, and the step of the table
(``None``: it did not fold)."""
OnStep = Callable[[LifecycleEvent, Step[Any, Any]], None]
Birth = Callable[[LifecycleEvent, Any], None]

_UNSAID: Final = frozenset({"", "supervisor"})
"""Actors that stand for nobody."""
_AT_REST: Final[Mapping[str, frozenset[str]]] = {
    "session": frozenset({"Initializing", "SessionComplete"}),
    "agent": frozenset({"idle", "dead"}),
    "turn": frozenset({"REAPED"}),
}
"""Where an entity that has not ended may be when nothing happens any more; of other kinds, anywhere."""


_TIMED: Final[Mapping[str, frozenset[str]]] = {
    "session": frozenset({"SessionExited", "SessionStable", "GraceExceeded", "BackoffElapsed"}),
}
"""What an entity's timers raise; they end with the state that wanted them, so they are never late. Of a turn, whose
deadline lasts, nothing."""


_OF_ONE: Final = frozenset({"legal", "final", "monotonic", "single_active_state", "monotonic_progress", "retry_limit"})
"""Laws that the log of one entity shows."""


class RecordChecker:
    """Give it every record of a journal in order, from the first one; each is answered with what it breaks.

    *on_step* is called with each transition and what the table makes of it again. ``books`` is what is known of every
    entity so far. Without the *whole* of a journal, as in an archive, only the laws of each entity's own log count.
    """

    def __init__(self, *, on_step: OnStep | None = None, whole: bool = True) -> None:
        self._on_step = on_step
        self._whole = whole
        self.books: dict[str, Book] = {}
        self._found: list[Violation] = []
        self._seq = 0
        self._now: LifecycleEvent | None = None
        self._whose: list[str] = [""]
        self._roots: list[int] = [0]
        self._listen()

    def _listen(self) -> None:
        books, say = self.books, self._say
        self._tree = tree = Containment(books, self._whose, say)
        self._honesty = honesty = Honesty(books, self._whose, say)
        self._promises = promises = Promises(books, say)
        self._aborting = aborts = Aborting(books, self._roots, say)
        counting, self._work = Counting(say), WorkInvariants(self._say_of_work)
        self._births: Mapping[str, tuple[Birth, ...]] = {
            "session": (tree.session_born,),
            "turn": (tree.worker_born, honesty.turn_born),
            "agent": (tree.worker_born, honesty.agent_born),
        }
        self._facts: Mapping[str, tuple[Hear, ...]] = {
            "AbortRecord": (aborts.asked,),
            "AbortJoined": (aborts.joined,),
            "Adopted": (tree.adopted,),
        }
        self._refusals: Mapping[tuple[str, str], Hear] = {("turn", "verify_requested"): honesty.word_refused}
        self._every: Mapping[str, Hear] = {
            "task": promises.task_moved,
            **dict.fromkeys(("job", "worker", "workstream"), self._work_moved),
        }
        self._events: Mapping[str, Mapping[str, tuple[Hear, ...]]] = {
            "session": {
                "TurnRequested": (promises.requested,),
                "PromptReady": (honesty.prompt_ready, counting.launches, promises.prompt_ready),
                "AgentLaunched": (honesty.started,),
                "SessionStarted": (honesty.started, counting.started),
                "SessionStable": (counting.stable,),
                "SessionExited": (counting.exited, honesty.session_exited, promises.session_exited),
                "BackoffElapsed": (counting.tried_again,),
                "FatalError": (counting.given_up, aborts.stopped),
                "UrgentMessage": (promises.message,),
                "MessageReceived": (promises.message,),
                "MessageHeard": (promises.message_heard,),
                "OperatorStop": (aborts.stopped,),
                "Ended": (aborts.ended,),
                "TurnReaped": (honesty.turn_over,),
            },
            "turn": {
                "tool_started": (honesty.call_started,),
                "tool_completed": (honesty.call_completed, aborts.call_completed),
                "verify_requested": (honesty.verify_requested,),
                "task_completed": (honesty.task_completed,),
                "task_failed": (aborts.turn_failed,),
                "agent_reaped": (honesty.turn_reaped,),
            },
            "agent": {"agent_ready": (honesty.agent_ready,), "agent_exited": (honesty.agent_exited,)},
            "task": {"claimed": (promises.claimed,)},
        }

    def _say(self, invariant: str, entity_id: str, message: str) -> None:
        if not self._whole and invariant not in _OF_ONE:
            return
        seq = self._now.seq if self._now is not None else None
        self._found.append(Violation(invariant=invariant, entity_id=entity_id, seq=seq, message=message))

    def _work_moved(self, record: LifecycleEvent, book: Book, step: Any) -> None:
        self._work.take(book.name, book.id, record.to_status, record.metadata)

    def _say_of_work(self, field: str | None, message: str) -> None:
        assert self._now is not None, "work is looked at with each of its records"
        self._say(self._work.law, self._now.entity_id, f"{field}: {message}" if field else message)

    # ------------------------------------------------------------------ one record
    def take(self, record: LifecycleEvent) -> list[Violation]:
        """What *record* breaks; mostly nothing."""
        self._now, self._found = record, []
        self._number(record)
        book = self.books.get(record.entity_id)
        if book is None:
            book = self._meet(record)
            if book is None:
                return self._found
        else:
            self._follow(record, book)
        if record.outcome == "transition":
            self._move(record, book)
        elif record.outcome == "fact":
            for hear in self._facts.get(record.event, ()):
                hear(record, book, None)
        elif record.outcome == "refused" and (book.name, record.event) in self._refusals:
            self._refusals[book.name, record.event](record, book, None)
        return self._found

    def _number(self, record: LifecycleEvent) -> None:
        """Numbers have no gap, causes are older, and where there is none somebody is named."""
        seq, cause = record.seq, record.cause_id
        if seq != self._seq + 1:
            if self._whole:
                self._say("legal", record.entity_id, f"record {seq} comes after {self._seq}")
            self._fill(seq)
        self._seq = seq
        root = seq
        if cause is None:
            if record.actor in _UNSAID:
                self._say("honest_ends", record.entity_id, f"{record.event} has no cause, and nobody is named")
        elif 0 < cause < seq:
            root = self._roots[cause]
        else:
            self._say("honest_ends", record.entity_id, f"{record.event} is caused by record {cause}, which is no older")
        if seq == len(self._roots):
            self._roots.append(root)
            self._whose.append(record.entity_id)

    def _fill(self, seq: int) -> None:
        """Records that were never seen are roots of their own, and nobody's."""
        missing = range(len(self._roots), min(seq, len(self._roots) + 1_000_000))
        self._roots.extend(missing)
        self._whose.extend("" for _ in missing)

    # ------------------------------------------------------------------ births
    def _meet(self, record: LifecycleEvent) -> Book | None:
        """The first record of an entity."""
        kind = KINDS.get(record.entity_type)
        if kind is None:
            known = ", ".join(KINDS)
            self._say("legal", record.entity_id, f"is a {record.entity_type!r}; there are {known}")
            return None
        book = self.books[record.entity_id] = book_of(kind, record)
        if record.outcome != "born" or record.entity_seq != 1:
            self._say("legal", book.id, f"begins with record {record.entity_seq} of its log, a {record.outcome}")
            book.lost = True
            return book
        if record.to_status not in kind.initial:
            born = ", ".join(sorted(kind.initial))
            self._say("legal", book.id, f"is born in {record.to_status}; a {record.entity_type} is born in {born}")
        try:
            book.data = data_of(kind, record)
        except Mismatch as words:
            self._lose(book, str(words))
        for hear in self._births.get(record.entity_type, ()):
            hear(record, book)
        return book

    def _lose(self, book: Book, words: str) -> None:
        book.lost = True
        self._say("legal", book.id, words)

    def _follow(self, record: LifecycleEvent, book: Book) -> None:
        """It goes on where it was."""
        if record.entity_seq != book.entity_seq + 1:
            self._say("legal", book.id, f"record {record.entity_seq} of its log comes after {book.entity_seq}")
        if record.monotonic_s < book.at:
            self._say("monotonic", book.id, f"its time goes back by {book.at - record.monotonic_s:g} s")
        book.entity_seq, book.at = record.entity_seq, record.monotonic_s
        if record.outcome == "transition":
            return
        if record.outcome == "born":
            self._say("once", book.id, "is born a second time")
        elif record.to_status != book.status:
            self._say("legal", book.id, f"a {record.outcome} moves it from {book.status} to {record.to_status}")
        elif record.outcome in ("refused", "stale"):
            if not book.lost:
                self._check_denied(record, book)
            if record.actor == book.id and record.event in _TIMED.get(book.name, ()):
                self._say("legal", book.id, f"its own timer raises {record.event} in {book.status}, which it outlived")

    def _check_denied(self, record: LifecycleEvent, book: Book) -> None:
        """What was refused is indeed not in the table, and what was stale did come too late."""
        kind = book.kind
        try:
            event = event_of(kind, record)
            if record.outcome == "refused":
                step_of(kind, book.state, book.data, event)
            elif kind.stale(book.data, event):
                return
        except Mismatch:
            return
        words = "which its table allows" if record.outcome == "refused" else "which did not come too late"
        self._say("legal", book.id, f"records {record.event} in {book.status} as {record.outcome}, {words}")

    # ------------------------------------------------------------------ transitions
    def _move(self, record: LifecycleEvent, book: Book) -> None:
        source = book.status
        if record.from_status != source:
            law = "single_active_state" if book.name == "job" else "legal"
            self._say(law, book.id, f"{record.event} comes from {record.from_status}; it was last in {source}")
        step = self._stepped(record, book)
        if book.ended and (step is None or step.rule.extension is None):
            self._say("final", book.id, f"{record.event} takes effect after its last record")
        book.status = record.to_status
        if source != record.to_status:
            self._changed(record, book, source, step)
        every = self._every.get(book.name)
        if every is not None:
            every(record, book, step)
        for hear in self._events.get(book.name, {}).get(record.event, ()):
            hear(record, book, step)
        if step is not None:
            if self._on_step is not None:
                self._on_step(record, step)
            if step.effects and type(book) is SessionBook:
                self._honesty.opens(record, book, step)
                self._promises.answers(record, book, step)
            if not book.ended and book.kind.ends_with(step):
                book.ended = True
                self._tree.ended(record, book)

    def _stepped(self, record: LifecycleEvent, book: Book) -> Step[Any, Any] | None:
        """The production table steps again; its word is compared with the record."""
        kind = book.kind
        if book.lost:
            self._check_edge(record, book)
            return None
        try:
            event = event_of(kind, record)
            if kind.stale(book.data, event):
                self._say("legal", book.id, f"{record.event} takes effect, though it came too late")
            step = step_of(kind, book.state, book.data, event)
        except Mismatch as words:
            self._lose(book, str(words))
            self._resume(record, book)
            return None
        book.state, book.data = step.state, step.data
        if step.state._value_ != record.to_status:
            came = f"{record.event} takes it from {record.from_status} to {step.state.value}, not to {record.to_status}"
            self._lose(book, came)
            self._resume(record, book)
        return step

    def _resume(self, record: LifecycleEvent, book: Book) -> None:
        book.state = book.kind.states.get(record.to_status, book.state)

    def _check_edge(self, record: LifecycleEvent, book: Book) -> None:
        """Its data is not known: the edge alone is looked at."""
        if (record.from_status, record.event, record.to_status) not in book.kind.edges:
            words = f"{record.event} does not take it from {record.from_status} to {record.to_status}"
            self._say("legal", book.id, words)
        self._resume(record, book)

    def _changed(self, record: LifecycleEvent, book: Book, source: str, step: Step[Any, Any] | None) -> None:
        if record.to_status == "Stopped" and type(book) is SessionBook:
            book.stopping = True
        marked = step is not None and step.rule.extension is not None
        if source in book.kind.terminal and not marked:
            work = book.name in ("job", "worker", "workstream")
            law = "monotonic_progress" if work else "final"
            self._say(law, book.id, f"leaves {source}, which is terminal, for {record.to_status}")

    # ------------------------------------------------------------------ the end
    def finish(self, *, quiescent: bool) -> list[Violation]:
        """What is missing at the end of the records. *quiescent*: nothing is under way any more, or should be."""
        self._now, self._found = None, []
        if quiescent:
            for book in self.books.values():
                self._check_rest(book)
            self._promises.check_end()
            self._aborting.check_end()
        return self._found

    @property
    def all_ended(self) -> bool:
        """True if every session has its last record: nothing is under way, and nothing will be."""
        return all(book.ended for book in self.books.values() if type(book) is SessionBook)

    def _check_rest(self, book: Book) -> None:
        if book.ended:
            return
        if type(book) is SessionBook and book.stopping:
            self._say("recorded", book.id, "was stopped, and has no last record")
        elif book.status not in _AT_REST.get(book.name, (book.status,)):
            self._say("quiescence", book.id, f"is still in {book.status}")
        if type(book) is TurnBook and book.open:
            self._say("recorded", book.id, f"its calls {', '.join(book.open)} have no result")
