"""The hunt for planted bugs: the catalogue fits the source, nothing else plants it, and laws find what is found."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from supervisor.cli.invocation import execute
from supervisor.diagnostics.invariants import INVARIANTS
from supervisor.simulation.commands import hunt_cli
from supervisor.simulation.commands.cli import group
from supervisor.simulation.commands.hunt_cli import command
from supervisor.simulation.scenario import library
from supervisor.simulation.search import hunt as hunting
from supervisor.simulation.search import planting
from supervisor.simulation.search.hunt import (
    BadCatalogue,
    Bug,
    Found,
    Hunted,
    Reduced,
    catalogue,
    chosen,
    control,
    hunt,
)
from supervisor.simulation.search.interpreter import Interpreters
from supervisor.simulation.search.planting import NotPlanted, changed, changing, plant, source_path

ROOT = Path(__file__).parent.parent.parent
BUGS = catalogue()
TWICE = Bug(name="twice", invariant=1, module="supervisor.runtime.live_session", thought="", find="self", replace="it")
HARMLESS = Bug(
    name="harmless",
    invariant=1,
    module="supervisor.runtime.live_session",
    thought="",
    find="TEXT_MAX = 64 * 1024",
    replace="TEXT_MAX = 1024 * 64",
    scenarios=("quiet",),
)


def _hunt(bug: Bug) -> Hunted:
    [hunted], _ = hunt([bug], seeds=1, budget_s=30.0, jobs=1, tell=lambda hunted: None)
    return hunted


# ------------------------------------------------------------------------------------------------------ the catalogue
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_source_of_today(bug: Bug) -> None:
    """Its text occurs exactly once in its module, and what replaces it is another program that compiles."""
    source = changing(bug.module, bug.find, bug.replace)
    before = source_path(bug.module).read_text()
    assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(before))
    compile(source, bug.module, "exec", dont_inherit=True)


def test_there_are_three_bugs_for_each_invariant() -> None:
    """The catalogue holds at least sixty bugs; none of the first twenty invariants, and of those that only the world
    shows of the work, has fewer than three."""
    laws = list(INVARIANTS)
    count = Counter(laws[bug.invariant - 1] for bug in BUGS)
    wanted = [*laws[:20], "archive_preservation", "health_monitoring"]
    assert len(BUGS) >= 60
    assert [law for law in wanted if count[law] < 3] == []


def test_bugs_are_planted_in_the_runtime() -> None:
    """None of them is in the simulator, or in what judges it."""
    judges = ("supervisor.simulation", "supervisor.diagnostics.invariants", "supervisor.diagnostics.replay")
    assert [bug.name for bug in BUGS if bug.module.startswith(judges)] == []


def test_bugs_are_hunted_where_there_is_a_scenario() -> None:
    """The scenarios that a bug names are in the library."""
    assert {name for bug in BUGS for name in bug.scenarios} <= set(library())


def test_a_bug_that_nobody_knows_is_told_with_those_there_are() -> None:
    """A wrong name is bad input, which names the right ones."""
    with pytest.raises(BadCatalogue, match=r"nothing is named nobody; there are .*launch-first"):
        chosen(["nobody"])


def test_three_thirds_are_the_whole_catalogue() -> None:
    """Every bug is in exactly one third."""
    thirds = [bug.name for third in range(3) for bug in chosen((), third)]
    assert sorted(thirds) == sorted(bug.name for bug in BUGS)


# ------------------------------------------------------------------------------------------------------- nothing else
@pytest.mark.parametrize(("find", "replace"), [("a", "b"), ("c", "b"), ("", "b"), ("b", "b")])
def test_what_does_not_fit_is_not_planted(find: str, replace: str) -> None:
    """A text that is not there once, and a change that changes nothing, are refused."""
    with pytest.raises(NotPlanted):
        changed("a a b", find, replace)


@pytest.mark.parametrize("module", ["supervisor.nothing", "nothing.at.all", "sys"])
def test_a_module_without_source_is_not_planted(module: str) -> None:
    """The error names the module."""
    with pytest.raises(NotPlanted, match=f"no source of '{module}'"):
        changing(module, "a", "b")


def test_nothing_is_planted_where_the_runtime_runs() -> None:
    """A module that has been imported is refused, and the import system is as it was."""
    finders = list(sys.meta_path)
    with pytest.raises(NotPlanted, match=r"supervisor\.simulation\.search\.planting has been imported already"):
        plant("supervisor.simulation.search.planting", "")
    assert sys.meta_path == finders


def test_only_a_process_of_its_own_plants() -> None:
    """The one call of ``plant`` is in what that process runs, which no other module imports or reads from outside."""
    calls = [
        (path.name, function.name)
        for path in [*(ROOT / "supervisor").rglob("*.py"), *(ROOT / "actors").rglob("*.py")]
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "plant"
    ]
    assert calls == [("planting.py", "_main")]
    assert not {"environ", "getenv", "argv"} & set(_names(Path(planting.__file__)))


def _names(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [getattr(node, "attr", getattr(node, "id", "")) for node in nodes]


def test_the_command_runs_the_source_as_it_is() -> None:
    """With every module of the command and of the hunt imported, no finder or loader of the hunt is in use."""
    words = (
        "import json, sys, supervisor.cli.run, supervisor.embedding.runtime, supervisor.simulation.commands.hunt_cli\n"
        "found = [type(one).__module__ for one in sys.meta_path]\n"
        "found += [type(one.__loader__).__module__ for one in sys.modules.values() if hasattr(one, '__loader__')]\n"
        "print(json.dumps([one for one in found if 'planting' in one]))"
    )
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(told.stdout) == []


# ---------------------------------------------------------------------------------------------------------- the hunt
def test_a_bug_is_found_and_the_control_is_clean() -> None:
    """The law that it breaks is told, and the same run without it breaks none."""
    bug = msgspec.structs.replace(chosen(["from-after-the-step"])[0], scenarios=("quiet",))
    found = _hunt(bug)
    assert (found.result.found, found.result.law, found.result.scenario) == (True, "legal", "quiet")
    clean = control([found], budget_s=30.0)
    assert (clean.found, clean.problems, clean.runs) == (False, (), 1)


def test_a_run_that_found_a_bug_shrinks_to_a_test_of_it() -> None:
    """With --shrink, what is left is told with its file, which fails by itself, and is small."""
    bug = msgspec.structs.replace(chosen(["from-after-the-step"])[0], scenarios=("urgent",))
    [hunted], _ = hunt([bug], seeds=1, budget_s=30.0, jobs=1, tell=lambda hunted: None, shrink=True)
    assert hunted.shrunk is not None
    assert (hunted.good, hunted.shrunk.invariant, hunted.shrunk.faults) == (True, "legal", ())
    assert "customers = 1\n" in hunted.shrunk.scenario


@pytest.mark.parametrize(
    ("changed", "small"),
    [
        ({}, True),
        ({"faults": ("a",) * 6}, False),
        ({"cpu_s": 60.1}, False),
        ({"fails_again": False}, False),
    ],
)
def test_what_is_small(changed: dict[str, Any], small: bool) -> None:
    """Five faults, sixty CPU seconds, and a file that fails by itself; a hunt is good only with that."""
    shrunk = msgspec.structs.replace(Reduced(faults=("a",) * 5, cpu_s=60.0, fails_again=True), **changed)
    found = Found(found=True, runs=1, cpu_s=1.0)
    assert shrunk.small is small
    assert Hunted(bug="it", invariant=1, result=found, shrunk=shrunk).good is small


def test_each_line_of_a_hunt_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A problem that is told over several lines, as that of a run that is stuck, takes one."""
    found = Found(found=True, runs=1, cpu_s=1.0, problems=("quiescence: run: stuck:\n  one\n  two",))
    hunt_cli._lines(Hunted(bug="it", invariant=1, result=found, shrunk=Reduced(broken="it broke")))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("quiescence: run: stuck: one two")
    assert second.endswith("it broke")


