"""Figures about the states of a machine, from the records of its entities: how long they last, what follows them, and
how often a visit ends well (spec 002, state metrics). Pure.

A *visit* is the time from a record that enters a state to the record that leaves it; a transition that stays in its
state does not end a visit. A visit counts as ended well if the entity reached the machine's successful end afterwards.

Example: a run that fails once and then completes visits ``IN_PROGRESS`` twice, and both visits ended well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.lifecycles.workstream import Workstream

SUCCESSES: Final[Mapping[str, str]] = {
    Kind.RUN.value: TaskRun.COMPLETED.value,
    Kind.JOB.value: Job.COMPLETED.value,
    Kind.TASK.value: Task.CLOSED.value,
    Kind.TURN.value: Turn.COMPLETING.value,
    Kind.WORKSTREAM.value: Workstream.COMPLETED.value,
}
"""The state that shows success, by machine. Sessions, agents and workers have none: their end is no verdict."""

_GIVEN_UP: Final = {(Kind.RUN.value, TaskRun.CIRCUIT_OPEN.value), (Kind.TASK.value, Task.FAILED.value)}
"""States that are not final, since a person may try again, and in which entities of these machines end all the same: an
entity that is still there after the last record counts as ended, and not well."""


class StateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures about one state of a machine.

    ``visits`` is the number of visits, ``mean_s`` the mean duration of those that are over (``None``: none is),
    ``succeeded`` the share of the visits of ended entities that ended well (0 to 1; ``None``: the machine has no
    successful end, or no entity has ended), ``next`` the state that followed most often (``""``: none did).
    """

    machine: str
    state: str
    visits: int
    mean_s: float | None
    succeeded: float | None
    next: str


class _Visits:
    """Visits of one state: their number, the durations of those that are over, what followed, and how they ended."""

    def __init__(self) -> None:
        self.number = 0
        self.over = 0
        self.lasted_s = 0.0
        self.followed: Counter[str] = Counter()
        self.judged = 0
        self.well = 0


def measure_states(records: Iterable[LifecycleEvent], machines: Iterable[str] = ()) -> list[StateFigures]:
    """Return the figures about every state that was visited, in the order of the machines' tables.

    Args:
        records: records of a journal in their order.
        machines: names of the machines; all of them if it is empty.
    """
    ends = {name: {str(state.value) for state in machine.final} for name, machine in MACHINES.items()}
    wanted = frozenset(machines) or frozenset(MACHINES)
    found: defaultdict[tuple[str, str], _Visits] = defaultdict(_Visits)
    entered: dict[str, float] = {}
    visited: dict[str, tuple[str, list[str]]] = {}
    """Machine and visited states of each entity that has not ended."""
    for record in records:
        machine, entity_id = record.entity_type, record.entity_id
        moves = record.outcome == "born" or (record.outcome == "transition" and record.from_status != record.to_status)
        if machine not in wanted or not moves:
            continue
        if record.outcome == "transition" and entity_id in entered:
            before = found[machine, record.from_status]
            before.over += 1
            before.lasted_s += max(0.0, record.monotonic_s - entered[entity_id])
            before.followed[record.to_status] += 1
        entered[entity_id] = record.monotonic_s
        found[machine, record.to_status].number += 1
        visited.setdefault(entity_id, (machine, []))[1].append(record.to_status)
        if machine in SUCCESSES and record.to_status in ends[machine]:
            _judge(found, *visited.pop(entity_id))
    for machine, states in visited.values():
        if (machine, states[-1]) in _GIVEN_UP:
            _judge(found, machine, states)
    return [
        _figures(machine, str(state.value), found[machine, str(state.value)])
        for machine, table in MACHINES.items()
        for state in table.states
        if (machine, str(state.value)) in found
    ]


def _judge(found: Mapping[tuple[str, str], _Visits], machine: str, states: list[str]) -> None:
    """Count the visits of an entity that has ended."""
    well = SUCCESSES[machine] in states
    for state in states:
        found[machine, state].judged += 1
        found[machine, state].well += well


def _figures(machine: str, state: str, visits: _Visits) -> StateFigures:
    return StateFigures(
        machine=machine,
        state=state,
        visits=visits.number,
        mean_s=round(visits.lasted_s / visits.over, 6) if visits.over else None,
        succeeded=round(visits.well / visits.judged, 4) if visits.judged else None,
        next=visits.followed.most_common(1)[0][0] if visits.followed else "",
    )
