"""Tests of races between commands about a task (split, block, retry, requeue, give up, message) and events of that
task.

Each test names the moment of the command. All checkers of tests/verification check every run; the asserts here check
that the moment occurred, and its required consequence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from supervisor.lifecycles.types import AbortScope, Verb
from supervisor.plans import Plan, TaskConfig
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.host import LoadGenerator
from supervisor.simulation.plan_workload.plans import CHECK, FILES, ROLES, WORKER
from supervisor.simulation.plan_workload.task_scripts import TaskScript, Try, prompt_of
from supervisor.simulation.running import Report
from tests.simulation.command_table import CELLS, REFUSALS, effect_of
from tests.simulation.races import Intruder, RaceHost, lifecycle, plain_tasks, race, scenario
from tests.simulation.task_phases import DELAY_S, PHASES, Seen, play
from tests.verification.checkers import simulate
from tests.verification.checkers.checkpoints import CheckpointChecker

FIFO = 'schedules = ["fifo"]'
SHORT = "commit_s = 0.01"
PART = "w0t0s0"


# ------------------------------------------------------------------------------------------------- at every record
FIRST, STEP = 5, 3
"""Number of the first record at which commands are tried, just after the birth of the task, and their distance: the
records of one commit are one moment."""


def is_as_in_some_phase(seen: Seen, command: str) -> bool:
    """Return whether answer and effect of the command are those of some row of the table."""
    for (name, phase), row in CELLS.items():
        then, end, reason = effect_of(row, phase)
        is_effect = seen.then.endswith(then) and (seen.end, seen.reason[: len(reason)]) == (end, reason)
        if name == command and row.answer.startswith(seen.answers[command]) and is_effect:
            return True
    return False


@pytest.mark.parametrize(
    ("command", "phase"),
    [
        *((command, "delay") for command in ("requeue", "unclaim", "block", "split", "retry")),
        *((command, "delay") for command in ("send_now", "send_at_turn_end")),
        ("split", "failed"),
        ("cancel", "delay"),
        ("abort_session", "delay"),
    ],
)
def test_a_command_at_any_record_is_refused_or_has_its_effect(command: str, phase: str) -> None:
    """A command at any record from the birth of a task to its end, as soon as that record is durable, has the answer
    and the effect that it has in some phase of the task, or is refused, and the task goes on to the same end."""
    undisturbed = play(PHASES[phase], [], at_record=FIRST)
    answers = set[bool]()
    for number in range(FIRST, 1_000, STEP):
        seen = play(PHASES[phase], [command], at_record=number)
        if not seen.then:
            break
        answer = seen.answers[command]
        is_late = answer == "already ended"  # the work is merged, so its session is ending
        assert not is_late or seen.then == "CLOSED", f"record {number}: {seen}"
        is_without_effect = answer.startswith(REFUSALS) or is_late
        answers.add(is_without_effect)
        if is_without_effect:
            assert (seen.end, seen.reason) == (undisturbed.end, undisturbed.reason), f"record {number}: {answer}"
            assert undisturbed.then.endswith(seen.then), f"record {number}: {answer}"
        else:
            assert is_as_in_some_phase(seen, command), f"record {number}: {seen}"
    assert answers == {True, False}


# ------------------------------------------------------------------------------------------------------ splits
class SplitBetweenSessions(Intruder):
    """Intruder that ends the session of a task that waits for its next attempt, and splits the task so many steps
    *after* that."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left, self.is_closed, self.is_split = after, False, False
        self.sessions = 0

    def step(self) -> None:
        run, job, _ = self.states()
        if not run:
            return
        self.sessions = 1 + ("w0t0-2" in self.rows)
        if run == "RETRYING" and not self.is_closed:
            self.is_closed = True
            # Not by the host: a host that closes the session of a task cancels the task.
            self.host.start(
                partial(self.host.sup.core.aborts.close_session, "w0t0", reason="test", cause=Cause(actor="test"))
            )
        if self.is_closed and job in ("retrying", "queued", "running"):
            self._left -= 1
            if self._left < 0 and not self.is_split:
                self.is_split = True
                self.command(Verb.SPLIT)


def test_a_session_that_works_on_a_task_holds_it_on_record() -> None:
    """A task is split at any step between the end of one session and the start of the next: a session that works on the
    task always holds it on record."""
    thrice = lifecycle(max_attempts=3, base_retry_delay=0.5, circuit_breaker={"enabled": False, "probes_max": 0})
    drawn, sessions = scenario(FIFO, SHORT).draw(4), set[int]()
    for after in range(0, 40, 2):
        splitter = SplitBetweenSessions(after)
        race(drawn, splitter, thrice, plain_tasks(max_retries=0), ways={"*": (Try.BUSY, Try.DONE)})
        assert splitter.is_split, f"after {after} steps"
        sessions.add(splitter.sessions)
    assert sessions == {1, 2}  # it was split before there was another one, and after


