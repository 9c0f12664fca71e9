"""The budgets of a plan at work: a scope for the workstream, one in it for each task, and those of subtasks below.

A plan that is gone on with goes on with what was used: the logs of the sessions since it began say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.lifecycles.types import Kind
from supervisor.plans.plan import Plan
from supervisor.plans.source import spelled
from supervisor.plans.tasks import every_task
from supervisor.policies.budgets import BudgetScope, narrow_budget
from supervisor.policies.liveness import StallProfileName
from supervisor.recovery.journal_state import used_in
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import TaskExecution

__all__ = ["close_scopes", "narrowings", "patience_of", "recall_use", "scope_of"]


def scope_of(load: PlanRun, case: TaskExecution) -> BudgetScope | None:
    """What the session of a task counts in; ``None`` where nothing bounds it."""
    above = scope_of(load, case.part_of) if case.part_of is not None else _whole(load)
    return load.sup.monitors.scope(case.id, f"task {case.name}", case.task.budget.value(), above)


def _whole(load: PlanRun) -> BudgetScope | None:
    return load.sup.monitors.scope(load.stream.id, f"workstream {load.plan.workstream}", load.plan.budget.value())


def patience_of(case: TaskExecution) -> StallProfileName:
    """A large task may be silent for longer."""
    return StallProfileName.LARGE if case.task.scope in ("large", "xl") else StallProfileName.DEFAULT


async def recall_use(load: PlanRun) -> None:
    """Have every scope know what was used under an earlier supervisor.

    Raises:
        JournalError: the journal cannot be read.
    """
    if not any(budget.value().limits for budget in (load.plan.budget, *(c.task.budget for c in load.cases.values()))):
        return
    _whole(load)
    for case in load.cases.values():
        if case.is_opened:
            scope_of(load, case)  # the plan's limits are newer than those of a record
    for row in load.sup.inherited.rows.values():
        if row.kind == Kind.SESSION and row.born_seq > load.stream.born_seq:  # of an earlier try, or below one, too
            load.sup.monitors.count(await used_in(load.sup.journal, row.id))


def close_scopes(load: PlanRun) -> None:
    """The run is over."""
    for entity_id in (load.stream.id, *(case.id for case in load.cases.values() if case.is_opened)):
        load.sup.monitors.close(entity_id)


def narrowings(plan: Plan) -> Iterator[str]:
    """Where a task's budget asks for more than what it lies in has, in words."""
    for one in every_task(plan.tasks):
        above, whose = (one.parent.task.budget, f"task {one.parent.task.id}") if one.parent else (plan.budget, "plan")
        limits = above.value()
        for name in narrow_budget(one.task.budget.value(), limits)[1]:
            asked, has = getattr(one.task.budget, name), getattr(limits, name)
            yield f"{spelled((*one.path, 'budget', name))}: {asked:g} is narrowed to {has:g}, which the {whose} has"
