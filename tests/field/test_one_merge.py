"""The work of a run is merged once, at its end (``merge: once``): before, the target is as it was, and what cannot be
merged is on the branch of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from field_kit import Scratch, until

from tests.crash.git_steps import Trial

pytestmark = pytest.mark.one_backend

PLAN = """
workspace: worktree
workstream: demo
{keys}
agents:
  sh: {{adapter: command, command: [sh, -c, 'echo $0 >> ../../../launches; eval "$0"', '{{prompt}}']}}
tasks:
  - {{id: first, agent: sh, prompt: '{first}', max_retries: 0}}
  - {{id: second, agent: sh, prompt: '{second}', depends_on: [first], max_retries: 0}}
"""
NOTE = "what was completed is on the branch supervisor/r1, and not merged: supervisor merge r1"


class Demo:
    """Repository with a plan of two tasks, the second of which reads what the first has written."""

    def __init__(self, scratch: Scratch) -> None:
        self.scratch, self.git, self.run = scratch, scratch.git, scratch.run
        self.plan()
        scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n/launches\n")
        scratch.write("a", "base\n")
        scratch.git("init", "-q", "-b", "main")
        scratch.git("add", ".")
        scratch.git("commit", "-qm", "base")
        self.base = self.head

    def plan(self, first: str = "echo one > a", second: str = "cat a > b", keys: str = "") -> None:
        self.scratch.plan(PLAN.format(first=first, second=second, keys=keys))

    @property
    def head(self) -> str:
        return self.git("rev-parse", "main")

    @property
    def merges(self) -> list[str]:
        """Subjects of the commits of the target since the first one, each of which is a merge."""
        return self.git("log", "--first-parent", "--format=%s", f"{self.base}..main").splitlines()

    @property
    def branches(self) -> list[str]:
        return self.git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/supervisor").split()

    @property
    def launches(self) -> int:
        return len((self.scratch.path / "launches").read_text().splitlines())

    def archived(self, run: str, event: str = "") -> list[dict[str, Any]]:
        """Return the records of a run in its archive, those of *event* only, if one is given."""
        lines = (self.scratch.path / ".sdd" / "archive" / f"{run}.jsonl").read_text().splitlines()
        return [one for one in map(json.loads, lines) if one["entity_id"] == run and event in ("", one["event"])]


@pytest.fixture
def demo(scratch: Scratch) -> Demo:
    return Demo(scratch)


def test_a_run_is_merged_once(demo: Demo) -> None:
    """A task sees the work of the task that it depends on, while the target is as it was; the end is one merge, and no
    branch is left. The merge plan is shown, and is in the archive."""
    demo.plan(second="cat a > b; git rev-parse main > ../../../seen")
    assert demo.run("run", "plan.yaml").status == 0
    assert (demo.scratch.path / "seen").read_text().strip() == demo.base
    assert (demo.merges, demo.branches) == (["r1: demo, 2 tasks"], ["main"])
    assert (demo.scratch.path / "b").read_text() == "one\n"
    assert demo.git("status", "--porcelain") == "?? seen"
    shown = json.loads(demo.run("plan", "show", "r1", "--json").out)["merge_plan"]
    assert (shown["tasks"], shown["files"], shown["target"]) == (["first", "second"], ["a", "b"], "main")
    assert [one["metadata"]["commit"] for one in demo.archived("r1") if one["event"] == "MergePlan"] == [
        shown["commit"]
    ]
    assert demo.archived("r1")[-1]["reason"] == f"merged into main as {demo.head[:12]}"
    done = demo.run("merge", "r1", "--yes")
    assert (done.status, "run r1 is done: merged into main as" in done.err) == (2, True)


def test_each_task_is_merged_if_the_plan_says_so(demo: Demo) -> None:
    """With ``merge: each`` the work of a task is in the target as soon as the task is closed, and the run has no
    branch."""
    demo.plan(second="exit 3", keys="merge: each")
    assert demo.run("run", "plan.yaml").status == 1
    assert demo.merges == ["first: the work of session first"]
    refused = demo.run("merge", "r1", "--yes")
    assert (refused.status, "run r1 has no branch to merge" in refused.err) == (2, True)


def test_a_failed_validation_leaves_the_target(demo: Demo) -> None:
    """A run whose validation fails leaves the target as it was; exit status 1, and the branch with the work is named,
    also by ``report`` and in the archive. ``supervisor merge`` shows its plan and merges the branch."""
    demo.plan(keys="validation: [{command: [sh, -c, 'cat b; exit 1']}]")
    done = demo.run("run", "plan.yaml")
    assert (done.status, demo.head, demo.git("log", "--format=%s", "main")) == (1, demo.base, "base")
    assert "the run failed: its validation failed" in done.out
    assert NOTE in done.out
    assert demo.git("show", "supervisor/r1:b") == "one"
    assert json.loads(demo.run("report", "r1", "--json").out)["branch"] == "supervisor/r1"
    assert [one["metadata"]["branch"] for one in demo.archived("r1") if one["event"] == "MergePlan"] == [
        "supervisor/r1"
    ]

    again = demo.run("run", "plan.yaml", "--resume")
    assert (again.status, "or `supervisor merge r1`" in again.err) == (2, True)
    asked = demo.run("merge", "r1", stdin=None)
    assert (asked.status, "nobody can be asked here; give --yes" in asked.err) == (2, True)
    shown = demo.run("merge", "r1", "--dry-run")
    assert (shown.status, demo.head) == (0, demo.base)
    assert shown.out.splitlines()[1:] == ["    with the work of: first, second", "    a", "    b"]
    merged = demo.run("merge", "r1", "--yes")
    assert (merged.status, demo.merges, demo.branches) == (0, ["r1: demo, 2 tasks"], ["main"])
    assert demo.archived("r1")[-1]["event"] == "WholeMerged"
    assert demo.launches == 2


def test_a_conflict_of_the_merge_waits_for_a_person(demo: Demo) -> None:
    """A run whose merge is in conflict with the target stays validating and held, with the commands that help. Nothing
    is run again, neither by another ``run`` nor by ``merge``, which merges when a person has resolved the conflict."""
    demo.plan(second="cat a > b; git -C ../../.. commit -qm mine -- a", keys="validation: [{file_exists: b}]")
    (demo.scratch.path / "a").write_text("mine\n")
    done = demo.run("run", "plan.yaml")
    fix = "git switch supervisor/r1 && git merge main, resolve and commit, git switch main, then: supervisor merge r1"
    why = f"supervisor/r1 is in conflict with main: a; {fix}"
    assert (done.status, f"not merged: {why}" in done.out) == (1, True)
    again = demo.run("run", "plan.yaml")
    assert (again.status, demo.merges, demo.launches) == (1, ["mine"], 2)
    (row,) = json.loads(demo.run("runs", "--json").out)
    assert (row["state"], row["held_by"]) == ("validating", why)
    waited = demo.run("wait", "r1")
    assert (waited.status, why in waited.err) == (1, True)
    refused = demo.run("merge", "r1", "--yes")
    assert (refused.status, "in conflict with main: a" in refused.err) == (1, True)

    demo.git("switch", "-q", "supervisor/r1")
    with pytest.raises(AssertionError):
        demo.git("merge", "main")
    (demo.scratch.path / "a").write_text("both\n")
    demo.git("commit", "-qam", "resolved")
    demo.git("switch", "-q", "main")
    assert demo.run("merge", "r1", "--yes").status == 0
    assert (demo.merges, demo.branches, demo.launches) == (["r1: demo, 2 tasks", "mine"], ["main"], 2)
    assert (demo.scratch.path / "a").read_text() == "both\n"
    assert demo.archived("r1")[-1]["to_status"] == "completed"


def test_a_resumed_run_goes_on_upon_the_branch(demo: Demo) -> None:
    """After the failure of a task the target is as it was, and a run with ``--resume`` goes on upon the branch: it does
    only the rest, and is merged once."""
    demo.plan(second="test -e ../../../ready && cat a > b")
    assert demo.run("run", "plan.yaml").status == 1
    assert (demo.head, demo.branches) == (demo.base, ["main", "supervisor/r1"])
    (demo.scratch.path / "ready").write_text("")
    before = demo.launches
    done = demo.run("run", "plan.yaml", "--resume")
    assert done.status == 0, done.text
    assert (demo.merges, demo.branches, demo.launches) == (["r2: demo, 2 tasks"], ["main"], before + 1)
    assert (demo.scratch.path / "b").read_text() == "one\n"
    refused = demo.run("merge", "r1", "--yes")
    assert (refused.status, "run r1 was resumed by r2, which has its work: supervisor merge r2" in refused.err) == (
        2,
        True,
    )


def test_what_is_complete_of_a_failed_run_is_merged(demo: Demo) -> None:
    """``merge`` takes the work of the completed tasks of a failed run; the merge plan names the others."""
    demo.plan(second="exit 3")
    assert demo.run("run", "plan.yaml").status == 1
    shown = json.loads(demo.run("merge", "r1", "--dry-run", "--json").out)
    assert (shown["tasks"], shown["left_out"], shown["files"]) == (["first"], ["second (failed)"], ["a"])
    assert (
        json.loads(demo.run("merge", "r1", "--yes", "--json").out)["merged"] == f"merged into main as {demo.head[:12]}"
    )
    assert (demo.merges, demo.branches) == (["r1: demo, 1 task"], ["main"])


def test_a_branch_that_was_removed_is_told(demo: Demo) -> None:
    """A run is not resumed without the work of the tasks that it would not do again: the error names the commit."""
    demo.plan(second="exit 3")
    assert demo.run("run", "plan.yaml").status == 1
    demo.git("branch", "-q", "-D", "supervisor/r1")
    refused = demo.run("run", "plan.yaml", "--resume")
    assert refused.status == 2
    assert "the work of run r1 is not on its branch 'supervisor/r1'" in refused.err
    gone = demo.run("merge", "r1", "--yes")
    assert (gone.status, "has no branch 'supervisor/r1', which has the work of run r1" in gone.err) == (2, True)


def test_an_obstacle_holds_the_merge(demo: Demo) -> None:
    """Changes of a person in the way of the merge hold the run, which says so; when they are gone, the run is merged
    without another launch."""
    (demo.scratch.path / "a").write_text("by the user\n")
    run = demo.scratch.start("run", "plan.yaml")
    until(lambda: run.ended or "a plan is held" in run.err)
    (row,) = json.loads(demo.run("runs", "--json").out)
    assert "which has changes of its own in the way: a" in row["held_by"]
    refused = demo.run("merge", "r1", "--dry-run")
    assert (refused.status, "run r1 goes on, and merges at its end" in refused.err) == (2, True)
    demo.git("checkout", "-q", "a")
    assert run.wait().status == 0
    assert (demo.merges, demo.branches, demo.launches) == (["r1: demo, 2 tasks"], ["main"], 2)


def test_a_run_that_a_crash_has_ended_is_in_the_archive(demo: Demo) -> None:
    """A run that was interrupted, and that another plan ends, is in the archive; the work of its completed task is on
    its branch, and can be merged."""
    demo.plan(second="touch ../../../begun; sleep 1000")
    run = demo.scratch.start("run", "plan.yaml")
    until(lambda: run.ended or (demo.scratch.path / "begun").exists())
    waiting = demo.run("merge", "r1", "--dry-run")
    assert (waiting.status, "run r1 goes on" in waiting.err) == (2, True)
    run.kill()
    interrupted = demo.run("merge", "r1", "--yes")
    assert (interrupted.status, "was interrupted" in interrupted.err) == (2, True)
    demo.scratch.write(
        "other.yaml", "agents: {a: {adapter: command, command: ['true']}}\ntasks: [{id: t, agent: a, prompt: x}]"
    )
    assert demo.run("run", "other.yaml").status == 0
    assert demo.archived("r1")[-1]["to_status"] == "cancelled"
    assert demo.head == demo.base
    assert demo.run("merge", "r1", "--yes").status == 0
    assert demo.merges == ["r1: demo, 1 task"]


@pytest.mark.parametrize(
    ("at", "way"), [("commit-tree", "after"), ("update-ref -m", "before"), ("update-ref -m", "after")]
)
def test_a_kill_in_the_merge_merges_all_or_nothing(tmp_path: Path, at: str, way: str) -> None:
    """After a kill -9 at a git command of the one merge, the target has the merge or is as it was, and the next run
    makes it once. (``python -m tests.crash.git_steps --calls merge`` kills at every command of the merge.)"""
    trial = Trial(tmp_path)
    trial.run()
    first = max(number for number, call in enumerate(trial.calls, 1) if call.startswith("rev-list"))
    number = next(number for number, call in enumerate(trial.calls, 1) if number > first and call.startswith(at))
    (tmp_path / "again").mkdir()
    killed = Trial(tmp_path / "again")
    assert killed.run(number, way) == -9
    assert killed.killed.startswith(at.split()[0])
    assert killed.half_merged() == []
    assert killed.wrong(killed.run()) == []
