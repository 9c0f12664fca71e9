"""The tree of causes, folded from records: its trunk, its branches, and the one root of it all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.diagnostics.causal_trace import Explanation, RecordRole, roots, why
from supervisor.lifecycles.types import LifecycleEvent


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


def test_a_cause_must_be_older_than_its_own_effect() -> None:
    """It is not enough to be older than the end: the chain stops where it would go forward in time."""
    events = [event(2, "lead", "Odd", cause=4), event(4, "lead", "Odder"), event(5, "lead", "Last", cause=2)]
    explanation = why(events, "lead")
    assert ([one.seq for one in explanation.records], explanation.missing) == ([2, 5], 4)


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


# ------------------------------------------------------------------------------------------------------- branches
def shape(explanation: Explanation) -> list[Any]:
    """The tree: each step's role and number, and its branches' where it has some."""
    return [
        (step.role.value, step.record.seq, *((branch.role.value, branch.record.seq) for branch in step.branches))
        for step in explanation.steps
    ]


ESCALATED = [
    abort_record(1, "lead/a:t1", "abort-1"),
    abort_record(2, "lead/a:t1", "abort-1/tool_to_sibling", parent="abort-1"),
    abort_record(3, "lead/a:t1", "abort-1/sibling_to_session", parent="abort-1"),
    event(4, "lead/b", "OperatorStop", cause=2, abort_id="abort-1"),
    event(5, "lead/b:t1", "task_failed", cause=4, abort_id="abort-1"),
    event(6, "lead/b", "Ended", cause=4, from_status="S4", to_status="S4", metadata={"rung": "cancel", "took_s": 0.1}),
    event(7, "lead/b", "OperatorStop", from_status="S4", to_status="S4", actor="ben"),
]
for _at, _edge in ((1, "tool_to_sibling"), (2, "sibling_to_session")):
    ESCALATED[_at].metadata["policy_edge"] = _edge
    ESCALATED[_at] = msgspec.structs.replace(ESCALATED[_at], cause_id=1)


def test_an_escalated_abort_is_one_tree() -> None:
    """The edge that it came over is on the trunk, the other one a branch of the wish, and rungs and later causes hang
    on the end."""
    assert shape(why(ESCALATED, "lead/b")) == [
        ("root", 1, ("policy edge", 3)),
        ("policy edge", 2),
        ("end", 4, ("rung", 6), ("later cause", 7)),
    ]
    assert [one.seq for one in roots(ESCALATED, "lead/b")] == [1]


def test_what_ended_with_it_has_the_same_root() -> None:
    """A turn that ended with its session goes back to the same wish, and has no rungs of its own."""
    assert shape(why(ESCALATED, "lead/b:t1"))[-2:] == [("cause", 4), ("end", 5)]
    assert why(ESCALATED, "lead/b:t1").root == ESCALATED[0]


def test_an_abort_that_is_named_but_caused_nothing_is_a_branch() -> None:
    """Where a record names an abort that its chain does not come from, it is told beside it, and counted as a root."""
    events = [event(1, "lead", "Born", actor="host"), abort_record(2, "lead", "x"), event(3, "lead", "Odd", cause=1)]
    events[2] = msgspec.structs.replace(events[2], abort_id="x")
    explanation = why(events, "lead")
    assert shape(explanation) == [("root", 1), ("end", 3, ("abort", 2))]
    assert (explanation.root, explanation.roots) == (events[0], 2)
    assert [one.seq for one in roots(events, "lead")] == [1, 2]


def test_a_late_failure_of_a_turn_is_a_later_cause() -> None:
    """The first reason wins; what came after it is told as such, and is no root of the end."""
    events = [
        event(1, "lead:t1", "task_failed", reason="enough"),
        event(2, "lead:t1", "agent_reaped", cause=1),
        event(3, "lead:t1", "task_failed", outcome="stale", reason="too slow"),
        event(4, "lead:t1", "tool_completed", outcome="stale"),
    ]
    assert shape(why(events, "lead:t1")) == [("root", 1), ("end", 2, ("later cause", 3))]
    assert [one.seq for one in roots(events, "lead:t1")] == [1]


def test_where_a_cause_is_missing_there_is_no_root() -> None:
    """No root is invented, and the missing record is named."""
    events = [event(7, "lead", "SessionExited", cause=5)]
    explanation = why(events, "lead")
    assert (explanation.root, explanation.roots, explanation.missing) == (None, 0, 5)
    assert roots(events, "lead") == ()


def test_a_rung_with_another_root_is_counted() -> None:
    """The end and the joining of its scope must go back to the same root: if they do not, it shows."""
    events = [
        event(1, "lead", "OperatorStop", actor="ann"),
        event(2, "other", "OperatorStop", actor="ben"),
        event(3, "lead", "Ended", cause=2, from_status="S1", to_status="S1", metadata={"rung": "kill"}),
    ]
    assert len(roots(events, "lead")) == why(events, "lead").roots == 2


def test_a_chain_may_be_very_long() -> None:
    """Ten thousand steps are a tree like any other, also as JSON."""
    events = [event(n, f"s{n}", "Next", cause=n - 1 if n > 1 else None) for n in range(1, 10_001)]
    explanation = why(events, "s10000")
    assert len(explanation.steps) == 10_000
    assert msgspec.json.decode(msgspec.json.encode(explanation))["root"]["seq"] == 1


def test_only_some_later_records_are_causes() -> None:
    """Facts of an abort count, what merely happened does not."""
    events = [
        event(1, "lead", "OperatorStop"),
        event(2, "lead", "TurnReaped", from_status="S1", to_status="S1"),
        event(3, "lead", "Noted", outcome="fact"),
        event(4, "lead", "CauseAppended", outcome="fact", abort_id="abort-9"),
        abort_record(5, "lead", "abort-9"),
        event(6, "lead", "FatalError", from_status="S1", to_status="S1"),
    ]
    assert shape(why(events, "lead")) == [("root", 1, ("later cause", 4), ("later cause", 5), ("later cause", 6))]
    assert RecordRole.LATER.value == "later cause"


def test_a_second_abort_of_a_call_is_a_later_cause() -> None:
    """A call has no log of its own: the abort that came too late stands in its turn's."""
    late, other = abort_record(7, "lead:t1", "abort-7"), abort_record(8, "lead:t1", "abort-8")
    late.metadata["target"], other.metadata["target"] = "lead:t1:c1", "lead:t1:c3"
    assert shape(why([*CALLS, late, other], "lead:t1:c1")) == [("root", 3, ("later cause", 7))]


