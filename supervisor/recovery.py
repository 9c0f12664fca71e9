"""Closes the books of a supervisor that died: what it left open in the journal is ended there, by the tables.

Its processes are gone already: their wardens saw to that. Sessions stop with the reason, turns fail and are reaped,
agents are dead, tasks that were in progress are orphaned and fail, those that had not begun are cancelled. Nothing is
resumed, nothing is left looking alive, and every step is a record like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from actors.machine import Event
from supervisor.entity import Entity, Lifecycle
from supervisor.kinds import AGENT_KIND, SESSION_KIND, TASK_KIND, TURN_KIND
from supervisor.ledger import Cause
from supervisor.lifecycles.agent import Agent, AgentData
from supervisor.lifecycles.events import AgentExited, AgentReaped, Ended, FatalError, TaskClaimed, TaskFailed
from supervisor.lifecycles.session import Session, SessionData
from supervisor.lifecycles.task import Cancelled, Orphaned, RecoveryFailed, Task, TaskData, Unclaimed
from supervisor.lifecycles.turn import Turn, TurnData
from supervisor.ports import EntityRow, Journal
from supervisor.tree import Tree
from supervisor.vocabulary import AbortReason, Exit, Kind, Rung, TransitionReason, Verdict

__all__ = ["close_books"]

WHY = "its supervisor ended without closing it"
CAUSE = Cause(actor="recovery")


class _Kind(NamedTuple):
    lifecycle: Lifecycle
    states: Any
    data: Any


KINDS = {
    Kind.SESSION: _Kind(SESSION_KIND, Session, SessionData),
    Kind.TURN: _Kind(TURN_KIND, Turn, TurnData),
    Kind.AGENT: _Kind(AGENT_KIND, Agent, AgentData),
    Kind.TASK: _Kind(TASK_KIND, Task, TaskData),
}


async def close_books(tree: Tree, journal: Journal) -> list[str]:
    """End what an earlier supervisor left open; the ids of the sessions among it."""
    rows = [row for row in await journal.entities(live_only=True) if row.kind in KINDS]
    opened = [_revive(tree, row) for row in rows]
    sessions = [one for one in opened if one.kind is Kind.SESSION]
    # Sessions stop first, so that what their turns still report is absorbed and starts nothing.
    await _tell(tree, sessions, lambda one: _stop_session(Session(one.state)))
    await _tell(tree, (one for one in opened if one.kind is Kind.TURN), lambda one: _end_turn(Turn(one.state)))
    await _tell(tree, (one for one in opened if one.kind is Kind.AGENT), lambda one: _end_agent())
    await _tell(tree, (one for one in opened if one.kind is Kind.TASK), lambda one: _end_task(Task(one.state)))
    await _tell(tree, sessions, lambda one: [Ended(rung=Rung.ABANDON.value, took_s=0.0)])
    await tree.ledger.flush()
    for one in opened:
        tree.bury(one.id)
    await journal.settle([effect_id for effect_id, _, _ in await journal.owed()])
    return [one.id for one in sessions]


def _revive(tree: Tree, row: EntityRow) -> Entity:
    kind = KINDS[Kind(row.kind)]
    data = msgspec.json.decode(row.data, type=kind.data)
    entity = Entity(kind.lifecycle, row.id, row.parent_id, kind.states(row.state), data, tree.ledger)
    entity.entity_seq = row.entity_seq
    tree.adopt(entity)
    return entity


async def _tell(tree: Tree, entities: Iterable[Entity], events_for: Callable[[Entity], list[Event]]) -> None:
    for entity in entities:
        for event in events_for(entity):
            await tree.post(entity.id, event, cause=CAUSE)


def _stop_session(state: Session) -> list[Event]:
    return [] if state is Session.STOPPED else [FatalError(message=WHY)]


def _end_turn(state: Turn) -> list[Event]:
    failed = TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=WHY, abort_reason=AbortReason.UNKNOWN))
    reaped = AgentReaped(degraded=True, note=WHY)
    match state:
        case Turn.IDLE:
            return [TaskClaimed(), failed, reaped]
        case Turn.COMPLETING | Turn.FAILED:
            return [reaped]
        case _:
            return [failed, reaped]


def _end_agent() -> list[Event]:
    return [AgentExited(reason=WHY, ended_by="kill", abort_reason=AbortReason.UNKNOWN)]


def _end_task(state: Task) -> list[Event]:
    match state:
        case Task.OPEN:
            return [Cancelled(reason=WHY)]
        case Task.CLAIMED:
            recovered = TransitionReason.ORPHAN_RECOVERED
            return [Unclaimed(reason=WHY, transition_reason=recovered), Cancelled(reason=WHY)]
        case Task.IN_PROGRESS:
            return [Orphaned(reason=WHY), RecoveryFailed(reason=WHY)]
        case _:
            return []
