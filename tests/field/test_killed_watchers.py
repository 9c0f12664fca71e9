"""An agent kills its shim and the fork server: what it leaves behind is killed, or may only read, and its session
ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from field_kit import Scratch, alive, until

WILD = """
    while not Path("open").exists(): time.sleep(0.01)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "daemon.py", %r])
        os._exit(0)
    time.sleep(1000)
"""
DAEMON = """
    import json, os, signal, subprocess, sys, time
    from pathlib import Path

    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def leave_the_control_group():
        home = Path("/proc/self/cgroup").read_text().split("0::/")[1].strip()
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if " - cgroup2 " in line and home:
                Path(line.split()[4], home, "..", "cgroup.procs").resolve().write_text("0")

    def supervisor(*args):
        done = subprocess.run([sys.executable, "-m", "supervisor", *args], capture_output=True, text=True)
        return [done.returncode, done.stdout + done.stderr]

    if sys.argv[1] == "hide":
        leave_the_control_group()
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
        os.execve(sys.executable, [sys.executable, "daemon.py", "hidden"], kept)
    Path("daemon.new").write_text(str(os.getpid()))
    os.rename("daemon.new", "daemon")
    above, pid, top = [], os.getppid(), int(Path("supervisor.pid").read_text())
    while pid != top:
        above.append(pid)
        pid = parent(pid)
    for pid in reversed(above):  # the fork server first: it would end what the shim leaves
        os.kill(pid, signal.SIGKILL)
    commands = {
        "answer": ["answer", "u:t1:p1", "allow"], "abort": ["abort", "u", "--scope", "session"],
        "stop": ["stop"], "read": ["permissions"],
    }
    Path("tried.new").write_text(json.dumps({name: supervisor(*args) for name, args in commands.items()}))
    os.rename("tried.new", "tried")
    time.sleep(1000)
"""
ASKS = """
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
    reply = agent.call("session/request_permission", toolCall={"toolCallId": "x", "title": "rm -rf /"}, options=options)
    Path("outcome").write_text(json.dumps(reply["result"]["outcome"]))
    return "done"
"""


@pytest.fixture
def wild(scratch: Scratch) -> Iterator[Scratch]:
    """Fixture: a scratch directory with the programs of a task whose agent leaves a daemon; in the end the daemon is
    killed."""
    scratch.write("daemon.py", DAEMON)
    scratch.acp_agent(ASKS, "asking_agent.py")
    scratch.plan("""
        agents:
          wild: {adapter: acp, command: [python3, agent.py], inherit_env: [PYTHONPATH]}
          asker: {adapter: acp, command: [python3, asking_agent.py], permissions: ask}
        task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}
        tasks:
          - {id: t, agent: wild, prompt: go, max_retries: 0}
          - {id: u, agent: asker, prompt: go}
    """)
    yield scratch
    with suppress(OSError):
        os.kill(int((scratch.path / "daemon").read_text()), signal.SIGKILL)


def let_loose(scratch: Scratch, mode: str) -> int:
    """Run the plan, let the agent of ``t`` start its daemon as soon as ``u`` waits for a permission, and return the pid
    of the daemon, which kills its shim and the fork server."""
    scratch.acp_agent(WILD % mode)
    run = scratch.start("run", "plan.yaml", "--json")
    (scratch.path / "supervisor.pid").write_text(str(run.pid))
    until(lambda: "u:t1:p1" in scratch.run("permissions").out)
    (scratch.path / "open").touch()
    until(lambda: (scratch.path / "daemon").exists())
    return int((scratch.path / "daemon").read_text())


def answer_and_wait(scratch: Scratch) -> dict[str, str]:
    """Answer the permission as an operator, and return the outcome of each task when the run has ended."""
    said = scratch.run("answer", "u:t1:p1", "deny")
    assert said.status == 0, said.text
    ended = scratch.started[0].wait().json()
    assert "reject_once" in (scratch.path / "outcome").read_text()
    answers = [one["actor"] for one in scratch.records() if one["event"] == "PermissionAnswered"]
    assert [actor.partition(":")[0] for actor in answers] == ["operator"]
    return {one["id"]: one["outcome"] for one in ended["tasks"]}


def test_a_daemon_that_killed_its_watchers_is_killed(wild: Scratch) -> None:
    """A daemon that keeps its environment kills its shim and the fork server: it is killed while the run goes on, its
    session ends though it held the output open, and the other task is done."""
    daemon = let_loose(wild, "stay")
    until(lambda: not alive(daemon))
    assert not (wild.path / "tried").exists()
    until(lambda: any(one["event"] == "Ended" for one in wild.records("t")))
    assert answer_and_wait(wild) == {"t": "failed", "u": "completed"}


def test_a_daemon_that_hides_is_refused_and_listed(wild: Scratch) -> None:
    """A daemon that has left the control group, and cleared its environment, kills its shim and the fork server: it may
    read, and is refused to answer, abort and stop. `ps` names it. It is not killed, since nothing proves whose it is,
    and it does not keep its session running."""
    daemon = let_loose(wild, "hide")
    until(lambda: (wild.path / "tried").exists())
    told = json.loads((wild.path / "tried").read_text())
    assert {name: status for name, (status, _) in told.items()} == {"answer": 2, "abort": 2, "stop": 2, "read": 0}, told
    assert f"the caller cannot be identified, since process {daemon}" in told["answer"][1]
    assert not (wild.path / "outcome").exists()
    assert f"{daemon} (" in wild.run("ps").err
    assert "they may only read" in wild.run("tree").err
    until(lambda: any(one["event"] == "Ended" for one in wild.records("t")))
    assert answer_and_wait(wild) == {"t": "failed", "u": "completed"}
    assert alive(daemon)
