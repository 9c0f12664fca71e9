"""The liveness policy: actions after snapshots without progress."""

from __future__ import annotations

import pytest

from supervisor.policies.liveness import Liveness, Stall, StallAction, StallProfileName

LIVENESS = Liveness()


def steps(snapshots: str, patience: StallProfileName = StallProfileName.DEFAULT) -> list[tuple[int, StallAction]]:
    """The actions at each snapshot: ``.`` is one without progress, ``x`` one with."""
    stall, profile = Stall(), LIVENESS.profile(patience)
    taken = [stall.snapshot(one == "x", profile) for one in snapshots]
    return [(number, step) for number, step in enumerate(taken, 1) if step is not None]


@pytest.mark.parametrize(
    ("patience", "wake", "stop", "kill"),
    [(StallProfileName.DEFAULT, 3, 5, 7), (StallProfileName.LARGE, 5, 8, 12), (StallProfileName.TESTS, 8, 12, 16)],
)
def test_each_profile_takes_its_steps(patience: StallProfileName, wake: int, stop: int, kill: int) -> None:
    """Each profile takes its actions at the specification's figures, each once."""
    assert steps("." * 30, patience) == [(wake, StallAction.WAKE), (stop, StallAction.STOP), (kill, StallAction.KILL)]


def test_who_moves_is_left_alone() -> None:
    """Progress in every second snapshot prevents every action."""
    assert steps("..x" * 50) == []


def test_a_word_after_each_step_does_not_go_on_for_ever() -> None:
    """An agent that speaks only when it is woken is interrupted next, and then ended."""
    assert [step for _, step in steps("...x....." + "x......." + "." * 7)] == [
        StallAction.WAKE,
        StallAction.STOP,
        StallAction.KILL,
    ]


def test_steady_progress_makes_good() -> None:
    """After as many snapshots with progress as lead to the first action, the first action comes first again."""
    assert [step for _, step in steps("...xxx...")] == [StallAction.WAKE, StallAction.WAKE]
    assert [step for _, step in steps("...xx...")] == [StallAction.WAKE]


def test_what_was_done_about_it_is_known() -> None:
    """``stepped`` is true from the first action on, until the actions are forgotten."""
    stall = Stall()
    known = [stall.snapshot(moved, LIVENESS.default) is None and stall.taken > 0 for moved in [False] * 4 + [True] * 3]
    assert known == [False, False, False, True, True, True, False]


def test_a_longer_profile_does_not_repeat_a_step() -> None:
    """An agent that was woken and then runs tests is not woken a second time, but gets more time."""
    stall = Stall()
    first = [stall.snapshot(False, LIVENESS.default) for _ in range(3)]
    then = [stall.snapshot(False, LIVENESS.tests) for _ in range(13)]
    assert [step for step in (*first, *then) if step is not None] == [
        StallAction.WAKE,
        StallAction.STOP,
        StallAction.KILL,
    ]
