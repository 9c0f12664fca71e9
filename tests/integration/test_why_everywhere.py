"""Causes of every end in seeded runs: each chain of causes leads to exactly one root, which names an actor.

200 runs by default and 1,000 with ``make scale`` (``--runs``), four in five on trio's virtual clock and the others on
asyncio's; a failure names its seed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from supervisor.diagnostics.causal_trace import roots, why
from supervisor.diagnostics.tree_view import tool_calls
from supervisor.journal.memory import MemoryStore
from supervisor.lifecycles.types import LifecycleEvent
from tests.simulated import simulate
from tests.support import check_records

CHUNK = 40


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the requested number of seeds, several to a test."""
    if "seeds" in metafunc.fixturenames:
        runs = int(metafunc.config.getoption("--runs"))
        chunks = [
            (backend, range(first, min(first + CHUNK, count)))
            for backend, count in (("trio", runs * 4 // 5), ("asyncio", runs // 5))
            for first in range(0, count, CHUNK)
        ]
        ids = [f"{backend}-{seeds.start}-{seeds.stop - 1}" for backend, seeds in chunks]
        metafunc.parametrize(("backend", "seeds"), chunks, ids=ids)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the log of the many sessions that stop."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_end_has_one_root(backend: str, seeds: range) -> None:
    """The end of every session, turn, agent, call and task has one root, and every cause is in the journal."""
    for seed in seeds:
        try:
            ran = simulate(seed, backend)
            check_journal(ran.store)
            if ran.crashed is not None:
                check_journal(ran.crashed)
        except BaseException as error:
            error.add_note(f"seed {seed} on {backend}: tests.simulated.simulate({seed}, {backend!r})")
            raise


def test_the_seeds_cover_every_kind_of_end() -> None:
    """Each way to end, each delivery point and each policy edge occurs among the seeds."""
    seen: Counter[str] = Counter()
    for seed in range(120):
        ran = simulate(seed, "trio")
        for store in (ran.store, *([ran.crashed] if ran.crashed is not None else [])):
            seen.update(word for one in records(store) for word in words_of(one))
    wanted = {
        *("now", "tool_boundary", "turn_end"),
        *("tool", "sibling", "session", "tool_to_sibling", "sibling_to_session"),
        *("completed", "failed", "aborted"),
        *("request", "cancel", "kill"),
        *("GraceExceeded", "BoundaryReached", "FatalError"),
        *("ann", "cat", "host", "recovery", "plan"),
    }
    assert wanted - set(seen) == set()


def words_of(record: LifecycleEvent) -> Iterator[str]:
    yield record.event
    yield record.actor
    for field in ("point", "scope", "policy_edge", "outcome", "rung"):
        if isinstance(word := record.metadata.get(field), str):
            yield word


# ---------------------------------------------------------------------------------------------------------- checks
def records(store: MemoryStore) -> list[LifecycleEvent]:
    return store.log.after(0, 1_000_000)


def check_journal(store: MemoryStore) -> None:
    """Check the invariants of a journal, and the causal trace of everything that ended."""
    events = records(store)
    check_records(events, store.entities.values(), store.owed.values(), refused=True)
    by_seq = {one.seq: one for one in events}
    for one in events:
        assert one.cause_id is None or one.cause_id in by_seq, f"the cause is missing of {one}"
        # A host, or an agent, may wish for what comes too late; what the supervisor tells itself is never refused.
        wished = one.cause_id is None or one.event == "tool_started"
        assert one.outcome != "refused" or wished, f"refused: {one}"
    for row in store.entities.values():
        for entity_id in (row.id, *(tool_calls(row) if row.kind == "turn" else ())):
            check_explained(by_seq, entity_id)


def check_explained(by_seq: dict[int, LifecycleEvent], entity_id: str) -> None:
    found = roots(by_seq, entity_id)
    assert len(found) == 1, f"{entity_id} has {len(found)} roots: {[(one.seq, one.event, one.actor) for one in found]}"
    assert found[0].actor not in ("", "supervisor"), f"nobody is behind {found[0]}"
    explanation = why(by_seq, entity_id)
    assert (explanation.root, explanation.roots, explanation.missing) == (found[0], 1, None)
    seqs = [step.record.seq for step in explanation.steps]
    assert seqs == sorted(set(seqs)), f"{entity_id}: the trunk is not in order: {seqs}"
    assert all(
        later.record.cause_id == earlier.record.seq
        for earlier, later in zip(explanation.steps, explanation.steps[1:], strict=False)
    )
