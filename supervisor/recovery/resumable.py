"""Runs of plans that were interrupted: which of them a plan continues, and what became of their tasks.

A run is interrupted if its workstream has not ended in the journal of a supervisor that died. A plan continues it if
each of its tasks stands in the plan as it was: the same id, agent, prompt, dependencies and tests, and if the work is
done where it was: in worktrees or not, and for the same branch. It may have more tasks. What a task was split into
while it ran stands in the journal: the plan grows by that. Any other plan starts a run of its own. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.plans import Plan, Settings, TaskConfig
from supervisor.plans.source import BadPlan
from supervisor.plans.splitting import recalled_subtasks, with_subtasks
from supervisor.plans.tasks import every_task
from supervisor.ports import EntityRow

__all__ = [
    "FinishedRuns",
    "InterruptedTask",
    "continued",
    "digest_of",
    "finished",
    "grown",
    "resumed_ids",
    "tasks_digest",
]

_SAID_FIRST: Final = {"id", "agent", "prompt", "depends_on", "acceptance"}


class InterruptedTask(NamedTuple):
    """A task of an interrupted run, as the journal has it."""

    entity_id: str
    state: Task
    data: TaskData

    @property
    def is_unmerged(self) -> bool:
        """Whether its work is still to be merged. A rest that was written after that was judged is not: nobody has
        tested it."""
        return self.data.unmerged and not self.data.rest


def digest_of(task: TaskConfig, settings: Settings) -> str:
    """What a plan says of a task, and of where its work is done and brought to, in 16 characters."""
    said: list[object] = [task.agent, task.prompt, task.depends_on, [test.value() for test in task.acceptance]]
    if more := task.model_dump(mode="json", exclude_defaults=True, exclude=_SAID_FIRST):
        said.append(more)
    if settings.workspace != "directory":  # there, nothing is brought anywhere
        said += [settings.workspace, settings.merge_into]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]


class FinishedRuns(NamedTuple):
    """The workstreams of the newest runs, as far as these have ended: by what a plan says of its tasks, and by the name
    that it has."""

    by_tasks: dict[str, str]
    by_name: dict[str, str]

    def forget(self, workstream_id: str) -> None:
        """Its result was reported, or there is none: it is not to be asked for again."""
        for known in (self.by_tasks, self.by_name):
            for key in [key for key, value in known.items() if value == workstream_id]:
                del known[key]


def finished(rows: Collection[EntityRow]) -> FinishedRuns:
    """The runs that have ended, of the plans whose newest run has. Subtasks are not asked for: what their parents are
    to be says what they are, or the run did."""
    tasks: dict[str, dict[str, str]] = {}
    by_tasks, by_name = dict[str, str](), dict[str, str]()
    for row in rows:
        if row.kind == Kind.TASK:
            data = msgspec.json.decode(row.data, type=TaskData)
            if data.workstream and not data.part_of:
                tasks.setdefault(data.workstream, {})[data.name] = data.digest
    for row in sorted((row for row in rows if row.kind == Kind.WORKSTREAM), key=lambda row: row.born_seq):
        before = msgspec.json.decode(row.data, type=WorkstreamData).resumes
        own = tasks[row.id] = {**tasks.get(before, {}), **tasks.get(row.id, {})}
        by_tasks[_digest(own)] = by_name[_name_of(row.id)] = row.id if row.ended else ""
    return FinishedRuns(by_tasks, by_name)


def tasks_digest(plan: Plan, settings: Settings) -> str:
    """What a plan says of all its tasks, in 16 characters."""
    return _digest({one.id: digest_of(one, settings) for one in plan.tasks})


def _digest(tasks: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(tasks.items()))).hexdigest()[:16]


def _name_of(workstream_id: str) -> str:
    """The name that its plan has."""
    return re.sub(r"-\d+$", "", workstream_id.removeprefix("workstream:"))


def _runs(rows: Collection[EntityRow]) -> dict[str, dict[str, InterruptedTask]]:
    """The tasks of every interrupted run, by run and name."""
    runs: dict[str, dict[str, InterruptedTask]] = {}
    live = {row.id for row in rows if row.kind == Kind.WORKSTREAM and not row.ended}
    for row in rows:
        if row.kind == Kind.TASK:
            task = InterruptedTask(row.id, Task(row.state), msgspec.json.decode(row.data, type=TaskData))
            if task.data.workstream:
                runs.setdefault(task.data.workstream, {})[task.data.name] = task
    return {run: tasks for run, tasks in runs.items() if run in live}


def continued(plan: Plan, settings: Settings, rows: Collection[EntityRow]) -> Mapping[str, InterruptedTask]:
    """The tasks that *plan* goes on with, by name: those of the newest interrupted run that it continues."""
    for tasks in reversed(_runs(rows).values()):
        with suppress(BadPlan):  # what its tasks were split into does not fit into this plan
            if _continues(plan, settings, tasks):
                return tasks
    return {}


def _parts(task: InterruptedTask) -> tuple[TaskConfig, ...]:
    return recalled_subtasks(task.data.parts) if task.data.parts else ()


def grown(plan: Plan, tasks: Mapping[str, InterruptedTask]) -> Iterator[Plan]:
    """*plan*, and how it grew when *tasks* were split while it ran, and then their subtasks: each of them stands in the
    first plan that has it as it was when it was born.

    Raises:
        BadPlan: what they were split into does not fit into the plan.
    """
    yield plan
    splits = {name: _parts(task) for name, task in tasks.items() if task.data.parts}
    while splits:
        known = {one.task.id for one in every_task(plan.tasks)}
        now = {name: parts for name, parts in splits.items() if name in known}
        plan = with_subtasks(plan, now or splits)
        yield plan
        splits = {name: parts for name, parts in splits.items() if name not in now}


def _continues(plan: Plan, settings: Settings, tasks: Mapping[str, InterruptedTask]) -> bool:
    """Whether each of *tasks* stands in *plan* as it was, or in what it grew to."""
    digests: dict[str, str] = {}
    for one in grown(plan, tasks):
        new = (placed.task for placed in every_task(one.tasks) if placed.task.id not in digests)
        digests.update({task.id: digest_of(task, settings) for task in new})
    return all(digests.get(name) == task.data.digest for name, task in tasks.items())


def resumed_ids(plan: Plan, rows: Collection[EntityRow]) -> Collection[str]:
    """The ids of what goes on when *plan* is run: the tasks that it goes on with, and the sessions that hold them."""
    tasks = continued(plan, plan, rows).values()
    found = {one for task in tasks for one in (task.entity_id, task.data.claimed_by, task.data.workstream) if one}
    return found | {row.id for row in rows if row.kind in (Kind.RUN, Kind.JOB, Kind.WORKER) and row.parent_id in found}
