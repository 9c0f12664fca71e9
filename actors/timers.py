"""Timers that belong to actors: one heap for all, one task that waits for the next.

A timer has a key within its actor; setting the key again voids the old one, even if its message is already queued.
Time is the backend's monotonic clock, so that a virtual clock drives it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from actors.errors import InvalidOption
from actors.parking import Backend, Parker

__all__ = ["Timer", "TimerService"]

DEAD_MAX = 64
"""Cancelled timers kept in the heap before it is rebuilt."""


class Timer:
    """One timer that was set. ``live`` until it was handled, cancelled, or set again."""

    __slots__ = ("deadline", "fire", "key", "live", "message")

    def __init__(self, key: Any, message: Any, deadline: float, fire: Callable[[Timer], None]) -> None:
        self.key = key
        self.message = message
        self.deadline = deadline
        self.fire = fire
        self.live = True


class TimerService:
    """All timers of one actor system."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._dead = 0
        self._parked: Parker | None = None
        self._awake_at = -math.inf

    def __len__(self) -> int:
        """The timers it keeps, with the cancelled ones that were not swept yet."""
        return len(self._heap)

    def set(self, key: Any, message: Any, delay_s: float, fire: Callable[[Timer], None]) -> Timer:
        """Call ``fire(timer)`` in *delay_s* seconds unless it is cancelled first."""
        if not delay_s >= 0:
            raise InvalidOption(f"timer {key!r}", "delay_s", delay_s, "give seconds >= 0")
        timer = Timer(key, message, self._backend.now() + delay_s, fire)
        self._count += 1
        heapq.heappush(self._heap, (timer.deadline, self._count, timer))
        if timer.deadline < self._awake_at:
            self._awake_at = timer.deadline
            if self._parked is not None:
                self._parked.unpark()
        return timer

    def cancel(self, timer: Timer) -> None:
        if not timer.live:
            return
        timer.live = False
        self._dead += 1
        if self._dead > DEAD_MAX and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].live]
            heapq.heapify(self._heap)
            self._dead = 0

    async def run(self) -> None:
        """Fire timers as they fall due, for ever."""
        while True:
            self._parked = self._backend.parker()
            self._awake_at = self._fire_due()
            await self._backend.wait_until(self._parked, self._awake_at)

    def _fire_due(self) -> float:
        """Fire what is due; the time of the next one."""
        now = self._backend.now()
        while self._heap:
            deadline, _, timer = self._heap[0]
            if timer.live and deadline > now:
                return deadline
            heapq.heappop(self._heap)
            if timer.live:
                timer.fire(timer)
            else:
                self._dead -= 1
        return math.inf
