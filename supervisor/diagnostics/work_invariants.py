"""Invariants of spec 004 between jobs, workers and workstreams, which a single line of a log cannot show.

Pure: states and ``metadata`` come in, problems go out through ``ReportProblem``; no metadata raises an exception. Each
line costs the same time, however long the log is. ``metadata`` describes the state after the line's transition.

One of the fourteen invariants leaves no trace in a line and is checked by the simulator's oracle: that the state of a
failed workstream is archived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

ReportProblem = Callable[[str | None, str], None]
"""Function that reports a problem; its arguments are the field (or ``None``) and the text."""

INTEGER_MAX: Final = 2**63 - 1
"""Largest integer allowed in a log: readers in other languages could not hold a larger one."""

_FAILS: Final = "execution_failed"
"""Trigger that adds to a job's ``retry_count``."""
_ADDS: Final = "tasks_added"
_RECOVERS: Final = "health_check_recovered"
_DIED: Final = "supervisor_lost"
_GIVEN_UP: Final = "max_timeout_exceeded"
_SKIPPED: Final = "skipped"
"""Word for the state of a task that was cancelled since it was skipped."""
_FAILED_TASKS: Final = ("critical_task_failed", "settled_with_failures")
"""Triggers that fail a workstream because of its tasks."""


class _JobState:
    """State of a job as far as the lines of the log so far show."""

    def __init__(self) -> None:
        self.state: str | None = None
        self.workstream: str | None = None
        self.task: str | None = None
        self.counted_in: _StreamState | None = None
        """The workstream in which the job is counted: only the newest job of a task is counted."""
        self.worker: str | None = None
        self.depends_on: list[Any] = []
        self.critical = False
        self.max_retries: int | None = None
        self.retries: int | None = None
        self.created_at: object = None
        self.started_at: object = None
        self.completed_at: object = None


class _StreamState:
    """State of a workstream as far as the lines of the log so far show: the newest jobs of its tasks by their state,
    and its tasks by theirs."""

    def __init__(self) -> None:
        self.state: str | None = None
        self.jobs: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.newest: dict[str, _JobState] = {}
        self.critical_failed = 0

    def count(self, job: _JobState, number: int) -> None:
        """Add *number*, 1 or -1, to the jobs in the state of *job*."""
        assert job.state is not None, "a job is counted with its lines"
        self.jobs[job.state] += number
        self.critical_failed += number * (job.critical and job.state == "failed")


