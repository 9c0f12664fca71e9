"""Status of tasks, runs, jobs and workers in a few words: what a task waits for, its holder, its attempts. Pure.

The status of a row may depend on other rows: a task's runs, its subtasks, and the tasks that it waits for by name. A
state that needs no explanation has no text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import Kind
from supervisor.ports import EntityRow

WORK: Final = frozenset({Kind.WORKSTREAM, Kind.TASK, Kind.RUN, Kind.JOB, Kind.WORKER})

_NUMBER: Final = re.compile(r"-\d+$")
"""Pattern of the suffix of the workstream of a further run of a plan."""
_ANYTHING: Final = "*"
"""Capability of a worker that can do every task."""
_HELD: Final = (Task.CLAIMED.value, Task.IN_PROGRESS.value)
_LEFT: Final = (Task.FAILED.value, Task.CANCELLED.value)
_COMMIT_CHARS: Final = 40
_CIRCUIT: Final = (TaskRun.CIRCUIT_OPEN.value, TaskRun.HALF_OPEN.value)
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


def plan_name(entity_id: str) -> str:
    """Return the task's name in the plan: ``build`` for ``task:build``."""
    return entity_id.partition(":")[2] or entity_id


class TaskStatus:
    """Status texts for the entities *rows*."""

    def __init__(self, rows: Iterable[EntityRow]) -> None:
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
        elif row.kind == Kind.RUN and row.parent_id is not None:
            self._runs.setdefault(row.parent_id, []).append(row.id)

    def note(self, row: EntityRow) -> str:
        """Return a text for people about an entity beside its state."""
        data = self._data.get(row.id, {})
        match row.kind:
            case Kind.WORKSTREAM:
                parts = self._of_workstream(row, data)
            case Kind.TASK:
                parts = self._of_task(row, data)
            case Kind.RUN:
                parts = _of_run(row, data)
            case Kind.JOB:
                parts = _of_job(row, data)
            case Kind.WORKER:
                parts = _of_worker(row, data)
            case _:
                parts = iter(())
        return ", ".join(part for part in parts if part)

    # ------------------------------------------------------------------ workstream
    def _of_workstream(self, row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
        states = Counter(self._rows[task].state for task in self._tasks.get(row.id, ()))
        tasks = data.get("tasks", 0)
        yield f"{states[Task.CLOSED.value]} of {tasks} tasks closed"
        gone = tasks - states.total()  # to an archive; or it ended before they were born
        yield f"{gone} not in the journal" if gone > 0 else ""
        for state, words in ((Task.FAILED, "failed"), (Task.CANCELLED, "cancelled")):
            yield f"{states[state.value]} {words}" if states[state.value] else ""
        asked = sum(states[state] for state in _ASKED)
        yield f"{asked} to be approved" if asked else ""
        yield str(data.get("last_error", ""))

    # ------------------------------------------------------------------ tasks
    def _of_task(self, row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
        yield _ASKED.get(row.state, "")
        if row.state in _HELD:
            yield f"held by {data.get('claimed_by')}"
            yield self._attempt(row)
        elif not row.ended and row.state != Task.FAILED.value:
            waits = list(self._unmet(row, data))
            yield f"waits for {', '.join(waits)}" if waits else self._next_attempt(row)
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
                yield plan_name(found)

    def _find(self, stream: str, name: str) -> str | None:
        return name if name in self._rows else self._named.get((stream, name))

    def _run(self, task: EntityRow) -> tuple[EntityRow, Mapping[str, Any]] | None:
        """Return the newest run of a task and the run's data; ``None`` if the task has no run."""
        runs = self._runs.get(task.id)
        return (self._rows[runs[-1]], self._data[runs[-1]]) if runs else None

    def _attempt(self, task: EntityRow) -> str:
        found = self._run(task)
        return _attempts(found[1]) if found is not None and found[1].get("attempts") else ""

    def _next_attempt(self, task: EntityRow) -> str:
        """Return the reason why an unclaimed task without open dependencies waits: it was tried and waits for another
        attempt."""
        found = self._run(task)
        if found is None or found[0].state not in (TaskRun.RETRYING.value, *_CIRCUIT):
            return ""
        return "; ".join(part for part in _of_run(*found) if part)

    # ------------------------------------------------------------------ dead letters
    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the tasks that were given up, except a task that is in a later run of the same plan, too."""
        newest: dict[tuple[str, str], str] = {}
        for (stream, name), task_id in self._named.items():
            newest[_NUMBER.sub("", stream), name] = task_id
        for row in self._rows.values():
            if row.kind == Kind.TASK and row.state == Task.FAILED.value and row.id in newest.values():
                data, runs = self._data[row.id], self._runs.get(row.id, ())
                yield DeadLetter(
                    task=str(data.get("name") or plan_name(row.id)),
                    entity_id=row.id,
                    workstream=str(data.get("workstream", "")),
                    attempts=sum(int(self._data[run].get("attempts") or 0) for run in runs),
                    runs=len(runs),
                    last_error=str(data.get("last_failure", "")),
                )


def dead_letters(rows: Iterable[EntityRow]) -> tuple[DeadLetter, ...]:
    """Return the tasks that were given up, in the order of birth."""
    return tuple(TaskStatus(rows).dead_letters())


# ---------------------------------------------------------------------------------------------- runs, jobs, workers
def _of_run(row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
    if data.get("attempts"):
        yield _counted(data) if row.state in _CIRCUIT else _attempts(data)
    match row.state:
        case TaskRun.RETRYING.value:
            yield f"tries again after {data.get('delay_s', 0):g} s"
        case TaskRun.CIRCUIT_OPEN.value:
            yield _circuit(data)
        case TaskRun.HALF_OPEN.value:
            yield f"circuit half open, {_probes(data)}"
    yield str(data.get("last_error", "")) if row.state != TaskRun.COMPLETED.value else ""
    yield _checkpoint(data)
    yield f"resumes {data['resumed_from']}" if data.get("resumed_from") else ""


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
    """Return a text about the current or last attempt; a probe is not counted among the attempts of a run."""
    attempt = _probes(data) if data.get("probe") else f"attempt {data.get('attempts')} of {data.get('max_attempts')}"
    return f"{attempt}, {waits}" if (waits := settling(data)) else attempt


def settling(data: Mapping[str, Any]) -> str:
    """Return a text with the processes of a turn that must end before the result is judged, and the end of that wait;
    ``""`` if there are none."""
    if not data.get("waits_for"):
        return ""
    until = datetime.fromtimestamp(data.get("until") or 0.0, UTC)
    return f"waits until {until:%H:%M:%S} UTC for {data['waits_for']}"


def _counted(data: Mapping[str, Any]) -> str:
    return f"{data['attempts']} attempt{'' if data['attempts'] == 1 else 's'}"


def _probes(data: Mapping[str, Any]) -> str:
    return f"probe {data.get('probes')} of {data.get('probes_max')}"


def _circuit(data: Mapping[str, Any]) -> str:
    left = (data.get("probes_max") or 0) - (data.get("probes") or 0)
    if data.get("permanent") or left <= 0:
        return "circuit open for good"
    return f"circuit open, probes left: {left}"


def _of_job(row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
    yield f"on worker {plan_name(data['worker_id'])}" if data.get("worker_id") else ""
    yield f"retry {data['retry_count']} of {data.get('max_retries')}" if data.get("retry_count") else ""


def _of_worker(row: EntityRow, data: Mapping[str, Any]) -> Iterator[str]:
    if not row.ended:
        yield f"{data.get('active_tasks', 0)} of {data.get('max_concurrent_tasks')} slots taken"
        yield "draining" if data.get("draining") else ""
    yield " ".join(one for one in data.get("capabilities") or () if one != _ANYTHING)


def data_of(row: EntityRow) -> Mapping[str, Any]:
    """Return the stored data of an entity as a mapping; an empty mapping if the data is not a JSON object."""
    data = msgspec.json.decode(row.data) if row.data else {}
    return data if isinstance(data, dict) else {}
