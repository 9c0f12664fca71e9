"""Causal traces of made-up records: the chain of causes (spine), its annotations, and the root event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from supervisor.diagnostics import causal_trace
from supervisor.diagnostics.causal_trace import Explanation, RecordList, RecordRole
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


def why(events: Iterable[LifecycleEvent], entity: str) -> Explanation:
    return causal_trace.why(RecordList(events), entity)


def roots(events: Iterable[LifecycleEvent], entity: str) -> tuple[LifecycleEvent, ...]:
    return causal_trace.roots(RecordList(events), entity)


def explained(events: list[LifecycleEvent], entity: str) -> list[int]:
    return [one.seq for one in why(events, entity).records]


# ---------------------------------------------------------------------------------------------------------- why
def test_a_chain_goes_from_the_root_to_the_last_change() -> None:
    """The spine of a trace has only the records that are causes of the last change, the root first."""
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
    """A fact, a refusal, a stale record, or a transition that stays in its state, is not the end of a trace."""
    events = [
        event(1, "lead", "OperatorStop"),
        event(2, "lead", "Ended", cause=1, from_status="Stopped", to_status="Stopped"),
        event(3, "lead", "SessionExited", outcome="stale"),
        event(4, "lead", "TurnRequested", outcome="refused", from_status=""),
        event(5, "lead", "Noted", outcome="fact", from_status=""),
    ]
    assert explained(events, "lead") == [1]


def test_what_was_born_and_never_moved_is_explained_by_its_birth() -> None:
    """The trace of an entity that has only its birth ends at the birth."""
    events = [
        event(1, "lead", "TurnRequested"),
        event(2, "lead:t1", "Born", outcome="born", cause=1, to_status="A"),
        event(3, "lead:t1", "Noted", outcome="fact", cause=2),
    ]
    assert explained(events, "lead:t1") == [1, 2]


def test_an_abort_on_the_way_is_told_with_its_parents() -> None:
    """The trace has the abort that its records name, and the abort from which that abort was escalated."""
    events = [
        abort_record(1, "lead", "abort-1"),
        abort_record(2, "lead", "abort-1/edge", parent="abort-1"),
        event(3, "lead/a", "OperatorStop", abort_id="abort-1/edge"),
        abort_record(4, "lead", "abort-4"),
        event(5, "lead/a:t1", "task_failed", cause=3, abort_id="abort-1/edge"),
    ]
    assert explained(events, "lead/a:t1") == [1, 2, 3, 5]


def test_several_records_of_one_abort_do_not_hide_the_first() -> None:
    """The trace begins with the request of an abort, not with the record of a crossed policy edge of the same abort."""
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
    """If the record of a cause is missing, the trace ends there, and ``missing`` has the number of that record."""
    explanation = why([event(7, "lead", "SessionExited", cause=5)], "lead")
    assert ([one.seq for one in explanation.records], explanation.missing) == ([7], 5)


def test_a_cause_from_the_future_ends_the_chain() -> None:
    """A cause that is younger than its effect ends the trace."""
    events = [event(1, "lead", "Odd", cause=2), event(2, "lead", "Odder", cause=1)]
    explanation = why(events, "lead")
    assert ([one.seq for one in explanation.records], explanation.missing) == ([1, 2], 2)


def test_a_cause_must_be_older_than_its_own_effect() -> None:
    """A cause must be older than the record that it caused, not only older than the last change."""
    events = [event(2, "lead", "Odd", cause=4), event(4, "lead", "Odder"), event(5, "lead", "Last", cause=2)]
    explanation = why(events, "lead")
    assert ([one.seq for one in explanation.records], explanation.missing) == ([2, 5], 4)


@pytest.mark.parametrize("entity", ["nobody", "lead:t1:c9", "lead:t9:c1", "lead:t1:cx", ""])
def test_an_unknown_id_is_an_error(entity: str) -> None:
    """``why`` raises LookupError for an id that has no records."""
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
    """The trace of a tool call ends at the call's own result, although the agent used the call's id twice."""
    assert explained(CALLS, f"lead:t1:{call}")[-1] == end


def test_an_open_call_is_explained_by_its_start() -> None:
    """The trace of an open tool call ends at its start."""
    assert explained(CALLS, "lead:t1:c2") == [1, 2]


def test_a_call_that_its_turn_took_along_is_explained_by_the_turn() -> None:
    """The trace of a tool call that was open when its turn failed ends at the failure of the turn."""
    failed = event(7, "lead:t1", "task_failed", cause=5)
    assert explained([*CALLS, failed], "lead:t1:c2") == [5, 7]


# ------------------------------------------------------------------------------------------------------- branches
def shape(explanation: Explanation) -> list[Any]:
    """Return role and record number of each step of a trace, and of its annotations."""
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
    """In the trace of an escalated abort the policy edge that reached the session is on the spine, the other edge is an
    annotation of the request, and stages and later causes are annotations of the end."""
    assert shape(why(ESCALATED, "lead/b")) == [
        ("root", 1, ("policy edge", 3)),
        ("policy edge", 2),
        ("end", 4, ("rung", 6), ("later cause", 7)),
    ]
    assert [one.seq for one in roots(ESCALATED, "lead/b")] == [1]


def test_what_ended_with_it_has_the_same_root() -> None:
    """The trace of a turn that ended with its session has the session's root, and no termination stages."""
    assert shape(why(ESCALATED, "lead/b:t1"))[-2:] == [("cause", 4), ("end", 5)]
    assert why(ESCALATED, "lead/b:t1").root == ESCALATED[0]


