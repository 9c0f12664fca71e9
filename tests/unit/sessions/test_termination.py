"""Termination by stages with one timer: each stage acts once, stages only advance, and no timer remains at the end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import anyio
import pytest

from actors import ActorStopped
from actors.timers import Timer, TimerService
from actors.waiter import current_backend
from supervisor.lifecycles.types import Exit, StageBudgets, TerminationStage, Verdict
from supervisor.policies.stage_deadlines import CALL_ASKED_S, Schedule
from supervisor.sessions.termination import Termination
from supervisor.sessions.tool_calls import CallTermination, ToolCallTerminations
from supervisor.sessions.turn import TurnTermination


class Clock:
    """Timer service whose time a test advances by hand."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[Timer] = []

    def now(self) -> float:
        return self.time

    def set(self, key: Any, message: Any, delay_s: float, fire: Callable[[Timer], None]) -> Timer:
        timer = Timer(key, message, self.time + delay_s, fire)
        self.timers.append(timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        timer.live = False

    @property
    def due(self) -> list[float]:
        """Return the deadlines of the live timers."""
        return [timer.deadline for timer in self.timers if timer.live]

    def run_until(self, moment: float) -> None:
        """Fire the timers that are due until *moment*, in the order of their deadlines."""
        while due := [timer for timer in self.timers if timer.live and timer.deadline <= moment]:
            timer = min(due, key=lambda one: one.deadline)
            self.time, timer.live = timer.deadline, False
            timer.fire(timer)
        self.time = moment


class Requested(NamedTuple):
    """Schedule with the end of the request stage only."""

    request_ends_at: float

    def ends_at(self, stage: TerminationStage, entered: float) -> float | None:
        return self.request_ends_at if stage is TerminationStage.REQUEST else None


class TwoStages(Termination):
    """Termination with two stages: a request, whose budget a test can change, and a kill."""

    stages = (TerminationStage.REQUEST, TerminationStage.KILL)

    def __init__(self, clock: Clock) -> None:
        super().__init__(cast(TimerService, clock))
        self.acted: list[TerminationStage] = []
        self.request_ends_at = 10.0

    @property
    def schedule(self) -> Schedule:
        return Requested(self.request_ends_at)

    def act(self, stage: TerminationStage) -> None:
        self.acted.append(stage)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_next_stage_begins_at_the_deadline(clock: Clock) -> None:
    termination = TwoStages(clock)
    termination.enter(TerminationStage.REQUEST)
    clock.run_until(9.9)
    assert termination.acted == [TerminationStage.REQUEST]
    clock.run_until(10.0)
    assert termination.acted == [TerminationStage.REQUEST, TerminationStage.KILL]


def test_no_timer_is_left_after_the_last_stage(clock: Clock) -> None:
    termination = TwoStages(clock)
    termination.enter(TerminationStage.KILL)
    assert clock.due == []


def test_a_shorter_deadline_moves_the_one_timer(clock: Clock) -> None:
    termination = TwoStages(clock)
    termination.enter(TerminationStage.REQUEST)
    termination.request_ends_at = 3.0
    termination.reschedule()
    assert clock.due == [3.0]


def test_a_deadline_in_the_past_is_due_at_once(clock: Clock) -> None:
    termination = TwoStages(clock)
    clock.run_until(20.0)
    termination.enter(TerminationStage.REQUEST)
    assert clock.due == [20.0]


def test_a_skipped_stage_does_not_act(clock: Clock) -> None:
    """A termination that enters the kill stage during the request stage acts once in each, and cancels the request's
    timer."""
    termination = TwoStages(clock)
    termination.enter(TerminationStage.REQUEST)
    termination.enter(TerminationStage.KILL)
    clock.run_until(100.0)
    assert termination.acted == [TerminationStage.REQUEST, TerminationStage.KILL]


def test_a_finished_termination_does_nothing_more(clock: Clock) -> None:
    termination = TwoStages(clock)
    termination.enter(TerminationStage.REQUEST)
    termination.finish()
    clock.run_until(100.0)
    assert (termination.stage, termination.acted) == (None, [TerminationStage.REQUEST])


def test_a_termination_that_its_action_finishes_has_no_timer(clock: Clock) -> None:
    """If the action of a stage finishes the termination at once, no timer remains."""

    class EndedAtOnce(TwoStages):
        def act(self, stage: TerminationStage) -> None:
            self.finish()

    termination = EndedAtOnce(clock)
    termination.enter(TerminationStage.REQUEST)
    assert clock.due == []


def test_an_error_in_a_stage_stays_in_its_termination(clock: Clock) -> None:
    """An error in the action of one stage neither ends the timer service nor prevents later stages."""

    class Broken(TwoStages):
        def act(self, stage: TerminationStage) -> None:
            super().act(stage)
            if stage is TerminationStage.KILL:
                raise RuntimeError("no such process")

    termination = Broken(clock)
    termination.enter(TerminationStage.REQUEST)
    clock.run_until(100.0)
    assert termination.acted == [TerminationStage.REQUEST, TerminationStage.KILL]


@pytest.mark.anyio
async def test_a_timer_that_has_fired_is_counted_once() -> None:
    """A stage that ended by its timer is not counted as ``pending``, the number that the check for leaked timers
    uses."""
    timers = TimerService(current_backend(), lambda late_s: None)
    termination = TwoStages(cast(Clock, timers))
    termination.request_ends_at = timers.now()
    async with anyio.create_task_group() as group:
        group.start_soon(timers.run)
        termination.enter(TerminationStage.REQUEST)
        with timers.limit(0.0):
            await anyio.sleep_forever()
        group.cancel_scope.cancel()
    assert (termination.acted[-1], timers.pending) == (TerminationStage.KILL, 0)


# ------------------------------------------------------------------------------------------------- turns
class Agent:
    """Connection that records the interrupts and kills that are requested of it."""

    def __init__(self, turn_id: str | None) -> None:
        self.turn_id = turn_id
        self.asked: list[str] = []

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        self.asked.append(f"interrupt {turn_id} for {abort_id}")

    def kill(self, intent: Verdict) -> None:
        self.asked.append(f"kill: {intent.error}")


def turn_termination(clock: Clock, agent: Agent, killed: list[str]) -> TurnTermination:
    intent = Verdict(exit=Exit.ERROR, error="it timed out")
    timers: Any = clock
    connection: Any = agent
    return TurnTermination(timers, connection, "t1", intent, "abort-1", 10.0, lambda: killed.append("killed"))


def test_an_agent_that_keeps_its_turn_is_killed_after_the_grace(clock: Clock) -> None:
    agent, killed = Agent("t1"), list[str]()
    turn_termination(clock, agent, killed).enter(TerminationStage.REQUEST)
    clock.run_until(10.0)
    assert (agent.asked, killed) == (["interrupt t1 for abort-1", "kill: it timed out"], ["killed"])


def test_an_agent_that_works_on_the_next_turn_is_not_killed(clock: Clock) -> None:
    agent, killed = Agent("t1"), list[str]()
    turn_termination(clock, agent, killed).enter(TerminationStage.REQUEST)
    agent.turn_id = "t2"
    clock.run_until(10.0)
    assert (agent.asked, killed) == (["interrupt t1 for abort-1"], [])


# ------------------------------------------------------------------------------------------------- tool calls
@pytest.mark.parametrize(
    ("first", "budget_s", "kill_at", "abandon_at"),
    [
        (TerminationStage.REQUEST, 10.0, CALL_ASKED_S, CALL_ASKED_S + 10.0),
        (TerminationStage.REQUEST, 0.2, 0.2, 0.4),
        (TerminationStage.KILL, 10.0, 0.0, 10.0),
    ],
)
def test_a_call_is_asked_for_then_killed_then_abandoned(
    clock: Clock, first: TerminationStage, budget_s: float, kill_at: float, abandon_at: float
) -> None:
    """The termination of a call has a request stage, unless the agent cannot be asked, then kill and abandon; the
    budget of each stage is at most the policy's request budget."""
    seen: list[tuple[str, float]] = []
    timers: Any = clock
    CallTermination(
        timers,
        "c1",
        "how",
        StageBudgets(request_s=budget_s),
        on_kill=lambda: seen.append(("kill", clock.time)),
        on_abandon=lambda: seen.append(("abandon", clock.time)),
    ).enter(first)
    clock.run_until(100.0)
    assert [(what, pytest.approx(at)) for what, at in seen] == [("kill", kill_at), ("abandon", abandon_at)]


class Calls:
    """Terminations of the tool calls of an agent, with the names and ids of its open calls."""

    def __init__(
        self, clock: Clock, start: Callable[..., None] = lambda *args: None, asks: Callable[[str], Any] = lambda _: []
    ) -> None:
        self.open: dict[str, str] = {}
        self.why: list[str] = []
        system = SimpleNamespace(timers=clock, context=lambda tool_id: self)
        session = SimpleNamespace(start=start, policy=SimpleNamespace(ladder=StageBudgets(request_s=0.5)), exiting={})
        agent_io = SimpleNamespace(put=lambda outs: None, process=None)
        parts: list[Any] = [SimpleNamespace(system=system), session, "a1", self.open, (), asks, agent_io]
        self.service = ToolCallTerminations(*parts)

    def terminate(self, call_id: str, **how: Any) -> str:
        return self.service.terminate(call_id, self.why.append, **how)


def test_the_termination_of_a_call_ends_with_the_call(clock: Clock) -> None:
    """A second call of the same name as an ended call has its whole budgets: the first call's termination has ended."""
    calls = Calls(clock)
    calls.open["x"] = "t1:c1"
    calls.terminate("x")
    del calls.open["x"]
    calls.service.note_closed("x")
    assert clock.due == []
    clock.run_until(0.8)
    calls.open["x"] = "t1:c2"
    calls.terminate("x")
    clock.run_until(1.79)
    assert calls.why == []
    clock.run_until(1.8)
    assert calls.why == ["it had not ended 1 s later"]


@pytest.mark.parametrize(
    ("first", "second", "at"),
    [
        ({}, None, 1.0),  # the request has 0.5 s, and the kill as much
        ({"within_s": 0.7}, None, 0.7),
        ({"within_s": 0.2}, None, 0.2),
        ({"now": True}, None, 0.5),
        ({}, {"now": True}, 0.6),
        ({}, {"within_s": 0.3}, 0.4),
        ({"within_s": 0.7}, {"within_s": 5.0}, 0.7),  # a second abort does not extend the first
    ],
)
def test_an_abort_of_a_call_is_over_in_time(
    clock: Clock, first: dict[str, Any], second: dict[str, Any] | None, at: float
) -> None:
    """``now`` and ``within_s`` shorten the termination of a call, also of a termination in progress, from 0.1 s on."""
    calls = Calls(clock)
    calls.open["x"] = "t1:c1"
    calls.terminate("x", **first)
    clock.run_until(0.1)
    if second is not None:
        calls.terminate("x", **second)
    clock.run_until(at - 0.01)
    assert calls.why == []
    clock.run_until(at + 0.01)
    assert calls.why != []


def test_a_time_limit_leaves_the_agent_time_to_end_its_call(clock: Clock) -> None:
    """With the default budgets an agent has all of the limit but the second of the kill, and not 0 s."""
    seen: list[tuple[str, float]] = []
    timers: Any = clock
    termination = CallTermination(
        timers,
        "c1",
        "how",
        StageBudgets(),
        on_kill=lambda: seen.append(("kill", clock.time)),
        on_abandon=lambda: seen.append(("abandon", clock.time)),
    )
    termination.hasten(now=False, within_s=1.5)
    termination.enter(TerminationStage.REQUEST)
    clock.run_until(100.0)
    assert seen == [("kill", pytest.approx(0.5)), ("abandon", pytest.approx(1.5))]


def test_an_earlier_call_of_the_name_is_forgotten(clock: Clock) -> None:
    """If a second call has the name of an earlier call that was never closed, the termination of the second call has
    its whole budgets."""
    calls = Calls(clock)
    calls.open["x"] = "t1:c1"
    calls.terminate("x")
    calls.open["x"] = "t1:c2"
    clock.run_until(0.8)
    calls.terminate("x")
    clock.run_until(1.79)
    assert calls.why == []


def test_no_timer_outlives_the_agent(clock: Clock) -> None:
    calls = Calls(clock)
    calls.open["x"] = "t1:c1"
    calls.terminate("x")
    calls.service.finish()
    assert clock.due == []


def test_a_call_whose_scope_is_being_cancelled_is_not_terminated(clock: Clock) -> None:
    """If the cancel scope of a call is being cancelled already, ``terminate`` starts no termination, and says for the
    receipt that the call was ending."""

    def refuse(*args: Any) -> None:
        raise ActorStopped("t1:c1")

    calls = Calls(clock, start=refuse, asks=lambda call_id: None)
    calls.open["x"] = "t1:c1"
    assert (calls.terminate("x"), clock.due) == ("it was ending already", [])
