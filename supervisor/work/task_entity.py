"""The entity of a plan task: the logs of the task, its task run and its job, and the timer of the delay between tries.

Theory of operation
-------------------
One decision moves the three logs together (``lifecycles.task_cascade``), in one append. The delay before the next
attempt, probe or claim is no decision: the present states determine it (``task_cascade.pending_effect``), however the
task came to them, and after a takeover as well. So nothing is stored about a delay. ``perform_pending`` compares the
pending delay with the delay whose timer was started last, and starts or cancels the timer; it may be called at any
time, any number of times.

A delay is identified by the state that it belongs to (the entity, and the number of its state), and ends with that
state: what follows a delay is recorded.

Example: the agent of ``a`` fails, and the run is RETRYING for 10 s. ``perform_pending`` starts the timer; its message
calls ``on_due``. If the supervisor is killed after 4 s, the next supervisor makes the entity of the same logs, and its
timer has the remaining 6 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from actors import Context
from actors.machine import Event
from supervisor.lifecycles.entity_types import JOB_KIND, RUN_KIND, Lifecycle
from supervisor.lifecycles.task_cascade import TABLE_OF, Delay, TaskStates, pending_effect
from supervisor.lifecycles.types import RecordId
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import END_S, MAILBOX, EntityRegistry
from supervisor.runtime.journal_writer import Cause

_TIMER: Final = "delay"


class PendingDelay(NamedTuple):
    """Delay, and the state that it belongs to: the entity, and the number of the entity's state (``Entity.epoch``)."""

    delay: Delay
    entity_id: str
    epoch: int


class TaskEntity:
    """Actor of one plan task, with the logs of the task, of its newest run and of its newest job.

    Args:
        registry: registry that the three logs are in.
        task: log of the task.
        run, job: logs of the newest run and the newest job, if there are any in this process.
        on_due: function that is called when a delay is over.
    """

    def __init__(
        self, registry: EntityRegistry, task: Entity, run: Entity | None, job: Entity | None, on_due: Callable[[], None]
    ) -> None:
        self.task, self.run, self.job = task, run, job
        self._registry, self._on_due = registry, on_due
        self._started: PendingDelay | None = None
        """The delay whose timer was started last."""
        self._due: PendingDelay | None = None
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

    # ------------------------------------------------------------------ delays
    def _pending(self) -> PendingDelay | None:
        delay = pending_effect(self.states)
        log = None if delay is None else self.task if delay.since == self.task.kind else self.run
        return None if delay is None or log is None else PendingDelay(delay, log.id, log.epoch)

    @property
    def is_delayed(self) -> bool:
        """Whether the task waits for the end of a delay."""
        return pending_effect(self.states) is not None

    @property
    def is_due(self) -> bool:
        """Whether the timer of the delay that the task waits for has fired."""
        return self._due is not None and self._due == self._pending()

    def perform_pending(self, *, now: bool = False) -> None:
        """Start the timer of the pending delay, unless it was started; cancel the timer of a delay that is not pending
        any more. The time without a supervisor counts. *now*: let the delay end at once."""
        found, ctx = self._pending(), self._registry.system.context(self.task.id)
        if ctx is None or (found == self._started and not now):
            return
        ctx.cancel_timer(_TIMER)
        self._started = found
        if found is not None:
            since = self._registry.entity(found.entity_id).changed_at
            passed_s = max(0.0, self._registry.journal_writer.clock.wall.time() - since)
            ctx.set_timer(_TIMER, 0.0 if now else max(0.0, found.delay.delay_s - passed_s), found)

    def receive(self, ctx: Context, message: Any) -> None:
        """Report the end of a delay, unless the task has left the state of that delay."""
        if isinstance(message, PendingDelay):
            self._due = message
            if self.is_due:
                self._on_due()
