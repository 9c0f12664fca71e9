"""Tests of races around a takeover: a supervisor is killed at a chosen moment, and the next one continues from the
journal.

Each test names the moment of the kill. All checkers of tests/verification check every run; the asserts here check that
the moment occurred, and its required consequence.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import anyio
import msgspec
import pytest

from supervisor.host.handle import Session
from supervisor.lifecycles.types import AbortScope, Verb
from supervisor.plans import Plan, TaskConfig
from supervisor.ports import JournalError
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.engine import Schedule
from supervisor.simulation.host import LoadGenerator
from supervisor.simulation.journal import SupervisorKilled
from supervisor.simulation.plan_workload.plans import WORKER
from supervisor.simulation.plan_workload.task_scripts import Try, prompt_of
from supervisor.simulation.running import Report
from supervisor.simulation.scenario import Scenario
from supervisor.simulation.world import World
from supervisor.work.results import PlanResult
from tests.simulation.command_table import Row, check_effect, effective_cells
from tests.simulation.races import Intruder, RaceHost, lifecycle, plain_tasks, race, scenario
from tests.simulation.task_phases import DELAY_S, PHASES, WORK_S, play

FIFO = 'schedules = ["fifo"]'
RESTART = '[settings.recovery]\nsessions = "restart"'
ACP = "[agents]\nacp = 1.0\ncommand = 0.0\ninprocess = 0.0"


# ------------------------------------------------------------------------------------- every commit of a take-over
class KillTwice(Intruder):
    """Intruder that kills the first supervisor when an agent works on a task, and the second supervisor at its commit
    number *at*."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at, self._commits = at, 0

    def __call__(self, number: int, world: World, host: RaceHost) -> None:  # type: ignore[override]
        if world.killed.is_set():
            self._commits = world.disk.commits
        super().__call__(number, world, host)

    def step(self) -> None:
        if self.kills == 0:
            if self.is_first_moment():
                self.kill()
        elif self.kills == 1 and self.world.lives == 2 and self.world.disk.commits - self._commits >= self._at:
            self.kill()

    def is_first_moment(self) -> bool:
        return any(row.kind == "task" and row.state == "IN_PROGRESS" for row in self.rows.values())


class KillTwiceInSecondRun(KillTwice):
    """Intruder like ``KillTwice``; the first kill is when the second task run tries the task, and the first task run
    has ended with an open circuit."""

    def is_first_moment(self) -> bool:
        return "r1#w0t0:run-2" in self.rows and super().is_first_moment()


COMMITS = 24
"""Number of commits of the second supervisor at which a kill is tried: the takeover of one orphan takes a dozen."""


def take_over(sessions: str, orphans: str, kinds: str = "", rates: str = "") -> Scenario:
    recovery = f'[settings.recovery]\nsessions = "{sessions}"\norphans = "{orphans}"'
    return scenario("grain_s = 0.0", FIFO, recovery, rates, kinds=kinds)


@pytest.mark.parametrize(
    ("sessions", "orphans"),
    [("resume", "open"), ("resume", "failed"), ("resume", "done"), ("restart", "open"), ("stop", "open")],
)
def test_a_take_over_that_is_killed_at_any_commit_is_taken_over(sessions: str, orphans: str) -> None:
    """A takeover that is killed at any of its commits is continued by the third supervisor, from the records so far,
    without a violation."""
    drawn, kills = take_over(sessions, orphans).draw(1), 0
    for at in range(1, COMMITS):
        race(drawn, killer := KillTwice(at))
        kills += killer.kills
    assert kills >= 2 * 12


class KillWhenOneIsClosed(Intruder):
    """Intruder that kills the first supervisor when one task is closed and another one is in progress."""

    def step(self) -> None:
        states = {row.state for row in self.rows.values() if row.kind == "task"}
        if self.world.lives == 1 and states >= {"CLOSED", "IN_PROGRESS"}:
            self.kill()


