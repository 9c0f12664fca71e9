"""Shrinking: the smallest part that fails, and scenario files that are loaded as what was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.simulation import oracle
from supervisor.simulation.commands.written import written
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import library, load, named
from supervisor.simulation.search.shrink import NothingViolated, ddmin, invariant_of, pinned, shrink


@given(st.sets(st.integers(0, 40), max_size=6), st.integers(1, 41))
def test_exactly_what_is_needed_is_left(needed: set[int], size: int) -> None:
    """Where a failure needs all of some items, exactly those are left, in their order."""
    items = list(range(size))
    wanted = needed & set(items)

    def fails(some: Sequence[int]) -> Sequence[int] | None:
        return some if wanted <= set(some) else None

    assert list(ddmin(items, fails)) == sorted(wanted)


def test_what_a_smaller_run_did_not_use_is_left_out_at_once() -> None:
    """What a run says it needed is believed, also where it is less than it was given."""
    asked: list[int] = []

    def fails(some: Sequence[int]) -> Sequence[int] | None:
        asked.append(len(some))
        return [7] if 7 in some else None

    assert list(ddmin(range(100), fails)) == [7]
    assert asked == [0, 50, 50]


@pytest.mark.parametrize("name", [name for name in library() if name != "day"])
def test_a_pinned_scenario_is_drawn_as_the_seed_was(name: str, tmp_path: Path) -> None:
    """A file that was written of a scenario and its draws is loaded as that, and its own seed draws the same."""
    scenario = named(name)
    drawn = scenario.draw(5)
    path = tmp_path / "pinned.toml"
    path.write_text(written(pinned(scenario, drawn, ("disk.slow@1",)), 'about\n"it"'), encoding="utf-8")
    again = load(path)
    assert again == pinned(scenario, drawn, ("disk.slow@1",))
    assert again.world.seed == 5
    redrawn = again.draw(5)
    assert redrawn.only == ("disk.slow@1",)
    for field in ("schedule", "settings", "shape", "weights", "load", "grain_s", "heal_after_s", "operators"):
        assert getattr(redrawn, field) == getattr(drawn, field), field


def test_a_run_of_what_struck_is_the_run() -> None:
    """A scenario with exactly the faults that struck runs as the seed did, to the bit."""
    scenario = named("urgent")
    drawn = scenario.draw(2)
    report = simulate(drawn)
    assert report.struck
    assert simulate(pinned(scenario, drawn, report.struck).draw(2)).digest == report.digest


def test_a_failing_run_shrinks_to_the_faults_that_it_needs() -> None:
    """With an oracle that forbids interruptions, one urgent message to one customer is left of a run full of them."""
    scenario = named("urgent")
    record = oracle.Oracle._record

    def forbid(self: oracle.Oracle, one: object) -> None:
        record(self, one)  # type: ignore[arg-type]
        if getattr(one, "to_status", "") == "Interrupting":
            self.violated("bounded", one.entity_id, "was interrupted")  # type: ignore[attr-defined]

    with patch.object(oracle.Oracle, "_record", forbid):
        shrunk = shrink(scenario, 2, lambda: True, lambda runs: None)
    assert shrunk.minimal
    assert shrunk.invariant == "bounded"
    assert shrunk.faults_before > len(shrunk.faults)
    assert [one.partition("@")[0] for one in shrunk.faults] == ["host.urgent"]
    assert shrunk.scenario.load.turns == 1


def test_a_run_that_violates_nothing_is_not_shrunk() -> None:
    """There is nothing to shrink in a run that went well."""
    with pytest.raises(NothingViolated, match="seed 1 of quiet violates nothing"):
        shrink(named("quiet"), 1, lambda: True, lambda runs: None)


def test_the_invariant_is_the_first_word_of_a_problem() -> None:
    """A problem is told as its invariant, whose it is, and what is wrong."""
    assert invariant_of("no_survivor: c0: processes are left: sim-acp: 7") == "no_survivor"
