"""Settling of work: the work of a turn is tested when no process of the turn runs any more, and exactly the tested work
is merged."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from field_kit import Finished, Scratch, alive, until

from supervisor.sessions.agent_io import AgentIO
from supervisor.sessions.process_connection import ProcessConnection

BACKGROUND = "subprocess.Popen({argv}, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)"
"""Python code by which an agent starts a command in the background, as Claude and Gemini do (-3 is /dev/null)."""

DAEMON = """
import os, signal
from itertools import count

signal.signal(signal.SIGTERM, signal.SIG_IGN)
for number in count():
    with open("count.new", "w") as file:
        file.write(str(number))
    os.replace("count.new", "count.txt")
"""
"""Source code of a daemon that writes into the worktree all the time, and ignores SIGTERM."""


def shell(script: str) -> str:
    return BACKGROUND.format(argv=["sh", "-c", script])


def worktree_plan(scratch: Scratch, rest: str, tasks: str, agent: str = "") -> None:
    """Write a plan with worktrees, whose agent ``a`` is the script ``agent.py``, and make the scratch directory a
    repository."""
    scratch.plan(f"""
        workspace: worktree
        {rest}
        agents:
          a: {{adapter: acp, command: [python3, {scratch.path}/agent.py]{agent}}}
          cat: {{adapter: command, command: [cat, late.txt]}}
        tasks: {tasks}
    """)
    scratch.repository()


def task_of(done: Finished, name: str = "t") -> dict[str, Any]:
    """Return the result of the task *name* from the output of ``run --json``."""
    return next(task for task in done.json()["tasks"] if task["id"] == name)


def in_main(scratch: Scratch) -> list[str]:
    return scratch.git("ls-tree", "--name-only", "main").splitlines()


def test_processes_below_a_lost_shim_are_unknown() -> None:
    """After the loss of the agent's shim the processes of a turn are unknown (``None``) instead of an empty list."""
    connection = ProcessConnection.__new__(ProcessConnection)
    connection._agent_io = AgentIO()
    connection._is_unknown = True  # no test can lose a shim between the end of a turn and the look at its processes
    assert anyio.run(connection.processes_of_turn) is None


def shows(scratch: Scratch, words: str) -> bool:
    return words in scratch.run("tree").out and words in scratch.run("ps").out


def test_what_a_background_command_writes_is_merged(scratch: Scratch) -> None:
    """A background command that ends within ``settle_s`` is waited for, and `tree` and `ps` say so; the file that the
    command wrote is merged, and a dependent task sees it."""
    go = scratch.path.parent / "go"
    scratch.acp_agent(f"""
        {shell(f"until [ -e {go} ]; do sleep 0.05; done; echo late > late.txt")}
        return "done"
    """)
    tasks = "[{id: t, agent: a, prompt: go}, {id: u, agent: cat, prompt: '', depends_on: [t]}]"
    worktree_plan(scratch, "limits: {settle_s: 60}", tasks)
    run = scratch.start("run", "plan.yaml", "--json")
    until(lambda: shows(scratch, " for sh -c until"))
    go.touch()
    done = run.wait()
    assert done.status == 0, done.text
    assert scratch.git("show", "main:late.txt") == "late"
    assert (task_of(done)["unmerged"], task_of(done)["remarks"]) == ("", [])


def test_a_daemon_is_ended_before_the_work_is_tested(scratch: Scratch) -> None:
    """A daemon that does not end is ended after ``settle_s`` and named in the result; exactly the work that the
    acceptance test saw is merged."""
    judged = scratch.path.parent / "judged"
    daemon = scratch.write("daemon_agent.py", DAEMON)
    scratch.acp_agent(f"""
        daemon = {BACKGROUND.format(argv=["python3", str(daemon)])}
        while not Path("count.txt").exists():
            time.sleep(0.01)
        return "done"
    """)
    acceptance = f"[{{command: [cp, count.txt, {judged}]}}]"
    rest = "limits: {settle_s: 0.1}\n        policy: {ladder: {terminate_s: 0.1}}"
    worktree_plan(scratch, rest, f"[{{id: t, agent: a, prompt: go, acceptance: {acceptance}}}]")
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 0, done.text
    assert scratch.git("show", "main:count.txt") == judged.read_text()
    (remark,) = task_of(done)["remarks"]
    assert remark.startswith(f"ended after settle_s (0.1 s): python3 {daemon} (pid ")
    assert not alive(int(remark.rpartition("pid ")[2].rstrip(")")))
    assert [one["reason"] for one in scratch.records("r1#t") if one["event"] == "TurnSettled"] == [remark]


