"""Liveness policy: the actions that are taken after snapshots without progress (wake, stop, kill)."""

from __future__ import annotations

import pytest

from supervisor.policies.liveness import Liveness, Stall, StallAction, StallProfileName

LIVENESS = Liveness()


def steps(snapshots: str, patience: StallProfileName = StallProfileName.DEFAULT) -> list[tuple[int, StallAction]]:
    """Return the number of each snapshot with an action, and the action: ``.`` is a snapshot without progress, ``x``
    with."""
    stall, profile = Stall(), LIVENESS.profile(patience)
    taken = [stall.snapshot(one == "x", profile) for one in snapshots]
    return [(number, step) for number, step in enumerate(taken, 1) if step is not None]


@pytest.mark.parametrize(
    ("patience", "wake", "stop", "kill"),
    [(StallProfileName.DEFAULT, 3, 5, 7), (StallProfileName.LARGE, 5, 8, 12), (StallProfileName.TESTS, 8, 12, 16)],
)
def test_each_profile_takes_its_steps(patience: StallProfileName, wake: int, stop: int, kill: int) -> None:
    """Without progress each profile wakes, stops and kills at the specification's numbers of snapshots, each once."""
    assert steps("." * 30, patience) == [(wake, StallAction.WAKE), (stop, StallAction.STOP), (kill, StallAction.KILL)]


def test_who_moves_is_left_alone() -> None:
    """An agent with progress in every second snapshot is never woken, stopped or killed."""
    assert steps("..x" * 50) == []


def test_a_word_after_each_step_does_not_go_on_for_ever() -> None:
    """An agent that shows progress only after each action is woken, then stopped, then killed."""
    assert [step for _, step in steps("...x....." + "x......." + "." * 7)] == [
        StallAction.WAKE,
        StallAction.STOP,
        StallAction.KILL,
    ]


def test_steady_progress_makes_good() -> None:
    """After three snapshots with progress, as many as lead to the first action, the sequence of actions begins
    again."""
    assert [step for _, step in steps("...xxx...")] == [StallAction.WAKE, StallAction.WAKE]
    assert [step for _, step in steps("...xx...")] == [StallAction.WAKE]


def test_what_was_done_about_it_is_known() -> None:
    """``taken`` is above 0 from the first action until enough snapshots with progress have reset it."""
    stall = Stall()
    known = [stall.snapshot(moved, LIVENESS.default) is None and stall.taken > 0 for moved in [False] * 4 + [True] * 3]
    assert known == [False, False, False, True, True, True, False]


def test_a_longer_profile_does_not_repeat_a_step() -> None:
    """An agent that was woken and then gets a profile with more time is not woken again, but stopped and killed
    later."""
    stall = Stall()
    first = [stall.snapshot(False, LIVENESS.default) for _ in range(3)]
    then = [stall.snapshot(False, LIVENESS.tests) for _ in range(13)]
    assert [step for step in (*first, *then) if step is not None] == [
        StallAction.WAKE,
        StallAction.STOP,
        StallAction.KILL,
    ]


def test_a_silent_agent_is_described_with_what_follows() -> None:
    """The description has the actions taken, the next one, and the seconds until it and until the end; nothing follows
    for a one-shot agent."""
    stall, profile = Stall(), LIVENESS.profile(StallProfileName.DEFAULT)
    for _ in range(4):
        stall.snapshot(False, profile)
    found = stall.describe("s", "s:t1", StallProfileName.DEFAULT, LIVENESS, one_shot=False)
    assert (found.snapshots, found.silent_s, found.taken) == (4, 120.0, ("wake",))
    assert (found.next, found.next_in_s, found.ends_in_s) == ("stop", 30.0, 90.0)
    alone = stall.describe("s", "s:t1", StallProfileName.DEFAULT, LIVENESS, one_shot=True)
    assert (alone.next, alone.next_in_s, alone.ends_in_s) == (None, None, None)
