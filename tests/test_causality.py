"""Chains of causes, the tree, and the list of what there is, folded from records and rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.causality import Node, ps, tool_calls, tree, why
from supervisor.ports import EntityRow
from supervisor.vocabulary import LifecycleEvent


def event(seq: int, entity: str, name: str, *, cause: int | None = None, **more: Any) -> LifecycleEvent:
    kind = {0: "session", 1: "turn"}.get(entity.count(":"), "agent")
    fields = {"entity_type": kind, "entity_seq": seq, "from_status": "A", "to_status": f"S{seq}", **more}
    return LifecycleEvent(
        seq=seq, timestamp=float(seq), monotonic_s=float(seq), entity_id=entity, event=name, cause_id=cause, **fields
    )


def abort_record(seq: int, entity: str, abort_id: str, *, parent: str | None = None, **more: Any) -> LifecycleEvent:
    metadata = {"id": abort_id, "parent_record": parent}
    return event(
        seq, entity, "AbortRecord", outcome="fact", from_status="", abort_id=abort_id, metadata=metadata, **more
    )


def explained(events: list[LifecycleEvent], entity: str) -> list[int]:
    return [one.seq for one in why(events, entity).records]


# ---------------------------------------------------------------------------------------------------------- why
def test_a_chain_goes_from_the_root_to_the_last_change() -> None:
    """The records are those of the causes only, the root first, whatever else happened in between."""
    events = [
        event(1, "lead", "TurnRequested"),
        event(2, "other", "TurnRequested"),
        event(3, "lead:t1", "task_claimed", cause=1),
        event(4, "lead", "WorktreeReady", cause=1),
        event(5, "lead:t1", "task_failed", cause=3),
        event(6, "lead", "SessionExited", cause=5),
    ]
    explanation = why(events, "lead")
    assert [one.seq for one in explanation.records] == [1, 3, 5, 6]
    assert explanation.missing is None


def test_what_changed_no_state_is_no_end() -> None:
    """Facts, refusals, stale records and rules that stay do not become the end of a chain."""
    events = [
        event(1, "lead", "OperatorStop"),
        event(2, "lead", "Ended", cause=1, from_status="Stopped", to_status="Stopped"),
        event(3, "lead", "SessionExited", outcome="stale"),
        event(4, "lead", "TurnRequested", outcome="refused", from_status=""),
        event(5, "lead", "Noted", outcome="fact", from_status=""),
    ]
    assert explained(events, "lead") == [1]


def test_what_was_born_and_never_moved_is_explained_by_its_birth() -> None:
    """The first record of an entity counts as a change."""
    events = [
        event(1, "lead", "TurnRequested"),
        event(2, "lead:t1", "Born", outcome="born", cause=1, to_status="A"),
        event(3, "lead:t1", "Noted", outcome="fact", cause=2),
    ]
    assert explained(events, "lead:t1") == [1, 2]


def test_an_abort_on_the_way_is_told_with_its_parents() -> None:
    """Where a record carries an abort's id, its record is in the chain, and the one that it was escalated from."""
    events = [
        abort_record(1, "lead", "abort-1"),
        abort_record(2, "lead", "abort-1/edge", parent="abort-1"),
        event(3, "lead/a", "OperatorStop", abort_id="abort-1/edge"),
        abort_record(4, "lead", "abort-4"),
        event(5, "lead/a:t1", "task_failed", cause=3, abort_id="abort-1/edge"),
    ]
    assert explained(events, "lead/a:t1") == [1, 2, 3, 5]


def test_several_records_of_one_abort_do_not_hide_the_first() -> None:
    """Records of crossed edges carry the id of the abort too; the wish itself is still found."""
    events = [
        abort_record(1, "lead", "abort-1"),
        event(
            2,
            "lead",
            "AbortRecord",
            outcome="fact",
            abort_id="abort-1",
            metadata={"id": "abort-1/tool_to_sibling", "parent_record": "abort-1"},
        ),
        event(3, "lead", "OperatorStop", abort_id="abort-1"),
    ]
    assert explained(events, "lead") == [1, 3]


def test_a_cause_that_is_not_there_is_named() -> None:
    """A journal that lost a record gives the chain up to there and the number that is missing."""
    explanation = why({7: event(7, "lead", "SessionExited", cause=5)}, "lead")
    assert ([one.seq for one in explanation.records], explanation.missing) == ([7], 5)


def test_a_cause_from_the_future_ends_the_chain() -> None:
    """A record cannot be caused by a later one: such a journal is answered, not followed in circles."""
    events = [event(1, "lead", "Odd", cause=2), event(2, "lead", "Odder", cause=1)]
    explanation = why(events, "lead")
    assert ([one.seq for one in explanation.records], explanation.missing) == ([1, 2], 2)


@pytest.mark.parametrize("entity", ["nobody", "lead:t1:c9", "lead:t9:c1", "lead:t1:cx", ""])
def test_an_unknown_id_is_an_error(entity: str) -> None:
    """Nothing is explained that no record is about."""
    with pytest.raises(LookupError, match="the journal has no record of"):
        why([event(1, "lead", "Born"), event(2, "lead:t1", "Born")], entity)


