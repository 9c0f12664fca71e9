"""Budget scopes of a plan run: one for the workstream, below it one for each task, and below that the subtasks' scopes.

A plan run that continues after a takeover counts the amounts used before: they are read from the logs of its sessions.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.lifecycles.types import Kind
from supervisor.plans.fields import value_of
from supervisor.plans.plan import Plan
from supervisor.plans.source import spelled
from supervisor.plans.tasks import TaskConfig, every_task
from supervisor.policies.budgets import BudgetScope, narrow_budget
from supervisor.policies.liveness import StallProfileName
from supervisor.sessions.journal_state import used_in
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution


def scope_of(plan_run: PlanRun, execution: TaskExecution) -> BudgetScope | None:
    """Return the budget scope for the sessions of a task; ``None`` if no budget applies."""
    above = scope_of(plan_run, execution.parent) if execution.parent is not None else _whole(plan_run)
    return plan_run.sup.monitors.scope(execution.id, f"task {execution.name}", value_of(execution.task.budget), above)


def _whole(plan_run: PlanRun) -> BudgetScope | None:
    return plan_run.sup.monitors.scope(
        plan_run.workstream.id, f"workstream {plan_run.plan.workstream}", value_of(plan_run.plan.budget)
    )


def patience_of(task: TaskConfig) -> StallProfileName:
    """Return the stall profile, which says how long an agent may be silent: longer for a large task."""
    return StallProfileName.LARGE if task.scope in ("large", "xl") else StallProfileName.DEFAULT


async def recall_use(plan_run: PlanRun) -> None:
    """Add to every budget scope the amounts that were used under an earlier supervisor.

    Raises:
        JournalError: the journal cannot be read.
    """
    if not any(
        value_of(budget).limits
        for budget in (plan_run.plan.budget, *(c.task.budget for c in plan_run.executions.values()))
    ):
        return
    _whole(plan_run)
    for execution in plan_run.executions.values():
        if execution.is_opened:
            scope_of(plan_run, execution)  # the plan's limits are newer than those of a record
    for row in plan_run.sup.recovered_work.rows.values():
        # Also the sessions of earlier attempts, and their children.
        if row.kind == Kind.SESSION and row.born_seq > plan_run.workstream.born_seq:
            plan_run.sup.monitors.count(await used_in(plan_run.sup.journal, row.id))


def close_scopes(plan_run: PlanRun) -> None:
    """Close the budget scopes of a plan run that is over."""
    for entity_id in (
        plan_run.workstream.id,
        *(execution.id for execution in plan_run.executions.values() if execution.is_opened),
    ):
        plan_run.sup.monitors.close(entity_id)


def narrowings(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each limit in a task's budget that is larger than the limit of the budget around the
    task."""
    for one in every_task(plan.tasks):
        above, whose = (one.parent.task.budget, f"task {one.parent.task.id}") if one.parent else (plan.budget, "plan")
        limits = value_of(above)
        for name in narrow_budget(value_of(one.task.budget), limits)[1]:
            asked, has = getattr(one.task.budget, name), getattr(limits, name)
            yield f"{spelled((*one.path, 'budget', name))}: {asked:g} is narrowed to {has:g}, which the {whose} has"
