"""``supervisor run`` as a user runs it: a real process with real agents, and commands from a second terminal.

Every wait is for a line of the run's output; nothing sleeps.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from tests.support import running_program

ROOT = Path(__file__).parents[2]
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
pytestmark = pytest.mark.one_backend

PLAN = """
max_sessions: 3
limits: {backoff_base_ms: 1, max_consecutive_errors: 2, max_total_errors: 2}
agents:
  scripted: {adapter: scripted}
  sh: {adapter: command, command: [sh, -eu]}
tasks:
"""


class Run:
    """Handle of a running process ``supervisor run --json``."""

    def __init__(self, process: subprocess.Popen[str], state_dir: Path) -> None:
        self.process, self.state_dir = process, state_dir
        self.seen: list[dict[str, Any]] = []

    def until(self, **wanted: str) -> dict[str, Any]:
        """Read output up to the first record whose fields have the *wanted* values, and return that record."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(json.loads(line))
            if all(self.seen[-1].get(name) == value for name, value in wanted.items()):
                return self.seen[-1]
        raise AssertionError(f"it ended before {wanted}: {self.seen[-1:]}")

    def result(self) -> dict[str, str]:
        """Read the output of a successful run to its end, and return the outcome of each task."""
        last = self.until(ok=True) if not self.seen or "ok" not in self.seen[-1] else self.seen[-1]
        return {task["id"]: task["outcome"] for task in last["tasks"]}

    def failed(self) -> dict[str, str]:
        last = self.until(ok=False)
        return {task["id"]: task["outcome"] for task in last["tasks"]}

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def said(one: Run) -> str:
    """Return the next line of the run's standard error."""
    assert one.process.stderr is not None
    return one.process.stderr.readline()


