"""The tree that ``tree`` prints and the list that ``ps`` prints, made from entity rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.diagnostics.tree_view import Node, ps, tool_calls, tree
from supervisor.ports import EntityRow


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
    """In the tree agents, turns and child sessions are below their session in the order of birth, open calls below
    their turn."""
    expected = [("lead", ["lead:a1", ("lead:t1", ["lead:t1:c2"]), "lead/docs"]), "other"]
    assert shape(tree(ROWS)) == expected
    call = tree(ROWS)[0].children[1].children[0]
    assert (call.kind, call.state, call.note) == ("tool", "open", "sleep 60")


def test_the_tree_says_what_one_wants_to_know() -> None:
    """The note of a node in the tree shows a session's errors or outcome and an agent's pid."""
    lead = tree(ROWS)[0]
    notes = {node.id: node.note for node in (lead, *lead.children)}
    assert notes == {"lead": "broken, 2 errors", "lead:a1": "pid 7", "lead:t1": "", "lead/docs": "completed"}


def test_an_orphan_is_a_root() -> None:
    """An entity whose parent is missing from the rows, or is the entity itself, is a root of the tree."""
    rows = [row(1, "session", "a/b", "a"), row(2, "session", "loop", "".join(["lo", "op"]))]
    assert shape(tree(rows)) == ["a/b", "loop"]


def test_a_deep_tree_needs_no_recursion() -> None:
    """A chain of ten thousand child sessions is made into a tree, without recursion."""
    rows = [row(n, "session", f"s{n}", f"s{n - 1}" if n > 1 else None) for n in range(1, 10_001)]
    depth, nodes = 0, tree(rows)
    while nodes:
        depth, nodes = depth + 1, nodes[0].children
    assert depth == 10_000


def test_calls_of_a_turn_are_counted() -> None:
    """``tool_calls`` returns an id for each call that a turn has made, open or not."""
    assert tool_calls(ROWS[0]) == ("lead:t1:c1", "lead:t1:c2")
    assert tool_calls(ROWS[1]) == ()
    assert tool_calls(row(1, "turn", "t", data={"calls": 3})) == ("t:c1", "t:c2", "t:c3")


def test_ps_tells_ages_up_to_the_end() -> None:
    """``ps`` shows the age of a living entity until now, and of an ended one until its last change."""
    seen = {one.id: one for one in ps(ROWS, now=10.0)}
    assert (seen["lead"].age_s, seen["lead/docs"].age_s) == (9.0, 0.5)
    assert [one.id for one in ps(ROWS, now=10.0)] == ["lead", "lead:a1", "lead:t1", "lead/docs", "other"]


@pytest.mark.parametrize(
    ("now", "said", "visual"), [(10.0, {}, "RUNNING"), (400.0, {}, "STALLED"), (400.0, {"lead": 399.0}, "RUNNING")]
)
def test_ps_sees_an_agent_as_a_person_would(now: float, said: dict[str, float], visual: str) -> None:
    """``ps`` shows the visual state of an agent by the last activity of its session, and none for a session."""
    seen = {one.id: one.visual for one in ps(ROWS, now=now, active_at=said)}
    assert (seen["lead:a1"], seen["lead"]) == (visual, None)


@pytest.mark.parametrize("kind", ["turn", "agent"])
def test_what_happens_below_a_session_is_its_activity(kind: str) -> None:
    """A change of a turn or an agent counts as activity of its session for the visual state."""
    rows = [
        row(1, "session", "lead", state="Running"),
        row(2, "agent", "lead:a1", "lead", state="working", data={"pid": 7}),
        row(3, kind, "lead:x", "lead", changed_at=399.0),
    ]
    seen = {one.id: one.visual for one in ps(rows, now=400.0)}
    assert seen["lead:a1"] == "RUNNING"
    assert {one.id: one.visual for one in ps(rows[:2], now=400.0)}["lead:a1"] == "STALLED"


def test_a_clock_that_was_set_back_makes_nothing_younger_than_new() -> None:
    """The age that ``ps`` shows is never negative, also if the clock was set back."""
    assert [one.age_s for one in ps(ROWS[:1], now=1.0)] == [0.0]


@pytest.mark.parametrize(
    ("kind", "data", "note"),
    [
        ("session", {"total_errors": 1}, "1 error"),
        ("session", {"total_errors": 0, "outcome": "completed"}, "completed"),
        ("agent", {"pid": 7, "status": 0}, "pid 7, exit status 0"),
        ("agent", {"status": -9}, "exit status -9"),
        ("turn", {"verdict": {"error": "slow"}}, "slow"),
        ("turn", {"verdict": None}, ""),
        ("task", {"outcome": "completed", "pid": 7}, ""),
    ],
)
def test_a_note_is_what_matters_for_its_kind(kind: str, data: dict[str, Any], note: str) -> None:
    """A note shows a session's errors or outcome, an agent's pid and exit status, or a turn's error."""
    assert ps([row(1, kind, "x", data=data)], now=2.0)[0].note == note


def test_calls_of_what_has_ended_are_not_open() -> None:
    """The tree shows no open calls below a turn that has ended."""
    rows = [row(1, "turn", "t", ended=True, data={"open": [{"number": 1}], "calls": 1})]
    assert shape(tree(rows)) == ["t"]


@pytest.mark.parametrize(("parent", "child"), [("a", "b"), ("b", "a")])
def test_a_child_may_have_any_name(parent: str, child: str) -> None:
    """The parent of an entity is read from its row, not derived from its id."""
    assert shape(tree([row(1, "session", parent), row(2, "session", child, parent)])) == [(parent, [child])]


def test_calls_stand_below_the_call_that_they_are_made_within() -> None:
    """In the tree a nested call is below its enclosing call if the enclosing call is open, else below its turn."""
    within = {1: 0, 2: 1, 3: 1, 4: 3, 6: 5}
    open_calls = [{"number": number, "call_id": f"x{number}", "within": one} for number, one in within.items()]
    (turn,) = tree([row(1, "turn", "t", data={"open": open_calls})])
    assert shape((turn,)) == [("t", [("t:c1", ["t:c2", ("t:c3", ["t:c4"])]), "t:c6"])]
