"""What plug-ins think of the work: who is first, who tries next, and whether anybody tries again.

An opinion chooses among what the plan allows. It lifts no bound: retries, budgets and breakers hold whatever is said.
"""

from __future__ import annotations

from supervisor.lifecycles.task_run import ErrorCategory
from supervisor.plugins import FailedAttempt, WorkItem
from supervisor.policies.error_classification import Failure
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution

__all__ = ["judge", "next_agent", "rank"]


async def rank(load: PlanRun, case: TaskExecution) -> None:
    """Order a task among what can be claimed as the plug-ins see it, before it is offered."""
    task = case.task
    item = WorkItem(
        id=case.name, agent=case.agent, priority=task.priority, role=task.role or "", depends_on=task.depends_on
    )
    priority = await load.sup.plugins.priority(item)
    if priority != task.priority:
        case.note("Ranked", {"priority": priority, "planned": task.priority}, "a plug-in says so")
        load.backlog.rank(case.name, priority)


async def judge(load: PlanRun, case: TaskExecution, failure: Failure, error: str) -> Failure:
    """The failure of an attempt as the plug-ins see it: one that rules out another attempt, or one that does not."""
    attempt = _failed(load, case, error, failure.category.value)
    again = await load.sup.plugins.retry(attempt)
    permanent = failure.category is ErrorCategory.PERMANENT
    if again is None or again is not permanent:
        return failure
    category = ErrorCategory.UNKNOWN if again else ErrorCategory.PERMANENT
    case.note("RetryJudged", {"again": again, "category": category.value}, f"a plug-in says so: {error}")
    return failure._replace(category=category)


async def next_agent(load: PlanRun, case: TaskExecution, planned: str) -> str:
    """Who tries a task that has failed: *planned*, or another agent of the plan that a plug-in prefers."""
    chosen = await load.sup.plugins.escalation(_failed(load, case, case.data.last_failure, ""))
    if chosen is None or chosen == planned:
        return planned
    case.note("Escalated", {"agent": chosen, "planned": planned}, "a plug-in says so")
    return chosen


def _failed(load: PlanRun, case: TaskExecution, error: str, category: str) -> FailedAttempt:
    review = load.plan.review_of(case.task)
    return FailedAttempt(
        task_id=case.name,
        agent=case.agent,
        attempt=max(1, case.data.claims),
        error=error,
        category=category,
        agents=tuple(name for name in load.plan.agents if review is None or name != review.agent),
    )
