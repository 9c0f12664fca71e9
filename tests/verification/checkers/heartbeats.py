"""Checker of heartbeats: the heartbeats that workers sent in the simulated world, compared with the records that
workers are lost and back.

Only a worker that is registered and not shut down sends heartbeats. A worker is lost when its checks have passed
without a heartbeat, not before, and not much later; a lost worker is back only after another heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.ports import Append
from supervisor.simulation.plan_workload.plans import CHECK_S

Say = Callable[[str, str, str], None]
BEATING: Final = frozenset({"idle", "busy"})
LOST: Final = "unresponsive"
ROUNDING_S: Final = 1e-6
GRAIN_S: Final = 1.0
"""Tolerance in seconds: more than the coarsest rounding of timers in a run."""


class HeartbeatChecker:
    """Checker of the heartbeats of one simulated run. *say* reports a violation; *bound_s* is the delay, in seconds,
    with which a loss may be recorded; *now* is the run's clock, in seconds."""

    def __init__(self, say: Say, bound_s: float, now: Callable[[], float]) -> None:
        self._say, self._bound_s, self._now = say, bound_s, now
        self.lost_tasks: set[str] = set()
        """Workstreams that lost a worker while the worker had tasks."""
        self._streams: dict[str, str] = {}
        """Workstream of each worker."""
        self._states: dict[str, str] = {}
        self._known_s: dict[str, float] = {}
        """Time at which the last record of each worker became durable."""
        self._misses: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        """Time of the last heartbeat of each worker under this supervisor."""
        self._slept_s: dict[str, float] = {}
        """Seconds, since the last heartbeat of each worker, in which no heartbeat could be sent."""
        self._lost: dict[str, float] = {}
        self._back_s: dict[str, float] = {}
        """Time at which the recovery of each lost worker became durable."""

    def forget(self) -> None:
        """Drop the workers of a supervisor that has ended."""
        self._heard.clear()
        self._lost.clear()

    def slept(self, seconds: float) -> None:
        """Note that for so many seconds no heartbeat could be sent or checked."""
        for worker in self._heard:
            self._slept_s[worker] = self._slept_s.get(worker, 0.0) + seconds

    # ------------------------------------------------------------------ the world
    def beat(self, worker: str, at_s: float) -> None:
        """Process a heartbeat of a worker: the worker must be registered. A worker that shuts down may send heartbeats
        until its shutdown is durable."""
        state = self._states.get(worker, "not there")
        if state not in BEATING and state != LOST and self._known_s.get(worker, -1.0) + GRAIN_S < at_s:
            self._say("health_monitoring", worker, f"sends a heartbeat, and is {state} on record")
        self._heard[worker] = at_s
        self._slept_s[worker] = 0.0

    # ------------------------------------------------------------------ what is durable
    def happened(self, at_s: float) -> None:
        """Check for silent workers whose loss should be on record by now: records are in the order of events."""
        if not self._heard:
            return
        for worker in [one for one in self._heard if at_s - self._since(one) > self._patience_s(one)]:
            silent_s = at_s - self._since(worker)
            del self._heard[worker]
            if self._states[worker] in BEATING:
                self._say("health_monitoring", worker, f"is not heard for {silent_s:g} s, and not lost on record")

    def _since(self, worker: str) -> float:
        """Return the time since which a worker is silent. A worker whose recovery is not durable yet cannot be lost
        again."""
        return max(self._heard[worker], self._back_s.get(worker, 0.0))

    def _patience_s(self, worker: str) -> float:
        """Return the seconds until a silent worker must be lost on record: the heartbeat checks that the worker may
        miss, one more check, and the bound."""
        return (self._misses.get(worker, 0) + 1) * CHECK_S + self._bound_s + self._slept_s[worker]

    def wrote(self, one: Append, at_s: float) -> None:
        """Process a durable append of a worker."""
        record, worker = one.record, one.record.entity_id
        if record.outcome == "born":
            self._misses[worker] = int(record.metadata["misses_max"])
            self._streams[worker] = str(record.metadata["workstream"])
        elif record.outcome == "transition" and record.event == "health_check_timeout":
            self._check_lost(worker, int(record.metadata["missed"]), at_s)
            if record.from_status == "busy":
                self.lost_tasks.add(self._streams[worker])
        elif record.outcome == "transition" and record.event == "health_check_recovered":
            self._check_back(worker, at_s)
            self._back_s[worker] = self._now()
        self._states[worker], self._known_s[worker] = one.state, self._now()

    def _check_lost(self, worker: str, missed: int, at_s: float) -> None:
        silent_s = at_s - self._heard.get(worker, -float("inf"))  # of an earlier supervisor, nobody is heard
        if ROUNDING_S < silent_s < missed * CHECK_S - GRAIN_S:  # what was heard at that moment or since says nothing
            words = f"is lost after {missed} looks of {CHECK_S:g} s, and was heard {silent_s:g} s before"
            self._say("health_monitoring", worker, words)
        self._lost[worker] = at_s

    def _check_back(self, worker: str, at_s: float) -> None:
        lost_s = self._lost.pop(worker, at_s)
        if self._heard.get(worker, lost_s) < lost_s:
            self._say("health_monitoring", worker, "is taken back, and was not heard since it was lost")