def test_what_changes_nothing_is_not_found() -> None:
    """A hunt that finds nothing says so, and how far it went."""
    hunted = _hunt(HARMLESS)
    assert (hunted.result.found, hunted.result.problems, hunted.result.runs) == (False, (), 1)


def test_an_interpreter_that_breaks_has_found_nothing() -> None:
    """A module that cannot even be imported says nothing about the oracle."""
    broken = msgspec.structs.replace(HARMLESS, find="class Work:", replace="class Work(nobody):")
    hunted = _hunt(broken)
    assert not hunted.result.found
    assert "its interpreter broke: NameError: name 'nobody' is not defined" in hunted.result.broken
    assert hunted.result.problems == ()


@pytest.mark.parametrize(
    ("replace", "words"),
    [
        ("raise RuntimeError('of the simulator')", "quiet, seed 1: RuntimeError: of the simulator"),
        ("[0 for _ in iter(int, 1)]", "quiet, seed 1: it computes for more than 0.2 s"),
    ],
)
def test_a_run_that_breaks_has_found_nothing(monkeypatch: pytest.MonkeyPatch, replace: str, words: str) -> None:
    """An exception of the simulator itself, or a run without an end, is told as such and is no violation."""
    monkeypatch.setattr(planting, "ENDLESS_S", 0.2)
    answers: list[dict[str, object]] = []
    monkeypatch.setattr(planting, "_say", lambda **answer: answers.append(answer))

    class Gone(BaseException):
        pass

    def exit(status: int) -> None:
        raise Gone

    def simulate(drawn: object) -> None:
        exec(replace)

    monkeypatch.setattr("os._exit", exit)
    monkeypatch.setattr("supervisor.simulation.running.simulate", simulate)
    before = signal.getsignal(signal.SIGPROF)
    order = {"seeds": 1, "scenarios": ["quiet"], "exactly": (), "skip": (), "done": 0, "budget_s": 9.0}
    try:
        with contextlib.suppress(Gone):
            planting._hunt(order)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert [(one["found"], one.get("problems", ()), one["broken"]) for one in answers] == [(False, (), [words])]


