"""Figures about the states of machines, from records."""

from __future__ import annotations

from itertools import pairwise

import pytest

from supervisor.diagnostics.state_metrics import StateFigures, measure_states
from supervisor.lifecycles.types import LifecycleEvent, RecordId


def records(machine: str, entity_id: str, *visits: tuple[float, str]) -> list[LifecycleEvent]:
    """Return the records of an entity that enters a state at each of these times (seconds)."""
    first, *_ = visits
    made = [(first[0], "born", "", first[1])]
    made += [(at, "transition", before, state) for (_, before), (at, state) in pairwise(visits)]
    return [
        LifecycleEvent(
            seq=RecordId(number),
            timestamp=at,
            monotonic_s=at,
            entity_type=machine,
            entity_id=entity_id,
            entity_seq=number,
            event="e",
            outcome=outcome,
            from_status=before,
            to_status=state,
        )
        for number, (at, outcome, before, state) in enumerate(made, 1)
    ]


WELL = records(
    "run",
    "a",
    (0, "PENDING"),
    (2, "IN_PROGRESS"),
    (5, "FAILED"),
    (5, "RETRYING"),
    (6, "IN_PROGRESS"),
    (13, "VALIDATING"),
    (14, "COMPLETED"),
)
BADLY = records("run", "b", (0, "PENDING"), (4, "IN_PROGRESS"), (14, "FAILED"), (14, "CIRCUIT_OPEN"))


def test_states_of_a_run() -> None:
    """Each visit counts with its duration, what followed, and how the run ended; a run that stays in CIRCUIT_OPEN has
    not ended well."""
    found = {one.state: one for one in measure_states([*WELL, *BADLY])}
    assert [*found] == [
        "PENDING",
        "IN_PROGRESS",
        "VALIDATING",
        "COMPLETED",
        "FAILED",
        "RETRYING",
        "CIRCUIT_OPEN",
    ]
    assert found["PENDING"] == StateFigures(
        machine="run", state="PENDING", visits=2, mean_s=3.0, succeeded=0.5, next="IN_PROGRESS"
    )
    working = found["IN_PROGRESS"]
    assert working.mean_s == pytest.approx(20 / 3, abs=1e-6)
    assert (working.visits, working.succeeded, working.next) == (3, 0.6667, "FAILED")
    assert (found["CIRCUIT_OPEN"].mean_s, found["CIRCUIT_OPEN"].succeeded, found["CIRCUIT_OPEN"].next) == (
        None,
        0.0,
        "",
    )


def test_only_the_named_machines() -> None:
    """Records of other machines are left out; what has not ended is not judged."""
    session = records("session", "s", (0, "Initializing"), (1, "Running"))
    assert measure_states(session, ["run"]) == []
    initializing, running = measure_states([*session, *WELL], ["session"])
    assert (initializing.mean_s, initializing.succeeded, running.mean_s) == (1.0, None, None)
    open_run = measure_states(WELL[:2], ["run"])
    assert [(one.state, one.succeeded) for one in open_run] == [("PENDING", None), ("IN_PROGRESS", None)]


def test_a_transition_that_stays_is_no_visit() -> None:
    """A record that does not change the state neither ends nor begins a visit."""
    stays = records("run", "a", (0, "IN_PROGRESS"), (3, "IN_PROGRESS"), (8, "VALIDATING"))
    first, _ = measure_states(stays)
    assert (first.visits, first.mean_s, first.next) == (1, 8.0, "VALIDATING")
