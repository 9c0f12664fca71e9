"""Commands in a second terminal steer a supervisor that is embedded in a host; without a control socket they report why
they cannot.

The host is a process of its own, as a user's program would be, on asyncio and on trio.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from supervisor import AgentTurn, Plan, TaskConfig, open_supervisor, run_plan
from supervisor.journal.statedir import StateDir
from supervisor.processes.shim import children
from tests.field.field_kit import alive, until
from tests.support import CommandOutput, run_command, running_program

HOST = """
import sys
import anyio
from supervisor import AgentConfig, open_supervisor

ASK = {"rules": [{"then": "ask", "kind": "edit"}]}
AGENTS = {"worker": AgentConfig(adapter="scripted", permissions=ASK)}

async def main():
    async with open_supervisor("sd", agents=AGENTS, control=sys.argv[2] == "control") as sup:
        async with anyio.create_task_group() as group:
            worker = await sup.start_session("worker", agent="worker")
            group.start_soon(worker.run, "@ask edit: a.txt\\n@hang")
            print("ready", flush=True)
            await sup.stopping.wait()
            print("stopping", flush=True)
    print("left", flush=True)

anyio.run(main, backend=sys.argv[1])
"""
TOOL = "@tools 1 echo $$ > new; mv new tool; exec sleep 1000\n@hang"
"""Script for the agent: begin a tool call that writes its process id to the file ``tool``, and never ends."""


class Host:
    """Helper with a running host process, which runs the supervisor's commands against that host from this process."""

    def __init__(self, where: Path, process: subprocess.Popen[str]) -> None:
        self.where, self.process = where, process

    def command(self, *words: str) -> CommandOutput:
        return run_command(*words, "--state-dir", "sd", cwd=self.where)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def host(where: Path, backend: str, control: str = "control") -> Iterator[Host]:
    (where / "host.py").write_text(HOST)
    earlier = set(children(os.getpid()))
    arguments = [sys.executable, "host.py", backend, control]
    with running_program(arguments, cwd=where, stdout=subprocess.PIPE, text=True) as process:
        one = Host(where, process)
        try:
            assert one.line() == "ready"
            yield one
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)
            until(lambda: not orphans(earlier))  # a host that was killed leaves shims, which end by themselves


def orphans(earlier: Container[int]) -> list[int]:
    """Return the processes that a host has left to the test process, which is their subreaper; reap those that have
    ended."""
    left = [pid for pid in children(os.getpid()) if pid not in earlier]
    return [pid for pid in left if os.waitpid(pid, os.WNOHANG) == (0, 0)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_commands_steer_an_embedded_supervisor(tmp_path: Path, backend: str) -> None:
    """Each command that an operator types beside a running host does what it says, as the processes of the machine
    show."""
    with host(tmp_path, backend) as one:
        until(lambda: "worker:t1:p1" in one.command("permissions").out)
        tree = one.command("tree")
        assert ("worker" in tree.out, tree.err) == (True, "")
        agent = next(each["pid"] for each in one.command("ps", "--json").json if each["kind"] == "agent")
        assert alive(agent)
        assert one.command("answer", "worker:t1:p1", "allow").out == "worker:t1:p1: allowed\n"
        assert one.command("permissions").out == "no permission waits for an answer\n"

        assert one.command("send", "worker", TOOL, "--urgent").status == 0
        until(lambda: (tmp_path / "tool").exists())
        tool = int((tmp_path / "tool").read_text())
        [call] = re.findall(r"worker:t\d+:c\d+", one.command("tree").out)
        assert alive(tool)
        assert one.command("abort", call, "--scope", "tool", "--reason", "too slow").status == 0
        assert (alive(tool), alive(agent)) == (False, True)

        assert one.command("stop").out.startswith("draining: nothing new begins")
        assert one.line() == "stopping"
        assert alive(agent)  # its turn is under way
        assert one.command("stop").out == "everything is being aborted\n"
        assert one.line() == "left"
        assert one.process.wait(120) == 0
        assert not alive(agent)


@pytest.mark.parametrize("removed", [False, True], ids=["control=False", "its file was removed"])
def test_without_a_socket_the_commands_say_that_the_supervisor_cannot_be_reached(tmp_path: Path, removed: bool) -> None:
    """If a supervisor has no control socket, readers show the sessions as alive, and every other command fails with
    exit status 1 and names the process."""
    with host(tmp_path, "asyncio", "control" if removed else "no control") as one:
        (tmp_path / "sd/runtime/control.sock").unlink(missing_ok=not removed)
        for reader in ("tree", "ps"):
            shown = one.command(reader)
            assert (shown.status, "worker" in shown.out, "no supervisor runs" in shown.err) == (0, True, False)
        for command in (
            ("abort", "worker", "--scope", "session"),
            ("send", "worker", "hurry", "--urgent"),
            ("permissions",),
            ("answer", "worker:t1:p1", "allow"),
            ("inspect", "worker"),
            ("approve", "task"),
            ("stop",),
        ):
            failed = one.command(*command)
            assert (failed.status, failed.out) == (1, "")
            assert f"a supervisor (pid {one.process.pid}) runs on sd but cannot be reached" in failed.err
        assert one.process.poll() is None


def test_a_suspended_supervisor_is_said_not_to_answer(tmp_path: Path) -> None:
    """A supervisor that accepts a connection and does not reply is reported with its pid, after 5 s."""
    with host(tmp_path, "asyncio") as one:
        os.kill(one.process.pid, signal.SIGSTOP)
        stopped = one.command("stop")
        os.kill(one.process.pid, signal.SIGCONT)
        assert stopped.status == 1
        assert f"a supervisor (pid {one.process.pid}) runs on sd and does not answer" in stopped.err


def test_an_abort_after_the_supervisors_death_fails_with_the_reason(tmp_path: Path) -> None:
    with host(tmp_path, "asyncio") as one:
        one.process.kill()
        one.process.wait()
        until(lambda: StateDir(tmp_path / "sd").lock_holder() is None)
        aborted = one.command("abort", "worker", "--scope", "session")
        assert aborted.status == 1
        assert "worker was not aborted: no supervisor runs on sd" in aborted.err


@pytest.mark.anyio
async def test_a_task_without_a_session_is_inspected_by_its_name(tmp_path: Path) -> None:
    """``inspect`` with the name of a task that no session has claimed yet shows the task itself, even if a session had
    that name earlier."""

    async def agent(turn: AgentTurn) -> str:
        return turn.prompt

    plan = Plan(agents={"w": agent}, tasks=[TaskConfig(id="b", agent="w", approval="before")])
    async with open_supervisor(tmp_path / "sd", agents=plan.agents) as sup, sup.subscribe() as records:
        earlier = await sup.start_session("b", agent="w")
        await earlier.close()
        run = run_plan(sup, plan)
        while (await anext(records)).entity_id != "r1#b":
            pass
        found = await anyio.to_thread.run_sync(run_command, "inspect", "b", "--state-dir", tmp_path / "sd")
        assert (found.status, found.err) == (0, "")
        assert found.out.startswith("task r1#b: PLANNED")
        await run.approve("b")
        assert (await run).ok


def test_reading_the_lock_keeps_no_supervisor_out(tmp_path: Path) -> None:
    """Reading which process holds the lock of a state directory does not prevent a supervisor from taking the lock."""
    state = StateDir.open(tmp_path / "sd")
    assert state.lock_holder() is None
    with state.lock():
        holder = StateDir(tmp_path / "sd").lock_holder()
        assert holder is not None
        assert holder.pid == os.getpid()
    assert state.lock_holder() is None
