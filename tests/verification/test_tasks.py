"""Tasks: how plans end is worked out beforehand, and what a task did that no record bears out is noticed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.lifecycles.session import SessionLimits
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Plan
from supervisor.policies.liveness import Liveness
from supervisor.ports import Append
from supervisor.recovery.restore import VERIFIED
from supervisor.simulation.scenario import named
from supervisor.simulation.works.places import Places
from supervisor.simulation.works.task_scripts import TaskScript, TaskScripts, Way
from supervisor.work.results import TaskResult
from supervisor.work.task_execution import ACTOR
from tests.verification.checkers import simulate
from tests.verification.checkers.expected_outcome import Ending, foretell
from tests.verification.checkers.tasks import WorkBooks


def a_plan(*tasks: dict[str, Any], **said: Any) -> Plan:
    agents = {"worker": {"adapter": "command", "command": ["true"]}}
    given = [{"agent": "worker", "prompt": "", **one} for one in tasks]
    return Plan.model_validate({"agents": agents, "workstream": "w0", "tasks": given, **said})


def errands_of(**ways: tuple[Way, ...]) -> TaskScripts:
    task_scripts = TaskScripts()
    for name, one in ways.items():
        task_scripts.add(TaskScript(name, one))
    return task_scripts


# ------------------------------------------------------------------------------------------------------- foretold
FAST = {"max_attempts": 3, "circuit_breaker": {"max_error_repeats": 9, "probes_max": 0}}


@pytest.mark.parametrize(
    ("ways", "retries", "ending"),
    [
        ((Way.DONE,), 0, Ending("completed", 1, 0)),
        ((Way.BUSY, Way.DONE), 0, Ending("completed", 2, 1)),
        ((Way.BUSY, Way.BUSY, Way.BUSY, Way.DONE), 0, Ending("failed", 3, 2)),
        ((Way.BUSY, Way.BUSY, Way.BUSY, Way.DONE), 1, Ending("completed", 4, 3)),
        ((Way.PERMANENT,), 2, Ending("failed", 3, 2)),
        ((Way.PERMANENT, Way.DONE), 1, Ending("completed", 2, 1)),
    ],
)
def test_a_task_ends_as_it_must(ways: tuple[Way, ...], retries: int, ending: Ending) -> None:
    """Attempts within a run, runs within the task's retries; a permanent error ends a run at once."""
    plan = a_plan({"id": "w0t0", "max_retries": retries}, task_lifecycle=FAST)
    assert foretell(plan, errands_of(w0t0=ways)) == {"w0t0": ending}


def test_the_circuit_is_foretold() -> None:
    """The same error once too often opens it; each probe is one attempt more, and costs no retry."""
    lifecycle = {"max_attempts": 9, "circuit_breaker": {"max_error_repeats": 1, "probes_max": 2}}
    plan = a_plan({"id": "w0t0", "max_retries": 0}, task_lifecycle=lifecycle)
    assert foretell(plan, errands_of(w0t0=(Way.BUSY,))) == {"w0t0": Ending("failed", 4, 1)}


BEARING = SessionLimits(max_consecutive_errors=2, max_total_errors=3)


@pytest.mark.parametrize(
    ("limits", "retries", "ending"),
    [
        (BEARING, 0, Ending("failed", 3, 2)),
        (BEARING, 1, Ending("completed", 4, 3)),
        (replace(BEARING, max_total_errors=4), 0, Ending("completed", 4, 3)),
        (replace(BEARING, max_consecutive_errors=1), 2, Ending("failed", 3, 2)),
        (replace(BEARING, max_consecutive_errors=4, stable_after_s=5.0), 0, Ending("failed", 3, 2)),
        (
            replace(BEARING, max_consecutive_errors=1, max_total_errors=1, stable_after_s=5.0),
            3,
            Ending("completed", 4, 3),
        ),
    ],
)
def test_a_session_that_gives_up_is_foretold(limits: SessionLimits, retries: int, ending: Ending) -> None:
    """It has had all its tries then, and its run none that is left; the next claim has another session."""
    plan = a_plan({"id": "w0t0", "max_retries": retries}, task_lifecycle=FAST | {"max_attempts": 9})
    assert foretell(plan, errands_of(w0t0=(Way.BUSY,) * 3 + (Way.DONE,)), limits) == {"w0t0": ending}


