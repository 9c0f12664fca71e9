"""Checker of jobs and worker slots: those of lost workers become free soon, according to durable records alone.

A worker that is lost, or whose supervisor was killed and whose plan is continued, gives up all its jobs within a bound
of time; a job that is over gives its slot back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append

Say = Callable[[str, str, str], None]
Key = tuple[str, str]
LOST: Final = frozenset({"unresponsive", "shutdown"})


class LeaseChecker:
    """Checker of the workers that hold jobs and slots. *say* reports a violation; *bound_s* is the time, in seconds,
    for which a job or slot may still be held after it should be free: the end of its session, and the records that
    follow. The bound starts when the reason is durable, by the clock *now*."""

    def __init__(self, say: Say, bound_s: float, now: Callable[[], float]) -> None:
        self._say, self._bound_s, self._now = say, bound_s, now
        self._names: dict[str, str] = {}
        """Name of each task, by its id."""
        self._running: dict[str, str] = {}
        """Worker of each running job."""
        self._left: dict[str, str] = {}
        """Workers of the jobs that ran under a supervisor that has ended; these jobs must be free when their plan is
        continued."""
        self._streams: dict[str, str] = {}
        """Workstream of each job."""
        self._given: dict[str, set[str]] = {}
        """Names of the tasks assigned to each worker."""
        self._due: dict[Key, tuple[float, str]] = {}
        """Deadline by which each job or slot must be free, and the reason."""

    # ------------------------------------------------------------------ supervisors and clocks
    def started(self) -> None:
        """Note the start of another supervisor, whose workers are new."""
        self.ended()
        self._given.clear()
        self._left = {**self._running}

    def ended(self) -> None:
        """Note that the supervisor has ended: the next supervisor must free the jobs and slots that are still held."""
        self._due.clear()

    def delayed(self, seconds: float) -> None:
        """Extend the deadlines by so many seconds, in which no work and no records were possible."""
        self._due = {key: (due_s + seconds, why) for key, (due_s, why) in self._due.items()}

    # ------------------------------------------------------------------ what is durable
    def wrote(self, one: Append, at_s: float) -> None:
        """Process a durable append."""
        record = one.record
        self._look(at_s, record.entity_id)
        if record.outcome == "born" and record.entity_type == "task":
            self._names[record.entity_id] = str(record.metadata["name"])
        elif record.outcome == "born" and record.entity_type == "job":
            self._streams[record.entity_id] = str(record.metadata["workstream_id"])
        elif record.outcome == "born" and record.entity_type == "worker":
            self._go_on(one.parent_id or "")
        elif record.outcome == "transition" and record.entity_type == "job":
            self._job(record, self._names.get(one.parent_id or "", ""), at_s)
        elif record.outcome == "transition" and record.entity_type == "worker":
            self._worker(record, at_s)

    def _look(self, at_s: float, entity_id: str) -> None:
        """Report overdue jobs and slots, except those that this record frees."""
        for key, (due_s, why) in [*self._due.items()]:
            if at_s > due_s and entity_id != key[0]:
                del self._due[key]
                self._say("released", " ".join(key).strip(), f"{why}, and is not free {at_s - due_s:.3f} s too late")

    def _go_on(self, workstream: str) -> None:
        """Start the bound for the jobs of an earlier supervisor, when their workstream has a worker under this one."""
        for job in [job for job in self._left if self._streams[job] == workstream]:
            self._is_due((job, ""), f"is held by {self._left.pop(job)}, of a supervisor that is no more")

    def _job(self, record: LifecycleEvent, task: str, at_s: float) -> None:
        job = record.entity_id
        if record.event == "worker_started":
            self._running[job] = str(record.metadata["worker_id"])
        elif record.from_status == "running" and record.to_status != "running":
            self._left.pop(job, None)
            self._free((job, ""), at_s)
            worker = self._running.pop(job, "")
            if task in self._given.get(worker, ()):
                self._is_due((worker, task), f"was {record.to_status} in {job}")

    def _worker(self, record: LifecycleEvent, at_s: float) -> None:
        worker, task = record.entity_id, str(record.metadata.get("task_id"))
        if record.event == "task_assigned":
            self._given.setdefault(worker, set()).add(task)
        elif record.event == "task_completed":
            self._given.get(worker, set()).discard(task)
            self._free((worker, task), at_s)
        elif record.to_status in LOST and record.from_status not in LOST:
            for name in self._given.pop(worker, ()):
                self._due.pop((worker, name), None)
            for job in [job for job, holder in self._running.items() if holder == worker]:
                self._is_due((job, ""), f"is held by {worker}, which is {record.to_status}")

    def _is_due(self, key: Key, why: str) -> None:
        self._due.setdefault(key, (self._now() + self._bound_s, why))

    def _free(self, key: Key, at_s: float) -> None:
        due_s, why = self._due.pop(key, (at_s, ""))
        if at_s > due_s:
            self._say("released", " ".join(key).strip(), f"{why}, and is free {at_s - due_s:.3f} s too late")
