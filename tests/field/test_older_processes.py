"""Aborts of tool calls whose work is done in a process that is older than the call: a worker of a pool, a shell that is
kept for all commands. Such a process cannot be killed and cannot be told from a bystander: the receipt names it, and
says ``unknown``; it never says 0 while the tool writes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from field_kit import Scratch, alive, until

from supervisor.policies.call_processes import (
    AgentPrograms,
    CallSpan,
    ProcessSeen,
    processes_of_calls,
)

AGENT = 100
SPAN = CallSpan(since=500, clear=500)


def seen(pid: int, command: str, *, born: int = 400, parent: int = AGENT, session: int = AGENT) -> ProcessSeen:
    return ProcessSeen(pid, parent, session, born, "S", 1, command.encode().hex())


def may_work(*below: ProcessSeen, main: str = "python3 agent.py", **names: Any) -> list[int]:
    """Return the processes that make the end of a call unknown, below an agent with the command line *main*."""
    found = processes_of_calls([seen(AGENT, main, parent=1), *below], SPAN, AgentPrograms(AGENT, **names))
    assert not [one for one in found.belong if one.born < SPAN.since]
    return [one.pid for one in found.may_belong]


# ------------------------------------------------------------------------------------------------- the decision
def test_an_agent_without_other_processes_is_believed() -> None:
    """The main process of an agent does not count: for work within the agent itself, its report counts."""
    assert may_work() == []


@pytest.mark.parametrize("session", [AGENT, 101])
def test_an_older_process_may_do_the_work_of_a_call_without_processes(session: int) -> None:
    """If no process of the call was found, any older process may do its work, in whatever process session."""
    assert may_work(seen(101, "python3 worker.py", session=session)) == [101]


def test_an_ordinary_tool_leaves_no_doubt_about_bystanders() -> None:
    """If the call had a process of its own, which is killed, an older process that has nothing to do with it does
    not count; after the kill neither."""
    bystander, tool = seen(101, "npm run dev", session=101), seen(102, "sleep 60", born=510, session=102)
    assert may_work(bystander, tool) == []
    later = processes_of_calls(
        [seen(AGENT, "a", parent=1), bystander], SPAN._replace(had_own=True), AgentPrograms(AGENT)
    )
    assert later.may_belong == ()


def test_a_worker_that_has_started_the_tool_counts() -> None:
    """A kept shell, or a worker, whose child is killed goes on with its own work."""
    assert may_work(seen(101, "bash"), seen(102, "sleep 60", born=510, parent=101, session=102)) == [101]


def test_a_multiplexer_counts_beside_a_tool() -> None:
    """A command that runs something in tmux ends at once, and what it runs goes on below the server of tmux."""
    server, tool = seen(101, "tmux new-session -d", session=101), seen(102, "sleep 1", born=510, session=102)
    assert may_work(server, tool) == [101]


def test_servers_of_the_plan_and_of_the_catalogue_do_not_count() -> None:
    """A server that the plan or the catalogue names, or the environment marks, does no work of a call, nor does what
    it has started; options of the interpreter do not hide the name of a script."""
    marked = ProcessSeen(104, AGENT, AGENT, 400, "S", 1, server=True)
    below = seen(103, "node worker.js", parent=102)
    servers = [seen(101, "/usr/bin/gopls serve"), seen(102, "node --no-warnings /opt/files.js"), below, marked]
    assert may_work(*servers, servers=["gopls", "files"]) == []


def test_a_tool_with_the_name_of_a_server_is_unknown() -> None:
    """A tool may run the program of a language server once, in a process session of its own: it is named, and so is
    what it has started. In the session of the agent such a program is a server that is started on first use."""
    tool = seen(101, "/usr/bin/gopls check x.go", born=510, session=101)
    below = seen(102, "go list", born=511, parent=101, session=101)
    assert may_work(tool, below, known_servers=["gopls"]) == [101, 102]
    assert may_work(tool, below, servers=["gopls"], known_servers=["gopls"]) == []
    assert may_work(seen(101, "gopls serve", born=510), known_servers=["gopls"]) == []
    assert may_work(seen(101, "gopls serve", session=101), known_servers=["gopls"]) == []


@pytest.mark.parametrize("command", ["tail -f gopls", "vi claude", "/usr/bin/less +F /opt/claude.js"])
def test_an_argument_is_no_name_of_a_program(command: str) -> None:
    """Only an interpreter has a script: the file that another program reads makes it no server, and not the agent."""
    names = {"own": ["claude"], "known_servers": ["gopls"]}
    assert may_work(seen(101, command), **names) == [101]
    tool = seen(101, command, born=510, session=101)
    agent = AgentPrograms(AGENT, **names)
    assert processes_of_calls([seen(AGENT, "a", parent=1), tool], SPAN, agent).belong == (tool,)


@pytest.mark.parametrize("interpreter", ["python3.12", "nodejs", "/usr/bin/ruby3.1 -W0", "bash", "npx -y"])
def test_the_script_of_an_interpreter_names_a_server(interpreter: str) -> None:
    """An interpreter may have a version in its name, and options before the script."""
    assert may_work(seen(101, f"{interpreter} /opt/gopls serve"), known_servers=["gopls"]) == []


@pytest.mark.parametrize(
    ("main", "child"),
    [
        ("npm exec some-agent --acp", "node /opt/some-agent --acp"),  # a launcher waits for its only child
        ("sh -c cd x && agent", "python3 agent.py"),
        ("node /usr/bin/codex app-server", "/opt/vendor/codex app-server"),  # a script starts a binary
        ("node claude-agent-acp.js", "/opt/sdk/claude --output-format stream-json"),  # a bridge starts the agent
    ],
)
def test_processes_in_which_the_agent_itself_runs_do_not_count(main: str, child: str) -> None:
    """An agent may run below a launcher, or in a second program of its own: plain calls stay exact."""
    assert may_work(seen(101, child), main=main, own=["codex", "claude"]) == []


def test_a_forked_worker_is_not_the_agent_itself() -> None:
    """A worker that was forked has the command line of the agent, and does other work."""
    main = "python3 /usr/bin/vibe --acp"
    assert may_work(seen(101, main), main=main, own=["vibe"]) == [101]


def test_a_launcher_with_two_children_hides_nothing() -> None:
    """A start script that starts a worker beside the agent is no launcher of only the agent."""
    assert may_work(seen(101, "python3 agent.py"), seen(102, "worker"), main="sh start.sh") == [101, 102]


# ------------------------------------------------------------------------------------------------- real processes
PLAN = """
    agents: {a: {adapter: acp, command: [python3, agent.py]%s}}
    tasks: [{id: t, agent: a, prompt: go}]