CALLS = [
    event(1, "lead:t1", "tool_started", metadata={"number": 1, "call_id": "x"}),
    event(2, "lead:t1", "tool_started", metadata={"number": 2, "call_id": "y"}, cause=1),
    event(3, "lead:t1", "tool_completed", metadata={"call_id": "x", "outcome": "completed"}),
    event(4, "lead:t1", "tool_completed", metadata={"call_id": "x", "outcome": "failed"}, outcome="stale"),
    event(5, "lead:t1", "tool_started", metadata={"number": 3, "call_id": "x"}),
    event(6, "lead:t1", "tool_completed", metadata={"call_id": "x", "outcome": "aborted"}),
]


@pytest.mark.parametrize(("call", "end"), [("c1", 3), ("c3", 6)])
def test_a_tool_call_is_explained_by_its_own_result(call: str, end: int) -> None:
    """A call's id is found by its number, its result by the agent's name for it, which may be used again."""
    assert explained(CALLS, f"lead:t1:{call}")[-1] == end


def test_an_open_call_is_explained_by_its_start() -> None:
    """While a call is open its last record is the one that opened it."""
    assert explained(CALLS, "lead:t1:c2") == [1, 2]


def test_a_call_that_its_turn_took_along_is_explained_by_the_turn() -> None:
    """A turn that fails is the end of its open calls."""
    failed = event(7, "lead:t1", "task_failed", cause=5)
    assert explained([*CALLS, failed], "lead:t1:c2") == [5, 7]


# ---------------------------------------------------------------------------------------------- what there is
def row(number: int, kind: str, entity: str, parent: str | None = None, **more: Any) -> EntityRow:
    fields: dict[str, Any] = {"state": "Running", "ended": False, "born_at": float(number), "changed_at": number + 0.5}
    fields |= more
    data = msgspec.json.encode(fields.pop("data", {}))
    return EntityRow(kind=kind, id=entity, parent_id=parent, data=data, entity_seq=1, born_seq=number, **fields)


ROWS = [
    row(3, "turn", "lead:t1", "lead", data={"open": [{"number": 2, "call_id": "x", "title": "sleep 60"}], "calls": 2}),
    row(1, "session", "lead", data={"last_error": "broken", "total_errors": 2}),
    row(2, "agent", "lead:a1", "lead", state="working", data={"pid": 7}),
    row(4, "session", "lead/docs", "lead", ended=True, data={"outcome": "completed"}),
    row(5, "session", "other"),
]


def shape(nodes: tuple[Node, ...]) -> Any:
    return [(node.id, shape(node.children)) if node.children else node.id for node in nodes]


def test_the_tree_has_sessions_with_what_is_below_them() -> None:
    """Agents, turns and child sessions hang under their session in the order of birth, open calls under their turn."""
    expected = [("lead", ["lead:a1", ("lead:t1", ["lead:t1:c2"]), "lead/docs"]), "other"]
    assert shape(tree(ROWS)) == expected
    call = tree(ROWS)[0].children[1].children[0]
    assert (call.kind, call.state, call.note) == ("tool", "open", "sleep 60")


def test_the_tree_says_what_one_wants_to_know() -> None:
    """Beside the state stand errors, outcome, pid and exit status."""
    lead = tree(ROWS)[0]
    notes = {node.id: node.note for node in (lead, *lead.children)}
    assert notes == {"lead": "broken, 2 errors", "lead:a1": "pid 7", "lead:t1": "", "lead/docs": "completed"}


def test_an_orphan_is_a_root() -> None:
    """A row whose parent is not shown, or is itself, is still shown, once."""
    rows = [row(1, "session", "a/b", "a"), row(2, "session", "loop", "loop")]
    assert shape(tree(rows)) == ["a/b", "loop"]


def test_a_deep_tree_needs_no_recursion() -> None:
    """Ten thousand delegations in a row are a tree like any other."""
    rows = [row(n, "session", f"s{n}", f"s{n - 1}" if n > 1 else None) for n in range(1, 10_001)]
    depth, nodes = 0, tree(rows)
    while nodes:
        depth, nodes = depth + 1, nodes[0].children
    assert depth == 10_000


def test_calls_of_a_turn_are_counted() -> None:
    """Every call that a turn made has an id, whether it is open or not."""
    assert tool_calls(ROWS[0]) == ("lead:t1:c1", "lead:t1:c2")
    assert tool_calls(ROWS[1]) == ()


def test_ps_tells_ages_up_to_the_end() -> None:
    """What lives is as old as now, what has ended as old as it got."""
    seen = {one.id: one for one in ps(ROWS, now=10.0)}
    assert (seen["lead"].age_s, seen["lead/docs"].age_s) == (9.0, 0.5)
    assert [one.id for one in ps(ROWS, now=10.0)] == ["lead", "lead:a1", "lead:t1", "lead/docs", "other"]


@pytest.mark.parametrize(
    ("now", "said", "visual"), [(10.0, {}, "RUNNING"), (400.0, {}, "STALLED"), (400.0, {"lead": 399.0}, "RUNNING")]
)
def test_ps_sees_an_agent_as_a_person_would(now: float, said: dict[str, float], visual: str) -> None:
    """An agent's visual state is judged by the last activity of its session: records, or what it said."""
    seen = {one.id: one.visual for one in ps(ROWS, now=now, active_at=said)}
    assert (seen["lead:a1"], seen["lead"]) == (visual, None)