@pytest.mark.parametrize(("way", "stable_after_s"), [(Way.BUSY, 5.0), (Way.HANGS, 0.0)])
def test_when_a_session_gives_up_may_be_a_matter_of_time(way: Way, stable_after_s: float) -> None:
    """Of how long an agent has to go well before its failures are in a row no more; and of who ends one that hangs."""
    plan = a_plan({"id": "w0t0", "timeout_s": 60.0}, task_lifecycle=FAST | {"max_attempts": 9})
    limits = replace(BEARING, stable_after_s=stable_after_s)
    assert foretell(plan, errands_of(w0t0=(way,) * 3 + (Way.DONE,)), limits) is None
    assert foretell(plan, errands_of(w0t0=(way, Way.DONE)), limits) == {"w0t0": Ending("completed", 2, 1)}


@pytest.mark.parametrize(
    ("said", "begun"),
    [
        ({"timeout_s": 90.0}, 1),  # over before
        ({"timeout_s": 150.0}, 2),
        ({"timeout_s": 100.0}, None),  # as soon as it may be
        ({}, 3),
        ({"scope": "small"}, 3),
        ({"scope": "xl"}, 3),
    ],
)
def test_who_hangs_begins_again_within_the_attempt(said: dict[str, Any], begun: int | None) -> None:
    """It is woken up, and asked to stop, before it is ended: unless its time is over before, that is no other try."""
    plan = a_plan({"id": "w0t0", "max_retries": 0, **said}, task_lifecycle=FAST | {"max_attempts": 2})
    failed = None if begun is None else {"w0t0": Ending("failed", 2 * begun, 1)}
    assert foretell(plan, errands_of(w0t0=(Way.HANGS,))) == failed
    if begun is not None:
        done = Ending("completed", begun + 1, 1)
        assert foretell(plan, errands_of(w0t0=(Way.HANGS,) * begun + (Way.DONE,))) == {"w0t0": done}
        woken = foretell(plan, errands_of(w0t0=(Way.HANGS,) * (begun - 1) + (Way.DONE,)))
        assert woken == {"w0t0": Ending("completed", begun, 0)}


def test_nobody_wakes_who_is_not_looked_at() -> None:
    """Without snapshots an agent that hangs is ended by the time-out of its turn alone."""
    plan, task_scripts = a_plan({"id": "w0t0"}), errands_of(w0t0=(Way.HANGS, Way.DONE))
    assert foretell(plan, task_scripts) == {"w0t0": Ending("completed", 2, 0)}
    assert foretell(plan, task_scripts, liveness=Liveness(snapshot_s=0.0)) == {"w0t0": Ending("completed", 2, 1)}


@pytest.mark.parametrize(
    ("said", "checks", "approvals", "ending", "follows"),
    [
        ({}, (True,), (True,), Ending("completed"), "skipped"),
        ({}, (False, True), (True,), Ending("failed"), "completed"),
        ({"max_retries": 1}, (False, True), (True,), Ending("completed", 1, 1), "skipped"),
        ({"approval": "after"}, (True,), (True,), Ending("completed"), "skipped"),
        ({"approval": "after"}, (True,), (False, True), Ending("failed"), "completed"),
        ({"approval": "after", "max_retries": 1}, (True,), (False, True), Ending("completed", 1, 1), "skipped"),
    ],
)
def test_a_whole_that_is_rejected_has_failed(
    said: dict[str, Any], checks: tuple[bool, ...], approvals: tuple[bool, ...], ending: Ending, follows: str
) -> None:
    """By its tests or by a person: it is claimed anew, if it may be, and what waits for a failure has one."""
    whole = {"id": "w0t0", "max_retries": 0, "acceptance": [{"command": ["x"]}], **said}
    plan = a_plan(
        whole | {"subtasks": [{"id": "w0t0s0", "agent": "worker", "prompt": ""}]},
        {"id": "w0t1", "when": {"task": "w0t0", "is": "failed"}},
    )
    task_scripts = errands_of(w0t0s0=(Way.DONE,))
    task_scripts.add(TaskScript("w0t0", checks=checks, approvals=approvals))
    endings = foretell(plan, task_scripts)
    assert endings is not None
    assert (endings["w0t0"], endings["w0t1"].outcome) == (ending, follows)


