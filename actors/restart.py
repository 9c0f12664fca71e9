"""Who is started again, with whom, and how often: OTP's restart types, strategies and windows, as functions of data.

Pure: time is an argument. What ends an actor is *clean* or not; everything else follows from its restart type, its
supervisor's strategy, and two sliding windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from actors.errors import InvalidOption

__all__ = [
    "AutoShutdown",
    "Intensity",
    "Restart",
    "Strategy",
    "add_restart",
    "affected",
    "ends_supervisor",
    "wanted",
]


class Restart(StrEnum):
    """When a child is started again: always, after an end that was not clean, never."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


class Strategy(StrEnum):
    """Who is started again with the child that ended: nobody, all, or those that were started after it."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class AutoShutdown(StrEnum):
    """Whether a supervisor ends when its significant children have ended by themselves."""

    NEVER = "never"
    ANY_SIGNIFICANT = "any_significant"
    ALL_SIGNIFICANT = "all_significant"


class Intensity(NamedTuple):
    """At most ``restarts_max`` restarts within ``period_s`` seconds; one more is too many."""

    restarts_max: int
    period_s: float

    def checked(self, whose: str, field: str) -> Intensity:
        """This intensity.

        Raises:
            InvalidOption: fewer than 0 restarts, or a period that is none.
        """
        if self.restarts_max < 0:
            raise InvalidOption(whose, f"{field}.restarts_max", self.restarts_max, "give 0 or more")
        if not self.period_s > 0:
            raise InvalidOption(whose, f"{field}.period_s", self.period_s, "give seconds > 0")
        return self

    def exceeded(self, restarts: Sequence[float]) -> bool:
        """True if these restarts, as :func:`add_restart` keeps them, are more than may be."""
        return len(restarts) > self.restarts_max


def add_restart(restarts: Sequence[float], now: float, period_s: float) -> tuple[float, ...]:
    """The times of the restarts in the sliding window that ends *now*, with the one that happens now."""
    return (*(at for at in restarts if now - at <= period_s), now)


def wanted(restart: Restart, *, clean: bool) -> bool:
    """Is a child of this type started again after an end of that kind?"""
    match restart:
        case Restart.PERMANENT:
            return True
        case Restart.TRANSIENT:
            return not clean
        case Restart.TEMPORARY:
            return False


def affected(strategy: Strategy, order: Sequence[str], failed: str) -> tuple[str, ...]:
    """Those who are started again with *failed*, itself included, in the *order* in which they were started."""
    match strategy:
        case Strategy.ONE_FOR_ONE:
            return (failed,)
        case Strategy.ONE_FOR_ALL:
            return tuple(order)
        case Strategy.REST_FOR_ONE:
            return tuple(order[list(order).index(failed) :])


def ends_supervisor(auto: AutoShutdown, *, significant: bool, significant_left: int) -> bool:
    """Does the supervisor end, now that a child has ended by itself and is not started again?"""
    if not significant:
        return False
    match auto:
        case AutoShutdown.NEVER:
            return False
        case AutoShutdown.ANY_SIGNIFICANT:
            return True
        case AutoShutdown.ALL_SIGNIFICANT:
            return significant_left == 0
