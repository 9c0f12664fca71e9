"""Entities of all lifecycles: an entity steps its state machine by an event, and records the outcome.

An ``Entity`` is a state with its data and its log. An ``EntityActor`` also has a mailbox, from which it takes its
events, and timers. Task, task run and job have no actor each: one decision moves all three (``EntityRegistry.apply``).

Theory of operation
-------------------
State and data of an entity change only here. For each event exactly one record is appended, with the outcome:

    transition   the table has a rule: state and data change, and the record carries the effects
    stale        the event comes too late to have a meaning (``Lifecycle.stale``): nothing changes
    refused      the table has no rule in this state: nothing changes, and the caller gets :class:`Refused`
    fact         not an event: a record that changes no state (``record_fact``)

* State, data and record change together, in one call without an await. Effects are performed later, when the record is
  durable, except the exempt effects (``journal_writer``).
* ``epoch`` counts changes of state. A timer effect carries the epoch of its decision: if the state has changed before
  the effect is performed, the effect sets no timer. Timers of a state are cancelled when the entity leaves the state;
  one *lasting* timer (a turn's deadline) continues in later states, and is paused while the journal cannot be written.
* The reply to a caller is the durable record, so ``receive`` always defers the reply.
* ``perform`` performs an effect of the entity's table when the effect's record is durable. It neither waits nor steps a
  table: work that takes time runs in a task of an actor, and every consequence comes back as an event in a mailbox.

Example: a turn in RUNNING receives ``verify_requested``::

    entity_seq 7: verify_requested  RUNNING -> VERIFYING  effects=[SendEvent(to=session), Verify()]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from actors import DEFERRED, Context, IllegalTransition, TaskFailed
from actors.machine import Effect, Event, Step
from supervisor.lifecycles.effects import FinalizeEntity, StartTimer
from supervisor.lifecycles.entity_types import Lifecycle
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, Severity
from supervisor.policies.turn_outcome import severity_of
from supervisor.ports import EntityRow
from supervisor.ports.logs import get_logger
from supervisor.ports.outages import Outage
from supervisor.runtime.journal_writer import Cause, JournalWriter, NewRecord

_log = get_logger()


class Refused(Exception):
    """Exception: a request that the present state does not allow; nothing has changed. If the table of an entity has no
    rule for an event, the refusal is recorded in the journal."""


class Degraded(Refused):
    """Exception: no work begins while the journal cannot be written; nothing was started, and nothing was recorded."""

    def __init__(self, what: str, outage: Outage) -> None:
        super().__init__(f"{what} is not taken: {outage.words}. Mend the disk, or wait, and ask again")


class _Deadline(NamedTuple):
    """Timer that continues when its entity changes state. ``due_s`` is the time at which the timer fires (journal
    clock); while the timer is paused, ``due_s`` is the number of seconds left."""

    effect: StartTimer
    cause: Cause
    due_s: float


class Entity:
    """Live entity, such as a session, agent, turn or task: a state machine with a state, data, and a log of its own."""

    __slots__ = (
        "_journal_writer",
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
        """Function that is called once, when the last record was appended, or when it is certain that there will be
        none."""
        self.on_buried: Callable[[], None] | None = None
        """Function that is called once, when the last record is durable, or when it is certain that it will not be
        written."""
        self.born_seq = BEGINNING
        self.born_at = self.changed_at = 0.0
        self.since_s = 0.0
        """Time at which the present state began (seconds of the journal clock)."""
        self._journal_writer = journal_writer

    # ------------------------------------------------------------------ first record, facts
    def continue_log(self, row: EntityRow) -> None:
        """Continue the log that an earlier supervisor has begun; *row* is the entity's row in the journal."""
        self.parent_id, self.entity_seq = row.parent_id, row.entity_seq
        self.born_seq, self.born_at, self.changed_at = row.born_seq, row.born_at, row.changed_at
        self.since_s = row.changed_at  # the journal clock begins at Unix time

    def record_birth(self, cause: Cause) -> LifecycleEvent:
        """Append the first record of the entity's log."""
        record = self._record(
            NewRecord(name="Born", outcome="born", cause=cause, metadata=msgspec.to_builtins(self.data))
        )
        self.born_seq, self.born_at, self.changed_at = record.seq, record.timestamp, record.timestamp
        self.since_s = record.monotonic_s
        return record

    def record_fact(self, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> LifecycleEvent:
        """Append a fact to the entity's log; a fact changes no state."""
        clean = self._journal_writer.redactor.value
        return self._record(
            NewRecord(name=name, outcome="fact", cause=cause, metadata=clean(metadata), **clean(described))
        )

    # ------------------------------------------------------------------ events
    def prepare(self, event: Event) -> Event:
        """Return a copy of *event* without secrets and with the present time."""
        return msgspec.structs.replace(self._journal_writer.redactor.event(event), at=self._journal_writer.clock.now())

    def step(self, state: Enum, data: Any, event: Event) -> Step[Any, Any]:
        """Return the step that the entity's table gives for *event* in *state* with *data*. The entity itself is not
        changed.

        Raises:
            IllegalTransition: the table does not allow the event.
        """
        return self.lifecycle.machine.step(state, data, event)

    def enter(
        self, ctx: Context | None, event: Event, step: Step[Any, Any], cause: Cause, reply: Any = None
    ) -> LifecycleEvent:
        """Take the *step* that the table gives for *event*: change state and data, and append the record. *ctx* is the
        context of the entity's actor, if it has one."""
        texts = _texts_of(type(event))
        came_from, from_state, since_s = self.state, self.state_name, self.since_s
        self.state, self.data = step.state, step.data
        if came_from is not step.state:
            self.state_name, self.since_s = step.state._value_, event.at
            self._leave_state(ctx)
        self.ended = self.ended or self._ends(step.effects)
        line_fields: dict[str, Any] | None = None
        if (fields_of := self.lifecycle.line_fields) is not None and came_from is not step.state:
            line_fields = {"duration_seconds": round(max(0.0, event.at - since_s), 3)}
            line_fields |= fields_of(step.data, step.state, came_from in self.lifecycle.machine.initial)
        reason, transition_reason, abort_reason, abort_id = texts.of(event) if texts.fields else _NO_TEXTS
        record = self._record(
            NewRecord(
                name=texts.name,
                outcome="transition",
                cause=cause,
                event=event,
                effects=step.effects,
                from_state=from_state,
                reason=reason,
                transition_reason=transition_reason,
                abort_reason=abort_reason,
                abort_id=abort_id,
                severity=self._severity(came_from, event, step),
                line_fields=line_fields,
                ended=self.ended,
                reply=reply,
            )
        )
        self.changed_at = record.timestamp
        if self.ended:
            self._report_last_record()
        return record

    def _severity(self, came_from: Enum, event: Event, step: Step[Any, Any]) -> str:
        """Return the severity of the record: that of the state entered, or that of the event."""
        entered = self.lifecycle.machine.severities.get(step.state) if came_from is not step.state else None
        return entered or severity_of(event, step.effects)

    def _ends(self, effects: Sequence[Effect]) -> bool:
        """Return whether the event with these *effects* ends the entity's log."""
        return FinalizeEntity in map(type, effects) or (
            self.lifecycle.ends_at_terminal and self.state in self.lifecycle.machine.final
        )

    def _report_last_record(self) -> None:
        call, self.on_ended = self.on_ended, None
        if call is not None:
            call()

    def release(self) -> None:
        """Report to the waiting parent that no further record of this entity will come."""
        self._report_last_record()
        call, self.on_buried = self.on_buried, None
        if call is not None:
            call()

    def accepts(self, event: Event) -> bool:
        """Return whether *event* does not come too late to have an effect; otherwise the event is not delivered."""
        return True

    # ------------------------------------------------------------------ effects
    def perform(self, effect: Effect, cause: Cause) -> None:
        """Perform an effect of the entity's table, or start a task that performs it. Entities whose tables have effects
        of their own override this method; ``EntityRegistry.perform`` performs the effects of every kind of entity."""
        raise AssertionError(f"nothing performs {type(effect).__name__} of a {self.kind_name}")

    def refuse(self, event: Event, cause: Cause, why: str) -> None:
        """Append the record of an event that the table does not allow."""
        name = event.name()
        self._record(
            NewRecord(name=name, outcome="refused", cause=cause, event=event, reason=why, severity=Severity.WARNING)
        )

    def _leave_state(self, ctx: Context | None) -> None:
        self.epoch += 1

    # ------------------------------------------------------------------ records
    def _record(self, draft: NewRecord) -> LifecycleEvent:
        self.entity_seq += 1
        return self._journal_writer.record(self, draft)


class EntityActor(Entity):
    """Entity that is an actor: it takes its events from a mailbox, and has timers."""

    __slots__ = ("_deadline", "_timers")

    def __init__(
        self,
        lifecycle: Lifecycle,
        entity_id: str,
        parent_id: str | None,
        state: Enum,
        data: Any,
        journal_writer: JournalWriter,
    ) -> None:
        super().__init__(lifecycle, entity_id, parent_id, state, data, journal_writer)
        self._timers: list[str] | None = None
        self._deadline: _Deadline | None = None

    def receive(self, ctx: Context, message: Any) -> Any:
        if not isinstance(message, Event):
            if not isinstance(message, TaskFailed):
                return None
            if message.error is not self._journal_writer.error:  # a lost journal is logged once
                _log.error("a task failed", entity=self.id, task=message.name, exc_info=message.error)
            assert self.lifecycle.broken is not None, "an entity of this type has no actor"
            message = self.lifecycle.broken(f"{message.name}: {message.error!r}")
        envelope = ctx.envelope
        cause, reply = (envelope.cause, envelope.reply) if envelope is not None else (None, None)
        if reply is not None:
            reply.detach()
        self._apply(ctx, self.prepare(message), _NO_CAUSE if cause is None else cause, reply)
        return DEFERRED

    def _apply(self, ctx: Context, event: Event, cause: Cause, reply: Any) -> None:
        if self.lifecycle.stale(self.data, event):
            self._record(NewRecord(name=event.name(), outcome="stale", cause=cause, event=event, reply=reply))
            return
        try:
            step = self.step(self.state, self.data, event)
        except IllegalTransition as refusal:
            self.refuse(event, cause, str(refusal))
            if reply is not None:
                reply.fail(Refused(str(refusal)))
            return
        self.enter(ctx, event, step, cause, reply)

    def _leave_state(self, ctx: Context | None) -> None:
        super()._leave_state(ctx)
        if self._timers and ctx is not None:
            for name in self._timers:
                ctx.cancel_timer(name)
            self._timers = None

    def start_timer(self, ctx: Context, effect: StartTimer, epoch: int, cause: Cause) -> None:
        """Set the timer of a timer effect, unless the entity has left the state that decided the effect."""
        if effect.lasting:
            self._deadline = _Deadline(effect, cause, self._journal_writer.clock.now() + effect.delay_s)
        elif epoch != self.epoch:
            return
        else:
            self._timers = [*(self._timers or ()), effect.name]
        ctx.set_timer(effect.name, effect.delay_s, effect.event, cause=cause)

    def end_deadline(self, ctx: Context) -> None:
        """Cancel the lasting timer, because the time that it bounds is over."""
        if self._deadline is not None:
            ctx.cancel_timer(self._deadline.effect.name)
            self._deadline = None

    def pause_deadline(self, ctx: Context) -> None:
        """Pause the lasting timer (the deadline of a turn), because a turn cannot continue while the journal cannot be
        written."""
        if self._deadline is not None:
            effect, cause, due_s = self._deadline
            ctx.cancel_timer(effect.name)
            self._deadline = _Deadline(effect, cause, due_s - self._journal_writer.clock.now())

    def resume_deadline(self, ctx: Context) -> None:
        """Restart the lasting timer with the time that was left when it was paused."""
        if self._deadline is not None:
            effect, cause, left_s = self._deadline
            ctx.set_timer(effect.name, max(left_s, 0.0), effect.event, cause=cause)
            self._deadline = _Deadline(effect, cause, self._journal_writer.clock.now() + left_s)


_NO_CAUSE = Cause()
_NO_TEXTS = ("", None, None, None)
_REPEATED = ("reason", "message", "error", "verdict", "transition_reason", "abort_reason", "abort_id")


class _EventTexts(NamedTuple):
    """Names of those fields and properties of one event type that every record repeats: reason, abort and their codes.
    Most event types have none."""

    name: str
    fields: frozenset[str]

    def of(self, event: Event) -> tuple[str, str | None, str | None, str | None]:
        """Return the event's reason, transition reason, abort reason, and abort id."""
        abort_id = event.abort_id if "abort_id" in self.fields else None  # type: ignore[attr-defined]
        return (
            self._reason(event),
            self._named(event, "transition_reason"),
            self._named(event, "abort_reason"),
            abort_id,
        )

    def _reason(self, event: Event) -> str:
        for name in ("reason", "message", "error"):
            if name in self.fields and (words := getattr(event, name)):
                return str(words)
        return event.verdict.error if "verdict" in self.fields else ""  # type: ignore[attr-defined]

    def _named(self, event: Event, name: str) -> str | None:
        """Return the value of the field or property *name* of the event, or else of the event's verdict."""
        found: str | None = getattr(event, name) if name in self.fields else None
        if found is None and "verdict" in self.fields:
            found = getattr(event.verdict, name)  # type: ignore[attr-defined]
        return found


@cache
def _texts_of(kind: type[Event]) -> _EventTexts:
    return _EventTexts(kind.name(), frozenset(name for name in _REPEATED if hasattr(kind, name)))


def weight(event: object) -> int:
    """Return the size of a message in bytes, for the limit of a mailbox: the length of the message's texts."""
    return len(getattr(event, "prompt", "")) + len(getattr(event, "text", ""))
