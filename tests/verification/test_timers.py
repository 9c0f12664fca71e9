"""Timers and ends at their instants: what comes sooner, later or never than it was promised is noticed."""

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
from supervisor.lifecycles.types import Exit, Ladder, LifecycleEvent, Verdict
from supervisor.simulation.engine import Schedule, leap, run
from supervisor.simulation.oracle import Oracle
from supervisor.simulation.trace import Trace
from tests.verification.checkers.timers import TimerChecker

LADDER = Ladder(request_s=10.0, cancel_s=5.0, terminate_s=2.0, kill_s=1.0)


class _Books:
    """Promises of a run whose clock stands where it is told to."""

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
        """A record that sets a timer of two seconds."""
        timer = StartTimer(name="backoff", delay_s=2.0, event=BackoffElapsed())
        failed = self.record("SessionExited", 1, from_status="Running", to_status="CoolingDown")
        self.promised.stepped(failed, cast(Any, Step(None, None, (timer,), None)))

    def elapse(self, at_s: float) -> None:
        self.now = at_s
        self.promised.heard(self.record("BackoffElapsed", 2, actor="s", cause_id=1), at_s)

    def end(self, rung: str, took_s: float) -> None:
        """A session that was stopped at once, and has its last record after so long."""
        stopped = self.record("OperatorStop", 1, from_status="Running", to_status="Stopped", metadata={"now": False})
        self.promised.ending(stopped, 0.0)
        self.promised.ending(self.record("Ended", 2, metadata={"rung": rung, "took_s": took_s}), took_s)


@pytest.mark.parametrize(("at_s", "broken"), [(2.0, []), (1.9, ["punctual"]), (2.1, ["punctual"])])
def test_a_timer_rings_at_its_instant(at_s: float, broken: list[str]) -> None:
    """Two seconds are two seconds: sooner and later are both breaches."""
    books = _Books()
    books.back_off()
    books.elapse(at_s)
    assert books.broken == broken


def test_a_machine_that_slept_is_late() -> None:
    """What was slept is forgiven, and no more than that."""
    books = _Books(slept_s=5.0)
    books.back_off()
    books.elapse(6.9)
    assert books.broken == []


@pytest.mark.parametrize(("down_s", "broken"), [(0.0, ["punctual"]), (100.0, [])])
def test_a_backoff_that_is_taken_over_waits_for_the_disk(down_s: float, broken: list[str]) -> None:
    """It goes on once it is on record that its session does."""
    books = _Books()
    books.back_off()
    books.now = 1.0
    books.promised.forget(0.0)
    books.now = 102.0
    books.promised.disk_was_down(down_s)
    books.elapse(102.0)
    assert books.broken == broken


@pytest.mark.parametrize(("began_s", "broken"), [(1.0, ["punctual"]), (2.0, [])])
def test_a_timer_that_was_due_in_a_pause_lets_others_be_heard(began_s: float, broken: list[str]) -> None:
    """It rings after the grace for what came in; one that was due as the pause began has rung before it."""
    books = _Books(slept_s=102.0)
    books.back_off()
    books.now = began_s
    books.promised.slept(100.0)
    books.elapse(began_s + 100.0)
    assert books.broken == broken


def test_a_pause_may_begin_a_grain_after_what_was_due() -> None:
    """Timers stand still at the moment that the next one was set for, which had been rounded up: so much later than the
    pause is long come the others, each of which is rounded up itself, and that is no breach."""

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
    books = TimerChecker(oracle.violated, oracle.now, oracle.slept_since, LADDER, 0.1)
    timer = StartTimer(name="backoff", delay_s=3.35, event=BackoffElapsed())
    words: dict[str, Any] = {"entity_type": "session", "entity_id": "s", "timestamp": 0.0, "monotonic_s": 0.0}
    failed = LifecycleEvent(seq=1, entity_seq=1, event="SessionExited", **words)
    books.stepped(failed, cast(Any, Step(None, None, (timer,), None)))
    now = 1.0
    books.slept(100.0)
    oracle.slept(100.0)
    elapsed = LifecycleEvent(seq=2, entity_seq=2, event="BackoffElapsed", actor="s", cause_id=1, **words)
    books.heard(elapsed, rang_s)
    assert oracle.violations == []


