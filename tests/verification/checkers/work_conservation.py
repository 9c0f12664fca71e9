"""Checker of work conservation: no worker is idle while a job waits that the worker could do, according to durable
records alone.

While no job of any workstream is worked on, only the provider of models can keep a queued job from starting: a worker
with the required capabilities must start the job at once, or when the provider may be used again
(docs/explanation/work.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append

Say = Callable[[str, str, str], None]
WORKING: Final = frozenset({"running", "validating"})
EVERYTHING: Final = "*"


class _Stream(msgspec.Struct):
    """State of a workstream: queued jobs, jobs under way, idle workers, and providers that fail everybody."""

    queued: dict[str, None] = msgspec.field(default_factory=dict)
    working: dict[str, None] = msgspec.field(default_factory=dict)
    idle: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    able: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    shut: dict[str, float] = msgspec.field(default_factory=dict)
    """Time until which each failing provider is not used, by the journal's clock."""


class WorkConservationChecker:
    """Checker of the idle workers and waiting jobs of one simulated run. *say* reports a violation; *bound_s* is the
    time, in seconds, that a claim may take until it is on record; *now* is the run's clock, in seconds."""

    def __init__(self, say: Say, bound_s: float, now: Callable[[], float]) -> None:
        self._say, self._bound_s, self._now = say, bound_s, now
        self._streams: dict[str, _Stream] = {}
        self._tasks: dict[str, tuple[str, str]] = {}
        """Workstream and state of each task."""
        self._needs: dict[str, tuple[str, frozenset[str]]] = {}
        """Task of each job, and the capabilities that the job needs."""
        self._job: dict[str, str] = {}
        """Last job of each task."""
        self._due: dict[str, float] = {}
        """Time by which each job that could start must have started."""
        self._busy = False
        """Whether any job was under way at the last update, of any workstream: owned files, providers and limits are
        those of the supervisor, so that a job may wait for one of another plan."""

    def ended(self) -> None:
        """Drop the workers and providers of a supervisor that has ended."""
        self._due.clear()
        for stream in self._streams.values():
            stream.idle.clear()
            stream.able.clear()
            stream.shut.clear()

    def delayed(self, seconds: float) -> None:
        """Extend the deadlines by so many seconds, in which no work and no records were possible."""
        self._due = {job: due_s + seconds for job, due_s in self._due.items()}

    def wrote(self, one: Append, at_s: float) -> None:
        """Process a durable append: report jobs that should have started by now. *at_s* is the time of the record, by
        the run's clock."""
        for job in [job for job, due_s in self._due.items() if at_s > due_s and job != one.record.entity_id]:
            late_s = at_s - self._due.pop(job)
            self._say(
                "punctual", job, f"is queued while nobody does anything, and who could have it is idle: {late_s:g} s"
            )
        self._take(one)

    def _take(self, one: Append) -> None:
        """Update the state of workstreams, tasks and workers from the append, and the deadlines of the jobs
        concerned."""
        record = one.record
        match record.entity_type, record.outcome:
            case "task", "born":
                self._tasks[record.entity_id] = (str(record.metadata["workstream"]), one.state)
            case "task", "transition":
                name = self._tasks[record.entity_id][0]
                self._tasks[record.entity_id] = (name, one.state)
                self._update_due(name, record, self._job.get(record.entity_id))
            case "task", "fact" if record.event == "ProviderBreaker":
                self._note_breaker(record)
                self._update_due(self._tasks[record.entity_id][0], record, None)
            case "job", "born":
                task = str(record.metadata["task"])
                self._job[task] = record.entity_id
                self._needs[record.entity_id] = (task, frozenset(record.metadata["capabilities"]))
            case "job", "transition":
                name = self._stream_of(record.entity_id)
                stream = self._stream(name)
                for jobs, inside in ((stream.queued, one.state == "queued"), (stream.working, one.state in WORKING)):
                    if inside and not one.ended:
                        jobs[record.entity_id] = None
                    else:
                        jobs.pop(record.entity_id, None)
                self._update_due(name, record, record.entity_id)
            case "worker", "transition":
                self._worker(record, one)
                self._update_due(one.parent_id or "", record, None)

    def _stream(self, name: str) -> _Stream:
        return self._streams.setdefault(name, _Stream())

    def _note_breaker(self, record: LifecycleEvent) -> None:
        shut, key = self._stream(self._tasks[record.entity_id][0]).shut, str(record.metadata["provider"])
        shut.pop(key, None)
        if record.metadata["circuit"] != "closed":
            shut[key] = float(record.metadata["free_at_s"])

    def _worker(self, record: LifecycleEvent, one: Append) -> None:
        stream = self._stream(one.parent_id or "")
        stream.idle.pop(record.entity_id, None)
        if record.event == "registration_complete":
            stream.able[record.entity_id] = frozenset(record.metadata["capabilities"])
        if one.state == "idle" and record.entity_id in stream.able:
            stream.idle[record.entity_id] = stream.able[record.entity_id]

    def _update_due(self, name: str, record: LifecycleEvent, job: str | None) -> None:
        """Update the deadline of *job*, or of every job of the workstream if *job* is ``None``, or of every job if the
        supervisor became busy or free: a job that could start from now on gets a deadline."""
        was_busy, self._busy = self._busy, any(stream.working for stream in self._streams.values())
        if self._busy and was_busy:
            return
        if self._busy != was_busy:
            jobs = [*(one for stream in self._streams.values() for one in stream.queued), *self._due]
        elif job is None:
            jobs = [*self._stream(name).queued, *(one for one in self._due if self._stream_of(one) == name)]
        else:
            jobs = [job]
        for one in dict.fromkeys(jobs):
            self._update_job(self._stream(self._stream_of(one)), record, one)

    def _stream_of(self, job: str) -> str:
        return self._tasks[self._needs[job][0]][0]

    def _update_job(self, stream: _Stream, record: LifecycleEvent, job: str) -> None:
        task, needs = self._needs[job]
        waits = not self._busy and job in stream.queued and self._tasks[task][1] == "OPEN"
        if waits and _has(stream.idle.values(), needs):
            later_s = max((at_s - record.monotonic_s for at_s in stream.shut.values()), default=0.0)
            self._due.setdefault(job, self._now() + max(0.0, later_s) + self._bound_s)
        else:
            self._due.pop(job, None)


def _has(idle: Iterable[frozenset[str]], needs: frozenset[str]) -> bool:
    return any(EVERYTHING in able or needs <= able for able in idle)
