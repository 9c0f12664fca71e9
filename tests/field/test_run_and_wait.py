"""``supervisor run plan.yaml & supervisor wait``: the wait is about this run, from the first moment on.

A run is held while it starts by a plan that comes from standard input and is not there yet.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from field_kit import Running, Scratch, until

from supervisor.journal.statedir import StateDir

PLAN = """
    agents: {a: {adapter: command, command: [echo, done]}}
    tasks: [{id: t, agent: a, prompt: ""}]
"""


def starting(scratch: Scratch) -> bool:
    """Return whether a run has locked the state directory, and has not begun."""
    holder = StateDir(scratch.path / ".sdd").lock_holder()
    return holder is not None and holder.starting


def held_run(scratch: Scratch) -> Running:
    """Start a run whose plan is not written yet, and wait until it has locked the state directory."""
    run = scratch.start("run", "-", stdin=subprocess.PIPE)
    until(lambda: starting(scratch))
    return run


def release(run: Running, plan: str) -> None:
    """Write the *plan* of a held run."""
    assert run.process.stdin is not None
    run.process.stdin.write(plan.encode())
    run.process.stdin.close()


@pytest.mark.parametrize("name", [(), ("t",)], ids=["run", "task"])
def test_a_wait_does_not_answer_about_the_run_before(scratch: Scratch, name: tuple[str, ...]) -> None:
    """While a run starts, ``wait`` waits for its begin, and then for its end, although an earlier run has ended."""
    scratch.plan(PLAN)
    assert scratch.run("run", "plan.yaml").status == 0
    run = held_run(scratch)
    wait = scratch.start("wait", *name, "--json")
    until(lambda: "waiting for its begin" in wait.err)
    release(run, PLAN)
    done = wait.wait()
    assert (done.status, run.wait().status) == (0, 0), done.text
    told: dict[str, Any] = json.loads(done.out)
    assert (told["id"], told["outcome"]) == ("r2#t" if name else "r2", "completed")


def test_a_wait_in_a_directory_without_a_journal_waits_for_the_first_run(scratch: Scratch) -> None:
    """The first run of a directory has no journal while it starts: ``wait`` waits for it."""
    run = held_run(scratch)
    assert not (scratch.path / ".sdd/runtime/journal.db").exists()
    wait = scratch.start("wait", "t")
    until(lambda: "waiting for its begin" in wait.err)
    release(run, PLAN)
    assert (wait.wait().status, wait.out) == (0, "r1#t: completed\n")


def test_a_wait_for_a_run_that_does_not_begin_has_its_time_out(scratch: Scratch) -> None:
    """``--timeout`` also bounds the wait for the begin of a run."""
    run = held_run(scratch)
    done = scratch.run("wait", "--timeout", "0")
    assert (done.status, done.err.splitlines()[-1]) == (
        124,
        "supervisor: the run on .sdd has not begun after 0 s",
    )
    release(run, PLAN)
    assert run.wait().status == 0


def test_a_run_prints_its_id_first(scratch: Scratch) -> None:
    """The first line of a run is its id, in each of its formats, and ``wait`` takes it."""
    scratch.plan(PLAN)
    plain = scratch.run("run", "plan.yaml")
    assert plain.out.splitlines()[0] == "run r1"
    assert scratch.run("wait", "r1").status == 0
    as_json = scratch.run("run", "plan.yaml", "--json")
    assert json.loads(as_json.out.splitlines()[0]) == {"run": "r2"}


def test_a_refused_run_leaves_no_directory(scratch: Scratch) -> None:
    """An invalid plan is exit status 2; the state directory that the run made and locked is gone."""
    scratch.plan("agents: {}")
    before = sorted(scratch.path.iterdir())
    refused = scratch.run("run", "plan.yaml")
    assert (refused.status, "agents" in refused.err) == (2, True), refused.text
    assert sorted(scratch.path.iterdir()) == before


def test_a_refused_run_leaves_an_earlier_run_as_it_was(scratch: Scratch) -> None:
    """An invalid plan in a directory with a journal releases the lock, and the earlier run can still be read."""
    scratch.plan(PLAN)
    assert scratch.run("run", "plan.yaml").status == 0
    scratch.plan("tasks: []")
    assert scratch.run("run", "plan.yaml").status == 2
    assert StateDir(scratch.path / ".sdd").lock_holder() is None
    assert scratch.run("wait").out == "r1: completed (1 of 1 tasks completed)\n"


def test_a_second_run_is_refused_while_the_first_one_starts(scratch: Scratch) -> None:
    """The lock is held from the start: a second run says who has it, and exits with 2 before it reads its plan."""
    run = held_run(scratch)
    second = scratch.run("run", "plan.yaml")
    assert (second.status, f"pid {run.pid}" in second.err) == (2, True), second.text
    release(run, PLAN)
    assert run.wait().status == 0
