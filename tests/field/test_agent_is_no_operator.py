"""Agents that use the supervisor's own command line: they are treated as agents, and may not answer permissions, stop
or retry."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from field_kit import Scratch, until

from supervisor.control.callers import refusal
from supervisor.control.operations import OPERATIONS
from supervisor.control.requests import (
    Abort,
    Answer,
    CancelRun,
    Compact,
    Inspect,
    MergeRun,
    Page,
    Reload,
    Request,
    Send,
    Split,
    Steer,
    Stop,
    Submit,
)
from supervisor.policies.abort_plan import AbortPlan
from supervisor.policies.caller_reach import CallerReach
from supervisor.ports import Caller, Origin
from supervisor.processes.descent import ProcessStat, caller_at, lineage_of, origin_of, read_stat

ASKER = """
    def answer():
        while not Path("open").exists(): time.sleep(0.01)
        done = subprocess.run(["supervisor", "answer", "t:t1:p1", "allow"], capture_output=True, text=True)
        Path("tried.new").write_text(f"{done.returncode} {done.stderr}")
        os.rename("tried.new", "tried")

    def leave_a_daemon():
        if os.fork() == 0:
            os.setsid()
            middle = os.getpid()
            if os.fork() == 0:
                while os.getppid() == middle:
                    pass
                answer()
            os._exit(0)

    threading.Thread(target=%s).start()
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
    call = {"toolCallId": "x", "title": "rm -rf /"}
    reply = agent.call("session/request_permission", toolCall=call, options=options)
    Path("outcome").write_text(json.dumps(reply["result"]["outcome"]))
    return "done"
"""


@pytest.mark.parametrize("how", ["answer", "leave_a_daemon"])
@pytest.mark.parametrize("pid_namespaces", ["false", "true"])
def test_an_agent_does_not_answer_its_own_permission(scratch: Scratch, how: str, pid_namespaces: str) -> None:
    """When a child process of an agent, or a daemon that the agent left behind, tries to answer the agent's own
    permission request, the answer is refused, and a record of the refusal names the agent."""
    scratch.acp_agent(ASKER % how)
    scratch.plan(f"""
        pid_namespaces: {pid_namespaces}
        agents:
          asker:
            adapter: acp
            command: [python3, agent.py]
            permissions: ask
            inherit_env: [PYTHONPATH]
        tasks:
          - {{id: t, agent: asker, prompt: go}}
    """)
    run = scratch.start("run", "plan.yaml")
    until(lambda: "t:t1:p1" in scratch.run("permissions").out)
    (scratch.path / "open").touch()
    tried = until(lambda: (scratch.path / "tried").exists() and (scratch.path / "tried").read_text())
    assert tried.startswith("2 "), tried
    assert "taken for the agent of t" in tried
    assert not (scratch.path / "outcome").exists()
    said = scratch.run("answer", "t:t1:p1", "deny")
    assert said.status == 0, said.text
    run.wait()
    assert "reject_once" in (scratch.path / "outcome").read_text()
    answers = [one for one in scratch.records() if one["event"] == "PermissionAnswered"]
    assert [one["actor"].partition(":")[0] for one in answers] == ["operator"]
    refused = next(one for one in scratch.records("t") if one["event"] == "RequestRefused")
    assert refused["actor"] == "agent of t"
    assert refused["metadata"]["request"] == "answer"


COMMANDS = """
    while not Path("waits").exists(): time.sleep(0.01)
    def supervisor(*args):
        done = subprocess.run(["supervisor", *args], capture_output=True, text=True)
        return [done.returncode, done.stdout + done.stderr]
    commands = {
        "stop": ["stop"], "retry": ["retry", "u"], "compact": ["journal", "compact"],
        "send away": ["send", "u", "hello"], "send home": ["send", "t", "to myself"],
        "abort away": ["abort", "u", "--scope", "session"], "read": ["inspect", "u"],
    }
    Path(text).write_text(json.dumps({name: supervisor(*args) for name, args in commands.items()}))
    return "done"
"""
WAITS = """
    Path("waits").touch()
    while not Path("over").exists() and not agent.cancelled.is_set(): time.sleep(0.01)
    return "waited"
