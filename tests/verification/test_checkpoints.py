"""The judge's books of checkpoints: what is on record holds what the newest attempt did."""

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
    """One task, its run, and what the books find. With *rollback* its plan says so; with *worktrees* it is worked on in
    one of its own."""

    def __init__(self, *, rollback: bool, worktrees: bool = True) -> None:
        self.found: list[str] = []
        self.task = TaskConfig(id="w0t0", agent="worker", prompt="", rollback=rollback)
        self.place = WorkspaceSpec(owner="task:w0t0", files=() if worktrees else ("x",), rollback=rollback)
        self.task_script, task_scripts = TaskScript("w0t0"), TaskScripts()
        task_scripts.add(self.task_script)
        self.workspaces = WorkspaceContents(task_scripts, self.taken_back, worktrees=worktrees)
        self.books = CheckpointChecker(lambda law, who, words: self.found.append(words), task_scripts, self.workspaces)
        self.workspaces.prepare("w0t0")
        self.hear("Born", "PENDING", "born", task="task:w0t0", resumed_from="", resumed_at="")
        self.hear("executor_started", "IN_PROGRESS")

    def hear(self, event: str, to: str, outcome: str = "transition", run: str = "run:w0t0", **told: Any) -> None:
        record = record_of(
            "run", run, event, to_status=to, outcome=outcome, actor=told.pop("actor", "plan"), metadata=told
        )
        self.books.wrote(record, "w0t0", self.task)

    def taken_back(self, owner: str) -> None:
        """What that task did is about to be taken back."""
        self.books.check_rollback(owner)

    def try_it(self) -> Attempt:
        """An agent does a piece of work."""
        attempt = Attempt("w0t0", self.task_script.way(0), 0.0, self.workspaces.found("w0t0"), ended_s=1.0)
        self.books.attempt_began(self.task_script, attempt, self.task)
        self.task_script.attempts.append(attempt)
        self.workspaces.write("w0t0", attempt, self.task_script)
        return attempt

    def save(self, state: str, saved_as: str | None = None) -> None:
        """A checkpoint is on record, of what is there."""
        saved_as = saved_as or self.workspaces.save("w0t0", self.place)
        self.hear("checkpoint_saved", state, state=state, session="w0t0", saved_as=saved_as)

    def take_back(self) -> None:
        """The next attempt finds nothing of the last one; what that did is on record."""
        saved_as = self.workspaces.roll_back("w0t0", self.place)
        self.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as=saved_as)


@pytest.mark.parametrize(("rollback", "lacks"), [(True, False), (False, True)])
def test_an_attempt_that_nobody_began_holds_nothing_of_the_one_before(rollback: bool, lacks: bool) -> None:
    """Where that was to be taken back, and only there, the checkpoint of the next attempt is without it."""
    bench = Bench(rollback=rollback)
    bench.try_it()
    bench.save("FAILED")
    bench.take_back()
    bench.hear("backoff_completed", "IN_PROGRESS")
    bench.save("FAILED")
    assert any("lacks w0t0#0" in one for one in bench.found) is lacks


def test_a_checkpoint_holds_what_was_done() -> None:
    """Saved before the work, and on record after it: it lacks that."""
    bench = Bench(rollback=True)
    early = bench.workspaces.save("w0t0", bench.place)
    bench.try_it()
    bench.save("FAILED", early)
    assert bench.found == [f"the checkpoint {early} lacks w0t0#0, which was done before"]


def test_so_does_what_is_taken_back() -> None:
    """What a rollback is said to have saved is there, and holds what was done."""
    bench = Bench(rollback=True)
    early = bench.workspaces.save("w0t0", bench.place)
    bench.try_it()
    bench.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as=early)
    bench.hear("RolledBack", "FAILED", "fact", session="w0t0", saved_as="nowhere")
    lacks, gone = bench.found
    assert lacks == f"the checkpoint {early} lacks w0t0#0, which was done before"
    assert gone == "the checkpoint nowhere is on record, and is not there"


@pytest.mark.parametrize(("task", "finds"), [("task:w0t0", True), ("task:w0t0-2", False)])
def test_what_was_left_is_found_by_another_plan_alone(task: str, finds: bool) -> None:
    """Where nobody went on with a plan after a kill nothing was taken back: a later plan has that task anew, and finds
    it; where the same task is gone on with, that was to be taken back."""
    bench = Bench(rollback=True)
    bench.try_it()
    bench.hear("cancelled", "CANCELLED", actor="recovery")
    bench.hear("Born", "PENDING", "born", run="run:w0t0-2", task=task, resumed_from="", resumed_at="")
    bench.hear("executor_started", "IN_PROGRESS", run="run:w0t0-2")
    bench.try_it()
    assert ("an attempt finds w0t0#0, which was to be taken back" in bench.found) is finds


