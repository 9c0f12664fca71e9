"""The entity of a plan task: the logs of the task, its task run and its job, and the effect that is under way.

Theory of operation
-------------------
One decision moves the three logs together (``lifecycles.task_cascade``), in one append. What is to be done next is no
decision: the present states determine it (``task_cascade.pending_effect``), however the task came to them, and after a
takeover as well. So nothing is stored about effects, and nothing has to be handed out again.

``look`` compares the pending effect with the effect under way. A task has one effect at a time: if the task moves on
during an effect, that effect is stopped (``RunningEffect.scope``), and the next one begins when it is over. What
follows an effect is recorded as an event. ``look`` is called after every record, and whenever something beside the
states changes on which the effect depends; it may be called any number of times.

An effect is identified by the state that it belongs to (the entity, and the number of its state). An effect that ended
without an event, since it was stopped, is not begun again in that state.

Example: the agent of ``a`` fails, and the run is RETRYING for 10 s. ``MakeAttempt`` is over with that record. ``look``
begins ``PutAway``, which frees the slot of the worker, and then starts the timer of the delay. If the supervisor is
killed after 4 s, the next supervisor makes the entity of the same logs, and its timer has the remaining 6 s. A person
who cancels ``a`` in its attempt moves the three logs at once; ``MakeAttempt`` is stopped, and ``PutAway`` ends the
session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, NamedTuple

import anyio

from actors import Context
from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.entity_types import JOB_KIND, RUN_KIND, Lifecycle
from supervisor.lifecycles.task_cascade import (
    TABLE_OF,
    Delay,
    MakeAttempt,
    RunChecks,
    StartAttempt,
    TaskEffect,
    TaskResources,
    TaskStates,
    pending_effect,
)
from supervisor.lifecycles.types import Kind, RecordId
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import END_S, MAILBOX, EntityRegistry
from supervisor.runtime.journal_writer import Cause

_TIMER: Final = "delay"


class PendingEffect(NamedTuple):
    """Effect, and the state that it belongs to: the entity, and the number of the entity's state (``Entity.epoch``)."""

    effect: TaskEffect
    entity_id: str
    epoch: int


