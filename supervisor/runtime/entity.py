"""One actor for every lifecycle: an entity takes an event, asks its table, and hands the record to the ledger.

This is the only place that calls ``Machine.step``. An event that comes too late is recorded as stale, an illegal one
as refused; neither changes anything. A state timer dies with its state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from actors import DEFERRED, Context, IllegalTransition, Machine, TaskFailed
from actors.machine import Effect, Event
from supervisor.lifecycles.effects import FinalizeEntity, StartTimer
from supervisor.lifecycles.types import Kind, LifecycleEvent, Severity
from supervisor.policies.turn_outcome import severity_of
from supervisor.ports.logs import get_logger
from supervisor.runtime.availability import Outage
from supervisor.runtime.journal_writer import Cause, JournalWriter, NewRecord

__all__ = ["Degraded", "Entity", "Lifecycle", "Refused", "weight"]


_log = get_logger()


class Refused(Exception):
    """The entity's table has no rule for this event in its present state; the refusal is journalled."""


class Degraded(Refused):
    """Nothing new begins while the journal cannot be written. Nothing was started, and nothing is on record."""

    def __init__(self, what: str, outage: Outage) -> None:
        super().__init__(f"{what} is not taken: {outage.words}. Mend the disk, or wait, and ask again")


class Lifecycle(NamedTuple):
    """What an entity of one kind is made of: its table, what comes too late, and how it hears of a failed task.

    Its log ends with the event that buries it, or, with ``ends_at_terminal``, in a final state of the table.
    """

    kind: Kind
    machine: Machine[Any, Any]
    stale: Callable[[Any, Event], bool]
    broken: Callable[[str], Event]
    ends_at_terminal: bool = False


class _Deadline(NamedTuple):
    """A timer that outlasts the states of its entity, why it was set, and when it rings; how long it has left, while it
    stands still."""

    effect: StartTimer
    cause: Cause
    due_s: float


