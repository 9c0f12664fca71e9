"""Status of tasks, runs, jobs and workers in a few words: what a task waits for, its holder, its attempts. Pure.

The status of a row may depend on other rows: a task's runs, its subtasks, and the tasks that it waits for by name. A
state that needs no explanation has no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from supervisor.diagnostics.outcomes import Outcomes, data_of
from supervisor.diagnostics.state_times import StateTimes, time_of_day
from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.session import Session, backoff_ms
from supervisor.lifecycles.task import Task, TaskEnd
from supervisor.lifecycles.task_run import CooldownExpired, TaskRun, TaskRunData, probes_left
from supervisor.lifecycles.types import HeldBy, Kind, SessionLimits
from supervisor.ports import EntityRow

WORK: Final = frozenset({Kind.WORKSTREAM, Kind.TASK, Kind.RUN, Kind.JOB, Kind.WORKER})

_ANYTHING: Final = "*"
"""Capability of a worker that can do every task."""
_HELD: Final = (Task.CLAIMED.value, Task.IN_PROGRESS.value)
_LEFT: Final = (Task.FAILED.value, Task.CANCELLED.value)
_COMMIT_CHARS: Final = 40
_DELAYED: Final = (TaskRun.RETRYING.value, TaskRun.CIRCUIT_OPEN.value, TaskRun.HALF_OPEN.value)
_ASKED: Final[Mapping[str, str]] = {
    Task.PLANNED.value: "waits to be approved",
    Task.PENDING_APPROVAL.value: "its result waits to be approved",
}


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was given up: its ids, its workstream, its attempts in all runs, the number of runs, and the last
    error."""

    task: str
    entity_id: str
    workstream: str
    attempts: int
    runs: int
    last_error: str