class AbortNextSession(Intruder):
    """Intruder that takes the task from its session, and aborts the next session before that session has the task on
    record."""

    is_requeued = is_aborted = False

    def step(self) -> None:
        task = self.states()[2]
        if task == "IN_PROGRESS" and not self.is_requeued:
            self.is_requeued = True
            self.command(Verb.REQUEUE)
        elif task == "OPEN" and not self.is_aborted and "w0t0-2" in self.host.targets(AbortScope.SESSION):
            self.is_aborted = True
            self.host.start(partial(self.host.sup.abort, "w0t0-2", AbortScope.SESSION, reason="enough", actor="me"))


def test_a_result_names_no_session_that_never_had_the_task() -> None:
    """A session that is aborted before it has the task on record ends the task; the result names the session before it,
    which had the task (``honest_ends``)."""
    report = race(scenario(FIFO, "commit_s = 0.5").draw(2), intruder := AbortNextSession(), plain_tasks())
    assert intruder.is_aborted
    assert report.reached["task: OPEN cancelled CANCELLED"] == 1


class SplitStarting(Intruder):
    """Intruder that splits the task when it is claimed, and records the state of its session when the task is
    blocked."""

    split_s: float | None = None
    blocked: tuple[float, str] | None = None
    """Seconds from the split to the block, and the state of the session at the block."""

    def step(self) -> None:
        task = self.states()[2]
        if self.split_s is None and task == "CLAIMED":
            self.split_s = self.world.now()
            self.command(Verb.SPLIT)
        elif self.split_s is not None and self.blocked is None and task == "BLOCKED":
            self.blocked = (self.world.now() - self.split_s, self.state("w0t0"))


def test_the_attempt_of_a_split_task_is_seen_through_before_it_is_blocked() -> None:
    """A split task whose only worker slot is taken by a session whose agent is never ready in time is blocked, by the
    time-out of the subtask, only after the session has given up (300 s)."""

    def one_slot(plan: Plan) -> Plan:
        plan = plain_tasks(timeout_s=45.0, max_retries=0, agent="acp")(plan)
        return Plan.model_validate({**dict(plan), "workers": {"all": {"slots": 1, "roles": ROLES}}})

    limits = "[settings]\nlimits = { max_consecutive_errors = 10, restarts_max = 10, spawn_deadline_s = 0.3 }"
    race(scenario(limits).draw(0), splitter := SplitStarting(), one_slot)
    assert splitter.blocked is not None
    after_s, session = splitter.blocked
    assert after_s > 300.0
    assert session == "Stopped"


# ------------------------------------------------------------------------------------------------ delays and blocks
def test_a_delay_that_ends_while_its_task_is_blocked_is_served_after_that() -> None:
    """A task whose cool-down ended while the task was blocked on a late subtask goes on when the subtask is closed."""
    phase = PHASES["cooling"]._replace(task={"timeout_s": 50.0})
    seen = play(phase, ["split"])
    assert seen.then == "WAITING_FOR_SUBTASKS BLOCKED OPEN WAITING_FOR_SUBTASKS DONE CLOSED"
    assert seen.lasted_s > DELAY_S


# ----------------------------------------------------------------------------------------------- resets and requeues
def whole_of_one_part(script: TaskScript, part: TaskScript, **fields: Any) -> Callable[[Plan], Plan]:
    """Return a function that edits a plan: it has one task with one subtask, whose outcomes follow the given scripts.
    *fields* are those of the subtask."""

    def edit(plan: Plan) -> Plan:
        one = {"id": PART, "agent": WORKER, "prompt": prompt_of(PART), **fields}
        acceptance = ({"command": (CHECK, "w0t0")},) if script.checks != (True,) else ()
        given = {"id": "w0t0", "agent": WORKER, "prompt": prompt_of("w0t0"), "max_retries": 1, "acceptance": acceptance}
        tasks = (TaskConfig.model_validate({**given, "subtasks": (one,)}),)
        return plan.model_copy(update={"tasks": tasks, "workers": {}, "approve_plan": False, "validation": ()})

    return edit


class ScriptedHost(RaceHost):
    """Host that adds *scripts* to those of the world when the plan is drawn."""

    scripts: tuple[TaskScript, ...] = ()

    def make_plan(self, customer: LoadGenerator) -> Plan:
        plan = super().make_plan(customer)
        for script in self.scripts:
            self.world.task_scripts.add(script)
        return plan


class RequeueCancelled(Intruder):
    """Intruder that cancels the task when its subtask is worked on, and requeues the subtask so many steps *after*
    that."""

    is_cancelled = is_taken = False

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after
        self.parts: list[str] = []
        """States of the subtask from the cancellation on."""

    def step(self) -> None:
        part = self.state(f"r1#{PART}")
        if not part or (part != "IN_PROGRESS" and not self.is_cancelled):
            return
        if not self.parts or self.parts[-1] != part:
            self.parts.append(part)
        if not self.is_cancelled:
            self.is_cancelled = True
            self.command(Verb.CANCEL)
        self._left -= 1
        if self._left < 0 and not self.is_taken:
            self.is_taken = True
            self.command(Verb.REQUEUE, PART)


