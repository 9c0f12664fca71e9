"""Timers of all actors: one heap, and one task that waits for the next deadline.

A timer has a key within its actor; setting the key again voids the old timer, even if its message is already queued.

The clock is the backend's monotonic clock (a virtual clock in simulations), less the time in which the process did not
run. A process that was stopped (SIGSTOP, a frozen machine) would find all its timers due at once, while messages that
came meanwhile are still unread. So a wake-up that comes ``LATE_S`` or more too late stops this clock at the time for
which the wake-up was set, and for ``GRACE_S`` more seconds, in which unread messages are handled. Afterwards each timer
has the time left that it had before the pause.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from actors.errors import InvalidOption
from actors.waiter import Backend, Waiter

DEAD_MAX = 64
"""Number of cancelled timers that may be in the heap before it is rebuilt."""

LATE_S = 1.0
"""Seconds by which a wake-up is so late that the process cannot have run: load delays an event loop only by fractions
of this time. Code that blocks the loop for longer counts as a pause, too."""
GRACE_S = 2.0
"""Seconds after a pause in which messages that came meanwhile are handled, before a timer fires."""


class Timer:
    """Timer of an actor; ``live`` until it is handled, cancelled, or set again."""

    __slots__ = ("deadline", "fire", "key", "live", "message")

    def __init__(self, key: Any, message: Any, deadline: float, fire: Callable[[Timer], None]) -> None:
        self.key = key
        self.message = message
        self.deadline = deadline
        self.fire = fire
        self.live = True


class TimerService:
    """All timers of one actor system.

    Args:
        backend: backend with the clock of the timers.
        paused: called after each pause, with the seconds by which the wake-up was late.
    """

    def __init__(self, backend: Backend, paused: Callable[[float], None] = lambda late_s: None) -> None:
        self._backend = backend
        self._paused = paused
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._dead = 0
        self._waiter: Waiter | None = None
        self._awake_at = -math.inf
        self._lost_s = 0.0
        """Seconds by which this clock is behind the backend's."""
        self._suspect_at = math.inf
        """Backend time from which on a reading shows that the process did not run for a while."""
        self._still: tuple[float, float] | None = None
        """While this clock stands still: its time, and the backend time at which it goes on."""

    def __len__(self) -> int:
        """Return the number of timers in the heap, cancelled ones included."""
        return len(self._heap)

    @property
    def pending(self) -> int:
        """Number of timers that have not fired and were not cancelled."""
        return len(self._heap) - self._dead

    def now(self) -> float:
        """Return the time by the clock of the timers, in seconds."""
        raw = self._backend.now()
        return raw - self._lost_s if raw < self._suspect_at else self._after_pause(raw)

    def set(self, key: Any, message: Any, delay_s: float, fire: Callable[[Timer], None]) -> Timer:
        """Call ``fire(timer)`` in *delay_s* seconds unless the timer is cancelled first."""
        if not delay_s >= 0:
            raise InvalidOption(f"timer {key!r}", "delay_s", delay_s, "give seconds >= 0")
        timer = Timer(key, message, self.now() + delay_s, fire)
        heapq.heappush(self._heap, (timer.deadline, next(self._order), timer))
        if timer.deadline < self._awake_at:
            self._sleep_until(timer.deadline)
            if self._waiter is not None:
                self._waiter.wake()
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

    @contextmanager
    def limit(self, seconds: float, *, shield: bool = False) -> Iterator[anyio.CancelScope]:
        """Open a cancel scope that ends after *seconds* of this clock, like ``anyio.move_on_after``, but without
        counting pauses."""
        with anyio.CancelScope(shield=shield) as scope:

            def fire(timer: Timer) -> None:
                timer.live = False  # it has left the heap: `cancel` must not count it as a dead entry
                scope.cancel()

            timer = self.set(None, None, max(seconds, 0.0), fire)
            try:
                yield scope
            finally:
                self.cancel(timer)

    async def run(self) -> None:
        """Fire timers when they are due, for ever."""
        while True:
            self._waiter = self._backend.new_waiter()
            await self._backend.wait_until(self._waiter, self._fire_due())

    def _fire_due(self) -> float:
        """Fire the timers that are due; return the time, on the backend's clock, at which to check again."""
        raw = self._backend.now()
        if raw >= self._suspect_at:
            self._after_pause(raw)
        if self._still is not None:
            return self._still[1]
        while self._heap:
            deadline, _, timer = self._heap[0]
            if timer.live and deadline + self._lost_s > raw:
                self._sleep_until(deadline)
                return deadline + self._lost_s
            heapq.heappop(self._heap)
            if timer.live:
                timer.fire(timer)
            else:
                self._dead -= 1
        self._sleep_until(math.inf)
        return math.inf

    def _sleep_until(self, moment: float) -> None:
        self._awake_at = moment
        self._suspect_at = moment + self._lost_s + LATE_S

    # ------------------------------------------------------------------ pauses
    def _after_pause(self, raw: float) -> float:
        """Return this clock's time for the backend time *raw*, which shows a pause or lies in the grace period after
        one."""
        at, until = self._still or self._stand_still(raw, self._awake_at)
        if raw >= until + LATE_S:
            self._stand_still(raw, at)
        elif raw >= until:
            self._still = None
            self._lost_s = until - at
            self._suspect_at = math.inf  # due timers are checked next
            return raw - self._lost_s
        return at

    def _stand_still(self, raw: float, at: float) -> tuple[float, float]:
        self._still = still = (at, raw + GRACE_S)
        self._awake_at = self._suspect_at = -math.inf
        self._paused(raw - at - self._lost_s)
        return still
