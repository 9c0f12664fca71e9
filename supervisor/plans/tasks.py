"""Tasks, as a plan writes them: prompt, agent, order, needs, and the conditions that the work must meet.

Contradictions within one task are found here, problems across tasks in ``checks``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from supervisor.lifecycles.run_ids import is_run_id
from supervisor.plans.acceptance import ARGV, KINDS, TIMEOUT_S, AcceptanceTest
from supervisor.plans.agents import role_capability
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import (
    OR_VALUE,
    Amount,
    Duration,
    Flag,
    InnerPath,
    Model,
    Name,
    OwnedPath,
    Seconds,
    Several,
    Text,
    Whole,
    plugin_name,
)
from supervisor.plans.monitoring import BudgetConfig
from supervisor.plans.source import FieldPath
from supervisor.plans.verification import CompletionConfig, ReviewConfig
from supervisor.policies.budgets import Budget


def _no_run_id(name: str) -> str:
    if is_run_id(name):
        raise ValueError(f"{name!r} has the form of the id of a run, which commands would take it for; rename the task")
    return name


TaskId = Annotated[Name, AfterValidator(_no_run_id)]
SUBTASK_LEVELS_MAX = 8
"""Largest number of levels of nested subtasks."""


class AcceptanceConfig(Model):
    """Acceptance test: one kind of test, and its time-out."""

    file_exists: InnerPath | None = Field(
        default=None, description="Path of a file or directory in the working directory that must exist."
    )
    python_import: Text | None = Field(default=None, description="Python module that python3 must be able to import.")
    javascript_import: Text | None = Field(
        default=None, description="Module or file, such as ./lib/index.js, that node must be able to import."
    )
    unit_tests: Several[Text] | None = Field(
        default=None, description="Program that runs tests, as a list such as [pytest, -q], and must exit with 0."
    )
    lint: Several[Text] | None = Field(
        default=None, description="Linter with its arguments, as a list, that must exit with 0."
    )
    command: Several[Text] | None = Field(
        default=None, description="Program with its arguments, as a list, that must exit with 0."
    )
    verifier: Annotated[Text, plugin_name("verifiers")] | None = Field(
        default=None, description="Name of a plug-in's verifier that must accept the work."
    )
    options: Mapping[str, Any] = Field(
        default={}, validation_alias="with", description="Arguments of the verifier, by name."
    )
    timeout_s: Seconds | None = Field(
        default=None, description="Seconds that the test may take; by default task_lifecycle.validation_timeout."
    )

    def problems(self) -> Iterator[Problem]:
        given = _given(self)
        if len(given) != 1:
            said = f"says {' and '.join(given)}" if given else "says nothing"
            yield (), f"{said}; give exactly one of {', '.join(KINDS)}"
        if self.options and self.verifier is None:
            yield ("with",), "is for a verifier; remove it, or name the verifier"
        for name, words in given.items():
            if not words or not words[0]:
                yield (name,), f"is empty; give {'the argv, for example [pytest, -q]' if name in ARGV else 'a name'}"

    def value(self, timeout_s: float = TIMEOUT_S) -> AcceptanceTest:
        """Return the acceptance test; *timeout_s* applies if the test sets no time-out."""
        kind, given = next(iter(_given(self).items()))
        words = (given,) if isinstance(given, str) else given
        limit_s = timeout_s if self.timeout_s is None else self.timeout_s
        return AcceptanceTest(kind=kind, words=words, timeout_s=limit_s, options=self.options)


def _given(test: AcceptanceConfig) -> dict[str, str | tuple[str, ...]]:
    """Return the kinds of test that *test* names, each with its value."""
    return {name: given for name in KINDS if (given := getattr(test, name)) is not None}


class ConditionConfig(Model):
    """Condition under which a task runs at all: another task has ended in a certain way, or a file exists."""

    task: str | None = Field(
        default=None, description="Id of another task, which must end before this task is started or skipped."
    )
    outcome: Literal["completed", "failed", "skipped"] = Field(
        default="completed", validation_alias="is", description="End of the other task with which this task is started."
    )
    file_exists: InnerPath | None = Field(
        default=None, description="Path in the working directory that must exist when all dependencies are met."
    )

    def problems(self) -> Iterator[Problem]:
        if (self.task is None) == (self.file_exists is None):
            said = "says nothing" if self.task is None else "says task and file_exists"
            yield (), f"{said}; give exactly one of task, file_exists"
        elif self.task is None and "outcome" in self.model_fields_set:
            yield ("is",), "is about a task; remove it, or name the task"


class TaskConfig(Model):
    """Task: one prompt for one agent, and the conditions that the work must meet. Subtasks wait for the dependencies of
    their parent task."""

    id: TaskId = Field(
        description="Name of the task and of its session, unique in the plan: letters, digits, _, . and -, at most 64. "
        "Names of runs, r and a number, are reserved."
    )
    agent: str = Field(
        default="",
        description="Agent that works on the task; required, but a subtask has its parent's agent by default.",
    )
    prompt: Text = Field(default="", description="Text that the agent is given.")
    depends_on: Several[str] = Field(
        default=(),
        description="Ids of tasks that must complete first; if one does not complete, this task is never started.",
    )
    acceptance: Several[AcceptanceConfig] = Field(
        default=(), description="Tests that the work must pass, in this order, before the task is done."
    )
    priority: Whole = Field(
        default=0,
        description="Ready tasks with the highest priority are claimed first, equal ones in the order of the file.",
    )
    role: Name | None = Field(
        default=None, description="Role that a worker must have to take the task; by default any worker may take it."
    )
    capabilities: Several[Name] = Field(
        default=(), description="Capabilities that a worker must have to take the task."
    )
    files: Several[OwnedPath] = Field(
        default=(),
        description="Files and directories, as paths in the working directory, that no other task may own while this "
        "task is worked on.",
    )
    critical: Flag = Field(
        default=False, description="Whether the run fails at once if this task fails, and all other tasks end."
    )
    optional: Flag = Field(
        default=False,
        description="Whether the task is skipped, and not blocked, when a dependency does not complete; a failure of "
        "the task still fails the run.",
    )
    when: ConditionConfig | None = Field(
        default=None, description="Condition under which the task is worked on; otherwise it is skipped."
    )
    approval: Literal["none", "before", "after"] = Field(
        default="none",
        description="Approval by a person: before the task is started, or after, which is before its result is merged.",
    )
    scope: Literal["small", "medium", "large", "xl"] | None = Field(
        default=None,
        description="Size, from which the time-out follows; it is extended while the agent makes progress. By default "
        "timeout_s counts.",
    )
    complexity: Literal["low", "medium", "high"] = Field(
        default="medium", description="Difficulty of the task, which shortens or lengthens the time-out of its scope."
    )
    timeout_s: Duration | None = Field(
        default=None, description="Seconds that one attempt may take; by default task_lifecycle.default_timeout."
    )
    max_retries: Amount = Field(
        default=3,
        description="Number of times that a failed task may be given to another session with something new.",
    )
    fallback_agents: Several[str] = Field(
        default=(), description="Names of agents for the retries, one after the other; the last one keeps the task."
    )
    subtasks: Several[TaskConfig] = Field(
        default=(),
        description="Tasks into which the task is split instead of being worked on; it completes when they do.",
    )
    may_split: Flag = Field(
        default=False, description="Whether the agent may split the task into subtasks while it works on the task."
    )
    rollback: Flag = Field(
        default=False,
        description="Whether the changes of an attempt that failed or was cancelled are undone; without workspace: "
        "worktree only those of files, which must be given.",
    )
    network: Flag = Field(
        default=False,
        description="Whether the task needs the network, which its agent's level must allow if the plan has access.",
    )
    completion: Several[CompletionConfig] = Field(
        default=(),
        description="Files and texts that must exist when the agent says that it is done; else it is prompted again.",
    )
    review: ReviewConfig | None = Field(
        default=None, description="Review of the work by a second agent; by default the review of the plan."
    )
    budget: Annotated[BudgetConfig | Budget, OR_VALUE] = Field(
        default=BudgetConfig(),
        description="Budget of the task, with its subtasks and sub-agents; by default nothing is limited.",
    )

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities that a worker needs for the task, including one for its role."""
        return frozenset((*self.capabilities, *([role_capability(self.role)] if self.role else [])))

    @model_validator(mode="before")
    @classmethod
    def _hand_down_agent(cls, given: Any) -> Any:
        """Give subtasks without an agent the agent of their parent."""
        if not (isinstance(given, dict) and isinstance(given.get("agent"), str)):
            return given
        subtasks = given.get("subtasks")
        if not isinstance(subtasks, list | tuple):
            return given
        agent = {"agent": given["agent"]}
        return {**given, "subtasks": [{**agent, **one} if isinstance(one, dict) else one for one in subtasks]}

    def problems(self) -> Iterator[Problem]:
        yield from _contradictions(self)


