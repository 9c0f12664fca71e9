"""Tests of sweeps: each point is one run, which equals the run without intruder up to the step of the point."""

from __future__ import annotations

import pytest

from supervisor.lifecycles.types import AbortScope
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import named
from supervisor.simulation.world import World
from tests.verification.checkers import simulate
from tests.verification.sweep import (
    CANCEL,
    CRASH,
    LEVELS,
    Every,
    Point,
    Sweep,
    chart,
    run_point,
    small,
    sweep,
)


def ignore(total: Sweep, points: int) -> None:
    """Progress callback that does nothing."""


def test_a_run_equals_the_one_without_intruder_up_to_its_point() -> None:
    """The trace of a run with an abort equals that of the run without up to the abort, and differs after that."""
    drawn = small(named("quiet")).draw(1)
    alone: list[str] = []
    disturbed: list[str] = []
    at: list[int] = []
    steps = chart(Point(scenario="quiet", seed=1, level="session", step=0)).applicable["session"]

    def intrude(step: int, world: World, host: Host) -> None:
        if step == steps[len(steps) // 2]:
            at.append(len(disturbed))
            host.abort(host.targets(AbortScope.SESSION)[0], AbortScope.SESSION)

    simulate(drawn, on_line=alone.append)
    simulate(drawn, on_line=disturbed.append, intrude=intrude)
    assert disturbed[: at[0]] == alone[: at[0]]
    assert "asked" in disturbed[at[0] + 1] or "asked" in disturbed[at[0]]
    assert disturbed != alone


@pytest.mark.parametrize("level", [*LEVELS, CRASH, CANCEL])
def test_a_point_is_the_same_run_every_time(level: str) -> None:
    """Running a point twice gives the same outcome, at each level, and without violations."""
    found = chart(Point(scenario="deep-delegation", seed=1, level=level, step=0))
    steps = found.applicable[level]
    assert steps
    point = Point(scenario="deep-delegation", seed=found.seed, level=level, step=steps[len(steps) // 2])
    outcome = run_point(point)
    assert outcome.problem == ""
    assert outcome == run_point(point)


def test_points_without_a_target_are_listed() -> None:
    """The points that were run and the steps without a target add up to all steps at all levels; the latter are
    listed."""
    total, complete = sweep(["quiet"], 1, ("session", "tool"), Every(100, 7), 1, ignore)
    counts = total.scenarios["quiet"]
    steps = len(range(7, counts.steps + 1, 100))
    assert complete
    assert (total.violations, total.points + total.not_applicable) == (0, 2 * steps)
    assert counts.not_applicable["session"].startswith("7")


def test_scenarios_with_the_same_small_run_are_swept_once() -> None:
    """A scenario whose small run equals that of an earlier scenario is not swept again; swept alone, it has its own
    points."""
    total, _ = sweep(["killed", "thundering-herd"], 1, ("session",), Every(400), 1, ignore)
    alone, _ = sweep(["thundering-herd"], 1, ("session",), Every(400), 1, ignore)
    assert [(name, one.same_as) for name, one in total.scenarios.items()] == [
        ("killed", ""),
        ("thundering-herd", "killed"),
    ]
    assert total.scenarios["thundering-herd"].points == 0
    assert total.points == alone.points > 0


def test_a_single_step_can_be_requested() -> None:
    """``Every`` selects a single step with a large stride, and every n-th step from the offset on otherwise."""
    assert [step for step in range(1, 400) if Every(10**9, 150).takes(step)] == [150]
    assert [step for step in range(1, 40) if Every(10, 3).takes(step)] == [3, 13, 23, 33]
    assert [step for step in range(1, 40) if Every(10, 23).takes(step)] == [23, 33]
