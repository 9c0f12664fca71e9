"""Tests in which the agent of a task is ended for silence and its supervisor is killed before the next attempt: the
task is tried again, and not cancelled by the end of its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from supervisor.host.api import Supervisor
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.task_run import ErrorCategory
from supervisor.plans.lifecycle import CircuitBreakerConfig, RetryBudgetConfig, TaskLifecycle
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.abort_request import MergeOutcome
from supervisor.policies.error_classification import Failure
from supervisor.ports import Append
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions import takeover
from supervisor.sessions.inprocess import AgentTurn
from supervisor.sessions.live_session import LiveSession
from supervisor.simulation.world import World
from supervisor.work import plugin_policies
from supervisor.work.plan_run import PlanRun
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.task_execution import TaskExecution
from tests.verification import claims
from tests.verification.claims import Bench, ClaimHost, Claims, simulate_claims


class Host(ClaimHost):
    """Host that kills supervisor number N at a record that has all words of *at* for N: words are the entity's id, the
    event, and the state after the event."""

    at: Mapping[int, str]
    wanted: OperatorStop | None
    """Other request to end the session, which is sent while the session ends."""
    tries: list[str]
    """States of the task runs, in the order of their records."""

    def __init__(self, world: World, *given: Any) -> None:
        super().__init__(world, *given)
        world.on_durable = self._look

    async def play(self, sup: Supervisor) -> None:
        self._sup = sup
        await super().play(sup)

    def _look(self, batch: Sequence[Append]) -> None:
        self.holders.wrote(batch)
        for record in (one.record for one in batch):
            if record.entity_type == "run" and record.from_status != record.to_status is not None:
                self.tries.append(str(record.to_status))
            if record.event == "OperatorStop" and record.abort_id is not None and self.wanted is not None:
                session = self._sup.core.registry.sessions[record.entity_id]
                session.request_stop(self.wanted, cause=Cause(None, None, "operator"))
            words = self.at.get(self._world.lives, "nothing").split()
            if {record.entity_id, record.event, record.to_status}.issuperset(words) and not self._world.killed.is_set():
                self._world.kill()


async def work(bench: Bench, turn: AgentTurn) -> str:
    """Agent that hangs in the first session of the task, and is done at once in later ones."""
    if turn.session_id == "t0":
        await anyio.sleep_forever()
    bench.finished.add("t0")
    return "done"


def planned(*names: str, max_retries: int) -> tuple[TaskConfig, ...]:
    return tuple(TaskConfig(id=one, agent=claims.AGENT, prompt=one, max_retries=max_retries) for one in names)


def killed(
    *at: str, wanted: OperatorStop | None = None, worked: Any = work, **changes: object
) -> tuple[Claims, list[str]]:
    """Run one task whose supervisors are killed at the records *at*; return the result and the states of the task
    runs."""
    tries: list[str] = []
    dying = type("Dying", (Host,), {"at": dict(enumerate(at, 1)), "wanted": wanted, "tries": tries})
    found = simulate_claims(1, workers=1, tasks=1, kills=0, host_type=dying, work=worked, changes=changes)
    assert found.killed == len(at)
    return found, tries


ONCE = TaskLifecycle(max_attempts=1, circuit_breaker=CircuitBreakerConfig(probes_max=0))
LATE = ["PENDING", "IN_PROGRESS", "TIMEOUT", "RETRYING", "IN_PROGRESS", "VALIDATING", "COMPLETED"]


@pytest.mark.parametrize(
    "at", ["Ended", "execution_timed_out", "retry_decided", "execution_failed", "retry_delay_elapsed"]
)
def test_it_is_tried_again(at: str) -> None:
    """A task whose supervisor is killed at any of these records is tried again: the first attempt is judged once and
    uses one retry of a budget of one, and another session completes the next attempt."""
    found, tries = killed(at, retry_budget=RetryBudgetConfig(least=1, share=0.0))

    assert found.report.problems == ()
    assert found.closed == 1
    assert tries == LATE


@pytest.mark.parametrize("now", [False, True])
def test_it_is_cancelled_if_somebody_else_wanted_that(now: bool) -> None:
    """A task whose session somebody else also asked to end is cancelled, also if that request shortens the end of a
    slow agent."""

    async def takes_its_time(bench: Any, turn: AgentTurn) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(4.0)

    wanted = OperatorStop(reason="nobody wants it", abort_id="theirs", now=now)
    found, tries = killed("t0 Ended", wanted=wanted, worked=takes_its_time)

    assert found.closed == 0
    assert tries == ["PENDING", "IN_PROGRESS", "CANCELLED"]


@pytest.mark.parametrize("at", ["r1#t0 cancelled", "AbortRecord", "OperatorStop", "t0 Ended"])
def test_it_is_cancelled_if_that_was_asked_for_while_it_was_judged(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """A task that an operator cancels while its failure is judged is cancelled at once, and its failure comes too late,
    although the supervisor is killed at any record from the cancellation to the end of the session."""
    runners: list[PlanRunner] = []

    class Runner(PlanRunner):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            runners.append(self)

    async def reclassify_failure(plan_run: PlanRun, execution: TaskExecution, failure: Failure, error: str) -> Failure:
        plan_run.start(partial(runners[0].commands.cancel, "t0", by="ann", reason="not wanted"))
        await anyio.sleep(20.0)
        return failure

    async def fails(bench: Any, turn: AgentTurn) -> str:
        raise ValueError("it cannot be done")

    monkeypatch.setattr(claims, "PlanRunner", Runner)
    monkeypatch.setattr(plugin_policies, "reclassify_failure", reclassify_failure)
    found, tries = killed(at, worked=fails)

    assert found.closed == 0
    assert tries == ["PENDING", "IN_PROGRESS", "CANCELLED"]


def test_a_plug_in_has_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that makes the failure permanent, so that no other attempt is allowed, ends the task run after the
    kill, too."""

    async def reclassify_failure(plan_run: PlanRun, execution: TaskExecution, failure: Failure, error: str) -> Failure:
        return failure._replace(category=ErrorCategory.PERMANENT)

    monkeypatch.setattr(plugin_policies, "reclassify_failure", reclassify_failure)
    _, tries = killed("Ended")

    assert tries[:4] == ["PENDING", "IN_PROGRESS", "FAILED", "CIRCUIT_OPEN"]


