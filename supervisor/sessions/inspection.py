"""Inspection of one live entity, even if the entity is stuck: state, mailbox, asynchronous tasks and their stacks; and
the list of the processes of sessions.

:func:`inspect` sends, awaits and changes nothing. No result contains a prompt or output of an agent.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import msgspec

from actors import Inspection, NoSuchActor
from supervisor.diagnostics.visual_state import Inspected, TaskStack
from supervisor.lifecycles.turn import permission_of, split_permission
from supervisor.lifecycles.types import Kind, NoSuchEntity
from supervisor.policies.call_processes import LiveProcess
from supervisor.runtime.entity import EntityActor
from supervisor.sessions.registry import SessionRegistry

LIST_S: Final = 5.0
"""Seconds that the shim of a program has to list its processes."""


class LiveProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of sessions at one moment. ``unlisted`` are the sessions whose processes could not be listed."""

    processes: tuple[LiveProcess, ...]
    unlisted: tuple[str, ...] = ()


async def list_processes(registry: SessionRegistry, session_id: str | None) -> LiveProcesses:
    """Return the processes of every live session, or of the session *session_id* and the sessions below it.

    Raises:
        NoSuchEntity: no live session has that id.
    """
    sessions = list(registry.sessions) if session_id is None else [registry.session(session_id).session_id]
    if session_id is not None:
        for one in sessions:  # which grows meanwhile
            sessions += [child.session_id for child in registry.children_of(one)]
    found: dict[str, tuple[LiveProcess, ...] | None] = {}

    async def look(one: str) -> None:
        session = registry.sessions.get(one)
        if session is None or session.connection is None:
            return
        found[one] = None
        with anyio.move_on_after(LIST_S):
            found[one] = await session.connection.list_processes()

    async with anyio.create_task_group() as group:
        for one in sessions:
            group.start_soon(look, one)
    return LiveProcesses(
        processes=tuple(process for one in sessions for process in found.get(one) or ()),
        unlisted=tuple(one for one in sessions if one in found and found[one] is None),
    )


def inspect(registry: SessionRegistry, entity_id: str) -> Inspected:
    """Return the state, mailbox and asynchronous tasks of a live session, turn, agent, task, or open tool call. Run and
    job of a task are shown with the task's actor.

    Raises:
        NoSuchEntity: no live entity has that id.
    """
    entity = registry.entities.get(entity_id)
    actor_id = entity_id
    asking, number = split_permission(entity_id)
    if number is not None and (turn := registry.entities.get(asking)) is not None:
        request = permission_of(turn.data, number)
        if request is not None and request.asked:
            return Inspected(
                id=entity_id, kind="permission", state="waits for a human", turn=asking, reason=request.title
            )
    if entity is not None and entity.kind in (Kind.RUN, Kind.JOB):
        actor_id = entity.parent_id or ""
    try:
        seen = _actor_facts(registry.system.inspect(actor_id))
    except NoSuchActor:
        if entity is None or isinstance(entity, EntityActor):
            raise NoSuchEntity(entity_id) from None
        seen = {}  # no plan has continued the task since its supervisor ended
    return Inspected(id=entity_id, **seen, **_entity_facts(registry, entity_id))


def _actor_facts(seen: Inspection) -> dict[str, Any]:
    return {
        "phase": seen.phase,
        "reason": seen.reason,
        "cancelled_for": tuple(seen.scope_causes),
        "children": tuple(seen.children),
        "tasks": tuple(TaskStack(name=one.name, stack=tuple(one.stack)) for one in seen.tasks),
        "queued": dict(seen.stats.queued),
        "handled": seen.stats.handled,
        "late_replies": seen.stats.late_replies,
        "timers": seen.stats.timers,
    }


def _entity_facts(registry: SessionRegistry, entity_id: str) -> dict[str, Any]:
    entity = registry.entities.get(entity_id)
    if entity is None and registry.is_open(entity_id):
        return {"kind": "tool", "state": "open"}
    if entity is None:
        raise NoSuchEntity(entity_id)
    data, session = entity.data, registry.sessions.get(entity_id)
    connection = session.connection if session is not None else None
    agent_id = connection.agent_id if connection is not None and not connection.ended.is_set() else None
    agent = registry.entities.get(agent_id) if agent_id is not None else None
    return {
        "kind": entity.kind.value,
        "state": str(entity.state.value),
        "agent": agent_id,
        "pid": getattr(agent.data if agent is not None else data, "pid", None),
        "turn": connection.turn_id if connection is not None else None,
        "open_calls": tuple(f"{entity_id}:c{call.number}" for call in getattr(data, "open", ())),
        "checkpoint": session.workspace_spec.starts_at if session is not None else getattr(data, "saved_as", ""),
        "held_by": getattr(data, "held_by", None),
        "ending": getattr(data, "ending", None),
        "permissions": tuple(f"{entity_id}:p{one.number}" for one in getattr(data, "asking", ()) if one.asked),
    }
