"""A task whose work is in conflict with its target: the next claim begins with that work, and resolves the conflict
(rule 47)."""

from __future__ import annotations

from typing import Any

import pytest
from field_kit import Scratch

FIRST = """
    echo by the agent > file; echo of the first claim > other
    cd ../../.. && echo by the user > file && git commit -qam 'by the user'
"""
"""The first launch of the agent: a person changes the same file meanwhile."""


def conflict_plan(scratch: Scratch, then: str, **rest: Any) -> None:
    """Write a plan whose agent makes a conflict in its first launch, and does *then* in every later one."""
    script = f"echo x >> ../../../launches\nif [ ! -e other ]; then {FIRST}\nelse {then}\nfi"
    scratch.write("agent.sh", script)
    scratch.plan(f"""
        workspace: worktree
        merge: each
        agents:
          a: {{adapter: command, command: [sh, {scratch.path}/agent.sh]}}
        task_lifecycle: {{base_retry_delay: 0}}
        tasks: [{{id: t, agent: a, prompt: "", max_retries: 1}}]
    """)
    scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n/agent.sh\n/launches\n/seen\n")
    scratch.write("file", "base\n")
    scratch.git("init", "-q", "-b", "main")
    scratch.git("add", ".")
    scratch.git("commit", "-qm", "base")


@pytest.mark.parametrize("adds", ["", "; git add file", "; git add file; git commit -qm resolved"])
def test_the_next_claim_begins_with_its_own_work_and_the_conflict(scratch: Scratch, adds: str) -> None:
    """After a merge conflict the agent finds its own work, with the target merged in and the conflict left standing.
    A file without the marks is resolved, also by an agent that does not know git; then all of the work is merged."""
    conflict_plan(scratch, f"cat file > ../../../seen; echo by both > file{adds}")
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert (scratch.path / "launches").read_text() == "x\n" * 2
    seen = (scratch.path / "seen").read_text().splitlines()
    assert [line.split()[0] for line in seen if line.startswith(("<<<<<<<", ">>>>>>>"))] == ["<<<<<<<", ">>>>>>>"]
    assert {"by the agent", "by the user"} <= set(seen)
    assert scratch.git("show", "main:file") == "by both"
    assert scratch.git("show", "main:other") == "of the first claim"
    scratch.git("merge-base", "--is-ancestor", "supervisor/t", "main")
    (refused,) = [one for one in scratch.records("r1#t") if one["event"] == "verification_rejected"]
    assert refused["metadata"]["conflict"] == scratch.git("rev-parse", "supervisor/t")
    assert "resolve the conflict there" in refused["metadata"]["findings"]


def test_a_conflict_that_nobody_resolves_is_not_merged(scratch: Scratch) -> None:
    """Work with the marks of the conflict is refused; the task fails, the reason names the file, and nothing of it
    reaches the target."""
    conflict_plan(scratch, "true")
    done = scratch.run("run", "plan.yaml")
    assert done.status == 1, done.text
    assert "the conflict with the target is not resolved: file" in done.out
    assert scratch.git("show", "main:file") == "by the user"
    assert scratch.git("log", "-1", "--format=%s", "main") == "by the user"
    assert "its work is on the branch supervisor/t-2" in done.out
