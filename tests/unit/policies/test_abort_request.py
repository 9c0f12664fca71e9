"""Merging of abort requests, and the values that describe aborts."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from supervisor.lifecycles.types import (
    AbortPolicy,
    AbortScope,
    CancelMode,
    LifecycleEvent,
    StageBudgets,
    TerminationStage,
    UnknownValue,
    choice_of,
)
from supervisor.policies.abort_plan import NodeReceipt, Receipt
from supervisor.policies.abort_request import CAUSES_MAX, AbortRequest, MergeOutcome, merge_request, same_abort


def asked(name: str, severity: TerminationStage = TerminationStage.REQUEST, deadline: float = 10.0) -> AbortRequest:
    return AbortRequest(abort_id=name, reason=f"because {name}", severity=severity, deadline=deadline)


def test_the_first_request_begins() -> None:
    """The first abort request of a session becomes the state of the abort."""
    assert merge_request(None, asked("a")) == (asked("a"), MergeOutcome.BEGAN)


@pytest.mark.parametrize(
    ("later", "joined"),
    [
        (asked("b"), MergeOutcome.JOINED),
        (asked("b", deadline=12.0), MergeOutcome.JOINED),
        (asked("b", deadline=9.0), MergeOutcome.RAISED),
        (asked("b", severity=TerminationStage.KILL, deadline=12.0), MergeOutcome.RAISED),
    ],
)
def test_a_later_request_only_tightens(later: AbortRequest, joined: MergeOutcome) -> None:
    """A later abort request is appended to the state, and may only raise severity or shorten the deadline; the first
    reason stays."""
    state, how = merge_request(asked("a"), later)
    assert (state.abort_id, state.reason, how) == ("a", "because a", joined)
    assert [one.abort_id for one in state.later] == ["b"]
    assert state.severity is later.severity
    assert state.deadline == min(10.0, later.deadline)


def test_any_order_is_as_hard_and_as_soon() -> None:
    """In any order of abort requests the merged severity is the highest one and the merged deadline the earliest
    one."""
    wishes = [asked("a"), asked("b", TerminationStage.KILL, 12.0), asked("c", deadline=3.0), asked("d", deadline=7.0)]
    found = set()
    for order in itertools.permutations(wishes):
        state = None
        for one in order:
            state = merge_request(state, one).state
        assert state is not None
        assert (state.abort_id, len(state.later)) == (order[0].abort_id, 3)
        found.add((state.severity, state.deadline))
    assert found == {(TerminationStage.KILL, 3.0)}


def test_an_abort_is_heard_once() -> None:
    """A repeated abort is not appended again, and of many aborts only the first CAUSES_MAX are stored."""
    state = merge_request(asked("a"), asked("a")).state
    assert state.later == ()
    for number in range(2 * CAUSES_MAX):
        state = merge_request(state, asked(f"b{number}")).state
    assert len(state.later) == CAUSES_MAX
    assert same_abort(state, "b0")
    assert same_abort(state, None)
    assert not same_abort(state, "z")


def test_unknown_words_name_those_that_are_known() -> None:
    """An unknown scope or cancel mode raises UnknownValue, whose text lists the known ones."""
    with pytest.raises(UnknownValue, match="scope: 'world' is unknown; expected tool, sibling or session"):
        choice_of(AbortScope, "scope", "world")
    with pytest.raises(
        UnknownValue, match="cancel_mode: 'x' is unknown; expected wait_completed, wait_requested, try or"
    ):
        choice_of(CancelMode, "cancel_mode", "x")
    assert (choice_of(AbortScope, "scope", "tool"), choice_of(CancelMode, "cancel_mode", "try")) == (
        AbortScope.TOOL,
        CancelMode.TRY,
    )


def test_the_bound_of_a_ladder_is_all_its_rungs() -> None:
    """The total of StageBudgets is the sum of the four stages."""
    assert StageBudgets(request_s=1.5, cancel_s=2.0, terminate_s=4.0, kill_s=8.0).total_s == 15.5
    assert StageBudgets().total_s == 18.0


def test_a_receipt_says_nothing_that_it_was_not_told() -> None:
    """A new Receipt has no nodes, no processes, no survivors and no kill time by default."""
    receipt = Receipt(abort_id="x", target="s", scope=AbortScope.SESSION, reason="", already_ended=False)
    assert (receipt.survivors, receipt.nodes, receipt.processes, receipt.killed_at) == (0, (), (), None)
    assert NodeReceipt(id="s", kind="session", outcome="ended").took_s == 0.0


@pytest.mark.parametrize("options", [StageBudgets, AbortPolicy])
def test_a_misspelt_option_is_an_error(options: type[msgspec.Struct]) -> None:
    """A misspelt field of StageBudgets or AbortPolicy raises ValidationError."""
    assert msgspec.convert({}, options) == options()
    with pytest.raises(msgspec.ValidationError, match="kil_s"):
        msgspec.convert({"kil_s": 1}, options)


def test_a_record_is_written_without_what_it_does_not_say() -> None:
    """A record is encoded without its empty fields, so that most lines are short."""
    record = LifecycleEvent(
        seq=1, timestamp=2.0, monotonic_s=3.0, entity_type="session", entity_id="s", entity_seq=1, event="Born"
    )
    assert set(msgspec.to_builtins(record)) == {
        "seq",
        "timestamp",
        "monotonic_s",
        "entity_type",
        "entity_id",
        "entity_seq",
        "event",
    }
