"""Tests of the expected endings of plans, and of the task checker: ends and work that the records do not support are
reported."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.lifecycles.types import SessionLimits
from supervisor.plans import Plan
from supervisor.simulation.plan_workload.task_scripts import TaskScript, TaskScripts, Try
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents
from supervisor.simulation.scenario import named
from supervisor.work.results import TaskResult
from supervisor.work.task_execution import ACTOR
from tests.verification.checkers import simulate
from tests.verification.checkers.expected_outcome import Ending, expected_endings
from tests.verification.checkers.tasks import TaskChecker
from tests.verification.records import append_of, record_of


def make_plan(*tasks: dict[str, Any], **said: Any) -> Plan:
    agents = {name: {"adapter": "command", "command": ["true"]} for name in ("worker", "deputy")}
    given = [{"agent": "worker", "prompt": "", **one} for one in tasks]
    return Plan.model_validate({"agents": agents, "workstream": "w0", "tasks": given, **said})


def scripts_of(**ways: tuple[Try, ...]) -> TaskScripts:
    task_scripts = TaskScripts()
    for name, one in ways.items():
        task_scripts.add(TaskScript(name, one))
    return task_scripts


# ------------------------------------------------------------------------------------------------ expected endings
FAST = {"max_attempts": 3, "circuit_breaker": {"max_error_repeats": 9, "probes_max": 0}}


@pytest.mark.parametrize(
    ("ways", "retries", "ending"),
    [
        ((Try.DONE,), 0, Ending("completed", 1, 0)),
        ((Try.BUSY, Try.DONE), 0, Ending("completed", 2, 1)),
        ((Try.BUSY, Try.BUSY, Try.BUSY, Try.DONE), 0, Ending("failed", 3, 2)),
        ((Try.BUSY, Try.BUSY, Try.BUSY, Try.DONE), 1, Ending("completed", 4, 3)),
        ((Try.PERMANENT,), 2, Ending("failed", 2, 1)),
        ((Try.PERMANENT, Try.DONE), 1, Ending("completed", 2, 1)),
    ],
)
def test_the_ending_of_a_task_follows_from_its_tries(ways: tuple[Try, ...], retries: int, ending: Ending) -> None:
    """The expected ending follows from the scripted tries: attempts are counted within a task run, task runs within the
    task's retries and its agents; a permanent error ends a task run at once."""
    task = {"id": "w0t0", "max_retries": retries, "fallback_agents": ("deputy",)}
    plan = make_plan(task, task_lifecycle=FAST)
    assert expected_endings(plan, scripts_of(w0t0=ways)) == {"w0t0": ending}


def test_a_claim_follows_only_where_it_has_something_new() -> None:
    """A task that failed without a result is not claimed again by the same agent; rejected work is, until its findings
    repeat."""
    alone = make_plan({"id": "w0t0", "max_retries": 2}, task_lifecycle=FAST)
    assert expected_endings(alone, scripts_of(w0t0=(Try.PERMANENT,))) == {"w0t0": Ending("failed", 1, 0)}
    judged = make_plan({"id": "w0t0", "max_retries": 3, "acceptance": [{"command": ["check"]}]}, task_lifecycle=FAST)
    scripts = scripts_of(w0t0=(Try.DONE,))
    scripts.add(TaskScript("w0t0", checks=(False,)))
    assert expected_endings(judged, scripts) == {"w0t0": Ending("failed", 2, 1)}


def test_no_ending_is_expected_where_time_decides() -> None:
    """No ending is expected of a plan with a critical failure, an exhausted retry budget, or a hanging agent whose
    session may give up first: each has more than one possible ending."""
    failing, often = scripts_of(w0t0=(Try.PERMANENT,)), scripts_of(w0t0=(Try.BUSY,))
    assert expected_endings(make_plan({"id": "w0t0", "critical": True}), failing) is None
    assert expected_endings(make_plan({"id": "w0t0"}, retry_budget={"share": 0.0, "least": 1}), often) is None
    hanging, limits = scripts_of(w0t0=(Try.HANGS,)), SessionLimits(max_total_errors=2)
    assert expected_endings(make_plan({"id": "w0t0"}), hanging, limits) is None


# ----------------------------------------------------------------------------------------------------- the checker
class _Checked:
    """Task checker with a plan of two tasks, and a list of the reports."""

    def __init__(self, *tasks: dict[str, Any]) -> None:
        self.found: list[tuple[str, str, str]] = []
        self.seq = 0
        self.task_scripts = scripts_of(w0t0=(Try.DONE,), w0t1=(Try.DONE,))
        self.now_s = 0.0
        self.workspaces = WorkspaceContents(self.task_scripts, lambda owner: None, worktrees=False)
        say, now = (lambda *words: self.found.append(words)), (lambda: self.now_s)
        self.account = TaskChecker(say, self.task_scripts, self.workspaces, 60.0, now)
        plan = make_plan(*(tasks or ({"id": "w0t0"}, {"id": "w0t1", "depends_on": ["w0t0"]})))
        self.account.planned(plan)
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
        record = record_of(
            kind,
            f"{kind}:{task}",
            event,
            seq=self.seq,
            outcome=outcome,
            actor=actor,
            to_status=state,
            reason=reason,
            metadata=meta,
        )
        self.account.wrote(append_of(record, state), 0.0)

    def claimed(self, task: str, by: str) -> None:
        self.hear(task, "claimed", "CLAIMED", by=by, reason="agent worker")

    def work(self, name: str, session_id: str = "") -> None:
        task_script = self.task_scripts.of(name)
        assert task_script is not None
        task_script.begun = self.account.attempt_began
        task_script.begin(session_id or name, 0.0)

    @property
    def broken(self) -> list[str]:
        return [law for law, *_ in self.found]


