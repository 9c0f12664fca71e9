"""``session start``, ``session close``, ``send --wait`` and ``attach``, with a real supervisor."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_end_to_end_cli import HANGING, Run, run, write_plan
from tests.support import run_command as cli

pytestmark = pytest.mark.one_backend

Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Run]:
    """Fixture: a run whose only task has a tool call that does not end; its agents are ``scripted`` and ``sh``."""
    with run(write_plan(tmp_path, HANGING)) as started:
        started.until(event="tool_started")
        yield started
        cli("stop", "--now", "--state-dir", started.state_dir)


@pytest.fixture
def start(one: Run) -> Iterator[Started]:
    """Fixture: the function that starts a command as a process, which is ended after the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "supervisor", *words, "--state-dir", str(one.state_dir)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_a_session_is_started_prompted_and_closed(one: Run) -> None:
    """``session start`` with ``--wait`` prints what the agent wrote, and its exit status is the outcome; the session
    goes on until it is closed."""
    where = ("--state-dir", one.state_dir)
    done = cli("session", "start", "scripted", "@say hello", "--wait", *where)
    assert (done.status, done.out.strip(), done.err) == (0, "hello", "")
    failed = cli("session", "start", "sh", "exit 3", "--name", "bad", "--wait", *where)
    assert (failed.status, failed.out) == (1, "bad: failed\n")
    assert "bad: failed: " in failed.err
    again = cli("session", "start", "scripted", "--json", *where)
    assert again.json == {"session": "scripted-2", "result": None}
    closed = cli("session", "close", "scripted-2", *where)
    assert (closed.status, closed.out) == (0, "session scripted-2 is closed\n")
    assert cli("wait", "scripted-2", *where).out.startswith("scripted-2: completed")


def test_a_message_is_waited_for(one: Run) -> None:
    """``send --wait`` returns with the answer of the turn that the message leads to: of a session that works, and of
    one at rest."""
    where = ("--state-dir", one.state_dir)
    answered = cli("send", "wait", "are you well?", "--urgent", "--wait", *where)
    assert (answered.status, answered.err) == (0, "")
    assert "are you well?" in answered.out
    assert cli("session", "start", "scripted", "@say one", "--name", "idle", "--wait", *where).status == 0
    refused = cli("send", "idle", "@say two", "--urgent", "--wait", *where)
    assert (refused.status, refused.out) == (2, "")
    assert "--wait: idle is at rest, and no prompt is on its way; add --urgent --at turn_end" in refused.err
    answer = cli("send", "idle", "two", "--urgent", "--at", "turn_end", "--wait", "--json", *where)
    assert (answer.status, answer.json["outcome"], answer.json["turn"]) == (0, "completed", "idle:t2")
    assert "two" in answer.json["text"]


def test_a_message_whose_session_ends_is_not_waited_for(one: Run, start: Started) -> None:
    """``send --wait`` ends with status 1 when the session ends before the message has led to a turn."""
    waiting = start("send", "wait", "later", "--urgent", "--at", "turn_end", "--wait")
    one.until(event="UrgentMessage")
    assert cli("abort", "wait", "--scope", "session", "--state-dir", one.state_dir).status == 0
    out, err = waiting.communicate(timeout=120)
    assert (waiting.returncode, out) == (1, "wait: aborted\n")
    assert err.startswith("supervisor: wait: aborted: ")


def test_a_turn_that_fails_with_the_message_is_no_answer(one: Run) -> None:
    """If the turn with the message fails for good, ``send --wait`` fails with its error. (``sh`` executes what it is
    told, and there is no such command.)"""
    where = ("--state-dir", one.state_dir)
    assert cli("session", "start", "sh", "true", "--name", "s", "--wait", *where).status == 0
    failed = cli("send", "s", "hello", "--urgent", "--at", "turn_end", "--wait", "--json", *where)
    assert (failed.status, failed.json["turn"], failed.json["outcome"]) == (1, "s:t2", "failed")
    assert "exit status 127" in failed.json["error"]


def test_attach_follows_and_sends_and_leaves_the_session(one: Run, start: Started) -> None:
    """``attach`` prints what comes, a typed line gets a turn, and the end of the input leaves the session as it is."""
    where = ("--state-dir", one.state_dir)
    assert cli("session", "start", "scripted", "@say one", "--name", "idle", "--wait", *where).status == 0
    attached = start("attach", "idle")
    assert attached.stdin is not None
    assert attached.stdout is not None
    assert attached.stdout.readline().endswith("prompt| @say one\n")
    attached.stdin.write("tell me\n")
    attached.stdin.flush()
    assert any("message| " in line and "tell me" in line for line in attached.stdout)
    attached.stdin.close()
    attached.stdin = None
    _, err = attached.communicate(timeout=120)
    assert attached.returncode == 0
    assert "left idle, which goes on; `supervisor attach idle` comes back" in err
    assert cli("session", "close", "idle", *where).status == 0


@pytest.mark.parametrize("way", ["ctrl-c", "~."])
def test_leaving_never_touches_the_work(one: Run, start: Started, way: str) -> None:
    """Ctrl-C and a line ``~.`` leave the session of a task; its turn goes on. The end of the session ends an
    attachment with the exit status of its outcome."""
    first, second = start("attach", "r1#wait"), start("attach", "wait")
    for process in (first, second):
        assert process.stdout is not None
        assert "prompt| " in process.stdout.readline()
    if way == "ctrl-c":
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=120)
    else:
        _, err = first.communicate("~.\n", timeout=120)
    assert (first.returncode, "left wait, which goes on" in err) == (0, True)
    (row,) = [row for row in cli("ps", "--json", "--state-dir", one.state_dir).json if row["id"] == "wait"]
    assert row["state"] == "Running"
    assert cli("abort", "wait", "--scope", "session", "--state-dir", one.state_dir).status == 0
    assert second.stderr is not None
    assert second.wait(120) == 1
    assert second.stderr.read().endswith("supervisor: wait: aborted\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["session", "start", "nope"], "agent: no agent is named 'nope'; known: scripted, sh"),
        (["session", "start", "sh", "--wait"], "--wait: there is no turn to wait for; give a PROMPT, too"),
        (["attach", "nobody"], "nothing has the id 'nobody'"),
        (["session", "close", "nobody"], "nobody"),
    ],
)
def test_bad_input_starts_nothing(one: Run, words: list[str], message: str) -> None:
    """Arguments that cannot be meant are refused with status 2, and start no session."""
    output = cli(*words, "--state-dir", one.state_dir)
    assert (output.status, output.out) == (2, "")
    assert message in output.err
    sessions = [row["id"] for row in cli("ps", "--json", "--state-dir", one.state_dir).json if row["kind"] == "session"]
    assert sessions == ["wait"]