def test_a_hunt_goes_on_behind_a_run_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next interpreter begins with the run after it; what it took and what broke add up."""
    orders: list[dict[str, Any]] = []

    def begin(interpreters: Interpreters, order: dict[str, Any]) -> Found:
        orders.append(order)
        if order["done"] < 2:
            return Found(found=False, runs=order["done"] + 1, cpu_s=20.0, broken=("no end",), endless=True)
        return Found(found=True, runs=3, cpu_s=1.0, problems=("legal: s: no",))

    monkeypatch.setattr(hunting, "_begin", begin)
    result = hunting._run(Interpreters(), {"done": 0, "budget_s": 60.0})
    assert [(one["done"], one["budget_s"]) for one in orders] == [(0, 60.0), (1, 40.0), (2, 20.0)]
    assert (result.found, result.runs, result.cpu_s, result.broken) == (True, 3, 41.0, ("no end", "no end"))


def test_a_bug_that_does_not_fit_any_more_is_bad_input() -> None:
    """It is named before anything is hunted."""
    with pytest.raises(BadCatalogue, match="bug twice: find: occurs"):
        _hunt(TWICE)


def test_a_wrong_name_on_the_command_line_is_bad_input() -> None:
    """Exit status 2, and no traceback."""
    result = CliRunner().invoke(command, ["--bug", "nobody"])
    assert result.exit_code == 2
    assert "nothing is named nobody" in result.output


@pytest.mark.parametrize(
    ("found", "clean", "status"),
    [(True, True, 0), (False, True, 1), (True, False, 1)],
    ids=["found", "missed", "not clean"],
)
def test_the_exit_status_says_how_the_hunt_went(
    monkeypatch: pytest.MonkeyPatch, found: bool, clean: bool, status: int
) -> None:
    """A bug that is missed, and a control that finds something, are failures of the command line too."""
    result = Found(found=found, runs=1, cpu_s=1.0)
    hunted = [Hunted(bug="it", invariant=1, result=result)]
    told = Found(found=not clean, runs=1, cpu_s=1.0, problems=() if clean else ("legal: it: no",))
    monkeypatch.setattr(hunt_cli, "hunt", lambda bugs, **how: (hunted, True))
    monkeypatch.setattr(hunt_cli, "control", lambda hunted, **how: told)
    assert execute(group, ["hunt", "--bug", BUGS[0].name]) == status


# ---------------------------------------------------------------------------------------------------------- Ctrl-C
def test_a_hunt_that_is_interrupted_keeps_what_it_has() -> None:
    """Who is hunted just then, or was to be, is neither found nor missed."""

    def interrupt(hunted: Hunted) -> None:
        raise KeyboardInterrupt

    bugs = [HARMLESS, msgspec.structs.replace(HARMLESS, name="next", scenarios=("swarm",))]
    hunted, complete = hunt(bugs, seeds=1, budget_s=30.0, jobs=1, tell=interrupt)
    assert ([one.bug for one in hunted], complete) == (["harmless"], False)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_an_interpreter_hears_no_ctrl_c_and_goes_with_whoever_started_it() -> None:
    """Whose terminal is closed, or whose group is ended, leaves none of them behind."""
    with Interpreters()._started() as child:
        os.kill(child.pid, signal.SIGINT)
        assert os.getpgid(child.pid) == os.getpgrp()
        said, _ = child.communicate(json.dumps(hunting._exactly([("quiet", 1)], 30.0)) + "\n")
    assert (child.returncode, json.loads(said)["runs"]) == (0, 1)


@pytest.mark.parametrize("when", ["hunt", "control"])
def test_an_interrupted_hunt_is_no_failure(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """What was reached is printed, without a word of the control, and the exit status says so."""

    def interrupted(hunted: list[Hunted], **how: object) -> Found:
        raise KeyboardInterrupt

    hunted = [Hunted(bug="it", invariant=1, result=Found(found=True, runs=1, cpu_s=1.0))]
    monkeypatch.setattr(hunt_cli, "hunt", lambda bugs, **how: (hunted, when == "control"))
    monkeypatch.setattr(hunt_cli, "control", interrupted)
    result = CliRunner().invoke(command, ["--json"], standalone_mode=False)
    assert (result.return_value, json.loads(result.output)) == (
        130,
        {"control": None, "missed": [], "interrupted": True},
    )
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert result.output.startswith("interrupted; what was reached until then:\n1 of 1 bugs found")
    assert "control" not in result.output