@pytest.mark.parametrize("way", ["declared", "named"])
def test_a_server_of_the_agent_lives_on(scratch: Scratch, way: str) -> None:
    """A process of an MCP server of the plan, or of a program that the agent's entry names as a server, is neither
    waited for nor ended, although it was started within the turn."""
    pid = scratch.path.parent / "pid"
    scratch.write("server-agent.py", "import time\ntime.sleep(600)\n")
    argv = ["python3", f"{scratch.path}/server-agent.py"]
    scratch.acp_agent(f"""
        env = dict(os.environ)
        for server in agent.servers:
            env |= {{one["name"]: one["value"] for one in server["env"]}}
        server = subprocess.Popen({argv}, env=env, stdin=-3, stdout=-3, stderr=-3)
        Path({str(pid)!r}).write_text(str(server.pid))
        return "done"
    """)
    agent = {
        "declared": f", mcp_servers: {{files: {{command: {json.dumps(argv)}}}}}",
        "named": ", servers: [server-agent.py]",
    }
    still_alive = f'[{{command: [sh, -c, "kill -0 $(cat {pid})"]}}]'
    worktree_plan(scratch, "", f"[{{id: t, agent: a, prompt: go, acceptance: {still_alive}}}]", agent[way])
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["remarks"]) == (0, []), done.text
    assert "turn_settling" not in [one["event"] for one in scratch.records()]


def writes_while_tested(scratch: Scratch) -> str:
    """Write an agent that writes another file when its turn has ended; return an acceptance test that waits for that
    file."""
    go = scratch.path.parent / "go"
    scratch.acp_agent(f"""
        def later():
            while not Path({str(go)!r}).exists():
                time.sleep(0.01)
            Path("late.txt").write_text("late")
        Path("early.txt").write_text("early")
        threading.Thread(target=later).start()
        return "done"
    """)
    return f'[{{command: [sh, -c, "touch {go}; until [ -s late.txt ]; do sleep 0.05; done"]}}]'


def test_what_the_agent_writes_later_is_never_called_merged(scratch: Scratch) -> None:
    """Files that an agent writes while its work is tested are not merged; they stay on a branch, which the output of
    the run and the record name."""
    worktree_plan(scratch, "", f"[{{id: t, agent: a, prompt: go, acceptance: {writes_while_tested(scratch)}}}]")
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert in_main(scratch) == [".gitignore", "early.txt"]
    assert scratch.git("show", "supervisor/t:late.txt") == "late"
    assert "t: what was written after it was judged is not merged: it is on the branch supervisor/t" in done.out
    closed = scratch.records("r1#t")[-1]
    assert (closed["metadata"]["unmerged"], closed["metadata"]["rest"]) == (True, "supervisor/t")
    assert "merged into supervisor/r1" in closed["reason"]
    assert "supervisor/t" in closed["reason"]


def test_what_is_approved_is_what_was_tested(scratch: Scratch) -> None:
    """When a person approves a task, exactly the work that its acceptance tests have seen is merged, and the result
    names the branch with later changes."""
    acceptance = writes_while_tested(scratch)
    worktree_plan(scratch, "", f"[{{id: t, agent: a, prompt: go, approval: after, acceptance: {acceptance}}}]")
    run = scratch.start("run", "plan.yaml", "--json")
    until(lambda: "PENDING_APPROVAL" in scratch.run("tree").out)
    assert scratch.run("approve", "t").status == 0
    done = run.wait()
    assert (done.status, task_of(done)["unmerged"]) == (0, "supervisor/t"), done.text
    assert in_main(scratch) == [".gitignore", "early.txt"]


