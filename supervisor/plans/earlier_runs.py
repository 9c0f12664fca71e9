"""Interrupted runs of plans: find the run that a plan continues, and the state of its tasks. Pure.

A run is interrupted if its workstream has not ended in the journal of a supervisor that died. A plan continues the run
if each task of the run is in the plan unchanged: same id, agent, prompt, dependencies and tests, and the same kind of
workspace and target branch. The plan may have more tasks. Subtasks into which a task was split while it ran are in the
journal, and are added to the plan. Any other plan starts a run of its own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.task import Task, TaskData, TaskEnd, task_end
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import WorkstreamData
from supervisor.plans import Plan, Settings, TaskConfig
from supervisor.plans.source import BadPlan
from supervisor.plans.splitting import recalled_subtasks, with_subtasks
from supervisor.plans.tasks import every_task
from supervisor.ports import EntityRow

_NAMED_MAX: Final = 10
"""Maximal number of tasks that a text about a run names."""
_SAID_FIRST: Final = {"id", "agent", "prompt", "depends_on", "acceptance"}


class InterruptedTask(NamedTuple):
    """A task of an interrupted run, with its state and data as recorded in the journal."""

    entity_id: str
    state: Task
    data: TaskData

    @property
    def is_unmerged(self) -> bool:
        """Whether the task's work is still to be merged. False if its agent wrote more after the work was verified,
        since that rest is untested."""
        return self.data.unmerged and not self.data.rest


def digest_of(task: TaskConfig, settings: Settings) -> str:
    """Return a digest, 16 characters, of a task's entry in a plan, with its kind of workspace and target branch."""
    said: list[object] = [task.agent, task.prompt, task.depends_on, [test.value() for test in task.acceptance]]
    if more := task.model_dump(mode="json", exclude_defaults=True, exclude=_SAID_FIRST):
        said.append(more)
    if settings.workspace != "directory":  # in a directory nothing is merged
        said += [settings.workspace, settings.merge_into]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]


class EarlierTask(NamedTuple):
    """A task of an earlier run: its state, the digest of its entry in the plan, and the word for its end."""

    state: Task
    digest: str
    end: str


class EarlierRun(NamedTuple):
    """The newest run of a plan when a supervisor took over: its workstream, the workstream's state, whether the run has
    ended, and its tasks by name. Tasks of the runs that it resumed are included, subtasks are not."""

    workstream: str
    state: str
    is_over: bool
    tasks: Mapping[str, EarlierTask]

    @property
    def rest(self) -> str:
        """The tasks that were not closed, each with its end or its state, as text; ``""`` if there are none."""
        rest = [
            f"{name} ({one.end or one.state.value})" for name, one in self.tasks.items() if one.state is not Task.CLOSED
        ]
        more = f" and {len(rest) - _NAMED_MAX} more" if len(rest) > _NAMED_MAX else ""
        return f"{', '.join(rest[:_NAMED_MAX])}{more}"

    @property
    def words(self) -> str:
        """Text with the state of the run and of its tasks: ``run r1 (cancelled: 1 completed, 2 failed)``."""
        counts = counted_ends(one.end for one in self.tasks.values())
        return f"run {self.workstream} ({self.state}: {counts or 'no task'})"

    def why_not_continued(self, plan: Plan, settings: Settings) -> str:
        """Return the difference between *plan* and this interrupted run, because of which *plan* starts another run;
        ``""`` if there is none."""
        digests = {one.id: digest_of(one, settings) for one in plan.tasks}
        missing = [name for name in self.tasks if name not in digests]
        changed = [name for name, one in self.tasks.items() if digests.get(name, one.digest) != one.digest]
        if not missing and len(changed) == len(self.tasks) > 1:
            return "every task is changed in the plan, or its workspace or merge_into is"
        parts = [f"not in the plan any more: {', '.join(missing)}"] if missing else []
        return "; ".join([*parts, *([f"changed in the plan: {', '.join(changed)}"] if changed else [])])


def counted_ends(ends: Iterable[str]) -> str:
    """Return the number of tasks with each end, and of open tasks (``""``), as text."""
    counts = Counter(end or "open" for end in ends)
    return ", ".join(f"{counts[one]} {one}" for one in (*TaskEnd, "open") if counts[one])


class SubmittedRun(NamedTuple):
    """A run that was submitted with an idempotency key: its workstream, and the digest of the request."""

    workstream: str
    request: str


class EarlierRuns(NamedTuple):
    """The newest run of each plan: ids of the workstreams that have ended, by the digest of the plan's tasks, and runs
    that have ended or were interrupted, by the plan's name. Also every run that was submitted with a key, by the
    key."""

    by_tasks: dict[str, str]
    by_name: dict[str, EarlierRun]
    by_key: dict[str, SubmittedRun]

    def forget(self, workstream_id: str) -> None:
        """Remove a run: its result was reported, it has no result, or it is continued."""
        for key in [key for key, value in self.by_tasks.items() if value == workstream_id]:
            del self.by_tasks[key]
        for key in [key for key, value in self.by_name.items() if value.workstream == workstream_id]:
            del self.by_name[key]


