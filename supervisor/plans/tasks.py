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

    file_exists: InnerPath | None = None
    python_import: Text | None = None
    javascript_import: Text | None = None
    unit_tests: Several[Text] | None = None
    lint: Several[Text] | None = None
    command: Several[Text] | None = None
    verifier: Annotated[Text, plugin_name("verifiers")] | None = None
    options: Mapping[str, Any] = Field(default={}, validation_alias="with")
    timeout_s: Seconds | None = None

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

    task: str | None = None
    outcome: Literal["completed", "failed", "skipped"] = Field(default="completed", validation_alias="is")
    file_exists: InnerPath | None = None

    def problems(self) -> Iterator[Problem]:
        if (self.task is None) == (self.file_exists is None):
            said = "says nothing" if self.task is None else "says task and file_exists"
            yield (), f"{said}; give exactly one of task, file_exists"
        elif self.task is None and "outcome" in self.model_fields_set:
            yield ("is",), "is about a task; remove it, or name the task"


class TaskConfig(Model):
    """Task: one prompt for one agent, after the tasks in *depends_on*; the work must pass *acceptance*.

    A task with *subtasks* is not worked on itself: it is completed when they are. Its subtasks wait for its
    dependencies, and have its agent unless they name another.
    """

    id: TaskId
    agent: str = ""
    prompt: Text = ""
    depends_on: Several[str] = ()
    acceptance: Several[AcceptanceConfig] = ()
    priority: Whole = 0
    role: Name | None = None
    capabilities: Several[Name] = ()
    files: Several[OwnedPath] = ()
    critical: Flag = False
    optional: Flag = False
    when: ConditionConfig | None = None
    approval: Literal["none", "before", "after"] = "none"
    scope: Literal["small", "medium", "large", "xl"] | None = None
    complexity: Literal["low", "medium", "high"] = "medium"
    timeout_s: Duration | None = None
    max_retries: Amount = 3
    fallback_agents: Several[str] = ()
    subtasks: Several[TaskConfig] = ()
    may_split: Flag = False
    rollback: Flag = False
    network: Flag = False
    completion: Several[CompletionConfig] = ()
    review: ReviewConfig | None = None
    budget: Annotated[BudgetConfig | Budget, OR_VALUE] = BudgetConfig()

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
