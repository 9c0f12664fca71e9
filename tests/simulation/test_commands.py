"""Tests of the commands ``supervisor simulate`` and ``python -m tests.verification``: output, refusals and exit
status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append
from supervisor.simulation import coverage
from supervisor.simulation.commands import cli
from supervisor.simulation.commands.run_request import RunRequest
from supervisor.simulation.engine import Schedule
from supervisor.simulation.oracle import Oracle
from supervisor.simulation.scenario import load, named
from supervisor.simulation.search import shrink
from tests.verification import golden as goldens
from tests.verification.__main__ import group as verification
from tests.verification.golden import golden, kept, runs
from tests.verification.power_cuts import power_loss
from tests.verification.prove import CannotRun, Process, processes, prove

OF_MAINTAINERS = ("claims", "disk", "prove", "sweep")
RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Fixture: a function that runs a command of either program in this process, and returns the exit status, the
    output and the error output."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        words = [str(one) for one in arguments]
        if words and words[0] in OF_MAINTAINERS:
            return (execute(verification, words), *capsys.readouterr())
        return (execute(supervisor, ["simulate", *words]), *capsys.readouterr())

    return run


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixture: make the oracle report a violation for every stopped session, which happens in every run."""
    wrote = Oracle.wrote

    def forbid(self: Oracle, batch: Sequence[Append], encoded: Sequence[bytes]) -> None:
        wrote(self, batch, encoded)
        for one in (written.record for written in batch):
            if one.to_status == "Stopped" and one.from_status != "Stopped":
                self.violated("bounded", one.entity_id, "was stopped")

    monkeypatch.setattr(Oracle, "wrote", forbid)


# --------------------------------------------------------------------------------------------------------- one run
def test_a_run_is_printed_for_people(run_command: RunCommand) -> None:
    """The output of a run for people has scenario and seed, the result, and the measured speed."""
    status, out, err = run_command("--seed", 1, "--scenario", "quiet")
    assert (status, err) == (0, "")
    assert out.startswith("quiet, seed 1, ")
    assert "no violations" in out
    assert "steps per second" in out


def test_the_json_of_a_run_is_its_seeds_alone(run_command: RunCommand) -> None:
    """With --json two runs of a seed print the same bytes, without measurements."""
    status, first, err = run_command("--seed", 1, "--scenario", "quiet", "--json")
    assert (status, err) == (0, "")
    assert run_command("--seed", 1, "--scenario", "quiet", "--json")[1] == first
    told = json.loads(first)
    assert {"seed", "digest", "scenario", "sessions", "simulated_s", "steps", "faults", "violations", "ended"} <= set(
        told
    )
    assert (told["seed"], told["violations"], sum(told["ended"].values())) == (1, 0, told["sessions"])


def test_violations_are_exit_status_1_and_one_line_that_reproduces(run_command: RunCommand, forbidden: None) -> None:
    """A run with a violation gives exit status 1, and prints the violation and the command line that runs it again."""
    status, out, _ = run_command("--seed", 1, "--scenario", "quiet", "--schedule", "fifo")
    assert status == 1
    assert "bounded: c0: was stopped" in out
    assert out.endswith("again: supervisor simulate --scenario quiet --seed 1 --schedule fifo\n")


def test_the_trace_is_every_line(run_command: RunCommand) -> None:
    """With --trace each record and event is a line; with --json these lines go to standard error instead of standard
    output."""
    _, out, _ = run_command("--seed", 1, "--scenario", "quiet", "--trace")
    _, told, err = run_command("--seed", 1, "--scenario", "quiet", "--trace", "--json")
    records = json.loads(told)["records"]
    assert sum(" record " in line for line in out.splitlines()) == records
    assert sum(" record " in line for line in err.splitlines()) == records


