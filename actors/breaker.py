"""Circuit breaker: stops calls to a service that fails repeatedly, and decides when one call tries again.

While the circuit is closed, every call is allowed. Too many failures within a window, with no success in between, open
the circuit: no call is allowed. After the cool-down one call, the *probe*, is allowed, and no other until the probe has
ended. If the probe succeeds the circuit closes, if it fails the circuit opens again. Results of calls that began before
the circuit opened change nothing.

The caller decides what counts as a failure. Time is an argument, in seconds.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec
from msgspec.structs import replace

from actors.errors import InvalidOption
from actors.machine import Effect, Event, Machine, rule


class Circuit(Enum):
    """State of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a circuit: ``failures_max`` failures within ``window_s`` seconds open the circuit, for ``cooldown_s``
    seconds at least."""

    failures_max: int = 5
    window_s: float = 60.0
    cooldown_s: float = 60.0

    def checked(self, whose: str) -> BreakerLimits:
        """Return these limits if they are valid.

        Raises:
            InvalidOption: ``failures_max`` is below 1, or a time is not positive.
        """
        if self.failures_max < 1:
            raise InvalidOption(whose, "failures_max", self.failures_max, "give 1 or more")
        for field, value in (("window_s", self.window_s), ("cooldown_s", self.cooldown_s)):
            if not value > 0:
                raise InvalidOption(whose, field, value, "give seconds > 0")
        return self


class CircuitData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a circuit: times of the failures in the window, oldest first; time of the last opening; name of the
    probe."""

    limits: BreakerLimits = BreakerLimits()
    failures: tuple[float, ...] = ()
    opened_at: float = 0.0
    probe: str = ""

    @property
    def free_at_s(self) -> float:
        """Time at which the cool-down after the last opening ends."""
        return self.opened_at + self.limits.cooldown_s


class Launched(Event, frozen=True, kw_only=True):
    """Event: the call *who* begins. Illegal while no call is allowed."""

    who: str


class Answered(Event, frozen=True, kw_only=True):
    """Event: the call *who* has succeeded."""

    who: str


class Failed(Event, frozen=True, kw_only=True):
    """Event: the call *who* has failed because of the service."""

    who: str


class Withdrawn(Event, frozen=True, kw_only=True):
    """Event: the call *who* has ended with a result that proves nothing about the service."""

    who: str


Out = tuple[CircuitData, tuple[Effect, ...]]


def cooled_down(data: CircuitData, event: Launched) -> bool:
    return event.at >= data.free_at_s


def no_probe_runs(data: CircuitData, event: Launched) -> bool:
    return not data.probe


def is_the_probe(data: CircuitData, event: Answered | Failed | Withdrawn) -> bool:
    return event.who == data.probe != ""


def one_too_many(data: CircuitData, event: Failed) -> bool:
    return len(_window(data, event.at)) >= data.limits.failures_max


def _window(data: CircuitData, at: float) -> tuple[float, ...]:
    """Return the times of the failures in the window that ends at *at*, with *at* itself as the last."""
    return (*(one for one in data.failures if at - one <= data.limits.window_s), at)


def count(data: CircuitData, event: Failed) -> Out:
    return replace(data, failures=_window(data, event.at)), ()


def forget(data: CircuitData, event: Event) -> Out:
    return replace(data, failures=(), probe=""), ()


def open_up(data: CircuitData, event: Failed) -> Out:
    return replace(data, failures=(), probe="", opened_at=event.at), ()


def take_probe(data: CircuitData, event: Launched) -> Out:
    return replace(data, probe=event.who), ()


C = Circuit
BREAKER: Final[Machine[Circuit, CircuitData]] = Machine(
    "breaker",
    source="",
    initial=[C.CLOSED],
    terminal=[],
    rules=[
        rule(Launched, C.CLOSED, None),
        rule(Launched, C.OPEN, C.HALF_OPEN, when=cooled_down, do=[take_probe]),
        rule(Launched, C.HALF_OPEN, None, when=no_probe_runs, do=[take_probe]),
        rule(Answered, C.CLOSED, None, do=[forget]),
        rule(Answered, C.OPEN, None),
        rule(Answered, C.HALF_OPEN, C.CLOSED, when=is_the_probe, do=[forget]),
        rule(Answered, C.HALF_OPEN, None),
        rule(Failed, C.CLOSED, C.OPEN, when=one_too_many, do=[open_up]),
        rule(Failed, C.CLOSED, None, do=[count]),
        rule(Failed, C.OPEN, None),
        rule(Failed, C.HALF_OPEN, C.OPEN, when=is_the_probe, do=[open_up]),
        rule(Failed, C.HALF_OPEN, None),
        rule(Withdrawn, [C.CLOSED, C.OPEN], None),
        rule(Withdrawn, C.HALF_OPEN, None, when=is_the_probe, do=[forget]),
        rule(Withdrawn, C.HALF_OPEN, None),
    ],
)


class Breaker:
    """State and data of one circuit."""

    __slots__ = ("data", "state")

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self.state = Circuit.CLOSED
        self.data = CircuitData(limits=limits or BreakerLimits())

    def allows(self, now_s: float) -> bool:
        """Return whether a call is allowed now. This changes nothing; report a call that begins as
        :class:`Launched`."""
        match self.state:
            case Circuit.CLOSED:
                return True
            case Circuit.OPEN:
                return now_s >= self.data.free_at_s
            case Circuit.HALF_OPEN:
                return not self.data.probe

    def apply(self, event: Launched | Answered | Failed | Withdrawn) -> bool:
        """Apply *event*; return whether the circuit has changed its state.

        Raises:
            IllegalTransition: a call began while none is allowed.
        """
        before = self.state
        step = BREAKER.step(self.state, self.data, event)
        self.state, self.data = step.state, step.data
        return self.state is not before