def test_what_depends_on_a_failure_is_blocked() -> None:
    """A task whose dependency has failed is not tried; an optional one counts as skipped."""
    plan = a_plan(
        {"id": "w0t0", "max_retries": 0},
        {"id": "w0t1", "depends_on": ["w0t0"]},
        {"id": "w0t2", "depends_on": ["w0t0"], "optional": True},
        {"id": "w0t3", "depends_on": ["w0t2"]},
    )
    endings = foretell(plan, errands_of(w0t0=(Way.PERMANENT,)))
    assert endings is not None
    assert [one.outcome for one in endings.values()] == ["failed", "blocked", "skipped", "completed"]


def test_what_time_decides_is_not_foretold() -> None:
    """A critical failure, a budget that runs out, and an agent that is looked after leave more than one way."""
    failing = errands_of(w0t0=(Way.PERMANENT,))
    assert foretell(a_plan({"id": "w0t0", "critical": True}), failing) is None
    assert foretell(a_plan({"id": "w0t0"}, retry_budget={"share": 0.0, "least": 1}), failing) is None
    assert foretell(a_plan({"id": "w0t0"}), errands_of(w0t0=(Way.HANGS,))) is None


# ---------------------------------------------------------------------------------------------------------- books
class _Judged:
    """The books of one plan of two tasks, and what they found."""

    def __init__(self, *tasks: dict[str, Any], worktrees: bool = False) -> None:
        self.found: list[tuple[str, str, str]] = []
        self.seq = 0
        self.task_scripts = errands_of(w0t0=(Way.DONE,), w0t1=(Way.DONE,))
        self.now_s = 0.0
        self.places = Places(self.task_scripts, lambda owner: None, worktrees=worktrees)
        say, now = (lambda *words: self.found.append(words)), (lambda: self.now_s)
        self.books = WorkBooks(say, self.task_scripts, self.places, 60.0, now)
        plan = a_plan(*(tasks or ({"id": "w0t0"}, {"id": "w0t1", "depends_on": ["w0t0"]})))
        self.books.planned(plan)
        for task in plan.tasks:
            born = {"name": task.id, "part_of": "", "workstream": "workstream:w0", "waiting_for": [*task.depends_on]}
            allowed = {"max_retries": task.max_retries, "needs_approval": False}
            self.hear(task.id, "Born", "OPEN", outcome="born", **born, **allowed)

    def hear(
        self,
        task: str,
        event: str,
        state: str,
        outcome: str = "transition",
        reason: str = "",
        kind: str = "task",
        actor: str = ACTOR,
        **meta: Any,
    ) -> None:
        self.seq += 1
        record = LifecycleEvent(
            seq=self.seq,
            timestamp=0.0,
            monotonic_s=0.0,
            entity_type=kind,
            entity_id=f"{kind}:{task}",
            entity_seq=1,
            event=event,
            outcome=outcome,
            actor=actor,
            to_status=state,
            reason=reason,
            metadata=meta,
        )
        self.books.wrote(Append(record=record, parent_id=None, state=state, data=b""), 0.0)

    def claimed(self, task: str, by: str) -> None:
        self.hear(task, "claimed", "CLAIMED", by=by, reason="agent worker")

    def work(self, name: str, session_id: str = "") -> None:
        task_script = self.task_scripts.of(name)
        assert task_script is not None
        task_script.begun = self.books.begun
        task_script.begin(session_id or name, 0.0)

    @property
    def laws(self) -> list[str]:
        return [law for law, *_ in self.found]


