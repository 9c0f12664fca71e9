"""Ask plug-ins for preferences: which task is first, which agent tries next, and whether a task is tried again.

A preference chooses among the possibilities that the plan allows. No preference lifts a limit: retries, budgets and
breakers apply in any case.
"""

from __future__ import annotations

from supervisor.lifecycles.task_run import ErrorCategory
from supervisor.plugins import FailedAttempt, WorkItem
from supervisor.policies.error_classification import Failure
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution


async def rank(plan_run: PlanRun, execution: TaskExecution) -> None:
    """Set the priority that the plug-ins prefer for a task, before the task is offered to workers."""
    task = execution.task
    item = WorkItem(
        id=execution.name,
        agent=execution.agent,
        priority=task.priority,
        role=task.role or "",
        depends_on=tuple(task.depends_on),
    )
    priority = await plan_run.sup.plugins.priority(item)
    if priority != task.priority:
        execution.note("Ranked", {"priority": priority, "planned": task.priority}, "a plug-in says so")
        plan_run.backlog.rank(execution.id, priority)


async def reclassify_failure(plan_run: PlanRun, execution: TaskExecution, failure: Failure, error: str) -> Failure:
    """Return *failure*, with the category changed if the plug-ins disagree on whether another attempt may be made."""
    attempt = _failed(plan_run, execution, error, failure.category.value)
    again = await plan_run.sup.plugins.retry(attempt)
    permanent = failure.category is ErrorCategory.PERMANENT
    if again is None or again is not permanent:
        return failure
    category = ErrorCategory.UNKNOWN if again else ErrorCategory.PERMANENT
    execution.note("RetryJudged", {"again": again, "category": category.value}, f"a plug-in says so: {error}")
    return failure._replace(category=category)


async def next_agent(plan_run: PlanRun, execution: TaskExecution, planned: str) -> str:
    """Return the agent for the next try of a failed task: *planned*, or another agent of the plan that a plug-in
    prefers."""
    chosen = await plan_run.sup.plugins.escalation(_failed(plan_run, execution, execution.data.last_failure, ""))
    if chosen is None or chosen == planned:
        return planned
    execution.note("Escalated", {"agent": chosen, "planned": planned}, "a plug-in says so")
    return chosen


def _failed(plan_run: PlanRun, execution: TaskExecution, error: str, category: str) -> FailedAttempt:
    review = plan_run.plan.review_of(execution.task)
    return FailedAttempt(
        task_id=execution.name,
        agent=execution.agent,
        attempt=max(1, execution.data.claims),
        error=error,
        category=category,
        agents=tuple(name for name in plan_run.plan.agents if review is None or name != review.agent),
    )
