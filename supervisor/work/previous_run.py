"""Resumes a run of a plan that was cancelled, or has failed: another run, linked to it, of what it did not close.

What was closed stays so, and counts as done for what depends on it; where nobody was left to merge it, once that is
made good. What was cancelled or given up is a new task with a new run, which begins with the checkpoint of the last
one; what cannot be merged is a new one too, which begins from the target, as after any conflict. Each task must stand
in the plan as it was: the same id, agent, prompt, dependencies and tests, else it is a new one. Pure: rows come in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec

from supervisor.diagnostics.task_status import checkpoint_name
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import Workstream, WorkstreamData
from supervisor.plans import Plan, Settings
from supervisor.plans.tasks import PlacedTask, every_task
from supervisor.ports import EntityRow
from supervisor.recovery.resumable import InterruptedTask, digest_of
from supervisor.work.task_execution import Checkpoint, checkpoint_after

__all__ = ["PreviousRun", "find_previous_run"]

_AGAIN: Final = frozenset({Task.CANCELLED, Task.FAILED})


class PreviousRun(NamedTuple):
    """What there is to resume: the workstream; its tasks that are closed, by name, with the jobs that closed them, and
    which of them are still to be merged; and what those begin with that were cancelled or given up."""

    workstream: str
    closed: Mapping[str, EntityRow]
    unmerged: Mapping[str, InterruptedTask]
    jobs: Mapping[str, str]
    again: Mapping[str, Checkpoint | None]

    @property
    def words(self) -> tuple[str, ...]:
        """What is done again: a task, and where it begins."""
        return tuple(f"{name} ({_words(found)})" for name, found in self.again.items())


def _words(found: Checkpoint | None) -> str:
    if found is None:
        return "from its beginning"
    return f"from {checkpoint_name(found.saved_as)} of {found.run}"


def find_previous_run(
    plan: Plan,
    settings: Settings,
    rows: Collection[EntityRow],
    workstream: str = "",
    refused: Collection[str] = (),
) -> PreviousRun | None:
    """What *plan* resumes: that *workstream*, or the newest one that has tasks of it; ``None`` where there is none.
    What was *refused* when it was to be merged is done again."""
    ordered = sorted(rows, key=lambda row: row.born_seq)
    placed = list(every_task(plan.tasks))
    digests = {one.task.id: digest_of(one.task, settings) for one in placed}
    known = [(row, data) for row, data in _tasks(ordered) if digests.get(data.name) == data.digest]
    newest = workstream or (known[-1][1].workstream if known else "")
    if not newest:
        return None
    chain = _chain(newest, ordered)
    last = {data.name: row for row, data in known if data.workstream in chain}
    closed = _closed(placed, last, _with_wholes(placed, refused))
    open_again = {
        name: row for name, row in last.items() if name not in closed and (Task(row.state) in _AGAIN or name in refused)
    }
    unmerged = _unmerged(closed, ordered, chain) if settings.workspace == "worktree" else {}
    return PreviousRun(newest, closed, unmerged, _jobs(closed, ordered), _checkpoints(open_again, ordered))


def _tasks(rows: Sequence[EntityRow]) -> Iterator[tuple[EntityRow, TaskData]]:
    for row in rows:
        if row.kind == Kind.TASK:
            yield row, msgspec.json.decode(row.data, type=TaskData)


def _chain(newest: str, rows: Sequence[EntityRow]) -> set[str]:
    """That workstream, the one that it resumed, and so on."""
    resumed = {
        row.id: msgspec.json.decode(row.data, type=WorkstreamData).resumes
        for row in rows
        if row.kind == Kind.WORKSTREAM
    }
    chain = {newest}
    while (newest := resumed.get(newest, "")) and newest not in chain:
        chain.add(newest)
    return chain


def _with_wholes(placed: Sequence[PlacedTask], names: Collection[str]) -> AbstractSet[str]:
    """These tasks, and those that they are a part of."""
    found: set[str] = set()
    for one in placed:
        if one.task.id in names:
            above: PlacedTask | None = one
            while above is not None:
                found.add(above.task.id)
                above = above.parent
    return found


def _closed(
    placed: Sequence[PlacedTask], last: Mapping[str, EntityRow], refused: AbstractSet[str]
) -> Mapping[str, EntityRow]:
    """The tasks that are closed, and all that they were split into; not a part of what is to be done again."""
    closed: dict[str, EntityRow] = {}
    for one in placed:
        row, above = last.get(one.task.id), one.parent
        if row is None or one.task.id in refused or (above is not None and above.task.id not in closed):
            continue
        if above is not None or row.state == Task.CLOSED.value:
            closed[one.task.id] = row
    return closed


def _unmerged(
    closed: Mapping[str, EntityRow], rows: Sequence[EntityRow], chain: AbstractSet[str]
) -> Mapping[str, InterruptedTask]:
    """Those that nobody merged, neither when they were closed nor in a run that resumed theirs, and was completed."""
    merged_by = [
        row.born_seq
        for row in rows
        if row.kind == Kind.WORKSTREAM
        and row.state == Workstream.COMPLETED.value
        and msgspec.json.decode(row.data, type=WorkstreamData).resumes in chain
    ]
    last = max(merged_by, default=0)
    recent = {name: row for name, row in closed.items() if row.born_seq > last}
    found = {name: (row, msgspec.json.decode(row.data, type=TaskData)) for name, row in recent.items()}
    left = {name: InterruptedTask(row.id, Task(row.state), data) for name, (row, data) in found.items()}
    return {name: one for name, one in left.items() if one.is_unmerged}


def _jobs(closed: Mapping[str, EntityRow], rows: Sequence[EntityRow]) -> Mapping[str, str]:
    completed = {row.parent_id: row.id for row in rows if row.kind == Kind.JOB and row.state == Job.COMPLETED.value}
    return {name: completed[row.id] for name, row in closed.items() if row.id in completed}


def _checkpoints(again: Mapping[str, EntityRow], rows: Sequence[EntityRow]) -> Mapping[str, Checkpoint | None]:
    """By name: a person wants it gone on with, whatever the plan takes back by itself."""
    newest = {row.parent_id: row for row in rows if row.kind == Kind.RUN}
    return {name: _checkpoint(newest.get(row.id)) for name, row in again.items()}


def _checkpoint(row: EntityRow | None) -> Checkpoint | None:
    if row is None:
        return None
    return checkpoint_after(row.id, TaskRun(row.state), msgspec.json.decode(row.data, type=TaskRunData))