def test_its_session_had_not_heard_of_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first supervisor is killed before the session has received the request to end, the second supervisor ends
    the session for the same reason, and the task is closed, although the second supervisor is killed as well."""
    end, heard = LiveSession.request_stop, list[str]()

    def unheard(session: LiveSession, stop: OperatorStop, **more: Any) -> MergeOutcome:
        heard.append(str(stop.abort_reason))
        return MergeOutcome.BEGAN if len(heard) == 1 else end(session, stop, **more)

    monkeypatch.setattr(LiveSession, "request_stop", unheard)
    found, tries = killed("AbortRecord", "Ended")

    assert heard[0] == "timeout"
    assert found.closed == 1
    assert tries == LATE


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixture: sessions continue after a takeover, and the worker of the second supervisor takes the task of such a
    session only after 400 s."""
    monkeypatch.setattr(takeover, "loses_nothing", lambda *given: True)
    look, late = PlanRun.look, list[TaskExecution]()

    async def look_later(plan_run: PlanRun, execution: TaskExecution) -> None:
        await anyio.sleep(400.0)
        look(plan_run, execution)

    def look_late(plan_run: PlanRun, execution: TaskExecution, **more: Any) -> None:
        if not (execution.is_followed and execution.is_claimable) or late:
            look(plan_run, execution, **more)
        else:
            late.append(execution)
            plan_run.start(look_later, plan_run, execution)

    monkeypatch.setattr(PlanRun, "look", look_late)


FOLLOWED = ("SessionStarted",), ("SessionStarted", "Ended")


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("at", [*FOLLOWED, ("SessionStarted", "Ended", "retry_decided RETRYING")])
def test_nobody_had_followed_it_yet(at: tuple[str, ...]) -> None:
    """A session that continues under the second supervisor, while its job waits for a worker, is ended for silence; the
    task is tried again after the full retry delay."""
    found, tries = killed(*at, task_lifecycle=TaskLifecycle(base_retry_delay=500.0, max_retry_delay=500.0))

    assert found.report.problems == ()
    assert found.closed == 1
    assert tries == LATE
    assert found.report.simulated_s > 600.0


def test_a_delay_that_is_over_is_not_served_again() -> None:
    """The second supervisor is killed just before the next attempt begins: the retry delay, which was over, is not
    waited for again."""
    delayed = TaskLifecycle(base_retry_delay=500.0, max_retry_delay=500.0)
    found, tries = killed("Ended", "worker_started", task_lifecycle=delayed)

    assert found.report.problems == ()
    assert tries == LATE
    assert 600.0 < found.report.simulated_s < 1000.0


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("at", [*FOLLOWED, ("SessionStarted", "Ended", "retry_decided CIRCUIT_OPEN")])
def test_it_had_no_other_attempt(at: tuple[str, ...]) -> None:
    """A task without another attempt fails after a takeover, also if its job still waits for a worker."""
    found, tries = killed(*at, task_lifecycle=ONCE, tasks=planned("t0", max_retries=0))

    assert found.closed == 0
    assert tries == ["PENDING", "IN_PROGRESS", "TIMEOUT", "FAILED", "CIRCUIT_OPEN"]


def test_a_retry_that_is_one_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget of one retry, which one task has used, the retry of another task that was undecided at the kill is
    refused; the first task still gets its retry."""

    async def fails_first(bench: Any, turn: AgentTurn) -> str:
        await anyio.sleep(10.0)
        asked = turn.prompt.splitlines()[0]  # the prompt of another attempt also has the reason
        if asked not in bench.finished:
            bench.finished.add(asked)
            raise ValueError("not yet")
        return "done"

    monkeypatch.setattr(takeover, "loses_nothing", lambda *given: True)
    found, tries = killed(
        "r1#t1:run retry_decided",
        worked=fails_first,
        tasks=planned("t0", "t1", max_retries=0),
        retry_budget=RetryBudgetConfig(least=1, share=0.0),
        task_lifecycle=TaskLifecycle(
            base_retry_delay=300.0, max_retry_delay=300.0, circuit_breaker=CircuitBreakerConfig(probes_max=0)
        ),
    )

    assert found.closed == 1
    assert (tries.count("PENDING"), tries.count("RETRYING"), tries.count("CIRCUIT_OPEN")) == (2, 2, 1)
