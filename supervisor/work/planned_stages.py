"""Execution plans of plans and of runs: what ``diagnostics.execution_plan`` needs, from a plan or from a journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from supervisor.diagnostics.execution_plan import ExecutionPlan, PlannedTask, plan_execution
from supervisor.diagnostics.outcomes import Outcomes, data_of
from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.types import Kind
from supervisor.plans.plan import Plan
from supervisor.plans.tasks import every_task
from supervisor.ports import EntityRow, MergePlan, Reader
from supervisor.work.reporting import PLAN
from supervisor.work.workstream import MERGE_PLAN

_READ: Final = (Kind.TASK, Kind.WORKSTREAM)
"""Kinds of entities from which the execution plan of a run is made."""


def execution_plan_of(plan: Plan, run: str = "") -> ExecutionPlan:
    """Return the execution plan of *plan*, for its run with that id, if it is run."""
    tasks = [
        PlannedTask(
            name=one.task.id,
            agent=one.task.agent,
            needs=(*one.task.depends_on, *([one.task.when.task] if one.task.when and one.task.when.task else [])),
            part_of=one.parent.task.id if one.parent is not None else "",
        )
        for one in every_task(plan.tasks)
    ]
    return plan_execution(plan.workstream, run, tasks)


def read_execution_plan(reader: Reader, run: EntityRow) -> ExecutionPlan:
    """Return the execution plan of a run, the row of whose workstream is given, with the subtasks that its tasks were
    split into, and with the states or ends of its tasks.

    Raises:
        JournalError: the journal or an archive cannot be read.
    """
    rows = reader.entities(ended_kinds=_READ)
    archived = all(row.id != run.id for row in rows)  # a run leaves the journal with all its records
    if archived:
        rows = reader.entities(ended_kinds=_READ, archived=True)
    plans = [one.metadata["plan"] for one in reader.events(run.id, archived=archived) if one.event == PLAN]
    agents = dict(_agents(plans[-1].get("tasks", ()))) if plans else {}
    outcomes = Outcomes(rows)
    tasks = [
        PlannedTask(
            name=name,
            agent=agents.get(name, ""),
            needs=tuple(map(str, data.get("depends_on", ()))),
            part_of=name_of_task(str(data["part_of"])) if data.get("part_of") else "",
            state=outcomes.of(row) or row.state,
        )
        for row in sorted(rows, key=lambda one: one.born_seq)
        if row.kind == Kind.TASK
        for data in [data_of(row)]
        for name in [str(data.get("name", ""))]
        if data.get("workstream") == run.id
    ]
    return plan_execution(str(data_of(run).get("name", "")), run.id, tasks)


def read_merge_plan(reader: Reader, run: EntityRow) -> MergePlan | None:
    """Return the last recorded plan of the one merge of a run, the row of whose workstream is given; ``None`` if there
    is none.

    Raises:
        JournalError: the journal or an archive cannot be read.
    """
    found = [one.metadata for one in reader.events(run.id, archived=True) if one.event == MERGE_PLAN]
    return msgspec.convert(found[-1], MergePlan) if found else None


def _agents(tasks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the name and the agent of each task of a recorded plan."""
    pending = [*tasks]
    for one in pending:  # the list grows while it is read
        yield str(one.get("id", "")), str(one.get("agent", ""))
        pending += one.get("subtasks", ())
