"""Find the earlier run of a plan that a new run can resume: the new run does the tasks that the earlier run did not
close.

A closed task stays closed and counts as done for the tasks that depend on it; a task that was closed before its merge
counts once it is merged. A task that was cancelled or given up is a new task with a new run, which begins from the
checkpoint of the last run; a task that cannot be merged is a new task too, which begins from the target branch. Each
task, and each task that it depends on, must be in the plan unchanged (same id, agent, prompt, dependencies and tests),
else it is a new task. Pure: the rows of the journal are arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from supervisor.plans.earlier_runs import InterruptedTask, digest_of
from supervisor.plans.tasks import PlacedTask, every_task
from supervisor.ports import EntityRow
from supervisor.work.task_execution import Checkpoint, checkpoint_after

_AGAIN: Final = frozenset({Task.CANCELLED, Task.FAILED})


class PreviousRun(NamedTuple):
    """An earlier run that can be resumed: its workstream; its closed tasks by name, with the jobs that completed them,
    and which of these tasks are still to be merged; the checkpoints of tasks that were cancelled or given up, and the
    data of these tasks (``before``), with the reasons why they are tried again; and the tasks that are done again since
    their entry in the plan, or that of a task that they depend on, has changed."""

    workstream: str
    closed: Mapping[str, EntityRow]
    unmerged: Mapping[str, InterruptedTask]
    jobs: Mapping[str, str]
    again: Mapping[str, Checkpoint | None]
    before: Mapping[str, TaskData]
    changed: Collection[str]
    branch_of: str = ""
    """The workstream whose branch has the work of the closed tasks; ``""`` if they were merged one by one."""
    commits: Sequence[str] = ()
    """The commits of the closed tasks that are on that branch."""

    @property
    def has_rest(self) -> bool:
        """Whether the earlier run has left work to a run that resumes it."""
        return bool(self.again or self.unmerged or self.changed)

    @property
    def words(self) -> str:
        """Text about the tasks that stay closed, and the tasks that are done again with their checkpoints."""
        again = [f"{name} (from {_beginning(found)})" for name, found in self.again.items()]
        again += [f"{name} (changed in the plan)" for name in self.changed]
        parts = [f"{len(self.closed)} completed and not done again"] if self.closed else []
        return "; ".join([*parts, *([f"done again: {', '.join(again)}"] if again else [])])


def _beginning(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "its beginning"
    if not checkpoint.saved_as:
        return f"what {checkpoint.run} left in place"
    return f"{checkpoint_name(checkpoint.saved_as)} of {checkpoint.run}"


def find_previous_run(
    plan: Plan,
    settings: Settings,
    rows: Collection[EntityRow],
    workstream: str = "",
    refused: Collection[str] = (),
) -> PreviousRun | None:
    """Return the run that *plan* resumes: the run of *workstream*, or else the newest run with tasks of the plan;
    ``None`` if there is none.

    Args:
        plan: the plan as it is now.
        settings: settings that the digests of tasks depend on.
        rows: the rows of all entities in the journal.
        workstream: the workstream to resume; ``""`` for the newest.
        refused: names of tasks that could not be merged, and are done again.
    """
    ordered = sorted(rows, key=lambda row: row.born_seq)
    placed = list(every_task(plan.tasks))
    digests = {one.task.id: digest_of(one.task, settings) for one in placed}
    tasks = [(row, msgspec.json.decode(row.data, type=TaskData)) for row in ordered if row.kind == Kind.TASK]
    known = [(row, data) for row, data in tasks if digests.get(data.name) == data.digest]
    newest = workstream or (known[-1][1].workstream if known else "")
    if not newest:
        return None
    chain = _chain(newest, ordered)
    last = {data.name: row for row, data in known if data.workstream in chain}
    changed = _changed(placed, {data.name: data.digest for _, data in tasks if data.workstream in chain}, digests)
    closed = _closed(placed, last, _with_wholes(placed, {*refused, *changed}))
    open_again = {
        name: row
        for name, row in last.items()
        if name not in {*closed, *changed} and (Task(row.state) in _AGAIN or name in refused)
    }
    unmerged = _unmerged(closed, ordered, chain) if settings.workspace == "worktree" else {}
    completed = {row.parent_id: row.id for row in ordered if row.kind == Kind.JOB and row.state == Job.COMPLETED.value}
    jobs = {name: completed[row.id] for name, row in closed.items() if row.id in completed}
    # A person wants the checkpoints continued, whatever the plan rolls back by itself.
    runs = {row.parent_id: row for row in ordered if row.kind == Kind.RUN}
    again = {name: _checkpoint(runs.get(row.id)) for name, row in open_again.items()}
    before = {data.name: data for row, data in known if open_again.get(data.name) is row}
    branch_of = next((run for run, data in chain.items() if data.branch is not None), "")
    done = (msgspec.json.decode(row.data, type=TaskData) for name, row in closed.items() if name not in unmerged)
    commits = tuple(data.judged for data in done if data.judged and not data.unmerged) if branch_of else ()
    return PreviousRun(newest, closed, unmerged, jobs, again, before, changed, branch_of, commits)


def _chain(newest: str, rows: Sequence[EntityRow]) -> dict[str, WorkstreamData]:
    """Return the data of the workstream *newest*, of the workstream that it resumed, and so on, by their ids."""
    known = {row.id: msgspec.json.decode(row.data, type=WorkstreamData) for row in rows if row.kind == Kind.WORKSTREAM}
    chain: dict[str, WorkstreamData] = {}
    while newest in known and newest not in chain:
        chain[newest] = known[newest]
        newest = known[newest].resumes
    return chain


def _changed(placed: Sequence[PlacedTask], before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of the tasks with another digest than *before*, and of the tasks that depend on such a task and
    were in the run too, in the order of the plan."""
    changed = {name for name, digest in before.items() if name in now and now[name] != digest}
    dependencies = {
        one.task.id: {*one.task.depends_on, *([one.task.when.task] if one.task.when is not None else [])}
        for one in placed
        if one.task.id in before
    }
    grows = True
    while grows:
        more = {name for name, needed in dependencies.items() if needed & changed}
        grows, changed = not more <= changed, changed | more
    return [one.task.id for one in placed if one.task.id in changed]


def _with_wholes(placed: Sequence[PlacedTask], names: Collection[str]) -> AbstractSet[str]:
    """Return *names*, and the names of all tasks above them: the tasks that were split into the named tasks."""
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
    """Return the closed tasks, with all of their subtasks; no subtask of a task that is to be done again."""
    closed: dict[str, EntityRow] = {}
    for one in placed:
        row, above = last.get(one.task.id), one.parent
        if row is None or one.task.id in refused or (above is not None and above.task.id not in closed):
            continue
        if above is not None or row.state == Task.CLOSED.value:
            closed[one.task.id] = row
    return closed


def _unmerged(
    closed: Mapping[str, EntityRow], rows: Sequence[EntityRow], chain: Collection[str]
) -> Mapping[str, InterruptedTask]:
    """Return the closed tasks whose work was not merged, neither when they were closed nor in a completed run that
    resumed their run."""
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


def _checkpoint(row: EntityRow | None) -> Checkpoint | None:
    if row is None:
        return None
    return checkpoint_after(row.id, TaskRun(row.state), msgspec.json.decode(row.data, type=TaskRunData))