def test_stopped_sessions_leave_closed_tasks_closed() -> None:
    """With ``sessions = "stop"``, the next supervisor goes on with the plan of the first one: no workstream is born
    again, so no closed task is done again."""
    drawn = scenario(FIFO, '[settings.recovery]\nsessions = "stop"', load="works = 1.0\ntasks = 3")
    kills, lines = 0, list[str]()
    for seed in range(6):
        race(drawn.draw(seed), killer := KillWhenOneIsClosed(), plain_tasks(), on_line=lines.append)
        kills += killer.kills
    assert kills >= 5
    born = [line for line in lines if '"entity_type":"workstream"' in line and '"event":"Born"' in line]
    assert len(born) == 6


def test_an_earlier_run_that_rests_is_not_taken_for_the_last_one() -> None:
    """With ``orphans = "failed"``, a task is failed by its last task run, and not by an earlier one, also if its
    supervisors are killed at any commit of the last one."""
    text = '[faults.rates]\n"work.rejected" = 1.0'
    drawn, kills = take_over("resume", "failed", '"work.rejected"', text).draw(7), 0  # its task may be tried twice
    for at in range(1, COMMITS):
        race(drawn, killer := KillTwiceInSecondRun(at))
        kills += killer.kills
    assert kills >= 2 * 12


def test_a_take_over_can_be_given_up_at_any_commit() -> None:
    """If the customer gives the plan up at any commit of a takeover, no entity of the plan remains open, and all
    sessions end as stopped."""
    drawn = take_over("resume", "open").draw(1)
    for at in range(COMMITS):

        class GivesUp(RaceHost):
            def patience_s(self, customer: LoadGenerator, at: int = at) -> float | None:
                return (at + 0.5) * drawn.commit_s if self.world.lives > 1 else None

        assert race(drawn, KillTwice(1_000_000), host=GivesUp).ended.keys() <= {"Stopped"}


class ClosesFirst(RaceHost):
    """Host that stops the second supervisor before the customer returns to continue the plan."""

    async def return_late(self, customer: LoadGenerator) -> None:
        if self.world.lives == 2:
            self.world.request_stop(now=False)
            await self.sup.stop()


@pytest.mark.parametrize("seed", [1, 5])
def test_a_supervisor_that_ends_an_unclaimed_plan_can_be_killed_at_any_commit(seed: int) -> None:
    """A supervisor that ends a plan which nobody continued is killed at any commit: the third supervisor continues the
    whole plan, or runs it anew; no part of the plan is lost."""
    drawn, kills = scenario(FIFO, load="works = 1.0\ntasks = 3").draw(seed), 0
    for at in range(1, 30):
        race(drawn, killer := KillTwice(at), host=ClosesFirst)
        kills += killer.kills - 1
    assert kills >= 6


# ------------------------------------------------------------------------------------------------ what a task waits for
class KillWhileWaiting(Intruder):
    """Intruder that kills the first supervisor when the job of the task is in the state *job*; if the job is not
    running, the intruder closes the session first."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job, self._closed = job, False

    def step(self) -> None:
        if self.world.lives > 1 or self.states()[1:] != (self._job, "IN_PROGRESS"):
            return
        if self._job == "running" or self.state("w0t0") == "Stopped":
            self.kill()
        elif not self._closed:
            self._closed = True
            # Not by the host: a host that closes the session of a task cancels the task.
            self.host.start(
                partial(self.host.sup.core.aborts.close_session, "w0t0", reason="test", cause=Cause(actor="test"))
            )


REQUEUED, RECOVERED = "task: ORPHANED requeued OPEN", "task: ORPHANED recovered DONE"


@pytest.mark.parametrize(
    ("job", "reached", "never"), [("retrying", REQUEUED, RECOVERED), ("running", RECOVERED, REQUEUED)]
)
def test_only_an_attempt_under_way_counts_as_done(job: str, reached: str, never: str) -> None:
    """With ``orphans = "done"``, only a task whose attempt was under way counts as done after a kill; a task whose last
    attempt had failed is tried again."""
    drawn, tried = scenario(FIFO, '[settings.recovery]\norphans = "done"'), 0
    for seed in range(12):
        ways = {"*": (Try.BUSY, Try.DONE)}
        report = race(
            drawn.draw(seed), killer := KillWhileWaiting(job), slow_retries(3), plain_tasks(max_retries=2), ways=ways
        )
        tried += killer.kills * report.reached.get(reached, 0)
        assert not killer.kills * report.reached.get(never, 0), f"seed {seed}"
    assert tried >= 3


class KillCancelling(Intruder):
    """Intruder that kills the first supervisor *at* commits after its workstream has failed, if the second task is
    still in progress."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at, self._failed_at = at, -1

    def step(self) -> None:
        commits = self.world.disk.commits
        if self.state("r1") == "failed":
            self._failed_at = commits if self._failed_at < 0 else self._failed_at
            is_open = self.state("r1#w0t1") == "IN_PROGRESS"
            if self.world.lives == 1 and commits - self._failed_at >= self._at and is_open:
                self.kill()


