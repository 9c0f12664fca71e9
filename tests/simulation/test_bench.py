"""Tests of the failure benchmarks: the numbers, the files, and that every process writes the same bytes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from supervisor.control.error_messages import BadInput
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.simulation.bench import METRICS, Bench, bench, check, nearest_rank, summary_of
from supervisor.simulation.bench.plots import COLOURS, Panel, figure
from supervisor.simulation.bench.suite import (
    BadSuite,
    ScenarioComparison,
    Suite,
    SuiteFiles,
    digests_of,
    load_suite,
    parse_policy,
)
from supervisor.simulation.commands.bench_cli import command
from supervisor.simulation.cost import CostMeter
from supervisor.simulation.scenario import DrawnScenario, named

SUITE = """
name = "small"
usd_per_million_tokens = 2.0
heal_after_s = 1000.0
[policies.default]
[policies.no-retry.limits]
max_consecutive_errors = 1
max_total_errors = 1
[scenarios."SCENARIO"]
policies = ["default", "no-retry"]
intensity = 2.0
"""
STORM = """
name = "small-storm"
about = "Agents that crash."
load = { customers = 2, turns = 4, plans = 0.0 }
agents = { acp = 0.0, command = 1.0, inprocess = 0.0 }
faults = { kinds = ["process.*"] }
world = { operators = 0, crashes_max = 0 }
"""


@pytest.fixture(scope="module")
def suite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixture: a suite of one scenario and two policies."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "small-storm.toml").write_text(STORM)
    path = folder / "small.toml"
    path.write_text(SUITE.replace("SCENARIO", str(folder / "small-storm.toml")))
    return path


@pytest.fixture(scope="module")
def result(suite_file: Path) -> Bench:
    """Fixture: the result of that suite with four seeds."""
    return bench(load_suite(str(suite_file))[0], seeds=4)[0]


def _invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False)


# -------------------------------------------------------------------------------------------------------- percentiles
@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 15), (5, 15), (30, 20), (40, 20), (50, 35), (90, 50), (99, 50), (100, 50)]
)
def test_a_percentile_is_the_nearest_rank(percent: int, expected: int) -> None:
    """A percentile is a value of the sample: the smallest value for which at least so many percent are not larger."""
    assert nearest_rank([15, 20, 35, 40, 50], 5, percent) == expected


def test_what_never_happened_is_later_than_everything() -> None:
    """If two of four events never happened, the median is a value, and the higher percentiles are ``None``."""
    summary = summary_of([None, 1.23456, None, 0.5], 3)
    assert (summary.p50, summary.p90, summary.max, summary.never) == (1.235, None, None, 2)


def test_an_empty_sample_has_no_percentiles() -> None:
    """The summary of an empty sample has no values, no percentiles, and no events that never happened."""
    summary = summary_of([], 0)
    assert (summary.count, summary.never, summary.total, summary.p50, summary.max) == (0, 0, 0, None, None)


# -------------------------------------------------------------------------------------------------------------- meter
def _record(seq: int, kind: str, entity: str, event: str = "", **more: Any) -> LifecycleEvent:
    stamps = {"timestamp": 0.0, "monotonic_s": 0.0, "entity_seq": 1}
    return LifecycleEvent(seq=seq, entity_type=kind, entity_id=entity, event=event, **stamps, **more)


def test_tokens_are_wasted_unless_their_turn_completes() -> None:
    """Tokens used in a completed turn are not wasted; tokens used in a failed turn, or between turns, are wasted."""
    meter = CostMeter()
    for seq, (turn, status, tokens) in enumerate(
        [("s:t1", "SPAWNING", 10), ("s:t1", "COMPLETING", 5), ("s:t2", "SPAWNING", 100), ("s:t2", "FAILED", 1000)], 1
    ):
        meter.record(_record(seq, "turn", turn, to_status=status))
        meter.spend("s", tokens)
    cost = meter.cost()
    assert (cost.turns, cost.wasted_turns, cost.tokens, cost.wasted_tokens) == (2, 1, 1115, 1105)


def test_a_blast_reaches_the_sessions_that_its_cause_was_not_about() -> None:
    """An abort of a session with a child counts the child as reached; a failure reaches no other session; a close is
    not counted at all."""
    meter = CostMeter()
    stop: dict[str, Any] = {"from_status": "Running", "to_status": "Stopped"}
    aborted, closed = {"outcome": "aborted"}, {"outcome": "completed"}
    meter.record(_record(1, "session", "d", "AbortRecord", outcome="fact", metadata={"target": "d"}))
    meter.record(_record(2, "session", "d/kid", "OperatorStop", cause_id=1, metadata=aborted, **stop))
    meter.record(_record(3, "session", "d", "OperatorStop", cause_id=1, metadata=aborted, **stop))
    meter.record(_record(4, "session", "e", "FatalError", **stop))
    meter.record(_record(5, "session", "f", "OperatorStop", metadata=closed, **stop))
    assert meter.cost().reached == (1, 0)


# ---------------------------------------------------------------------------------------------------------- the suite
def test_every_run_is_in_every_sample(result: Bench) -> None:
    """Quantities per run have one value for each seed, and no run has problems."""
    assert result.problems == []
    for cell in result.samples.values():
        assert {len(cell[key]) for key in ("lost_prompts", "wasted_turns", "wasted_tokens", "wasted_usd")} == {4}


def test_money_is_the_price_of_wasted_tokens(result: Bench) -> None:
    """The wasted money is the price of the wasted tokens, at the suite's two dollars per million."""
    for cell in result.samples.values():
        assert cell["wasted_usd"] == [tokens * 2 / 1e6 for tokens in cell["wasted_tokens"] if tokens is not None]


