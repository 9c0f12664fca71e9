"""Inspection of an actor from outside: phase, tasks with their stacks, counters. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from actors.cell import ActorCell
from actors.task_runner import stack_of


class Stats(NamedTuple):
    """Counters of one actor. ``queued`` is the number of queued messages by lane."""

    handled: int
    queued: Mapping[str, int]
    queued_bytes: int
    late_replies: int
    incarnation: int
    children: int
    tasks: int
    timers: int


class TaskSeen(NamedTuple):
    """Task of an actor, with its stack, outermost call first."""

    name: str
    stack: Sequence[str]


class Inspection(NamedTuple):
    """Result of the inspection of one actor."""

    id: str
    behaviour: str
    phase: str
    reason: str
    scope_causes: Sequence[str]
    children: Sequence[str]
    tasks: Sequence[TaskSeen]
    stats: Stats


def _stats_of(cell: ActorCell) -> Stats:
    box, lazy = cell.box, cell.lazy_or_none
    return Stats(
        handled=cell.handled,
        queued=box.lengths() if box is not None else {"control": 0, "urgent": 0, "normal": 0},
        queued_bytes=box.bytes if box is not None else 0,
        late_replies=cell.late_replies,
        incarnation=cell.incarnation,
        children=len(cell.cells or ()),
        tasks=len(lazy.tasks) if lazy is not None else 0,
        timers=len(lazy.timers) if lazy is not None else 0,
    )


def inspection_of(cell: ActorCell) -> Inspection:
    lazy = cell.lazy_or_none
    scope = lazy.scope if lazy is not None else None
    tasks = lazy.tasks if lazy is not None else ()
    return Inspection(
        id=cell.id,
        behaviour=type(cell.actor).__name__,
        phase=cell.phase.value,
        reason="" if cell.reason is None else str(cell.reason),
        scope_causes=[str(cause) for cause in scope.causes] if scope is not None else [],
        children=cell.children,
        tasks=[TaskSeen(one.name, stack_of(one.coroutine)) for one in tasks],
        stats=_stats_of(cell),
    )