def one_critical(plan: Plan) -> Plan:
    """Edit a plan: it has two independent tasks, and the first one is critical."""
    names = ("w0t0", "w0t1")
    tasks = [
        TaskConfig(id=one, agent=WORKER, prompt=prompt_of(one), max_retries=0, critical=one == "w0t0") for one in names
    ]
    return plan.model_copy(update={"tasks": tuple(tasks), "workers": {}, "max_sessions": 2, "approve_plan": False})


def test_no_session_works_beside_the_next_run_of_a_failed_plan() -> None:
    """A supervisor is killed while it cancels the other tasks of a plan whose critical task has failed: their sessions
    end, and none works beside the next run of the plan."""
    drawn, kills = scenario(FIFO, RESTART, load="works = 1.0\ntasks = 2").draw(1), 0
    for at in range(6):
        ways = {"w0t0": (Try.PERMANENT, Try.DONE), "*": (Try.HANGS, Try.DONE)}
        race(drawn, killer := KillCancelling(at), one_critical, ways=ways)
        kills += killer.kills
    assert kills >= 2


# ------------------------------------------------------------------------------------- commands during a take-over
class StopAtTakeOver(Intruder):
    """Intruder that kills the supervisor when a worker has taken the task to probe its circuit, and stops the next
    supervisor at its takeover."""

    is_stopped = False

    def step(self) -> None:
        run, job, task = self.states()
        if self.world.stop_requested or not run:
            return
        if self.world.lives == 1 and (run, job) == ("HALF_OPEN", "running") and task != "OPEN":
            self.kill()
        elif self.world.lives == 2 and job == "running" and self.is_taken_over():
            self.is_stopped = True
            self.world.request_stop(now=False)
            self.host.start(self.host.sup.stop)


def test_a_run_that_was_not_begun_is_over_when_its_supervisor_stops() -> None:
    """A supervisor that is stopped after it took a plan over, and before it tries the task, cancels the task run on
    record."""
    drawn, ended = scenario("commit_s = 0.1", '[settings.recovery]\nsessions = "resume"'), 0
    for seed in range(20):
        edits = lifecycle(max_attempts=1), plain_tasks(timeout_s=30.0)
        report = race(drawn.draw(seed), intruder := StopAtTakeOver(), *edits, ways={"*": (Try.HANGS,)})
        ended += intruder.is_stopped and bool(report.reached.get("run: HALF_OPEN cancelled CANCELLED"))
    assert ended >= 5


def slow_retries(attempts: int) -> Callable[[Plan], Plan]:
    """Return a function that edits a plan: retries and probes wait for a minute."""

    def edit(plan: Plan) -> Plan:
        circuit = plan.task_lifecycle.circuit_breaker.model_copy(update={"cooldown_period": 60.0, "probes_max": 2})
        slow = {"base_retry_delay": 60.0, "max_retry_delay": 60.0, "max_attempts": attempts, "circuit_breaker": circuit}
        return plan.model_copy(update={"task_lifecycle": plan.task_lifecycle.model_copy(update=slow)})

    return edit


class KillApproved(Intruder):
    """Intruder that kills the supervisor when an approval is on record, and the approved work is not merged."""

    def step(self) -> None:
        row = self.rows.get("r1#w0t0")
        if row is not None and self.world.lives == 1 and msgspec.json.decode(row.data).get("approved_by"):
            self.kill()


