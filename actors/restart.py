"""Restart types and restart intensity of OTP, as functions of data.

Pure: time is an argument. The end of an actor is *clean* or not; whether the actor is started again follows from its
restart type, and how often from a sliding window.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from actors.errors import InvalidOption


class Restart(StrEnum):
    """Condition of a child's restart: always, after an end that was not clean, never."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


class Intensity(NamedTuple):
    """Restart intensity: at most ``restarts_max`` restarts are allowed within ``period_s`` seconds."""

    restarts_max: int
    period_s: float

    def checked(self, whose: str, field: str) -> Intensity:
        """Return this intensity if it is valid.

        Raises:
            InvalidOption: fewer than 0 restarts, or a period that is not positive.
        """
        if self.restarts_max < 0:
            raise InvalidOption(whose, f"{field}.restarts_max", self.restarts_max, "give 0 or more")
        if not self.period_s > 0:
            raise InvalidOption(whose, f"{field}.period_s", self.period_s, "give seconds > 0")
        return self

    def exceeded(self, restarts: Sequence[float]) -> bool:
        """Return whether *restarts*, the times returned by :func:`add_restart`, are more than ``restarts_max``."""
        return len(restarts) > self.restarts_max


def add_restart(restarts: Sequence[float], now: float, period_s: float) -> tuple[float, ...]:
    """Return the times of the restarts in the sliding window that ends *now*, with *now* as the last."""
    return (*(at for at in restarts if now - at <= period_s), now)


def wanted(restart: Restart, *, clean: bool) -> bool:
    """Return whether a child of this restart type is restarted after an end that was clean or not."""
    match restart:
        case Restart.PERMANENT:
            return True
        case Restart.TRANSIENT:
            return not clean
        case Restart.TEMPORARY:
            return False
