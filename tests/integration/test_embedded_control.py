"""Commands in a second terminal steer a supervisor that is embedded in a host; without a control socket they report why
they cannot.

The host is a process of its own, as a user's program would be, on asyncio and on trio.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.journal.statedir import LockHolder, StateDir
from supervisor.processes.shim import children
from tests.field.field_kit import alive, until
from tests.support import stdout_of

HOST = """
import os, sys
import anyio
from supervisor import AgentConfig, open_supervisor

async def main():
    agents = {"worker": AgentConfig(adapter="scripted", permissions={"default": "ask"})}
    async with open_supervisor("sd", agents=agents, control=sys.argv[2] == "control") as sup:
        async with anyio.create_task_group() as group:
            worker = await sup.start_session("worker", agent="worker")
            group.start_soon(worker.run, "@ask edit: a.txt\\n@say did it\\n@hang")
            print("ready", flush=True)
            await sup.stopping.wait()
            print("stopping", flush=True)
    print("left", flush=True)

anyio.run(main, backend=sys.argv[1])
"""


class Host:
    """Helper with a running host process, which runs the supervisor's commands against that host."""

    def __init__(self, where: Path, process: subprocess.Popen[str]) -> None:
        self.where, self.process = where, process

    def command(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "supervisor", *words, "--state-dir", "sd"]
        return subprocess.run(arguments, cwd=self.where, capture_output=True, text=True, timeout=timeout_s, check=False)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def host(where: Path, backend: str, control: str = "control") -> Iterator[Host]:
    (where / "host.py").write_text(HOST)
    earlier = set(children(os.getpid()))
    arguments = [sys.executable, "host.py", backend, control]
    with subprocess.Popen(arguments, cwd=where, stdout=subprocess.PIPE, text=True) as process:
        one = Host(where, process)
        try:
            assert one.line() == "ready"
            yield one
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            until(lambda: not orphans(earlier))  # a host that was killed leaves shims, which end by themselves


def orphans(earlier: Container[int]) -> list[int]:
    """Return the processes that a host has left to the test process, which is their subreaper; reap those that have
    ended."""
    left = [pid for pid in children(os.getpid()) if pid not in earlier]
    return [pid for pid in left if os.waitpid(pid, os.WNOHANG) == (0, 0)]


def agent_pid(one: Host) -> int | None:
    """Return the process id of the worker session's agent, as ``supervisor ps`` shows it; ``None`` without an agent."""
    seen = json.loads(one.command("ps", "--json").stdout)
    return next((each["pid"] for each in seen if each["kind"] == "agent"), None)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_commands_steer_an_embedded_supervisor(tmp_path: Path, backend: str) -> None:
    with host(tmp_path, backend) as one:
        until(lambda: "worker:t1:p1" in stdout_of("permissions", "--state-dir", tmp_path / "sd"))
        tree = one.command("tree")
        assert "worker" in tree.stdout
        assert tree.stderr == ""
        assert one.command("answer", "worker:t1:p1", "allow").returncode == 0
        assert one.command("send", "worker", "hurry", "--urgent").returncode == 0

        pid = agent_pid(one)
        assert pid is not None
        assert alive(pid)
        aborted = one.command("abort", "worker", "--scope", "session")
        assert aborted.returncode == 0
        assert "already" not in aborted.stdout
        assert not alive(pid)

        assert one.command("stop").returncode == 0
        assert one.line() == "stopping"
        assert one.line() == "left"
        assert one.process.wait(60) == 0


def test_without_a_socket_the_commands_say_that_the_supervisor_cannot_be_reached(tmp_path: Path) -> None:
    with host(tmp_path, "asyncio", "no control") as one:
        tree = one.command("tree")
        assert "worker" in tree.stdout
        assert "no supervisor runs" not in tree.stderr
        aborted = one.command("abort", "worker", "--scope", "session")
        assert aborted.returncode == 1
        assert f"a supervisor (pid {one.process.pid}) runs on sd but cannot be reached" in aborted.stderr
        assert one.process.poll() is None


def test_a_suspended_supervisor_is_said_not_to_answer(tmp_path: Path) -> None:
    with host(tmp_path, "asyncio") as one:
        os.kill(one.process.pid, signal.SIGSTOP)
        stopped = one.command("stop")
        os.kill(one.process.pid, signal.SIGCONT)
        assert stopped.returncode == 1
        assert f"a supervisor (pid {one.process.pid}) runs on sd and does not answer" in stopped.stderr


def test_an_abort_after_the_supervisors_death_fails_with_the_reason(tmp_path: Path) -> None:
    with host(tmp_path, "asyncio") as one:
        one.process.kill()
        one.process.wait()
        until(lambda: StateDir(tmp_path / "sd").lock_holder() is None)
        aborted = one.command("abort", "worker", "--scope", "session")
        assert aborted.returncode == 1
        assert "worker was not aborted: no supervisor runs on sd" in aborted.stderr


def test_reading_the_lock_keeps_no_supervisor_out(tmp_path: Path) -> None:
    """Reading which process holds the lock of a state directory does not prevent a supervisor from taking the lock."""
    state = StateDir.open(tmp_path / "sd")
    assert state.lock_holder() is None
    with state.lock():
        assert StateDir(tmp_path / "sd").lock_holder() == LockHolder(os.getpid())
    assert state.lock_holder() is None