def test_an_approval_is_given_once() -> None:
    """An approval that is on record when the supervisor is killed is not asked for again: the next supervisor merges
    the work."""
    approved = lifecycle(max_attempts=1), plain_tasks(approval="after", max_retries=0)
    report = race(scenario(FIFO, "commit_s = 0.01").draw(4), killer := KillApproved(), *approved)
    assert killer.kills == 1
    assert report.reached["task: PENDING_APPROVAL approval_given PENDING_APPROVAL"] == 1
    assert report.reached["task: PENDING_APPROVAL approval_granted CLOSED"] == 1


TASK_COMMANDS = ("approve", "reject", "cancel", "retry", "requeue", "unclaim", "block", "unblock", "split")


@pytest.mark.parametrize(("command", "phase", "row"), effective_cells(TASK_COMMANDS))
def test_a_command_that_was_answered_survives_a_kill(command: str, phase: str, row: Row) -> None:
    """A command about a task whose supervisor is killed just after the answer has the same effect as without the
    kill."""
    seen = play(PHASES[phase], [command], kill="after")
    assert seen.answers == {command: row.answer}
    check_effect(seen, row, phase)
    if command == "retry" and phase != "blocked":
        assert seen.lasted_s < DELAY_S + WORK_S, "the wait was not ended"


@pytest.mark.parametrize(("command", "phase", "row"), effective_cells((*TASK_COMMANDS, "abort_session")))
def test_a_command_at_a_take_over_has_its_answer_and_its_effect(command: str, phase: str, row: Row) -> None:
    """A command that is given to the next supervisor as soon as it runs has the same answer and effect as it would have
    had before the kill. A task that is taken from its session in a delay waits for the whole delay."""
    seen = play(PHASES[phase], [command], kill="before")
    assert seen.answers == {command: row.answer}
    check_effect(seen, row, phase)
    if command in ("requeue", "block") and phase in ("delay", "cooling"):
        assert seen.lasted_s > DELAY_S


@pytest.mark.parametrize("phase", ["turn", "delay", "cooling"])
def test_a_task_that_is_requeued_and_split_at_a_take_over_waits_for_its_subtasks(phase: str) -> None:
    """Two commands at once are carried out in their order: a task that is requeued at a takeover can be split then."""
    seen = play(PHASES[phase], ["requeue", "split"], kill="before")
    assert seen.answers == {"requeue": "OPEN", "split": "WAITING_FOR_SUBTASKS"}
    assert seen.then == "OPEN WAITING_FOR_SUBTASKS DONE CLOSED"


def test_a_task_with_a_late_subtask_is_blocked_once_after_its_own_turn_has_a_worker() -> None:
    """After a takeover, a subtask is late while no worker has a slot for the task's own turn: the task is blocked when
    a worker has taken that turn, and is blocked once."""
    phase = PHASES["turn"]._replace(
        begins="r1#w0t0 split", before="split", task={"timeout_s": 30.0}, plan={"max_sessions": 3}, other=1
    )
    seen = play(phase, [], kill="before", plan_after={"max_sessions": 1})
    assert seen.then == "BLOCKED OPEN WAITING_FOR_SUBTASKS DONE CLOSED"