def test_a_timer_that_never_rings_is_noticed() -> None:
    """Once a later record is there, what should have come before it is missed; a timer that its state has outlived
    is not."""
    books = _Books()
    books.back_off()
    books.promised.heard(books.record("Born", 3, entity_id="t"), 2.5)
    assert books.broken == ["punctual"]
    left = _Books()
    left.back_off()
    stop = left.record("OperatorStop", 2, from_status="CoolingDown", to_status="Stopped")
    left.promised.stepped(stop, cast(Any, Step(None, None, (), None)))
    left.promised.heard(left.record("Born", 3, entity_id="t"), 2.5)
    assert left.broken == []


class _Turns(_Books):
    """A session that runs one turn after the other, each with ten seconds unless somebody says otherwise."""

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
        """What the next supervisor says of it."""
        self.moves(turn_id, "RUNNING", "FAILED", transition_reason="orphan_recovered")

    def crash(self) -> None:
        self.promised.forget(0.0)


@pytest.mark.parametrize(
    ("at_s", "seconds", "broken"),
    [(4.0, 6.0, []), (4.0, 10.0, ["punctual"]), (4.0, 5.0, ["punctual"]), (15.0, 0.0, []), (15.0, 10.0, ["punctual"])],
)
def test_a_turn_that_is_asked_again_has_what_was_left(at_s: float, seconds: float, broken: list[str]) -> None:
    """Of its ten seconds: more and less are both breaches, also after a second loss."""
    for crashes in (1, 2):
        books = _Turns()
        books.run("s:t1")
        for number in range(crashes):
            books.now = 2.0 + number
            books.crash()
            books.lose(f"s:t{number + 1}")
            if number + 1 < crashes:
                books.run(f"s:t{number + 2}", 8.0 - number)
        books.now = at_s
        books.run("s:t9", seconds)
        assert books.broken == broken


def test_the_turn_of_another_request_has_its_own_time() -> None:
    """After an end that was no loss, and after an interruption, nothing of the time before counts."""
    books = _Turns()
    for after in ("FAILED", "COMPLETING"):
        books.run("s:t1")
        books.crash()
        books.moves("s:t1", "RUNNING", after)
        books.run("s:t2")
        books.moves("s:t2", "RUNNING", "COMPLETING")
    books.run("s:t3")
    books.crash()
    books.lose("s:t3")
    books.moves("s", "Interrupting", "BuildingPrompt")
    books.run("s:t4")
    assert books.broken == []


def test_a_turn_that_was_interrupted_leaves_its_time_to_nobody() -> None:
    """Its session did not wait for its end: the turn that is lost with the supervisor, and asked again, is the next."""
    books = _Turns()
    books.run("s:t1")
    books.moves("s", "Interrupting", "BuildingPrompt")
    books.now = 2.0
    books.crash()
    books.lose("s:t1")
    books.run("s:t3")
    assert books.broken == []


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
def test_an_end_takes_what_its_rungs_take(rung: str, took_s: float, broken: list[str]) -> None:
    """The rung that an end names, and the seconds it took, fit its ladder."""
    books = _Books()
    books.end(rung, took_s)
    assert books.broken == broken


@pytest.mark.parametrize("joined", [False, True])
def test_an_end_that_is_joined_before_it_is_on_record_may_have_less_time(joined: bool) -> None:
    """Who joins it may want it sooner than its ladder has it; the record of that can be the first of the two."""
    books = _Books()
    if joined:
        books.promised.ending(books.record("AbortJoined", 1, outcome="fact"), 0.0)
    books.end("cancel", 3.0)
    assert books.broken == ([] if joined else ["punctual"])


@pytest.mark.parametrize(("outages", "broken"), [((), ["punctual"]), ((0.6,), [])])
def test_a_turn_whose_time_stood_still_may_be_over_as_a_pause_ends(outages: Any, broken: list[str]) -> None:
    """What the disk was down for is added to its time: so it was due so shortly before the pause ended that nobody
    takes it for one, and nothing that came in meanwhile is waited for."""
    books = _Turns()
    books.run("s:t1")
    books.now = 8.0
    for down_s in outages:
        books.promised.disk_was_down(down_s)
    books.now = 9.9
    books.promised.slept(1.6)
    books.now = 11.5
    books.promised.heard(books.record("task_failed", 1, entity_id="s:t1", actor="s:t1", cause_id=1), 11.5)
    assert books.broken == broken


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
def test_an_end_may_be_paused_as_its_rung_is_over(paused_at_s: float, rung: str, broken: list[str]) -> None:
    """The next rung rang, and was not heard: until the next timer of anybody that is time like any other."""
    books = _Books()
    books.now = paused_at_s
    books.promised.slept(4000.0)
    books.end(rung, 40.0)
    assert books.broken == broken