"""


def test_an_agent_reaches_its_own_session_and_no_other(scratch: Scratch) -> None:
    """An agent may read, and send a message to its own session; it is refused to stop, retry or compact, and to send to
    or abort another session."""
    scratch.acp_agent(COMMANDS)
    scratch.acp_agent(WAITS, "waiting_agent.py")
    scratch.plan("""
        agents:
          a: {adapter: acp, command: [python3, agent.py], inherit_env: [PYTHONPATH]}
          b: {adapter: acp, command: [python3, waiting_agent.py]}
        tasks:
          - {id: t, agent: a, prompt: told}
          - {id: u, agent: b, prompt: wait}
    """)
    run = scratch.start("run", "plan.yaml", "--json")
    until(lambda: (scratch.path / "told").exists() or run.ended)
    (scratch.path / "over").touch()
    assert run.wait().status == 0, run.err
    told = json.loads((scratch.path / "told").read_text())
    statuses = {name: status for name, (status, _) in told.items()}
    assert statuses == {
        "stop": 2, "retry": 2, "compact": 2, "send away": 2, "send home": 2, "abort away": 2, "read": 0,
    }, told  # fmt: skip
    assert "works for a task and may get no further prompt" in told["send home"][1]  # permitted, but without a reader
    assert "operates: [abort] in its agent's entry of the plan would allow it" in told["abort away"][1]
    refused = [one["metadata"]["request"] for one in scratch.records("t") if one["event"] == "RequestRefused"]
    assert refused == ["stop", "steer", "compact", "send", "abort"]


def test_a_plan_may_let_an_agent_operate(scratch: Scratch) -> None:
    """An agent whose entry in the plan has ``operates: [abort]`` may abort another session, and is recorded as the one
    that did."""
    scratch.acp_agent("""
        while not Path("waits").exists(): time.sleep(0.01)
        subprocess.run(["supervisor", "abort", "u", "--scope", "session"], capture_output=True)
        return "done"
    """)
    scratch.acp_agent(WAITS, "waiting_agent.py")
    scratch.plan("""
        agents:
          a: {adapter: acp, command: [python3, agent.py], inherit_env: [PYTHONPATH], operates: [abort]}
          b: {adapter: acp, command: [python3, waiting_agent.py]}
        tasks:
          - {id: u, agent: b, prompt: wait, optional: true}
          - {id: t, agent: a, prompt: go}
    """)
    scratch.run("run", "plan.yaml")
    stopped = next(one for one in scratch.records("u") if one["event"] == "OperatorStop")
    assert stopped["actor"] == "agent of t"


HOST = """
    import sys

    import anyio
    from supervisor import open_supervisor

    async def agent(turn):
        pass

    async def main():
        async with open_supervisor("state") as sup:
            session = await sup.start_session("s", agent=agent)
            command = [sys.executable, "-m", "supervisor", "abort", "s", "--scope", "session", "--state-dir", "state"]
            done = await anyio.run_process(command, check=False)
            print(done.returncode, done.stdout, done.stderr)

    anyio.run(main)
"""


def test_the_child_of_a_host_is_an_operator(scratch: Scratch) -> None:
    """The command line, when started by a program that embeds the supervisor, counts as an operator and may abort a
    session."""
    scratch.write("host.py", HOST)
    done = subprocess.run(
        [sys.executable, "host.py"], cwd=scratch.path, env=scratch.env, capture_output=True, text=True
    )
    assert done.stdout.startswith("0 "), done.stdout + done.stderr
    shown = scratch.run("events", "s", "--json", "--state-dir", "state")
    actors = {one["actor"] for one in map(json.loads, shown.out.splitlines()) if one["event"] == "OperatorStop"}
    assert {one.partition(":")[0] for one in actors} == {"operator"}


# ------------------------------------------------------------------------------------------------ the decision alone
TREE = {
    1: ProcessStat(0, 1),
    40: ProcessStat(1, 400),
    50: ProcessStat(40, 500),
    60: ProcessStat(50, 600),
    70: ProcessStat(60, 700),
    80: ProcessStat(40, 800),
}
"""Process tree: 40 is a supervisor, 50 its fork server, 60 a shim, 70 an agent, 80 a child of the embedding program."""
OURS = {(50, 500): "", (60, 600): "t"}


@pytest.mark.parametrize(
    ("pid", "caller"),
    [
        (70, Caller(Origin.AGENT, 70, "t")),
        (50, Caller(Origin.AGENT, 50, "")),
        (80, Caller(Origin.OPERATOR, 80)),
        (90, Caller(Origin.UNIDENTIFIED, 0)),
    ],
)
def test_a_descendant_of_a_shim_is_an_agent(pid: int, caller: Caller) -> None:
    """A process below a shim counts as the agent of the shim's session, a process below no shim as an operator, and a
    process that has ended as unidentified."""
    assert origin_of(lineage_of(pid, TREE.get), OURS) == caller


def test_a_reused_pid_of_a_shim_makes_no_agent() -> None:
    """A process that has the pid of an ended shim but another start time does not count as a shim."""
    assert origin_of([(70, 700), (60, 650), (1, 1)], OURS).origin is Origin.OPERATOR


def test_a_lineage_counts_only_if_a_second_walk_agrees() -> None:
    """When the parent of a process changes while its ancestors are read, the ancestors are read again, and the process
    counts as an agent."""
    before, after = (
        {**TREE, 65: ProcessStat(60, 650), 70: ProcessStat(65, 700)},
        {**TREE, 65: ProcessStat(1, 900), 70: ProcessStat(60, 700)},
    )
    looks = 0

    def see(pid: int) -> ProcessStat | None:
        nonlocal looks
        looks += 1
        return (before if looks == 1 else after).get(pid)

    assert origin_of(lineage_of(70, see), OURS) == Caller(Origin.AGENT, 70, "t")


def origin(pid: int) -> Caller:
    """Return the origin of process *pid* for a supervisor without programs."""
    return origin_of(lineage_of(pid, read_stat), {})


def test_a_client_that_has_ended_is_no_operator(tmp_path: Path) -> None:
    """A program that ends right after it connects counts as unidentified, since its ancestors can no longer be read;
    one that still runs is an operator."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(tmp_path / 's')!r})"
        client = subprocess.Popen([sys.executable, "-c", code])
        with listener.accept()[0] as connection:
            client.wait()
            assert caller_at(connection, client.pid, origin).origin is Origin.UNIDENTIFIED
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(tmp_path / "s"))
            with listener.accept()[0] as connection:
                assert caller_at(connection, os.getpid(), origin).origin is Origin.OPERATOR


