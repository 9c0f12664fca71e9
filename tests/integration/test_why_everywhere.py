"""Causes of every end in simulated runs: each chain of causes leads to exactly one root, which names an actor.

By default every second scenario is run once; ``make scale`` runs all of them with more seeds (``--runs``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from supervisor.diagnostics.causal_trace import RecordList, roots, why
from supervisor.diagnostics.tree_view import tool_calls
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.simulation.journal import SimulatedDisk
from tests.simulated import SCENARIOS, simulated_journal
from tests.support import check_records


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    """Fixture: the seeds with which each scenario is run."""
    return range(int(request.config.getoption("--runs")))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with the scenarios: with every second one if each is run once, else with all."""
    if "scenario" in metafunc.fixturenames:
        step = 2 if metafunc.config.getoption("--runs") == 1 else 1
        metafunc.parametrize("scenario", SCENARIOS[::step])


def test_every_end_has_one_root(scenario: str, seeds: range) -> None:
    """In simulated runs the end of every session, turn, agent, call and task has exactly one root cause, and every
    cause is in the journal."""
    for seed in seeds:
        try:
            check_journal(simulated_journal(scenario, seed))
        except BaseException as error:
            error.add_note(f"seed {seed}: tests.simulated.simulated_journal({scenario!r}, {seed})")
            raise


def test_the_scenarios_cover_every_kind_of_end() -> None:
    """Each way to end, each delivery point and each policy edge occurs in the runs of three scenarios."""
    runs = [(scenario, seed) for scenario in ("policies", "swarm", "urgent") for seed in range(4)]
    seen = Counter(word for run in runs for one in records(simulated_journal(*run)) for word in words_of(one))
    wanted = {
        *("now", "tool_boundary", "turn_end"),
        *("tool", "sibling", "session", "tool_to_sibling", "sibling_to_session"),
        *("completed", "failed", "aborted"),
        *("request", "cancel", "kill"),
        *("GraceExceeded", "BoundaryReached", "FatalError"),
    }
    assert wanted - set(seen) == set()


def words_of(record: LifecycleEvent) -> Iterator[str]:
    yield record.event
    for field in ("point", "scope", "policy_edge", "outcome", "rung"):
        if isinstance(word := record.metadata.get(field), str):
            yield word


# ---------------------------------------------------------------------------------------------------------- checks
def records(store: SimulatedDisk) -> list[LifecycleEvent]:
    return store.log.after(0, 1_000_000)


def check_journal(store: SimulatedDisk) -> None:
    """Check the invariants of a journal, and the chain of causes of every entity and tool call."""
    events = records(store)
    check_records(events, store.entities.values(), store.owed.values(), refused=True)
    by_seq = {one.seq: one for one in events}
    for one in events:
        assert one.cause_id is None or one.cause_id in by_seq, f"the cause is missing of {one}"
        # A request of a host or an agent may come too late; a message that the supervisor sends itself never does.
        requested = one.cause_id is None or one.event == "tool_started"
        assert one.outcome != "refused" or requested, f"refused: {one}"
        if one.event == "tool_completed" and one.abort_id is not None and one.cause_id is not None:
            assert by_seq[one.cause_id].abort_id == one.abort_id, f"does not follow from its abort: {one}"
    listed = RecordList(events)
    for row in store.entities.values():
        for entity_id in (row.id, *(tool_calls(row) if row.kind == "turn" else ())):
            check_explained(listed, entity_id)


def check_explained(events: RecordList, entity_id: str) -> None:
    found = roots(events, entity_id)
    assert len(found) == 1, f"{entity_id} has {len(found)} roots: {found}"
    assert all(one.actor not in ("", "supervisor") for one in found), f"no actor is named: {found}"
    explanation = why(events, entity_id)
    assert (explanation.root, explanation.roots, explanation.missing) == (found[0], 1, None)
    seqs = [step.record.seq for step in explanation.steps]
    assert seqs == sorted(set(seqs)), f"{entity_id}: the spine is not in order: {seqs}"
    assert all(
        later.record.cause_id == earlier.record.seq
        for earlier, later in zip(explanation.steps, explanation.steps[1:], strict=False)
    )