def test_a_policy_makes_a_difference(result: Bench) -> None:
    """A policy without retries loses more turns than one with retries."""
    (_, default), (_, no_retry) = result.samples.items()
    assert len(no_retry["recovery_s"]) > len(default["recovery_s"])


def test_the_files_are_the_same_in_another_process(suite_file: Path, result: Bench) -> None:
    """The files have the same digests when another process writes them, with another hash seed and time zone."""
    program = (
        "import sys; from supervisor.simulation.bench import bench\n"
        "from supervisor.simulation.bench.suite import digests_of, load_suite\n"
        "if __name__ == '__main__':\n"
        "    files = bench(load_suite(sys.argv[1])[0], seeds=4)[0].files()\n"
        "    print(digests_of(1, 4, files).text(), end='')\n"
    )
    script = suite_file.parent / "again.py"
    script.write_text(program)
    env = {**os.environ, "PYTHONHASHSEED": "12345", "TZ": "NPT-5:45", "PYTHONPATH": str(Path(__file__).parents[2])}
    again = subprocess.run([sys.executable, script, suite_file], env=env, capture_output=True, text=True, check=True)
    assert again.stdout == digests_of(1, 4, result.files()).text()


def test_the_json_says_what_each_number_is(result: Bench) -> None:
    """The JSON file explains each metric, and has for each scenario and policy the percentiles of all metrics and the
    digest of the runs."""
    value = json.loads(result.files()["small.json"])
    assert set(value["metrics"]) == {one.key for one in METRICS}
    (cells,) = value["scenarios"].values()
    for cell in cells.values():
        assert set(cell) == {"runs", *value["metrics"]}
        assert len(cell["runs"]) == 32


def test_the_library_suite_can_be_run() -> None:
    """Every scenario of the suite ``failures`` can be drawn, and every policy of the suite is used."""
    suite, _ = load_suite("failures")
    for name in suite.scenarios:
        assert named(name).draw(1).name == name
    assert {one for under in suite.scenarios.values() for one in under.policies} == set(suite.policies)


MANUAL = (Path(__file__).parents[2] / "docs" / "how-to" / "failure-benchmarks.md").read_text(encoding="utf-8")


