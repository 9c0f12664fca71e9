"""A task of a plan: the edges that a plan takes (seed 000), and who holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["TaskCopy"]

EDGES: Mapping[tuple[str, str], str] = {
    ("OPEN", "claimed"): "CLAIMED",
    ("OPEN", "split"): "WAITING_FOR_SUBTASKS",
    ("OPEN", "cancelled"): "CANCELLED",
    ("CLAIMED", "started"): "IN_PROGRESS",
    ("CLAIMED", "unclaimed"): "OPEN",
    ("CLAIMED", "completed"): "DONE",
    ("CLAIMED", "failed"): "FAILED",
    ("CLAIMED", "cancelled"): "CANCELLED",
    ("CLAIMED", "split"): "WAITING_FOR_SUBTASKS",
    ("CLAIMED", "blocked"): "BLOCKED",
    ("IN_PROGRESS", "completed"): "DONE",
    ("IN_PROGRESS", "failed"): "FAILED",
    ("IN_PROGRESS", "blocked"): "BLOCKED",
    ("IN_PROGRESS", "split"): "WAITING_FOR_SUBTASKS",
    ("IN_PROGRESS", "requeued"): "OPEN",
    ("IN_PROGRESS", "cancelled"): "CANCELLED",
    ("IN_PROGRESS", "orphaned"): "ORPHANED",
    ("ORPHANED", "recovered"): "DONE",
    ("ORPHANED", "recovery_failed"): "FAILED",
    ("ORPHANED", "requeued"): "OPEN",
    ("BLOCKED", "unblocked"): "OPEN",
    ("BLOCKED", "cancelled"): "CANCELLED",
    ("FAILED", "retried"): "OPEN",
    ("DONE", "closed"): "CLOSED",
    ("DONE", "verification_rejected"): "FAILED",
}


class TaskCopy(Copy):
    """One task."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        name: frozenset(state for state, event in EDGES if event == name) for name in {event for _, event in EDGES}
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.claimed_by, self.claims = "", 0
        self.waiting_for = list(data.get("waiting_for", ()))

    def take(self, event: str, meta: Meta) -> Effects:
        self.state = EDGES[self.state, event]
        self.over = self.state in ("CLOSED", "CANCELLED")
        if event == "claimed":
            self.claimed_by, self.claims = meta["by"], self.claims + 1
        elif self.state == "OPEN":
            self.claimed_by, self.waiting_for = "", []
        return []

    def differs(self, data: Any) -> str:
        here = (self.claimed_by, self.claims, self.waiting_for)
        there = (data.claimed_by, data.claims, list(data.waiting_for))
        return f"{there} of {here}" if here != there else ""