def write_plan(folder: Path, tasks: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(PLAN + tasks)
    return path


def command(plan: Path, state_dir: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "supervisor", "run", str(plan), "--state-dir", str(state_dir), *options]


@contextmanager
def run(plan: Path, *options: str) -> Iterator[Run]:
    """Start a run of *plan*, with its state directory beside the plan; end the run with the block."""
    state_dir = plan.parent / "state"
    argv = command(plan, state_dir, "--json", "--workdir", str(plan.parent), *options)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with running_program(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield Run(process, state_dir)
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGINT)  # another one: two of a kind may arrive as one
            process.communicate(timeout=120)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    """Fixture that stands for a second terminal: a function that runs a command in this process, and returns its status
    and its JSON output."""

    def on(state_dir: Path, *arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        status = execute(supervisor, [*arguments, "--json", "--state-dir", str(state_dir)])
        return status, json.loads(capsys.readouterr().out)

    return on


HANGING = '  - {id: wait, agent: scripted, prompt: "@run sleep 3600\\n@write after went on\\n@say went on"}\n'


# --------------------------------------------------------------------------------------------------------- the run
@BACKENDS
def test_a_plan_is_run_in_its_order(tmp_path: Path, tell: Any, backend: str) -> None:
    """Tasks run after the tasks that they depend on, with real files and commands; records are numbered without gaps,
    and all sessions end."""
    tasks = (
        '  - {id: last, agent: sh, prompt: "cat made; echo done > last", depends_on: [make, also]}\n'
        '  - {id: make, agent: scripted, prompt: "@write made yes"}\n'
        '  - {id: also, agent: scripted, prompt: "@agent sub\\n  @run true", depends_on: [make]}\n'
    )
    with run(write_plan(tmp_path, tasks), "--backend", backend) as one:
        assert one.result() == {"last": "completed", "make": "completed", "also": "completed"}
        assert one.process.wait(120) == 0
    assert (tmp_path / "last").read_text() == "done\n"
    order = [event["entity_id"] for event in one.seen if event.get("event") == "closed"]
    assert order == ["r1#make", "r1#also", "r1#last"]
    assert [event["seq"] for event in one.seen[1:-1]] == list(range(1, len(one.seen) - 1))
    status, rows = tell(one.state_dir, "ps")
    assert status == 0
    assert {row["id"]: row["state"] for row in rows if row["kind"] == "session"} == dict.fromkeys(
        ["make", "also", "also/sub", "last"], "Stopped"
    )


def test_a_log_of_a_run_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``supervisor validate`` accepts the log that ``supervisor run`` has written."""
    with run(write_plan(tmp_path, '  - {id: t, agent: sh, prompt: "true"}\n')) as one:
        assert one.result() == {"t": "completed"}
    assert execute(supervisor, ["validate", str(one.state_dir / "transitions.jsonl")]) == 0
    assert ": valid (" in capsys.readouterr().out


def test_failed_work_is_exit_status_1(tmp_path: Path, tell: Any) -> None:
    """A run with a failed task exits with status 1 and prints the reason; tasks that depend on the failed one are
    blocked, the others complete."""
    tasks = (
        '  - {id: bad, agent: sh, prompt: "exit 3"}\n'
        '  - {id: after, agent: sh, prompt: "true", depends_on: [bad]}\n'
        '  - {id: good, agent: sh, prompt: "true"}\n'
    )
    with run(write_plan(tmp_path, tasks)) as one:
        assert one.failed() == {"bad": "failed", "after": "blocked", "good": "completed"}
        assert one.process.wait(120) == 1
    assert "exit status 3" in one.seen[-1]["tasks"][0]["error"]
    status, explanation = tell(one.state_dir, "why", "bad")
    assert (status, explanation["steps"][-1]["record"]["to_status"]) == (0, "Stopped")
    assert (explanation["roots"], explanation["root"]["actor"]) == (1, "plan")


def test_a_second_run_goes_on_in_the_same_journal(tmp_path: Path) -> None:
    """A second run on the same state directory prints only its own records, whose numbers continue those of the first
    run."""
    plan = write_plan(tmp_path, '  - {id: t, agent: sh, prompt: "true"}\n')
    with run(plan) as first:
        assert first.result() == {"t": "completed"}
    with run(plan) as second:
        assert second.result() == {"t": "completed"}
    # In between is the record that the first result was printed.
    assert second.seen[1]["seq"] == first.seen[-2]["seq"] + 2
    assert second.seen[-1]["tasks"][0]["session_id"] == "t-2"


# ------------------------------------------------------------------------------------------------ a second terminal
@BACKENDS
def test_one_call_is_aborted_from_a_second_terminal(tmp_path: Path, tell: Any, backend: str) -> None:
    """From a second terminal ``tree`` shows the open call of a run; an abort of the call ends it and nothing else, and
    the session completes."""
    with run(write_plan(tmp_path, HANGING), "--backend", backend) as one:
        one.until(event="tool_started")
        _, nodes = tell(one.state_dir, "tree")
        turn = next(child for node in nodes if node["id"] == "wait" for child in node["children"])
        assert [(call["id"], call["note"]) for call in turn["children"]] == [("wait:t1:c1", "sleep 3600")]
        status, seen = tell(one.state_dir, "inspect", "wait")
        assert (status, seen["state"], seen["turn"], seen["pid"] > 0) == (0, "Running", "wait:t1", True)
        status, plan = tell(one.state_dir, "abort", "wait:t1:c1", "--scope", "tool", "--dry-run")
        assert (status, [node["id"] for node in plan["nodes"]]) == (0, ["wait:t1:c1"])
        status, receipt = tell(one.state_dir, "abort", "wait:t1:c1", "--scope", "tool", "--reason", "too slow")
        assert (status, receipt["survivors"], len(receipt["processes"])) == (0, 0, 1)
        assert one.result() == {"wait": "completed"}
        assert one.process.wait(120) == 0
    assert (tmp_path / "after").read_text() == "went on"
    status, explanation = tell(one.state_dir, "why", "wait:t1:c1")
    assert [step["record"]["event"] for step in explanation["steps"]] == ["AbortRecord", "tool_completed"]
    assert explanation["root"]["reason"] == "too slow"


def test_the_last_session_is_aborted_and_the_receipt_still_arrives(tmp_path: Path, tell: Any) -> None:
    """An abort from a second terminal that ends the last session, and so the run, still prints its receipt."""
    with run(write_plan(tmp_path, HANGING)) as one:
        one.until(event="tool_started")
        status, receipt = tell(one.state_dir, "abort", "wait", "--scope", "session")
        assert (status, receipt["survivors"]) == (0, 0)
        assert [node["id"] for node in receipt["nodes"]] == ["wait"]
        assert one.failed() == {"wait": "aborted"}
        assert one.process.wait(120) == 1
    status, receipt = tell(one.state_dir, "abort", "wait", "--scope", "session")
    assert (status, receipt["already_ended"]) == (0, True)


def test_an_urgent_message_interrupts(tmp_path: Path, tell: Any) -> None:
    """An urgent message from a second terminal interrupts the turn; when the agent has answered, it goes on with its
    task."""
    with run(write_plan(tmp_path, HANGING)) as one:
        one.until(event="tool_started")
        status, sent = tell(one.state_dir, "send", "wait", "forget it", "--urgent")
        assert (status, sent["message_id"][:1]) == (0, "m")
        one.until(event="tool_started")
        assert tell(one.state_dir, "abort", "wait", "--scope", "session")[0] == 0
        assert one.failed() == {"wait": "aborted"}
    assert "Interrupting" in [event.get("to_status") for event in one.seen]


def test_stop_drains(tmp_path: Path, tell: Any) -> None:
    """After ``stop`` no task starts, and tasks in progress may finish."""
    tasks = (
        '  - {id: now, agent: sh, prompt: "while test ! -e go; do sleep 0.01; done"}\n'
        '  - {id: later, agent: sh, prompt: "true", depends_on: [now]}\n'
    )
    with run(write_plan(tmp_path, tasks)) as one:
        one.until(entity_id="now", event="SessionStarted")
        assert tell(one.state_dir, "stop") == (0, {"stopping": "drain", "outage": None})
        assert said(one).startswith("supervisor: draining: no task starts, tasks in progress have")
        (tmp_path / "go").touch()
        assert one.failed() == {"now": "completed", "later": "aborted"}
        assert one.process.wait(120) == 1


def test_stop_now_ends_everything(tmp_path: Path, tell: Any) -> None:
    """``stop --now`` aborts everything in progress, and the run exits with status 1."""
    with run(write_plan(tmp_path, HANGING)) as one:
        one.until(event="tool_started")
        assert tell(one.state_dir, "stop", "--now") == (0, {"stopping": "now", "outage": None})
        assert said(one) == "supervisor: stopping everything now\n"
        assert one.failed() == {"wait": "aborted"}
        assert one.process.wait(120) == 1


# --------------------------------------------------------------------------------------------------------- signals
def test_a_second_stop_ends_everything_and_each_is_told_once(tmp_path: Path, tell: Any) -> None:
    """The terminal of the run prints one line for the first ``stop`` from another terminal (drain), and one for the
    second (stop everything)."""
    with run(write_plan(tmp_path, HANGING)) as one:
        one.until(event="tool_started")
        assert tell(one.state_dir, "stop")[0] == 0
        assert said(one).startswith("supervisor: draining: ")
        assert tell(one.state_dir, "stop")[0] == 0
        assert said(one) == "supervisor: stopping everything now\n"
        assert one.failed() == {"wait": "aborted"}
        assert one.process.wait(120) == 1
        assert one.process.stderr is not None
        assert one.process.stderr.read() == ""


def test_nothing_is_said_of_a_run_that_just_ends(tmp_path: Path) -> None:
    """The end of a completed plan is not announced on standard error."""
    with run(write_plan(tmp_path, '  - {id: t, agent: sh, prompt: "true"}\n')) as one:
        assert one.result() == {"t": "completed"}
        assert one.process.stderr is not None
        assert one.process.stderr.read() == ""


def test_under_nohup_a_closed_terminal_is_ignored(tmp_path: Path) -> None:
    """If SIGHUP was ignored when the run began (``nohup``), a SIGHUP has no effect, and the work is completed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        tasks = '  - {id: t, agent: sh, prompt: "while test ! -s pid; do sleep 0.01; done; kill -HUP $(cat pid)"}\n'
        with run(write_plan(tmp_path, tasks)) as one:
            (tmp_path / "pid").write_text(str(one.process.pid))
            assert one.result() == {"t": "completed"}
            assert one.process.stderr is not None
            assert one.process.stderr.read() == ""
    finally:
        signal.signal(signal.SIGHUP, before)


@BACKENDS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_drains_and_a_second_ends_it(tmp_path: Path, backend: str, number: signal.Signals) -> None:
    """At the first SIGINT or SIGTERM the run says that it drains; at the second it aborts everything, and no process is
    left."""
    with run(write_plan(tmp_path, HANGING), "--backend", backend) as one:
        one.until(event="tool_started")
        one.signal(number)
        assert said(one).startswith("supervisor: draining: no task starts, tasks in progress have")
        one.signal(number)
        assert said(one) == "supervisor: stopping everything now\n"
        assert one.failed() == {"wait": "aborted"}
        assert one.process.wait(120) == 1
    ended = [event for event in one.seen if event.get("event") == "Ended"]
    assert [event["metadata"]["survivors"] for event in ended] == [0]


@BACKENDS
def test_a_drain_tells_how_far_it_is(tmp_path: Path, backend: str) -> None:
    """During a drain the run prints the number of turns left after each turn that ends."""
    tasks = "".join(
        f'  - {{id: t{number}, agent: sh, prompt: "echo up; while test ! -e go{number}; do sleep 0.01; done"}}\n'
        for number in (1, 2)
    )
    with run(write_plan(tmp_path, tasks), "--backend", backend) as one:
        for _ in range(2):
            one.until(entity_type="turn", to_status="RUNNING")
        one.signal(signal.SIGTERM)
        assert said(one).startswith("supervisor: draining: no task starts, tasks in progress have")
        (tmp_path / "go1").touch()
        assert said(one).startswith("supervisor: draining: 1 turn in progress, ")
        (tmp_path / "go2").touch()
        assert one.result() == {"t1": "completed", "t2": "completed"}


ABANDONING = """
from supervisor.agents import scripted_agent

post = scripted_agent.Agent.post


def abandon(agent, method, params):
    if method == "_supervisor/session/run":
        params = {**params, "cancelMode": "abandon"}
    return post(agent, method, params)


scripted_agent.Agent.post = abandon
scripted_agent.main()
"""


@BACKENDS
def test_a_signal_ends_whom_no_task_waits_for(tmp_path: Path, tell: Any, backend: str) -> None:
    """A child session that was abandoned, and runs on when all tasks have ended, is announced; a further signal ends
    it."""
    (tmp_path / "agent.py").write_text(ABANDONING)
    (tmp_path / "plan.yaml").write_text(f"""
agents:
  a: {{adapter: acp, command: [{sys.executable}, agent.py], env: {{PYTHONPATH: {ROOT}}}}}
tasks:
  - {{id: t, agent: a, prompt: "@agent child\\n  @run sleep 3600"}}
""")
    with run(tmp_path / "plan.yaml", "--backend", backend) as one:
        one.until(entity_id="t/child:t1", event="tool_started")
        assert tell(one.state_dir, "abort", "t", "--scope", "session")[0] == 0
        assert said(one) == (
            "supervisor: closing: sessions that no task waits for may work for 120 s; signal again to end them now\n"
        )
        one.signal(signal.SIGHUP)
        assert said(one) == "supervisor: not reloaded: the run is ending\n"
        one.signal(signal.SIGTERM)
        assert said(one) == "supervisor: stopping everything now\n"
        assert one.failed() == {"t": "aborted"}
        assert one.process.wait(120) == 1


# ---------------------------------------------------------------------------------------------------- the plan again
WAITING = '  - {id: wait, agent: sh, prompt: "while test ! -e go; do sleep 0.01; done"}\n'


@BACKENDS
def test_a_hangup_reads_the_plan_again(tmp_path: Path, backend: str) -> None:
    """At SIGHUP the plan is read again: its new tasks are added to the run, and may depend on tasks of the run."""
    plan = write_plan(tmp_path, WAITING)
    with run(plan, "--backend", backend) as one:
        one.until(entity_id="wait:t1", to_status="RUNNING")
        write_plan(tmp_path, WAITING + '  - {id: next, agent: sh, prompt: "true", depends_on: [wait]}\n')
        one.signal(signal.SIGHUP)
        assert said(one) == "supervisor: reloaded: next added\n"
        (tmp_path / "go").touch()
        assert one.result() == {"wait": "completed", "next": "completed"}


def test_a_bad_plan_changes_nothing(tmp_path: Path) -> None:
    """At SIGHUP an invalid new plan is reported, and the run continues unchanged."""
    bad = {
        "  - {id: wait, agent: nobody}\n": "'nobody' is not an agent of this plan",
        '  - {id: wait, agent: sh, prompt: "false"}\n': "tasks: wait: not as they were when they were opened",
        "  - {id: [\n": "not YAML",
    }
    plan = write_plan(tmp_path, WAITING)
    with run(plan) as one:
        one.until(entity_id="wait:t1", to_status="RUNNING")
        for tasks, why in bad.items():
            write_plan(tmp_path, tasks)
            one.signal(signal.SIGHUP)
            line = said(one)
            assert line.startswith("supervisor: not reloaded, nothing has changed: ")
            assert why in line
        (tmp_path / "go").touch()
        assert one.result() == {"wait": "completed"}


TWO = """
plugins: []
agents:
  sh: {adapter: command, command: [sh, -eu]}
  other: {adapter: command, command: [sh, -eu]}
workers:
  one: {slots: 1}
  two: {capabilities: [gpu]}
tasks:
  - {id: wait, agent: sh, prompt: "while test ! -e go; do sleep 0.01; done"}
  - {id: next, agent: other, prompt: "true", depends_on: [wait], capabilities: [gpu]}
"""
LEFT_OUT = "".join(TWO.splitlines(keepends=True)[:-1])


def test_what_goes_on_keeps_what_it_needs(tmp_path: Path) -> None:
    """At SIGHUP a new plan may leave out a task of the run, but not the agent or worker that this task needs."""
    bad = {
        LEFT_OUT.replace("  other: {adapter: command, command: [sh, -eu]}\n", ""): (
            "task next, which is left out and goes on: agent: 'other' is not an agent of this plan; the agents are sh"
        ),
        LEFT_OUT.replace("  two: {capabilities: [gpu]}\n", ""): (
            "task next, which is left out and goes on: capabilities[0]: no worker has 'gpu'"
        ),
        TWO.replace("plugins: []\n", ""): "plugins: not as they were when the run began; start another run",
    }
    plan = tmp_path / "plan.yaml"
    plan.write_text(TWO)
    with run(plan) as one:
        one.until(entity_id="wait:t1", to_status="RUNNING")
        for text, why in bad.items():
            plan.write_text(text)
            one.signal(signal.SIGHUP)
            assert said(one).startswith(f"supervisor: not reloaded, nothing has changed: {why}")
        plan.write_text(LEFT_OUT)
        one.signal(signal.SIGHUP)
        assert said(one) == "supervisor: reloaded: no task is new\n"
        (tmp_path / "go").touch()
        assert one.result() == {"wait": "completed", "next": "completed"}


def test_a_closed_terminal_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Any) -> None:
    """While the terminal of a run lives, SIGHUP reads the plan again. When the terminal is closed, the run drains: the
    task in progress completes, and no other task starts."""
    plan = write_plan(
        tmp_path,
        '  - {id: wait, agent: sh, prompt: "echo > started; while test ! -e go; do sleep 0.01; done"}\n'
        '  - {id: next, agent: sh, prompt: "true", depends_on: [wait]}\n',
    )
    os.mkfifo(tmp_path / "started")
    argv = command(plan, tmp_path / "state", "--workdir", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with _own_terminal(argv) as (process, terminal):
            (tmp_path / "started").read_text()
            process.send_signal(signal.SIGHUP)
            shown = b""
            while b"reloaded: no task is new" not in shown:
                shown += os.read(terminal, 65536)
            os.close(terminal)
            while not manager.recv(4096).startswith(b"STOPPING=1"):
                pass
            (tmp_path / "go").touch()
            process.wait(120)
    _, tasks = tell(tmp_path / "state", "ps")
    states = {one["id"]: one["state"] for one in tasks}
    assert (states["r1#wait"], states["r1#next"]) == ("CLOSED", "CANCELLED")


@contextmanager
def _own_terminal(argv: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a program in a session of its own, with a terminal of its own; yield its process and our end of the
    terminal, which the block closes."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with running_program(
        [sys.executable, "-c", TAKES_TERMINAL, *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()


TAKES_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Program that makes its standard input its controlling terminal, and then becomes the program in its arguments."""


# ------------------------------------------------------------------------------------------------------------ systemd
def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run notifies systemd that it is ready, alive (watchdog), reloading, ready again, and stopping, in that
    order."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "50000")
        heard = SimpleQueue[str]()

        def hear() -> None:  # at once, as systemd does: what does not fit into the socket's queue is dropped
            with suppress(TimeoutError):
                while True:
                    heard.put(text := manager.recv(4096).decode())
                    if text.startswith("STOPPING=1"):
                        return

        def until(word: str) -> str:
            return next(text for text in iter(partial(heard.get, timeout=60), None) if text.startswith(word))

        with ThreadPoolExecutor() as pool, run(write_plan(tmp_path, WAITING)) as one:
            pool.submit(hear)
            for word in ("READY=1", "WATCHDOG=1", "WATCHDOG=1"):
                until(word)
            one.until(entity_id="wait:t1", to_status="RUNNING")
            one.signal(signal.SIGHUP)
            until("RELOADING=1\nMONOTONIC_USEC=")
            until("READY=1")
            (tmp_path / "go").touch()
            assert "EXTEND_TIMEOUT_USEC=" in until("STOPPING=1")
            assert one.result() == {"wait": "completed"}


def test_systemd_lets_a_drain_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a drain begins, the run extends systemd's stop time-out by ``drain_s`` and the time for the end of the
    sessions."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with run(write_plan(tmp_path, WAITING)) as one:
            one.until(entity_id="wait:t1", to_status="RUNNING")
            one.signal(signal.SIGTERM)
            told = ""
            while not told.startswith("STOPPING=1"):
                told = manager.recv(4096).decode()
            (tmp_path / "go").touch()
            assert one.result() == {"wait": "completed"}
    assert int(told.rpartition("EXTEND_TIMEOUT_USEC=")[2]) > 120_000_000


# ---------------------------------------------------------------------------------------------------------- output
def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    """Without a terminal a run prints its id, a few lines per task with the output of its agent, then a table of its
    tasks."""
    plan = write_plan(tmp_path, '  - {id: t, agent: sh, prompt: "echo hello"}\n')
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command(plan, tmp_path / "state"), capture_output=True, text=True, env=env, timeout=120)
    lines, _, table = done.stdout.partition("\n\n")
    assert (done.returncode, done.stderr) == (0, "")
    name, *lines_of_tasks = lines.splitlines()
    assert name == "run r1"
    assert [line[9:].partition(" in ")[0] for line in lines_of_tasks] == [
        "r1: 1 task",
        "t: begins (agent sh)",
        "t| hello",
        "t: completed",
    ]
    assert [line.split()[:2] for line in table.splitlines()[:2]] == [["TASK", "OUTCOME"], ["r1#t", "completed"]]
    logs = table.splitlines()[-1].removeprefix("what the agents wrote: supervisor ")
    assert execute(supervisor, shlex.split(logs)) == 0


def test_a_run_that_fails_fast_says_why(tmp_path: Path) -> None:
    """``--fail-fast`` ends the run at the first task that failed for good; the last line of ``--json`` says why. First
    a state directory with transcripts and without a journal is named."""
    bad, slow = "{id: bad, agent: sh, prompt: exit 3, max_retries: 0}", "{id: slow, agent: sh, prompt: sleep 1000}"
    once = "task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}"
    (tmp_path / "state" / "agents").mkdir(parents=True)
    with run(write_plan(tmp_path, f"  - {bad}\n  - {slow}\n{once}\n"), "--fail-fast") as one:
        assert said(one).count("journal.db is missing, so no earlier run") == 1
        assert one.failed() == {"bad": "failed", "slow": "cancelled"}
    assert one.seen[-1]["error"] == "of 2 tasks 1 failed (bad), 1 cancelled (slow)"
    assert [task["launches"] for task in one.seen[-1]["tasks"]] == [1, 1]


def test_a_table_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal a run shows a table of sessions with their states, and at the end a table of tasks."""
    shown, status = on_a_terminal(
        command(write_plan(tmp_path, '  - {id: t, agent: sh, prompt: "echo hi; sleep 0.6"}\n'), tmp_path / "s")
    )
    assert status == 0
    assert "SESSION" in shown
    assert "● t" in shown
    assert "RUNNING" in shown
    assert "completed" in shown.rpartition("TASK")[2]


def test_a_terminal_says_a_failure_once(tmp_path: Path) -> None:
    """On a terminal the failure of a task is displayed for people, and no line of the log says the same beside it."""
    tasks = "  - {id: t, agent: sh, prompt: 'true', max_retries: 0, acceptance: [{command: [sh, -c, 'exit 3']}]}\n"
    shown, status = on_a_terminal(command(write_plan(tmp_path, tasks), tmp_path / "s"))
    assert status == 1
    assert "t failed: not accepted: command sh -c exit 3: exited with 3" in " ".join(shown.split())
    assert "event=" not in shown


def on_a_terminal(argv: list[str]) -> tuple[str, int]:
    """Run a program on a terminal of its own; return its output and its exit status."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with running_program(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = bytearray()
        with suppress(OSError):  # a terminal whose last user is gone ends with an error
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
        return shown.decode(), process.wait(120)


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    """When the reader of a run's output closes the pipe, the run continues without a message and completes."""
    with run(write_plan(tmp_path, '  - {id: t, agent: sh, prompt: "echo done > last"}\n')) as one:
        assert one.process.stdout is not None
        one.process.stdout.close()
        assert one.process.stderr is not None
        assert one.process.stderr.read() == ""
        assert one.process.wait(120) == 0
        one.process.stdout = None
    assert (tmp_path / "last").exists()


@pytest.mark.parametrize("name", ["plan.yaml", "command.yaml"])
def test_the_examples_run(tmp_path: Path, tell: Any, name: str) -> None:
    """Each example plan completes, after a long call in one of them is aborted from a second terminal."""
    state_dir = tmp_path / "state"
    argv = command(ROOT / "examples" / name, state_dir, "--json", "--workdir", str(tmp_path))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with running_program(argv, stdout=subprocess.PIPE, text=True, env=env) as process:
        one = Run(process, state_dir)
        if name == "plan.yaml":
            while one.until(event="tool_started")["metadata"]["title"] != "sleep 60":
                continue
            assert tell(state_dir, "abort", "wait:t1:c1", "--scope", "tool")[0] == 0
        assert set(one.result().values()) == {"completed"}
    assert process.returncode == 0
    assert (tmp_path / "build" / "example" / "report.txt").read_text() == "everything was checked\n"