def test_who_goes_on_with_a_plan_has_workers_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run of the plan has others, and tasks of its own."""
    judged, gone_on = _Judged(), list[set[str]]()
    monkeypatch.setattr(judged.books.savings, "gone_on", gone_on.append)
    for run in ("w0", "w0-2"):
        told = {
            "workstream": f"workstream:{run}",
            "max_concurrent_tasks": 1,
            "capabilities": [],
            "misses_max": 3,
            "shutdown_s": 180.0,
        }
        judged.hear(run, "Born", "initializing", "born", kind="worker", **told)
    assert gone_on == [{"task:w0t0", "task:w0t1"}, set()]


def test_a_task_that_is_done_is_borne_out() -> None:
    """Claimed, worked on, merged and closed, one after the other: nothing is found."""
    judged = _Judged()
    for name in ("w0t0", "w0t1"):
        judged.claimed(name, by=name)
        judged.work(name)
        task_script = judged.task_scripts.of(name)
        assert task_script is not None
        task_script.attempts[-1].ended_s = 1.0
        task_script.merge()
        judged.hear(name, "closed", "CLOSED")
    judged.books.settled()
    judged.books.as_foretold()
    assert judged.found == []


def test_work_that_nobody_holds_is_noticed() -> None:
    """An agent that works on what is open, or on what another session holds, breaks a law."""
    judged = _Judged()
    judged.work("w0t0")
    judged.claimed("w0t0", by="w0t0-2")
    judged.work("w0t0")
    assert judged.laws == ["intent_before_effect", "intent_before_effect", "one_holder"]


def test_work_before_its_time_is_noticed() -> None:
    """Nobody works on a task before what it depends on is closed."""
    judged = _Judged()
    judged.claimed("w0t1", by="w0t1")
    judged.work("w0t1")
    assert judged.laws == ["dependency_satisfaction"]


def test_a_task_that_nobody_has_done_is_noticed() -> None:
    """Closed without an agent that has done it, without a merge; and another one left open."""
    judged = _Judged()
    judged.hear("w0t0", "closed", "CLOSED")
    judged.books.settled()
    assert judged.laws == ["nothing_lost", "honest_ends", "completion_requirement"]


@pytest.mark.parametrize(("answered", "laws"), [(False, []), (True, ["completion_requirement"])])
def test_work_that_nobody_merges_is_nobodys(answered: bool, laws: list[str]) -> None:
    """What is done, and closed since nobody goes on with its plan, has no merge; where somebody hears that the plan is
    over, it should have had one."""
    judged = _Judged()
    judged.claimed("w0t0", by="w0t0")
    judged.work("w0t0")
    judged.hear("w0t0", "closed", "CLOSED", reason=VERIFIED.reason)
    judged.hear("w0t1", "cancelled", "CANCELLED")
    if answered:
        judged.books.told([TaskResult("w0t0", "w0t0", "completed", "", 0.0)], 1.0)
    judged.books.settled()
    assert judged.laws == laws


@pytest.mark.parametrize(
    ("worktrees", "resumes", "laws"),
    [
        (False, "workstream:w0", []),
        (False, "", ["completion_requirement"]),
        (True, "workstream:w0", ["completion_requirement"]),
    ],
)
def test_what_a_run_that_resumes_finds_closed_needs_no_merge_in_place(
    worktrees: bool, resumes: str, laws: list[str]
) -> None:
    """It counts as done, and its work is where it was done; what a worktree held would be on its branch still."""
    judged = _Judged(worktrees=worktrees)
    judged.hear("w0t0", "closed", "CLOSED", reason=VERIFIED.reason)
    judged.hear("w0-2", "Born", "planned", "born", kind="workstream", resumes=resumes)
    judged.hear("w0-2", "all_tasks_completed", "completed", kind="workstream")
    judged.books.told([TaskResult("w0t0", "", "completed", "", 0.0)], 1.0)
    assert judged.laws == laws


@pytest.mark.parametrize(
    ("unmerged", "begun", "merges", "laws"),
    [
        (True, True, True, []),
        (True, True, False, ["completion_requirement"] * 2),
        (True, False, False, ["completion_requirement"]),
        (False, True, True, []),
        (False, True, False, ["completion_requirement"]),
    ],
)
def test_what_counts_as_done_is_merged(unmerged: bool, begun: bool, merges: bool, laws: list[str]) -> None:
    """What a run that resumes finds closed, and every other task that is told to be done, is where the work is for:
    also what nobody was left to merge when it was closed."""
    judged = _Judged(worktrees=True)
    places = judged.places
    judged.claimed("w0t0", by="w0t0")
    places.prepare("w0t0")
    task_script = judged.task_scripts.of("w0t0")
    assert task_script is not None
    if begun:
        judged.work("w0t0")
        places.write("w0t0", task_script.attempts[-1], task_script)
    judged.hear("w0t0", "closed", "CLOSED", reason=VERIFIED.reason if unmerged else "merged")
    judged.books.started()  # another supervisor
    judged.hear("w0-2", "Born", "planned", "born", kind="workstream", resumes="workstream:w0")
    places.clean_up("w0t0")
    if merges:
        task_script.merge()
        places.merged("w0t0")
    judged.hear("w0-2", "all_tasks_completed", "completed", kind="workstream")
    judged.books.told([TaskResult("w0t0", "", "completed", "", 0.0)], 1.0)
    assert judged.laws == laws


def test_what_is_merged_already_is_not_merged_again() -> None:
    """Its supervisor did not live to say so: whoever merges it finds nothing to do, and is refused nothing."""
    task_scripts = errands_of(w0t0=(Way.DONE,))
    task_script, places = task_scripts.of("w0t0"), Places(task_scripts, lambda owner: None, worktrees=True)
    assert task_script is not None
    places.prepare("w0t0")
    assert not places.has("w0t0")
    places.write("w0t0", task_script.begin("w0t0", 0.0), task_script)
    assert not places.has("w0t0")
    places.merged("w0t0")
    places.clean_up("w0t0")
    assert places.has("w0t0")
    assert places.lacks(["w0t0#0", "another"]) == ("another",)


@pytest.mark.parametrize(
    ("last", "outcome", "by", "found"),
    [
        ("w0", "aborted", "w0t0", 0),
        ("w0", "completed", "w0t0-2", 2),
        ("w0-2", "completed", "w0t0-2", 0),
        ("w0-2", "aborted", "w0t0", 2),
    ],
)
def test_what_is_told_is_of_the_run_that_is_over(last: str, outcome: str, by: str, found: int) -> None:
    """A plan goes on with what an earlier one had left, when another one of the same tasks has come and gone since:
    what is said of them is held against that one's. What a recovery says of another one is no run of it."""
    judged = _Judged()
    judged.claimed("w0t0", by="w0t0")
    judged.hear("w0t0", "cancelled", "CANCELLED")
    born = {"name": "w0t0", "part_of": "", "workstream": "workstream:w0-2", "waiting_for": []}
    judged.hear("w0t0-2", "Born", "OPEN", outcome="born", max_retries=3, needs_approval=False, **born)
    judged.claimed("w0t0-2", by="w0t0-2")
    judged.hear("w0t0-2", "closed", "CLOSED")
    other = "w0-2" if last == "w0" else "w0"
    judged.hear(other, "settled", "completed", kind="workstream")
    judged.hear(last, "settled", "completed", kind="workstream")
    judged.hear(other, "user_cancelled", "cancelled", kind="workstream", actor="recovery")
    judged.books.told([TaskResult("w0t0", by, outcome, "", 0.0)], 1.0)
    assert judged.laws == ["honest_ends"] * found