class WorkInvariants:
    """State of jobs, workers and workstreams as far as the lines of the log so far show; pass each transition in order
    to :meth:`check`.

    Values that never change stand on an entity's first line only. ``invariant`` is the invariant that is being checked;
    while a problem is reported, the violated invariant.
    """

    def __init__(self, report: ReportProblem) -> None:
        self.invariant = ""
        self._report = report
        self._jobs: dict[str, _JobState] = {}
        self._streams: dict[str, _StreamState] = {}
        self._tasks: dict[str, tuple[str, str]] = {}
        """Workstream and state of each task; ``_SKIPPED`` for a task that was skipped."""
        self._running: Counter[str] = Counter()
        self._slots: dict[str, int] = {}
        self._heartbeats: dict[str, tuple[str, float | None]] = {}
        """State of each worker, and the time of its last heartbeat."""

    def check(self, machine: str, entity_id: str, state: str, metadata: dict[str, Any], trigger: str = "") -> None:
        match machine:
            case "job":
                self._take_job(entity_id, state, metadata, trigger)
            case "task":
                self._take_task(entity_id, state, metadata)
            case "worker":
                self._take_worker(entity_id, state, metadata, trigger)
            case "workstream":
                stream = self._stream(entity_id)
                stream.state = state
                self._check_stream(stream, state, trigger)

    def _stream(self, workstream_id: str) -> _StreamState:
        return self._streams.setdefault(workstream_id, _StreamState())

    # ------------------------------------------------------------------------------------------------- jobs
    def _take_job(self, entity_id: str, state: str, metadata: dict[str, Any], trigger: str) -> None:
        job = self._jobs.setdefault(entity_id, _JobState())
        self._check_retries(job, metadata, trigger)
        self._check_stamps(job, metadata)
        self._note_stream(job, state, metadata)
        self._note_worker(job, state, metadata)
        self._check_dependencies(job, state, metadata)

    def _check_retries(self, job: _JobState, metadata: dict[str, Any], trigger: str) -> None:
        self.invariant = "retry_limit"
        limit = count_of(metadata, "max_retries", self._report_metadata)
        retries = count_of(metadata, "retry_count", self._report_metadata)
        job.max_retries = job.max_retries if limit is None else limit
        if retries is not None and job.max_retries is not None and retries > job.max_retries:
            self._report_metadata("retry_count", f"{retries} exceeds max_retries {job.max_retries}")
        if retries is None:
            return
        before = retries if job.retries is None else job.retries
        if trigger and not before <= retries <= before + (trigger == _FAILS):
            self._report_metadata("retry_count", f"goes from {before} to {retries}; only {_FAILS} adds to it, 1")
        job.retries = retries

    def _check_stamps(self, job: _JobState, metadata: dict[str, Any]) -> None:
        self.invariant = "timestamp_ordering"
        names = [name for name in ("created_at", "started_at", "completed_at") if metadata.get(name) is not None]
        for name in names:
            if moment_of(metadata[name]) is None:
                self._report_metadata(
                    name, f"{shortened(metadata[name])} is neither a number nor an ISO 8601 time with a zone"
                )
            else:
                setattr(job, name, metadata[name])
        if names:
            self._compare("created_at", job.created_at, "started_at", job.started_at)
            self._compare("started_at", job.started_at, "completed_at", job.completed_at)
            if job.started_at is None:
                self._compare("created_at", job.created_at, "completed_at", job.completed_at)

    def _compare(self, early: str, first: object, late: str, second: object) -> None:
        one, two = moment_of(first), moment_of(second)
        if one is None or two is None:
            return
        if isinstance(first, str) is not isinstance(second, str):
            self._report_metadata(late, f"{early} and {late} must be in one form, both numbers or both ISO 8601")
        elif one > two:
            self._report_metadata(late, f"{shortened(second)} is before {early} {shortened(first)}")

    def _note_stream(self, job: _JobState, state: str, metadata: dict[str, Any]) -> None:
        self.invariant = "task_state_consistency"
        workstream_id = name_of(metadata, "workstream_id", self._report_metadata)
        if workstream_id and job.workstream and workstream_id != job.workstream:
            self._report_metadata(
                "workstream_id",
                f"changed from {shortened(job.workstream)} to {shortened(workstream_id)}; a job stays in one",
            )
        task_id = name_of(metadata, "task_id", self._report_metadata)
        counted_in, is_new = job.counted_in, job.workstream is None
        if counted_in is not None:
            counted_in.count(job, -1)
        job.workstream, job.task = job.workstream or workstream_id, job.task or task_id
        job.critical = job.critical or metadata.get("critical") is True
        job.state = state
        if is_new and job.workstream:
            counted_in = self._stream(job.workstream)
            # A task that is tried again has a new job: the job before says nothing about the workstream any more.
            if job.task and (before := counted_in.newest.get(job.task)) is not None:
                counted_in.count(before, -1)
                before.counted_in = None
            if job.task:
                counted_in.newest[job.task] = job
            job.counted_in = counted_in
        if counted_in is not None:
            counted_in.count(job, 1)
        if job.workstream:
            self._check_start(job.workstream, state)

    def _check_start(self, workstream_id: str, state: str) -> None:
        stream = self._stream(workstream_id).state
        if state == "running" and stream in ("planned", "completed", "failed", "cancelled"):
            self._report("to_state", f"a job runs, but its workstream {shortened(workstream_id)} is {stream}")

    def _note_worker(self, job: _JobState, state: str, metadata: dict[str, Any]) -> None:
        self.invariant = "worker_assignment"
        worker_id = name_of(metadata, "worker_id", self._report_metadata)
        if job.worker:
            self._running[job.worker] -= 1
        job.worker = worker_id if state == "running" else None
        if worker_id and state != "running":
            self._report_metadata("worker_id", f"a {state} job has no worker, this one has {shortened(worker_id)}")
        if state == "running" and metadata.get("worker_id") is None:
            self._report_metadata("worker_id", "a running job has a worker, this one has none")
        if job.worker:
            self._running[job.worker] += 1
            self._check_capacity(job.worker, self._running[job.worker], "worker_id")

    def _check_capacity(self, worker: str, tasks: int, field: str) -> None:
        self.invariant = "capacity_limit"
        slots = self._slots.get(worker)
        if slots is not None and tasks > slots:
            self._report_metadata(
                field, f"worker {shortened(worker)} has {tasks} tasks; max_concurrent_tasks is {slots}"
            )

    def _check_dependencies(self, job: _JobState, state: str, metadata: dict[str, Any]) -> None:
        self.invariant = "dependency_satisfaction"
        waits = metadata.get("depends_on")
        if isinstance(waits, list | tuple):
            job.depends_on = list(waits)
        elif waits is not None:
            self._report_metadata("depends_on", f"must be a list of job ids, is {shortened(waits)}")
        if state != "queued":
            return
        for one in job.depends_on:
            if not isinstance(one, str):
                self._report_metadata("depends_on", f"must be a list of job ids, holds {shortened(one)}")
            elif (seen := self._jobs.get(one)) is None or seen.state != "completed":
                now = seen.state if seen else "not in this log"
                self._report_metadata("depends_on", f"a queued job waits for nothing, but {shortened(one)} is {now}")
        job.depends_on = []  # completed dependencies stay completed; the others were reported

    # --------------------------------------------------------------------------------- workers, workstreams
    def _take_task(self, entity_id: str, state: str, metadata: dict[str, Any]) -> None:
        self.invariant = "task_state_consistency"
        workstream_id, before = self._tasks.get(entity_id, ("", ""))
        workstream_id = workstream_id or name_of(metadata, "workstream_id", self._report_metadata) or ""
        state = _SKIPPED if metadata.get("outcome") == "skipped" else state
        self._tasks[entity_id] = (workstream_id, state)
        if workstream_id:
            tasks = self._stream(workstream_id).tasks
            tasks[state] += 1
            if before:
                tasks[before] -= 1

    def _take_worker(self, entity_id: str, state: str, metadata: dict[str, Any], trigger: str) -> None:
        slots = count_of(metadata, "max_concurrent_tasks", self._report_metadata, least=1)
        if slots is not None:
            self._slots[entity_id] = slots
        active = count_of(metadata, "active_tasks", self._report_metadata)
        if active is not None:
            self._check_capacity(entity_id, active, "active_tasks")
        self._check_heartbeat(entity_id, state, metadata, trigger)
        if state in ("idle", "shutdown"):
            self.invariant = "graceful_shutdown" if state == "shutdown" else "resource_cleanup"
            if active:
                self._report_metadata("active_tasks", f"a worker in {state} holds no task, this one {active}")
            if running := self._running[entity_id]:
                self._report(
                    "to_state", f"worker {shortened(entity_id)} goes to {state}, but {running} of its jobs run"
                )

    def _check_heartbeat(self, entity_id: str, state: str, metadata: dict[str, Any], trigger: str) -> None:
        self.invariant = "health_monitoring"
        before, last = self._heartbeats.get(entity_id, ("initializing", None))
        given = metadata.get("last_heartbeat_at")
        beat = moment_of(given)
        if given is not None and beat is None:
            self._report_metadata("last_heartbeat_at", f"{shortened(given)} is no time")
        self._heartbeats[entity_id] = (state, last if beat is None else beat)
        if beat is not None and before == "initializing":
            self._report_metadata("last_heartbeat_at", "a worker sends no heartbeat before it is registered")
        if last is not None and given is None and trigger != _DIED:
            self._report_metadata("last_heartbeat_at", "missing; the worker has sent heartbeats before")
        if beat is None or last is None or beat == last:
            if trigger == _RECOVERS and last is not None:
                self._report_metadata("last_heartbeat_at", "a worker recovers by a heartbeat, and this one sent none")
        elif beat < last:
            self._report_metadata("last_heartbeat_at", f"goes back: {shortened(given)} after {last}")
        elif trigger == _GIVEN_UP and not _was_silent_part(metadata):
            # A heartbeat that comes before the worker's tasks are released does not bring the worker back by itself.
            words = "a worker that was silent for all of its time as unresponsive has sent no heartbeat, this one did"
            self._report_metadata("last_heartbeat_at", words)

    def _check_stream(self, stream: _StreamState, state: str, trigger: str) -> None:
        jobs = stream.jobs.total()
        if not jobs:
            return
        waiting = stream.jobs["pending"] + stream.jobs["queued"]
        self.invariant = "task_state_consistency"
        if state == "ready" and waiting < jobs:
            self._report("to_state", f"ready, but {jobs - waiting} of its {jobs} jobs have started")
        if state == "executing" and trigger != _ADDS and waiting == jobs:  # later, the jobs may all wait again
            self._report("to_state", f"executing, but none of its {jobs} jobs has started")
        if state == "failed" and trigger in _FAILED_TASKS and stream.tasks.total() and not stream.tasks["FAILED"]:
            self._report("to_state", "failed, but none of its tasks has failed")
        self.invariant = "completion_requirement"
        done = stream.jobs["completed"]
        if state in ("validating", "completed") and done < jobs:
            # The job of a skipped task is cancelled, and that of a task that a lost worker left and that counts as done
            # (``recovery.orphans: done``).
            done += sum(
                one.state == "cancelled" and self._tasks.get(task, ("", ""))[1] in ("CLOSED", _SKIPPED)
                for task, one in stream.newest.items()
            )
            if done < jobs:
                self._report("to_state", f"{state}, but only {done} of its {jobs} jobs are completed")
        self.invariant = "failure_propagation"
        if stream.critical_failed and state not in ("failed", "cancelled"):
            self._report("to_state", f"{state}, but {stream.critical_failed} critical jobs failed; then it must fail")

    def _report_metadata(self, field: str | None, message: str) -> None:
        self._report(f"metadata.{field}", message)