def test_an_abort_that_is_named_but_caused_nothing_is_a_branch() -> None:
    """An abort that a record names, but that is not among its causes, is an annotation and counts as a second root."""
    events = [event(1, "lead", "Born", actor="host"), abort_record(2, "lead", "x"), event(3, "lead", "Odd", cause=1)]
    events[2] = msgspec.structs.replace(events[2], abort_id="x")
    explanation = why(events, "lead")
    assert shape(explanation) == [("root", 1), ("end", 3, ("abort", 2))]
    assert (explanation.root, explanation.roots) == (events[0], 2)
    assert [one.seq for one in roots(events, "lead")] == [1, 2]


def test_a_late_failure_of_a_turn_is_a_later_cause() -> None:
    """A failure that came after a turn had ended is annotated as a later cause, and is no root of the end."""
    events = [
        event(1, "lead:t1", "task_failed", reason="enough"),
        event(2, "lead:t1", "agent_reaped", cause=1),
        event(3, "lead:t1", "task_failed", outcome="stale", reason="too slow"),
        event(4, "lead:t1", "tool_completed", outcome="stale"),
    ]
    assert shape(why(events, "lead:t1")) == [("root", 1), ("end", 2, ("later cause", 3))]
    assert [one.seq for one in roots(events, "lead:t1")] == [1]


def test_where_a_cause_is_missing_there_is_no_root() -> None:
    """The trace with a missing cause has no root, and ``missing`` has the number of the missing record."""
    events = [event(7, "lead", "SessionExited", cause=5)]
    explanation = why(events, "lead")
    assert (explanation.root, explanation.roots, explanation.missing) == (None, 0, 5)
    assert roots(events, "lead") == ()


def test_a_rung_with_another_root_is_counted() -> None:
    """A termination stage whose causes lead to another root than the end is counted as a second root."""
    events = [
        event(1, "lead", "OperatorStop", actor="ann"),
        event(2, "other", "OperatorStop", actor="ben"),
        event(3, "lead", "Ended", cause=2, from_status="S1", to_status="S1", metadata={"rung": "kill"}),
    ]
    assert len(roots(events, "lead")) == why(events, "lead").roots == 2


def test_a_chain_may_be_very_long() -> None:
    """A trace of ten thousand records is found and encoded as JSON, without recursion."""
    events = [event(n, f"s{n}", "Next", cause=n - 1 if n > 1 else None) for n in range(1, 10_001)]
    explanation = why(events, "s10000")
    assert len(explanation.steps) == 10_000
    assert msgspec.json.decode(msgspec.json.encode(explanation))["root"]["seq"] == 1


def test_only_some_later_records_are_causes() -> None:
    """Of the records after the end, only facts of an abort and events that end something are later causes."""
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
    """A second abort of a tool call after its result, recorded in the turn's log, is a later cause of that call's
    trace."""
    late, other = abort_record(7, "lead:t1", "abort-7"), abort_record(8, "lead:t1", "abort-8")
    late.metadata["target"], other.metadata["target"] = "lead:t1:c1", "lead:t1:c3"
    assert shape(why([*CALLS, late, other], "lead:t1:c1")) == [("root", 3, ("later cause", 7))]


def test_an_abort_from_the_future_is_no_root() -> None:
    """An abort that was recorded after the record that names it is no root."""
    events = [event(1, "lead", "OperatorStop", abort_id="x"), abort_record(2, "other", "x")]
    assert [one.seq for one in roots(events, "lead")] == [1]


@pytest.mark.parametrize("outcome", ["stale", "refused", "transition"])
def test_what_only_names_an_abort_is_no_later_cause(outcome: str) -> None:
    """A later record that only names an abort, and is not a fact about one, is no later cause."""
    events = [
        event(1, "lead", "OperatorStop"),
        event(2, "lead", "Noted", outcome=outcome, from_status="S1", to_status="S1", abort_id="x"),
    ]
    assert shape(why(events, "lead")) == [("root", 1)]


@pytest.mark.parametrize(("before", "after"), [("A", "B"), ("B", "A")])
def test_any_other_state_is_a_change(before: str, after: str) -> None:
    """A record that changes the state is the end of the trace, whatever the names of the states."""
    events = [
        event(1, "lead", "Born", outcome="born", from_status=""),
        event(2, "lead", "Moved", from_status=before, to_status=after),
        event(3, "lead", "Noted", from_status=after, to_status=after),
    ]
    assert explained(events, "lead") == [2]


def test_an_end_that_was_overcome_is_no_later_cause() -> None:
    """The failure of an earlier attempt, before the last change, is no later cause."""
    events = [event(1, "lead", "task_failed"), event(2, "lead", "Retried")]
    assert shape(why(events, "lead")) == [("root", 2)]


def test_a_call_is_explained_by_what_came_after_its_start() -> None:
    """The trace of an open call ignores results and failures of the turn from before the start of that call."""
    events = [
        event(1, "lead:t1", "tool_completed", metadata={"call_id": "x"}),
        event(2, "lead:t1", "task_failed"),
        event(3, "lead:t1", "tool_started", metadata={"number": 2, "call_id": "x"}),
        event(4, "lead:t1", "tool_completed", metadata={"call_id": "y"}),
        event(5, "lead:t1", "task_failed", outcome="stale"),
    ]
    assert explained(events, "lead:t1:c2") == [3]
