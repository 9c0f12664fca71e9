"""What the oracle works out a second time: each copy agrees with its table, and notices one that says otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.machine import Event, Step
from supervisor.lifecycles.effects import StartTimer
from supervisor.lifecycles.events import (
    AgentLaunched,
    BackoffElapsed,
    OperatorStop,
    PromptReady,
    SessionExited,
    SessionStarted,
    TurnRequested,
    WorktreeReady,
)
from supervisor.lifecycles.session import SESSION, SessionData
from supervisor.lifecycles.session import Session as S
from supervisor.lifecycles.types import Exit, LifecycleEvent, Verdict
from supervisor.policies.turn_outcome import severity_of
from supervisor.simulation.specified import Specified

FAILED = Verdict(exit=Exit.ERROR, error="it fell over")
WAY: tuple[Event, ...] = (
    TurnRequested(request_id="s:r1", prompt="do it"),
    WorktreeReady(path="/"),
    PromptReady(prompt="do it", messages=0),
    AgentLaunched(incarnation=1, agent_id="s:a1"),
    SessionStarted(seq=1, incarnation=1, agent_id="s:a1"),
    SessionExited(incarnation=1, verdict=FAILED),
    BackoffElapsed(),
)


class _Session:
    """A session that the table takes along, and the oracle's copy of it."""

    def __init__(self) -> None:
        self.broken: list[tuple[str, str, str]] = []
        self.copy = Specified(lambda *words: self.broken.append(words))
        self.state, self.data, self.seq = S.INITIALIZING, SessionData(id="s", agent="a"), 1
        self.copy.born(self._record("Born", "born", self.state, msgspec.to_builtins(self.data)))

    def _record(self, name: str, outcome: str, before: S, meta: dict[str, Any], **words: Any) -> LifecycleEvent:
        self.seq += 1
        return LifecycleEvent(
            seq=self.seq,
            timestamp=0.0,
            monotonic_s=0.0,
            entity_type="session",
            entity_id="s",
            entity_seq=self.seq,
            event=name,
            outcome=outcome,
            from_status=before.value,
            to_status=self.state.value,
            metadata=meta,
            **words,
        )

    def hear(self, event: Event, **lie: Any) -> None:
        """One event; *lie* is what of the step, or of the record, is not as the table has it."""
        step, before = SESSION.step(self.state, self.data, event), self.state
        self.state, self.data = step.state, step.data
        meta = msgspec.to_builtins(event)
        verdict = meta.get("verdict") or {}
        words = {"reason": meta.get("reason") or verdict.get("error", ""), "abort_id": meta.get("abort_id")}
        words |= {"severity": lie.pop("severity", str(severity_of(event, step.effects)))}
        record = self._record(type(event).name(), "transition", before, meta, **words)
        self.copy.stepped(record, Step(*{**step._asdict(), **lie}.values()))

    def deny(self, event: Event, outcome: str) -> None:
        told = {} if outcome == "stale" else {"severity": "warning"}
        self.copy.denied(self._record(type(event).name(), outcome, self.state, msgspec.to_builtins(event), **told))

    def note(self, fact: str, severity: str) -> None:
        self.copy.noted(self._record(fact, "fact", self.state, {}, severity=severity))


def _went(steps: int) -> _Session:
    session = _Session()
    for event in WAY[:steps]:
        session.hear(event)
    assert not session.broken
    return session


def test_the_table_is_the_specification() -> None:
    """Along a whole way, from the request to the next try, nothing is found."""
    _went(len(WAY))


@pytest.mark.parametrize(
    "lie",
    [
        {"state": S.COOLING_DOWN},
        {"effects": ()},
        {"data": SessionData(id="s", agent="a", total_errors=7)},
        {"severity": "critical"},
    ],
)
def test_another_step_is_noticed(lie: dict[str, Any]) -> None:
    """A state, an effect, a datum, or a loudness that the specification does not have breaks a law, once."""
    session = _went(2)
    session.hear(WAY[2], **lie)
    session.hear(WAY[3])
    assert [law for law, *_ in session.broken] == ["legal"]


def test_another_backoff_is_noticed() -> None:
    """The seconds of a timer are compared: a backoff of three seconds is none."""
    session = _went(5)
    session.hear(WAY[5], effects=(StartTimer(name="backoff", delay_s=3.0, event=BackoffElapsed()),))
    assert [law for law, *_ in session.broken] == ["legal"]


def test_what_is_refused_means_nothing_here() -> None:
    """A refusal of what means something is a breach; one of what does not, and a late word, are none."""
    session = _went(5)
    session.deny(BackoffElapsed(), "refused")
    session.deny(SessionExited(incarnation=0, verdict=FAILED), "stale")
    assert not session.broken
    session.deny(OperatorStop(reason="enough"), "refused")
    assert [law for law, *_ in session.broken] == ["legal"]


@pytest.mark.parametrize(("fact", "severity"), [("Usage", "info"), ("Stalled", "warning"), ("AbortRecord", "warning")])
def test_how_much_a_fact_matters(fact: str, severity: str) -> None:
    """Somebody should hear of what the supervisor did to a session; what it counts is there to be read."""
    session = _went(5)
    session.note(fact, severity)
    assert not session.broken
    session.note(fact, "info" if severity == "warning" else "warning")
    assert [law for law, *_ in session.broken] == ["legal"]
