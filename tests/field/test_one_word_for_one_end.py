"""The end of a task, a session or a run has one word, whatever a user looks at: the lines and the table of the run, the
tree, ``ps``, ``wait`` and the JSON of each.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from field_kit import Scratch, until

ENDS = {
    "ok": "completed",
    "bad": "failed",
    "after": "blocked",
    "maybe": "skipped",
    "never": "skipped",
    "planned": "rejected",
    "held": "aborted",
}
PLAN = """
    agents: {sh: {adapter: command, command: [sh]}}
    tasks:
      - {id: ok, agent: sh, prompt: "true"}
      - {id: bad, agent: sh, prompt: exit 3, max_retries: 0}
      - {id: after, agent: sh, prompt: "true", depends_on: [bad]}
      - {id: maybe, agent: sh, prompt: "true", depends_on: [bad], optional: true}
      - {id: never, agent: sh, prompt: "true", when: {file_exists: missing}}
      - {id: planned, agent: sh, prompt: "true", approval: before}
      - {id: held, agent: sh, prompt: "touch begun; sleep 600"}
    task_lifecycle: {max_attempts: 1}
"""


def ended_run(scratch: Scratch, *options: str) -> str:
    """Run the plan with one task of each end; return the output of the run, which ends with exit status 1."""
    scratch.plan(PLAN)
    run = scratch.start("run", "plan.yaml", *options)
    until(lambda: (scratch.path / "begun").exists())
    assert scratch.run("reject", "planned", "--reason", "not now").status == 0
    assert scratch.run("task", "cancel", "held").status == 0
    done = run.wait()
    assert done.status == 1, done.text
    return done.out


def nodes(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for node in tree for one in (node, *nodes(node["children"]))]


def test_every_view_has_the_same_word(scratch: Scratch) -> None:
    """Lines, end table, tree, ``ps``, their JSON, and ``wait`` with its exit status agree about every task."""
    out = ended_run(scratch)
    rows = [line.split() for line in out[out.index("TASK ") :].splitlines()]
    assert {row[0]: row[1] for row in rows[1:8]} == {f"r1#{task}": word for task, word in ENDS.items()}
    lines = [line for line in out[: out.index("TASK ")].splitlines() if not line.startswith(" ")]
    for task, word in ENDS.items():
        assert any(f" {task}: {word}" in line for line in lines), (task, out)
    tree, ps = json.loads(scratch.run("tree", "--json").out), json.loads(scratch.run("ps", "--json").out)
    for task, word in ENDS.items():
        entity = f"r1#{task}"
        for seen in (nodes(tree), ps):
            (node,) = [one for one in seen if one["id"] == entity]
            assert (node["outcome"], node["note"].partition(",")[0]) == (word, word)
        wait = scratch.run("wait", task)
        assert wait.out.startswith(f"{entity}: {word}"), wait.out
        assert wait.status == (0 if word in ("completed", "skipped", "rejected") else 1), wait.out
    counts = "1 of 7 tasks completed, 1 failed, 1 rejected, 1 aborted, 1 blocked, 2 skipped"
    assert scratch.run("wait").out == f"r1: failed ({counts})\n"
    assert "the run failed: of 7 tasks 1 failed (bad), 1 blocked (after), 1 aborted (held)" in out


def test_a_session_has_the_word_of_its_task(scratch: Scratch) -> None:
    """``wait`` for the session of a failed task says failed and exits with 1, although the session was closed in
    order; the last line of ``run --json`` has the words too."""
    last = json.loads(ended_run(scratch, "--json").splitlines()[-1])
    assert (last["outcome"], last["ok"]) == ("failed", False)
    assert {one["id"]: one["outcome"] for one in last["tasks"]} == ENDS
    ps = {one["id"]: one for one in json.loads(scratch.run("ps", "--json").out)}
    for session in ("ok", "bad", "held"):
        assert (ps[session]["kind"], ps[session]["outcome"]) == ("session", ENDS[session])
    assert "failed" in scratch.run("tree").out.split("bad  session")[1].splitlines()[0]


def test_a_session_of_a_failed_task_is_no_success(scratch: Scratch) -> None:
    """``wait SESSION`` of a session whose name is not that of its task has the end of the task as exit status."""
    scratch.plan("""
        agents: {sh: {adapter: command, command: [sh]}}
        tasks: [{id: t, agent: sh, prompt: "exit $(cat status)", max_retries: 0}]
        task_lifecycle: {max_attempts: 1}
    """)
    scratch.write("status", "0")
    assert scratch.run("run", "plan.yaml").status == 0
    scratch.write("status", "3")
    assert scratch.run("run", "plan.yaml").status == 1
    failed = scratch.run("wait", "t-2")
    assert (failed.status, failed.out.partition(" (")[0]) == (1, "t-2: failed")


def test_what_the_plan_ends_is_cancelled(scratch: Scratch) -> None:
    """A task that ends because a critical task failed is cancelled, not aborted: nobody decided that. So is its
    session."""
    scratch.plan("""
        agents: {sh: {adapter: command, command: [sh]}}
        tasks:
          - id: first
            agent: sh
            prompt: "while [ ! -f begun ]; do sleep 0.02; done; exit 3"
            critical: true
            max_retries: 0
          - {id: other, agent: sh, prompt: "touch begun; sleep 600"}
        task_lifecycle: {max_attempts: 1}
    """)
    run = scratch.run("run", "plan.yaml")
    assert "other: cancelled: the critical task first failed, which ends the run" in run.out
    assert "aborted" not in run.out
    waits = [scratch.run("wait", one) for one in ("other", "r1")]
    assert [(one.status, one.out.split()[1]) for one in waits] == [(1, "cancelled"), (1, "failed")]
    ps = {one["id"]: one["outcome"] for one in json.loads(scratch.run("ps", "--json").out)}
    assert ps["other"] == "cancelled"


@pytest.mark.parametrize("command", ["run", "wait"])
def test_a_rejected_task_is_no_failure(scratch: Scratch, command: str) -> None:
    """A run in which one task was rejected and the others are completed exits with 0, and so does ``wait``."""
    scratch.plan("""
        agents: {sh: {adapter: command, command: [sh]}}
        tasks:
          - {id: a, agent: sh, prompt: "true"}
          - {id: b, agent: sh, prompt: "true", approval: before}
    """)
    run = scratch.start("run", "plan.yaml")
    until(lambda: "waits to be approved" in run.out)
    assert scratch.run("reject", "b", "--reason", "not now").status == 0
    done = run.wait() if command == "run" else scratch.run("wait")
    assert done.status == 0, done.text
    if command == "wait":
        assert done.out == "r1: completed (1 of 2 tasks completed, 1 rejected)\n"


def test_why_explains_the_newest_life_of_a_name(scratch: Scratch) -> None:
    """``why`` means the same session of a name as ``logs``, and ``--exact`` the first one."""
    scratch.plan("""
        agents: {sh: {adapter: command, command: [sh]}}
        tasks: [{id: t, agent: sh, prompt: "true"}]
    """)
    for _ in range(2):
        assert scratch.run("run", "plan.yaml").status == 0
    newest, exact = scratch.run("why", "t"), scratch.run("why", "t", "--exact")
    assert newest.out.startswith("session t-2 was completed at ")
    assert "t-2 is the newest of t; `supervisor why t --exact`: the first" in newest.err
    assert (exact.out.startswith("session t was completed at "), exact.err) == (True, "")


def test_the_json_of_a_dead_supervisor_says_so(scratch: Scratch) -> None:
    """``ps`` and ``tree`` with ``--json`` mark what a killed supervisor left open, and warn on standard error."""
    scratch.plan("""
        agents: {sh: {adapter: command, command: [sh]}}
        tasks: [{id: done, agent: sh, prompt: "true"}, {id: t, agent: sh, prompt: "touch begun; sleep 600"}]
    """)
    run = scratch.start("run", "plan.yaml")
    until(lambda: (scratch.path / "begun").exists() and "done: completed" in run.out)
    alive = {one["id"]: one["supervised"] for one in json.loads(scratch.run("ps", "--json").out)}
    run.kill()
    assert all(alive.values())
    for command in ("ps", "tree"):
        seen = scratch.run(command, "--json")
        assert "no supervisor runs on .sdd" in seen.err
        dead = {one["id"]: one["supervised"] for one in nodes_of(json.loads(seen.out))}
        assert (dead["r1#t"], dead["t"], dead["r1#done"]) == (False, False, True)


def nodes_of(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entities of the JSON of ``ps`` or ``tree``."""
    return nodes(seen) if seen and "children" in seen[0] else seen
