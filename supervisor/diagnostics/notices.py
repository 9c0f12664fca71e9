"""Notices: what somebody should be told of, from the records. Pure.

A notice is made from one record, so that the same record always gives the same notice, with the same id: whoever is
told twice, because a supervisor was killed after it had told and before it had noted that, can see that by the id.
"""

from __future__ import annotations

from typing import Final

import msgspec

from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.lifecycles.workstream import WORKSTREAM
from supervisor.ports.notices import NoticeKind

BUDGET_NEAR: Final = "BudgetNear"
"""Name of the fact that most of a budget is used."""

_OVER: Final = frozenset(one.value for one in WORKSTREAM.terminal)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a person. *entity* is the id of what the notice is about, *text* a sentence, *command* the command
    that acts on the notice (``""``: there is nothing to do), *state* the new state of the entity, if it has changed,
    and *at* the Unix time of the record. A repeated notice has the same *id*."""

    id: str
    kind: NoticeKind
    entity: str
    text: str
    at: float
    command: str = ""
    state: str = ""


def notice_of(record: LifecycleEvent, options: str = "") -> Notice | None:
    """Return the notice about *record*; ``None`` if nobody needs to be told. *options* are added to the command."""
    if record.outcome not in ("transition", "born", "fact"):  # refused, or too late
        return None
    entity, fact, state = record.entity_id, record.metadata, record.to_status or ""
    is_new = record.outcome != "fact" and record.from_status != record.to_status
    match record.entity_type:
        case Kind.TURN.value if record.event == "PermissionRequested" and fact.get("asked"):
            entity, kind = f"{entity}:p{fact.get('number')}", NoticeKind.PERMISSION
            text, command = f"waits for a permission: {fact.get('title')}", f"supervisor answer {entity} allow"
        case Kind.TASK.value if is_new and state in (Task.PLANNED.value, Task.PENDING_APPROVAL.value):
            kind, what = NoticeKind.APPROVAL, "before it begins" if state == Task.PLANNED.value else "of its result"
            text, command = f"waits for an approval {what}", f"supervisor approve {entity}"
        case Kind.WORKSTREAM.value if is_new and state in _OVER:
            kind, command = NoticeKind.RUN, ""
            text = f"has ended: {state}{f' ({record.reason})' if record.reason else ''}"
        case Kind.SESSION.value if record.event in (BUDGET_NEAR, "BudgetSpent"):
            kind, text, command = NoticeKind.BUDGET, record.reason, ""
        case _:
            return None
    return Notice(
        id=f"{kind.value}-{record.seq}",
        kind=kind,
        entity=entity,
        text=f"{entity} {text}" if kind is not NoticeKind.BUDGET else f"{entity}: {text}",
        at=record.timestamp,
        command=f"{command}{options}" if command else "",
        state=state if is_new else "",
    )
