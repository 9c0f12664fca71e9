"""Plan: agents, workers and tasks, with the settings of the run at the top level.

A plan is validated as a whole: every instance is consistent, wherever it was built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from supervisor.plans.access import AccessConfig
from supervisor.plans.agents import AgentConfig, WorkerConfig
from supervisor.plans.checks import agent_problems, circle_problems, need_problems, task_problems
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Flag, Name, closest
from supervisor.plans.lifecycle import RetryBudgetConfig, TaskLifecycle
from supervisor.plans.monitoring import BudgetConfig
from supervisor.plans.settings import Settings
from supervisor.plans.tasks import AcceptanceConfig, PlacedTask, TaskConfig, every_task
from supervisor.plans.verification import ReviewConfig


class Plan(Settings):
    """Workstream: agents, tasks, workers, and the rules for retries, approval and validation. With *fail_fast* the run
    ends at the first task that has failed for good, as if every task were ``critical``."""

    agents: Mapping[Name, AgentConfig] = Field(min_length=1)
    tasks: tuple[TaskConfig, ...] = Field(min_length=1)
    workstream: Name = "plan"
    budget: BudgetConfig = BudgetConfig()
    workers: Mapping[Name, WorkerConfig] = {}
    task_lifecycle: TaskLifecycle = TaskLifecycle()
    retry_budget: RetryBudgetConfig = RetryBudgetConfig()
    approve_plan: Flag = False
    fail_fast: Flag = False
    validation: tuple[AcceptanceConfig, ...] = ()
    review: ReviewConfig | None = None

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
