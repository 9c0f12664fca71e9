"""Add tasks or subtasks to a plan while it runs: read them, and insert them as if the plan had always contained them.

An addition, or a split by a person or by the task's agent, may contain only tasks that a plan may contain, and is
validated before anything happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from supervisor.plans.error_texts import FieldErrors, complaints
from supervisor.plans.loading import model_at
from supervisor.plans.plan import Plan
from supervisor.plans.source import BadPlan, parse, spelled
from supervisor.plans.tasks import TaskConfig, every_task

_WANTED = "give a list of tasks, for example [{id: part, prompt: '@say hello'}]"
_SUBTASKS: TypeAdapter[tuple[TaskConfig, ...]] = TypeAdapter(tuple[TaskConfig, ...])


def read_tasks(text: str, name: str) -> tuple[TaskConfig, ...]:
    """Parse *text* as a YAML list of tasks; *name* is the source in error texts.

    Raises:
        BadPlan: with one line for every problem.
    """
    source = parse(text, name, _WANTED)
    if not isinstance(source.data, list) or not source.data:
        raise source.bad([((), _WANTED)])
    try:
        return _SUBTASKS.validate_python(source.data)
    except ValidationError as error:
        raise source.bad(complaints(error, source, lambda path: model_at(("tasks", *path)))) from None


def with_tasks(plan: Plan, tasks: Sequence[TaskConfig]) -> Plan:
    """Return *plan* with *tasks* behind its own.

    Raises:
        BadPlan: the plan would be inconsistent, for example since it has no agent of a name.
    """
    try:
        return Plan.model_validate({**dict(plan), "tasks": (*plan.tasks, *tasks)})
    except ValidationError as error:
        raise BadPlan("\n".join(_problem_lines(error, len(plan.tasks)))) from None


def plain_subtasks(subtasks: Sequence[TaskConfig]) -> tuple[dict[str, Any], ...]:
    """Return the subtasks as plain data for the journal."""
    return tuple(one.model_dump(mode="json", exclude_unset=True) for one in subtasks)


def recalled_subtasks(plain: Sequence[Mapping[str, Any]]) -> tuple[TaskConfig, ...]:
    """Return the subtasks from plain data of the journal.

    Raises:
        BadPlan: this version cannot read the data as tasks.
    """
    try:
        return _SUBTASKS.validate_python(plain)
    except ValidationError as error:
        raise BadPlan(f"the journal has subtasks that cannot be read: {error}") from None


def with_subtasks(plan: Plan, splits: Mapping[str, Sequence[TaskConfig]]) -> Plan:
    """Return *plan* with each task that *splits* names split into those subtasks; a subtask without an agent gets the
    task's.

    Raises:
        BadPlan: the plan would be inconsistent, or has no such task.
    """
    if unknown := splits.keys() - {one.task.id for one in every_task(plan.tasks)}:
        raise BadPlan(f"{', '.join(map(repr, sorted(unknown)))} is not a task of this plan")
    tasks = tuple(_split(task, splits) for task in plan.tasks)
    try:
        return Plan.model_validate({**dict(plan), "tasks": tasks})
    except ValidationError as error:
        raise BadPlan("\n".join(_problem_lines(error))) from None


def _split(task: TaskConfig, splits: Mapping[str, Sequence[TaskConfig]]) -> TaskConfig:
    inner = tuple(_split(one, splits) for one in task.subtasks)
    more = tuple(one if one.agent else _for_agent(one, task.agent) for one in splits.get(task.id, ()))
    return task.model_copy(update={"subtasks": (*inner, *more)}) if inner or more else task


def _for_agent(task: TaskConfig, agent: str) -> TaskConfig:
    """Return *task* with *agent* as the agent of the task, and of those of its subtasks that name none."""
    inner = tuple(one if one.agent else _for_agent(one, agent) for one in task.subtasks)
    return task.model_copy(update={"agent": agent, "subtasks": inner})


def _problem_lines(error: ValidationError, known: int = 0) -> Iterable[str]:
    """Yield a line for each problem. Tasks are counted from the first that is new, which *known* tasks come before."""
    for one in error.errors(include_url=False):
        cause = one.get("ctx", {}).get("error")
        assert isinstance(cause, FieldErrors), "the tasks were checked one by one; only what hangs together is left"
        for path, words in cause.found:
            if known and path[0] == "tasks" and isinstance(path[1], int) and path[1] >= known:
                path = ("tasks", path[1] - known, *path[2:])
            yield f"{spelled(path)}: {words}"