def find_earlier_runs(rows: Collection[EntityRow]) -> EarlierRuns:
    """Find the newest run of each plan. Subtasks do not count for the digest: they follow from their parents, or from
    the run."""
    tasks: dict[str, dict[str, EarlierTask]] = {}
    by_tasks, by_name, by_key = dict[str, str](), dict[str, EarlierRun](), dict[str, SubmittedRun]()
    for row in rows:
        if row.kind == Kind.TASK:
            data = msgspec.json.decode(row.data, type=TaskData)
            if data.workstream and not data.part_of:
                tasks.setdefault(data.workstream, {})[data.name] = EarlierTask(
                    Task(row.state), data.digest, task_end(row.state, data.ended_as)
                )
    for row in sorted((row for row in rows if row.kind == Kind.WORKSTREAM), key=lambda row: row.born_seq):
        stream = msgspec.json.decode(row.data, type=WorkstreamData)
        own = tasks[row.id] = {**tasks.get(stream.resumes, {}), **tasks.get(row.id, {})}
        if stream.key:
            by_key.setdefault(stream.key, SubmittedRun(row.id, stream.request))
        by_tasks[_digest({name: one.digest for name, one in own.items()})] = row.id if row.ended else ""
        by_name[stream.name] = EarlierRun(row.id, row.state, row.ended, own)
    return EarlierRuns(by_tasks, by_name, by_key)


def tasks_digest(plan: Plan, settings: Settings) -> str:
    """Return a digest, 16 characters, of all tasks of a plan."""
    return _digest({one.id: digest_of(one, settings) for one in plan.tasks})


def _digest(tasks: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(tasks.items()))).hexdigest()[:16]


def _runs(rows: Collection[EntityRow]) -> dict[str, dict[str, InterruptedTask]]:
    """Return the tasks of every interrupted run, by the run's workstream and the task's name."""
    runs: dict[str, dict[str, InterruptedTask]] = {}
    live = {row.id for row in rows if row.kind == Kind.WORKSTREAM and not row.ended}
    for row in rows:
        if row.kind == Kind.TASK:
            task = InterruptedTask(row.id, Task(row.state), msgspec.json.decode(row.data, type=TaskData))
            if task.data.workstream:
                runs.setdefault(task.data.workstream, {})[task.data.name] = task
    return {run: tasks for run, tasks in runs.items() if run in live}


def continued(
    plan: Plan, settings: Settings, rows: Collection[EntityRow], run: str = "", *, is_recorded: bool = False
) -> Mapping[str, InterruptedTask]:
    """Return the tasks that *plan* continues, by name: the tasks of the newest interrupted run that *plan* can
    continue.

    Args:
        plan: the plan as it is now.
        settings: settings that the digests of tasks depend on.
        rows: the rows of all entities in the journal.
        run: the only run that may be continued; ``""`` for any.
        is_recorded: whether *plan* is the plan that was recorded with *run*. Then its tasks are those of the run; their
            digests may differ, since secrets are redacted in the record.
    """
    for found, tasks in reversed(_runs(rows).items()):
        with suppress(BadPlan):  # the subtasks of that run do not fit into this plan
            if run in ("", found) and (is_recorded or _continues(plan, settings, tasks)):
                return tasks
    return {}


def _parts(task: InterruptedTask) -> tuple[TaskConfig, ...]:
    return recalled_subtasks(task.data.parts) if task.data.parts else ()


def grown(plan: Plan, tasks: Mapping[str, InterruptedTask]) -> Iterator[Plan]:
    """Yield *plan*, then the plan with the subtasks of the *tasks* that were split, then with the subtasks of these
    subtasks, and so on. The first of these plans that contains a task has that task's entry as it was when the task was
    created.

    Raises:
        BadPlan: the subtasks do not fit into the plan.
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
    """Return whether each of *tasks* is unchanged in *plan*, or in the plan with subtasks."""
    digests: dict[str, str] = {}
    for one in grown(plan, tasks):
        new = (placed.task for placed in every_task(one.tasks) if placed.task.id not in digests)
        digests.update({task.id: digest_of(task, settings) for task in new})
    return all(digests.get(name) == task.data.digest for name, task in tasks.items())


def resumed_ids(plan: Plan, rows: Collection[EntityRow]) -> Collection[str]:
    """Return the ids of all entities that a run of *plan* continues: tasks, the sessions that hold them, task runs,
    jobs and workers."""
    tasks = continued(plan, plan, rows).values()
    found = {one for task in tasks for one in (task.entity_id, task.data.claimed_by, task.data.workstream) if one}
    return found | {row.id for row in rows if row.kind in (Kind.RUN, Kind.JOB, Kind.WORKER) and row.parent_id in found}
