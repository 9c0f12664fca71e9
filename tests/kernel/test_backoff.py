"""Delay before another try: the ceiling, the jitter below it, and invalid options."""

from __future__ import annotations

import random

import pytest

from actors import InvalidOption
from actors.backoff import Backoff


class Latest:
    """Random stream that always draws the longest possible delay, and records the shortest possible one."""

    lowest: float

    def uniform(self, a: float, b: float, /) -> float:
        self.lowest = a
        return b


@pytest.mark.parametrize(
    ("failures", "ceiling_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (7, 32.0), (8, 60.0), (9, 60.0), (5000, 60.0)]
)
def test_the_ceiling_doubles_up_to_the_cap(failures: int, ceiling_s: float) -> None:
    """The default ceiling is half a second after the first failure, doubles with each further failure, and never
    exceeds a minute."""
    assert Backoff().ceiling_s(failures) == ceiling_s


def test_base_factor_and_cap_are_the_callers() -> None:
    """Base, factor and cap each change the ceiling accordingly."""
    backoff = Backoff(base_s=2, factor=3, cap_s=50)
    assert [backoff.ceiling_s(failures) for failures in (1, 2, 3, 4)] == [2, 6, 18, 50]


def test_a_gentle_curve_stops_rising_without_an_overflow() -> None:
    """After 65 failures the ceiling stays the same, however many follow and however high the cap, without an
    overflow."""
    backoff = Backoff(base_s=1, factor=2, cap_s=float("inf"))
    assert backoff.ceiling_s(64) == 2.0**63
    assert backoff.ceiling_s(65) == backoff.ceiling_s(66) == backoff.ceiling_s(10**6) == 2.0**64


def test_the_delay_is_drawn_between_nothing_and_the_ceiling() -> None:
    """A delay is drawn from 0 up to the ceiling, so that callers that failed together do not retry together."""
    stream = Latest()
    assert Backoff().delay_s(3, stream) == 2.0
    assert stream.lowest == 0.0
    first, second = (Backoff().delay_s(3, random.Random(seed)) for seed in (1, 1))
    assert first == second


@pytest.mark.parametrize(("cap_s", "stable_s"), [(1.0, 120.0), (60.0, 120.0), (61.0, 122.0), (300.0, 600.0)])
def test_stable_is_twice_the_longest_delay(cap_s: float, stable_s: float) -> None:
    """By default ``stable_s`` is twice the longest delay, but at least two minutes."""
    assert Backoff(cap_s=cap_s).stable_s == stable_s


@pytest.mark.parametrize("backoff", [Backoff(), Backoff(0, 1, 0), Backoff(2, 1, 2)])
def test_what_can_be_is_accepted(backoff: Backoff) -> None:
    """A backoff without delay, with a constant delay, or with the cap at the base is valid."""
    assert backoff.checked("x") is backoff


@pytest.mark.parametrize(
    ("backoff", "complaint"),
    [
        (Backoff(base_s=-0.1), "x: backoff.base_s is -0.1; give seconds >= 0"),
        (Backoff(base_s=float("nan")), "x: backoff.base_s is nan; give seconds >= 0"),
        (Backoff(base_s=2, cap_s=1.9), "x: backoff.cap_s is 1.9; give at least base_s (2 s)"),
        (Backoff(cap_s=float("nan")), "x: backoff.cap_s is nan; give at least base_s (0.5 s)"),
        (Backoff(factor=0.9), "x: backoff.factor is 0.9; give at least 1"),
        (Backoff(factor=float("nan")), "x: backoff.factor is nan; give at least 1"),
    ],
)
def test_what_cannot_be_is_named(backoff: Backoff, complaint: str) -> None:
    """A negative or shrinking delay, or a delay that is no number, raises an error that names a valid value."""
    with pytest.raises(InvalidOption) as caught:
        backoff.checked("x")
    assert str(caught.value) == complaint
