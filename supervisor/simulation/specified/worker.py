"""A worker: its slots, whether it answers, and how it leaves (spec 004)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.simulation.specified.copy import Copy, Effects, Meta

__all__ = ["WorkerCopy"]


class WorkerCopy(Copy):
    """One worker."""

    cells: ClassVar[Mapping[str, frozenset[str]]] = {
        "registration_complete": frozenset({"initializing"}),
        "task_assigned": frozenset({"idle", "busy"}),
        "task_completed": frozenset({"busy"}),
        "health_check_timeout": frozenset({"idle", "busy"}),
        "health_check_recovered": frozenset({"unresponsive"}),
        "max_timeout_exceeded": frozenset({"unresponsive"}),
        "shutdown_requested": frozenset({"idle", "busy", "unresponsive"}),
    }

    def __init__(self, state: str, data: Meta) -> None:
        super().__init__(state, data)
        self.slots: int = data["max_concurrent_tasks"]
        self.misses_max: int = data["misses_max"]
        self.shutdown_s: float = data["shutdown_s"]
        self.can: frozenset[str] = frozenset(data["capabilities"])
        self.tasks: int = data["active_tasks"]
        self.draining: bool = data["draining"]

    def knows(self, event: str, meta: Meta) -> bool:
        if not super().knows(event, meta):
            return False
        match event:
            case "task_assigned":
                able = "*" in self.can or frozenset(meta["capabilities"]) <= self.can
                return able and not self.draining and self.tasks < self.slots
            case "health_check_timeout":
                return bool(meta["missed"] >= self.misses_max)
            case "max_timeout_exceeded":
                return bool(meta["silent_s"] >= self.shutdown_s)
        return True

    def take(self, event: str, meta: Meta) -> Effects:
        effects = super().take(event, meta)
        self.over = self.state == "shutdown"
        return effects

    def on_registration_complete(self, meta: Meta) -> Effects:
        self.state, self.can = "idle", frozenset(meta["capabilities"])
        self.slots = self.slots if meta["max_concurrent_tasks"] is None else meta["max_concurrent_tasks"]
        return []

    def on_task_assigned(self, meta: Meta) -> Effects:
        self.state, self.tasks = "busy", self.tasks + 1
        return []

    def on_task_completed(self, meta: Meta) -> Effects:
        """It is idle with the last one, unless it only waited for that to leave."""
        self.tasks = max(0, self.tasks - 1)
        self.state = "busy" if self.tasks or self.draining else "idle"
        return []

    def on_health_check_timeout(self, meta: Meta) -> Effects:
        self.state, self.tasks = "unresponsive", 0
        return []

    def on_health_check_recovered(self, meta: Meta) -> Effects:
        self.state = "idle"
        return []

    def on_max_timeout_exceeded(self, meta: Meta) -> Effects:
        self.state = "shutdown"
        return []

    def on_shutdown_requested(self, meta: Meta) -> Effects:
        """At once, unless it has something to do: then it takes nothing new."""
        if self.tasks:
            self.draining = True
        else:
            self.state = "shutdown"
        return []

    def differs(self, data: Any) -> str:
        here = (self.tasks, self.draining, self.slots, self.can)
        there = (data.active_tasks, data.draining, data.max_concurrent_tasks, frozenset(data.capabilities))
        return f"{there} of {here}" if here != there else ""