"""
WORKER = """
import sys, time
sys.stdin.readline()  # the work comes
while True:
    with open("written", "a") as file:
        file.write("x")
    time.sleep(0.02)
"""
TURN = """
if Path("begun").exists():  # the prompts after the abort
    return "went on"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
worker = subprocess.Popen([sys.executable, "worker.py"], **pipes)
born = time.monotonic()
while time.monotonic() < born + 0.03:  # the kernel tells births in hundredths of a second
    pass
agent.tool_call("k0")  # so that the worker is older than the next call
agent.tool_ended("k0")
Path("begun").touch()
while not Path("next").exists():
    time.sleep(0.01)
agent.tool_call("k1")
worker.stdin.write(b"work\\n")
worker.stdin.flush()
Path("pid").write_text(str(worker.pid))
agent.cancelled.wait()
"""


def abort_while_it_writes(scratch: Scratch, servers: str = "") -> tuple[int, Any, list[str]]:
    """Run the agent, abort its call while the worker writes, and return the worker's pid, the receipt, and the results
    of the call."""
    scratch.write("worker.py", WORKER)
    scratch.acp_agent(TURN)
    scratch.plan(PLAN % servers)
    scratch.start("run", "plan.yaml")
    until((scratch.path / "begun").exists)
    until(lambda: any(one["event"] == "tool_completed" for one in scratch.records()))
    (scratch.path / "next").touch()
    until((scratch.path / "written").exists)
    until(lambda: "t:t1:c2" in scratch.run("tree").out)
    done = scratch.run("abort", "t:t1:c2", "--scope", "tool", "--json")
    assert done.status == 0, done.text
    told = [one["metadata"] for one in scratch.records("t:t1") if one["event"] == "tool_completed"]
    results = [one["outcome"] for one in told if one["call_id"] == "k1"]
    return int(Path(scratch.path / "pid").read_text()), json.loads(done.out), results


def test_a_worker_that_writes_on_is_named(scratch: Scratch) -> None:
    """A pool worker, older than the call, writes on after the abort: survivors and result are unknown, the receipt
    names the worker, and does not say that no process was found. Its end is recorded with that of the agent."""
    worker, receipt, results = abort_while_it_writes(scratch)
    assert alive(worker)
    assert receipt["survivors"] == "unknown"
    assert results == ["unknown"]
    assert [(one["owner"], one["pid"], one["survivors"]) for one in receipt["processes"]] == [
        ("t:t1:c2", worker, "unknown")
    ]
    [node] = receipt["nodes"]
    assert "no process of it was found" not in node["how"]
    assert str(worker) in node["how"]
    ended = [one for one in scratch.started[0].wait().text.splitlines() if one.startswith("r1#t ")]
    assert ended, "the task went on after the abort"
    facts = [one["event"] for one in scratch.records() if one["event"].startswith("CallProcesses")]
    assert facts == ["CallProcessesLeft", "CallProcessesEnded"]


def test_a_worker_that_the_plan_names_as_a_server_does_not_count(scratch: Scratch) -> None:
    """The same worker, named in ``servers``: the agent's word counts, as for work within the agent."""
    _, receipt, results = abort_while_it_writes(scratch, ", servers: [worker]")
    assert (receipt["survivors"], receipt["processes"], results) == (0, [], ["aborted"])
