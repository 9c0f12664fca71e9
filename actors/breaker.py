"""A circuit breaker: who stops asking somebody that fails again and again, and when one tries once more.

Closed, everybody may ask. Too many failures within a window, with no success in between, open it: nobody may. After
the cool-down one may, the *probe*; until that one has an answer nobody else may. Its success closes the circuit, its
failure opens it again. Answers to what was asked before the circuit opened change nothing any more.

It counts what it is told: what is a failure of whom is the caller's business, and time is an argument, in seconds.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec
from msgspec.structs import replace

from actors.errors import InvalidOption
from actors.machine import Effect, Event, Machine, rule

__all__ = [
    "BREAKER",
    "Answered",
    "Breaker",
    "BreakerLimits",
    "Circuit",
    "CircuitData",
    "Failed",
    "Launched",
    "Withdrawn",
]


class Circuit(Enum):
    """The three states."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``failures_max`` failures within ``window_s`` seconds open the circuit, for ``cooldown_s`` seconds at least."""

    failures_max: int = 5
    window_s: float = 60.0
    cooldown_s: float = 60.0

    def checked(self, whose: str) -> BreakerLimits:
        """These limits.

        Raises:
            InvalidOption: it would open without a failure, or a time is none.
        """
        if self.failures_max < 1:
            raise InvalidOption(whose, "failures_max", self.failures_max, "give 1 or more")
        for field, value in (("window_s", self.window_s), ("cooldown_s", self.cooldown_s)):
            if not value > 0:
                raise InvalidOption(whose, field, value, "give seconds > 0")
        return self


class CircuitData(msgspec.Struct, frozen=True, kw_only=True):
    """``failures``: when those of the window were, oldest first. ``opened_at``: the last time; ``probe``: who is it."""

    limits: BreakerLimits = BreakerLimits()
    failures: tuple[float, ...] = ()
    opened_at: float = 0.0
    probe: str = ""

    @property
    def free_at_s(self) -> float:
        """When the cool-down of the last opening is over."""
        return self.opened_at + self.limits.cooldown_s


class Launched(Event, frozen=True, kw_only=True):
    """*who* asks now. Refused while nobody may."""

    who: str


class Answered(Event, frozen=True, kw_only=True):
    """*who* had an answer."""

    who: str


class Failed(Event, frozen=True, kw_only=True):
    """*who* had none, and it is the other side's fault."""

    who: str


class Withdrawn(Event, frozen=True, kw_only=True):
    """*who* ended without having found out anything about the other side."""

    who: str


Out = tuple[CircuitData, tuple[Effect, ...]]


def cooled_down(data: CircuitData, event: Launched) -> bool:
    return event.at >= data.free_at_s


def nobody_probes(data: CircuitData, event: Launched) -> bool:
    return not data.probe


def is_the_probe(data: CircuitData, event: Answered | Failed | Withdrawn) -> bool:
    return event.who == data.probe != ""


def one_too_many(data: CircuitData, event: Failed) -> bool:
    return len(_window(data, event.at)) >= data.limits.failures_max


def _window(data: CircuitData, at: float) -> tuple[float, ...]:
    """The failures in the window that ends now, with the one that happens now."""
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
        rule(Launched, C.HALF_OPEN, None, when=nobody_probes, do=[take_probe]),
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
    """One circuit: where it is, and what it knows."""

    __slots__ = ("data", "state")

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self.state = Circuit.CLOSED
        self.data = CircuitData(limits=limits or BreakerLimits())

    def allows(self, now_s: float) -> bool:
        """May somebody ask now? The question changes nothing; who then does ask is :class:`Launched`."""
        match self.state:
            case Circuit.CLOSED:
                return True
            case Circuit.OPEN:
                return now_s >= self.data.free_at_s
            case Circuit.HALF_OPEN:
                return not self.data.probe

    def hear(self, event: Launched | Answered | Failed | Withdrawn) -> bool:
        """Take *event* in; true if the circuit has changed its state.

        Raises:
            IllegalTransition: somebody asked while nobody may.
        """
        before = self.state
        step = BREAKER.step(self.state, self.data, event)
        self.state, self.data = step.state, step.data
        return self.state is not before
