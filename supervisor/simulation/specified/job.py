"""A job: where the scheduler has it, who works on it, and how often it was given back (spec 004)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["JobCopy"]

EDGES: Mapping[tuple[str, str], str] = {
    ("pending", "scheduler_assigned"): "queued",
    ("queued", "worker_started"): "running",
    ("running", "execution_completed"): "validating",
    ("running", "worker_lost"): "retrying",
    ("retrying", "retry_delay_elapsed"): "queued",
    ("validating", "validation_passed"): "completed",
    ("validating", "validation_failed"): "failed",
    **{(one, "user_cancelled"): "cancelled" for one in ("pending", "queued", "running", "validating", "retrying")},
}
"""All but the failures, which the count decides about."""
TIMES = ("created_at", "started_at", "attempt_started_at", "completed_at")
"""What it says of itself in the journal's seconds."""


class JobCopy(Copy):
    """One job."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        "execution_failed": frozenset({"running"}),
        **{name: frozenset(state for state, event in EDGES if event == name) for name in {one for _, one in EDGES}},
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.needs = frozenset(data["capabilities"])
        self.max_retries: int = data["max_retries"]
        self.retry_count: int = data["retry_count"]
        self.worker_id: str | None = data["worker_id"]
        self.times_s: list[float | None] = [data[name] for name in TIMES]

    def knows(self, event: str, meta: Meta) -> bool:
        if not super().knows(event, meta):
            return False
        match event:
            case "scheduler_assigned":
                return not meta["waiting_for"]
            case "worker_started":
                return self.needs <= frozenset(meta["capabilities"])
            case "execution_completed":
                return bool(meta["exit_code"] == 0)
            case "validation_passed":
                return not meta["failed_rules"]
            case "validation_failed":
                return bool(meta["failed_rules"])
        return True

    def take(self, event: str, meta: Meta) -> Effects:
        if event == "execution_failed":
            again = self.retry_count < self.max_retries and not meta["final"]
            self.state = "retrying" if again else "failed"
            self.retry_count += again
        else:
            self.state = EDGES[self.state, event]
        self.worker_id = meta["worker_id"] if event == "worker_started" else None
        self.over = self.state in ("completed", "failed", "cancelled")
        self._stamp(event)
        return []

    def _stamp(self, event: str) -> None:
        """It is created when it has a place, started by its first worker, and completed when it is."""
        created_s, started_s, attempt_s, completed_s = self.times_s
        match event:
            case "scheduler_assigned":
                created_s = self.now_s
            case "worker_started":
                started_s, attempt_s = self.now_s if started_s is None else started_s, self.now_s
            case "validation_passed":
                completed_s = self.now_s
        self.times_s = [created_s, started_s, attempt_s, completed_s]

    def differs(self, data: Any) -> str:
        here = (self.retry_count, self.worker_id, *self.times_s)
        there = (data.retry_count, data.worker_id, *(getattr(data, name) for name in TIMES))
        return f"{there} of {here}" if here != there else ""
