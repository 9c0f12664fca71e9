"""Scenarios that cannot be run: every one is told with its field, its value and the fix, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.simulation.scenario import BadScenario, library, load, named


def _written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(f'name = "mine"\n{text}\n', encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("load.customers = { any = [] }", "load.customers: {'any': []} is a choice of nothing; give it values"),
        ("load.turns = { any = [] }", "load.turns: {'any': []} is a choice of nothing; give it values"),
        ("load.turns = { any = [1], of = 2 }", "load.turns: {'any': [1], 'of': 2} must be a number from 1"),
        ("load.customers = 0", "load.customers: 0 must be a number from 1 to 1e+06"),
        ("load.turns = [0, 2]", "load.turns: [0, 2] must be a number from 1 to 1e+06"),
        ("load.turns = { any = [[5, 1]] }", "load.turns: [5, 1] is upside down; write [1, 5]"),
        ("load.turns = [5, 1]", "load.turns: [5, 1] is upside down; write [1, 5]"),
        ("load.turns = { any = [1, 2.5] }", "load.turns: 2.5 must be whole"),
        ("load.turns = true", "load.turns: True must be a number"),
        ("load.pause_s = nan", "load.pause_s: nan must be a number from 0"),
        ("load.nothing = 1", "load.nothing: Extra inputs are not permitted"),
        ("world.horizon_s = 0", "world.horizon_s: 0 must be a number from 1 to 1e+06"),
        ("world.schedules = []", "world.schedules: [] is nobody; name some of fifo, shuffle, window, pct, trio"),
        ("agents = { acp = 0, command = 0, inprocess = 0.0 }", "agents: acp, command and inprocess are all 0"),
        ("agents.acp = [0.1, 0.2]", "agents.acp: Input should be a valid number"),
        ("faults.kinds = ['cosmic.*']", "faults.kinds: 'cosmic.*' fits no kind; the kinds are process.spawn_error"),
        ("faults.only = ['process.hang']", "faults.only.0: 'process.hang' names no place; write KIND@PLACE"),
        ("faults.only = ['process.hang@']", "faults.only.0: 'process.hang@' names no place; write KIND@PLACE"),
        ("faults.only = ['cosmic.ray@a']", "there is no kind 'cosmic.ray'; the kinds are process.spawn_error"),
        ("faults.only = [12]", "faults.only.0: Input should be a valid string"),
        ("settings.limits.turns = 1", "settings"),
        ("load = [", "not TOML"),
    ],
)
def test_a_bad_scenario_is_told(tmp_path: Path, text: str, words: str) -> None:
    """The file, the field, the value, and what would be right."""
    path = _written(tmp_path, text)
    with pytest.raises(BadScenario) as told:
        load(path)
    assert str(path) in str(told.value) or "scenario mine" in str(told.value)
    assert words in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "load.turns = { any = [1, [2, 3]] }",
        "load.customers = 1",
        "agents = { acp = 0, command = 1, inprocess = 0 }",
        "faults.only = ['process.hang@c0:1', 'point@a@b']",
        "faults.only = []",
        "world.horizon_s = 1",
    ],
)
def test_what_is_at_the_edge_is_no_mistake(tmp_path: Path, text: str) -> None:
    """A choice among ranges, one customer, one way to have an agent, no faults: all of these can be run."""
    assert load(_written(tmp_path, text)).draw(1).name == "mine"


def test_every_scenario_of_the_library_can_be_drawn() -> None:
    """None of those that come with the program is bad."""
    assert [named(name).draw(1).name for name in library()] == list(library())
