"""Plan: agents, workers and tasks, with the settings of the run at the top level.

A plan is validated as a whole: every instance is consistent, wherever it was built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from supervisor.plans.access import AccessConfig
from supervisor.plans.agents import AgentConfig, WorkerConfig
from supervisor.plans.checks import agent_problems, circle_problems, need_problems, task_problems
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import OR_VALUE, Flag, Name, Several, closest
from supervisor.plans.lifecycle import RetryBudgetConfig, TaskLifecycle
from supervisor.plans.monitoring import BudgetConfig
from supervisor.plans.settings import Settings
from supervisor.plans.tasks import AcceptanceConfig, PlacedTask, TaskConfig, every_task
from supervisor.plans.verification import ReviewConfig
from supervisor.policies.budgets import Budget
from supervisor.ports.agent_profile import AgentFunction


class _OrFunctions:
    """Marker of the field ``agents``, which is validated as a mapping of names to ``AgentConfig``. An async function is
    turned into the configuration of an in-process agent first."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_without_functions, handler(Mapping[Name, AgentConfig]))


def _without_functions(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    return {
        name: AgentConfig.of_function(f"agents[{name!r}]", one) if callable(one) else one for name, one in given.items()
    }


class Plan(Settings):
    """Workstream: agents, tasks, workers, and the rules for retries, approval and validation."""

    agents: Annotated[Mapping[Name, AgentConfig | AgentFunction], _OrFunctions()] = Field(
        min_length=1, description="Agents by name, at least one."
    )
    tasks: Several[TaskConfig] = Field(min_length=1, description="Tasks in any order, at least one.")
    workstream: Name = Field(
        default="plan",
        description="Name of the workstream, which is the plan as it runs. In a file, the default is the name of the "
        "file without its ending.",
    )
    budget: Annotated[BudgetConfig | Budget, OR_VALUE] = Field(
        default=BudgetConfig(), description="Budget of the whole workstream; by default nothing is limited."
    )
    workers: Mapping[Name, WorkerConfig] = Field(
        default={},
        description="Workers by name; by default one, local, which takes any task and has max_sessions slots.",
    )
    task_lifecycle: TaskLifecycle = Field(
        default=TaskLifecycle(),
        description="Time-outs and retries of the attempts at a task, and what is kept of an attempt.",
    )
    retry_budget: RetryBudgetConfig = Field(
        default=RetryBudgetConfig(), description="Retries that all tasks of the workstream may use together."
    )
    approve_plan: Flag = Field(
        default=False, description="Whether every task waits for an approval before it is worked on."
    )
    fail_fast: Flag = Field(
        default=False,
        description="Whether the run ends at the first task that has failed for good, as if every task were critical.",
    )
    validation: Several[AcceptanceConfig] = Field(
        default=(), description="Acceptance tests of the merged result; if one fails, the workstream has failed."
    )
    review: ReviewConfig | None = Field(
        default=None, description="Review of every task that has no review of its own; by default there is none."
    )

    @property
    def agent_configs(self) -> Mapping[str, AgentConfig]:
        """The agents of the plan by name; functions as the configuration of an in-process agent."""
        return cast(Mapping[str, AgentConfig], self.agents)

    @property
    def settings(self) -> Settings:
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})

    def review_of(self, task: TaskConfig) -> ReviewConfig | None:
        """Return the review of *task*: the task's own, or else the plan's."""
        return task.review or self.review

    def problems(self) -> Iterator[Problem]:
        placed = list(every_task(self.tasks))
        yield from list(_problems(self, placed)) or circle_problems(placed)


def _problems(plan: Plan, placed: list[PlacedTask]) -> Iterator[Problem]:
    yield from task_problems(placed)
    yield from agent_problems(placed, plan.agents)
    yield from need_problems(placed, plan.workers)
    if plan.access is not None:
        yield from _access_problems(plan.access, plan)
    if plan.review is not None and plan.review.agent not in plan.agents:
        known = closest(plan.review.agent, plan.agents, "the agents are")
        yield ("review", "agent"), f"{plan.review.agent!r} is not an agent of this plan; {known}"
    for one in placed:
        own = (one.task.agent, *one.task.fallback_agents)
        if plan.review is not None and one.task.review is None and plan.review.agent in own and not one.task.subtasks:
            yield (*one.path, "review"), f"{plan.review.agent!r} may have done the work itself; name another reviewer"
    for one in placed:
        if one.task.rollback and not one.task.files and plan.workspace != "worktree":
            words = "changes of the task cannot be distinguished from others in a shared directory"
            yield (*one.path, "rollback"), f"{words}; give the files that it owns, or set workspace: worktree"


def _access_problems(access: AccessConfig, plan: Plan) -> Iterator[Problem]:
    if plan.workspace != "worktree":
        yield ("access",), "changes of a task are checked in worktrees only; set workspace: worktree too"
    for name in access.initial:
        if name not in plan.agents:
            known = closest(name, plan.agents, "the agents are")
            yield ("access", "initial", name), f"{name!r} is not an agent of this plan; {known}"