class Entity:
    """A session, an agent, a turn, a task: a table with a state, data, and a log of its own."""

    __slots__ = (
        "_deadline",
        "_journal_writer",
        "_timers",
        "born_at",
        "born_seq",
        "changed_at",
        "data",
        "ended",
        "entity_seq",
        "epoch",
        "id",
        "kind",
        "kind_name",
        "lifecycle",
        "on_buried",
        "on_ended",
        "parent_id",
        "since_s",
        "state",
        "state_name",
    )

    def __init__(
        self,
        lifecycle: Lifecycle,
        entity_id: str,
        parent_id: str | None,
        state: Enum,
        data: Any,
        journal_writer: JournalWriter,
    ) -> None:
        self.lifecycle = lifecycle
        self.kind = lifecycle.kind
        self.kind_name: str = lifecycle.kind._value_
        self.id = entity_id
        self.parent_id = parent_id
        self.state = state
        self.state_name: str = state._value_
        self.data = data
        self.entity_seq = 0
        self.epoch = 0
        self.ended = False
        self.on_ended: Callable[[], None] | None = None
        """Called once, when its last record is written, or will never be."""
        self.on_buried: Callable[[], None] | None = None
        """Called once, when its last record is durable, or will never be written."""
        self.born_seq = 0
        self.born_at = self.changed_at = 0.0
        self.since_s = 0.0
        """When it came into its state (seconds of the ledger's clock)."""
        self._journal_writer = journal_writer
        self._timers: list[str] | None = None
        self._deadline: _Deadline | None = None

    # ------------------------------------------------------------------ birth, facts
    def record_birth(self, cause: Cause) -> LifecycleEvent:
        """The first record of its log."""
        record = self._record(
            NewRecord(name="Born", outcome="born", cause=cause, metadata=msgspec.to_builtins(self.data))
        )
        self.born_seq, self.born_at, self.changed_at = record.seq, record.timestamp, record.timestamp
        return record

    def record_fact(self, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> LifecycleEvent:
        """A fact about it that changes no state."""
        clean = self._journal_writer.redactor.value
        return self._record(
            NewRecord(name=name, outcome="fact", cause=cause, metadata=clean(metadata), **clean(described))
        )

    # ------------------------------------------------------------------ events
    def receive(self, ctx: Context, message: Any) -> Any:
        if not isinstance(message, Event):
            if not isinstance(message, TaskFailed):
                return None
            if message.error is not self._journal_writer.error:  # a journal that is lost is told once
                _log.error("a task failed", entity=self.id, task=message.name, exc_info=message.error)
            message = self.lifecycle.broken(f"{message.name}: {message.error!r}")
        envelope = ctx.envelope
        cause, reply = (envelope.cause, envelope.reply) if envelope is not None else (None, None)
        if reply is not None:
            reply.detach()
        event = msgspec.structs.replace(
            self._journal_writer.redactor.event(message), at=self._journal_writer.clock.now()
        )
        self._apply(ctx, event, _NO_CAUSE if cause is None else cause, reply)
        return DEFERRED

    def _apply(self, ctx: Context, event: Event, cause: Cause, reply: Any) -> None:
        words = _words_of(type(event))
        name = words.name
        if self.lifecycle.stale(self.data, event):
            self._record(NewRecord(name=name, outcome="stale", cause=cause, event=event, reply=reply))
            return
        try:
            step = self.lifecycle.machine.step(self.state, self.data, event)
        except IllegalTransition as refusal:
            self._refuse(name, event, cause, str(refusal), reply)
            return
        came_from, from_state = self.state, self.state_name
        self.state, self.data = step.state, step.data
        if came_from is not step.state:
            self.state_name, self.since_s = step.state._value_, event.at
            self._leave_state(ctx)
        self.ended = self.ended or self._ends(step.effects)
        reason, transition_reason, abort_reason, abort_id = words.said(event) if words.fields else _NOTHING_SAID
        record = self._record(
            NewRecord(
                name=name,
                outcome="transition",
                cause=cause,
                event=event,
                effects=step.effects,
                from_state=from_state,
                reason=reason,
                transition_reason=transition_reason,
                abort_reason=abort_reason,
                abort_id=abort_id,
                severity=severity_of(event, step.effects),
                ended=self.ended,
                reply=reply,
            )
        )
        self.changed_at = record.timestamp
        if self.ended:
            self._tell_end()

    def _ends(self, effects: Sequence[Effect]) -> bool:
        """True if this event ends its log."""
        return FinalizeEntity in map(type, effects) or (
            self.lifecycle.ends_at_terminal and self.state in self.lifecycle.machine.final
        )

    def _tell_end(self) -> None:
        hear, self.on_ended = self.on_ended, None
        if hear is not None:
            hear()

    def reparent(self, parent_id: str | None) -> None:
        """It belongs to another one from now on: who it belonged to does not wait for its last record."""
        self.parent_id = parent_id
        self._tell_end()

    def release(self) -> None:
        """Nothing more will be heard of it."""
        self._tell_end()
        hear, self.on_buried = self.on_buried, None
        if hear is not None:
            hear()

    def _refuse(self, name: str, event: Event, cause: Cause, words: str, reply: Any) -> None:
        refused = NewRecord(
            name=name, outcome="refused", cause=cause, event=event, reason=words, severity=Severity.WARNING, reply=None
        )
        self._record(refused)
        if reply is not None:
            reply.fail(Refused(words))

    def _leave_state(self, ctx: Context) -> None:
        self.epoch += 1
        if self._timers:
            for name in self._timers:
                ctx.cancel_timer(name)
            self._timers = None

    def start_timer(self, ctx: Context, effect: StartTimer, epoch: int, cause: Cause) -> None:
        """Perform a timer effect, unless the state that wanted it is over."""
        if effect.lasting:
            self._deadline = _Deadline(effect, cause, self._journal_writer.clock.now() + effect.delay_s)
        elif epoch != self.epoch:
            return
        else:
            self._timers = [*(self._timers or ()), effect.name]
        ctx.set_timer(effect.name, effect.delay_s, effect.event, cause=cause)

    def pause_deadline(self, ctx: Context) -> None:
        """Let the timer that outlasts its states stand still: what it is about cannot go on now."""
        if self._deadline is not None:
            effect, cause, due_s = self._deadline
            ctx.cancel_timer(effect.name)
            self._deadline = _Deadline(effect, cause, due_s - self._journal_writer.clock.now())

    def resume_deadline(self, ctx: Context) -> None:
        """Let it run on, with the time that was left."""
        if self._deadline is not None:
            effect, cause, left_s = self._deadline
            ctx.set_timer(effect.name, max(left_s, 0.0), effect.event, cause=cause)
            self._deadline = _Deadline(effect, cause, self._journal_writer.clock.now() + left_s)

    # ------------------------------------------------------------------ records
    def _record(self, draft: NewRecord) -> LifecycleEvent:
        self.entity_seq += 1
        return self._journal_writer.record(self, draft)


_NO_CAUSE = Cause()
_NOTHING_SAID = ("", None, None, None)
_TELLING = ("reason", "message", "verdict", "transition_reason", "abort_reason", "abort_id")


class _EventTexts(NamedTuple):
    """Where the events of one type keep what people ask of a record first; most keep nothing."""

    name: str
    fields: frozenset[str]

    def said(self, event: Event) -> tuple[str, str | None, str | None, str | None]:
        """Its reason, the reasons that have a name, and its abort."""
        abort_id = event.abort_id if "abort_id" in self.fields else None  # type: ignore[attr-defined]
        return (
            self._reason(event),
            self._named(event, "transition_reason"),
            self._named(event, "abort_reason"),
            abort_id,
        )

    def _reason(self, event: Event) -> str:
        for name in ("reason", "message"):
            if name in self.fields and (words := getattr(event, name)):
                return str(words)
        return event.verdict.error if "verdict" in self.fields else ""  # type: ignore[attr-defined]

    def _named(self, event: Event, name: str) -> str | None:
        """The event's own, or its verdict's."""
        found: str | None = getattr(event, name) if name in self.fields else None
        if found is None and "verdict" in self.fields:
            found = getattr(event.verdict, name)  # type: ignore[attr-defined]
        return found


@cache
def _words_of(kind: type[Event]) -> _EventTexts:
    return _EventTexts(kind.name(), frozenset(_TELLING).intersection(kind.__struct_fields__))


def weight(event: object) -> int:
    """How large a message is, for the bound of a mailbox in bytes: what somebody wrote into it."""
    return len(getattr(event, "prompt", "")) + len(getattr(event, "text", ""))
