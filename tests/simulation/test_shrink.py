"""Tests of shrinking: a failing run is reduced to the smallest part that fails, and the written scenario file loads as
written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ports import Append
from supervisor.simulation.oracle import Oracle
from supervisor.simulation.running import Report, simulate
from supervisor.simulation.scenario import DrawnScenario, library, load, named
from supervisor.simulation.search import shrink as shrinking
from supervisor.simulation.search.shrink import (
    NothingViolated,
    Shrunk,
    ddmin,
    fails_again,
    invariant_of,
    run_until,
    shrink,
    to_toml,
)
from supervisor.simulation.search.smaller import REDUCIBLE, less, other_seed, pinned


@given(st.sets(st.integers(0, 40), max_size=6), st.integers(1, 41))
def test_exactly_what_is_needed_is_left(needed: set[int], size: int) -> None:
    """If a failure needs certain items, the search leaves exactly these, in their order."""
    items = list(range(size))
    wanted = needed & set(items)

    def fails(some: Sequence[int]) -> Sequence[int] | None:
        return some if wanted <= set(some) else None

    assert list(ddmin(items, fails)) == sorted(wanted)


def test_what_a_smaller_run_did_not_use_is_left_out_at_once() -> None:
    """The items that a failing run reports as needed replace those that the run was given."""
    asked: list[int] = []

    def fails(some: Sequence[int]) -> Sequence[int] | None:
        asked.append(len(some))
        return [7] if 7 in some else None

    assert list(ddmin(range(100), fails)) == [7]
    assert asked == [0, 50, 50]


@pytest.mark.parametrize("name", list(library()))
def test_a_pinned_scenario_is_drawn_as_the_seed_was(name: str, tmp_path: Path) -> None:
    """A file that was written for a scenario with its draws loads as the same scenario, and its seed draws the same
    values."""
    scenario = named(name)
    drawn = scenario.draw(5)
    path = tmp_path / "pinned.toml"
    path.write_text(to_toml(pinned(scenario, drawn, ("disk.slow@1",)), 'about\n"it"'), encoding="utf-8")
    again = load(path)
    assert again == pinned(scenario, drawn, ("disk.slow@1",))
    assert again.world.seed == 5
    redrawn = again.draw(5)
    assert redrawn.only == ("disk.slow@1",)
    for field in ("schedule", "settings", "shape", "weights", "load", "grain_s", "heal_after_s", "over_s", "operators"):
        assert getattr(redrawn, field) == getattr(drawn, field), field


def test_a_run_of_what_struck_is_the_run() -> None:
    """A scenario with exactly the faults that struck in a run gives a run with the same digest."""
    scenario = named("urgent")
    drawn = scenario.draw(2)
    report = simulate(drawn)
    assert report.struck
    assert simulate(pinned(scenario, drawn, report.struck).draw(2)).digest == report.digest


@pytest.fixture
def forbidden() -> Iterator[None]:
    """Fixture: make the oracle report a violation for every interrupted session."""
    wrote = Oracle.wrote

    def forbid(self: Oracle, batch: Sequence[Append], encoded: Sequence[bytes]) -> None:
        wrote(self, batch, encoded)
        for one in (written.record for written in batch):
            if one.to_status == "Interrupting":
                self.violated("bounded", one.entity_id, "was interrupted")

    with patch.object(Oracle, "wrote", forbid):
        yield


def shrunk_of(patience: Callable[[], bool] = lambda: True) -> Shrunk:
    """Shrink a run with many urgent messages, and return the result."""
    return shrink(named("urgent"), 2, patience, lambda runs: None)


@pytest.mark.usefixtures("forbidden")
def test_a_failing_run_shrinks_to_the_faults_that_it_needs() -> None:
    """A failing run is shrunk to the one urgent message that it needs, and the resulting scenario fails by itself."""
    shrunk = shrunk_of()
    assert shrunk.minimal
    assert shrunk.invariant == "bounded"
    assert shrunk.faults_before > len(shrunk.faults)
    assert [one.partition("@")[0] for one in shrunk.faults] == ["host.urgent"]
    assert (shrunk.scenario.load.turns, shrunk.scenario.world.schedules) == (1, ("fifo",))
    assert fails_again(shrunk)


def test_what_fails_no_more_is_said_to() -> None:
    """A shrunk run fails again only if its own invariant is violated; a violation of another invariant does not
    count."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            shrinking, "simulate", lambda drawn, **given: Went(problems=("legal: c1: no", "bounded: c1: no"))
        )
        scenario = named("quiet")
        shrunk = Shrunk(
            scenario=scenario,
            seed=1,
            invariant="bounded",
            problem="",
            faults_before=0,
            faults=(),
            runs=0,
            minimal=True,
        )
        assert fails_again(shrunk)
        shrunk.invariant = "recorded"
        assert not fails_again(shrunk)