class TaskStatus:
    """Status texts for the entities *rows*. *times* are the times of entities that wait for a time; *options* are added
    to the commands in the texts, for example the option with the state directory."""

    def __init__(self, rows: Iterable[EntityRow], times: StateTimes | None = None, options: str = "") -> None:
        self._options = options
        self._times = times or StateTimes()
        rows = list(rows)
        self._outcomes = Outcomes(rows)
        self._cooling = {row.id: row for row in rows if row.state == Session.COOLING_DOWN.value}
        self._held: dict[str, str] = {}
        """Unsettled tasks, by the sessions that hold them."""
        self._rows = {row.id: row for row in sorted(rows, key=lambda row: row.born_seq) if row.kind in WORK}
        self._data = {row.id: data_of(row) for row in self._rows.values()}
        self._named: dict[tuple[str, str], str] = {}
        self._runs: dict[str, list[str]] = {}
        self._tasks: dict[str, list[str]] = {}
        for row in self._rows.values():
            self._index(row, self._data[row.id])

    def _index(self, row: EntityRow, data: Mapping[str, Any]) -> None:
        if row.kind == Kind.TASK:
            stream = str(data.get("workstream", ""))
            self._named[stream, str(data.get("name", ""))] = row.id
            self._tasks.setdefault(stream, []).append(row.id)
            if data.get("claimed_by") and not row.ended:
                self._held[str(data["claimed_by"])] = row.id
        elif row.kind == Kind.RUN and row.parent_id is not None:
            self._runs.setdefault(row.parent_id, []).append(row.id)

    def note(self, row: EntityRow) -> str:
        """Return a text for people about an entity beside its state."""
        data = self._data.get(row.id, {})
        match row.kind:
            case Kind.WORKSTREAM:
                failing = () if row.ended else (one.words for one in self._times.failing_providers)
                parts = iter((self.counts(row), *failing))
            case Kind.TASK:
                parts = self._of_task(row, data)
            case Kind.RUN:
                parts = self._of_run(row, data)
            case Kind.JOB:
                parts = _of_job(row, data)
            case Kind.WORKER:
                parts = _of_worker(row, data)
            case _:
                parts = iter(())
        return ", ".join(part for part in parts if part)

    def _command(self, words: str, task_id: str) -> str:
        """Return the command line that gives a task the command *words*. It has the id of the task, since other runs
        may have a task of that name."""
        return f"supervisor {words} {task_id}{self._options}"

    # ------------------------------------------------------------------ workstream
    def counts(self, row: EntityRow) -> str:
        """Return a text with the numbers of tasks of a workstream by their states, and the workstream's last error."""
        return ", ".join(part for part in self._counts(row, self._data.get(row.id, {})) if part)

    def _counts(self, row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
        known = [self._rows[task] for task in self._tasks.get(row.id, ())]
        states, ends = Counter(task.state for task in known), Counter(map(self._outcomes.of, known))
        tasks = data.get("tasks", 0)
        yield f"{ends[TaskEnd.COMPLETED]} of {tasks} tasks completed"
        gone = tasks - len(known)  # to an archive; or it ended before they were born
        yield f"{gone} not in the journal" if gone > 0 else ""
        yield from (f"{ends[end]} {end}" for end in TaskEnd if ends[end] and end is not TaskEnd.COMPLETED)
        asked = sum(states[state] for state in _ASKED)
        yield f"{asked} to be approved" if asked else ""
        error = str(data.get("last_error", ""))
        yield "" if error == f"{states[Task.FAILED.value]} of {tasks} tasks failed" else error  # named above already

    # ------------------------------------------------------------------ tasks
    def _of_task(self, row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
        yield self._outcomes.of(row)
        yield hold(row, data)
        if row.state == Task.PENDING_APPROVAL.value and data.get("approved_by"):
            yield "" if hold(row, data) else "its work is being merged"
        elif row.state in _ASKED:
            yield f"{_ASKED[row.state]}: {self._command('approve', row.id)}"
        elif row.state in _HELD:
            yield f"session {data.get('claimed_by')}"
            yield self.step(row)
        elif row.state == Task.DONE.value:
            yield "" if hold(row, data) else "its work is being merged"
        elif not row.ended and row.state != Task.FAILED.value:
            waits = list(self._unmet(row, data))
            release = f": {self._command('task unblock', row.id)}" if row.state == Task.BLOCKED.value else ""
            yield f"waits for {', '.join(waits)}{release}" if waits else self._next_attempt(row)
        if row.state == Task.FAILED.value:
            yield str(data.get("last_failure", ""))
        if row.state in _LEFT and (found := self._run(row)) is not None:
            yield _checkpoint(found[1])
        retries = data.get("retries") or 0
        yield f"retry {retries} of {data.get('max_retries')}" if retries and not row.ended else ""

    def _unmet(self, row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of dependencies that are not closed.

        A dependency without a row was closed in a plan run that this one resumes, or was moved to an archive, and
        counts as closed. A blocked task may wait for a name that is not a task.
        """
        for name in data.get("waiting_for") or ():
            found = self._find(str(data.get("workstream", "")), str(name))
            if found is None and row.state == Task.BLOCKED.value:
                yield str(name)
            elif found is not None and self._rows[found].state != Task.CLOSED.value:
                yield name_of_task(found)

    def _find(self, stream: str, name: str) -> str | None:
        return name if name in self._rows else self._named.get((stream, name))

    def _run(self, task: EntityRow) -> tuple[EntityRow, Mapping[str, Any]] | None:
        """Return the newest run of a task and the run's data; ``None`` if the task has no run."""
        runs = self._runs.get(task.id)
        return (self._rows[runs[-1]], self._data[runs[-1]]) if runs else None

    def step(self, task: EntityRow) -> str:
        """Return the attempt of a task that a session holds, or what the task's run waits for; ``""`` before the first
        attempt."""
        found = self._run(task)
        if found is None:
            return ""
        run, data = found
        if delay := self.delay(run):
            return delay
        if run.state == TaskRun.VALIDATING.value:
            return f"its work is checked since {time_of_day(self._times.entered(run))}"
        return _attempts(data) if data.get("attempts") else ""

    def _next_attempt(self, task: EntityRow) -> str:
        """Return the reason why an unclaimed task without open dependencies waits: for another attempt, or for a free
        slot of a worker."""
        found = self._run(task)
        if delay := self.delay_of_claim(task):
            return delay
        if found is None:
            return ""
        if found[0].state not in _DELAYED:
            why = self._times.waits_for_slot(task.id)
            words = f"waits for a slot: {why}" if why else "waits for a worker"
            return words if task.state == Task.OPEN.value else ""
        return "; ".join(part for part in self._of_run(*found) if part)

    def delay_of_claim(self, task: EntityRow) -> str:
        """Return a text about an open task that is to be claimed again after a delay: the time, and the command that
        tries the task at once; ``""`` if there is no delay."""
        delay_s = float(self._data[task.id].get("delay_s") or 0)
        if task.state != Task.OPEN.value or not delay_s:
            return ""
        at = time_of_day(self._times.entered(task) + delay_s)
        return f"is tried again not before {at} (at once: {self._command('retry', task.id)})"

    # ------------------------------------------------------------------ runs
    def _of_run(self, row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
        if delay := self.delay(row):
            yield delay
        elif row.state == TaskRun.CIRCUIT_OPEN.value:
            yield f"{_counted(data)}, circuit open for good"
        elif data.get("attempts"):
            yield _attempts(data)
        yield str(data.get("last_error", "")) if row.state != TaskRun.COMPLETED.value else ""
        yield _checkpoint(data)
        yield f"resumes {data['resumed_from']}" if data.get("resumed_from") else ""

    def delay(self, run: EntityRow) -> str:
        """Return a text about a run that waits between two launches: its attempts, the time of the next launch, and the
        command that launches at once; ``""`` if the run does not wait."""
        data = self._data[run.id]
        limits = msgspec.convert(data, TaskRunData)
        at_once = f"at once: {self._command('retry', str(run.parent_id))}"
        match run.state:
            case TaskRun.RETRYING.value:
                # The session of the task may cool down as well: that is the same wait, until the later time.
                session = self._cooling.get(str(self._data.get(str(run.parent_id), {}).get("claimed_by")))
                rested_s = self.cools_until(session) if session is not None else 0.0
                at = time_of_day(max(self._times.entered(run) + limits.delay_s, rested_s))
                return f"{_attempts(data)} ended, the next one comes not before {at} ({at_once})"
            case TaskRun.HALF_OPEN.value:
                return f"{_counted(data)}, circuit half open, {_probes(data)}"
            case TaskRun.CIRCUIT_OPEN.value if probes_left(limits, CooldownExpired()):
                at = time_of_day(self._times.entered(run) + limits.cooldown_s)
                return f"{_counted(data)}, circuit open, the next probe comes not before {at} ({at_once})"
        return ""

    def cools_until(self, session: EntityRow) -> float:
        """Return the Unix time until which a session that cools down launches no agent."""
        data = data_of(session)
        limits = msgspec.convert(data.get("limits") or {}, SessionLimits)
        return self._times.entered(session) + backoff_ms(int(data.get("consecutive_errors") or 0), limits) / 1000

    def is_delayed(self, session_id: str) -> bool:
        """Return whether a session holds a task whose run waits for the time of its next launch."""
        found = self._run(self._rows[self._held[session_id]]) if session_id in self._held else None
        return found is not None and bool(self.delay(found[0]))

    # ------------------------------------------------------------------ dead letters
    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the tasks that were given up, except a task that is in a later run of the same plan, too."""
        newest: dict[tuple[str, str], str] = {}
        for (stream, name), task_id in self._named.items():
            newest[str(self._data.get(stream, {}).get("name", "")), name] = task_id
        for row in self._rows.values():
            if row.kind == Kind.TASK and row.state == Task.FAILED.value and row.id in newest.values():
                data, runs = self._data[row.id], self._runs.get(row.id, ())
                yield DeadLetter(
                    task=str(data.get("name") or name_of_task(row.id)),
                    entity_id=row.id,
                    workstream=str(data.get("workstream", "")),
                    attempts=sum(int(self._data[run].get("attempts") or 0) for run in runs),
                    runs=len(runs),
                    last_error=str(data.get("last_failure", "")),
                )


def dead_letters(rows: Iterable[EntityRow]) -> tuple[DeadLetter, ...]:
    """Return the tasks that were given up, in the order of birth."""
    return tuple(TaskStatus(rows).dead_letters())


def hold(row: EntityRow, data: Mapping[str, Any]) -> str:
    """Return a text about the obstacle that holds the next step of a task: what it is, since when, and what removes it;
    ``""`` if there is none."""
    if row.ended or not data.get("held_by"):
        return ""
    held_by = msgspec.convert(data["held_by"], HeldBy)
    again = f"tried again every {held_by.pause_s:.0f} s"
    return f"held since {time_of_day(held_by.since)} by {held_by.what}; {held_by.fix} ({again})"


# ---------------------------------------------------------------------------------------------- runs, jobs, workers
def _checkpoint(data: Mapping[str, Any]) -> str:
    """Return ``checkpoint 1a2b3c4d5e6f (FAILED)`` for the checkpoint with which a later run can continue; ``""`` if
    there is none."""
    if data.get("saved_in") in (None, TaskRun.COMPLETED.value):
        return ""
    return f"checkpoint {checkpoint_name(str(data.get('saved_as', '')))} ({data['saved_in']})"


def checkpoint_name(saved_as: str) -> str:
    """Return the short name of a checkpoint: a commit's first 12 characters, or the name of a copy."""
    return saved_as[:12] if len(saved_as) == _COMMIT_CHARS else saved_as or "in place"


def _attempts(data: Mapping[str, Any]) -> str:
    """Return a text about the current or last attempt; a probe, and an attempt that failed uncharged, are not counted
    among the attempts of a run."""
    limits = msgspec.convert(data, TaskRunData)
    number = min(limits.attempts, limits.failures + 1, limits.max_attempts)
    attempt = _probes(data) if limits.probe else f"attempt {number} of {limits.max_attempts}"
    return f"{attempt}, {waits}" if (waits := settling(data)) else attempt


def settling(data: Mapping[str, Any]) -> str:
    """Return a text with the processes of a turn that must end before the result is judged, and the end of that wait;
    ``""`` if there are none."""
    if not data.get("waits_for"):
        return ""
    return f"waits until {time_of_day(data.get('until') or 0.0)} for {data['waits_for']}"


def _counted(data: Mapping[str, Any]) -> str:
    return f"{data['attempts']} attempt{'' if data['attempts'] == 1 else 's'}"


def _probes(data: Mapping[str, Any]) -> str:
    return f"probe {data.get('probes')} of {data.get('probes_max')}"


def _of_job(row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
    yield f"on worker {str(data['worker_id']).partition(':')[2]}" if data.get("worker_id") else ""
    yield f"retry {data['retry_count']} of {data.get('max_retries')}" if data.get("retry_count") else ""


def _of_worker(row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
    if not row.ended:
        yield f"{data.get('active_tasks', 0)} of {data.get('max_concurrent_tasks')} slots taken"
        yield "draining" if data.get("draining") else ""
    yield " ".join(one for one in data.get("capabilities") or () if one != _ANYTHING)
