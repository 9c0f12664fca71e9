"""Who is started again, with whom, and how often: OTP's rules as functions."""

from __future__ import annotations

import pytest

from actors import InvalidOption
from actors.restart import (
    AutoShutdown,
    Intensity,
    Restart,
    Strategy,
    add_restart,
    affected,
    ends_supervisor,
    wanted,
)


@pytest.mark.parametrize(
    ("restart", "after_clean", "after_crash"),
    [(Restart.PERMANENT, True, True), (Restart.TRANSIENT, False, True), (Restart.TEMPORARY, False, False)],
)
def test_the_type_of_a_child_says_whether_it_comes_back(restart: Restart, after_clean: bool, after_crash: bool) -> None:
    """A permanent child always does, a transient one after a crash, a temporary one never."""
    assert wanted(restart, clean=True) is after_clean
    assert wanted(restart, clean=False) is after_crash


@pytest.mark.parametrize("failed", ["a", "b", "c"])
def test_the_strategy_says_who_comes_back_with_it(failed: str) -> None:
    """Nobody, everybody, or those that were started after it; always in the order of the start."""
    order = ["a", "b", "c"]
    assert affected(Strategy.ONE_FOR_ONE, order, failed) == (failed,)
    assert affected(Strategy.ONE_FOR_ALL, order, failed) == ("a", "b", "c")
    assert affected(Strategy.REST_FOR_ONE, order, failed) == tuple(one for one in order if one >= failed)


@pytest.mark.parametrize("auto", AutoShutdown)
@pytest.mark.parametrize("significant", [True, False])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_supervisor_ends_with_its_significant_children(auto: AutoShutdown, significant: bool, left: int) -> None:
    """Never, with any of them, or with the last; a child that is not significant ends nothing."""
    ends = significant and (
        auto is AutoShutdown.ANY_SIGNIFICANT or (auto is AutoShutdown.ALL_SIGNIFICANT and left == 0)
    )
    assert ends_supervisor(auto, significant=significant, significant_left=left) is ends


def test_restarts_slide_out_of_the_window() -> None:
    """Those that are older than the period are forgotten, one that is exactly as old still counts."""
    assert add_restart((), 5.0, 10.0) == (5.0,)
    assert add_restart((1.0, 2.0, 9.0), 12.0, 10.0) == (2.0, 9.0, 12.0)


def test_one_restart_more_than_the_intensity_is_too_many() -> None:
    """As many as may be are still allowed; with none, the first is too many."""
    assert [Intensity(2, 10).exceeded((1.0,) * count) for count in (0, 1, 2, 3)] == [False, False, False, True]
    assert [Intensity(0, 10).exceeded((1.0,) * count) for count in (0, 1)] == [False, True]


def test_an_intensity_that_can_be_is_accepted() -> None:
    """No restart at all, and the shortest of periods."""
    for one in (Intensity(0, 0.001), Intensity(1, 0.5), Intensity(3, 5)):
        assert one.checked("x", "intensity") is one


@pytest.mark.parametrize(
    ("intensity", "complaint"),
    [
        (Intensity(-1, 5), "x: intensity.restarts_max is -1; give 0 or more"),
        (Intensity(1, 0), "x: intensity.period_s is 0; give seconds > 0"),
        (Intensity(1, -2), "x: intensity.period_s is -2; give seconds > 0"),
        (Intensity(1, float("nan")), "x: intensity.period_s is nan; give seconds > 0"),
    ],
)
def test_an_intensity_that_cannot_be_is_named(intensity: Intensity, complaint: str) -> None:
    """Fewer than no restarts, and a period that is none."""
    with pytest.raises(InvalidOption) as caught:
        intensity.checked("x", "intensity")
    assert str(caught.value) == complaint
