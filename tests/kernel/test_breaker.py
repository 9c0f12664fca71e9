"""Circuit breaker: each cell of its table, then random histories against a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.breaker import BREAKER, Answered, Breaker, BreakerLimits, Circuit, CircuitData, Failed, Launched, Withdrawn
from actors.errors import InvalidOption
from actors.machine import IllegalTransition

LIMITS = BreakerLimits(failures_max=3, window_s=10.0, cooldown_s=30.0)


def opened(at: float = 2.0) -> Breaker:
    breaker = Breaker(LIMITS)
    for when in (at - 2, at - 1, at):
        breaker.apply(Failed(who="x", at=when))
    assert breaker.state is Circuit.OPEN
    return breaker


def half_open() -> Breaker:
    breaker = opened()
    assert breaker.apply(Launched(who="probe", at=32.0))
    return breaker


def test_by_default_five_in_a_minute_for_a_minute() -> None:
    """By default, five failures within sixty seconds open the circuit for sixty seconds."""
    assert BreakerLimits() == BreakerLimits(failures_max=5, window_s=60.0, cooldown_s=60.0)
    assert Breaker().data == CircuitData(limits=BreakerLimits())


def test_closed_lets_everybody_ask() -> None:
    """While the circuit is closed, calls that begin, and calls that end without a result, change nothing."""
    breaker = Breaker(LIMITS)
    for event in (Launched(who="a", at=1.0), Launched(who="b", at=1.0), Withdrawn(who="a", at=2.0)):
        assert breaker.allows(event.at)
        assert not breaker.apply(event)
    assert breaker.state is Circuit.CLOSED
    assert breaker.data == CircuitData(limits=LIMITS)


def test_closed_opens_at_the_failure_that_is_one_too_many() -> None:
    """The result of ``apply`` is true for the failure that opens the circuit, and for none before it."""
    breaker = Breaker(LIMITS)
    assert [breaker.apply(Failed(who="a", at=at)) for at in (0.0, 5.0, 10.0)] == [False, False, True]
    assert breaker.state is Circuit.OPEN
    assert breaker.data == CircuitData(limits=LIMITS, opened_at=10.0)


def test_failures_outside_the_window_do_not_count() -> None:
    """A failure older than the window does not count; a failure exactly as old as the window does."""
    breaker = Breaker(LIMITS)
    for at in (0.0, 5.0, 10.1):
        breaker.apply(Failed(who="a", at=at))
    assert breaker.state is Circuit.CLOSED
    assert breaker.data.failures == (5.0, 10.1)


def test_an_answer_clears_the_count() -> None:
    """A success between failures sets the count of failures to 0, so that the circuit stays closed."""
    breaker = Breaker(LIMITS)
    for at in (0.0, 1.0):
        breaker.apply(Failed(who="a", at=at))
    assert not breaker.apply(Answered(who="b", at=1.5))
    assert breaker.data.failures == ()
    assert not breaker.apply(Failed(who="a", at=2.0))
    assert breaker.data.failures == (2.0,)


def test_open_lets_nobody_ask_before_its_time() -> None:
    """Until the cool-down is over, a call is refused and changes nothing."""
    breaker = opened()
    assert not breaker.allows(31.9)
    with pytest.raises(IllegalTransition, match="breaker: Launched in open"):
        breaker.apply(Launched(who="a", at=31.9))
    assert (breaker.state, breaker.data) == (Circuit.OPEN, CircuitData(limits=LIMITS, opened_at=2.0))


@pytest.mark.parametrize("kind", [Answered, Failed, Withdrawn])
def test_open_hears_nothing_of_what_went_before(kind: type[Answered | Failed | Withdrawn]) -> None:
    """Results of calls that began before the circuit opened neither close the circuit nor lengthen its cool-down."""
    breaker = opened()
    assert not breaker.apply(kind(who="x", at=20.0))
    assert breaker.data == CircuitData(limits=LIMITS, opened_at=2.0)
    assert breaker.state is Circuit.OPEN


@pytest.mark.parametrize("at", [32.0, 32.1, 5000.0])
def test_open_lets_one_ask_after_its_time(at: float) -> None:
    """The first call after the cool-down, however late, is the probe, and no other call is allowed meanwhile."""
    breaker = opened()
    assert breaker.data.free_at_s == 32.0
    assert breaker.allows(at)
    assert breaker.apply(Launched(who="probe", at=at))
    assert (breaker.state, breaker.data.probe) == (Circuit.HALF_OPEN, "probe")
    assert not breaker.allows(1000.0)
    with pytest.raises(IllegalTransition, match="breaker: Launched in half_open"):
        breaker.apply(Launched(who="second", at=1000.0))


def test_half_open_closes_when_the_probe_is_answered() -> None:
    """If the probe succeeds, all calls are allowed again, and no earlier failure counts."""
    breaker = half_open()
    assert breaker.apply(Answered(who="probe", at=33.0))
    assert breaker.state is Circuit.CLOSED
    assert (breaker.data.probe, breaker.data.failures) == ("", ())
    assert breaker.allows(33.0)


def test_half_open_opens_when_the_probe_fails() -> None:
    """If the probe fails, the circuit opens again, and the cool-down begins anew."""
    breaker = half_open()
    assert breaker.apply(Failed(who="probe", at=40.0))
    assert breaker.state is Circuit.OPEN
    assert (breaker.data.probe, breaker.data.failures, breaker.data.free_at_s) == ("", (), 70.0)


@pytest.mark.parametrize("kind", [Answered, Failed, Withdrawn])
def test_a_half_open_circuit_changes_by_its_probe_only(kind: type[Answered | Failed | Withdrawn]) -> None:
    """Results of calls that began before the circuit opened change nothing."""
    breaker = half_open()
    assert not breaker.apply(kind(who="x", at=33.0))
    assert (breaker.state, breaker.data.probe) == (Circuit.HALF_OPEN, "probe")


def test_half_open_takes_another_probe_for_one_that_found_out_nothing() -> None:
    """After a probe that ended without a result, the next call is the probe."""
    breaker = half_open()
    assert not breaker.apply(Withdrawn(who="probe", at=33.0))
    assert breaker.state is Circuit.HALF_OPEN
    assert breaker.allows(33.0)
    assert not breaker.apply(Answered(who="", at=33.5)), "nobody is the probe now"
    assert not breaker.apply(Launched(who="second", at=34.0))
    assert not breaker.allows(34.0)
    assert breaker.apply(Answered(who="second", at=35.0))


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (BreakerLimits(failures_max=0), "failures_max is 0; give 1 or more"),
        (BreakerLimits(window_s=0.0), r"window_s is 0\.0; give seconds > 0"),
        (BreakerLimits(cooldown_s=-1.0), r"cooldown_s is -1\.0; give seconds > 0"),
    ],
)
def test_limits_that_are_none(limits: BreakerLimits, field: str) -> None:
    """An invalid limit is refused; the error names the field."""
    with pytest.raises(InvalidOption, match=f"p: {field}"):
        limits.checked("p")


def test_limits_that_are_some() -> None:
    """A single failure, and any time above zero, are valid limits."""
    limits = BreakerLimits(failures_max=1, window_s=0.1, cooldown_s=0.1)
    assert limits.checked("p") is limits


def test_the_table_is_whole() -> None:
    """Every event has a rule in every state; only the begin of a call can be refused."""
    kinds = {Launched, Answered, Failed, Withdrawn}
    assert all(set(BREAKER.allowed(state)) == kinds for state in Circuit)
    assert BREAKER.initial == (Circuit.CLOSED,)
    assert not BREAKER.terminal


ACTS = st.lists(
    st.tuples(st.sampled_from(["ask", "answered", "failed", "withdrawn"]), st.sampled_from("abc"), st.integers(0, 20)),
    max_size=60,
)


@given(ACTS)
def test_a_call_is_refused_if_and_only_if_it_is_not_allowed(acts: list[tuple[str, str, int]]) -> None:
    """A call that ``allows`` permits is never refused, and a refused call was not permitted."""
    breaker, now, probing = Breaker(LIMITS), 0.0, ""
    kinds = {"answered": Answered, "failed": Failed, "withdrawn": Withdrawn}
    for act, who, later in acts:
        now += later
        if act != "ask":
            probing = "" if who == probing else probing
            if breaker.apply(kinds[act](who=who, at=now)) and breaker.state is Circuit.OPEN:
                probing = ""
            continue
        if not breaker.allows(now):
            with pytest.raises(IllegalTransition):
                breaker.apply(Launched(who=who, at=now))
            assert probing or now - breaker.data.opened_at < LIMITS.cooldown_s
            continue
        was_closed = breaker.state is Circuit.CLOSED
        breaker.apply(Launched(who=who, at=now))
        assert not probing
        probing = "" if was_closed else who
        assert was_closed or now - breaker.data.opened_at >= LIMITS.cooldown_s
