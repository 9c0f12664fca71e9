"""Tests of the pytest plugin, with which users test their own programs in virtual time; pytest runs these tests from
outside."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from supervisor import AgentConfig, AgentTurn, JournalUnavailable, Session, Settings, Supervisor
from supervisor.diagnostics.invariants import INVARIANTS
from supervisor.plans import LimitsConfig
from supervisor.simulation import pytest_plugin
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.engine import HorizonReached
from supervisor.simulation.engine.schedule import Schedule
from supervisor.simulation.testing import Simulate, Violated

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAD = """
import anyio

async def agent(turn):
    await anyio.sleep(100)
    return turn.prompt

"""


def _run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_mine=HEAD + test)
    return pytester.runpytest_inprocess("-W", "error", "-p", "no:cacheprovider", *arguments)


# ------------------------------------------------------------------------------------------------------------ loading
def test_the_plugin_costs_nothing_to_those_who_do_not_use_it() -> None:
    """Importing the plugin imports neither the runtime nor an event loop."""
    program = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import supervisor.simulation.pytest_plugin\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new & {'trio', 'anyio', 'asyncio', 'pydantic', 'msgspec', 'actors'}))\n"
    )
    loaded = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout == "\n"


def test_the_words_of_the_command_line_are_those_of_the_engine() -> None:
    """The command line option accepts every schedule of the engine, and no other."""
    assert list(pytest_plugin.SCHEDULES) == [one.value for one in Schedule]


def test_the_example_runs(pytester: pytest.Pytester) -> None:
    """The example of the documentation runs without a warning."""
    pytester.makepyfile(test_simulated=(EXAMPLES / "test_simulated.py").read_text(encoding="utf-8"))
    pytester.runpytest_inprocess("-W", "error", "--simulation-seeds", "2").assert_outcomes(passed=3)


# ------------------------------------------------------------------------------------------------------------- seeds
COUNTS = """
def test_counts(simulated_supervisor):
    async def main(sup):
        return (await (await sup.start_session("s", agent=agent)).run("x")).text
    played = simulated_supervisor(main)
    print([(one.value, one.report.seed) for one in played])
"""


@pytest.mark.parametrize(
    ("arguments", "seeds"), [(("--simulation-seeds", "3"), [1, 2, 3]), (("--simulation-seed", "7"), [7])]
)
def test_the_seeds_are_those_of_the_command_line(
    arguments: tuple[str, ...], seeds: list[int], pytester: pytest.Pytester
) -> None:
    """The seeds of a test are 1 to N, or exactly one, as the command line says."""
    ran = _run(pytester, COUNTS, "-s", *arguments)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines([f"*{[('x', seed) for seed in seeds]}*".replace("[", "[[]")])


@pytest.mark.parametrize("arguments", [("--simulation-seeds", "0"), ("--simulation-seed", "-1")])
def test_what_would_test_nothing_is_refused(arguments: tuple[str, ...], pytester: pytest.Pytester) -> None:
    """A number of seeds or a seed that is too small is a usage error; the message names the option, the value, and a
    valid value."""
    ran = _run(pytester, COUNTS, *arguments)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"*{arguments[0]}: {arguments[1]} is too small; give * or more*"])


# ---------------------------------------------------------------------------------------------------------- failures
FAILS = """
def test_fails(simulated_supervisor):
    seeds = iter(range(1, 99))
    async def main(sup):
        session = await sup.start_session("s", agent=agent)
        await session.run("x")
        number = next(seeds)
        assert number != 2, "not this one"
    simulated_supervisor(main)
"""


def test_an_assertion_of_the_test_tells_its_seed(pytester: pytest.Pytester) -> None:
    """A failing assertion is shown as the test's own, with the command that runs the failing seed again."""
    ran = _run(pytester, FAILS)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            '>*assert number != 2, "not this one"*',
            "E*AssertionError: not this one*",
            "E*run it again: pytest test_mine.py::test_fails --simulation-seed 2",
        ]
    )
    assert "guest.py" not in ran.stdout.str()


