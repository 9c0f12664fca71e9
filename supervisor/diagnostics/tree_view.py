"""Current state from the journal's rows: the tree of entities, and the list of ``supervisor ps``. Pure.

Rows come in, values for a renderer come out; *now* is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from supervisor.diagnostics.task_status import TaskStatus, data_of
from supervisor.diagnostics.visual_state import VisualState, visual_state
from supervisor.lifecycles.types import Kind
from supervisor.policies.budgets import Amounts
from supervisor.ports import EntityRow

NOTHING: Final[Mapping[str, Amounts]] = {}
STAYING: Final = (Kind.SESSION, Kind.TASK, Kind.WORKSTREAM)
"""Kinds of entities that are shown after they have ended, too: in the current tree, and in the tree at an earlier
record."""


# --------------------------------------------------------------------------------------------------------- tree
class Node(msgspec.Struct, frozen=True, kw_only=True):
    """An entity, or an open tool call, with everything below it. ``used`` is the reported usage of the node and all
    below it."""

    id: str
    kind: str
    state: str
    note: str = ""
    ended: bool = False
    used: dict[str, Any] | None = None
    children: tuple[Node, ...] = ()


def tree(rows: Iterable[EntityRow], used: Mapping[str, Amounts] = NOTHING) -> tuple[Node, ...]:
    """Return the root nodes in the order of birth. An entity whose parent is not among *rows* is a root. *used* is
    usage by entity id."""
    ordered = sorted(rows, key=lambda row: row.born_seq)
    task_status = TaskStatus(ordered)
    known = {row.id for row in ordered}
    below: dict[str, list[EntityRow]] = {}
    for row in ordered:
        parent = row.parent_id if row.parent_id in known and row.parent_id != row.id else ""
        below.setdefault(parent or "", []).append(row)
    made: dict[str, Node] = {}
    for row in reversed(_parents_first(below)):  # iterative: a chain of delegations may be thousands deep
        made[row.id] = _node(row, tuple(made[one.id] for one in below.get(row.id, ())), task_status, used.get(row.id))
    return tuple(made[row.id] for row in below.get("", ()))


def _parents_first(below: Mapping[str, list[EntityRow]]) -> list[EntityRow]:
    order = list(below.get("", ()))
    for row in order:
        order += below.get(row.id, ())
    return order


def _node(row: EntityRow, children: tuple[Node, ...], task_status: TaskStatus, used: Amounts | None) -> Node:
    data = data_of(row)
    calls = () if row.ended else _call_nodes(row, data.get("open") or ())
    permissions = () if row.ended else tuple(_permission_node(row, request) for request in _waiting_permissions(data))
    return Node(
        id=row.id,
        kind=row.kind,
        state=row.state,
        note=_note(row, data, task_status),
        ended=row.ended,
        used=used.as_record if used is not None else None,
        children=(*calls, *permissions, *children),
    )


def _call_nodes(row: EntityRow, calls: Sequence[dict[str, Any]]) -> tuple[Node, ...]:
    """Return the open calls of a turn as nodes; a call nested in another open call is a child of that call."""
    numbers = {call["number"] for call in calls}
    below: dict[int, list[Node]] = {}
    for call in reversed(calls):  # a call is younger than the one that it is made within
        within = call.get("within") or 0
        inner = tuple(reversed(below.pop(call["number"], ())))
        node = Node(
            id=f"{row.id}:c{call['number']}", kind="tool", state="open", note=str(call.get("title", "")), children=inner
        )
        below.setdefault(within if within in numbers and within < call["number"] else 0, []).append(node)
    return tuple(reversed(below.get(0, ())))


def _waiting_permissions(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the permission requests of a turn that wait for a person."""
    return [request for request in data.get("asking") or () if request.get("asked")]


def _permission_node(row: EntityRow, request: dict[str, Any]) -> Node:
    return Node(
        id=f"{row.id}:p{request['number']}", kind="permission", state="waits for a human", note=request["title"]
    )


def tool_calls(row: EntityRow) -> tuple[str, ...]:
    """Return the ids of all calls that a turn has made so far, ended ones too."""
    return tuple(f"{row.id}:c{number}" for number in range(1, int(data_of(row).get("calls") or 0) + 1))


def _note(row: EntityRow, data: Mapping[str, Any], task_status: TaskStatus) -> str:
    """Return a text for people about an entity beside its state."""
    match row.kind:
        case Kind.SESSION:
            errors = data.get("total_errors") or 0
            counted = f"{errors} error{'' if errors == 1 else 's'}" if errors else ""
            parts = [data.get("outcome"), data.get("last_error"), counted]
        case Kind.AGENT:
            pid, status = data.get("pid"), data.get("status")
            parts = [f"pid {pid}" if pid else "", "" if status is None else f"exit status {status}"]
        case Kind.TURN:
            verdict = data.get("verdict") or {}
            parts = ["waits for a human" if _waiting_permissions(data) else "", verdict.get("error")]
        case _:
            parts = [task_status.note(row)]
    return ", ".join(str(part) for part in parts if part)


# ----------------------------------------------------------------------------------------------------------- ps
class EntityLine(msgspec.Struct, frozen=True, kw_only=True):
    """Line of ``supervisor ps``. ``age_s`` is the time in seconds from birth to *now*, or to the entity's end."""

    id: str
    kind: str
    state: str
    visual: str | None
    age_s: float
    parent: str | None
    ended: bool
    pid: int | None = None
    note: str = ""


def ps(
    rows: Iterable[EntityRow], *, now: float, active_at: Mapping[str, float] | None = None
) -> tuple[EntityLine, ...]:
    """Return one line per row, in the order of birth. *active_at* is the time at which each session last produced
    output."""
    ordered = sorted(rows, key=lambda row: row.born_seq)
    active = dict(active_at or {})
    for row in ordered:  # whatever happens below a session is activity of it
        session = row.id if row.kind == Kind.SESSION else row.parent_id
        if session is not None:
            active_at_s = (
                now
                if row.kind == Kind.TURN and not row.ended and _waiting_permissions(data_of(row))
                else row.changed_at
            )
            active[session] = max(active.get(session, 0.0), active_at_s)
    task_status = TaskStatus(ordered)
    return tuple(_entity_line(row, now, active, task_status) for row in ordered)


def _entity_line(row: EntityRow, now: float, active: Mapping[str, float], task_status: TaskStatus) -> EntityLine:
    data = data_of(row)
    visual = _visual(row, data, now, active) if row.kind == Kind.AGENT else None
    return EntityLine(
        id=row.id,
        kind=row.kind,
        state=row.state,
        visual=visual.value if visual else None,
        age_s=max(0.0, (row.changed_at if row.ended else now) - row.born_at),
        parent=row.parent_id,
        ended=row.ended,
        pid=data.get("pid"),
        note=_note(row, data, task_status),
    )


def _visual(row: EntityRow, data: Mapping[str, Any], now: float, active: Mapping[str, float]) -> VisualState:
    last_active_at = active.get(row.parent_id or "")
    return visual_state(
        row.state, spawned_at=row.born_at, now=now, last_heartbeat_at=last_active_at, pid=data.get("pid")
    )