def test_a_task_that_was_done_is_not_reported() -> None:
    """A task that is claimed, worked on, merged and closed is not reported."""
    checked = _Checked()
    for name in ("w0t0", "w0t1"):
        checked.claimed(name, by=name)
        checked.work(name)
        task_script = checked.task_scripts.of(name)
        assert task_script is not None
        task_script.attempts[-1].ended_s = 1.0
        task_script.merge()
        checked.hear(name, "closed", "CLOSED")
    checked.account.settled()
    checked.account.check_expected()
    assert checked.found == []


def test_work_that_nobody_holds_is_noticed() -> None:
    """An agent's work on an open task, or on a task that another session holds, is reported."""
    checked = _Checked()
    checked.work("w0t0")
    checked.claimed("w0t0", by="w0t0-2")
    checked.work("w0t0")
    assert checked.broken == ["intent_before_effect", "intent_before_effect", "one_holder"]


def test_work_before_the_dependencies_is_noticed() -> None:
    """An agent's work on a task before the task's dependencies are closed is reported."""
    checked = _Checked()
    checked.claimed("w0t1", by="w0t1")
    checked.work("w0t1")
    assert checked.broken == ["dependency_satisfaction"]


def test_a_task_that_nobody_has_done_is_noticed() -> None:
    """A task that is closed without work or merge is reported; so is a task that is still open when the plan is
    over."""
    checked = _Checked()
    checked.hear("w0t0", "closed", "CLOSED")
    checked.account.settled()
    assert checked.broken == ["nothing_lost", "honest_ends", "completion_requirement"]


def test_what_is_merged_already_is_not_merged_again() -> None:
    """A merge that was made before a kill is found afterwards, also when the workspace is cleaned up; unmerged work is
    not."""
    task_scripts = scripts_of(w0t0=(Try.DONE,))
    task_script, workspaces = (
        task_scripts.of("w0t0"),
        WorkspaceContents(task_scripts, lambda owner: None, worktrees=True),
    )
    assert task_script is not None
    workspaces.prepare("w0t0")
    assert not workspaces.has("w0t0")
    workspaces.write("w0t0", task_script.begin("w0t0", 0.0), task_script)
    assert not workspaces.has("w0t0")
    workspaces.merged("w0t0")
    workspaces.clean_up("w0t0")
    assert workspaces.has("w0t0")
    assert workspaces.lacks(["w0t0#0", "another"]) == ("another",)


def test_a_failed_task_must_be_a_dead_letter() -> None:
    """A failed task without a record of a dead letter is reported when its workstream ends, also if another run of the
    plan has a task of the same name."""
    checked = _Checked()
    born = {"name": "w0t0", "part_of": "", "workstream": "workstream:w0-2", "waiting_for": []}
    checked.hear("w0t0-2", "Born", "OPEN", outcome="born", max_retries=3, needs_approval=False, **born)
    checked.hear("w0t0", "failed", "FAILED")
    checked.hear("w0", "settled", "completed", kind="workstream")
    checked.account.plan_ended([TaskResult("w0t0", "", "failed", "", 0.0)])
    assert checked.found == [
        ("honest_ends", "task:w0t0", "has failed, and no record says that it is a dead letter"),
    ]


def test_another_ending_is_noticed() -> None:
    """A task whose outcome or number of attempts differs from the expected ending is reported."""
    checked = _Checked()
    checked.hear("w0t0", "cancelled", "CANCELLED")
    checked.hear("w0t1", "closed", "CLOSED")
    checked.account.check_expected()
    assert checked.broken == ["counted_right", "counted_right"]


@pytest.mark.parametrize(
    ("critical", "state", "ended_s", "broken"),
    [
        (True, "FAILED", 50.0, []),
        (True, "FAILED", 49.0, ["punctual"]),
        (False, "FAILED", 50.0, ["punctual"]),
        (True, "CLOSED", 50.0, ["punctual"]),
    ],
)
def test_a_task_that_hangs_may_be_ended_when_a_critical_task_failed(
    critical: bool, state: str, ended_s: float, broken: list[str]
) -> None:
    """The early end of a hanging agent is reported, unless a critical task has failed before."""
    checked = _Checked({"id": "w0t0", "critical": critical}, {"id": "w0t1"})
    task_script = checked.task_scripts.of("w0t1")
    assert task_script is not None
    task_script.ways = (Try.HANGS,)
    checked.claimed("w0t1", by="w0t1")
    checked.work("w0t1")
    task_script.attempts[-1].ended_s = ended_s
    checked.now_s = 50.0
    checked.hear("w0t0", "settled", state)
    checked.account.check_expected()
    assert [law for law in checked.broken if law != "counted_right"] == broken


# ------------------------------------------------------------------------------------------------------ whole runs
@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6, 7])
def test_plans_end_as_their_scripts_let_expect(seed: int) -> None:
    """In simulated runs of the real plan runner, every task ends as its script predicts, after as many attempts."""
    report = simulate(named("works-alone").draw(seed))
    assert report.problems == ()
    assert any(name.startswith("run: ") for name in report.reached)


# ---------------------------------------------------------------------------------------------------------- killed
@pytest.mark.parametrize("seed", [8, 14])
def test_plans_of_killed_supervisors_go_on(seed: int) -> None:
    """In simulated runs whose supervisors are killed, plans continue without a violation: blocked tasks go on, and jobs
    are taken from the dead workers."""
    assert simulate(named("killed-works").draw(seed)).problems == ()
