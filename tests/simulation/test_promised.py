"""Timers and ends at their instants: what comes sooner, later or never than it was promised is noticed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from actors.machine import Step
from supervisor.effects import StartTimer
from supervisor.lifecycles.events import BackoffElapsed
from supervisor.simulation.promised import Promised
from supervisor.vocabulary import Ladder, LifecycleEvent

LADDER = Ladder(request_s=10.0, cancel_s=5.0, terminate_s=2.0, kill_s=1.0)


class _Books:
    """Promises of a run whose clock stands where it is told to."""

    def __init__(self, slept_s: float = 0.0) -> None:
        self.broken: list[str] = []
        self.now = 0.0
        self.promised = Promised(
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