# -------------------------------------------------------------------------------------------------------- values
def is_text(value: object) -> bool:
    """Return whether *value* is a string that is not empty."""
    return isinstance(value, str) and bool(value)


def name_of(fields: dict[str, Any], name: str, report: ReportProblem) -> str | None:
    """Return the id in the field *name*, or ``None``; a value of another type is reported."""
    value = fields.get(name)
    if value is not None and not is_text(value):
        report(name, f"must be a non-empty string or null, is {shortened(value)}")
        return None
    return value


def count_of(fields: dict[str, Any], name: str, report: ReportProblem, *, least: int = 0) -> int | None:
    """Return the integer in the field *name*, or ``None``; any other value is reported."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= INTEGER_MAX:
        report(name, f"must be an integer from {least} to {INTEGER_MAX}, is {shortened(value)}")
        return None
    return value


def _was_silent_part(metadata: dict[str, Any]) -> bool:
    """Return whether a worker that was given up was silent for a part only of its time as unresponsive."""
    silent_s, duration_s = moment_of(metadata.get("silent_s")), moment_of(metadata.get("duration_seconds"))
    return silent_s is not None and duration_s is not None and silent_s < duration_s


def moment_of(value: object) -> float | None:
    """Return *value* as seconds if it is a number or an ISO 8601 time with a zone; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment.timestamp() if moment.tzinfo else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > INTEGER_MAX:
        return None
    return float(value)


def shortened(value: object) -> str:
    """Return *value* as text for a message: quoted and never long."""
    match value:
        case str():
            return repr(value if len(value) <= 60 else f"{value[:60]}…")
        case list() | dict():
            return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
        case int() if abs(value) > INTEGER_MAX:
            return f"an integer of {value.bit_length()} bits"
        case _:
            return repr(value)
