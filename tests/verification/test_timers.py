"""The timer checker: timers and terminations that are early, late or missing are reported."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from actors.machine import Step
from actors.timers import TimerService
from actors.waiter import current_backend
from supervisor.lifecycles.effects import StartTimer
from supervisor.lifecycles.events import BackoffElapsed, TaskFailed
from supervisor.lifecycles.types import Exit, LifecycleEvent, StageBudgets, Verdict
from supervisor.simulation.engine import Schedule, leap, run
from supervisor.simulation.oracle import Oracle
from supervisor.simulation.trace import Trace
from tests.verification.checkers.timers import TimerChecker

LADDER = StageBudgets(request_s=10.0, cancel_s=5.0, terminate_s=2.0, kill_s=1.0)


class _Checked:
    """The checker of a run whose clock is set by the test."""

    def __init__(self, slept_s: float = 0.0) -> None:
        self.broken: list[str] = []
        self.now = 0.0
        self.promised = TimerChecker(
            lambda law, *words: self.broken.append(law), lambda: self.now, lambda since_s: slept_s, LADDER, 0.0
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


@pytest.mark.parametrize(("down_s", "broken"), [(0.0, ["punctual"]), (100.0, [])])
def test_a_backoff_that_is_taken_over_waits_for_the_disk(down_s: float, broken: list[str]) -> None:
    """A backoff that is taken over starts again when its session is on record as continued."""
    account = _Checked()
    account.back_off()
    account.now = 1.0
    account.promised.forget(0.0)
    account.now = 102.0
    account.promised.disk_was_down(down_s)
    account.elapse(102.0)
    assert account.broken == broken


@pytest.mark.parametrize(("began_s", "broken"), [(1.0, ["punctual"]), (2.0, [])])
def test_a_timer_that_was_due_in_a_sleep_fires_after_the_grace(began_s: float, broken: list[str]) -> None:
    """A timer that fell due in a sleep fires after the grace for messages; one that was due as the sleep began may have
    fired."""
    account = _Checked(slept_s=102.0)
    account.back_off()
    account.now = began_s
    account.promised.slept(100.0)
    account.elapse(began_s + 100.0)
    assert account.broken == broken


def test_a_sleep_may_begin_a_grain_after_a_timer_was_due() -> None:
    """With a grain, timers stand still at the next timer's rounded time: the others come later by that, and each is
    rounded up itself, which is no breach."""

    async def main() -> float:
        timers, rang_s = TimerService(current_backend()), list[float]()

        async def pause() -> None:
            await anyio.sleep(1.0)
            leap(100.0)

        async with anyio.create_task_group() as group:
            group.start_soon(pause)
            group.start_soon(timers.run)
            await checkpoint()
            timers.set("next", None, 0.93, lambda _: None)
            timers.set("backoff", None, 3.35, lambda _: rang_s.append(anyio.current_time()))
            await anyio.sleep(110.0)
            group.cancel_scope.cancel()
        return rang_s[0]

    rang_s = run(main, seed=0, schedule=Schedule.FIFO, horizon_s=1000.0, grain_s=0.1).value
    assert rang_s is not None
    assert rang_s == pytest.approx(105.5)
    now = 0.0
    oracle = Oracle(lambda: now, Trace(lambda: now), LADDER, grain_s=0.1)
    account = TimerChecker(oracle.violated, oracle.now, oracle.slept_since, LADDER, 0.1)
    timer = StartTimer(name="backoff", delay_s=3.35, event=BackoffElapsed())
    words: dict[str, Any] = {"entity_type": "session", "entity_id": "s", "timestamp": 0.0, "monotonic_s": 0.0}
    failed = LifecycleEvent(seq=1, entity_seq=1, event="SessionExited", **words)
    account.stepped(failed, cast(Any, Step(None, None, (timer,), None)))
    now = 1.0
    account.slept(100.0)
    oracle.slept(100.0)
    elapsed = LifecycleEvent(seq=2, entity_seq=2, event="BackoffElapsed", actor="s", cause_id=1, **words)
    account.heard(elapsed, rang_s)
    assert oracle.violations == []


def test_a_timer_that_never_fires_is_noticed() -> None:
    """A timer that has not fired when a later record is there is reported, unless its state was left."""
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
    """A session with one turn after the other, each with ten seconds by default."""

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
    """A repeated turn that has more or less time than was left is reported, also after a second loss."""
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
    """Stage and seconds of a termination must fit its ladder."""
    account = _Checked()
    account.end(rung, took_s)
    assert account.broken == broken


@pytest.mark.parametrize("joined", [False, True])
def test_a_termination_that_was_joined_before_its_record_may_have_less_time(joined: bool) -> None:
    """A termination that was joined before its record may have less time than its ladder."""
    account = _Checked()
    if joined:
        account.promised.ending(account.record("AbortJoined", 1, outcome="fact"), 0.0)
    account.end("cancel", 3.0)
    assert account.broken == ([] if joined else ["punctual"])


@pytest.mark.parametrize(("outages", "broken"), [((), ["punctual"]), ((0.6,), [])])
def test_a_turn_whose_time_stood_still_may_end_as_a_sleep_ends(outages: Any, broken: list[str]) -> None:
    """An outage is added to a turn's time: the turn may be due so shortly before a sleep ended that no grace
    applies."""
    account = _Turns()
    account.run("s:t1")
    account.now = 8.0
    for down_s in outages:
        account.promised.disk_was_down(down_s)
    account.now = 9.9
    account.promised.slept(1.6)
    account.now = 11.5
    account.promised.heard(account.record("task_failed", 1, entity_id="s:t1", actor="s:t1", cause_id=1), 11.5)
    assert account.broken == broken


@pytest.mark.parametrize(
    ("paused_at_s", "rung", "broken"),
    [
        (10.0, "kill", []),
        (9.0, "kill", ["punctual"]),
        (23.0, "kill", []),
        (29.0, "abandon", []),
        (28.0, "abandon", ["punctual"]),
    ],
)
def test_a_termination_may_be_delayed_by_a_sleep_at_the_end_of_a_stage(
    paused_at_s: float, rung: str, broken: list[str]
) -> None:
    """A sleep that starts at the very end of a stage's time counts as time of that stage."""
    account = _Checked()
    account.now = paused_at_s
    account.promised.slept(4000.0)
    account.end(rung, 40.0)
    assert account.broken == broken