def test_a_failure_is_told_as_a_dead_letter() -> None:
    """Of the run that is over: another one of the same task may have said so."""
    judged = _Judged()
    born = {"name": "w0t0", "part_of": "", "workstream": "workstream:w0-2", "waiting_for": []}
    judged.hear("w0t0-2", "Born", "OPEN", outcome="born", max_retries=3, needs_approval=False, **born)
    judged.hear("w0t0", "failed", "FAILED")
    judged.hear("w0", "settled", "completed", kind="workstream")
    judged.books.told([TaskResult("w0t0", "", "failed", "", 0.0)], 1.0)
    assert judged.found == [
        ("honest_ends", "task:w0t0", "has failed, and no record says that it is a dead letter"),
    ]


def test_another_ending_is_noticed() -> None:
    """A task that must be completed and is cancelled, and one that was tried too often."""
    judged = _Judged()
    judged.hear("w0t0", "cancelled", "CANCELLED")
    judged.hear("w0t1", "closed", "CLOSED")
    judged.books.as_foretold()
    assert judged.laws == ["counted_right", "counted_right"]


@pytest.mark.parametrize(
    ("critical", "state", "ended_s", "laws"),
    [
        (True, "FAILED", 50.0, []),
        (True, "FAILED", 49.0, ["punctual"]),
        (False, "FAILED", 50.0, ["punctual"]),
        (True, "CLOSED", 50.0, ["punctual"]),
    ],
)
def test_who_hangs_is_ended_with_its_plan(critical: bool, state: str, ended_s: float, laws: list[str]) -> None:
    """Since a critical task has failed nobody wants the others; until then one that hangs has its time."""
    judged = _Judged({"id": "w0t0", "critical": critical}, {"id": "w0t1"})
    task_script = judged.task_scripts.of("w0t1")
    assert task_script is not None
    task_script.ways = (Way.HANGS,)
    judged.claimed("w0t1", by="w0t1")
    judged.work("w0t1")
    task_script.attempts[-1].ended_s = ended_s
    judged.now_s = 50.0
    judged.hear("w0t0", "settled", state)
    judged.books.as_foretold()
    assert [law for law in judged.laws if law != "counted_right"] == laws


