"""Log of a run for ``-v``: a readable line for each transition, on standard error.

``-v`` logs the transitions of the plan, its tasks, sessions, turns and tool calls at the level INFO; ``-vv`` also logs
all other records (agents, task runs, jobs, workers, and facts that change no state) at the level DEBUG.
"""

from __future__ import annotations

import logging
from typing import Final

from supervisor.diagnostics.tool_calls import ToolCallIndex
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.redaction import printable

_MAIN: Final = (Kind.WORKSTREAM, Kind.TASK, Kind.SESSION, Kind.TURN)
_CALLS: Final = {"tool_started": "started", "tool_completed": "ended"}
"""Events of a turn that begin and end a tool call, and their names in the log."""
_log = logging.getLogger("supervisor")


class RecordLog:
    """Writer of the log lines of a run; records must come in their order."""

    def __init__(self) -> None:
        self._calls = ToolCallIndex()

    def take(self, event: LifecycleEvent) -> None:
        call = self._calls.label(event)
        moved = event.outcome in ("transition", "born") and event.from_status != event.to_status
        is_main = event.event in _CALLS if call else moved and event.entity_type in _MAIN
        level = logging.INFO if is_main else logging.DEBUG
        if _log.isEnabledFor(level):
            line = _line(event, call)
            fields = {"event": line, "kind": event.entity_type, "entity": event.entity_id, "seq": event.seq}
            _log.log(level, "%s", line, extra={"fields": fields})


def _line(event: LifecycleEvent, call: str) -> str:
    """Return ``session fix: Spawning -> Running, by claude`` for a record, or ``tool call fix:t1:c1 "make test": ended,
    failed, by claude`` if the record is about a call."""
    kind = event.entity_type
    named = event.entity_id if event.entity_id.startswith(f"{kind}:") else f"{kind} {event.entity_id}"
    if call:
        what = _CALLS.get(event.event, event.event)
        parts = [f"tool call {event.entity_id}:{call}: {what}", str(event.metadata.get("outcome") or "")]
    elif event.from_status == event.to_status or event.outcome not in ("transition", "born"):
        parts = [f"{named}: {event.event}", f"in {event.to_status}" if event.to_status else ""]
    else:
        parts = [f"{named}: {event.from_status or 'new'} -> {event.to_status}"]
    parts += [event.outcome if event.outcome in ("stale", "refused") else "", event.actor and f"by {event.actor}"]
    line = ", ".join(part for part in parts if part)
    return printable(f"{line}: {event.reason}" if event.reason else line)
