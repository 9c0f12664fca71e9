"""The entity of a plan task: the logs of the task, its task run and its job, the timer of the delay between tries, and
the begin of checks and merge.

Theory of operation
-------------------
One decision moves the three logs together (``lifecycles.task_cascade``), in one append. The delay before the next
attempt, probe or claim, and the checks and the merge of its work, are no decisions: the present states determine them
(``task_cascade.pending_effect``), however the task came to them, and after a takeover as well. So nothing is stored
about them. ``perform_pending`` compares the pending effect with the effect that was begun last, begins checks and
merges, and starts or cancels the timer of a delay; it may be called at any time, any number of times.

An effect is identified by the state that it belongs to (the entity, and the number of its state), and ends with that
state: what follows an effect is recorded.

Example: the agent of ``a`` fails, and the run is RETRYING for 10 s. ``perform_pending`` starts the timer; its message
calls ``perform``. If the supervisor is killed after 4 s, the next supervisor makes the entity of the same logs, and its
timer has the remaining 6 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from actors import Context
from actors.machine import Event
from supervisor.lifecycles.entity_types import JOB_KIND, RUN_KIND, Lifecycle
from supervisor.lifecycles.task_cascade import TABLE_OF, Delay, Merge, TaskEffect, TaskStates, pending_effect
from supervisor.lifecycles.types import Kind, RecordId
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import END_S, MAILBOX, EntityRegistry
from supervisor.runtime.journal_writer import Cause

_TIMER: Final = "delay"
Perform = Callable[[TaskEffect], None]


class PendingEffect(NamedTuple):
    """Effect, and the state that it belongs to: the entity, and the number of the entity's state (``Entity.epoch``)."""

    effect: TaskEffect
    entity_id: str
    epoch: int


class TaskEntity:
    """Actor of one plan task, with the logs of the task, of its newest run and of its newest job.

    Args:
        registry: registry that the three logs are in.
        task: log of the task.
        run, job: logs of the newest run and the newest job, if there are any in this process.
        perform: function that is called when a delay is over, and when checks or a merge are to begin.
    """

    def __init__(
        self, registry: EntityRegistry, task: Entity, run: Entity | None, job: Entity | None, perform: Perform
    ) -> None:
        self.task, self.run, self.job = task, run, job
        self._registry, self._perform = registry, perform
        self._begun: PendingEffect | None = None
        """The effect that was begun last: checks, a merge, or the delay whose timer was started."""
        self._due: PendingEffect | None = None
        """The delay whose timer has fired last."""
        registry.system.spawn(self, task.id, limits=MAILBOX, shutdown_s=END_S)

    @property
    def logs(self) -> Sequence[Entity]:
        """The logs of task, run and job, as far as they exist."""
        return [one for one in (self.task, self.run, self.job) if one is not None]

    @property
    def states(self) -> TaskStates:
        """The present states of task, run and job; a log that was removed from memory is left out."""
        states = TaskStates()
        for one in self.logs:
            if one.id in self._registry.entities:
                states = states.having(one.kind, one.state, one.data)
        return states

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
    def _pending(self) -> PendingEffect | None:
        effect = pending_effect(self.states)
        of_task = isinstance(effect, Merge) or (isinstance(effect, Delay) and effect.since == Kind.TASK)
        log = self.task if of_task else self.run
        return None if effect is None or log is None else PendingEffect(effect, log.id, log.epoch)

    @property
    def is_delayed(self) -> bool:
        """Whether the task waits for the end of a delay."""
        return isinstance(pending_effect(self.states), Delay)

    @property
    def is_due(self) -> bool:
        """Whether the timer of the delay that the task waits for has fired."""
        return self._due is not None and self._due == self._pending()

    def perform_pending(self, *, now: bool = False) -> None:
        """Begin the pending effect, unless it was begun: checks, merge, or the timer of the delay; cancel the timer
        of a delay that is not pending any more. The time without a supervisor counts. *now*: let the delay end."""
        found, ctx = self._pending(), self._registry.system.context(self.task.id)
        is_begun = found == self._begun
        if ctx is None or (is_begun and not now):
            return
        ctx.cancel_timer(_TIMER)
        self._begun = found
        match found:
            case PendingEffect(Delay(delay_s=delay_s), entity_id):
                passed_s = self._registry.journal_writer.clock.wall.time() - self._registry.entity(entity_id).changed_at
                ctx.set_timer(_TIMER, 0.0 if now else max(0.0, delay_s - max(0.0, passed_s)), found)
            case PendingEffect(effect) if not is_begun:
                self._perform(effect)

    def receive(self, ctx: Context, message: Any) -> None:
        """Report the end of a delay, unless the task has left the state of that delay."""
        if isinstance(message, PendingEffect):
            self._due = message
            if self.is_due:
                self._perform(message.effect)