def test_a_requeue_of_a_task_whose_parent_is_cancelled_is_answered_at_once() -> None:
    """A subtask that is requeued when its parent is cancelled becomes open only if the command comes before its own
    cancellation; otherwise it stays cancelled. The rollback of the agent's work takes time in between."""
    drawn, ways = scenario(FIFO, SHORT).draw(1), set[tuple[str, ...]]()
    for after in range(0, 120, 6):
        whole, part = TaskScript("w0t0"), TaskScript(PART, (Try.HANGS,))
        host = type("Host", (ScriptedHost,), {"scripts": (whole, part)})
        edit = whole_of_one_part(whole, part, rollback=True, files=FILES[:1])

        def keeps(plan: Plan, edit: Callable[[Plan], Plan] = edit) -> Plan:
            kept = plan.task_lifecycle.model_copy(update={"cleanup_on_cancel": False})
            return edit(plan).model_copy(update={"task_lifecycle": kept})

        race(drawn, operator := RequeueCancelled(after), keeps, host=host)
        ways.add(tuple(operator.parts))
    assert ways == {("IN_PROGRESS", "OPEN", "CANCELLED"), ("IN_PROGRESS", "CANCELLED")}  # in time, and too late


# ----------------------------------------------------------------------------------------- compaction
COMPACTION = {"turn: VERIFYING compact_needed RUNNING", "turn: COMPACTING verify_requested RUNNING"}
AGENTS = "[agents]\nacp = 1.0\ncommand = 0.0\ninprocess = 0.0\n"
SHAPE = "[agents.shape]\ntools = [0, 1]\ndelegation = 0.0\npermission = 0.0"


def compacting(seed: int, kinds: str = "", rates: str = "", world: str = "") -> Report:
    """Run a scenario whose agents compact their context just after they have reported that they are done."""
    rates = f'[faults.rates]\n"agent.compacts" = 0.6\n{rates}'
    load, kinds = "turns = 3\nplans = 0.0", f'"agent.compacts"{kinds}'
    report = simulate(
        scenario("grain_s = 0.0", world, AGENTS, SHAPE, rates, load=load, kinds=kinds, customers=2).draw(seed)
    )
    assert report.problems == ()
    return report


def test_a_turn_whose_agent_compacts_late_is_verified_after_that() -> None:
    """A turn whose agent compacts late is verified after the compaction, by both transitions of the specification, and
    no prompt remains without a result."""
    reports = [compacting(seed) for seed in range(8)]
    assert set.union(*(set(one.reached) for one in reports)) >= COMPACTION
    assert all(one.tally.unanswered == 0 for one in reports)


def test_a_turn_that_was_compacting_when_its_supervisor_was_killed_is_verified() -> None:
    """A turn that was compacting when its supervisor was killed is verified by the next supervisor, since the agent no
    longer exists."""
    rates, world = '"machine.crash_then" = 0.8', 'crashes_at = ["turn COMPACTING"]'
    reports = [compacting(seed, ', "machine.crash_then"', rates, world) for seed in range(8)]
    killed = [one for one in reports if one.faults["machine.crash_then"]]
    assert set.union(*(set(one.reached) for one in killed)) >= COMPACTION


# ---------------------------------------------------------------------------------------------- plans that are given up
def given_up(seed: int, kinds: str = "", rates: str = "", settings: str = "", *edits: Callable[[Plan], Plan]) -> Report:
    """Run a plan that its customer gives up while agents work on its tasks."""
    rates = f'[faults.rates]\n"host.gives_up" = 1.0\n{rates}'
    load, world = "works = 1.0\ntasks = [3, 6]", 'schedules = ["shuffle", "window", "pct", "trio"]'
    drawn = scenario(world, rates, settings, load=load, kinds=f'"host.gives_up"{kinds}').draw(seed)
    return race(drawn, None, *edits)


@pytest.mark.parametrize("seed", range(24))
def test_a_worker_of_a_plan_that_is_given_up_lets_go_of_no_job_that_runs(seed: int) -> None:
    """When a plan is given up, the record that a worker holds nothing comes after the end of every job that it held."""
    assert given_up(seed).faults == {"host.gives_up": 1}


def test_nothing_is_rolled_back_that_goes_on_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is down, no work is rolled back whose attempt is under way on record, since a supervisor that
    starts from that disk would continue the attempt."""
    check, rolled_back = CheckpointChecker.check_rollback, list[str]()

    def note(checker: CheckpointChecker, task: str) -> None:
        rolled_back.append(task)
        check(checker, task)

    def own_files(plan: Plan) -> Plan:
        tasks = [one.model_copy(update={"files": (one.id,), "rollback": True, "subtasks": ()}) for one in plan.tasks]
        return plan.model_copy(update={"tasks": tuple(tasks), "approve_plan": False})

    monkeypatch.setattr(CheckpointChecker, "check_rollback", note)
    for seed in range(16):
        given_up(seed, ', "disk.locked"', '"disk.locked" = 0.05', '[settings]\nworkspace = "directory"', own_files)
    assert rolled_back
