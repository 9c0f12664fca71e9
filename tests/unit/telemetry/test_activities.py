"""Tests of activities and figures from made-up records, for what is rare in real sessions."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.telemetry.activities import ABORTS_MAX, ActivityTracker, Began, Ended, Placement
from supervisor.telemetry.figures import Figures

_numbers = count(1)


def record(
    kind: str, entity_id: str, event: str, *, moves: str = "", fact: dict[str, Any] | None = None, **given: Any
) -> LifecycleEvent:
    """Return a record of a transition with the states *moves*, such as ``FAILED>RETRYING``."""
    number = next(_numbers)
    before, _, after = moves.partition(">")
    return LifecycleEvent(
        seq=RecordId(number),
        timestamp=float(number),
        monotonic_s=float(number),
        entity_type=kind,
        entity_id=entity_id,
        entity_seq=number,
        event=event,
        from_status=before,
        to_status=after,
        metadata=fact or {},
        **given,
    )


def tracker() -> ActivityTracker:
    return ActivityTracker(lambda session_id: Placement(session_id.rpartition("/")[0]))


@pytest.mark.parametrize(
    ("event", "fact", "reason"),
    [
        ("execution_timed_out", {}, "timeout"),
        ("tests_failed", {}, "tests"),
        ("execution_failed", {"provider": True, "category": "transient"}, "provider"),
        ("execution_failed", {"category": "transient"}, "transient"),
    ],
)
def test_a_retry_counts_by_the_failure_before(event: str, fact: dict[str, Any], reason: str) -> None:
    """A decision to try again counts by the kind of the failure that led to it; a decision against it does not."""
    figures = Figures()
    for after in ("RETRYING", "CIRCUIT_OPEN"):
        figures.take(record("run", "r1#a:run", event, moves="IN_PROGRESS>FAILED", fact=fact))
        figures.take(record("run", "r1#a:run", "retry_decided", moves=f"FAILED>{after}"))
    assert figures.counters["supervisor_retries_total"] == {(reason,): 1}


def test_a_breaker_and_a_permission_are_known_until_they_change() -> None:
    """The state of a provider's breaker, and each request that waits for a person, are known for a scrape."""
    figures = Figures()
    for state in ("open", "closed"):
        told = {"provider": "acme", "circuit": state}
        figures.take(record("task", "r1#a", "ProviderBreaker", fact=told, outcome="fact"))
    assert figures.breakers == {"acme": "closed"}
    asked = record("turn", "s:t1", "PermissionRequested", fact={"number": 1, "asked": True})
    figures.take(asked)
    assert figures.asked == {("s:t1", 1): asked.timestamp}
    figures.take(record("turn", "s:t1", "PermissionAnswered", fact={"number": 1, "decision": "allow"}))
    assert figures.asked == {}
    assert figures.counters["supervisor_permissions_total"] == {("allow",): 1}


@pytest.mark.parametrize("outcome", ["refused", "stale"])
def test_what_came_too_late_is_no_activity(outcome: str) -> None:
    """A record of an event that was refused, or came too late, begins and ends nothing."""
    found = tracker()
    found.take(record("session", "s", "Born", outcome="born", fact={"agent": "a"}))
    found.take(record("turn", "s:t1", "Born", outcome="born", fact={"session_id": "s"}))
    started = {"number": 1, "call_id": "x"}
    assert found.take(record("turn", "s:t1", "tool_started", fact=started, outcome=outcome)) == ()
    [began] = found.take(record("turn", "s:t1", "tool_started", fact=started))
    assert isinstance(began, Began)
    ended = {"call_id": "x", "outcome": "completed"}
    assert found.take(record("turn", "s:t1", "tool_completed", fact=ended, outcome=outcome)) == ()


def test_a_session_whose_actor_crashes_ends_with_its_turn_and_calls() -> None:
    """A lost session ends as failed, and with it the turn and the call that have no last record."""
    found = tracker()
    found.take(record("session", "s", "Born", outcome="born", fact={"agent": "a"}))
    found.take(record("turn", "s:t1", "Born", outcome="born", fact={"session_id": "s"}))
    found.take(record("turn", "s:t1", "tool_started", fact={"number": 1, "call_id": "x"}))
    changes = found.take(record("session", "s", "ActorLost", outcome="fact"))
    ends = [(one.activity.id, one.activity.outcome) for one in changes if isinstance(one, Ended)]
    assert ends == [("s:t1:c1", "unknown"), ("s:t1", "failed"), ("s", "failed")]
    assert found.live == {}


def test_aborts_without_an_end_are_bounded() -> None:
    """Of aborts whose end is not on record only so many are kept; the oldest ends with an unknown outcome."""
    found = tracker()
    found.take(record("session", "s", "Born", outcome="born", fact={"agent": "a"}))
    changes = [
        change
        for number in range(ABORTS_MAX + 1)
        for change in found.take(
            record("session", "s", "AbortRecord", outcome="fact", abort_id=f"a{number}", fact={"target": "s"})
        )
    ]
    [ended] = [one.activity for one in changes if isinstance(one, Ended)]
    assert (ended.id, ended.outcome) == ("a0", "unknown")
