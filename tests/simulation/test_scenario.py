"""Tests that invalid scenarios are refused before anything runs; the error names field, value and fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from supervisor.simulation.commands.run_request import Runner, RunRequest
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.scenario import BadScenario, LoadConfig, WorldConfig, library, load, named
from supervisor.simulation.search.soak import soak


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
        ("load.nothing = 1", "load.nothing: unknown key; the keys here are customers"),
        ("world.horizon_s = 0", "world.horizon_s: 0 must be a number from 1 to 1e+06"),
        ("world.schedules = []", "world.schedules: [] is empty; name some of fifo, shuffle, window, pct, trio"),
        ("agents = { acp = 0, command = 0, inprocess = 0.0 }", "agents: acp, command, inprocess and jsonl are all 0"),
        ("agents.acp = [0.1, 0.2]", "agents.acp: [0.1, 0.2]: Input should be a valid number"),
        ("faults.kinds = ['cosmic.*']", "faults.kinds: 'cosmic.*' fits no kind; the kinds are process.spawn_error"),
        ("faults.only = ['process.hang']", "faults.only.0: 'process.hang' names no place; write KIND@PLACE"),
        ("faults.only = ['process.hang@']", "faults.only.0: 'process.hang@' names no place; write KIND@PLACE"),
        ("faults.only = ['cosmic.ray@a']", "there is no kind 'cosmic.ray'; the kinds are process.spawn_error"),
        ("faults.only = [12]", "faults.only.0: 12: Input should be a valid string"),
        ("settings.limits.turns = 1", "settings"),
        ("faults.rates = { 'cosmic.ray' = 0.5 }", "faults.rates: there is no kind 'cosmic.ray'; the kinds are process"),
        ("faults.rates = { 'process.hang' = 2 }", "rates.process.hang: 2: Input should be less than or"),
        (
            "world.crashes_at = ['run ASLEEP']",
            "world.crashes_at: 'run ASLEEP' is not a state; write KIND STATE, for example",
        ),
        (
            "world.cancels_at = ['run ASLEEP']",
            "world.cancels_at: 'run ASLEEP' is not a state; write KIND STATE, for example",
        ),
        ("world.crashes_at = []", "world.crashes_at: [] is empty; name some, for example 'session Interrupting'"),
        (
            "leans.a = { share = 0.6 }\nleans.b = { share = 0.5 }",
            "mine.toml: leans: their shares are more than 1 in all; make some",
        ),
        ("leans.a = { share = 0.1, load = { turns = 0 } }", "leans.a: load.turns: 0 must be a number from 1 to 1e+06"),
        ("leans.a = { share = 0.1, world.seed = 3 }", "leans.a: world.seed: a lean has no seed of its own"),
        (
            "leans.a = { share = 0.1, settings = { b = 2 } }",
            "leans.a: settings: b: unknown key; the keys here are max_sessions",
        ),
        (
            "leans.a = { share = 0, agents.shape = { b = 2 } }",
            "mine.toml: leans.a: agents.shape.b: unknown key; the keys",
        ),
        (
            "leans.a = { share = 0.1, faults.kinds = ['proces.*'] }",
            "leans.a: faults.kinds: 'proces.*' fits no kind; the kinds are process.spawn_error",
        ),
        ("world.grain_s = 5", "world.grain_s: 5 must be a number from 0 to 0.5"),
        (
            "agents.shape.text_chars = [1, 999999999]",
            "text_chars: (1, 999999999) is not a range; give (low, high) with 0 <=",
        ),
        ("world.seed = '7'", "world.seed: '7': Input should be a valid integer"),
        ("world.archive = 1", "world.archive: 1: Input should be a valid boolean"),
        ("load.works = '0.5'", "load.works: '0.5': Input should be a valid number"),
        ("load.hours = true", "load.hours: True: Input should be a valid number"),
        ("world.seed = -1", "world.seed: -1: Input should be greater than or equal to 0"),
        (
            "leans.a = { share = 0.1, about = 'b', hosts = 2 }",
            "leans.a.hosts: unknown key; the keys here are share, about",
        ),
        ("load.turn = 1", "load.turn: unknown key; did you mean 'turns'?"),
        (
            "settings.agents.a.adapter = 'acp'",
            "settings: agents: unknown key; the keys here are max_sessions, max_sessions_total",
        ),
        ("settings.limits.turn_timeout = 1", "limits.turn_timeout: unknown key; did you mean 'turn_timeout_s'?"),
        ("settings.limits.turn_timeout_s = { any = [60, -1] }", "limits.turn_timeout_s: -1: Input should be greater"),
        ("settings.limits.turn_timeout_s = [-1, 60]", "limits.turn_timeout_s: -1: Input should be greater"),
        ("settings.limits.max_total_errors = [9, 2]", "limits.max_total_errors: [9, 2] is upside down; write [2, 9]"),
        ("settings.limits.grace_s = { any = [1.0, [2.5, 1.5]] }", "limits.grace_s: [2.5, 1.5] is upside down; write"),
        ("agents.shape.permission = { any = [0.5, 2.0] }", "agents.shape: permission: 2.0 is not a probability"),
        (
            "leans.a = { share = 0, agents.shape.steps = { any = [[1, 2], 3] } }",
            "shape: steps: 3 does not fit; give [low,",
        ),
        ("agents.shape.think_s = 3", "agents.shape: think_s: 3 does not fit; give [low, high], two numbers"),
        ("agents.shape.adapter = 'x'", "shape: adapter: 'x' does not fit; give acp, command, inprocess or jsonl"),
        ("agents.shape.loads = 'x'", "agents.shape: loads: 'x' does not fit; give a number from 0 to 1"),
        ("agents.shape.depth_max = 1e9", "depth_max: 1000000000.0 does not fit; give a whole number, 0 for no"),
        (
            "agents.shape.cancel_modes = ['x']",
            "cancel_modes: ['x'] does not fit; give a list of some of wait_completed",
        ),
        ("load = 3", "load: 3 is not a table; write { KEY = VALUE, ... }, or leave it out"),
        ("settings.limits = 3", "settings: limits: 3 is not a table; write { KEY = VALUE, ... }, or leave it out"),
        ("world.schedules = 'fifo'", "world.schedules: 'fifo' is not a list; write [VALUE, ...]"),
        ("leans.a = {}", "leans.a.share: is missing; add it"),
        ("world.heal_after_s = inf", "world.heal_after_s: inf must be a number from 0 to 1e+06"),
        (
            "settings.liveness.default = { wake = { any = [1, 5] }, stop = { any = [3, 6, 10] }, kill = 20 }",
            "liveness.default: wake 5, stop 3, kill 20: give each more than the one before",
        ),
        ("load = [", "not TOML"),
        pytest.param(
            f"load.turns = {'[' * 3000}", "tables and lists are nested more than 32 deep; write it flatter", id="deep"
        ),
        pytest.param(
            f"load.turns = {'[' * 33}{']' * 33}",
            "tables and lists are nested more than 32 deep; write it flatter",
            id="33-deep",
        ),
        pytest.param(
            f"load.turns = {'9' * 5000}", "a whole number has more than 100 digits; write a smaller one", id="long"
        ),
        pytest.param(
            f"load.turns = 0x{'9' * 5000}",
            "a whole number has more than 100 digits; write a smaller one",
            id="long-hexadecimal",
        ),
    ],
)
def test_a_bad_scenario_is_told(tmp_path: Path, text: str, words: str) -> None:
    """An invalid scenario is refused; the message has the file, the field, the value, and a valid value."""
    path = _written(tmp_path, text)
    with pytest.raises(BadScenario) as told:
        load(path)
    assert str(told.value).startswith(f"{path}: ")
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'name = "X Y"', "name: 'X Y' is not a name; give up to 64 of a-z, 0-9 and -"),
        (b'name = "../x"', "name: '../x' is not a name"),
        (b"name = '\xff'", "cannot be read: it is not UTF-8 from byte 8 on; save it as UTF-8"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, text: bytes, words: str) -> None:
    """A scenario file whose name is no valid file name, or whose text is not UTF-8, is refused; the message names the
    file."""
    path = tmp_path / "mine.toml"
    path.write_bytes(text)
    with pytest.raises(BadScenario) as told:
        load(path)
    assert str(told.value).startswith(f"{path}: {words}")


@pytest.mark.parametrize(("name", "why"), [("", "Is a directory"), ("a\0b.toml", "embedded null byte")])
def test_a_path_of_no_file_is_told(tmp_path: Path, name: str, why: str) -> None:
    """A path that is not a file is refused; the message asks for the path of a FILE.toml."""
    with pytest.raises(BadScenario, match=f"cannot be read: {why}; give the path of a FILE.toml"):
        load(tmp_path / name)


def test_a_seed_that_draws_what_cannot_be_is_bad_input_to_a_soak(tmp_path: Path) -> None:
    """If a scenario has too many combinations to check all of them when it is loaded, an invalid draw of a seed is
    reported as bad input, not as a violation."""
    wake, stop = list(range(1, 12)), list(range(2, 13))
    text = f"settings.liveness.default = {{ wake = {{ any = {wake} }}, stop = {{ any = {stop} }}, kill = 20 }}"
    path = _written(tmp_path, text)
    load(path)
    with pytest.raises(
        BadScenario, match=r"settings: liveness\.default: wake \d+, stop \d+, kill 20: give each.*seed \d+"
    ):
        soak(RunRequest(scenario=str(path)), range(1, 20), 1, lambda total: None, Runner())


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
    """Valid edge cases are accepted: a choice among ranges, one customer, one way to run agents, no faults, one
    second."""
    assert load(_written(tmp_path, text)).draw(1).name == "mine"


def test_the_manual_says_which_fields_a_seed_may_draw() -> None:
    """The manual lists exactly the fields of ``load`` that a seed may draw, and every number of ``world`` can be
    drawn."""
    manual = (Path(__file__).parents[2] / "docs" / "explanation" / "simulation.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `load` \|(.*)", manual, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {
        name for name, one in LoadConfig.model_fields.items() if one.annotation is Any
    }
    numbers = {name for name, one in WorldConfig.model_fields.items() if isinstance(one.get_default(), int | float)}
    drawn = {name for name, one in WorldConfig.model_fields.items() if one.annotation is Any}
    assert numbers - {"archive"} <= drawn


LEANING = """
[load]
customers = 3
[settings.limits]
restarts_max = 2
grace_s = 1.0
[leans.few]
share = 0.25
load.customers = 1
settings.limits.restarts_max = 9
faults.rates = { "host.urgent" = 1.0 }
[leans.many]
share = 0.25
load.customers = { any = [7] }
"""


def test_a_seed_has_one_lean_or_none(tmp_path: Path) -> None:
    """The shares of weighted profiles ("leans") decide how many seeds draw each; a value that a lean does not name is
    that of the scenario, table by table."""
    drawn = [load(_written(tmp_path, LEANING)).draw(seed) for seed in range(400)]
    few, many = ([one for one in drawn if one.load.customers == wanted] for wanted in (1, {"any": [7]}))
    assert 60 < len(few) < 140
    assert 60 < len(many) < 140
    assert {(one.settings.limits.restarts_max, one.settings.limits.grace_s) for one in few} == {(9, 1.0)}
    assert {one.settings.limits.restarts_max for one in drawn if one not in few} == {2}
    assert all(one.rates == ({"host.urgent": 1.0} if one in few else {}) for one in drawn)


def test_a_rate_is_taken_as_it_is_said() -> None:
    """A fault kind with a fixed rate has that rate in every seed; the rates of other kinds are drawn."""
    plans = [FaultPlan(KeyedRandom(seed), rates={"host.urgent": 0.125}) for seed in range(20)]
    assert {plan.rates["host.urgent"] for plan in plans} == {0.125}
    assert len({plan.rates["host.flood"] for plan in plans}) > 2


def test_every_scenario_of_the_library_can_be_drawn() -> None:
    """Every scenario of the library is valid and can be drawn."""
    assert [named(name).draw(1).name for name in library()] == list(library())