@pytest.mark.parametrize(
    ("killed", "goes_on", "finds"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_so_is_what_its_supervisor_had_no_time_to_take_back(killed: bool, goes_on: bool, finds: bool) -> None:
    """It was killed between the last record of the run and that; whoever goes on with the plan does it."""
    bench = Bench(rollback=True, worktrees=False)
    bench.try_it()
    bench.hear("cancelled", "CANCELLED")
    if killed:
        bench.books.supervisor_lost()
    if goes_on:
        bench.books.plan_continued({"task:w0t0"})
    bench.books.plan_continued({"task:w0t0-2"})
    told = {"task": "task:w0t0-2", "resumed_from": "", "resumed_at": ""}
    bench.hear("Born", "PENDING", "born", run="run:w0t0-2", **told)
    bench.hear("executor_started", "IN_PROGRESS", run="run:w0t0-2")
    bench.try_it()
    assert ("an attempt finds w0t0#0, which was to be taken back" in bench.found) is finds


@pytest.mark.parametrize(
    ("on_record", "killed", "lacks"), [(True, False, False), (False, True, False), (False, False, True)]
)
def test_it_is_taken_back_once(on_record: bool, killed: bool, lacks: bool) -> None:
    """The next supervisor takes back again, which may have no record of that or no attempt after it: of what is in
    another checkpoint there is nothing."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("w0t0", bench.place)
    bench.try_it()
    bench.hear("execution_failed", "FAILED")
    if on_record:
        bench.take_back()
    else:
        bench.workspaces.roll_back("w0t0", bench.place)
    if killed:
        bench.books.supervisor_lost()
    bench.workspaces.begin("w0t0", bench.place)
    bench.take_back()
    assert any("lacks w0t0#0" in one for one in bench.found) is lacks


def test_what_was_done_since_is_taken_back_with_it() -> None:
    """An attempt that is under way again is to be in the next checkpoint."""
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


def test_a_session_that_begins_anew_is_on_the_same_attempt() -> None:
    """What its agent did before that, too, is what the checkpoint of the attempt holds."""
    bench = Bench(rollback=True)
    bench.try_it()
    early = bench.workspaces.save("w0t0", bench.place)
    bench.try_it()
    bench.save("FAILED")
    assert bench.found == []
    bench.save("FAILED", early)
    assert bench.found == [f"the checkpoint {early} lacks w0t0#1, which was done before"]


@pytest.mark.parametrize("last", ["COMPLETED", "FAILED"])
def test_what_a_run_ended_well_with_is_not_taken_back(last: str) -> None:
    """That is what its last attempt did, and what it did that on; of a run that has failed nothing stays."""
    bench = Bench(rollback=True, worktrees=False)
    bench.try_it()
    bench.save("CANCELLED")
    saved_as = bench.workspaces.save("w0t0", bench.place)
    bench.hear("cancelled", "CANCELLED")
    bench.books.resumed(["w0t0"])
    told = {"task": "task:w0t0-2", "resumed_from": "run:w0t0", "resumed_at": saved_as}
    bench.hear("Born", "PENDING", "born", run="run:w0t0-2", **told)
    bench.hear("executor_started", "IN_PROGRESS", run="run:w0t0-2")
    bench.try_it()
    bench.hear("ended", last, run="run:w0t0-2")
    told = {"task": "task:w0t0-2", "resumed_from": "", "resumed_at": ""}
    bench.hear("Born", "PENDING", "born", run="run:w0t0-3", **told)
    bench.hear("executor_started", "IN_PROGRESS", run="run:w0t0-3")
    bench.try_it()
    assert ("an attempt finds w0t0#0, which was to be taken back" in bench.found) is (last == "FAILED")


def test_a_shared_place_is_taken_back_by_whose_it_is() -> None:
    """Nobody holds the task any more: its place is taken back all the same, as a directory is."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("", bench.place)
    bench.try_it()
    saved_as = bench.workspaces.roll_back("", bench.place)
    assert bench.workspaces.held(saved_as) == ("w0t0#0",)
    assert bench.workspaces.found("w0t0") == ()


@pytest.mark.parametrize(
    ("lets_it_lie", "killed", "wrong"), [(False, False, False), (True, False, True), (True, True, False)]
)
def test_nothing_stays_of_what_came_to_nothing(lets_it_lie: bool, killed: bool, wrong: bool) -> None:
    """When every plan is over it is taken back, unless the supervisor that was to do that was killed."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("w0t0", bench.place)
    bench.try_it()
    bench.hear("cancelled", "CANCELLED")
    if not lets_it_lie:
        bench.workspaces.roll_back("w0t0", bench.place)
    if killed:
        bench.books.supervisor_lost()
    bench.books.settled(frozenset())
    assert bench.found == (["is CANCELLED, and w0t0#0 was not taken back"] if wrong else [])


@pytest.mark.parametrize(("state", "early"), [("IN_PROGRESS", True), ("VALIDATING", True), ("CANCELLED", False)])
def test_what_goes_on_on_record_is_not_taken_back(state: str, early: bool) -> None:
    """Whoever comes next goes on with that attempt, and could not take back what it does then."""
    bench = Bench(rollback=True, worktrees=False)
    bench.workspaces.begin("w0t0", bench.place)
    bench.try_it()
    bench.hear("moved", state)
    bench.take_back()
    assert (f"is taken back, and {state} on record" in bench.found) is early
