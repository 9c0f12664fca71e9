"""A workstream: how far a plan is, and never backwards (spec 004)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["WorkstreamCopy"]

EDGES: Mapping[tuple[str, str], str] = {
    ("planned", "all_tasks_created"): "ready",
    ("ready", "first_task_started"): "executing",
    ("executing", "all_tasks_completed"): "validating",
    ("executing", "critical_task_failed"): "failed",
    ("executing", "settled_with_failures"): "failed",
    ("executing", "settled_with_cancellations"): "cancelled",
    ("ready", "tasks_added"): "ready",
    ("executing", "tasks_added"): "executing",
    ("validating", "validation_passed"): "completed",
    ("validating", "validation_failed"): "failed",
    **{(one, "user_cancelled"): "cancelled" for one in ("planned", "ready", "executing")},
}


class WorkstreamCopy(Copy):
    """One workstream."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        name: frozenset(state for state, event in EDGES if event == name) for name in {one for _, one in EDGES}
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.tasks: int = data["tasks"]

    def knows(self, event: str, meta: Meta) -> bool:
        if not super().knows(event, meta):
            return False
        match event:
            case "all_tasks_created":
                return bool(meta["count"] == self.tasks > 0)
            case "all_tasks_completed":
                return bool(meta["completed"] == self.tasks)
            case "settled_with_failures":
                ended = meta["completed"] + meta["failed"] + meta["cancelled"]
                return bool(meta["failed"] > 0 and ended == self.tasks)
            case "settled_with_cancellations":
                return bool(meta["cancelled"] > 0 and meta["completed"] + meta["cancelled"] == self.tasks)
        return True

    def take(self, event: str, meta: Meta) -> Effects:
        self.state = EDGES[self.state, event]
        self.tasks += meta["count"] if event == "tasks_added" else 0
        self.over = self.state in ("completed", "failed", "cancelled")
        return []

    def differs(self, data: Any) -> str:
        return f"{data.tasks} tasks of {self.tasks}" if data.tasks != self.tasks else ""
