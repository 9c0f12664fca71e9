"""Survivors of an aborted tool call: they are killed or named in the receipt; a receipt never leaves out a process that
may run on."""

from __future__ import annotations

import json
import textwrap
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from field_kit import Scratch, alive, until

from supervisor.policies.call_processes import (
    AgentPrograms,
    CallProcesses,
    CallSpan,
    ProcessSeen,
    processes_of_calls,
)
from supervisor.sessions import tool_calls

# ------------------------------------------------------------------------------------------------- the decision
AGENT, OWN = 100, 0
"""Pid of the agent, which is its process session too; ``OWN`` stands for a process session of the process's own."""


def seen(
    pid: int, born: int, session: int = OWN, parent: int = AGENT, state: str = "S", threads: int = 1
) -> ProcessSeen:
    return ProcessSeen(pid, parent, session or pid, born, state, threads)


@pytest.mark.parametrize(
    ("process", "span", "answer"),
    [
        (seen(101, 500), CallSpan(500, 500), "belongs"),  # born in the tick of the bound: rounded towards inclusion
        (seen(101, 499), CallSpan(500, 500), "may"),  # there before the call: a worker that the agent keeps
        (seen(101, 510, session=AGENT), CallSpan(500, 500), "may"),  # a tool, or a server that is started lazily
        (seen(101, 499, session=AGENT), CallSpan(500, 500), "may"),
        (seen(101, 499, state="Z"), CallSpan(500, 500), "does not"),
        (seen(101, 510), CallSpan(500, 520), "may"),  # of this call, or of the one that was closed in the same breath
        (seen(101, 520), CallSpan(500, 520), "may"),
        (seen(101, 521), CallSpan(500, 520), "belongs"),
        (seen(101, 510), CallSpan(500, 500, alone=False), "may"),  # of this call, or of one that goes on
        (seen(101, 510, state="Z"), CallSpan(500, 500), "does not"),  # dead
        (seen(101, 510, state="Z", threads=2), CallSpan(500, 500), "belongs"),  # its main thread has exited, no other
        (seen(101, 510, parent=1), CallSpan(500, 500), "belongs"),  # an orphan
    ],
)
def test_which_processes_belong_to_a_call(process: ProcessSeen, span: CallSpan, answer: str) -> None:
    """Whether a process belongs to a tool call, may belong to it, or does not, is decided by its time of birth, its
    process session and its threads."""
    found = processes_of_calls([seen(AGENT, 1), process], span, AgentPrograms(AGENT))
    told = "belongs" if found.belong else "may" if found.may_belong else "does not"
    assert told == answer


def test_what_a_server_starts_is_as_uncertain_as_the_server() -> None:
    """A process started by a server of the agent counts as "may belong to the call" if the server is one that may, or
    was there before; a process started by no server belongs."""
    tree = [
        seen(AGENT, 1),
        seen(101, 2, session=AGENT),  # a wrapper, in which the agent really runs
        seen(102, 510, parent=101),
        seen(103, 2),  # a server that was there before, and its browser
        seen(104, 510, parent=103),
        seen(105, 511, session=AGENT),  # a server that was started lazily, and its worker
        seen(106, 512, parent=105),
    ]
    found = processes_of_calls(tree, CallSpan(500, 500), AgentPrograms(AGENT))
    assert [one.pid for one in found.belong] == [102]
    assert [one.pid for one in found.may_belong] == [101, 103, 104, 105, 106]
    assert [one.pid for one in found.above] == [101, 103]


class Shim:
    """Stand-in for an agent's process: its shim gives no reply to a request for processes if *told* is ``None``, else
    always *told*."""

    pid = AGENT

    def __init__(self, told: tuple[ProcessSeen, ...] | None) -> None:
        self.told = told

    async def list_processes(self) -> tuple[ProcessSeen, ...] | None:
        if self.told is None:
            await anyio.sleep_forever()
        return self.told

    def signal_processes(self, found: object, number: int) -> None: ...


TIMERS: Any = SimpleNamespace(now=time.monotonic, limit=anyio.move_on_after)