def test_a_schedule_of_the_command_line_is_part_of_the_line(pytester: pytest.Pytester) -> None:
    """The command that runs a failing seed again repeats the schedule of the command line, which overrides the seed's
    own."""
    ran = _run(pytester, FAILS, "--simulation-schedule", "pct")
    ran.stdout.fnmatch_lines(
        [
            "E*seed 2, schedule pct*",
            "E*run it again: pytest test_mine.py::test_fails --simulation-seed 2 --simulation-schedule pct",
        ]
    )


def test_the_line_runs_where_pytest_was_called(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that runs a failing seed again has a path that is valid from the current directory, below the root
    directory or beside it."""
    test = pytester.mkdir("below").joinpath("test_mine.py")
    test.write_text(HEAD + FAILS, encoding="utf-8")
    pytester.makeini("[pytest]\n")
    beside = pytester.mkdir("beside it")
    for here, path in ((test.parent, "test_mine.py"), (beside, "../below/test_mine.py")):
        monkeypatch.chdir(here)
        ran = pytester.runpytest_inprocess("-p", "no:cacheprovider", str(test))
        # Where the variable CI is set, pytest says the whole message once more in its summary, without the margin.
        (line,) = [one for one in ran.outlines if one.startswith("E ") and "run it again: " in one]
        assert line.endswith(f"run it again: pytest {path}::test_fails --simulation-seed 2")


VIOLATES = """
def test_violates(simulated_supervisor, monkeypatch):
    from supervisor.simulation.oracle import Oracle
    quiet = Oracle.check_quiescence
    def broken(self, *given):
        quiet(self, *given)
        self.violated("bounded", "s", "something that must not be")
    monkeypatch.setattr(Oracle, "check_quiescence", broken)
    async def main(sup):
        await sup.start_session("s", agent=agent)
    simulated_supervisor(main)
"""


def test_a_violation_fails_a_test_that_asserts_nothing(pytester: pytest.Pytester) -> None:
    """A violation fails a test without assertions; the message has the oracle's report and the command."""
    ran = _run(pytester, VIOLATES)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "E*Violated: seed 1, schedule *",
            "E*bounded: s: something that must not be",
            "E*run it again: pytest test_mine.py::test_violates --simulation-seed 1",
        ]
    )


def test_a_test_may_skip_itself(pytester: pytest.Pytester) -> None:
    """A test that skips itself within the run is skipped, and not failed."""
    ran = _run(
        pytester,
        "import pytest\n"
        "def test_skips(simulated_supervisor):\n"
        "    async def main(sup):\n"
        "        pytest.skip('not today')\n"
        "    simulated_supervisor(main)\n",
    )
    ran.assert_outcomes(skipped=1)


# ------------------------------------------------------------------------------------------------- what main can have
def _simulate(*seeds: int) -> Simulate:
    return Simulate(seeds or (1, 2), lambda seed: f"again {seed}")


async def _mine(turn: AgentTurn) -> str:
    await anyio.sleep(10)
    return "done"


def test_agents_are_functions_shapes_or_simulated_programs() -> None:
    """Agents given as function, shape or simulated program are available by their names, and complete their turns."""
    agents = {
        "a": _mine,
        "b": AgentShape(adapter="inprocess", delegation=0.0),
        "c": AgentConfig(adapter="acp", command=("any",)),
        "d": AgentConfig(adapter="command", command=("any", "{prompt}")),
        "e": AgentConfig(adapter="jsonl", command=("any",), known="gemini-cli"),
        "f": AgentConfig(adapter="claude", command=("any",)),
    }
    adapters = ["inprocess", "inprocess", "acp", "command", "jsonl", "acp"]

    async def main(sup: Supervisor) -> list[tuple[str, str]]:
        sessions = [await sup.start_session(name, agent=name) for name in agents]
        return [
            ((await one.run("work")).outcome, sup.core.registry.sessions[one.id].profile.adapter) for one in sessions
        ]

    for played in _simulate()(main, agents=agents):
        assert played.value == [("completed", adapter) for adapter in adapters]


