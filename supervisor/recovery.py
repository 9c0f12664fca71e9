"""Closes the books of a supervisor that died: what it left open in the journal is ended there, by the tables.

Its processes are gone already: their wardens saw to that. Sessions stop with the reason, turns fail and are reaped,
agents are dead, tasks that were in progress are orphaned and fail, those that had not begun are cancelled. Nothing is
resumed, nothing is left looking alive, and every step is a record like any other: what ends with a session is caused
by the record that stopped it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from actors.machine import Event
from supervisor.entity import Entity, Lifecycle
from supervisor.kinds import AGENT_KIND, SESSION_KIND, TASK_KIND, TURN_KIND
from supervisor.ledger import Cause
from supervisor.lifecycles.agent import Agent, AgentData
from supervisor.lifecycles.events import (
    AgentExited,
    AgentReaped,
    Ended,
    FatalError,
    TaskClaimed,
    TaskFailed,
    ToolCompleted,
)
from supervisor.lifecycles.session import Session, SessionData
from supervisor.lifecycles.task import Cancelled, Closed, Orphaned, RecoveryFailed, Task, TaskData, Unclaimed
from supervisor.lifecycles.turn import Turn, TurnData
from supervisor.ports import EntityRow, Journal
from supervisor.tree import Tree
from supervisor.vocabulary import AbortReason, Exit, Kind, Rung, ToolOutcome, TransitionReason, Verdict

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
    stops = {one.id: await _stop(tree, journal, one) for one in sessions}
    for one in opened:
        if one.kind is Kind.TURN:
            over = Turn(one.state) in (Turn.COMPLETING, Turn.FAILED)
            cause = await _last_change(tree, journal, one) if over else stops.get(one.parent_id or "", CAUSE)
            await _tell(tree, one, _end_turn(one), cause)
    for one in opened:
        if one.kind is Kind.AGENT:
            await _tell(tree, one, _end_agent(), stops.get(one.parent_id or "", CAUSE))
        elif one.kind is Kind.TASK:
            await _tell(tree, one, _end_task(Task(one.state)), CAUSE)
    for one in reversed(sessions):  # who was born below another ends before that one
        await _tell(tree, one, [Ended(rung=Rung.ABANDON.value, took_s=0.0)], stops[one.id])
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


async def _stop(tree: Tree, journal: Journal, session: Entity) -> Cause:
    """What stopped a session: its supervisor's death, unless something else had before."""
    if Session(session.state) is Session.STOPPED:
        return await _last_change(tree, journal, session)
    return await _tell(tree, session, [FatalError(message=WHY)], CAUSE)


async def _tell(tree: Tree, entity: Entity, events: list[Event], cause: Cause) -> Cause:
    """One event after the other, each caused by the one before; the last one, as a cause."""
    for event in events:
        record = await tree.post(entity.id, event, cause=cause)
        if record.outcome != "stale":
            cause = Cause(record.seq, None, CAUSE.actor)
    return cause


async def _last_change(tree: Tree, journal: Journal, entity: Entity) -> Cause:
    """The record of the last change of its state, as a cause; it may be one that was only made just now."""
    await tree.ledger.flush()
    found, after = None, 0
    while page := await journal.events(entity_id=entity.id, after_seq=after):
        after = page[-1].seq
        changes = [one.seq for one in page if one.outcome == "born" or one.from_status not in ("", one.to_status)]
        found = changes[-1] if changes else found
    return CAUSE if found is None else Cause(found, None, CAUSE.actor)


def _end_turn(turn: Entity) -> list[Event]:
    """A turn that has failed already, perhaps just now with its session, may not have given its calls their result."""
    failed = TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=WHY, abort_reason=AbortReason.UNKNOWN))
    reaped = AgentReaped(degraded=True, note=WHY)
    match Turn(turn.state):
        case Turn.IDLE:
            return [TaskClaimed(), failed, reaped]
        case Turn.COMPLETING | Turn.FAILED:
            return [*(_end_call(call.call_id) for call in turn.data.open), reaped]
        case _:
            return [failed, reaped]


def _end_call(call_id: str) -> ToolCompleted:
    return ToolCompleted(call_id=call_id, outcome=ToolOutcome.UNKNOWN, reason=WHY, over=True)


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
        case Task.ORPHANED:  # an earlier recovery was cut short
            return [RecoveryFailed(reason=WHY)]
        case Task.DONE:  # verified; only the word on it was lost
            return [Closed(reason="nothing to merge: the session worked in place")]
        case _:
            return []