def test_a_shim_that_gives_no_reply_leaves_survivors_unknown() -> None:
    """When the shim of an agent gives no reply, since a tool has stopped it, the processes of the call count as
    unknown."""
    shim: Any = Shim(None)
    end = partial(tool_calls.end_processes, shim, CallSpan(0, 0), TIMERS, AgentPrograms(AGENT), within_s=0.01)
    assert anyio.run(end).may_live == (0,)


def test_each_call_has_the_processes_that_may_be_its_own() -> None:
    """A process that may belong to two calls is reported as unknown in the receipts of both, until the agent
    has ended."""
    tree: Any = SimpleNamespace(system=SimpleNamespace(timers=TIMERS), record_fact=lambda *_: None)
    profile = SimpleNamespace(programs_of=AgentPrograms)
    work: Any = SimpleNamespace(fates=[], profile=profile, cause=None, record_turn_fact=lambda *_: None)
    wire: Any = SimpleNamespace(process=Shim((seen(AGENT, 1), seen(101, 510, session=AGENT))))
    calls = {"k1": "c1", "k2": "c2"}
    ends = tool_calls.ToolCallTerminations(tree, work, "a", calls, ("k1", "k2"), lambda _: None, wire)
    for call in calls:
        assert anyio.run(ends.before_result, call) is False
    assert [(one.owner, one.survivors) for one in work.fates] == [("c1", "unknown"), ("c2", "unknown")]
    ends.note_processes_gone()
    assert [one.survivors for one in work.fates] == [0, 0]


# ------------------------------------------------------------------------------------------------- real processes
PLAN = """
    agents: {a: {adapter: acp, command: [python3, agent.py]}}
    tasks: [{id: t, agent: a, prompt: go}]
"""
KIT = """
if "aborted" in text:  # the prompt after the abort
    Path("again").touch()
    agent.cancelled.wait()
    return
def note(name, pid):
    Path(name + ".new").write_text(str(pid))
    Path(name + ".new").rename(name)
def sleep(**options):
    return subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options).pid
"""


def start(scratch: Scratch, turn: str) -> None:
    """Run an agent whose turn ends only by a cancel, and whose tools run on then."""
    scratch.acp_agent(KIT + textwrap.dedent(turn) + "\nagent.cancelled.wait()")
    scratch.plan(PLAN)
    scratch.start("run", "plan.yaml")


def pid_in(scratch: Scratch, name: str) -> int:
    """Wait until the file *name* has a pid, and return the pid."""
    path = scratch.path / name
    until(path.exists)
    return int(path.read_text())


def abort(scratch: Scratch, call: str) -> Any:
    """Abort one call, as soon as the supervisor knows the call, and return the receipt."""
    until(lambda: call in scratch.run("tree").out)
    done = scratch.run("abort", call, "--scope", "tool", "--json")
    assert done.status == 0, done.text
    return json.loads(done.out)


def outcome_of(scratch: Scratch, agents_name: str) -> str:
    """Return the outcome of the call that the agent has given the id *agents_name*."""
    told = [one["metadata"] for one in scratch.records("t:t1") if one["event"] == "tool_completed"]
    return next(one["outcome"] for one in told if one["call_id"] == agents_name)


def test_a_tool_in_its_agents_own_session_is_named(scratch: Scratch) -> None:
    """A child process in the agent's process session may be a tool or a server: after the abort of the call it lives
    on, the receipt names it as unknown, and its end is recorded later."""
    start(scratch, 'agent.tool_call("k1")\nnote("tool", sleep())')
    tool = pid_in(scratch, "tool")
    receipt = abort(scratch, "t:t1:c1")
    assert alive(tool)
    assert receipt["survivors"] == "unknown"
    assert [(one["owner"], one["pid"], one["survivors"]) for one in receipt["processes"]] == [
        ("t:t1:c1", tool, "unknown")
    ]
    assert outcome_of(scratch, "k1") == "unknown"
    again = json.loads(scratch.run("abort", "t:t1:c1", "--scope", "tool", "--json").out)
    assert (again["already_ended"], again["survivors"]) == (True, "unknown")
    ended = json.loads(scratch.run("abort", "t", "--scope", "session", "--json").out)
    assert ended["survivors"] == 0
    assert not alive(tool)
    facts = [(one["event"], one["metadata"]) for one in scratch.records() if one["event"].startswith("CallProcesses")]
    told = {"call": "t:t1:c1", "pids": [tool]}
    assert facts == [("CallProcessesLeft", told), ("CallProcessesEnded", told)]


