"""A task of a plan: its edges, who holds it, how often it was tried, and what it waits for (spec 000)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["TaskCopy"]

EDGES: Mapping[tuple[str, str], str] = {
    ("PLANNED", "approved"): "OPEN",
    ("PLANNED", "rejected"): "CANCELLED",
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
    ("WAITING_FOR_SUBTASKS", "subtasks_completed"): "DONE",
    ("WAITING_FOR_SUBTASKS", "subtask_timed_out"): "BLOCKED",
    ("WAITING_FOR_SUBTASKS", "subtask_failed"): "BLOCKED",
    ("WAITING_FOR_SUBTASKS", "cancelled"): "CANCELLED",
    ("FAILED", "retried"): "OPEN",
    ("FAILED", "reopened"): "OPEN",
    ("DONE", "closed"): "CLOSED",
    ("DONE", "verification_rejected"): "FAILED",
    ("DONE", "approval_requested"): "PENDING_APPROVAL",
    ("PENDING_APPROVAL", "approval_granted"): "CLOSED",
    ("PENDING_APPROVAL", "approval_denied"): "FAILED",
    ("PENDING_APPROVAL", "cancelled"): "CANCELLED",
}


class TaskCopy(Copy):
    """One task."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        name: frozenset(state for state, event in EDGES if event == name) for name in {event for _, event in EDGES}
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.claimed_by, self.claims, self.retries = "", 0, 0
        self.max_retries: int = data["max_retries"]
        self.needs_approval: bool = data["needs_approval"]
        self.waiting_for = list(data.get("waiting_for", ()))
        self.unmerged = False

    def knows(self, event: str, meta: Meta) -> bool:
        if event == "retried" and self.retries >= self.max_retries:
            return False
        return super().knows(event, meta) and (event != "approval_requested" or self.needs_approval)

    def take(self, event: str, meta: Meta) -> Effects:
        before, self.state = self.state, EDGES[self.state, event]
        self.over = self.state in ("CLOSED", "CANCELLED")
        self.retries = 0 if event == "reopened" else self.retries + (event == "retried")
        self.unmerged = bool(meta.get("unmerged")) if self.over else self.unmerged
        if event == "claimed":
            self.claimed_by, self.claims = meta["by"], self.claims + 1
        elif self.state == "OPEN" and before != "PLANNED":
            self.claimed_by, self.waiting_for = "", []
        elif self.state == "BLOCKED":
            self.waiting_for = list(meta["on"]) if event == "blocked" else [meta["subtask"]]
        elif event == "split":
            self.waiting_for = list(meta["subtasks"])
        elif event == "subtasks_completed":
            self.waiting_for = []
        return []

    def differs(self, data: Any) -> str:
        here = (self.claimed_by, self.claims, self.retries, self.waiting_for, self.unmerged)
        there = (data.claimed_by, data.claims, data.retries, list(data.waiting_for), data.unmerged)
        return f"{there} of {here}" if here != there else ""