# ---------------------------------------------------------------------------------------------- sessions and turns
class Asker(Intruder):
    """Intruder that prompts the session of the task as soon as the session exists, before the session holds the task on
    record."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.outcomes: list[str] = []

    def step(self) -> None:
        if not self.asked and "w0t0" in self.host.targets(AbortScope.SESSION):
            self.asked += self.world.board.waiting("OPEN", ("w0t0",))
            self.ask()

    def ask(self) -> None:
        self.host.start(self._ask, self.host.sup.session("w0t0"))

    async def _ask(self, session: Session) -> None:
        with suppress(JournalError):  # of a supervisor that was killed
            self.outcomes.append((await session.run("what is this about?")).outcome)

    def is_asked(self) -> bool:
        return "w0t0" in self.rows and b"what is this about?" in self.rows["w0t0"].data


class KillAsked(Asker):
    """Intruder like ``Asker`` that then kills the supervisor when the prompt is on record and the claim of the task is
    not."""

    def step(self) -> None:
        super().step()
        if self.world.lives == 1 and self.is_asked():
            assert self.world.board.waiting("OPEN", ("w0t0",))
            self.kill()


def asked(intruder: Asker, schedule: str = "fifo", commit_s: float = 0.0005, host: type[RaceHost] = RaceHost) -> Report:
    drawn = scenario(f"commit_s = {commit_s}").draw(2)
    return race(msgspec.structs.replace(drawn, schedule=Schedule(schedule)), intruder, host=host)


@pytest.mark.parametrize("schedule", ["fifo", "shuffle", "pct"])
@pytest.mark.parametrize("commit_s", [0.0005, 3.0])
def test_a_prompt_of_an_operator_is_no_work_on_the_task(schedule: str, commit_s: float) -> None:
    """An operator's prompt to the session of a task returns its own result; the task is tried only once the session
    holds it."""
    report = asked(asker := Asker(), schedule, commit_s)
    assert (asker.asked, asker.outcomes) == (["w0t0"], ["completed"])
    assert report.reached["turn: VERIFYING task_completed COMPLETING"] >= 2
    assert report.reached["task: DONE closed CLOSED"] >= 1


class ReturnsLate(RaceHost):
    async def return_late(self, customer: LoadGenerator) -> None:
        await anyio.sleep(120.0 * (self.world.lives > 1))


def test_a_prompt_of_an_operator_goes_on_without_the_plan() -> None:
    """If the supervisor is killed before the claim of the task is on record, an operator's prompt to the session still
    completes, and nobody holds the task until its plan is resumed."""
    report = asked(KillAsked(), host=ReturnsLate)
    assert report.lives > 2
    assert report.reached["task: DONE closed CLOSED"] == 1


class KillTaken(Intruder):
    """Intruder that takes the task from its session at work by the command *verb*, kills the supervisor when that is on
    record, and looks for agents of the session under the next supervisor."""

    def __init__(self, verb: Verb) -> None:
        super().__init__()
        self._verb, self._is_commanded = verb, False
        self.agents: set[str] = set()
        """Agents that the session had until the plan was taken over."""

    def step(self) -> None:
        if self.world.lives > 1:
            if self.kills and not self.is_taken_over():
                rows = self.rows.values()
                self.agents |= {row.id for row in rows if row.kind == "agent" and row.parent_id == "w0t0"}
        elif not self._is_commanded and self.state("r1#w0t0") == "IN_PROGRESS":
            self._is_commanded = True
            self.command(self._verb)
        elif self._is_commanded and self.state("r1#w0t0") != "IN_PROGRESS":
            self.kill()


@pytest.mark.parametrize("verb", [Verb.REQUEUE, Verb.BLOCK, Verb.CANCEL])
def test_a_session_that_lost_its_task_does_not_go_on(verb: Verb) -> None:
    """If the supervisor is killed after a task was taken from its session, and before the session has ended, the next
    supervisor does not resume the session, however late the plan is resumed."""
    drawn = scenario(FIFO, RESTART, load="works = 1.0\ntasks = 2").draw(2)
    race(drawn, killer := KillTaken(verb), plain_tasks(), host=ReturnsLate, ways={"*": (Try.BUSY, Try.DONE)})
    assert killer.kills == 1
    assert killer.agents == {"w0t0:a1"}


def test_a_task_that_was_cancelled_before_a_kill_keeps_its_reason() -> None:
    """The result of a task that was settled under an earlier supervisor has the reason of its end."""
    results = list[PlanResult]()

    class KeepsResults(RaceHost):
        async def execute_plan(self, customer: LoadGenerator, plan: Plan) -> PlanResult:
            results.append(await super().execute_plan(customer, plan))
            return results[-1]

    drawn = scenario(FIFO, RESTART, load="works = 1.0\ntasks = 2").draw(2)
    race(drawn, killer := KillTaken(Verb.CANCEL), plain_tasks(), host=KeepsResults, ways={"*": (Try.BUSY, Try.DONE)})
    assert killer.kills == 1
    (error,) = [one.error for one in results[-1].tasks.values() if one.id == "w0t0"]
    assert "on second thoughts (settled before the supervisor of this run ended)" in error


class KillCooled(Asker):
    """Intruder that prompts a session whose cool-down is over, and kills the supervisor when the prompt is on record;
    if *late*, when the record shows that the session continues with the prompt."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self._late = late

    def step(self) -> None:
        if self.world.lives > 1 or self.state("w0t0") != "CoolingDown":
            return
        cooled = b'"cooled":true' in self.rows["w0t0"].data
        if cooled and not self.asked:
            self.asked.append("w0t0")
            self.ask()
        if self.is_asked() and cooled is not self._late:
            self.kill()


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("late", [False, True])
def test_a_session_that_has_cooled_down_cools_down_once(seed: int, late: bool) -> None:
    """A prompt to a session whose cool-down is over waits for the clean-up of the failed turn; after a kill the
    cool-down, which is on record, is not repeated."""
    rates = '[faults.rates]\n"work.hangs" = 1.0\n"process.ignores_cancel" = 1.0\n[settings.limits]\nbackoff_base_ms = 1'
    more = ('schedules = ["fifo", "shuffle", "pct"]', rates, RESTART)
    report = race(
        scenario(*more, kinds='"work.hangs", "process.ignores_cancel"').draw(seed), killer := KillCooled(late=late)
    )
    assert killer.asked == ["w0t0"]
    assert report.lives > 2