def test_the_manual_says_what_is_measured() -> None:
    """The manual lists each metric with its unit and its meaning, in the order of the columns."""
    rows = [tuple(map(str.strip, row.split("|")[1:-1])) for row in re.findall(r"^\| [A-Z].*", MANUAL, re.MULTILINE)]
    assert [(title, unit, meaning) for title, unit, _, meaning in rows] == [
        (one.title, one.unit, one.meaning) for one in METRICS
    ]


def test_the_suite_of_the_manual_can_be_run(tmp_path: Path) -> None:
    """The suite that the manual prints is valid and uses every field."""
    (text,) = re.findall(r"```toml\n(.*?)```", MANUAL, re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    suite, _ = load_suite(str(path))
    check(suite, "the manual")
    assert set(text.split()) >= set(Suite.model_fields) - {"scenarios", "policies"}
    assert set(text.split()) >= set(ScenarioComparison.model_fields)


def test_the_commands_of_the_manual_are_there() -> None:
    """Every option in the manual exists, every command is valid, and every link leads to a file."""
    (text,) = re.findall(r"```sh\n(.*?)```", MANUAL, re.DOTALL)
    assert set(re.findall(r"--[a-z][a-z-]+", MANUAL)) <= {name for one in command.params for name in one.opts}
    words = [shlex.split(line, comments=True)[3:] for line in text.splitlines()]
    for arguments in words:
        command.make_context("bench", arguments)
    docs = Path(__file__).parents[2] / "docs" / "how-to"
    assert all((docs / connection).exists() for connection in re.findall(r"\]\(([^)#:]+)\)", MANUAL))


# ---------------------------------------------------------------------------------------------------------- pictures
def test_a_picture_has_a_curve_for_each_policy_in_each_panel() -> None:
    """The figure is valid XML; the colour of each policy is once in the legend and once in each panel with a sample."""
    samples = {"a<b": [0.0, 2.0, None], "c": [5.0, 5.0], "none": []}
    text = figure("title & more", "sub", [Panel("p", "s", samples, "root"), Panel("q", "n", samples)])
    ElementTree.fromstring(text)
    assert [text.count(f'stroke="{colour}"') for colour in COLOURS[:3]] == [3, 3, 1]


def test_a_curve_ends_at_the_share_of_what_happened() -> None:
    """If one of two events never happened, the curve rises half as high as if both had."""
    heights = []
    for sample in ([1.0, 1.0], [1.0, None]):
        (curve,) = [line for line in figure("", "", [Panel("", "", {"a": sample})]).splitlines() if "V" in line][-1:]
        start, end = float(curve.split(" ")[2].split("H")[0]), float(curve.split("V")[1].split("H")[0])
        heights.append(start - end)
    assert heights[0] == 2 * heights[1] > 0


def test_many_values_make_a_short_path() -> None:
    """A curve of ten thousand values is drawn by pixels, so that its text stays short."""
    text = figure("", "", [Panel("", "", {"a": [float(one) for one in range(10_000)]})])
    assert len(text) < 10_000


def test_nothing_to_draw_is_said_so() -> None:
    """A panel without values has a text that there are none."""
    assert "there were no runs" in figure("", "", [Panel("", "", {"a": []})])


# --------------------------------------------------------------------------------------------------- the command line
def test_digests_that_were_written_verify(suite_file: Path, tmp_path: Path) -> None:
    """Digests that were written are verified later, and the files have the same content."""
    out = tmp_path / "out"
    assert _invoke("--suite", suite_file, "--write-digests", "--seeds", 1, "--jobs", 1, "--out", out).return_value == 0
    assert sorted(one.name for one in out.iterdir()) == ["small-storm.svg", "small.json"]
    verified = _invoke("--suite", suite_file, "--verify", "--jobs", 1)
    assert verified.return_value == 0
    assert "2 files are as they were" in verified.output
    told = json.loads(_invoke("--suite", suite_file, "--verify", "--jobs", 1, "--json").stdout)
    assert told.pop("differing") == {}
    assert told == json.loads((out / "small.json").read_text())


def test_a_file_that_differs_is_named(suite_file: Path) -> None:
    """A file that differs from its digest gives exit status 1, and is named with both digests."""
    digests = suite_file.with_suffix(".digests")
    digests.write_text("seeds 1 1\n" + "0" * 32 + "  small.json\n")
    verified = _invoke("--suite", suite_file, "--verify", "--jobs", 1, "--json")
    assert verified.return_value == 1
    assert f"{'0' * 32} in the digests" in verified.stderr
    differing = json.loads(verified.stdout)["differing"]
    assert differing["small.json"]["kept"] == "0" * 32
    assert len(differing["small.json"]["now"]) == 32
    assert differing["small-storm.svg"] == {"now": differing["small-storm.svg"]["now"], "kept": None}


def test_a_table_shows_a_policy_of_ones_own(suite_file: Path) -> None:
    """A policy of the command line is shown in the table, beside those of the suite."""
    shown = _invoke("--suite", suite_file, "--seeds", 1, "--jobs", 1, "--policy", "mine=limits.restarts_max=9")
    assert shown.exception is None
    assert all(name in shown.output for name in ("default", "no-retry", "mine", "Blast radius"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "nothing"), "no suite is named 'nothing'; there is failures"),
        (("--suite", "nothing.toml"), "suite nothing.toml: cannot be read: No such file or directory; give the"),
        (("--policy", "mine"), "write NAME=KEY=VALUE"),
        (("--policy", "mine=limits"), "is not KEY=VALUE"),
        pytest.param(("--policy", f"mine=a={'9' * 5000}"), "a whole number has more than 100 digits", id="long"),
        (
            ("--policy", "mine=limits.nothing=1", "--seeds", "1"),
            "--policy mine, over abort-cascade: settings: limits.nothing: unk",
        ),
        (
            ("--policy", "mine=limits.grace_s={ any = [1.0, -1.0] }", "--seeds", "1"),
            "--policy mine, over abort-cascade: settings: limits.grace_s: -1.0: Input should be greater",
        ),
        (("--verify", "--seeds", "3"), "--verify: seeds and policies are those of the digests"),
    ],
)
def test_bad_input_is_told_with_its_name(arguments: tuple[str, ...], words: str) -> None:
    """Bad input is refused before anything runs; the message names the mistake."""
    told = _invoke(*arguments)
    assert isinstance(told.exception, BadInput)
    assert words in str(told.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "not TOML|Invalid"),
        pytest.param(f"name = {'[' * 3000}", "nested more than 32 deep", id="deep"),
        ('name = "x"', "usd_per_million_tokens: is missing; add it"),
        (SUITE.replace("policies =", "polices ="), "SCENARIO.polices: unknown key; did you mean 'policies'"),
        (SUITE + "operators = 2.5", "scenarios.SCENARIO.operators: 2.5: Input should be a valid integer"),
        (
            SUITE.replace('"no-retry"', '"no"').replace("SCENARIO", "quiet"),
            "bad.toml: scenarios.quiet.policies: 'no' is not defined; the suite has default, no-retry",
        ),
        (SUITE.replace('["default", "no-retry"]', "[]"), r"policies: \[\] compares nothing; name some of the suite's"),
        (SUITE.replace('"no-retry"', '"default"'), "policies: 'default' is named twice; name it once"),
        ("scenarios = {}\n" + SUITE.partition("[scenarios")[0], "scenarios: {} compares nothing; give at least one"),
        (
            SUITE.replace("SCENARIO", "a/x.toml") + "[scenarios.'b/x.toml']\npolicies = ['default']",
            "scenarios: 'a/x.toml' and 'b/x.toml' would both be written to x.svg; give one of the files another name",
        ),
        (SUITE.replace('"small"', '"../x"'), "bad.toml: name: '../x' is not a name; give up to 64 of a-z"),
        (SUITE.replace('"small"', r'"a\u0000"'), r"name: 'a\\x00' is not a name"),
        (SUITE.replace("2.0", "1e7", 1), "usd_per_million_tokens: 10000000.0: Input should be less than or equal to"),
        (SUITE.replace("2.0", "inf", 1), "usd_per_million_tokens: inf: Input should be a finite number"),
        (SUITE.replace("1000.0", "inf"), "heal_after_s: inf: Input should be a finite number"),
        (SUITE.replace("1000.0", "nan"), "heal_after_s: nan: Input should be a finite number"),
        (
            SUITE.replace("intensity = 2.0", "intensity = inf"),
            "scenarios.SCENARIO.intensity: inf: Input should be a finite number",
        ),
    ],
)
def test_a_bad_suite_is_told_with_its_field(text: str, words: str, tmp_path: Path) -> None:
    """A bad suite is refused before anything runs; the message names the field."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadSuite, match=words):
        load_suite(str(path))


def test_a_suite_has_loads_of_its_own(suite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load and operators that a suite gives replace those of the scenario; the scenario's other values remain."""
    under = ScenarioComparison(policies=("default",), load={"customers": 7}, operators=3)
    suite = load_suite(str(suite_file))[0].model_copy(update={"scenarios": {"quiet": under}})
    runs: list[DrawnScenario] = []
    monkeypatch.setattr("supervisor.simulation.bench.simulate", runs.append)
    bench(suite, seeds=1)
    (run,) = runs
    assert (run.load.customers, run.load.turns, run.load.crossing, run.operators) == (7, 3, 0.0, 3)
    assert Bench(suite=suite, first_seed=1, seeds=1).value()["under"] == {
        "quiet": {"intensity": 1.0, "load": {"customers": 7}, "operators": 3}
    }


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"customers": 0}, "suite mine: scenarios.quiet.load: customers: 0 must be a number from 1"),
        ({"clients": 1}, "suite mine: scenarios.quiet.load: clients: unknown key; the keys here are customers"),
    ],
)
def test_a_load_that_is_none_is_bad_input(suite_file: Path, load: dict[str, Any], words: str) -> None:
    """A suite with an invalid load is refused before anything runs; the message names the field."""
    under = ScenarioComparison(policies=("default",), load=load)
    suite = load_suite(str(suite_file))[0].model_copy(update={"scenarios": {"quiet": under}})
    with pytest.raises(BadSuite, match=words):
        check(suite, "suite mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its first line is ''"),
        ("seeds 1\n", "its first line is 'seeds 1', and not of the form 'seeds FIRST COUNT', with 1 seed or more"),
        ("seeds 1 0\n", "its first line is 'seeds 1 0'"),
        ("seeds -1 2\n", "its first line is 'seeds -1 2'"),
        ("kinds 1 2\n", "its first line is 'kinds 1 2'"),
        ("seeds 1 2\nabc\n", "'abc' is not of the form 'DIGEST  FILE'"),
    ],
)
def test_digests_that_make_no_sense_are_bad_input(suite_file: Path, text: str, words: str) -> None:
    """A digests file that is cut short, or has no seeds, is refused; the message says to make a new file with
    --write-digests."""
    suite_file.with_suffix(".digests").write_text(text)
    told = _invoke("--suite", suite_file, "--verify", "--jobs", 1)
    assert isinstance(told.exception, BadInput)
    assert f"{suite_file.with_suffix('.digests')}: {words}" in str(told.exception)
    assert "make it anew with --write-digests" in str(told.exception)


