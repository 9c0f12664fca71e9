"""A termination climbs its stages by one timer: it acts once per stage, only advances, and ends when it is finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from actors.timers import Timer, TimerService
from supervisor.aborts.termination import Termination
from supervisor.aborts.tool_calls import ASKED_S, CallTermination
from supervisor.lifecycles.types import Exit, TerminationStage, Verdict
from supervisor.sessions.effect_executor import TurnTermination


class Clock:
    """Timers that a test advances by hand."""

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
        """Return when the live timers ring."""
        return [timer.deadline for timer in self.timers if timer.live]

    def run_until(self, moment: float) -> None:
        """Fire what is due, in order."""
        while due := [timer for timer in self.timers if timer.live and timer.deadline <= moment]:
            timer = min(due, key=lambda one: one.deadline)
            self.time, timer.live = timer.deadline, False
            timer.fire(timer)
        self.time = moment


class TwoStages(Termination):
    """A request with a budget that a test can change, and a kill."""

    stages = (TerminationStage.REQUEST, TerminationStage.KILL)

    def __init__(self, clock: Clock) -> None:
        super().__init__(cast(TimerService, clock))
        self.acted: list[TerminationStage] = []
        self.request_ends_at = 10.0

    def act(self, stage: TerminationStage) -> None:
        self.acted.append(stage)

    def deadline(self, stage: TerminationStage) -> float | None:
        return self.request_ends_at if stage is TerminationStage.REQUEST else None


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
    """An abort at once enters the kill stage while the request is under way; the request's timer is gone."""
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
    """A request may end what is terminated before it returns."""
    termination = TwoStages(clock)
    termination.act = lambda stage: termination.finish()  # type: ignore[method-assign]
    termination.enter(TerminationStage.REQUEST)
    assert clock.due == []


# ------------------------------------------------------------------------------------------------- turns
class Agent:
    """Connection that notes what it is asked for."""

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
        (TerminationStage.REQUEST, 10.0, ASKED_S, ASKED_S + 10.0),
        (TerminationStage.REQUEST, 0.2, 0.2, 0.4),
        (TerminationStage.KILL, 10.0, 0.0, 10.0),
    ],
)
def test_a_call_is_asked_for_then_killed_then_abandoned(
    clock: Clock, first: TerminationStage, budget_s: float, kill_at: float, abandon_at: float
) -> None:
    """An agent that cannot be asked begins at the kill; each stage has the policy's request budget at most."""
    seen: list[tuple[str, float]] = []
    timers: Any = clock
    CallTermination(
        timers,
        "c1",
        "how",
        budget_s,
        on_kill=lambda: seen.append(("kill", clock.time)),
        on_abandon=lambda: seen.append(("abandon", clock.time)),
    ).enter(first)
    clock.run_until(100.0)
    assert [(what, pytest.approx(at)) for what, at in seen] == [("kill", kill_at), ("abandon", abandon_at)]
