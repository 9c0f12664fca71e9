"""Runs of plans that were interrupted: which of them a plan continues, and what became of their tasks.

A run is interrupted if a task of it is neither settled nor at rest in the journal of a supervisor that died. A plan
continues it if each of its tasks stands in the plan as it was: the same id, agent, prompt, dependencies and tests, and
if the work is done where it was: in worktrees or not, and for the same branch. It may have more tasks. Any other plan
starts a run of its own. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from supervisor.config import Plan, Settings, TaskConfig
from supervisor.lifecycles.task import Task, TaskData
from supervisor.ports import EntityRow
from supervisor.vocabulary import Kind

__all__ = ["Interrupted", "continued", "digest_of", "heirs_of"]

SETTLED: Final = frozenset({Task.CLOSED, Task.CANCELLED, Task.FAILED})
"""States in which nothing is left to do for a task of a run."""


class Interrupted(NamedTuple):
    """A task of an interrupted run, as the journal has it."""

    entity_id: str
    state: Task
    data: TaskData

    @property
    def settled(self) -> bool:
        return self.state in SETTLED


def digest_of(task: TaskConfig, settings: Settings) -> str:
    """What a plan says of a task, and of where its work is done and brought to, in 16 characters."""
    said = [task.agent, task.prompt, task.depends_on, [test.value() for test in task.acceptance]]
    if settings.workspace != "directory":  # there, nothing is brought anywhere
        said += [settings.workspace, settings.merge_into]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]


def _runs(rows: Sequence[EntityRow]) -> dict[str, dict[str, Interrupted]]:
    """The tasks of every interrupted run, by run and name."""
    runs: dict[str, dict[str, Interrupted]] = {}
    for row in rows:
        if row.kind == Kind.TASK:
            task = Interrupted(row.id, Task(row.state), msgspec.json.decode(row.data, type=TaskData))
            if task.data.run:
                runs.setdefault(task.data.run, {})[task.data.name] = task
    return {run: tasks for run, tasks in runs.items() if not all(task.settled for task in tasks.values())}


def continued(plan: Plan, settings: Settings, rows: Sequence[EntityRow]) -> Mapping[str, Interrupted]:
    """The tasks that *plan* goes on with, by name: those of the newest interrupted run that it continues."""
    digests = {task.id: digest_of(task, settings) for task in plan.tasks}
    for tasks in reversed(_runs(rows).values()):
        if all(digests.get(name) == task.data.digest for name, task in tasks.items()):
            return tasks
    return {}


def heirs_of(plan: Plan, rows: Sequence[EntityRow]) -> Collection[str]:
    """The ids of what goes on when *plan* is run: the tasks that it goes on with, and the sessions that hold them."""
    tasks = continued(plan, plan, rows).values()
    return {one for task in tasks for one in (task.entity_id, task.data.claimed_by) if one}
