"""Commands for a daemon: ``reload``, ``run`` where a daemon holds the state directory, its errors, and systemd."""

from __future__ import annotations

import http.client
import json
import os
import pty
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from tests.field.field_kit import until
from tests.integration.test_daemon import HELD, PLAN, Place
from tests.support import reap_all


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()
    anyio.run(reap_all)


# -------------------------------------------------------------------------------------------------------- live lists
def test_lists_of_a_running_supervisor(place: Place) -> None:
    """`ps --processes` lists the processes of sessions; `ps --stalls` and `agents levels` say that there is nothing to
    list. Without a supervisor, or with options that exclude each other, they are bad input."""
    place.serve()
    place.plan(HELD)
    place.submit("plan.yaml")
    until(lambda: place.states().get("r1#held") == "IN_PROGRESS")
    listed = place.run("ps", "--processes").out.splitlines()
    assert listed[0].split() == ["PID", "PARENT", "AGENT", "ROLE", "AGE", "CALLS", "COMMAND"]
    assert any("held:a1" in line and " agent " in line for line in listed[1:])
    (one, *_) = json.loads(place.run("ps", "--processes", "--json").out)["processes"]
    assert one["agent"] == "held:a1"
    assert place.run("ps", "--stalls").out == "every agent at work makes progress\n"
    assert place.run("agents", "levels").out.startswith("no agent has a trust level")
    assert "--processes, --stalls: give one of them" in place.fails("ps", "--processes", "--all")
    place.fails("ps", "--stalls", "--state-dir", "nowhere")


# ------------------------------------------------------------------------------------------------------ configuration
def test_a_bad_configuration_keeps_the_last_good_one(place: Place) -> None:
    """A reload of an invalid file says field, value and fix, by the command and after a SIGHUP, and changes nothing; so
    does one that changes what is fixed at the start. Without a file there is nothing to read."""
    place.write("daemon.yaml", "max_sessions_total: 3")
    daemon = place.serve("daemon.yaml")
    place.write("daemon.yaml", "max_sessions_total: none")
    assert "daemon.yaml:1: max_sessions_total: 'none' is" in place.fails("reload")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "not reloaded, the last good configuration stays in force" in daemon.err)
    place.write("daemon.yaml", "workspace: worktree")
    assert "workspace: takes effect at the start; restart" in place.fails("reload")
    place.write("daemon.yaml", "max_sessions_total: 4")
    assert place.run("reload").out == "reloaded: settings are changed\n"
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "reloaded: nothing has changed" in daemon.err)
    place.stop(daemon)
    place.serve()
    assert "without a configuration file" in place.fails("reload")


def test_a_reload_reads_the_tokens_again(place: Place) -> None:
    """After a reload only the tokens of the file count; a file with a bad line changes nothing."""
    pytest.importorskip("hypercorn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place.write("daemon.yaml", f"http: {{listen: '127.0.0.1:{port}', token_file: tokens}}")
    old, new = "o" * 40, "n" * 40
    (place.path / "tokens").touch(0o600)
    place.write("tokens", f"admin {old}\n")
    place.serve("daemon.yaml")

    def status(token: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/api/v1/tree", headers={"Authorization": f"Bearer {token}"})
        answered = connection.getresponse().status
        connection.close()
        return answered

    assert (status(old), status(new)) == (200, 401)
    place.write("tokens", f"admin {new}\n")
    assert place.run("reload").status == 0
    assert (status(old), status(new)) == (401, 200)
    place.write("tokens", "admin short\n")
    assert "token_file: line 1 of" in place.fails("reload")
    assert status(new) == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_sesions: 1", "daemon.yaml:1: max_sesions: unknown key; did you mean 'max_sessions'?"),
        ("agents: {a: {adapter: nope}}", "agents.a.adapter: 'nope' is not one of"),
        ("http: {listen: '127.0.0.1:0'}", "http.token_file: missing; TCP is served only to those who have a token"),
        ("a: [", "not YAML"),
    ],
)
def test_a_daemon_does_not_start_with_a_bad_configuration(place: Place, text: str, said: str) -> None:
    """A bad configuration ends `serve` with exit status 2 and one message, and leaves no state directory."""
    place.write("daemon.yaml", text)
    assert said in place.fails("serve", "daemon.yaml")
    assert not place.state.root.exists()


def test_a_second_daemon_leaves_the_first_alone(place: Place) -> None:
    """A second daemon, and a run of another kind, are refused; a file that is missing is named."""
    daemon = place.serve()
    assert "already runs on" in place.fails("serve")
    assert "no such file" in place.fails("serve", "none.yaml")
    place.plan(PLAN)
    assert "a daemon holds" in place.fails("run", "plan.yaml", "--resume")
    assert "it serves the API" in place.fails("run", "plan.yaml", "--http")
    assert place.run("wait", place.submit("plan.yaml")).status == 0
    assert not daemon.ended


def test_a_journal_of_a_newer_version(place: Place) -> None:
    """A daemon does not start on a journal of another version: one message, exit status 2, and the journal stays."""
    place.stop(place.serve())
    with closing(sqlite3.connect(place.state.journal)) as journal, journal:
        journal.execute("update meta set value = 9999 where key = 'schema_version'")
    assert "has schema 9999, this version reads" in place.fails("serve")
    with closing(sqlite3.connect(place.state.journal)) as journal:
        assert journal.execute("select value from meta where key = 'schema_version'").fetchone() == (9999,)


