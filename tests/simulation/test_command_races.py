"""Tests of races between commands about a task (split, block, reset, requeue, give up, message) and events of that
task.

Each test names the moment of the command. All checkers of tests/verification check every run; the asserts here check
that the moment occurred, and its required consequence.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Verb
from supervisor.plans import Plan, TaskConfig
from supervisor.ports import JournalError
from supervisor.runtime.entity import NoSuchEntity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.handle import Session
from supervisor.simulation import running
from supervisor.simulation.host import LoadGenerator
from supervisor.simulation.plan_workload.operator_bot import OperatorBot
from supervisor.simulation.plan_workload.plans import CHECK, FILES, ROLES, WORKER
from supervisor.simulation.plan_workload.task_scripts import TaskScript, Try, prompt_of
from supervisor.simulation.running import Report
from supervisor.work.workers import WorkerPool
from tests.simulation.races import Intruder, RaceHost, lifecycle, plain_tasks, race, scenario
from tests.verification.checkers import simulate
from tests.verification.checkers.checkpoints import CheckpointChecker

FIFO = 'schedules = ["fifo"]'
SHORT = "commit_s = 0.01"
PART = "w0t0s0"
TIMED_OUT = "task: WAITING_FOR_SUBTASKS subtask_timed_out BLOCKED"


# ------------------------------------------------------------------------------------------------------ splits
class SplitAfterFailure(Intruder):
    """Intruder that splits the task so many steps *after* the turn of the task's agent has failed."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left, self.is_split = after, False
        self.task = ""

    def step(self) -> None:
        if self.state("w0t0:t1") in ("FAILED", "REAPED") and "task:w0t0" in self.rows:
            self.task = self.states()[2]
            self._left -= 1
            if self._left < 0 and not self.is_split:
                self.is_split = True
                self.command(Verb.SPLIT)


def test_a_task_that_is_split_as_it_fails_waits_for_its_subtasks_or_has_failed() -> None:
    """A task that is split at any step of the end of its failed attempt either waits for its subtasks and is closed, or
    has failed; its plan goes on."""
    once = lifecycle(max_attempts=1, circuit_breaker={"enabled": False, "probes_max": 0})
    drawn, ended = scenario(FIFO, SHORT).draw(4), set[str]()
    for after in range(60):
        race(
            drawn, splitter := SplitAfterFailure(after), once, plain_tasks(max_retries=0), ways={"*": (Try.PERMANENT,)}
        )
        assert splitter.is_split, f"after {after} steps"
        ended.add(splitter.task)
    assert ended >= {"CLOSED", "FAILED"}


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
            self.host.start(partial(self.host.sup.core.close_session, "w0t0", reason="test", cause=Cause(actor="test")))
        if self.is_closed and job in ("queued", "running"):
            self._left -= 1
            if self._left < 0 and not self.is_split:
                self.is_split = True
                self.command(Verb.SPLIT)


def test_a_session_that_works_on_a_task_holds_it_on_record() -> None:
    """A task is split at any step between the end of one session and the start of the next: a session that works on the
    task always holds it on record."""
    thrice = lifecycle(max_attempts=3, base_retry_delay=0.5, circuit_breaker={"enabled": False, "probes_max": 0})
    drawn, sessions = scenario(FIFO, SHORT).draw(4), set[int]()
    for after in range(40):
        splitter = SplitBetweenSessions(after)
        race(drawn, splitter, thrice, plain_tasks(max_retries=0), ways={"*": (Try.BUSY, Try.DONE)})
        assert splitter.is_split, f"after {after} steps"
        sessions.add(splitter.sessions)
    assert sessions == {1, 2}  # it was split before there was another one, and after


class SplitCooling(Intruder):
    """Intruder that splits the task while its circuit is open, and records the states of the subtasks when the task is
    done."""

    is_split = False

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[str, ...]] = []

    def step(self) -> None:
        run, job, task = self.states()
        if not self.is_split and (run, job) == ("CIRCUIT_OPEN", "running"):
            self.is_split = True
            self.command(Verb.SPLIT)
        elif task == "DONE" and "task:w0t0s7" in self.rows and not self.parts:
            self.parts.append(tuple(self.state(f"task:w0t0s{part}") for part in (7, 8)))


def test_a_task_that_is_split_while_it_cools_down_waits_for_its_subtasks() -> None:
    """A task that is split while its circuit is open is done only after its subtasks are closed, also if the cool-down
    is over before."""
    drawn, split, once = scenario(FIFO), 0, lifecycle(max_attempts=1)
    for seed in range(12):
        ways = {"w0t0": (Try.HANGS, Try.DONE)}
        race(drawn.draw(seed), splitter := SplitCooling(), once, plain_tasks(timeout_s=30.0), ways=ways)
        assert splitter.parts in ([], [("CLOSED", "CLOSED")]), f"seed {seed}"
        split += len(splitter.parts)
    assert split >= 3


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
COOLDOWN_S = 60.0


class NeverUnblocks(OperatorBot):
    async def unblock(self, name: str) -> None:
        """Ignore the request to unblock a task, so that the task stays blocked."""


class Unattended(RaceHost):
    bot_class = NeverUnblocks


class SplitDelayed(Intruder):
    """Intruder that splits off a subtask when the task's circuit is open; the subtask hangs for longer than the
    cool-down."""

    is_split = False

    def step(self) -> None:
        if not self.is_split and self.states()[:2] == ("CIRCUIT_OPEN", "retrying"):
            self.is_split = True
            self.host.start(self._split)

    async def _split(self) -> None:
        bot = self.host.operator_bots[-1]
        part = bot.part("w0t0s7")
        bot.task_script("w0t0s7").ways = (Try.HANGS, Try.DONE)
        with suppress(Refused):  # the task was split by its plan
            await bot.control.split("w0t0", [part], by="operator")


