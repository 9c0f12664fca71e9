"""An agent: starting, working, idle, dead (spec 000)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["AgentCopy"]

STATUSES: Mapping[int | None, str] = {
    124: "timeout",
    126: "permission_denied",
    130: "user_interrupt",
    -2: "user_interrupt",
    143: "shutdown_signal",
    -15: "shutdown_signal",
    137: "oom",
    -9: "oom",
}
"""What an exit status means by itself."""


class AgentCopy(Copy):
    """One agent."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        "process_started": frozenset({"starting"}),
        "agent_ready": frozenset({"starting"}),
        "agent_named": frozenset({"working"}),
        "task_finished": frozenset({"working"}),
        "task_assigned": frozenset({"idle"}),
        "agent_exited": frozenset({"starting", "working", "idle"}),
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.pid: int | None = None
        self.resume_id: str | None = None
        self.status: int | None = None
        self.ended_by = ""
        self.mistaken = ""

    def on_process_started(self, meta: Meta) -> Effects:
        self.pid = meta["pid"]
        return []

    def on_agent_ready(self, meta: Meta) -> Effects:
        self.state, self.resume_id = "working", meta["resume_id"]
        return []

    def on_agent_named(self, meta: Meta) -> Effects:
        self.resume_id = meta["resume_id"]
        return []

    def on_task_finished(self, meta: Meta) -> Effects:
        self.state = "idle"
        return []

    def on_task_assigned(self, meta: Meta) -> Effects:
        self.state = "working"
        return []

    def on_agent_exited(self, meta: Meta) -> Effects:
        self.state, self.status, self.ended_by = "dead", meta["status"], meta["ended_by"]
        self.over = True
        self.mistaken = _mistaken(meta)
        return [("Bury",)]

    def differs(self, data: Any) -> str:
        here = (self.pid, self.resume_id, self.status, self.ended_by)
        there = (data.pid, data.resume_id, data.status, data.ended_by)
        return f"{there} of {here}" if here != there else self.mistaken


def _mistaken(meta: Meta) -> str:
    """Whom nobody has ended is judged by its exit status alone; whom we have ended, never by that."""
    status, named = meta["status"], meta["abort_reason"]
    if meta["ended_by"] != "exit":
        return "no reason of whom we have ended" if named is None and status is not None else ""
    if meta["reason"] or meta["abort_id"] is not None:
        return ""
    wanted = None if status == 0 else STATUSES.get(status, "unknown")
    return f"{named} of the exit status {status}, not {wanted}" if named != wanted else ""