def test_errors_of_submissions(place: Place) -> None:
    """Each bad submission is one message with exit status 2, and begins nothing."""
    place.plan(PLAN)
    assert "no daemon runs on" in place.fails("submit", "plan.yaml")
    assert "no daemon runs on" in place.fails("run", "plan.yaml", "--detach")
    place.serve()
    place.write("bad.yaml", "agents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: b, prompt: ''}]")
    place.write("empty.yaml", "")
    assert "bad.yaml:2: tasks[0].agent: 'b' is not an agent of this plan" in place.fails("submit", "bad.yaml")
    assert "is empty" in place.fails("submit", "empty.yaml")
    assert "none.yaml: cannot be read: No such file" in place.fails("submit", "none.yaml")
    assert "PLAN: missing" in place.fails("submit")
    assert "--env NOPE: the variable is not set here" in place.fails("submit", "plan.yaml", "--env", "NOPE")
    assert "run 'r7' is not in the journal" in place.fails("submit", "--resume", "r7")
    assert "run 'r7' is not in the journal" in place.fails("cancel", "r7")
    assert place.submit("plan.yaml") == "r1"
    assert place.run("wait", "r1").status == 0
    assert "every task is closed" in place.fails("submit", "--resume", "r1")


# ------------------------------------------------------------------------------------------------------- runs
def test_run_follows_a_run_of_the_daemon(place: Place) -> None:
    """`run` where a daemon holds the directory shows the progress of its run, and of no other, and has the exit status
    of the plan."""
    place.serve()
    place.write("held.yaml", HELD)
    place.submit("held.yaml")
    place.plan(PLAN)
    done = place.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert done.out.startswith("run r2\n")
    assert "r2#two  completed" in done.out
    assert "held" not in done.out
    agents = "agents: {w: {adapter: command, command: ['false']}}"
    place.write("fails.yaml", f"{agents}\ntasks: [{{id: t, agent: w, prompt: '', max_retries: 0}}]")
    failed = place.run("run", "fails.yaml", "--json")
    assert (failed.status, failed.json()["ok"]) == (1, False), failed.text
    assert place.run("run", "plan.yaml", "--detach").out == "r4\n"


def test_an_interrupted_run_command_detaches(place: Place) -> None:
    """Ctrl-C in a `run` that nobody can be asked leaves the run to the daemon, and says so; `cancel` ends the run."""
    place.serve()
    place.plan(HELD)
    following = place.start("run", "plan.yaml")
    until(lambda: "held: begins" in following.out)
    following.process.send_signal(signal.SIGINT)
    ended = following.wait()
    assert (ended.status, "r1 goes on in the daemon; `supervisor wait r1" in ended.err) == (1, True), ended.text
    assert place.states()["r1"] == "executing"
    assert place.run("cancel", "r1").out == "r1 is cancelled\n"
    assert (place.states()["r1"], place.states()["r1#after"]) == ("cancelled", "CANCELLED")
    assert place.run("cancel", "r1").out == "r1 had ended already\n"
    for entity in ("r1", "r1#after"):
        assert "cancelled by operator" in place.run("why", entity).out
        assert "CancelRequested" in place.run("why", entity, "-v").out
    assert place.run("wait", "r1").status == 1


def test_a_person_is_asked(place: Place) -> None:
    """Ctrl-C in a `run` on a terminal asks; the answer c cancels the run."""
    place.serve()
    place.plan(HELD)
    ours, theirs = pty.openpty()
    try:
        following = place.start("run", "plan.yaml", stdin=theirs, stderr=theirs)
        until(lambda: "held: begins" in following.out)
        following.process.send_signal(signal.SIGINT)
        asked = b""
        while b"cancel the run (c)?" not in asked:
            asked += os.read(ours, 4096)
        os.write(ours, b"c\n")
        assert following.wait().status == 1
    finally:
        os.close(ours)
        os.close(theirs)
    assert place.states()["r1"] == "cancelled"


# ------------------------------------------------------------------------------------------------------- systemd
def test_notifications_for_systemd(place: Place) -> None:
    """A daemon tells systemd that it is ready, alive, reloading and stopping."""
    place.write("daemon.yaml", "max_sessions_total: 3")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place.path / "notify"))
        manager.settimeout(120)
        env = {"NOTIFY_SOCKET": str(place.path / "notify"), "WATCHDOG_USEC": "200000"}
        daemon = place.start("serve", "daemon.yaml", env=env)
        heard = ""

        def hear(word: str) -> None:
            nonlocal heard
            while word not in heard:
                heard += manager.recv(4096).decode() + "\n"

        hear("READY=1")
        hear("WATCHDOG=1")
        daemon.process.send_signal(signal.SIGHUP)
        hear("RELOADING=1")
        heard = ""
        hear("READY=1")
        daemon.process.send_signal(signal.SIGTERM)
        hear("STOPPING=1")
        assert daemon.wait().status == 0


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a namespace of processes")
def test_the_first_process_of_a_container(place: Place) -> None:
    """As pid 1, `serve` reaps strangers, forwards SIGTERM, and exits with the status of the daemon."""
    enter = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace can be made here")
    place.plan(PLAN)
    # The shell becomes the daemon, so that the daemon is pid 1; a stranger ends there first.
    script = '(sh -c "sleep 0.1 &"); exec "$0" -m supervisor serve'
    command = [*enter, "sh", "-c", script, sys.executable]
    log = place.path / "log"
    with log.open("wb") as out:
        daemon = subprocess.Popen(command, cwd=place.path, env=place.env, stdout=out, stderr=out)
    try:
        until(lambda: "serving on" in log.read_text() or daemon.poll() is not None)
        assert place.run("wait", place.submit("plan.yaml")).status == 0
        (inner,) = _children(daemon.pid)
        until(lambda: not [one for one in _children(inner) if _state(one) == "Z"])
        os.kill(inner, signal.SIGTERM)
        assert daemon.wait(120) == 0, log.read_text()
        assert "no run is open" in log.read_text()
    finally:
        daemon.kill()
        daemon.wait()


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
