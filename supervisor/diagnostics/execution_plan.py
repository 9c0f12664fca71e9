"""Execution plan of a workstream: its tasks in stages, and the graph of what each task waits for. Pure.

A task is in the stage after the last of those that it waits for, so the tasks of one stage may run at the same time, as
far as workers are free. A subtask waits for what the tasks above it wait for, too; whoever waits for a task with
subtasks waits for all of them, and such a task is in no stage, since no agent works on it.

Example: ``b`` and ``c`` depend on ``a``, and ``d`` on both: the stages are ``a``; ``b`` and ``c``; ``d``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

PLANNED: Final = "ExecutionPlan"
"""Name of the fact, in the log of a workstream, with the stages of its tasks; the last one has all tasks that were
added."""


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task of an execution plan: its ``name``, its ``agent``, the names of the tasks that it ``needs``, the name of the
    task that it is ``part_of``, and the word for its state or its end; ``""`` where there is none."""

    name: str
    agent: str = ""
    needs: tuple[str, ...] = ()
    part_of: str = ""
    state: str = ""


class ExecutionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Execution plan of the run ``run`` of the plan ``plan`` (``run`` is ``""`` for a plan that is not run). ``stages``
    has the tasks in the order in which they may begin; ``edges`` are pairs of names, the second of which waits for the
    first; ``groups`` are the tasks with subtasks."""

    plan: str
    run: str
    stages: tuple[tuple[PlannedTask, ...], ...]
    edges: tuple[tuple[str, str], ...]
    groups: tuple[str, ...] = ()

    @property
    def as_record(self) -> dict[str, Any]:
        """The names of the tasks of each stage, and the edges, as the content of a fact."""
        return {"stages": [[one.name for one in stage] for stage in self.stages], "edges": [*map(list, self.edges)]}


def plan_execution(plan: str, run: str, tasks: Sequence[PlannedTask]) -> ExecutionPlan:
    """Return the execution plan of *tasks*, which wait for each other in no circle. Names of tasks that are not among
    them are of tasks that were done before: nothing waits for these."""
    known = {one.name: one for one in tasks}
    parts: dict[str, list[str]] = {}
    for one in tasks:
        if one.part_of in known:
            parts.setdefault(one.part_of, []).append(one.name)
    leaves = [one for one in tasks if one.name not in parts]
    waits = {one.name: _leaves_of(_needs(one, known), parts) for one in leaves}
    stage_of = _stages(waits)
    stages: list[list[PlannedTask]] = [[] for _ in range(max(stage_of.values(), default=0))]
    for one in leaves:
        stages[stage_of[one.name] - 1].append(one)
    return ExecutionPlan(
        plan=plan,
        run=run,
        stages=tuple(map(tuple, stages)),
        edges=tuple((needed, one.name) for one in leaves for needed in waits[one.name]),
        groups=tuple(one.name for one in tasks if one.name in parts),
    )


def _needs(task: PlannedTask, known: Mapping[str, PlannedTask]) -> list[str]:
    """Return the names of the tasks that *task* waits for: its own, and those of the tasks above it, unless another
    part of the same task waits for these already."""
    needs: dict[str, None] = {}
    above: PlannedTask | None = task
    while above is not None:
        own = [name for name in above.needs if name in known]
        needs.update(dict.fromkeys(own))
        waits_for_sibling = any(known[name].part_of == above.part_of for name in own)
        above = known.get(above.part_of) if not waits_for_sibling else None
    return [*needs]


def _leaves_of(names: Iterable[str], parts: Mapping[str, Collection[str]]) -> list[str]:
    """Return *names*, with its subtasks, and theirs, in place of each task that has some."""
    found: dict[str, None] = {}
    pending = [*names]
    for name in pending:  # the list grows while it is read
        if name in parts:
            pending += parts[name]
        else:
            found[name] = None
    return [*found]


def _stages(waits: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return the number of the stage of each task, from 1. Iterative: a chain may have thousands of tasks."""
    left = {name: len(needed) for name, needed in waits.items()}
    after: dict[str, list[str]] = {}
    for name, needed in waits.items():
        for one in needed:
            after.setdefault(one, []).append(name)
    stages = {name: 1 for name, count in left.items() if not count}
    ready = [*stages]
    for name in ready:  # the list grows while it is read
        for one in after.get(name, ()):
            stages[one] = max(stages.get(one, 1), stages[name] + 1)
            left[one] -= 1
            if not left[one]:
                ready.append(one)
    return stages


# ------------------------------------------------------------------------------------------------------- texts
def mermaid(found: ExecutionPlan) -> str:
    """Return the graph as the text of a Mermaid diagram: a box for each stage, an arrow from a task to each that waits
    for it."""
    ids = {one.name: f"t{number}" for number, one in enumerate(one for stage in found.stages for one in stage)}
    lines = ["graph LR"]
    for number, stage in enumerate(found.stages, 1):
        lines.append(f'  subgraph stage{number}["stage {number}"]')
        lines += [f'    {ids[one.name]}["{_label(one)}"]' for one in stage]
        lines.append("  end")
    lines += [f"  {ids[before]} --> {ids[after]}" for before, after in found.edges]
    return "\n".join(lines)


def _label(task: PlannedTask) -> str:
    agent = f" ({task.agent})" if task.agent else ""
    state = f": {task.state}" if task.state else ""
    return f"{task.name}{agent}{state}".replace('"', "#quot;")