def test_digests_hold_for_files_of_any_name(tmp_path: Path) -> None:
    """A digests file that was written is read again unchanged, also if a file in it has a space in its name."""
    kept = digests_of(1, 2, {"two words.svg": "<svg/>"})
    place = SuiteFiles(tmp_path / "s.toml", tmp_path / "s.digests")
    place.write_digests(kept)
    assert place.read_digests() == kept


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("none", "scenarios: no scenario is named 'none'; there are abort-cascade"),
        (
            "/no/x.toml",
            "scenarios: /no/x.toml: cannot be read: No such file or directory; give the path of a FILE.toml",
        ),
    ],
)
def test_a_scenario_that_is_none_is_told_with_its_suite(tmp_path: Path, scenario: str, words: str) -> None:
    """A scenario that does not exist is refused; the message names the suite and the scenario."""
    path = tmp_path / "mine.toml"
    path.write_text(SUITE.replace("SCENARIO", scenario))
    told = _invoke("--suite", path, "--seeds", 1)
    assert isinstance(told.exception, BadInput)
    assert str(told.exception).startswith(f"suite {path}: {words}")


def test_a_policy_of_a_suite_is_checked_before_anything_runs(tmp_path: Path) -> None:
    """A policy of a suite with an invalid value is refused before anything runs, if any seed may draw that value; the
    message names the suite and the policy."""
    path = tmp_path / "mine.toml"
    text = SUITE.replace("SCENARIO", "quiet").replace("max_total_errors = 1", "max_total_errors = { any = [1, -1] }")
    path.write_text(text)
    told = _invoke("--suite", path, "--seeds", 1)
    assert isinstance(told.exception, BadInput)
    words = f"suite {path}: policies.no-retry, over quiet: settings: limits.max_total_errors: -1: Input should be"
    assert str(told.exception).startswith(words)