def test_settings_are_those_of_the_supervisor() -> None:
    """With a turn limit in the given settings, a turn that takes longer fails at that limit."""

    async def main(sup: Supervisor) -> tuple[str, float]:
        session = await sup.start_session("s", agent=_mine)
        return (await session.run("work")).outcome, anyio.current_time()

    limits = LimitsConfig(turn_timeout_s=4.0, max_consecutive_errors=1)
    for played in _simulate()(main, settings=Settings(limits=limits)):
        assert played.value is not None
        outcome, at_s = played.value
        assert outcome == "failed"
        assert 4.0 <= at_s < 4.0 + 18


def test_faults_strike_where_they_are_asked_for() -> None:
    """Only the given fault kinds strike; by default none strikes."""

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=_mine)
        for _ in range(20):
            await session.run("work")

    with_faults = _simulate(*range(1, 5))(main, faults=["disk.slow", "disk.busy"])
    struck = {kind for one in with_faults for kind in one.report.faults}
    assert struck == {"disk.slow", "disk.busy"}
    assert all(one.report.faults == {} for one in _simulate()(main))


def test_a_disk_that_is_down_at_the_end_is_heard_by_the_test() -> None:
    """A run whose supervisor gives up on its disk raises an error with the seed; the run is never taken for a
    success."""

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=_mine)

        async def until_degraded() -> None:
            await sup.degraded()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(until_degraded)
            await _work(session, 300)
            group.cancel_scope.cancel()

    with pytest.raises(JournalUnavailable, match=r"simulated disk\.error.*the run ended before") as caught:
        _simulate(*range(15, 30))(main, faults=["disk.error"])
    (note,) = caught.value.__notes__
    assert "run it again: again " in note


def test_prompts_outlast_a_disk_that_fails() -> None:
    """A prompt waits until a failing disk has recovered, however long, and then completes. (A disk that is down at the
    very end is another test.)"""
    outages = answered = 0

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=_mine)
        async with anyio.create_task_group() as group:
            group.start_soon(_count, sup)
            await _work(session, 50)
            group.cancel_scope.cancel()
        nonlocal answered
        answered += 1

    async def _count(sup: Supervisor) -> None:
        nonlocal outages
        await sup.degraded()
        outages += 1

    for seed in range(1, 9):
        with suppress(JournalUnavailable):
            _simulate(seed)(main, faults=["disk.error", "disk.full", "disk.readonly"])
    assert answered == 8
    assert outages


async def _work(session: Session, prompts: int) -> None:
    for _ in range(prompts):
        assert (await session.run("work")).ok


def test_a_test_that_waits_for_ever_fails() -> None:
    """A test that waits for ever fails at its limit of virtual time; the error names the seed."""

    async def main(sup: Supervisor) -> None:
        await anyio.sleep_forever()

    with pytest.raises(HorizonReached) as caught:
        _simulate(3)(main, schedule="fifo", horizon_s=100.0)
    assert "run it again: again 3" in caught.value.__notes__[0]


@pytest.mark.parametrize("schedule", Schedule)
def test_a_test_that_waits_for_ever_is_accused_of_nothing_else(schedule: Schedule) -> None:
    """When the time of a test is over, the work that is then cancelled is not reported as violations; only the
    invariant ``quiescence`` is."""

    async def main(sup: Supervisor) -> None:
        async with anyio.create_task_group() as group:
            for name in ("a", "b", "c"):
                session = await sup.start_session(name, agent="acp")
                group.start_soon(session.run, "one")
            await anyio.sleep_forever()

    with pytest.raises(HorizonReached) as caught:
        _simulate(1)(main, schedule=schedule.value, horizon_s=20.0)
    (note,) = caught.value.__notes__
    assert [law for law in INVARIANTS if f"\n  {law}: " in note] == ["quiescence"]


