"""Processes that the kernel takes long to end after SIGKILL (48 GiB of pinned memory take 8 s): they run nothing any
more, so they are waited for, and are neither abandoned nor survivors; what comes next comes after them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from field_kit import Scratch, alive, until

from supervisor.ports import Launch
from supervisor.processes import containment, descent, shim
from supervisor.processes.host import ShimHost
from tests.slow_exit import SlowFile, slow_file
from tests.support import running_program

PLAN = """
    agents: {a: {adapter: acp, command: [python3, agent.py]}}
    tasks: [{id: t, agent: a, prompt: go}]
    policy: {ladder: {terminate_s: 0.1, kill_s: 0.1}}
"""
HOLDS = 'held = os.open("slow/file", os.O_RDONLY)\n'
TOOL = """
import os, time
held = os.open("slow/file", os.O_RDONLY)
with open("up", "w") as file:
    print(os.getpid(), file=file)
time.sleep(1000)
"""


@pytest.fixture
def slow(scratch: Scratch) -> Iterator[SlowFile]:
    """Fixture: a file in the scratch directory; a process that has opened it cannot exit before the file is released.
    The program ``tool.py`` opens it, and writes its pid to the file ``up``."""
    scratch.write("tool.py", TOOL)
    with slow_file(scratch.path / "slow") as file:
        yield file


def exiting(scratch: Scratch) -> list[dict[str, object]]:
    """Return what the records say about processes that the kernel is ending."""
    return [one["metadata"] for one in scratch.records() if one["event"] == "ProcessesExiting"]


def pid_in(scratch: Scratch, name: str) -> int:
    path = scratch.path / name
    return int(until(lambda: path.exists() and path.read_text()))


def test_an_abort_waits_for_an_agent_that_exits_slowly(scratch: Scratch, slow: SlowFile) -> None:
    """``abort --now`` of an agent that does not go: the records say that the kernel is ending it, the session ends
    after it, and the receipt counts no survivor. The runtime does not warn of tasks of its own meanwhile."""
    scratch.acp_agent(HOLDS + 'Path("up").write_text(str(os.getpid()))\nagent.cancelled.wait()')
    scratch.plan(PLAN)
    run = scratch.start("run", "plan.yaml")
    pid = pid_in(scratch, "up")
    aborted = scratch.start("abort", "t", "--scope", "session", "--now", "--json")
    assert until(lambda: exiting(scratch)) == [{"of": "t:a1", "pids": [pid]}]
    assert shim.is_exiting(pid)
    assert "Ended" not in [one["event"] for one in scratch.records("t")]
    assert not aborted.ended
    slow.release()
    receipt = json.loads(aborted.wait().out)
    [node], [process] = receipt["nodes"], receipt["processes"]
    assert (node["outcome"], node["rung"], receipt["survivors"]) == ("ended", "exiting", 0)
    assert (process["pid"], process["ended_by"], process["survivors"]) == (pid, "kill", 0)
    assert process["exiting_s"] > 2.0
    assert "goes on" not in run.wait().err


def test_the_next_attempt_begins_after_the_exit(scratch: Scratch, slow: SlowFile) -> None:
    """An attempt that ran into its time-out exits slowly: the next one does not start beside it."""
    scratch.write(
        "agent.py",
        """
        import os, sys, time
        with open("attempts", "a") as file:
            print(os.getpid(), file=file, flush=True)
        if os.path.getsize("attempts") < 10:  # one pid
            held = os.open("slow/file", os.O_RDONLY)
            time.sleep(1000)
        """,
    )
    scratch.plan("""
        agents: {a: {adapter: command, command: [python3, agent.py]}}
        tasks: [{id: t, agent: a, prompt: go, timeout_s: 1}]
        task_lifecycle: {base_retry_delay: 0.1, jitter_percentage: 0}
        limits: {grace_s: 0.1, backoff_base_ms: 10}
        policy: {ladder: {request_s: 0.1, cancel_s: 0.1, terminate_s: 0.1, kill_s: 0.1}}
    """)
    attempts = scratch.path / "attempts"
    run = scratch.start("run", "plan.yaml", "--json")
    until(attempts.exists)
    [told] = until(lambda: exiting(scratch))
    [first] = attempts.read_text().split()
    assert told["pids"] == [int(first)]
    slow.release()
    done = run.wait()
    assert done.status == 0, done.text
    assert len(attempts.read_text().split()) == 2
    agents = [one["entity_id"] for one in scratch.records() if one["entity_type"] == "agent"]
    assert len(set(agents)) == 2
    assert agents == sorted(agents, key=agents.index)  # no record of the first after one of the second


def test_a_tool_that_exits_slowly_is_no_survivor(scratch: Scratch, slow: SlowFile) -> None:
    """The abort of a call whose tool exits slowly waits for the tool: result ``aborted``, no survivors, and the turn
    goes on."""
    scratch.acp_agent("""
        if "again" in text:
            return "done"
        tool = [sys.executable, "tool.py"]
        agent.tool_call("k1")
        subprocess.Popen(tool, stdin=subprocess.DEVNULL, start_new_session=True).wait()
        agent.tool_ended("k1", "failed")
        return "went on"
    """)
    scratch.plan(PLAN)
    run = scratch.start("run", "plan.yaml")
    pid = pid_in(scratch, "up")
    until(lambda: "t:t1:c1" in scratch.run("tree").out)
    aborted = scratch.start("abort", "t:t1:c1", "--scope", "tool")
    assert until(lambda: exiting(scratch)) == [{"of": "t:t1:c1", "pids": [pid]}]
    assert not aborted.ended
    slow.release()
    receipt = aborted.wait().out
    assert "ended at the stage exiting" in receipt
    assert f"process {pid} of t:t1:c1: ended by kill" in receipt
    assert "it was exiting for" in receipt
    assert "survivors: 0" in receipt
    assert run.wait().status == 0
    outcomes = [one["metadata"]["outcome"] for one in scratch.records("t:t1") if one["event"] == "tool_completed"]
    assert outcomes == ["aborted"]
    assert not [one for one in scratch.records() if one["event"] == "TurnInterrupted"]


def test_a_terminal_that_exits_slowly_is_waited_for_without_a_warning(scratch: Scratch, slow: SlowFile) -> None:
    """A command that the supervisor runs for an agent exits slowly after the abort of its call: the receipt waits, and
    no task of the runtime is reported as one that ignores its cancellation."""
    scratch.acp_agent("""
        agent.tool_call("k1")
        made = agent.call("terminal/create", toolCallId="k1", command=sys.executable, args=["tool.py"])
        agent.call("terminal/wait_for_exit", terminalId=made["result"]["terminalId"])
        return "went on"
    """)
    scratch.plan(PLAN.replace("command: [python3, agent.py]", "command: [python3, agent.py], permissions: allow"))
    run = scratch.start("run", "plan.yaml")
    pid = pid_in(scratch, "up")
    aborted = scratch.start("abort", "t:t1:c1", "--scope", "tool", "--json")
    assert until(lambda: exiting(scratch)) == [{"of": "t:t1:c1", "pids": [pid]}]
    slow.release()
    receipt = json.loads(aborted.wait().out)
    assert (receipt["nodes"][0]["rung"], receipt["survivors"]) == ("exiting", 0)
    assert "goes on" not in run.wait().err


def test_an_agent_that_exits_slowly_by_itself_is_not_called_mute(scratch: Scratch, slow: SlowFile) -> None:
    """The kernel closes the output of an agent that exits, and takes longer for the rest: the failure of the turn is
    the agent's exit status, not an output that was closed."""
    scratch.acp_agent(HOLDS + 'Path("up").write_text(str(os.getpid()))\nos.close(1)\nos._exit(3)')
    scratch.plan(PLAN + "    task_lifecycle: {max_attempts: 1}\n")
    run = scratch.start("run", "plan.yaml")
    pid = pid_in(scratch, "up")
    until(lambda: shim.is_exiting(pid))
    assert "task_failed" not in [one["event"] for one in scratch.records("t:t1")]
    slow.release()
    assert run.wait().status == 1
    [error] = [one["metadata"]["verdict"]["error"] for one in scratch.records("t:t1") if one["event"] == "task_failed"]
    assert "3" in error
    assert "closed its output" not in error