class RunningEffect:
    """An effect of a task that is under way."""

    def __init__(self, pending: PendingEffect) -> None:
        self.pending = pending
        self.over = OneShotEvent()
        """Set when the effect has ended, and its outcome, if it had one, is recorded."""
        self.is_stopped = False
        """Whether the outcome of the effect comes too late."""
        self._scope: anyio.CancelScope | None = None

    @property
    def effect(self) -> TaskEffect:
        return self.pending.effect

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let :meth:`stop` cancel what is awaited in the block, a merge at its next safe point."""
        with anyio.CancelScope() as scope:
            if self.is_stopped:
                scope.cancel()
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None

    def stop(self) -> None:
        """Stop the effect; its outcome comes too late. Where only the outcome is still being recorded, nothing is
        cancelled."""
        if self._scope is not None and not self.is_stopped:
            self._scope.cancel()
        self.is_stopped = True


Perform = Callable[[RunningEffect], bool]
"""Function that starts the performance of an effect, and calls ``TaskEntity.end`` after it; it returns false if nothing
is performed any more."""


class TaskEntity:
    """Actor of one plan task, with the logs of the task, of its newest run and of its newest job.

    Args:
        registry: registry that the three logs are in.
        task: log of the task.
        run, job: logs of the newest run and the newest job, if there are any in this process.
        resources: function that returns slot, session and result of the task.
        perform: function that starts the performance of an effect.
        end_delay: function that is called when a delay is over.
    """

    def __init__(
        self,
        registry: EntityRegistry,
        task: Entity,
        run: Entity | None,
        job: Entity | None,
        resources: Callable[[], TaskResources],
        perform: Perform,
        end_delay: Callable[[], None],
    ) -> None:
        self.task, self.run, self.job = task, run, job
        self.running: RunningEffect | None = None
        """The effect under way."""
        self._registry, self._resources = registry, resources
        self._perform, self._end_delay = perform, end_delay
        self._begun: PendingEffect | None = None
        """The effect that was begun last, or the delay whose timer was started."""
        registry.system.spawn(self, task.id, limits=MAILBOX, shutdown_s=END_S)

    @property
    def logs(self) -> Sequence[Entity]:
        """The logs of task, run and job, as far as they exist."""
        return [one for one in (self.task, self.run, self.job) if one is not None]

    @property
    def states(self) -> TaskStates:
        """The present states of task, run and job; a log that was removed from memory is left out."""
        return TaskStates.of_logs(one for one in self.logs if one.id in self._registry.entities)

    # ------------------------------------------------------------------ records
    def open_run(self, entity_id: str, state: Enum, data: Any, cause: Cause) -> None:
        """Begin the log of a new run. The run before is removed from memory; if its circuit is open, it stays open in
        the journal."""
        self.run = self._open(RUN_KIND, self.run, entity_id, state, data, cause)

    def open_job(self, entity_id: str, state: Enum, data: Any, cause: Cause) -> None:
        """Begin the log of a new job. The job before is removed from memory."""
        self.job = self._open(JOB_KIND, self.job, entity_id, state, data, cause)

    def _open(
        self, kind: Lifecycle, before: Entity | None, entity_id: str, state: Enum, data: Any, cause: Cause
    ) -> Entity:
        if before is not None:
            self._registry.remove(before.id)
        return self._registry.create_entity(
            kind, entity_id, parent_id=self.task.id, state=state, data=data, cause=cause, contained=False
        )

    def move(self, events: Sequence[Event], cause: Cause) -> RecordId | None:
        """Append the records of the *events* of one decision, and return the number of the last record; ``None`` if
        there are no events.

        Raises:
            Refused: a table does not allow an event; no log has moved.
        """
        if not events:
            return None
        ids: dict[str, str] = {one.kind: one.id for one in self.logs}
        return self._registry.apply(*((ids[TABLE_OF[type(one)]], one) for one in events), cause=cause).seq

    def remove(self) -> None:
        """Remove the task, its run and its job from memory."""
        for one in reversed(self.logs):
            self._registry.remove(one.id)

    # ------------------------------------------------------------------ effects
    @property
    def pending(self) -> TaskEffect | None:
        """The effect that is to be performed now, or is under way."""
        return pending_effect(self.states, self._resources())

    @property
    def is_delayed(self) -> bool:
        """Whether the task waits for the end of a delay."""
        return isinstance(self.pending, Delay)

    def _pending(self) -> PendingEffect | None:
        effect, log = self.pending, self.task
        if isinstance(effect, MakeAttempt | RunChecks) or (isinstance(effect, Delay) and effect.since == Kind.RUN):
            log = self.run or log
        elif isinstance(effect, StartAttempt):
            log = self.job or log
        return None if effect is None else PendingEffect(effect, log.id, log.epoch)

    def look(self, *, now: bool = False) -> None:
        """Begin the pending effect, unless it was begun: start the timer of a delay, or the performance of any other
        effect, after the effect under way is over. Stop the effect under way, and cancel the timer, if they are not
        pending any more. The time without a supervisor counts for a delay. *now*: let the delay end."""
        found, ctx = self._pending(), self._registry.system.context(self.task.id)
        if ctx is None:
            return
        if self.running is not None:
            if found != self.running.pending:
                self.running.stop()
            return
        if found == self._begun and not now:
            return
        ctx.cancel_timer(_TIMER)
        is_begun, self._begun = found == self._begun, found
        match found:
            case PendingEffect(Delay(delay_s=delay_s), entity_id):
                passed_s = self._registry.journal_writer.clock.wall.time() - self._registry.entity(entity_id).changed_at
                ctx.set_timer(_TIMER, 0.0 if now else max(0.0, delay_s - max(0.0, passed_s)), found)
            case PendingEffect() if not is_begun:
                self.running = RunningEffect(found)
                if not self._perform(self.running):
                    self.running = None

    def end(self, running: RunningEffect) -> None:
        """Note that the effect under way is over: its outcome is recorded, or it was stopped. ``look`` then begins the
        next one."""
        self.running = None
        running.over.set()

    def receive(self, ctx: Context, message: Any) -> None:
        """Report the end of a delay, unless the task has left the state of that delay."""
        if isinstance(message, PendingEffect) and message == self._pending():
            self._end_delay()
