"""Phases of a live session: a session has one phase, which only moves forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.types import AbortPolicy
from supervisor.ports.agent_profile import AgentProfile
from supervisor.sessions.live_session import LiveSession, SessionPhase


def live_session(parent: LiveSession | None = None) -> LiveSession:
    """Return a session that has no agent, below *parent*."""
    registry: Any = SimpleNamespace(journal_writer=None)
    transcript: Any = None
    background: Any = None
    data = SessionData(id="s" if parent is None else f"{parent.session_id}/child", agent="a")
    session = LiveSession(
        registry,
        background,
        data,
        parent=parent,
        profile=AgentProfile(name="a", adapter="command"),
        policy=AbortPolicy(),
        started_by=None,
        transcript=transcript,
    )
    session.attach()
    return session


@pytest.mark.parametrize("phase", list(SessionPhase))
def test_a_phase_sets_the_events_of_every_phase_before(phase: SessionPhase) -> None:
    """Advancing to a phase sets the events of all earlier phases too, so that a skipped phase leaves nobody waiting."""
    session = live_session()
    before = {one: session.reached(one) for one in SessionPhase}
    session.advance(phase)
    assert [one for one, event in before.items() if event.is_set()] == list(SessionPhase)[: phase + 1]
    assert [one for one in SessionPhase if session.reached(one).is_set()] == list(SessionPhase)[: phase + 1]


def test_a_session_never_goes_back() -> None:
    session = live_session()
    session.advance(SessionPhase.FINISHED)
    session.advance(SessionPhase.STOP_REQUESTED)
    assert session.phase is SessionPhase.FINISHED


def test_a_parent_waits_for_its_child_until_the_child_has_finished() -> None:
    """A child counts as work of its parent until the child has finished, and is subtracted once."""
    parent = live_session()
    child = live_session(parent)
    child.advance(SessionPhase.TERMINATING)
    assert parent.busy == 1
    child.advance(SessionPhase.FINISHED)
    child.advance(SessionPhase.RECORDED)
    assert parent.busy == 0


def test_an_event_of_a_phase_that_is_over_is_set() -> None:
    session = live_session()
    session.advance(SessionPhase.TERMINATING)
    assert (session.is_stopping, session.is_terminating) == (True, True)
    assert session.reached(SessionPhase.STOP_REQUESTED).is_set()
    assert not session.reached(SessionPhase.FINISHED).is_set()