COOLING = scenario(
    FIFO,
    ACP,
    RESTART,
    '[faults.rates]\n"agent.provider_error" = 1.0',
    load="turns = 2\nplans = 0.0",
    kinds='"agent.provider_error"',
)


class KillCooling(Intruder):
    """Intruder that kills the first supervisor while the session cools down, and then sets the wall clock forward by
    *jump_s*."""

    jumped = False

    def __init__(self, jump_s: float = 0.0) -> None:
        super().__init__()
        self._jump_s = jump_s
        self.since_s: list[float] = []
        """Time at which the session came into its state, according to each of the two supervisors."""

    def step(self) -> None:
        if self.world.lives == 2 and not self.jumped:
            self.jumped = True
            self.world.wall.offset_s += self._jump_s
        entity = self.host.sup.core.registry.entities.get("c0") if self.state("c0") == "CoolingDown" else None
        if entity is not None and len(self.since_s) < self.world.lives <= 2:
            self.since_s.append(entity.since_s)
            if self.world.lives == 1:
                self.kill()


def test_a_session_cools_down_since_it_failed() -> None:
    """The time of a session's failure is the same after a takeover, so that recent errors are counted as before."""
    race(COOLING.draw(1), killer := KillCooling())
    before_s, after_s = killer.since_s
    assert after_s == pytest.approx(before_s, abs=0.1)


def test_a_jump_of_the_wall_clock_during_a_start_is_no_breach() -> None:
    """A jump of the wall clock by 600 s, more than any backoff, while the next supervisor starts is no violation: the
    backoff ends at once."""
    race(COOLING.draw(1), killer := KillCooling(jump_s=600.0))
    assert killer.jumped


class KillClaiming(Intruder):
    """Intruder that kills the first supervisor when its first turn is claimed and has no agent yet."""

    def step(self) -> None:
        if not self.kills and any((row.kind, row.state) == ("turn", "CLAIMING") for row in self.rows.values()):
            self.kill()


def test_a_turn_that_was_claimed_before_a_kill_has_its_bounds() -> None:
    """A turn that was claimed before a kill runs under the next supervisor; when its agent requests the model in vain,
    the turn fails with that reason."""
    lines: list[str] = []
    rates = '[faults.rates]\n"agent.asks_in_vain" = 1.0'
    drawn = scenario(FIFO, ACP, rates, load="turns = 1", kinds='"agent.asks_in_vain"').draw(1)
    race(drawn, killer := KillClaiming(), on_line=lines.append)
    assert killer.kills == 1
    assert '"turn":"c0:t1"' in next(one for one in lines if '"ModelAskedInVain"' in one)
    failed = next(one for one in lines if '"entity_id":"c0:t1"' in one and '"to_status":"FAILED"' in one)
    assert "the agent asks its model in vain" in failed