def test_policies_of_the_command_line_are_compared_everywhere() -> None:
    """A policy of the command line is compared in every scenario, and replaces a policy of the same name."""
    suite, _ = load_suite("failures")
    more = suite.with_policies(dict([parse_policy("default=policy.ladder.request_s=1, limits.grace_s=0.5")]))
    assert more.policies["default"] == {"policy": {"ladder": {"request_s": 1}}, "limits": {"grace_s": 0.5}}
    assert all("default" in under.policies for under in more.scenarios.values())


def test_a_run_that_goes_wrong_is_named(suite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails gives exit status 1, and is named with scenario, policy and seed; no digests of such runs are
    written."""

    def broken(drawn: DrawnScenario) -> NoReturn:
        raise RuntimeError(f"no {drawn.seed}")

    monkeypatch.setattr("supervisor.simulation.bench.simulate", broken)
    suite_file.with_suffix(".digests").unlink(missing_ok=True)
    told = _invoke("--suite", suite_file, "--first-seed", 9, "--seeds", 1, "--jobs", 1, "--write-digests")
    assert told.return_value == 1
    assert "small-storm.toml, no-retry, seed 9: RuntimeError: no 9" in told.output
    assert "no digests are kept of runs that went wrong" in told.output
    assert not suite_file.with_suffix(".digests").exists()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (
            "out/small.json",
            "--out: '{0}/out/small.json' cannot be written: Is a directory; give a directory of your own",
        ),
        ("out/quiet.svg", "--out: '{0}/out/quiet.svg' cannot be written: Is a directory"),
        ("small.digests", "--write-digests: '{0}/small.digests' cannot be written: Is a directory; copy the suite to"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, words: str
) -> None:
    """A file that cannot be written is reported before the work, by its name; the check leaves no files behind."""
    monkeypatch.setattr("supervisor.simulation.bench.bench", None)
    suite = tmp_path / "small.toml"
    suite.write_text(SUITE.replace("SCENARIO", "quiet"))
    (tmp_path / there).mkdir(parents=True)
    told = _invoke("--suite", suite, "--write-digests", "--out", tmp_path / "out")
    assert isinstance(told.exception, BadInput)
    assert str(told.exception).startswith(words.format(tmp_path))
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and one != suite]


@pytest.mark.parametrize("name", ["out", "x" * 300], ids=["work", "name"])
def test_a_directory_is_made_when_there_is_something_for_it(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No directory is created if the work fails, or if a file in that directory could not be written."""
    monkeypatch.setattr("supervisor.simulation.bench.bench", None)
    told = _invoke("--suite", suite_file, "--seeds", 1, "--out", tmp_path / "new" / name)
    assert isinstance(told.exception, TypeError if name == "out" else BadInput)
    assert list(tmp_path.iterdir()) == []


def test_there_are_no_digests_until_they_are_written(suite_file: Path) -> None:
    """Verifying without a digests file is refused; the message says how to write digests."""
    suite_file.with_suffix(".digests").unlink(missing_ok=True)
    told = _invoke("--suite", suite_file, "--verify")
    assert isinstance(told.exception, BadInput)
    assert "make them with --write-digests" in str(told.exception)
