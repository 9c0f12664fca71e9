"""Wait after an agent has reported the end of its turn, for what belongs to the turn and is still to come.

Some agents send the last words of a turn, or the end of a call, after the report. Some programs that serve one prompt
report their result and stay. Both are waited for, until a time has passed without output. The whole wait is bounded,
whatever the agent writes. The module decides nothing about the turn: it calls a function once the wait is over.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.timers import Timer, TimerService


class ReportedEnd:
    """Wait for late output of a turn; *over* is called when the wait ends, unless the wait is cancelled before."""

    def __init__(self, timers: TimerService, over: Callable[[], None]) -> None:
        self._timers = timers
        self._over = over
        self._quiet_s = 0.0
        self._until: float | None = None
        """Time of the timers' clock at which the wait ends in any case; ``None`` while nothing is waited for."""
        self._timer: Timer | None = None

    def begin(self, *, quiet_s: float, within_s: float) -> None:
        """Begin to wait until *quiet_s* seconds pass without output, for *within_s* seconds at most. A wait that is
        running already keeps its bound."""
        self._quiet_s = quiet_s
        if self._until is None:
            self._until = self._timers.now() + within_s
        self.note_output()

    def note_output(self) -> None:
        """Count the silence anew, if a wait is running."""
        if self._until is not None:
            self._cancel_timer()
            delay_s = min(self._quiet_s, max(0.0, self._until - self._timers.now()))
            self._timer = self._timers.set(None, None, delay_s, self._fire)

    def cancel(self) -> None:
        """End the wait without a call of *over*."""
        self._until = None
        self._cancel_timer()

    def _fire(self, timer: Timer) -> None:
        timer.live = False  # it has left the heap
        self._until = None
        self._over()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timers.cancel(self._timer)
        self._timer = None