class KillMany(Intruder):
    """Intruder that kills the first supervisor when six of its agents work."""

    def step(self) -> None:
        working = [row for row in self.world.disk.living.values() if (row.kind, row.state) == ("agent", "working")]
        if self.world.lives == 1 and len(working) >= 6:
            self.kill()


@pytest.mark.parametrize("commit_s", [5.0, 8.0])
def test_sessions_that_a_slow_take_over_stops_end_after_their_children(commit_s: float) -> None:
    """A slow takeover stops all sessions at once, so that each has its last record in time, and after its child
    sessions."""
    agents = "[agents]\ninprocess = 1.0\n[agents.shape]\nsteps = [3, 3]\ndelegation = 0.3"
    world, stop = (
        f'commit_s = {commit_s}\nschedules = ["fifo", "shuffle", "pct"]',
        '[settings.recovery]\nsessions = "stop"',
    )
    drawn = scenario(world, agents, stop, load="turns = 1\nplans = 0.0", customers=12)
    for seed in range(2):
        assert race(drawn.draw(seed), KillMany()).reached["session: Running FatalError Stopped"] >= 4


class CancelDuringTakeOver(Intruder):
    """Intruder that kills the first supervisor as a turn begins, and cancels the host of the second one *after* so many
    steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after
        self.states_then: set[str] = set()
        """States of the session in which its host was cancelled."""

    def step(self) -> None:
        if self.world.lives == 1 and self.state("c0:t1") == "CLAIMING":
            self.kill()
        elif self.world.lives == 2 and not self.states_then and "c0:t1" in self.rows:
            self._left -= 1
            if self._left < 0:
                self.states_then.add(self.state("c0"))
                self.world.cancel()


def test_a_host_that_is_cancelled_within_a_take_over_loses_no_answer() -> None:
    """If the host is cancelled during a takeover, before the actor of a session has received the end of its agent, the
    next supervisor delivers that end, and no result is lost."""
    agents = '[agents]\nacp = 0.0\ncommand = 1.0\ninprocess = 0.0\n[faults.rates]\n"process.fast_exit" = 1.0'
    load, world = "turns = 1\nplans = 0.0\narrival_s = 0.0", "commit_s = 0.05\ncrashes_max = 0"
    drawn = scenario(FIFO, world, agents, RESTART, load=load, kinds='"process.fast_exit"', customers=3).draw(1)
    states = set[str]()
    for after in range(180, 420, 4):  # each race takes 50 ms; ``sweep`` cancels at every step
        race(drawn, intruder := CancelDuringTakeOver(after))
        states |= intruder.states_then
    assert {"BuildingPrompt", "Spawning", "CoolingDown"} <= states


# -------------------------------------------------------------------------------------------- a dead host program
class DiesSlowly(RaceHost):
    """Host whose plan run takes two seconds to unwind after a kill: longer than until the next supervisor works."""

    async def execute_plan(self, customer: LoadGenerator, plan: Plan) -> PlanResult:
        killed = self.world.killed
        try:
            return await super().execute_plan(customer, plan)
        finally:
            if killed.is_set():
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(2.0)
                raise SupervisorKilled("it was killed long ago")


class KillAtWork(Intruder):
    """Intruder that kills the first supervisor when an agent works on a task, and checks that the customer's plan
    remains the same object after that."""

    plan: Plan | None = None
    is_kept = True

    def step(self) -> None:
        if not self.world.board.waiting("IN_PROGRESS", [f"w0t{number}" for number in range(3)]):
            return
        customer = self.host.customers[0]
        if self.plan is None:
            self.plan = customer.plan
            self.kill()
        else:
            self.is_kept &= customer.plan is self.plan


def test_what_a_dead_supervisor_returns_changes_nothing() -> None:
    """The next supervisor continues the plan, although the plan run of the killed one ends with an error meanwhile."""
    race(scenario(load="works = 1.0\ntasks = 3").draw(1), killer := KillAtWork(), host=DiesSlowly)
    assert killer.plan is not None
    assert killer.is_kept
