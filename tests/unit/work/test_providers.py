"""Tests of the provider breakers: a failing provider stops only launches against itself."""

from __future__ import annotations

import pytest

from actors.breaker import BreakerLimits, Circuit
from actors.machine import IllegalTransition
from supervisor.policies.error_classification import classify
from supervisor.work.providers import BreakerTransition, ProviderBreakers

A, B = "anthropic", "openai"
OVERLOADED = classify("overloaded")
BAD_TASK = classify("syntax error")


def failing(times: int = 2) -> ProviderBreakers:
    providers = ProviderBreakers(BreakerLimits(failures_max=2, window_s=10.0, cooldown_s=30.0))
    for number in range(times):
        providers.launched(A, f"run{number}", 0.0)
        providers.ended(A, f"run{number}", 1.0, OVERLOADED)
    return providers


def test_unknown_providers_are_allowed() -> None:
    """Launches are allowed against an unknown provider and against the empty name."""
    providers = failing()
    gate = providers.gate(2.0)
    assert [gate(key) for key in (A, B, "")] == [False, True, True]


def test_its_own_errors_open_it() -> None:
    """The failure that exceeds the limit opens the breaker, and returns the transition with its reason; earlier ones do
    not."""
    providers = failing(1)
    assert providers.allows(A, 1.0)
    assert providers.ended(A, "run9", 3.0, OVERLOADED) == BreakerTransition(
        A, Circuit.OPEN, "the provider is overloaded", 33.0
    )
    assert not providers.allows(A, 32.9)
    assert providers.allows(A, 33.0)


def test_a_bad_task_opens_nothing() -> None:
    """Errors of a task do not open the breaker of its provider, however many there are."""
    providers = failing(0)
    providers.launched(A, "bad", 0.0)
    assert [providers.ended(A, "bad", 0.0, BAD_TASK) for _ in range(9)] == [None] * 9
    assert providers.allows(A, 0.0)


def test_an_answer_clears_what_was_counted() -> None:
    """A success between two failures clears the count, so that the breaker stays closed."""
    providers = failing(1)
    assert providers.ended(A, "run1", 1.5, None) is None
    assert providers.ended(A, "run2", 2.0, OVERLOADED) is None


def test_one_probe_at_a_time_decides() -> None:
    """After the cool-down only one attempt, the probe, is allowed; its success closes the breaker for all."""
    providers = failing()
    with pytest.raises(IllegalTransition):
        providers.launched(A, "early", 30.0)
    assert providers.launched(A, "probe", 31.0) == BreakerTransition(A, Circuit.HALF_OPEN, "probe probes it", 31.0)
    assert not providers.allows(A, 99.0)
    assert providers.ended(A, "probe", 32.0, None) == BreakerTransition(A, Circuit.CLOSED, "probe had an answer", 31.0)
    assert providers.launched(A, "next", 33.0) is None


def test_a_probe_that_fails_opens_it_again() -> None:
    """If the probe fails, the breaker opens again, with a new cool-down from that failure on."""
    providers = failing()
    providers.launched(A, "probe", 31.0)
    assert providers.ended(A, "probe", 40.0, OVERLOADED) == BreakerTransition(
        A, Circuit.OPEN, "the provider is overloaded", 70.0
    )


@pytest.mark.parametrize("how", ["withdrawn", "bad task"])
def test_a_probe_that_found_out_nothing_makes_room(how: str) -> None:
    """After a probe that was stopped, or failed by its own fault, the next attempt becomes the probe."""
    providers = failing()
    providers.launched(A, "probe", 31.0)
    if how == "withdrawn":
        providers.withdrawn(A, "probe", 32.0)
    else:
        assert providers.ended(A, "probe", 32.0, BAD_TASK) is None
    assert providers.allows(A, 32.0)
    assert providers.launched(A, "second", 33.0) is None
    assert not providers.allows(A, 33.0)


def test_when_to_ask_again() -> None:
    """``free_at_s`` returns the end of the next cool-down, and None if no breaker waits for one."""
    providers = failing()
    assert providers.free_at_s(5.0) == 31.0
    for at in (6.0, 7.0):
        providers.launched(B, "x", at) if at == 6.0 else None
        providers.ended(B, "x", at, OVERLOADED)
    assert not providers.allows(B, 8.0)
    assert providers.free_at_s(8.0) == 31.0
    assert providers.free_at_s(31.0) == 37.0
    assert providers.free_at_s(37.0) is None
    providers.launched(A, "probe", 38.0)
    providers.launched(B, "probe", 38.0)
    assert providers.free_at_s(0.0) is None


def test_no_provider_has_no_breaker() -> None:
    """The empty name has no breaker, and the end of an attempt that was never launched changes nothing."""
    providers = ProviderBreakers()
    assert providers.launched("", "x", 0.0) is None
    assert [providers.ended("", "x", 0.0, OVERLOADED) for _ in range(9)] == [None] * 9
    assert [providers.ended(A, "x", 0.0, OVERLOADED) for _ in range(9)] == [None] * 9
    providers.withdrawn(A, "x", 0.0)
    assert providers.allows("", 0.0)
    assert providers.allows(A, 0.0)