AGENT, UNIDENTIFIED = Caller(Origin.AGENT, 70, "t"), Caller(Origin.UNIDENTIFIED, 0)
OWN = CallerReach(frozenset({"t", "t/kid"}), frozenset({"t", "r1#t"}))
BOSS = OWN._replace(operates=frozenset({"answer", "tasks"}))


@pytest.mark.parametrize(
    ("caller", "asked", "reach", "granted"),
    [
        (AGENT, Inspect(id="u"), OWN, True),
        (AGENT, Send(id="t/kid", text=""), OWN, True),
        (AGENT, Send(id="u", text=""), OWN, False),
        (AGENT, Abort(id="t/kid:t1:c2", scope="tool"), OWN, True),
        (AGENT, Abort(id="u", scope="session"), OWN, False),
        (AGENT, Abort(id="u", scope="session", dry_run=True), OWN, True),
        (AGENT, Split(task="t", subtasks=""), OWN, True),
        (AGENT, Split(task="u", subtasks=""), OWN, False),
        (AGENT, Answer(id="t/kid:t1:p1", allow=True), OWN, False),
        (AGENT, Answer(id="t/kid:t1:p1", allow=True), BOSS, True),
        (AGENT, Answer(id="t:t1:p1", allow=True), BOSS, False),
        (AGENT, Steer(verb="approve", tasks=("u",)), OWN, False),
        (AGENT, Steer(verb="approve", tasks=("u",)), BOSS, True),
        (AGENT, Stop(), BOSS, False),
        (AGENT, Compact(), BOSS, False),
        (AGENT, Submit(plan="{}", directory="/"), BOSS, False),
        (AGENT, CancelRun(run="r1"), BOSS, False),
        (AGENT, MergeRun(run="r1"), BOSS, False),
        (AGENT, Reload(), BOSS, False),
        (AGENT, Page(), BOSS, False),
        (UNIDENTIFIED, Inspect(id="u"), CallerReach(), True),
        (UNIDENTIFIED, Send(id="t", text=""), CallerReach(), False),
    ],
)
def test_the_requests_that_an_agent_may_make(caller: Caller, asked: Request, reach: CallerReach, granted: bool) -> None:
    """An agent may read, act on its own sessions and task, and do what ``operates`` adds, but never answer its own
    permission requests; an unidentified caller may only read."""

    def plan(asked: Abort) -> AbortPlan:
        return AbortPlan(target="", scope="session", nodes=(), already_ended=False, deadline_s=1.0, id="")

    access = OPERATIONS[asked.do].access
    assert (access is None or refusal(access, asked, caller, reach, plan) == "") is granted


def test_a_client_is_told_with_many_descriptors_open() -> None:
    """In a process with more than 1,024 open descriptors a client is still identified as an operator; when no
    descriptor is left, an error says so."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    ours, theirs = socket.socketpair()
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert caller_at(ours, os.getpid(), origin).origin is Origin.OPERATOR
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1], before[1]))
        with pytest.raises(OSError, match="Too many open files"):
            caller_at(ours, os.getpid(), origin)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in (*held, ours.detach(), theirs.detach()):
            os.close(one)
