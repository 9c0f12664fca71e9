"""What the journal tells about now and about why: chains of causes, the tree of sessions, the list of what there is.

Pure: records and rows come in, values for a renderer go out; *now* is an argument. A chain is never invented: where
the journal does not hold a cause, the explanation says which one is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from supervisor.projection import VisualState, visual_state
from supervisor.vocabulary import Kind, LifecycleEvent

__all__ = ["Explanation", "Node", "Row", "Seen", "ps", "tool_calls", "tree", "why"]

ABORT_RECORD: Final = "AbortRecord"
_CALL: Final = re.compile(r"(?P<turn>.+:t\d+):c(?P<number>\d+)")


class Row(Protocol):
    """An entity as the journal, or a live supervisor, knows it; ``data`` is JSON, times are Unix times."""

    @property
    def kind(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def state(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def ended(self) -> bool: ...
    @property
    def born_seq(self) -> int: ...
    @property
    def born_at(self) -> float: ...
    @property
    def changed_at(self) -> float: ...


# ---------------------------------------------------------------------------------------------------------- why
class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an entity is as it is: the records from the root event to the last one, oldest first.

    ``missing`` is the number of a cause that the journal does not hold, or ``None``: then the first record is a root.
    """

    entity_id: str
    records: tuple[LifecycleEvent, ...]
    missing: int | None = None


def why(events: Mapping[int, LifecycleEvent] | Iterable[LifecycleEvent], entity_id: str) -> Explanation:
    """Explain the last change of *entity_id*, which may be a tool call (``lead:t1:c2``).

    Raises:
        LookupError: no record is about it.
    """
    by_seq = dict(events) if isinstance(events, Mapping) else {one.seq: one for one in events}
    chain, missing = _chain(by_seq, _last_change(by_seq, entity_id))
    return Explanation(entity_id=entity_id, records=_with_aborts(by_seq, chain), missing=missing)


def _chain(by_seq: Mapping[int, LifecycleEvent], last: LifecycleEvent) -> tuple[list[LifecycleEvent], int | None]:
    """From *last* to its root. A cause is older than what it caused, so this ends."""
    chain = [last]
    while (cause_id := chain[-1].cause_id) is not None:
        cause = by_seq.get(cause_id)
        if cause is None or cause.seq >= chain[-1].seq:
            return chain, cause_id
        chain.append(cause)
    return chain, None


def _with_aborts(by_seq: Mapping[int, LifecycleEvent], chain: list[LifecycleEvent]) -> tuple[LifecycleEvent, ...]:
    """The chain and the records of the aborts on it, with those that they came over a policy edge from."""
    aborts = {one.metadata.get("id", one.abort_id): one for one in by_seq.values() if one.event == ABORT_RECORD}
    found = {one.seq: one for one in chain}
    pending = [one.abort_id for one in chain if one.abort_id]
    while pending:
        record = aborts.pop(pending.pop(), None)
        if record is not None:
            found[record.seq] = record
            parent = record.metadata.get("parent_record")
            pending += [parent] if isinstance(parent, str) else []
    return tuple(found[seq] for seq in sorted(found))


def _last_change(by_seq: Mapping[int, LifecycleEvent], entity_id: str) -> LifecycleEvent:
    own = _of(by_seq, entity_id)
    if own:
        return ([one for one in own if _changes_state(one)] or own)[-1]
    call = _CALL.fullmatch(entity_id)
    found = _last_of_call(_of(by_seq, call["turn"]), int(call["number"])) if call else None
    if found is None:
        raise LookupError(f"the journal has no record of {entity_id!r}; `supervisor tree --all` shows the ids")
    return found


def _changes_state(record: LifecycleEvent) -> bool:
    return record.outcome == "born" or (record.outcome == "transition" and record.from_status != record.to_status)


def _of(by_seq: Mapping[int, LifecycleEvent], entity_id: str) -> list[LifecycleEvent]:
    return [by_seq[seq] for seq in sorted(by_seq) if by_seq[seq].entity_id == entity_id]


def _last_of_call(turn: list[LifecycleEvent], number: int) -> LifecycleEvent | None:
    """The record that ended the call: its result, or the failure of its turn; its start while it is open."""
    started = next((one for one in turn if _is_call(one, "tool_started", "number", number)), None)
    if started is None:
        return None
    later = [one for one in turn if one.entity_seq > started.entity_seq]
    call_id = started.metadata.get("call_id")
    return next((one for one in later if _ends(one, call_id)), started)


def _ends(record: LifecycleEvent, call_id: object) -> bool:
    return _is_call(record, "tool_completed", "call_id", call_id) or (
        record.event == "task_failed" and record.outcome == "transition"
    )


def _is_call(record: LifecycleEvent, event: str, field: str, value: object) -> bool:
    return record.event == event and record.outcome == "transition" and record.metadata.get(field) == value


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
    known = {row.id for row in ordered}
    below: dict[str, list[Row]] = {}
    for row in ordered:
        parent = row.parent_id if row.parent_id in known and row.parent_id != row.id else ""
        below.setdefault(parent or "", []).append(row)
    made: dict[str, Node] = {}
    for row in reversed(_parents_first(below)):  # iterative: a chain of delegations may be thousands deep
        made[row.id] = _node(row, tuple(made[one.id] for one in below.get(row.id, ())))
    return tuple(made[row.id] for row in below.get("", ()))


def _parents_first(below: Mapping[str, list[Row]]) -> list[Row]:
    order = list(below.get("", ()))
    for row in order:
        order += below.get(row.id, ())
    return order


def _node(row: Row, children: tuple[Node, ...]) -> Node:
    data = _data(row)
    calls = () if row.ended else tuple(_call_node(row, call) for call in data.get("open") or ())
    return Node(
        id=row.id, kind=row.kind, state=row.state, note=_note(row, data), ended=row.ended, children=(*calls, *children)
    )


def _call_node(row: Row, call: dict[str, Any]) -> Node:
    return Node(id=f"{row.id}:c{call['number']}", kind="tool", state="open", note=str(call.get("title", "")))


def tool_calls(row: Row) -> tuple[str, ...]:
    """The ids of the calls that a turn has made so far."""
    return tuple(f"{row.id}:c{number}" for number in range(1, int(_data(row).get("calls") or 0) + 1))


def _note(row: Row, data: Mapping[str, Any]) -> str:
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
            parts = []
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
    return tuple(_seen(row, now, said) for row in ordered)


def _seen(row: Row, now: float, said: Mapping[str, float]) -> Seen:
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
        note=_note(row, data),
    )


def _visual(row: Row, data: Mapping[str, Any], now: float, said: Mapping[str, float]) -> VisualState:
    heard = said.get(row.parent_id or "")
    return visual_state(row.state, spawned_at=row.born_at, now=now, last_heartbeat_at=heard, pid=data.get("pid"))