def test_a_delay_that_ends_while_its_task_is_blocked_is_served_after_that() -> None:
    """A task whose delay ended while the task was blocked goes on when its subtask is closed."""
    circuit = {"enabled": True, "cooldown_period": COOLDOWN_S, "max_error_repeats": 0, "probes_max": 2}
    slow = lifecycle(max_attempts=3, default_timeout=2 * COOLDOWN_S, circuit_breaker=circuit)
    blocked = 0
    for seed in range(12):
        edits = slow, plain_tasks(timeout_s=COOLDOWN_S - 15.0)
        ways = {"*": (Try.HANGS, Try.DONE)}
        report = race(scenario().draw(seed), SplitDelayed(), *edits, ways=ways, host=Unattended)
        blocked += report.reached.get(TIMED_OUT, 0)
    assert blocked >= 3


class SplitAndKill(Intruder):
    """Intruder that splits the task while an agent works on the task, kills the supervisor shortly before the subtask
    times out, and gives the workers of the next supervisor no slot for a second."""

    TIMEOUT_S = 45.0
    DOWN_S = 10.0
    split_s: float | None = None
    free_s: float | None = None
    is_busy = False

    def step(self) -> None:
        now_s = self.world.now()
        if self.world.lives == 1 and self.split_s is None and self.states()[2] == "IN_PROGRESS":
            self.split_s = now_s
            self.command(Verb.SPLIT)
        elif self.world.lives == 1 and self.split_s is not None and now_s > self.split_s + self.TIMEOUT_S - 5.0:
            self.is_busy = True
            self.kill()
        elif self.world.lives == 2 and self.is_busy and len(self.host.operator_bots) == 2:
            runner = self.host.operator_bots[1].runner
            if runner.begun.is_set():
                self.free_s = self.free_s or now_s + 1.0
                if now_s > self.free_s:
                    self.is_busy = False
                    runner.plan_run.wake()


def test_a_task_that_is_blocked_at_a_take_over_has_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a takeover, the task's turn, which no worker has taken over yet, is completed before the time-out of the
    subtask blocks the task."""
    monkeypatch.setattr(running, "RESTART_S", SplitAndKill.DOWN_S)
    free, blocked = WorkerPool.free, 0
    for seed in range(8):
        splitter = SplitAndKill()
        monkeypatch.setattr(WorkerPool, "free", lambda pool, at=splitter: [] if at.is_busy else free(pool))
        edit = plain_tasks(timeout_s=splitter.TIMEOUT_S)
        drawn = scenario('[settings]\nrecovery = { sessions = "restart" }').draw(seed)
        blocked += race(drawn, splitter, edit, ways={"*": (Try.HANGS, Try.DONE)}).reached.get(TIMED_OUT, 0)
    assert blocked >= 3


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
        part = self.state(f"task:{PART}")
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


class TakeClaimed(Intruder):
    """Intruder that waits for the lock of the task before the task's worker does, and takes the task away when the
    worker has claimed it."""

    waits = has_taken = False

    def step(self) -> None:
        is_known = "job:w0t0" in self.rows and not self.waits
        if is_known and self.host.operator_bots[-1].runner.plan_run.executions["w0t0"].lock.locked():
            self.waits = True
            self.host.start(self._take)

    async def _take(self) -> None:
        runner = self.host.operator_bots[-1].runner
        execution, backlog = runner.plan_run.executions["w0t0"], runner.plan_run.backlog
        async with execution.lock:
            await anyio.sleep(1.0)
            if backlog.holder("w0t0") is not None and execution.active is None:
                self.has_taken = True
                await runner.scheduler.attempt_runner.take(execution, "somebody else is to have it")


def test_the_slot_of_a_task_that_is_taken_before_it_began_is_free() -> None:
    """The slot of a task that is taken away before its attempt began becomes free, also if it was the only slot and no
    other event wakes the claims."""
    taken = 0
    for seed in range(16, 28):
        report = race(scenario().draw(seed), taker := TakeClaimed())
        taken += taker.has_taken
        given = sum(
            one for name, one in report.reached.items() if name.startswith("worker: ") and " task_assigned " in name
        )
        assert given >= report.reached["job: queued worker_started running"], f"seed {seed}"
    assert taken >= 3


# ----------------------------------------------------------------------------------------- messages and compaction
class MessageDone(Intruder):
    """Intruder that sends a message to the session of each task as soon as the task is done."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at, self._sent, self.delivered = at, set[str](), 0

    def step(self) -> None:
        for name in self.world.board.waiting(Task.DONE.value, ("w0t0", "w0t1", "w0t2")):
            if name not in self._sent:
                self._sent.add(name)
                self.host.start(self._send, self.host.sup.session(name))

    async def _send(self, session: Session) -> None:
        with suppress(NoSuchEntity, Refused, JournalError):
            await session.send("one more thing", urgent=True, at=self._at, sender="operator")
            self.delivered += 1


@pytest.mark.parametrize("at", ["now", "turn_end"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_message_opens_no_turn_once_its_task_is_closed(seed: int, at: str) -> None:
    """A message to a session whose task is done is delivered without a violation: a turn may begin only until the task
    is closed."""
    drawn = scenario("commit_s = [0.01, 0.5]", load="works = 1.0\ntasks = [1, 3]", kinds='"disk.slow"').draw(seed)
    race(drawn, operator := MessageDone(at))
    assert operator.delivered


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
