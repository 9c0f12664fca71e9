"""Commands of a second terminal that find, follow and await: ``logs``, ``wait``, ``ps --watch``, ids and completion."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.journal.statedir import StateDir
from tests.cli.test_end_to_end_cli import run
from tests.support import run_command as cli

pytestmark = pytest.mark.one_backend

AGENTS = """
task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
agents: {sh: {adapter: command, command: [sh, -eu]}}
tasks:
"""
TWO_TASKS = """
  - {id: good, agent: sh, prompt: echo well}
  - {id: bad, agent: sh, prompt: exit 3, max_retries: 0}
"""
RETRIED = """
task_lifecycle: {max_attempts: 1}
agents:
  worker:
    adapter: command
    explain_retries: true
    command:
      - sh
      - -euc
      - while test ! -e go; do sleep 0.01; done; if test -e again; then touch done; else touch again; fi
tasks: [{id: t, agent: worker, prompt: work, max_retries: 1, acceptance: [{file_exists: done}]}]
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixture: the state directory of two runs of a plan, in which the task ``good`` completes and ``bad`` fails."""
    folder = tmp_path_factory.mktemp("twice")
    (folder / "plan.yaml").write_text(AGENTS + TWO_TASKS)
    for _ in range(2):
        output = cli("run", folder / "plan.yaml", "--workdir", folder, "--state-dir", folder / "state")
        assert output.status == 1, output.err
    return folder / "state"


# ------------------------------------------------------------------------------------------------- after the runs
def test_logs_of_a_name_are_those_of_its_newest_session(twice: Path) -> None:
    """``logs`` with the name of a task prints the newest session's transcript, and says how to print the older one."""
    newest, older = cli("logs", "good", "--state-dir", twice), cli("logs", "good", "--exact", "--state-dir", twice)
    assert newest.err == (
        "supervisor: good-2 is the newest of 2 sessions of good; the older ones: `supervisor logs good --exact`\n"
    )
    assert [line.partition(" ")[2] for line in newest.out.splitlines()] == ["prompt| echo well", "message| well"]
    assert (older.err, older.out == newest.out) == ("", False)
    assert cli("logs", "good:t1", "--state-dir", twice) == older
    assert cli("logs", "r2#good", "--state-dir", twice).out == newest.out
    assert cli("logs", "good", "-f", "--state-dir", twice) == newest


@pytest.mark.parametrize(
    ("name", "status", "line"),
    [
        ("good", 0, "r2#good: completed"),
        ("r1#good", 0, "r1#good: completed"),
        ("good-2", 0, "good-2: completed"),
        ("bad", 1, "r2#bad: failed (exit status 3, checkpoint in place (CIRCUIT_OPEN))"),
        ("r1", 1, "r1: failed (1 of 2 tasks completed, 1 failed)"),
    ],
)
def test_wait_for_what_has_ended_tells_its_outcome(twice: Path, name: str, status: int, line: str) -> None:
    """``wait`` for a task, session or workstream that has ended returns at once; the exit status is the outcome."""
    assert cli("wait", name, "--state-dir", twice) == (status, f"{line}\n", "")


def test_wait_without_an_id_waits_for_the_run(twice: Path) -> None:
    """``wait`` without an id waits for the newest run of a plan."""
    output = cli("wait", "--json", "--state-dir", twice)
    assert (output.status, output.json["id"], output.json["outcome"]) == (1, "r2", "failed")


