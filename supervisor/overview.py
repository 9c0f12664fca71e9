"""What the journal tells about now: the tree of sessions, and the list of what there is.

Pure: rows come in, values for a renderer go out; *now* is an argument, and nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from supervisor.projection import VisualState, visual_state
from supervisor.standing import Standing, WorkRow
from supervisor.vocabulary import Kind

__all__ = ["Node", "Row", "Seen", "ps", "tool_calls", "tree"]


class Row(WorkRow, Protocol):
    """The same with its times (Unix)."""

    @property
    def born_at(self) -> float: ...
    @property
    def changed_at(self) -> float: ...


# --------------------------------------------------------------------------------------------------------- tree
class Node(msgspec.Struct, frozen=True, kw_only=True):
    """An entity, or an open tool call, with what is below it."""

    id: str
    kind: str
    state: str
    note: str = ""
    ended: bool = False
    children: tuple[Node, ...] = ()


def tree(rows: Iterable[Row]) -> tuple[Node, ...]:
    """The roots in the order of birth. An entity whose parent is not among *rows* is a root."""
    ordered = sorted(rows, key=lambda row: row.born_seq)
    standing = Standing(ordered)
    known = {row.id for row in ordered}
    below: dict[str, list[Row]] = {}
    for row in ordered:
        parent = row.parent_id if row.parent_id in known and row.parent_id != row.id else ""
        below.setdefault(parent or "", []).append(row)
    made: dict[str, Node] = {}
    for row in reversed(_parents_first(below)):  # iterative: a chain of delegations may be thousands deep
        made[row.id] = _node(row, tuple(made[one.id] for one in below.get(row.id, ())), standing)
    return tuple(made[row.id] for row in below.get("", ()))


def _parents_first(below: Mapping[str, list[Row]]) -> list[Row]:
    order = list(below.get("", ()))
    for row in order:
        order += below.get(row.id, ())
    return order


def _node(row: Row, children: tuple[Node, ...], standing: Standing) -> Node:
    data = _data(row)
    calls = () if row.ended else tuple(_call_node(row, call) for call in data.get("open") or ())
    return Node(
        id=row.id,
        kind=row.kind,
        state=row.state,
        note=_note(row, data, standing),
        ended=row.ended,
        children=(*calls, *children),
    )


def _call_node(row: Row, call: dict[str, Any]) -> Node:
    return Node(id=f"{row.id}:c{call['number']}", kind="tool", state="open", note=str(call.get("title", "")))


def tool_calls(row: Row) -> tuple[str, ...]:
    """The ids of the calls that a turn has made so far."""
    return tuple(f"{row.id}:c{number}" for number in range(1, int(_data(row).get("calls") or 0) + 1))


def _note(row: Row, data: Mapping[str, Any], standing: Standing) -> str:
    """What a person wants to know beside the state."""
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
            parts = [verdict.get("error")]
        case _:
            parts = [standing.note(row)]
    return ", ".join(str(part) for part in parts if part)


def _data(row: Row) -> dict[str, Any]:
    data = msgspec.json.decode(row.data) if row.data else {}
    return data if isinstance(data, dict) else {}


# ----------------------------------------------------------------------------------------------------------- ps
class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``supervisor ps``. ``age_s`` counts from its birth to *now*, or to its end."""

    id: str
    kind: str
    state: str
    visual: str | None
    age_s: float
    parent: str | None
    ended: bool
    pid: int | None = None
    note: str = ""


def ps(rows: Iterable[Row], *, now: float, active_at: Mapping[str, float] | None = None) -> tuple[Seen, ...]:
    """One line for each row, in the order of birth. *active_at* says when each session last said something."""
    ordered = sorted(rows, key=lambda row: row.born_seq)
    said = dict(active_at or {})
    for row in ordered:  # whatever happens below a session is activity of it
        session = row.id if row.kind == Kind.SESSION else row.parent_id
        if session is not None:
            said[session] = max(said.get(session, 0.0), row.changed_at)
    standing = Standing(ordered)
    return tuple(_seen(row, now, said, standing) for row in ordered)


def _seen(row: Row, now: float, said: Mapping[str, float], standing: Standing) -> Seen:
    data = _data(row)
    visual = _visual(row, data, now, said) if row.kind == Kind.AGENT else None
    return Seen(
        id=row.id,
        kind=row.kind,
        state=row.state,
        visual=visual.value if visual else None,
        age_s=max(0.0, (row.changed_at if row.ended else now) - row.born_at),
        parent=row.parent_id,
        ended=row.ended,
        pid=data.get("pid"),
        note=_note(row, data, standing),
    )


def _visual(row: Row, data: Mapping[str, Any], now: float, said: Mapping[str, float]) -> VisualState:
    heard = said.get(row.parent_id or "")
    return visual_state(row.state, spawned_at=row.born_at, now=now, last_heartbeat_at=heard, pid=data.get("pid"))