def test_the_second_call_of_an_answer_has_its_tool_found(scratch: Scratch) -> None:
    """A tool that starts right after an earlier call has ended is killed by the abort of its own call, or named as
    unknown if it may belong to the earlier call."""
    turn = """
        agent.tool_call("k1")
        subprocess.run(["true"])
        agent.tool_ended("k1")
        agent.tool_call("k2")
        note("tool", sleep(start_new_session=True))
    """
    start(scratch, turn)
    tool = pid_in(scratch, "tool")
    receipt = abort(scratch, "t:t1:c2")
    assert [one["pid"] for one in receipt["processes"]] == [tool]
    if alive(tool):
        assert (receipt["survivors"], outcome_of(scratch, "k2")) == ("unknown", "unknown")
    else:
        assert (receipt["survivors"], outcome_of(scratch, "k2")) == (0, "aborted")


def test_a_tool_lives_as_long_as_one_of_its_threads(scratch: Scratch) -> None:
    """A tool whose main thread has exited, which looks like a zombie, is killed by the abort of its call."""
    scratch.write(
        "tool.py",
        """
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(1000,)).start()
        ctypes.CDLL(None).pthread_exit(None)
        """,
    )
    turn = """
        agent.tool_call("k1")
        tool = subprocess.Popen([sys.executable, "tool.py"], stdin=subprocess.DEVNULL, start_new_session=True).pid
        while Path(f"/proc/{tool}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        note("tool", tool)
    """
    start(scratch, turn)
    tool = pid_in(scratch, "tool")
    assert alive(tool)
    receipt = abort(scratch, "t:t1:c1")
    assert not alive(tool)
    assert receipt["survivors"] == 0
    assert [(one["pid"], one["ended_by"]) for one in receipt["processes"]] == [(tool, "kill")]
    assert outcome_of(scratch, "k1") == "aborted"


def test_an_agent_keeps_its_servers(scratch: Scratch) -> None:
    """An abort of a call leaves servers alone that were started before the call; a server started during the call also
    lives on, but the receipt names it as unknown."""
    turn = """
        agent.tool_call("k0")
        note("plain", sleep())
        note("apart", sleep(start_new_session=True))
        born = time.monotonic()
        while time.monotonic() < born + 0.02:  # the kernel tells births in hundredths of a second
            pass
        agent.tool_ended("k0")
        while not Path("next").exists():
            time.sleep(0.01)
        agent.tool_call("k1")
        note("lazy", sleep())
        note("tool", sleep(start_new_session=True))
    """
    start(scratch, turn)
    servers = [pid_in(scratch, name) for name in ("plain", "apart")]
    until(lambda: any(one["event"] == "tool_completed" for one in scratch.records("t:t1")))
    (scratch.path / "next").touch()
    lazy, tool = pid_in(scratch, "lazy"), pid_in(scratch, "tool")
    receipt = abort(scratch, "t:t1:c2")
    assert [(one["pid"], one["survivors"]) for one in receipt["processes"]] == [(tool, 0), (lazy, "unknown")]
    assert not alive(tool)
    until((scratch.path / "again").exists)
    assert all(map(alive, [*servers, lazy]))


def test_a_server_that_the_agent_keeps_belongs_to_no_call() -> None:
    """Processes of servers do not belong to the call during which they were started: a marked server, a server that the
    plan names, and their child processes."""
    agent, span = ProcessSeen(100, 1, 100, 400, "S", 1), CallSpan(since=500, clear=500)
    marked = ProcessSeen(101, 100, 101, 510, "S", 1, server=True)
    named = ProcessSeen(102, 100, 102, 510, "S", 1, command_hex=b"node /usr/bin/gopls serve".hex())
    below = ProcessSeen(103, 102, 103, 520, "S", 1)
    tool = ProcessSeen(104, 100, 104, 520, "S", 1)
    found = processes_of_calls([agent, marked, named, below, tool], span, AgentPrograms(100, servers=["gopls"]))
    assert found == CallProcesses(belong=(tool,))