def test_sessions_and_hours_are_the_load(run_command: RunCommand) -> None:
    """The options --sessions and --hours set the number of customers and the hours of their turns."""
    status, out, _ = run_command("--seed", 1, "--scenario", "quiet", "--sessions", 7, "--hours", 3, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["sessions"] >= 7
    assert 3 * 3600 <= told["simulated_s"] < 4 * 3600
    assert RunRequest(seed=1, sessions=7).name == "day"
    assert RunRequest(seed=1).name == "swarm"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--seed: is missing"),
        (("--seed", "x"), "'x' is not a valid integer range"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--seed", "1", "--scenario", "none"), "no scenario is named 'none'; there are abort-cascade"),
        (("--seed", "1", "--scenario", "none.toml"), "none.toml: cannot be read"),
        (("--seed", "1", "--sessions", "0"), "0 is not in the range"),
        (("--seed", "1", "--hours", "nan"), "--hours: nan is not a time"),
        (("--seed", "1", "--schedule", "x"), "'x' is not one of"),
        (("--seed", "1", "soak"), "--seed: stands before soak"),
        (("soak", "--seeds", "0"), "0 is not in the range"),
        (("soak", "--scenario", "none"), "no scenario is named 'none'"),
        (("prove", "--seeds", "1", "--pythons", "/no/python"), "'/no/python' is no program"),
        (("bench", "--suite", "nope.toml"), "nope.toml: cannot be read"),
        (("sweep", "--levels", "turn"), "'turn' is no level; name some of tool, sibling, session"),
        (("sweep", "--levels", "tool", "--scenario", "none", "--crash"), "--levels: with --crash nothing is aborted"),
        (
            ("sweep", "--scenario", "quiet", "--every", "1000000", "--offset", "99999"),
            "--every 1000000 --offset 99999: is no step; the longest of these runs has",
        ),
        (("sweep", "--scenario", "none"), "no scenario is named 'none'"),
        (("prove", "--golden", "--seeds", "3"), "--seeds: with --golden the golden runs are run as they are; leave"),
        (("prove", "--write-golden", "--schedule", "fifo"), "--schedule: with --write-golden the golden runs are"),
        (("prove", "--golden", "--write-golden"), "--write-golden: with --golden the golden runs are"),
        (("bench", "--out", "/dev/null/x"), "--out: '/dev/null/x' cannot be written: Not a directory; give a"),
        (("shrink", "--seed", "1", "--scenario", "quiet"), "seed 1 of quiet violates nothing"),
        (("shrink", "--seed", "1", "--save", "x.yaml"), "end it in .toml"),
        (
            ("shrink", "--seed", "1", "--scenario", "quiet", "--save", "/no/x.toml"),
            "'/no/x.toml' cannot be written: No",
        ),
        (("shrink", "--seed", "1", "--hours", "nan"), "--hours: nan is not a time; give hours, 0 to 10000"),
        (("shrink", "--seed", "1", "--within", "nan"), "--within: nan is not a time; give seconds, 0 or more"),
    ],
)
def test_bad_input_is_told_and_starts_nothing(run_command: RunCommand, arguments: tuple[str, ...], words: str) -> None:
    """Bad input is refused with exit status 2 and nothing runs; standard error has the field, the value and the fix."""
    status, out, err = run_command(*arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


# ------------------------------------------------------------------------------------------------------- many runs
def test_a_soak_adds_up(run_command: RunCommand) -> None:
    """A soak prints the sums of its runs, and the states that they reached and did not reach; the latter are a failure
    only with --must-reach."""
    status, out, _ = run_command("soak", "--seeds", 3, "--scenario", "quiet", "--jobs", 1, "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["scenarios"], told["violations"], told["failing"]) == (3, 0, [])
    assert set(told["not_reached"]) == set(coverage.to_reach()) - set(told["reached"])
    assert run_command("soak", "--seeds", 1, "--scenario", "quiet", "--jobs", 1, "--must-reach", "all")[0] == 1


def test_an_abort_is_counted_for_whom_it_was_meant() -> None:
    """The coverage counts an abort for the state of its target, not for nodes that the abort reached over a policy
    edge."""
    covered = coverage.Coverage()
    born = LifecycleEvent(
        seq=1,
        timestamp=0.0,
        monotonic_s=0.0,
        entity_type="session",
        entity_id="s",
        entity_seq=1,
        event="Born",
        outcome="born",
        to_status="Running",
    )
    abort = msgspec.structs.replace(born, seq=2, entity_seq=2, event="AbortRecord", outcome="fact", to_status="")
    for edge in (None, "tool_to_sibling"):
        covered.record(born)
        covered.record(msgspec.structs.replace(abort, metadata={"scope": "tool", "policy_edge": edge}))
    assert covered.counts == {"abort: tool in Running": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seed", 1),
        ("--seed", 1, "--schedule", "trio"),
        ("claims", "--workers", 2, "--tasks", 3, "--kills", 0),
        ("soak", "--jobs", 1),
        ("sweep", "--jobs", 1),
        ("bench", "--jobs", 1),
        ("prove", "--golden", "--jobs", 1),
        ("shrink", "--seed", 1),
    ],
)
def test_ctrl_c_prints_what_was_reached(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    """Ctrl-C ends any of the commands with exit status 130, and the result so far is printed."""

    def pressed(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Oracle, "wrote", pressed)
    status, out, err = run_command(*arguments, "--json")
    assert (status, json.loads(out)["interrupted"], err) == (130, True, "")
    assert "interrupted; what was reached until then:" in run_command(*arguments)[1]


def test_an_interrupted_disk_is_no_failure(run_command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the command ``disk``, before the controls have run, prints the result so far, with exit status 130."""

    def interrupt(*arguments: object) -> bool:
        return False

    monkeypatch.setattr(power_loss, "map_in_order", interrupt)
    status, out, _ = run_command("disk", "--cuts", 1000, "--json")
    assert (status, json.loads(out)["interrupted"]) == (130, True)


def test_the_line_that_runs_it_again_has_every_digit() -> None:
    """The command line that runs a run again has each number with every digit, not rounded."""
    line = RunRequest(seed=1, hours=1.23456789012).line()
    assert line == "supervisor simulate --seed 1 --hours 1.23456789012"


def test_a_failing_seed_of_a_soak_has_its_line(run_command: RunCommand, forbidden: None) -> None:
    """A soak prints each failing seed with the command that runs the seed again."""
    status, out, _ = run_command("soak", "--seeds", 2, "--first-seed", 5, "--scenario", "quiet", "--jobs", 1, "--json")
    assert status == 1
    lines = [one["reproduce"] for one in json.loads(out)["failing"]]
    assert lines == [f"supervisor simulate --scenario quiet --seed {seed}" for seed in (5, 6)]


def test_a_simulator_that_fails_is_a_violation_of_its_seed(run_command: RunCommand) -> None:
    """An exception of the simulator is reported as a violation of the run's seed, and the soak goes on."""
    with patch("supervisor.simulation.search.soak.simulate", side_effect=RuntimeError("broken")):
        status, out, _ = run_command("soak", "--seeds", 2, "--jobs", 1, "--json")
    told = json.loads(out)
    assert (status, told["violations"]) == (1, 2)
    assert told["failing"][0]["problem"] == "simulator: RuntimeError: broken"


def test_a_shrunk_scenario_fails_by_itself(run_command: RunCommand, forbidden: None, tmp_path: Path) -> None:
    """The scenario file that ``shrink`` saves, run alone, violates the same invariant."""
    path = tmp_path / "small.toml"
    status, out, _ = run_command("shrink", "--seed", 3, "--scenario", "restart-storm", "--save", path, "--json")
    told = json.loads(out)
    assert (status, told["invariant"], told["faults"], told["minimal"]) == (0, "bounded", [], True)
    assert path.read_text().startswith(f"# {told['problem']}\n# Found by: supervisor simulate --scenario restart-storm")
    assert load(path).world.seed == 3
    status, out, _ = run_command("--scenario", path)
    assert status == 1
    assert told["problem"].partition(":")[0] in out


def test_ctrl_c_ends_a_search_for_a_smaller_run(
    run_command: RunCommand, forbidden: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C during ``shrink`` prints and saves the result so far, without running it again, and gives exit status
    130."""
    simulate = shrink.simulate

    def pressed(*arguments: Any, **more: Any) -> Any:
        if runs:
            signal.raise_signal(signal.SIGINT)
        runs.append(1)
        return simulate(*arguments, **more)

    monkeypatch.setattr(shrink, "simulate", pressed)
    runs: list[int] = []
    path = tmp_path / "small.toml"
    arguments = "shrink", "--seed", 3, "--scenario", "restart-storm", "--save", path
    status, out, err = run_command(*arguments, "--json")
    told = json.loads(out)
    assert (status, told["interrupted"], told["minimal"], told["fails_again"], err) == (130, True, False, None, "")
    assert load(path).world.seed == 3
    runs = []
    assert run_command(*arguments)[1].startswith("interrupted; what was reached until then:\nbounded: ")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none/x.toml", "No such file or directory"),
        ("folder.toml", "Is a directory"),
        (f"{'x' * 300}.toml", "File name too long"),
    ],
)
def test_what_cannot_be_kept_is_told_before_the_work(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, why: str
) -> None:
    """A --save file that cannot be written is refused before the work; the error names the file."""
    monkeypatch.setattr(shrink, "simulate", None)
    (tmp_path / "folder.toml").mkdir()
    status, _, err = run_command("shrink", "--seed", 3, "--scenario", "quiet", "--save", tmp_path / name)
    assert status == 2
    assert f"--save: '{tmp_path / name}' cannot be written: {why}; give the path of a file" in err
    assert [one.name for one in tmp_path.iterdir()] == ["folder.toml"]


def test_a_try_to_write_changes_nothing(run_command: RunCommand, tmp_path: Path) -> None:
    """The check whether a --save file can be written leaves no empty file, and does not change an existing one."""
    new, old, connection = tmp_path / "new.toml", tmp_path / "old.toml", tmp_path / "link.toml"
    old.write_text("kept")
    connection.symlink_to(tmp_path / "nowhere.toml")
    for path in (new, old, connection):
        status, _, err = run_command("shrink", "--seed", 1, "--scenario", "quiet", "--save", path)
        assert (status, "violates nothing" in err) == (2, True)
    assert (sorted(tmp_path.iterdir()), old.read_text()) == ([connection, old], "kept")


def test_golden_digests_that_cannot_be_kept_are_told_before_the_work(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Golden digests that cannot be written are refused before the work; the error says to use a working copy of the
    project."""
    monkeypatch.setattr(goldens, "place", lambda: tmp_path)
    monkeypatch.setattr(goldens, "digests", None)
    status, _, err = run_command("prove", "--write-golden")
    assert status == 2
    assert f"--write-golden: '{tmp_path}' cannot be written: Is a directory; use a working copy of the project" in err


def test_a_seed_is_the_same_run_in_other_processes(run_command: RunCommand) -> None:
    """The command ``prove`` finds the same digest in three fresh processes with three hash seeds."""
    status, out, _ = run_command("prove", "--seeds", 1, "--scenario", "quiet", "--json")
    told = json.loads(out)
    assert (status, told["compared"], told["differing"]) == (0, 1, {})
    assert len(set(told["processes"])) == 3


def test_a_seed_that_differs_is_named(run_command: RunCommand, tmp_path: Path) -> None:
    """An interpreter in which a run has another digest is reported with both digests."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 4 another\n", encoding="utf-8")
    other.chmod(0o755)
    arguments = ("prove", "--seeds", 1, "--first-seed", 4, "--scenario", "quiet", "--pythons", other, "--json")
    status, out, _ = run_command(*arguments)
    digests = json.loads(out)["differing"]["4"]
    assert status == 1
    assert "another" in digests.values()
    assert len(set(digests.values())) == 2


@pytest.mark.parametrize(
    ("complaint", "cause"),
    [
        ("no anyio here", "no anyio here"),
        ("Traceback (most recent call last):\n  File x\nModuleNotFoundError: no anyio\n", "ModuleNotFoundError: no"),
        (
            "a warning: of x\nTraceback (most recent call last):\n  File x\nhere.Broken: it is\n  so\n",
            "here.Broken: it",
        ),
    ],
)
def test_an_interpreter_without_the_project_is_named(tmp_path: Path, complaint: str, cause: str) -> None:
    """The error for an interpreter that cannot run the simulator has the line of its output that names the cause."""
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{complaint}\nEND\nexit 1\n", encoding="utf-8")
    other.chmod(0o755)
    with pytest.raises(CannotRun, match=f"install the project for it: {cause}"):
        prove(RunRequest(scenario="quiet"), range(1, 2), 1, [Process(str(other), "0")], lambda runs: None)
    with pytest.raises(CannotRun, match="'nothing' is no program"):
        processes(["nothing"])


def test_there_are_twenty_golden_scenarios_each_on_both_engines() -> None:
    """Every golden scenario is run on an asyncio schedule and on trio, as far as the scenario allows these; each run
    has a stored digest."""
    assert len(golden()) >= 20
    digests = kept()
    for wanted in runs():
        assert wanted.schedule is not None
        assert wanted.schedule in digests[wanted.name]
    for name in golden():
        assert {Schedule.SHUFFLE, Schedule.TRIO} & set(named(name).world.schedules) == set(map(Schedule, digests[name]))


# ------------------------------------------------------------------------------------------------------- the wiring
def test_help_does_not_import_the_simulator() -> None:
    """``supervisor --help`` names the simulator without importing it."""
    code = (
        "import sys; from supervisor.__main__ import main; sys.argv = ['supervisor', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(any(name.startswith('supervisor.simulation') for name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "simulate" in ran.stdout


def test_every_command_has_json() -> None:
    """Every command of the simulator has the option --json."""
    for command in (cli.group, *cli.COMMANDS, *verification.commands.values()):
        assert "as_json" in [one.name for one in command.params], command.name