def _contradictions(task: TaskConfig) -> Iterator[Problem]:
    if task.critical and task.optional:
        yield ("optional",), "the task is critical, too: the plan cannot both fail and continue without it; remove one"
    if "complexity" in task.model_fields_set and task.scope is None:
        yield ("complexity",), "has no effect without scope, from which the time-out is computed; give scope too"
    if task.scope is not None and task.timeout_s is not None:
        yield ("timeout_s",), "scope sets the time-out, too; remove one"
    yield from _fallback_problems(task)
    yield from _review_problems(task)
    when = task.when
    if when is not None and when.task in task.depends_on and when.outcome != "completed":
        yield ("when",), f"{when.task!r} must complete by depends_on, and be {when.outcome} by when; remove one"


def _review_problems(task: TaskConfig) -> Iterator[Problem]:
    if task.review is not None and task.review.agent in (task.agent, *task.fallback_agents):
        yield ("review", "agent"), f"{task.review.agent!r} may have done the work itself; name another agent"
    if task.subtasks and task.completion:
        yield ("completion",), "a task with subtasks is not worked on itself; move them to its subtasks"
    if task.subtasks and task.review is not None:
        yield ("review",), "a task with subtasks is not worked on itself; move it to its subtasks"


def _fallback_problems(task: TaskConfig) -> Iterator[Problem]:
    for index, name in enumerate(task.fallback_agents):
        if name in (task.agent, *task.fallback_agents[:index]):
            yield ("fallback_agents", index), f"{name!r} has been tried before; name another agent, or remove it"


class PlacedTask:
    """Task of a plan with its path in the plan and its parent task."""

    def __init__(self, path: FieldPath, task: TaskConfig, parent: PlacedTask | None) -> None:
        self.path, self.task, self.parent = path, task, parent
        self.level: int = 0 if parent is None else parent.level + 1


def every_task(tasks: Sequence[TaskConfig]) -> Iterator[PlacedTask]:
    """Yield all *tasks* and their subtasks in the order of the file, each task before its subtasks."""
    pending = [PlacedTask(("tasks", number), task, None) for number, task in reversed(list(enumerate(tasks)))]
    while pending:
        one = pending.pop()
        yield one
        inner = list(enumerate(one.task.subtasks))
        pending += [PlacedTask((*one.path, "subtasks", number), task, one) for number, task in reversed(inner)]
