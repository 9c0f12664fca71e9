"""The command ``demo``: its results are as documented, and every end has a cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from supervisor.cli import demo
from supervisor.diagnostics.causal_trace import RecordList, roots, why
from supervisor.diagnostics.tree_view import tool_calls
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import EntityRow
from tests.support import no_leaks


class Played:
    """Container of the results of one demo: receipts, task results, summary, rows and records."""

    def __init__(self, state: StateDir, receipts: Any, results: Any) -> None:
        self.receipts, self.results = receipts, results
        self.summary = demo.summary(state, receipts, results, 0)
        with JournalReader(state.journal) as reader:
            self.rows: list[EntityRow] = reader.entities()
            self.events: list[LifecycleEvent] = list(reader.events())


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    with no_leaks(), demo.repository() as repository:
        state = StateDir(repository / ".sdd")
        receipts, results = anyio.run(demo.play, repository, state.root, lambda text: None)
        yield Played(state, receipts, results)


def test_the_demonstration_goes_as_it_says(played: Played) -> None:
    """In the demo every session ends as expected, no illegal event is recorded, no process survives, and every end has
    a cause."""
    assert played.summary["ok"], played.summary
    assert played.summary["unexplained"] == []


def test_every_end_in_the_demonstration_has_one_root(played: Played) -> None:
    """In the demo the chain of causes of each session, agent, turn and tool call leads to exactly one root, which names
    an actor."""
    ids = [one for row in played.rows for one in (row.id, *(tool_calls(row) if row.kind == "turn" else ()))]
    assert {"lead", "lead:t1", "lead:a1", "slow:t1:c1", "forest/right/deeper:t1:c1"} <= set(ids)
    records = RecordList(played.events)
    for entity_id in ids:
        [root] = roots(records, entity_id)
        explanation = why(records, entity_id)
        assert (explanation.root, explanation.roots, explanation.missing) == (root, 1, None), entity_id
        assert root.actor not in ("", "supervisor"), entity_id


@pytest.mark.parametrize(
    ("entity_id", "event", "actor"),
    [
        ("slow:t1:c1", "AbortRecord", "host"),
        ("hung:a1", "AbortRecord", "host"),
        ("forest/right/deeper", "AbortRecord", "host"),
        ("steered:t1", "UrgentMessage", "operator"),
        ("crashy:a1", "TurnRequested", "host"),
        ("lead", "OperatorStop", "host"),
    ],
)
def test_the_root_is_what_a_person_would_say(played: Played, entity_id: str, event: str, actor: str) -> None:
    """In the demo the root cause of each end is its actual reason: an abort, a message, a prompt, or the end of the
    supervisor."""
    [root] = roots(RecordList(played.events), entity_id)
    assert (root.event, root.actor) == (event, actor)