@pytest.mark.parametrize(("state", "laws"), [("idle", ["counted_right"]), ("busy", [])])
def test_a_worker_that_is_lost_with_a_task_leaves_nothing_foretold(state: str, laws: list[str]) -> None:
    """What it was at is another one's then; where it had nothing, every task ends as it had to."""
    judged = _Judged()
    born = {"misses_max": 3, "workstream": "workstream:w0"}
    for was, event, now, told in (("", "Born", state, born), (state, "health_check_timeout", "lost", {"missed": 3})):
        outcome = "transition" if was else "born"
        record = LifecycleEvent(
            seq=1,
            timestamp=0.0,
            monotonic_s=0.0,
            entity_type="worker",
            entity_id="worker:w",
            entity_seq=1,
            event=event,
            from_status=was,
            outcome=outcome,
            to_status=now,
            metadata=told,
        )
        judged.books.hearts.wrote(Append(record=record, parent_id=None, state=now, data=b""), 0.0)
    judged.hear("w0t0", "closed", "CLOSED")
    judged.work("w0t0")
    judged.found.clear()
    judged.hear("w0t1", "cancelled", "CANCELLED")
    judged.books.as_foretold()
    assert judged.laws == laws


# ------------------------------------------------------------------------------------------------------ whole runs
@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6, 7])
def test_plans_end_as_foretold(seed: int) -> None:
    """Whole plans through the real runner: every task ends as what it met foretells, after as many attempts."""
    report = simulate(named("works-alone").draw(seed))
    assert report.problems == ()
    assert any(name.startswith("run: ") for name in report.reached)


# ---------------------------------------------------------------------------------------------------------- killed
@pytest.mark.parametrize("seed", [8, 14])
def test_a_killed_plan_waits_and_lets_go_as_it_should(seed: int) -> None:
    """What was blocked before it was followed is not ended by that; a parent's job leaves the worker that is dead."""
    assert simulate(named("killed-works").draw(seed)).problems == ()