def test_a_machine_that_sleeps_takes_nothing_of_the_time_of_a_test() -> None:
    """Faults strike as long as the test runs, and sleeps of the simulated machine do not reduce the time of the
    test."""

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=_mine)
        for number in range(100):
            await session.run(f"number {number}")

    played = _simulate(*range(1, 17))(main, faults=["clock.*"], horizon_s=2_000)
    assert max(one.report.simulated_s for one in played) > 2_000


def test_code_that_logs_can_be_tested() -> None:
    """Logging, which would read the real clock, is off during a run and on after it."""
    logger = logging.getLogger("mine")
    before = logging.root.manager.disable

    async def main(sup: Supervisor) -> bool:
        logger.critical("not written")
        return logger.isEnabledFor(logging.CRITICAL)

    assert [one.value for one in _simulate()(main)] == [False, False]
    assert logging.root.manager.disable == before


def test_the_same_seed_is_the_same_run() -> None:
    """Two runs of the same seeds with faults have the same digests."""
    runs = [_simulate(1, 2, 3)(_one_turn, faults=["process.*", "disk.slow"]) for _ in range(2)]
    first, again = [[one.report.digest for one in played] for played in runs]
    assert first == again
    assert len(set(first)) == 3


async def _one_turn(sup: Supervisor) -> None:
    session = await sup.start_session("s", agent="acp")
    await session.run("one")


async def _nothing(sup: Supervisor) -> None:
    return None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"faults": "disk.*"}, "faults: 'disk.*' is one text"),
        ({"faults": ["nothing.*"]}, "faults: 'nothing.*' fits no kind that strikes here; the kinds are process.spawn_"),
        ({"faults": ["disk.*", "host.*"]}, "faults: 'host.*' fits no kind that strikes here; the kinds are process.sp"),
        ({"faults": ["machine.crash"]}, "faults: 'machine.crash' fits no kind that strikes here"),
        ({"faults": ["work.hangs"]}, "faults: 'work.hangs' fits no kind that strikes here"),
        ({"schedule": "random"}, "schedule: 'random' is unknown; use one of fifo"),
        ({"agents": {"a": 3}}, "agents: a: 3 is not an AgentConfig"),
        ({"agents": ["a"]}, "agents: ['a'] does not map names to agents"),
        ({"settings": {"limits": {}}}, "settings: {'limits': {}} is not a Settings; give supervisor.Settings(...)"),
        ({"faults": [3]}, "faults: 3 fits no kind"),
        ({"faults": 5}, "faults: 5 is not a list of patterns; give one, for example ['disk.*']"),
        ({"agents": {3: _nothing}}, "agents: 3 is not a name; give {name: agent}"),
        ({"intensity": 7}, "intensity: 7 is not a number from 0 to 1; give one"),
        ({"intensity": [0.1, 0.5]}, "intensity: [0.1, 0.5] is not a number from 0 to 1"),
        ({"horizon_s": 0}, "horizon_s: 0 is not a number from 1 to 1,000,000; give one"),
        ({"horizon_s": [1, 2]}, "horizon_s: [1, 2] is not a number from 1 to 1,000,000"),
        ({"horizon_s": None}, "horizon_s: None is not a number from 1"),
    ],
)
def test_bad_arguments_are_told_before_anything_runs(arguments: dict[str, object], words: str) -> None:
    """Bad arguments are refused before anything runs; the message names the argument and a valid value."""
    with pytest.raises((ValueError, TypeError)) as caught:
        _simulate()(_nothing, **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(words)


def test_a_main_that_is_not_async_is_told() -> None:
    """A ``main`` that is not async is refused; the message says to write ``async def main``."""
    with pytest.raises(TypeError, match="is not an async function; write async def main"):
        _simulate()(lambda sup: None)  # type: ignore[arg-type,return-value]


def test_a_violation_is_an_assertion() -> None:
    """The exception for a violation is an AssertionError, which every test framework counts as a failure."""
    assert issubclass(Violated, AssertionError)
