"""Tests of the timer checker: timers and terminations that are early, late or missing are reported."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.machine import Step
from supervisor.lifecycles.effects import StartTimer
from supervisor.lifecycles.events import BackoffElapsed, TaskFailed
from supervisor.lifecycles.types import Exit, LifecycleEvent, StageBudgets, Verdict
from tests.verification.checkers.timers import TimerChecker

LADDER = StageBudgets(request_s=10.0, cancel_s=5.0, terminate_s=2.0, kill_s=1.0)


class _Checked:
    """Timer checker whose clock is set by the test, and a list of the reports."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.now = 0.0
        self.promised = TimerChecker(
            lambda law, *words: self.broken.append(law), lambda: self.now, lambda since_s: 0.0, LADDER, 0.0
        )

    def record(self, event: str, seq: int, **fields: Any) -> LifecycleEvent:
        words = {"entity_type": "session", "entity_id": "s", "entity_seq": seq, "timestamp": 0.0, **fields}
        return LifecycleEvent(seq=seq, monotonic_s=self.now, event=event, **words)

    def back_off(self) -> None:
        """Record a backoff of two seconds."""
        timer = StartTimer(name="backoff", delay_s=2.0, event=BackoffElapsed())
        failed = self.record("SessionExited", 1, from_status="Running", to_status="CoolingDown")
        self.promised.stepped(failed, cast(Any, Step(None, None, (timer,), None)))

    def elapse(self, at_s: float) -> None:
        self.now = at_s
        self.promised.heard(self.record("BackoffElapsed", 2, actor="s", cause_id=1), at_s)

    def end(self, rung: str, took_s: float) -> None:
        """Record the termination of a session that was stopped at 0 s."""
        stopped = self.record("OperatorStop", 1, from_status="Running", to_status="Stopped", metadata={"now": False})
        self.promised.ending(stopped, 0.0)
        self.promised.ending(self.record("Ended", 2, metadata={"rung": rung, "took_s": took_s}), took_s)


@pytest.mark.parametrize(("at_s", "broken"), [(2.0, []), (1.9, ["punctual"]), (2.1, ["punctual"])])
def test_a_timer_fires_at_its_instant(at_s: float, broken: list[str]) -> None:
    """A timer of two seconds that fires sooner or later is reported."""
    account = _Checked()
    account.back_off()
    account.elapse(at_s)
    assert account.broken == broken


def test_a_timer_that_never_fires_is_noticed() -> None:
    """A timer that has not fired by the time of a later record is reported, unless its entity has left the state that
    set the timer."""
    account = _Checked()
    account.back_off()
    account.promised.heard(account.record("Born", 3, entity_id="t"), 2.5)
    assert account.broken == ["punctual"]
    left = _Checked()
    left.back_off()
    stop = left.record("OperatorStop", 2, from_status="CoolingDown", to_status="Stopped")
    left.promised.stepped(stop, cast(Any, Step(None, None, (), None)))
    left.promised.heard(left.record("Born", 3, entity_id="t"), 2.5)
    assert left.broken == []


class _Turns(_Checked):
    """Timer checker with a session that has one turn after the other, each with a time of ten seconds by default."""

    seq = 0

    def moves(self, entity_id: str, before: str, after: str, *effects: StartTimer, **fields: Any) -> None:
        self.seq += 1
        words = {"entity_id": entity_id, "from_status": before, "to_status": after, **fields}
        record = self.record("moved", self.seq, **words)
        self.promised.stepped(record, cast(Any, Step(None, None, effects, None)))

    def run(self, turn_id: str, seconds: float = 10.0) -> None:
        late = TaskFailed(verdict=Verdict(exit=Exit.TIMEOUT))
        timer = StartTimer(name="turn", delay_s=seconds, event=late, lasting=True)
        self.moves(turn_id, "SPAWNING", "RUNNING", timer)

    def lose(self, turn_id: str) -> None:
        """Record the loss of a turn by the next supervisor."""
        self.moves(turn_id, "RUNNING", "FAILED", transition_reason="orphan_recovered")

    def crash(self) -> None:
        self.promised.forget(0.0)


@pytest.mark.parametrize(
    ("at_s", "seconds", "broken"),
    [(4.0, 6.0, []), (4.0, 10.0, ["punctual"]), (4.0, 5.0, ["punctual"]), (15.0, 0.0, []), (15.0, 10.0, ["punctual"])],
)
def test_a_repeated_turn_has_the_time_that_was_left(at_s: float, seconds: float, broken: list[str]) -> None:
    """A turn that repeats a lost one must get the remaining time; more or less is reported, also after a second
    loss."""
    for crashes in (1, 2):
        account = _Turns()
        account.run("s:t1")
        for number in range(crashes):
            account.now = 2.0 + number
            account.crash()
            account.lose(f"s:t{number + 1}")
            if number + 1 < crashes:
                account.run(f"s:t{number + 2}", 8.0 - number)
        account.now = at_s
        account.run("s:t9", seconds)
        assert account.broken == broken


@pytest.mark.parametrize(
    ("rung", "took_s", "broken"),
    [
        ("request", 10.0, []),
        ("request", 10.5, ["punctual"]),
        ("cancel", 10.5, []),
        ("cancel", 9.5, ["punctual"]),
        ("terminate", 30.0, ["punctual"]),
        ("kill", 12.0, []),
        ("abandon", 12.0, ["punctual"]),
    ],
)
def test_a_termination_takes_what_its_stages_take(rung: str, took_s: float, broken: list[str]) -> None:
    """A termination whose stage and seconds do not fit the budgets of the termination stages is reported."""
    account = _Checked()
    account.end(rung, took_s)
    assert account.broken == broken