def test_resume_does_not_merge_what_nobody_tested(scratch: Scratch) -> None:
    """A resumed run does not merge changes that were made after the acceptance test; they stay on their branch."""
    tasks = f"[{{id: t, agent: a, prompt: go, acceptance: {writes_while_tested(scratch)}}}, "
    once = "task_lifecycle: {max_attempts: 1, circuit_breaker: {enabled: false}}\n        merge: each"
    worktree_plan(scratch, once, f"{tasks}{{id: u, agent: cat, prompt: '', depends_on: [t], max_retries: 0}}]")
    assert scratch.run("run", "plan.yaml").status == 1
    assert scratch.run("run", "plan.yaml", "--resume").status == 1
    assert in_main(scratch) == [".gitignore", "early.txt"]
    assert scratch.git("show", "supervisor/t:late.txt") == "late"


def test_the_background_of_a_command_is_named(scratch: Scratch) -> None:
    """Processes that a program of the adapter ``command`` leaves running are ended when the program exits, and named in
    the result; also without a worktree."""
    scratch.plan("""
        agents:
          a: {adapter: command, command: [sh, -c, "sleep 600 & until grep -qa ^sleep /proc/$!/cmdline; do :; done"]}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    done = scratch.run("run", "plan.yaml", "--json")
    (remark,) = task_of(done)["remarks"]
    assert remark.startswith("ended when its program had exited: sleep 600 (pid ")


def test_what_cannot_be_listed_is_unknown(scratch: Scratch) -> None:
    """When an agent has stopped the shim that watches it, the result says that it is unknown whether processes of the
    turn still ran."""
    scratch.acp_agent("""
        os.kill(os.getppid(), 19)
        return "done"
    """)
    worktree_plan(scratch, "", "[{id: t, agent: a, prompt: go}]")
    done = scratch.run("run", "plan.yaml", "--json")
    (remark,) = task_of(done)["remarks"]
    assert remark == "unknown whether processes of its turn still ran when it was judged: they cannot be listed"


@pytest.mark.parametrize("removes", ['rm -rf "$PWD"', "git worktree remove --force ."])
def test_a_removed_worktree_fails_its_task(scratch: Scratch, removes: str) -> None:
    """When an agent has removed its own worktree, its task fails, and the error says that the work is lost."""
    scratch.acp_agent(f"""
        subprocess.run(["sh", "-c", {removes!r}], check=True)
        return "done"
    """)
    worktree_plan(scratch, "", "[{id: t, agent: a, prompt: go, max_retries: 0}]")
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (1, "failed")
    assert "is gone, and what was not committed there is lost" in task_of(done)["error"]


def test_a_settle_time_below_zero_is_refused(scratch: Scratch) -> None:
    """A negative ``settle_s`` is refused with exit status 2 and an error that names the field."""
    scratch.plan("""
        limits: {settle_s: -1}
        agents: {a: {adapter: scripted}}
        tasks: [{id: t, agent: a, prompt: hi}]
    """)
    done = scratch.run("plan", "check", "plan.yaml")
    assert done.status == 2, done.text
    assert "limits.settle_s" in done.text


@pytest.mark.parametrize("command", [("abort", "t", "--scope", "session"), ("task", "cancel", "t")])
def test_work_ended_while_it_settles_is_not_merged(scratch: Scratch, command: tuple[str, ...]) -> None:
    """If an operator aborts the session or cancels the task while processes of the turn are waited for, the work is not
    merged."""
    scratch.acp_agent(f"""
        Path("made.txt").write_text("made")
        {shell("sleep 300")}
        return "done"
    """)
    worktree_plan(scratch, "limits: {settle_s: 60}", "[{id: t, agent: a, prompt: go}]")
    run = scratch.start("run", "plan.yaml", "--json")
    until(lambda: shows(scratch, "sleep 300"))
    assert scratch.run(*command).status == 0
    done = run.wait()
    assert (done.status, task_of(done)["outcome"]) == (1, "aborted"), done.text
    assert "made.txt" not in in_main(scratch)
