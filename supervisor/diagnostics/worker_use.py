"""Use of the workers of runs, from the journal's records: jobs that have ended, and the part of the slots that was in
use. Pure.

A slot is in use from the assignment of a task to the end of the task on that worker: while its agent works, and while
its result is tested, reviewed and merged. The time of a worker is that from its first record to its last end of a job,
or, while it has a job, to the last record that was read; so the figures of a run that has ended stay as they are. Times
are those of the journal's clock, which stands still between two supervisors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from supervisor.lifecycles import worker
from supervisor.lifecycles.types import Kind, LifecycleEvent

WORKER_EVENTS: Final = (
    "Born",
    *(
        one.name()
        for one in (
            worker.RegistrationComplete,
            worker.TaskAssigned,
            worker.TaskCompleted,
            worker.HealthCheckTimeout,
            worker.SupervisorLost,
        )
    ),
)
"""Names of the events whose records are read."""
_LOST: Final = (worker.HealthCheckTimeout.name(), worker.SupervisorLost.name())


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a worker: its ``slots``, the ``jobs`` that have ended on it, the seconds of its time, and the seconds
    that its slots were in use, all slots together."""

    id: str
    slots: int
    jobs: int
    lived_s: float
    busy_s: float

    @property
    def share(self) -> float:
        """Part of the slots that was in use, from 0 to 1."""
        return min(1.0, self.busy_s / (self.slots * self.lived_s)) if self.lived_s > 0 else 0.0


class _Count:
    """Figures of one worker so far."""

    def __init__(self, record: LifecycleEvent) -> None:
        self.workstream = str(record.metadata.get("workstream", ""))
        self.slots = int(record.metadata.get("max_concurrent_tasks", 1))
        self.born_s = self.seen_s = record.monotonic_s
        self.worked_s = record.monotonic_s
        """Time of the end of its last job."""
        self.taken = self.jobs = 0
        self.busy_s = 0.0


class WorkerTimes:
    """Use of all workers. Records must be added in their order."""

    def __init__(self) -> None:
        self._workers: dict[str, _Count] = {}
        self._last_s = 0.0

    def take(self, record: LifecycleEvent) -> None:
        """Add the next record of the journal."""
        self._last_s = record.monotonic_s
        if record.entity_type != Kind.WORKER:
            return
        if record.outcome == "born":
            self._workers[record.entity_id] = _Count(record)
        elif record.outcome == "transition" and (one := self._workers.get(record.entity_id)) is not None:
            one.busy_s += one.taken * (record.monotonic_s - one.seen_s)
            one.seen_s = record.monotonic_s
            self._count(one, record)

    def _count(self, counts: _Count, record: LifecycleEvent) -> None:
        if record.event == worker.RegistrationComplete.name():
            counts.slots = int(record.metadata.get("max_concurrent_tasks") or counts.slots)
        elif record.event == worker.TaskAssigned.name():
            counts.taken += 1
        elif record.event == worker.TaskCompleted.name():
            counts.taken, counts.jobs, counts.worked_s = max(0, counts.taken - 1), counts.jobs + 1, record.monotonic_s
        elif record.event in _LOST:
            counts.taken, counts.worked_s = 0, record.monotonic_s if counts.taken else counts.worked_s

    def of(self, workstream: str) -> tuple[WorkerUse, ...]:
        """Return the use of the workers of a workstream, in the order of their births."""
        return tuple(
            WorkerUse(
                id=worker_id,
                slots=one.slots,
                jobs=one.jobs,
                lived_s=round(until_s - one.born_s, 3),
                busy_s=round(one.busy_s + one.taken * (until_s - one.seen_s), 3),
            )
            for worker_id, one in self._workers.items()
            if one.workstream == workstream
            for until_s in [self._last_s if one.taken else one.worked_s]
        )


def worker_use_words(used: Iterable[WorkerUse]) -> list[str]:
    """Return for each worker a text such as ``worker:local: 3 jobs, 62% of 2 slots used``."""
    return [
        f"{one.id}: {one.jobs} {'job' if one.jobs == 1 else 'jobs'}, {one.share:.0%} of"
        f" {one.slots} {'slot' if one.slots == 1 else 'slots'} used"
        for one in used
    ]