def test_an_abort_from_the_future_is_no_root() -> None:
    """A record that names an abort which was recorded after it does not go back to that one."""
    events = [event(1, "lead", "OperatorStop", abort_id="x"), abort_record(2, "other", "x")]
    assert [one.seq for one in roots(events, "lead")] == [1]


@pytest.mark.parametrize("outcome", ["stale", "refused", "transition"])
def test_what_only_names_an_abort_is_no_later_cause(outcome: str) -> None:
    """It takes a fact about the abort, or an event that ends something."""
    events = [
        event(1, "lead", "OperatorStop"),
        event(2, "lead", "Noted", outcome=outcome, from_status="S1", to_status="S1", abort_id="x"),
    ]
    assert shape(why(events, "lead")) == [("root", 1)]


@pytest.mark.parametrize(("before", "after"), [("A", "B"), ("B", "A")])
def test_any_other_state_is_a_change(before: str, after: str) -> None:
    """Whatever the states are called."""
    events = [
        event(1, "lead", "Born", outcome="born", from_status=""),
        event(2, "lead", "Moved", from_status=before, to_status=after),
        event(3, "lead", "Noted", from_status=after, to_status=after),
    ]
    assert explained(events, "lead") == [2]


def test_an_end_that_was_overcome_is_no_later_cause() -> None:
    """What ended an earlier try stands before the last change and has nothing to do with it."""
    events = [event(1, "lead", "task_failed"), event(2, "lead", "Retried")]
    assert shape(why(events, "lead")) == [("root", 2)]


def test_a_call_is_explained_by_what_came_after_its_start() -> None:
    """An earlier failure of its turn, or an earlier call of the same name, is not its end."""
    events = [
        event(1, "lead:t1", "tool_completed", metadata={"call_id": "x"}),
        event(2, "lead:t1", "task_failed"),
        event(3, "lead:t1", "tool_started", metadata={"number": 2, "call_id": "x"}),
        event(4, "lead:t1", "tool_completed", metadata={"call_id": "y"}),
        event(5, "lead:t1", "task_failed", outcome="stale"),
    ]
    assert explained(events, "lead:t1:c2") == [3]
