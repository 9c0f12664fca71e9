"""One actor for every lifecycle: an entity takes an event, asks its table, and hands the record to the ledger.

This is the only place that calls ``Machine.step``. An event that comes too late is recorded as stale, an illegal one
as refused; neither changes anything. A state timer dies with its state.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from actors import DEFERRED, Context, Down, IllegalTransition, Machine, TaskFailed
from actors.machine import Event
from supervisor.effects import Bury, StartTimer
from supervisor.ledger import Cause, Ledger
from supervisor.logs import get_logger
from supervisor.policy import severity_of
from supervisor.vocabulary import Kind, LifecycleEvent, Severity, Verdict

__all__ = ["Entity", "Lifecycle", "Refused"]


_log = get_logger()


class Refused(Exception):
    """The entity's table has no rule for this event in its present state; the refusal is journalled."""


class Lifecycle(NamedTuple):
    """What an entity of one kind is made of: its table, what comes too late, and how it hears of a failed task.

    Its log ends with the event that buries it, or, with ``ends_at_terminal``, in a terminal state of the table.
    """

    kind: Kind
    machine: Machine[Any, Any]
    stale: Callable[[Any, Event], bool]
    broken: Callable[[str], Event]
    ends_at_terminal: bool = False


class Entity:
    """A session, an agent, a turn, a task: a table with a state, data, and a log of its own."""

    def __init__(
        self, lifecycle: Lifecycle, entity_id: str, parent_id: str | None, state: Enum, data: Any, ledger: Ledger
    ) -> None:
        self.lifecycle = lifecycle
        self.id = entity_id
        self.parent_id = parent_id
        self.state = state
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
        self._ledger = ledger
        self._timers: list[str] = []

    @property
    def kind(self) -> Kind:
        return self.lifecycle.kind

    # ------------------------------------------------------------------ birth, facts
    def born(self, cause: Cause) -> LifecycleEvent:
        """The first record of its log."""
        record = self._record("Born", "born", cause, metadata=msgspec.to_builtins(self.data))
        self.born_seq, self.born_at, self.changed_at = record.seq, record.timestamp, record.timestamp
        return record

    def note(self, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> LifecycleEvent:
        """A fact about it that changes no state."""
        return self._record(name, "fact", cause, metadata=metadata, **described)

    # ------------------------------------------------------------------ events
    def receive(self, ctx: Context, message: Any) -> Any:
        envelope = ctx.envelope
        cause = envelope.cause if envelope is not None and envelope.cause is not None else Cause()
        if isinstance(message, TaskFailed):
            _log.error("a task failed", entity=self.id, task=message.name, exc_info=message.error)
            message = self.lifecycle.broken(f"{message.name}: {message.error!r}")
        if isinstance(message, Down) or not isinstance(message, Event):
            return None
        reply = envelope.reply if envelope is not None else None
        event = msgspec.structs.replace(message, at=self._ledger.clock.now())
        self._apply(ctx, event, cause, reply)
        return DEFERRED

    def _apply(self, ctx: Context, event: Event, cause: Cause, reply: Any) -> None:
        if self.lifecycle.stale(self.data, event):
            self._record(type(event).name(), "stale", cause, event=event, reply=reply)
            return
        try:
            step = self.lifecycle.machine.step(self.state, self.data, event)
        except IllegalTransition as refusal:
            self._refuse(event, cause, refusal, reply)
            return
        came_from, self.state, self.data = self.state, step.state, step.data
        if came_from is not self.state:
            self._leave_state(ctx)
        self.ended = (
            self.ended
            or any(isinstance(effect, Bury) for effect in step.effects)
            or (self.lifecycle.ends_at_terminal and self.state in self.lifecycle.machine.terminal)
        )
        record = self._record(
            type(event).name(),
            "transition",
            cause,
            event=event,
            effects=step.effects,
            from_state=str(came_from.value),
            severity=severity_of(event, step.effects),
            ended=self.ended,
            reply=reply,
            **_described(event),
        )
        self.changed_at = record.timestamp
        if self.ended:
            self._tell_end()

    def _tell_end(self) -> None:
        hear, self.on_ended = self.on_ended, None
        if hear is not None:
            hear()

    def leave(self) -> None:
        """Nothing more will be heard of it."""
        self._tell_end()
        hear, self.on_buried = self.on_buried, None
        if hear is not None:
            hear()

    def _refuse(self, event: Event, cause: Cause, refusal: IllegalTransition, reply: Any) -> None:
        name, words = type(event).name(), str(refusal)
        self._record(name, "refused", cause, event=event, reason=words, severity=Severity.WARNING)
        if reply is not None:
            reply.fail(Refused(words))

    def _leave_state(self, ctx: Context) -> None:
        self.epoch += 1
        for name in self._timers:
            ctx.cancel_timer(name)
        self._timers.clear()

    def start_timer(self, ctx: Context, effect: StartTimer, epoch: int, cause: Cause) -> None:
        """Perform a timer effect, unless the state that wanted it is over."""
        if not effect.lasting:
            if epoch != self.epoch:
                return
            self._timers.append(effect.name)
        ctx.set_timer(effect.name, effect.delay_s, effect.event, cause=cause)

    # ------------------------------------------------------------------ records
    def _record(self, name: str, outcome: str, cause: Cause, **fields: Any) -> LifecycleEvent:
        self.entity_seq += 1
        return self._ledger.record(
            kind=self.kind.value,
            entity_id=self.id,
            entity_seq=self.entity_seq,
            parent_id=self.parent_id,
            state=str(self.state.value),
            data=self.data,
            name=name,
            outcome=outcome,
            cause=cause,
            epoch=self.epoch,
            **fields,
        )


def _described(event: Event) -> dict[str, Any]:
    """What people ask of a record first, wherever the event keeps it."""
    verdict = getattr(event, "verdict", None)
    found = verdict if isinstance(verdict, Verdict) else None
    return {
        "reason": getattr(event, "reason", "") or getattr(event, "message", "") or (found.error if found else ""),
        "transition_reason": getattr(event, "transition_reason", None) or (found.transition_reason if found else None),
        "abort_reason": getattr(event, "abort_reason", None) or (found.abort_reason if found else None),
        "abort_id": getattr(event, "abort_id", None),
    }