@pytest.mark.parametrize("name", [[], ["good"]])
def test_wait_at_the_start_of_a_run_is_for_that_run(
    twice: Path, tmp_path: Path, name: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a supervisor runs, ``wait`` with a name or without an id does not return the outcome of an earlier run; an
    id means one entity. If the supervisor ends without a newer run, ``wait`` fails."""
    state = StateDir.open(tmp_path / "state")
    state.journal.write_bytes(StateDir(twice).journal.read_bytes())
    with ExitStack() as lock:
        lock.enter_context(state.lock())
        late = cli("wait", *name, "--timeout", "0", "--state-dir", state.root)
        assert (late.status, late.out) == (124, "")
        assert "is of an earlier run, and there is no newer one after 0 s" in late.err
        assert cli("wait", "r2#good", "--state-dir", state.root).out == "r2#good: completed\n"
        monkeypatch.setattr("supervisor.cli.wait.pause", lock.close)
        output = cli("wait", *name, "--state-dir", state.root)
    assert (output.status, output.out) == (1, "")
    assert "has ended without a newer one" in output.err


def test_wait_for_a_run_that_ended_meanwhile_tells_its_outcome(twice: Path, tmp_path: Path) -> None:
    """``wait`` returns the outcome of a run that the running supervisor has ended already."""
    state = StateDir.open(tmp_path / "state")
    state.journal.write_bytes(StateDir(twice).journal.read_bytes())
    with state.lock():
        with apsw.Connection(str(state.journal)) as db:
            db.execute("UPDATE entities SET changed_at = ? WHERE id = 'r2'", (time.time() + 1,))
        db.close()
        assert cli("wait", "--state-dir", state.root).out.startswith("r2: failed")
        assert cli("wait", "good", "--state-dir", state.root).out == "r2#good: completed\n"


def test_wait_for_what_nobody_can_end_any_more_fails(twice: Path, tmp_path: Path) -> None:
    """``wait`` for a task that a dead supervisor has left fails at once, and says what continues the task."""
    state = StateDir.open(tmp_path / "state")
    state.journal.write_bytes(StateDir(twice).journal.read_bytes())
    with apsw.Connection(str(state.journal)) as db:
        db.execute("UPDATE entities SET ended = 0, state = 'IN_PROGRESS' WHERE id = 'r2#good'")
    db.close()
    output = cli("wait", "good", "--state-dir", state.root)
    assert (output.status, output.out) == (1, "")
    assert output.err == (
        f"supervisor: r2#good has not ended (IN_PROGRESS), and no supervisor runs on {state.root}; "
        "`supervisor run PLAN.yaml`, or the daemon that had it, continues an interrupted plan\n"
    )


@pytest.mark.parametrize("command", ["wait", "logs", "why", "events"])
def test_a_misspelt_id_is_answered_with_near_ones(twice: Path, command: str) -> None:
    """A command about an unknown id names ids with a similar spelling."""
    output = cli(command, "goodd", "--state-dir", twice)
    assert output.status == 2
    assert "nothing has the id 'goodd'; did you mean good or " in output.err


def test_wait_for_a_turn_says_what_can_be_waited_for(twice: Path) -> None:
    """``wait`` refuses ids of other kinds, and says what can be waited for."""
    output = cli("wait", "good:t1", "--state-dir", twice)
    assert (output.status, output.err) == (
        2,
        "supervisor: good:t1 is a turn: give the id of a task, a session or a run\n",
    )


def test_ps_watch_ends_with_the_supervisor(twice: Path) -> None:
    """``ps --watch`` without a running supervisor prints the table once; with ``--json`` it is refused."""
    assert cli("ps", "--watch", "--state-dir", twice) == cli("ps", "--state-dir", twice)
    assert "events --follow --json" in cli("ps", "--watch", "--json", "--state-dir", twice).err


def test_ps_watch_that_draws_nothing_clears_nothing(twice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal ``ps --watch`` without a running supervisor leaves the screen of the user as it was."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    assert execute(supervisor, ["ps", "--watch", "--state-dir", str(twice)]) == 0
    assert "\x1b" not in out.getvalue()
    assert "workstream" in out.getvalue()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("supervisor logs b", ["bad-2", "bad"]),
        ("supervisor wait r", ["r2", "r1"]),
        ("supervisor wait r1#g", ["r1#good"]),
        ("supervisor why good-2:", ["good-2:t1", "good-2:a1"]),
        ("supervisor abort ", []),
        ("supervisor wa", ["wait"]),
        ("supervisor ret", ["retry"]),
    ],
)
def test_ids_and_commands_are_completed(
    twice: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    completed: list[str],
) -> None:
    """The shell completes commands, and the ids that a command takes; ``abort`` takes nothing that has ended."""
    monkeypatch.setenv("SUPERVISOR_STATE_DIR", str(twice))
    monkeypatch.setenv("_SUPERVISOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        execute(supervisor, [])
    assert capsys.readouterr().out.split() == [f"plain,{one}" for one in completed]


# ------------------------------------------------------------------------------------------------- during a run
@pytest.fixture
def followers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Fixture: a list of processes that are ended after the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_a_task_is_followed_over_its_retry(tmp_path: Path, followers: list[subprocess.Popen[str]]) -> None:
    """``logs -f`` of a task goes on with the session of its retry, ``wait`` waits for the last one, and ``ps --watch``
    prints the table whenever a state has changed."""
    (tmp_path / "plan.yaml").write_text(RETRIED)
    with run(tmp_path / "plan.yaml") as one:
        one.until(entity_id="t:t1", to_status="RUNNING")
        late = cli("wait", "t", "--timeout", "0", "--state-dir", one.state_dir)
        assert (late.status, late.err) == (124, "supervisor: r1#t has not ended after 0 s: it is IN_PROGRESS\n")
        misspelt = cli("task", "block", "tt", "--on", "x", "--state-dir", one.state_dir)
        words = "supervisor: no running plan has a task 'tt'; did you mean t?\n"
        assert (misspelt.status, misspelt.err) == (2, words)
        for arguments in (["logs", "t", "-f"], ["wait", "t"], ["ps", "--watch"]):
            argv = [sys.executable, "-m", "supervisor", *arguments, "--state-dir", str(one.state_dir)]
            followers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        logs, waiting, watching = followers
        assert logs.stdout is not None
        assert watching.stdout is not None
        assert logs.stdout.readline().endswith("prompt| work\n")
        assert watching.stdout.readline().split()[:2] == ["ID", "KIND"]
        (tmp_path / "go").touch()
        assert one.result() == {"t": "completed"}
        out, err = logs.communicate(timeout=120)
        assert "prompt| work" in out
        assert err.startswith("supervisor: t-2 works on t now\n")
        assert waiting.communicate(timeout=120) == ("r1#t: completed\n", "")
        assert "t-2" in watching.communicate(timeout=120)[0]


# --------------------------------------------------------------------------------------------- standard input
def test_a_plan_is_run_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run -`` and ``plan check -`` read the plan from standard input; its mistakes are told by line."""

    def given(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    given("agents: {sh: {adapter: command, command: [sh]}}\ntasks: [{id: t, agent: sh}]\n")
    ran = cli("run", "-", "--state-dir", tmp_path / "state", "--workdir", tmp_path)
    assert (ran.status, ran.err) == (0, "")
    assert "completed" in ran.out.rpartition("TASK")[2]
    given("agents: {}\ntasks: []\n")
    checked = cli("plan", "check", "-")
    assert checked.status == 2
    assert checked.err.startswith("supervisor: standard input:1: agents: ")


def test_verbose_runs_log_each_transition_in_a_readable_line(tmp_path: Path) -> None:
    """``-v`` logs the transitions of plan, task, session, turn and tool call; ``-vv`` also logs jobs and facts."""
    plan = tmp_path / "plan.yaml"
    plan.write_text('agents: {h: {adapter: scripted}}\ntasks: [{id: t, agent: h, prompt: "@run false"}]\n')
    where = ("--workdir", tmp_path, "--state-dir", tmp_path / "state")
    lines = [line.partition(" ")[2] for line in cli("run", plan, "-vv", *where).err.splitlines()]
    assert lines[0] == "INFO workstream r1: new -> planned, by plan"
    for one in (
        "DEBUG job r1#t:job: pending -> queued, by plan",
        "DEBUG session t: Ended, in Stopped, by t",
        "INFO task r1#t: OPEN -> CLAIMED, by plan: agent h",
        "INFO session t: Spawning -> Running, by scripted",
        "INFO turn t:t1: SPAWNING -> RUNNING, by t",
        'INFO tool call t:t1:c1 "false": ended, failed, by scripted',
    ):
        assert one in lines


def test_a_deleted_working_directory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that needs the working directory says that it was deleted, and what to do."""
    (tmp_path / "plan.yaml").write_text(AGENTS + TWO_TASKS)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert execute(supervisor, ["run", str(tmp_path / "plan.yaml")]) == 2
    words = "the working directory has been deleted: change to another one (`cd`)"
    assert capsys.readouterr().err == f"supervisor: {words}\n"
