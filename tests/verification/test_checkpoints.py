"""Tests of the checkpoint checker: a checkpoint on record must contain the work of the newest attempt."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.plans import TaskConfig
from supervisor.ports import WorkspaceSpec
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, TaskScripts
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents
from tests.verification.checkers.checkpoints import CheckpointChecker
from tests.verification.records import record_of


class Bench:
    """Checker with a task and its task run, and a list of the reports. With *rollback* the plan asks for rollbacks;
    with *worktrees* the task has its own worktree."""

    def __init__(self, *, rollback: bool, worktrees: bool = True) -> None:
        self.found: list[str] = []
        self.task = TaskConfig(id="w0t0", agent="worker", prompt="", rollback=rollback)
        self.place = WorkspaceSpec(owner="r1#w0t0", files=() if worktrees else ("x",), rollback=rollback)
        self.task_script, task_scripts = TaskScript("w0t0"), TaskScripts()
        task_scripts.add(self.task_script)
        self.workspaces = WorkspaceContents(task_scripts, self.taken_back, worktrees=worktrees)
        self.account = CheckpointChecker(
            lambda law, who, words: self.found.append(words), task_scripts, self.workspaces
        )
        self.workspaces.prepare("w0t0")
        self.hear("Born", "PENDING", "born", task="r1#w0t0", resumed_from="", resumed_at="")
        self.hear("executor_started", "IN_PROGRESS")

    def hear(self, event: str, to: str, outcome: str = "transition", run: str = "run:w0t0", **told: Any) -> None:
        record = record_of(
            "run", run, event, to_status=to, outcome=outcome, actor=told.pop("actor", "plan"), metadata=told
        )
        self.account.wrote(record, "w0t0", self.task)

    def taken_back(self, owner: str) -> None:
        """Have the checker check a rollback that is about to happen."""
        self.account.check_rollback(owner)

    def try_it(self) -> Attempt:
        """Let an agent begin an attempt and write its work; return the attempt."""
        attempt = Attempt("w0t0", self.task_script.way(0), 0.0, self.workspaces.found("w0t0"), ended_s=1.0)
        self.account.attempt_began(self.task_script, attempt, self.task)
        self.task_script.attempts.append(attempt)
        self.workspaces.write("w0t0", attempt, self.task_script)
        return attempt

    def save(self, state: str, saved_as: str | None = None) -> None:
        """Record a checkpoint: *saved_as*, or a new one of the present work."""
        saved_as = saved_as or self.workspaces.save("w0t0", self.place)
        self.hear("checkpoint_saved", state, state=state, session="w0t0", saved_as=saved_as)

    def take_back(self) -> None:
        """Roll the work back, and record the rollback."""
        saved_as = self.workspaces.roll_back("w0t0", self.place)
        self.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as=saved_as)


@pytest.mark.parametrize(("rollback", "lacks"), [(True, False), (False, True)])
def test_a_checkpoint_after_a_rollback_may_lack_the_earlier_attempt(rollback: bool, lacks: bool) -> None:
    """A checkpoint after a rollback may lack the work of the earlier attempt only if the plan asks for rollbacks;
    otherwise the lack is reported."""
    bench = Bench(rollback=rollback)
    bench.try_it()
    bench.save("FAILED")
    bench.take_back()
    bench.hear("backoff_completed", "IN_PROGRESS")
    bench.save("FAILED")
    assert any("lacks w0t0#0" in one for one in bench.found) is lacks


def test_a_checkpoint_holds_what_was_done() -> None:
    """A checkpoint that was saved before the agent's work, and recorded after that work, is reported as incomplete."""
    bench = Bench(rollback=True)
    early = bench.workspaces.save("w0t0", bench.place)
    bench.try_it()
    bench.save("FAILED", early)
    assert bench.found == [f"the checkpoint {early} lacks w0t0#0, which was done before"]


def test_the_checkpoint_of_a_rollback_holds_what_was_done() -> None:
    """A rollback is reported if its checkpoint lacks the work done before, or does not exist."""
    bench = Bench(rollback=True)
    early = bench.workspaces.save("w0t0", bench.place)
    bench.try_it()
    bench.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as=early)
    bench.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as="nowhere")
    lacks, gone = bench.found
    assert lacks == f"the checkpoint {early} lacks w0t0#0, which was done before"
    assert gone == "the checkpoint nowhere is on record, and is not there"


def test_work_since_a_rollback_is_in_the_next_checkpoint() -> None:
    """Work of an attempt that began after a rollback must be in the next checkpoint; its lack is reported."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("w0t0", bench.place)
    bench.try_it()
    bench.hear("execution_failed", "FAILED")
    bench.take_back()
    early = bench.workspaces.save("w0t0", bench.place)
    bench.hear("backoff_completed", "IN_PROGRESS")
    bench.try_it()
    bench.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as=early)
    assert bench.found == [f"the checkpoint {early} lacks w0t0#1, which was done before"]


def test_a_checkpoint_holds_the_work_of_all_starts_of_an_attempt() -> None:
    """A checkpoint must contain all work of an attempt, including the agent's work before the session began the attempt
    anew; a checkpoint without that is reported."""
    bench = Bench(rollback=True)
    bench.try_it()
    early = bench.workspaces.save("w0t0", bench.place)
    bench.try_it()
    bench.save("FAILED")
    assert bench.found == []
    bench.save("FAILED", early)
    assert bench.found == [f"the checkpoint {early} lacks w0t0#1, which was done before"]


@pytest.mark.parametrize(
    ("lets_it_lie", "killed", "wrong"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_no_work_of_a_cancelled_run_stays_in_a_shared_place(lets_it_lie: bool, killed: bool, wrong: bool) -> None:
    """Work of a cancelled task run that stays in a shared workspace is reported, unless the supervisor was killed
    before the rollback."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("w0t0", bench.place)
    bench.try_it()
    bench.hear("cancelled", "CANCELLED")
    if not lets_it_lie:
        bench.workspaces.roll_back("w0t0", bench.place)
    if killed:
        bench.account.supervisor_lost()
    bench.account.settled(frozenset())
    assert bench.found == (["is CANCELLED, and w0t0#0 was not taken back"] if wrong else [])


@pytest.mark.parametrize(("state", "early"), [("IN_PROGRESS", True), ("VALIDATING", True), ("CANCELLED", False)])
def test_an_attempt_that_goes_on_on_record_is_not_rolled_back(state: str, early: bool) -> None:
    """A rollback of an attempt that is under way on record is reported, since the next supervisor would continue that
    attempt; after a cancellation the rollback is not reported."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("w0t0", bench.place)
    bench.try_it()
    bench.hear("moved", state)
    bench.take_back()
    assert (f"is taken back, and {state} on record" in bench.found) is early