class Went(NamedTuple):
    """Stand-in for a run's report, with the problems only."""

    problems: tuple[str, ...]


@pytest.mark.usefixtures("forbidden")
def test_where_patience_ends_in_a_run_nothing_of_that_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut off when patience ends counts as no violation; the result is the smallest failing run so
    far."""
    monkeypatch.setattr(shrinking, "LOOK", 64)
    asked = iter([True, True])
    shrunk = shrunk_of(lambda: next(asked, False))
    assert (shrunk.minimal, shrunk.runs, len(shrunk.faults)) == (False, 2, shrunk.faults_before)


@pytest.mark.usefixtures("forbidden")
def test_other_seeds_are_tried_where_too_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """If too many faults are left, other seeds of a smaller scenario are tried; the result has one fault and fails by
    itself."""
    for name, value in (("FEW", 0), ("OTHER_SEEDS", 8), ("ROUNDS", 1)):
        monkeypatch.setattr(shrinking, name, value)
    shrunk = shrunk_of()
    assert shrunk.seed != 2
    assert shrunk.scenario.world.seed == shrunk.seed
    assert len(shrunk.faults) == 1
    assert fails_again(shrunk)


def test_a_smaller_run_that_takes_too_long_is_given_up() -> None:
    """``run_until`` returns the report of a run that ends within the allowed number of steps; a run that needs one step
    more is cut off, and counts as no violation."""
    drawn = named("quiet").draw(1)
    steps = simulate(drawn).steps
    whole = run_until(drawn, "bounded", lambda: True, steps)
    assert whole is not None
    assert whole.steps == steps
    assert run_until(drawn, "bounded", lambda: True, steps - 1) is None


@pytest.mark.usefixtures("forbidden")
def test_what_was_in_vain_is_not_tried_again() -> None:
    """No scenario without a violation is run twice under the same seed."""
    runs: list[str] = []

    def counted(drawn: DrawnScenario, **given: Any) -> Report:
        report = simulate(drawn, **given)
        if not report.problems:
            runs.append(repr(drawn))
        return report

    with patch.object(shrinking, "simulate", counted):
        shrunk_of()
    assert len(runs) == len(set(runs)) > 0


@pytest.mark.parametrize("name", list(library()))
def test_no_step_makes_more_of_anything(name: str) -> None:
    """Each smaller variant of a scenario differs from it and can be drawn; variants for other seeds have little
    work."""
    scenario = named(name)
    fixed = pinned(scenario, scenario.draw(3), ())
    for path in REDUCIBLE:
        for one in less(fixed, path):
            assert one != fixed
            assert list(less(one, path)) != list(less(fixed, path))
            one.draw(3)
    other = other_seed(fixed, ["host.urgent"], 4)
    assert (max(other.load.customers) <= 3, other.draw(4).kinds, other.faults.only) == (True, ("host.urgent",), None)


def test_a_run_that_violates_nothing_is_not_shrunk() -> None:
    """Shrinking a run without violations raises NothingViolated; the message names the seed and the scenario."""
    with pytest.raises(NothingViolated, match="seed 1 of quiet violates nothing"):
        shrink(named("quiet"), 1, lambda: True, lambda runs: None)


def test_the_invariant_is_the_first_word_of_a_problem() -> None:
    """The invariant of a violation is the first word of its text, before entity and message."""
    assert invariant_of("no_survivor: c0: processes are left: sim-acp: 7") == "no_survivor"