# ------------------------------------------------------------------------------------------------- processes
WRITER = """
import os, sys, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(1000)
held = os.open(sys.argv[1], os.O_RDONLY)
print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.anyio
async def test_a_child_behind_an_exiting_parent_is_killed_too(scratch: Scratch, slow: SlowFile) -> None:
    """A process that the kernel is ending keeps its children until it is gone: they are killed with it, and not seconds
    later."""
    argv = (sys.executable, "-c", WRITER, str(slow.path))
    with anyio.fail_after(60):
        async with ShimHost() as shims, shims.spawn(Launch(argv=argv, cwd="/", env={}), terminate_s=0.0) as process:
            child = int(await process.receive())
            process.kill()
            while alive(child):
                await process.wait_gone(child)
            assert shim.is_exiting(process.pid)
            assert shim.is_alive(process.pid)
            slow.release()
            report = await process.wait_ended()
        assert (report.ended_by, report.killed, report.survivors) == ("kill", 1, 0)


THREADS = """
import ctypes, os, sys, threading, time
def work():
    os.open(sys.argv[1], os.O_RDONLY)
    print(flush=True)
    time.sleep(1000)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_what_is_exiting_is_decided_thread_by_thread(slow: SlowFile) -> None:
    """A process whose main thread has exited is not exiting while another thread works; when it is killed it is, until
    the last thread is gone, although its state says zombie all the time."""
    process = subprocess.Popen([sys.executable, "-c", THREADS, slow.path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        until(lambda: _state(process.pid) == "Z")
        assert shim.is_alive(process.pid)
        assert not shim.is_exiting(process.pid)
        process.kill()
        until(lambda: shim.is_exiting(process.pid))
        assert shim.is_alive(process.pid)
        assert process.poll() is None
    finally:
        process.kill()
        slow.release()
        assert process.wait(60) == -signal.SIGKILL
        process.stdout.close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_lost_shim_does_not_hide_what_is_exiting(scratch: Scratch, slow: SlowFile) -> None:
    """The agent kills its shim, and dies with it, slowly: the fork server has adopted the agent, and the session waits
    for it all the same."""
    scratch.acp_agent(HOLDS + 'Path("up").write_text(str(os.getpid()))\nos.kill(os.getppid(), 9)\ntime.sleep(1000)')
    scratch.plan(PLAN + "    task_lifecycle: {max_attempts: 1}\n")
    run = scratch.start("run", "plan.yaml")
    pid = pid_in(scratch, "up")
    until(lambda: shim.is_exiting(pid))
    aborted = scratch.start("abort", "t", "--scope", "session", "--now", "--json")
    until(lambda: exiting(scratch))
    slow.release()
    assert json.loads(aborted.wait().out)["survivors"] == 0
    run.wait()
    assert not alive(pid)


# ------------------------------------------------------------------------------------------------- after a kill -9
@pytest.mark.anyio
@pytest.mark.one_backend
async def test_the_next_supervisor_waits_for_what_the_sweep_has_killed(
    scratch: Scratch, slow: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that the next supervisor finds by its tag, and kills, exits slowly. The tag is gone with the first step
    of the exit; the sweep waits for the program all the same, for longer than for what runs."""
    monkeypatch.setattr(containment, "SWEEP_S", 0.0)
    with running_program([sys.executable, "tool.py"], cwd=scratch.path) as process, released(slow):
        pid = await anyio.to_thread.run_sync(pid_in, scratch, "up")
        rounds = Rounds(slow)

        def find() -> list[int]:
            rounds.count()
            return [] if shim.is_exiting(pid) else [pid]

        with anyio.fail_after(60):
            swept = await containment.kill_all(find, lambda found: found == pid)
        assert (swept, rounds.left) == (containment.Swept(1, ()), 0)
        assert not alive(process.pid)


@pytest.mark.anyio
@pytest.mark.one_backend
async def test_a_fork_server_below_which_something_exits_is_left_to_wait(
    scratch: Scratch, slow: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server of a killed supervisor waits for a program that exits slowly: it is not killed meanwhile, but
    when nothing is left below it and it stays."""
    monkeypatch.setattr(containment, "FORK_SERVER_S", 0.0)
    monkeypatch.setattr(containment, "LOOK_S", 0.01)
    parent = "import subprocess, time; subprocess.Popen(['python3', 'tool.py']); time.sleep(1000)"
    with running_program([sys.executable, "-c", parent], cwd=scratch.path) as process, released(slow):
        pid = await anyio.to_thread.run_sync(pid_in, scratch, "up")
        os.kill(pid, signal.SIGKILL)
        await anyio.to_thread.run_sync(until, lambda: shim.is_exiting(pid))
        identity = scratch.path / "fork-server"
        identity.write_text(descent.identity_of(process.pid))
        rounds = Rounds(slow)

        def look(roots: list[int]) -> tuple[int, ...]:
            assert process.poll() is None
            rounds.count()
            return shim.exiting_processes(roots)

        monkeypatch.setattr(containment, "exiting_processes", look)
        with anyio.fail_after(60):
            await containment.sweep(containment.Containment(fork_server_file=identity))
        assert rounds.left == 0
        assert process.wait(60) == -signal.SIGKILL


@contextmanager
def released(slow: SlowFile) -> Iterator[None]:
    """Let the file's holders go at the end of the block, whatever happens in it: their parent waits for them."""
    try:
        yield
    finally:
        slow.release()


class Rounds:
    """Count of the looks at a process that exits slowly; the tenth lets it go."""

    def __init__(self, slow: SlowFile) -> None:
        self._slow, self.left = slow, 10

    def count(self) -> None:
        self.left = max(0, self.left - 1)
        if self.left == 0:
            self._slow.release()
