"""Invariants of records: each has a made-up log that violates it, and real runs violate none."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec
import pytest

from supervisor.cli import demo
from supervisor.diagnostics.invariants import INVARIANTS, WORLD, RecordChecker, Violation
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from tests.record_log import ERROR, OK, Log
from tests.support import no_leaks

Lie = Callable[[Log], None]
LIES: list[tuple[str, Lie]] = []


def breaks(invariant: str) -> Callable[[Lie], Lie]:
    """Register a function that writes a log which violates *invariant*."""

    def note(lie: Lie) -> Lie:
        LIES.append((invariant, lie))
        return lie

    return note


def violations(records: list[LifecycleEvent], *, quiescent: bool = True) -> list[Violation]:
    checker = RecordChecker()
    found = [one for record in records for one in checker.check(record)]
    return [*found, *checker.finish(quiescent=quiescent)]


def names(records: list[LifecycleEvent]) -> set[str]:
    return {one.invariant for one in violations(records)}


def family(log: Log) -> None:
    """Write a session ``s`` with the children ``s/a`` and ``s/b``, with agents running in ``s`` and ``s/a``."""
    log.running("s")
    log.running("s/a")
    log.session("s/b")


def over(log: Log, session: str, agent: str, turn: str, abort_id: str | None = None, cause: int | None = None) -> int:
    """Write the stop of a running session, the ends of its turn and agent, and its own end; return the last record's
    number."""
    stopped = log.stop(session, abort_id, cause)
    failed = log.tell(turn, "task_failed", verdict=ERROR, abort_id=abort_id, cause_id=stopped)
    log.tell(turn, "agent_reaped", cause_id=failed)
    log.exit(agent, stopped)
    return log.end(session, stopped)


# ------------------------------------------------------------------------------------------------ what is true
def test_a_true_tale_breaks_nothing() -> None:
    """A log of sessions that work, make calls, fail, retry, succeed and are aborted violates no invariant."""
    log = Log()
    family(log)
    log.call("s:t1", 1)
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="completed")
    log.succeed("s", "s:t1", "s:a1")
    log.fail("s/a", "s/a:t1")
    log.exit("s/a:a1")
    again = log.tell("s/a", "BackoffElapsed", at=200.0)
    log.open_turn("s/a", again)
    log.launch("s/a", "s/a:a2")
    abort_id = log.abort("s", "s", "session")
    wish = len(log.records)
    log.stop("s", abort_id, wish)
    log.end("s/b", log.stop("s/b", abort_id, wish))
    over(log, "s/a", "s/a:a2", "s/a:t2", abort_id, wish)
    log.exit("s:a1", wish)
    log.end("s", wish)
    assert violations(log.records) == []


@pytest.mark.parametrize("reason", ["enough", ""])
def test_who_succeeds_while_it_is_being_ended_has_no_time_to_be_idle(reason: str) -> None:
    """An agent whose session is being stopped may exit after a reported success without having been idle."""
    log = Log()
    log.session("s")
    log.request("s")
    log.launch("s", "s:a1", adapter="acp")
    stopped = log.stop("s")
    word = log.tell("s:t1", "verify_requested", verdict=OK, cause_id=stopped)
    log.tell("s:a1", "agent_exited", ended_by="exit", status=0, reason=reason, cause_id=stopped)
    failed = log.tell("s:t1", "task_failed", verdict=ERROR, cause_id=word)
    log.tell("s:t1", "agent_reaped", cause_id=failed)
    log.end("s", stopped)
    assert violations(log.records) == []


@pytest.mark.parametrize(("reason", "broken"), [("", {"isolation"}), ("it was silent for too long", set())])
def test_an_agent_that_is_killed_without_a_reason_breaks_isolation(reason: str, broken: set[str]) -> None:
    """A session continues after its agent was killed: without a recorded reason this violates the invariant
    isolation."""
    log = Log()
    log.running("s")
    log.fail("s", "s:t1")
    log.tell("s:a1", "agent_exited", ended_by="kill", status=-9, reason=reason)
    assert {one.invariant for one in violations(log.records, quiescent=False)} == broken


def test_more_messages_than_may_wait_break_a_bound() -> None:
    """A session with more waiting messages than its limit violates ``bounded``; messages of the supervisor do not
    count."""
    log = Log()
    log.running("s", waiting_max=1)
    log.tell("s", "MessageReceived", message_id="m1", sender="supervisor", text="hello")
    log.tell("s", "MessageReceived", message_id="m2", sender="ann", text="hello")
    assert violations(log.records, quiescent=False) == []
    log.tell("s", "MessageReceived", message_id="m3", sender="ann", text="hello")
    assert [(one.invariant, one.message) for one in violations(log.records, quiescent=False)] == [
        ("bounded", "has 2 messages waiting; 1 may be")
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_a_journal_is_at_rest_when_every_session_has_ended(ended: bool) -> None:
    """``all_ended`` of the checker is true once every session has its last record, and false before."""
    log, checker = Log(), RecordChecker()
    log.session("s")
    stopped = log.stop("s")
    if ended:
        log.end("s", stopped)
    for record in log.records:
        checker.check(record)
    assert checker.all_ended is ended


@pytest.mark.parametrize(("ended", "how"), [(False, "is ending"), (True, "has ended")])
def test_a_birth_below_a_session_that_ends_is_described(ended: bool, how: str) -> None:
    """The violation of a birth below an ended or ending session says whether the parent was ending or had ended."""
    log = Log()
    log.session("s")
    stopped = log.stop("s")
    if ended:
        log.end("s", stopped)
    log.session("s/a")
    assert [one.message for one in violations(log.records, quiescent=False)] == [f"born below s, which {how}"]


def test_what_is_under_way_breaks_nothing() -> None:
    """Entities that have not ended yet are no violation in a run that still continues."""
    log = Log()
    family(log)
    log.call("s:t1", 1)
    log.stop("s/b")
    assert violations(log.records, quiescent=False) == []


# ------------------------------------------------------------------------------------------------- containment
@breaks("containment")
def parent_first(log: Log) -> None:
    log.session("s")
    log.session("s/a")
    log.end("s", log.stop("s"))
    log.end("s/a", log.stop("s/a"))


@breaks("containment")
def turn_left_behind(log: Log) -> None:
    log.running("s")
    stopped = log.stop("s")
    log.exit("s:a1", stopped)
    log.end("s", stopped)


@breaks("containment")
def born_below_the_dead(log: Log) -> None:
    log.session("s")
    log.end("s", log.stop("s"))
    log.session("s/a")


@breaks("containment")
def born_below_one_that_ends(log: Log) -> None:
    log.session("s")
    log.stop("s")
    log.session("s/a")


@breaks("containment")
def born_below_nobody(log: Log) -> None:
    log.session("s/a")


@breaks("containment")
def recovery_abandons_children(log: Log) -> None:
    log.session("s")
    log.session("s/a")
    log.stop("s/a")
    log.end("s", log.stop("s"), rung="abandon", actor="recovery")


@breaks("containment")
def adopted_by_the_dead(log: Log) -> None:
    log.session("s")
    log.session("s/a")
    log.stop("s")
    log.fact("s/a", "Adopted", left="s", parent="s", mode="try")


def test_who_is_adopted_outlives_its_parent() -> None:
    """A child session that outlives its parent is no violation if an Adopted record says that it was spared."""
    log = Log()
    log.session("s")
    log.session("s/a")
    stopped = log.stop("s")
    log.fact("s/a", "Adopted", left="s", parent=None, mode="abandon")
    log.end("s", stopped)
    log.end("s/a", log.stop("s/a"))
    assert violations(log.records) == []


def test_a_long_id_names_its_parent_by_its_cause() -> None:
    """A child session with a shortened id is assigned to the session whose call caused the birth: the end of that
    session before the child violates containment."""
    log = Log()
    family(log)
    asked = log.call("s/a:t1", 1)
    log.session("s/~/deep", cause=asked)
    stopped = log.stop("s/a")
    failed = log.tell("s/a:t1", "task_failed", verdict=ERROR, cause_id=stopped)
    log.tell("s/a:t1", "tool_completed", call_id="c1", outcome="unknown", over=True, cause_id=failed)
    log.tell("s/a:t1", "agent_reaped", cause_id=failed)
    log.exit("s/a:a1", stopped)
    log.end("s/a", stopped)
    [found] = violations(log.records, quiescent=False)
    assert (found.invariant, found.entity_id) == ("containment", "s/a")
    assert "s/~/deep" in found.message


# ------------------------------------------------------------------------------------------------------ aborts
@breaks("recorded")
def reached_and_never_ended(log: Log) -> None:
    log.session("s")
    log.stop("s", log.abort("s", "s", "session"), 2)


@breaks("recorded")
def call_without_result(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)


@breaks("tool_stays_tool")
def tool_abort_stops_its_session(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.stop("s", log.abort("s:t1", "s:t1:c1", "tool"), len(log.records))


@breaks("tool_stays_tool")
def tool_abort_fails_its_turn(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    abort_id = log.abort("s:t1", "s:t1:c1", "tool")
    log.tell("s:t1", "task_failed", verdict=ERROR, abort_id=abort_id, cause_id=len(log.records))


@breaks("tool_stays_tool")
def turn_ends_as_aborted_with_its_call(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.abort("s:t1", "s:t1:c1", "tool")
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="aborted")
    log.tell("s:t1", "task_failed", verdict={**ERROR, "transition_reason": "aborted"})


@breaks("tool_stays_tool")
def aborted_call_completes(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.abort("s:t1", "s:t1:c1", "tool")
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="completed")
    log.succeed("s", "s:t1", "s:a1")


@breaks("tool_stays_tool")
def second_result(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.call("s:t1", 2)
    for outcome in ("aborted", "completed"):
        log.tell("s:t1", "tool_completed", to="TOOL_USE", call_id="c1", outcome=outcome)


@breaks("no_level_crossed")
def tool_abort_ends_what_another_call_started(log: Log) -> None:
    log.running("s")
    for number in (1, 2):
        log.session(f"s/{number}", cause=log.call("s:t1", number))
    log.stop("s/2", log.abort("s:t1", "s:t1:c1", "tool"), len(log.records))


def test_a_tool_abort_ends_what_its_call_started() -> None:
    """A TOOL abort may end the child session that the aborted call started."""
    log = Log()
    log.running("s")
    log.abort("s", "s", "tool")
    log.session("s/1", cause=log.call("s:t1", 1))
    abort_id = log.abort("s:t1", "s:t1:c1", "tool")
    wish = len(log.records)
    log.end("s/1", log.stop("s/1", abort_id, wish))
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="aborted", abort_id=abort_id, cause_id=wish)
    log.succeed("s", "s:t1", "s:a1")
    assert violations(log.records) == []


@breaks("no_level_crossed")
def abort_reaches_a_sibling(log: Log) -> None:
    family(log)
    log.stop("s/b", log.abort("s/a", "s/a", "session"), len(log.records))


@breaks("no_level_crossed")
def sibling_abort_reaches_its_target(log: Log) -> None:
    family(log)
    log.stop("s/a", log.abort("s/a", "s/a", "sibling"), len(log.records))


@breaks("no_level_crossed")
def sibling_abort_reaches_the_parent(log: Log) -> None:
    family(log)
    log.stop("s", log.abort("s/a", "s/a", "sibling"), len(log.records))


@breaks("no_level_crossed")
def abort_reaches_the_spared(log: Log) -> None:
    family(log)
    abort_id = log.abort("s", "s", "session")
    wish = len(log.records)
    log.stop("s", abort_id, wish)
    log.fact("s/b", "Adopted", left="s", parent=None, mode="abandon", cause_id=wish)
    log.stop("s/b", abort_id, wish)


@breaks("no_level_crossed")
def tool_abort_joins_a_sibling(log: Log) -> None:
    family(log)
    log.stop("s/b")
    log.call("s/a:t1", 1)
    abort_id = log.abort("s/a:t1", "s/a:t1:c1", "tool")
    log.fact("s/b", "AbortJoined", abort_id=abort_id, cause_id=len(log.records), joined=None)


@breaks("no_level_crossed")
def crossing_by_a_strangers_policy(log: Log) -> None:
    family(log)
    log.cross("s/a", log.abort("s/a", "s/a", "sibling"), "sibling_to_session", "s/b", cause=len(log.records))


@breaks("no_level_crossed")
def crossing_that_no_policy_has(log: Log) -> None:
    family(log)
    log.cross("s/a", log.abort("s/a", "s/a", "sibling"), "session_to_world", "s", cause=len(log.records))


@breaks("no_level_crossed")
def crossing_out_of_nothing(log: Log) -> None:
    family(log)
    log.cross("s/a", log.abort("s/a", "s/a", "sibling"), "sibling_to_session", "s", after="abort-1", cause=1)


@breaks("no_level_crossed")
def crossing_twice(log: Log) -> None:
    family(log)
    abort_id = log.abort("s/a", "s/a", "sibling")
    wish = len(log.records)
    for _ in range(2):
        log.cross("s/a", abort_id, "sibling_to_session", "s", cause=wish)


def test_edges_on_record_may_be_crossed() -> None:
    """A TOOL abort may end siblings and parent if a record for each crossed policy edge precedes the ends."""
    log = Log()
    family(log)
    log.call("s/a:t1", 1)
    abort_id = log.abort("s/a:t1", "s/a:t1:c1", "tool")
    wish = len(log.records)
    first = log.cross("s/a:t1", abort_id, "tool_to_sibling", "s/a", cause=wish)
    after = f"{abort_id}/tool_to_sibling"
    second = log.cross("s/a:t1", abort_id, "sibling_to_session", "s", after=after, cause=first)
    log.tell("s/a:t1", "tool_completed", call_id="c1", outcome="aborted", abort_id=abort_id, cause_id=wish)
    log.end("s/b", log.stop("s/b", abort_id, first))
    over(log, "s/a", "s/a:a1", "s/a:t1", abort_id, second)
    over(log, "s", "s:a1", "s:t1", abort_id, second)
    assert violations(log.records) == []


def test_a_sibling_abort_reaches_siblings() -> None:
    """A SIBLING abort that ends only the target's siblings violates nothing."""
    log = Log()
    family(log)
    log.end("s/b", log.stop("s/b", log.abort("s/a", "s/a", "sibling"), len(log.records)))
    assert violations(log.records, quiescent=False) == []


@breaks("once")
def joined_by_what_ends_it(log: Log) -> None:
    log.session("s")
    abort_id = log.abort("s", "s", "session")
    log.stop("s", abort_id, len(log.records))
    log.fact("s", "AbortJoined", abort_id=abort_id)


@breaks("one_answer")
def joined_by_nobody(log: Log) -> None:
    log.session("s")
    log.stop("s", log.abort("s", "s", "session"), len(log.records))
    log.fact("s", "AbortJoined")


@breaks("honest_ends")
def end_for_a_siblings_sake_that_is_none(log: Log) -> None:
    log.session("s")
    log.abort("s", "s", "session")
    told = {"abort_id": f"abort-{len(log.records)}", "transition_reason": "sibling_aborted"}
    log.tell("s", "OperatorStop", reason="stop", cause_id=len(log.records), **told)


@breaks("honest_ends")
def siblings_end_without_saying_so(log: Log) -> None:
    family(log)
    abort_id = log.abort("s/a", "s/a", "sibling")
    told = {"abort_id": abort_id, "transition_reason": "aborted"}
    log.tell("s/b", "OperatorStop", reason="stop", cause_id=len(log.records), **told)


@breaks("one_answer")
def abort_of_nobody(log: Log) -> None:
    log.session("s")
    log.stop("s", "abort-7", 1)


@breaks("one_answer")
def accepted_and_never_told(log: Log) -> None:
    log.session("s")
    log.abort("s", "s", "session")
    log.end("s", log.stop("s", cause=1))


@breaks("one_answer")
def call_aborted_by_nobody(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="aborted", abort_id="abort-7", cause_id=1)


@breaks("one_answer")
def call_goes_on_after_the_abort_of_all_calls(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.abort("s", "s", "tool")
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="completed", monotonic_s=103.0)


def test_a_call_may_return_just_as_all_calls_are_aborted() -> None:
    """A call that returns its result at the moment of an abort of all calls need not have the outcome aborted."""
    log = Log()
    log.running("s")
    log.call("s:t1", 1)
    log.abort("s", "s", "tool")
    log.tell("s:t1", "tool_completed", call_id="c1", outcome="completed")
    assert violations(log.records, quiescent=False) == []


def test_a_call_that_is_aborted_by_two_names_has_the_result_of_both() -> None:
    """A call aborted by its own id and as one of all calls of a session has the result of the first abort."""
    for targets in (("s:t1:c1", "s"), ("s", "s:t1:c1")):
        log = Log()
        log.running("s")
        log.call("s:t1", 1)
        first, _ = (log.abort("s" if one == "s" else "s:t1", one, "tool") for one in targets)
        log.tell(
            "s:t1", "tool_completed", call_id="c1", outcome="aborted", abort_id=first, cause_id=len(log.records) - 1
        )
        assert "tool_stays_tool" not in names(log.records)


def test_who_joins_an_end_needs_no_record_of_its_own() -> None:
    """An abort of a session that is already ending needs no record of its own: the stop event names the abort."""
    log = Log()
    log.session("s")
    stopped = log.stop("s", log.abort("s", "s", "session"), 2)
    log.stop("s", "abort-8")
    log.end("s", stopped)
    assert violations(log.records) == []


# ------------------------------------------------------------------------------------------------- once, promises
@breaks("once")
def asked_for_twice(log: Log) -> None:
    log.session("s")
    for _ in range(2):
        log.fact("s", "AbortRecord", abort_id="a", id="a", scope="session", target="s")


@breaks("once")
def request_twice(log: Log) -> None:
    log.running("s")
    log.tell("s", "TurnRequested", request_id="s:r1", prompt="again")


@breaks("once")
def message_after_its_delivery(log: Log) -> None:
    log.session("s")
    log.request("s")
    log.tell("s", "MessageReceived", message_id="m1", sender="ann", text="hear")
    log.launch("s", "s:a1", messages=1)
    log.succeed("s", "s:t1", "s:a1")
    log.tell("s", "MessageReceived", message_id="m1", sender="ann", text="hear")


@breaks("once")
def born_twice(log: Log) -> None:
    log.session("s")
    log.fact("s", "Born", outcome="born")


@breaks("once")
def call_number_twice(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.call("s:t1", 1, "c2")


@breaks("nothing_lost")
def request_without_answer(log: Log) -> None:
    log.running("s")
    log.tell("s", "TurnRequested", request_id="s:r2", prompt="wait")


@breaks("nothing_lost")
def task_of_the_dead(log: Log) -> None:
    log.session("s")
    log.born("task", "task:t")
    log.tell("task:t", "claimed", by="s", cause_id=2)
    log.end("s", log.stop("s"))


@breaks("one_holder")
def two_holders(log: Log) -> None:
    log.session("s")
    log.session("z")
    log.born("task", "task:t")
    for holder in ("s", "z"):
        log.tell("task:t", "claimed", to="CLAIMED", by=holder)


def test_a_task_may_be_held_one_after_the_other() -> None:
    """A task may be claimed by another session after it was given back."""
    log = Log()
    log.session("s")
    log.session("z")
    log.born("task", "task:t")
    log.tell("task:t", "claimed", by="s")
    log.tell("task:t", "unclaimed")
    log.tell("task:t", "claimed", by="z")
    assert violations(log.records) == []


# ------------------------------------------------------------------------------------------------- order, legality
@breaks("legal")
def edge_that_is_none(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", to="Running")


@breaks("legal")
def event_that_is_none(log: Log) -> None:
    log.session("s")
    log.tell("s", "Wished", to="Running")


@breaks("legal")
def event_in_the_wrong_state(log: Log) -> None:
    log.session("s")
    log.tell("s", "BackoffElapsed", to="BuildingPrompt")


@breaks("legal")
def event_without_its_fields(log: Log) -> None:
    log.session("s")
    log.tell("s", "PromptReady", to="Spawning")


@breaks("legal")
def from_elsewhere(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", source="SessionComplete")


@breaks("legal")
def born_grown_up(log: Log) -> None:
    log.session("s")
    log.records[0] = msgspec.structs.replace(log.records[0], to_status="Running")


@breaks("legal")
def born_without_data(log: Log) -> None:
    log.session("s")
    log.records[0] = msgspec.structs.replace(log.records[0], metadata={})


@breaks("legal")
def gap(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", as_seq=3)


@breaks("legal")
def gap_in_its_own_log(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", entity_seq=3)


@breaks("legal")
def never_born(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady")
    log.records[:] = [msgspec.structs.replace(log.records[1], seq=1)]


@breaks("legal")
def of_no_kind(log: Log) -> None:
    log.session("s")
    log.records[0] = msgspec.structs.replace(log.records[0], entity_type="ghost")


@breaks("legal")
def fact_that_moves(log: Log) -> None:
    log.session("s")
    log.fact("s", "Noted", to="Running")


@breaks("legal")
def refused_for_no_reason(log: Log) -> None:
    log.session("s")
    log.fact("s", "WorktreeReady", outcome="refused")


@breaks("legal")
def timer_that_outlives_its_state(log: Log) -> None:
    log.running("s")
    log.fact("s", "BackoffElapsed", outcome="refused", actor="s")


@breaks("honest_ends")
def success_while_a_call_is_open(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.fact("s:t1", "verify_requested", outcome="refused", verdict=OK)


@breaks("legal")
def stale_that_is_not(log: Log) -> None:
    log.running("s")
    log.fact("s", "SessionExited", outcome="stale", incarnation=1, verdict=ERROR)


@breaks("legal")
def exit_of_an_earlier_incarnation(log: Log) -> None:
    log.running("s")
    log.fail("s", "s:t1")
    log.exit("s:a1")
    log.open_turn("s", log.tell("s", "BackoffElapsed", at=200.0))
    log.launch("s", "s:a2")
    log.tell("s", "SessionExited", incarnation=1, verdict=ERROR)


@breaks("legal")
def edge_that_is_none_after_a_lie(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", to="Running")
    log.tell("s", "WorktreeReady", to="Spawning")


def test_one_lie_is_told_once() -> None:
    """After a wrong record the checker continues from the recorded state, and reports no violation that only follows
    from the wrong record."""
    log = Log()
    log.session("s")
    log.tell("s", "WorktreeReady", to="Spawning")
    log.tell("s", "SessionExited", incarnation=1, verdict=ERROR, to="CoolingDown")
    found = violations(log.records, quiescent=False)
    assert [(one.invariant, one.seq) for one in found] == [("legal", 2)]


@breaks("final")
def acts_after_its_end(log: Log) -> None:
    log.session("s")
    stopped = log.stop("s")
    log.end("s", stopped)
    log.stop("s")


@breaks("final")
def rises_again(log: Log) -> None:
    log.session("s")
    log.end("s", log.stop("s"))
    log.tell("s", "WorktreeReady", to="BuildingPrompt")


@breaks("monotonic")
def back_in_time(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", monotonic_s=1.0)


# --------------------------------------------------------------------------------------------- intent before effect
@breaks("intent_before_effect")
def turn_that_nobody_opened(log: Log) -> None:
    log.session("s")
    log.born("turn", "s:t1", cause=1, id="s:t1", session_id="s")


@breaks("intent_before_effect")
def agent_that_nobody_launched(log: Log) -> None:
    log.session("s")
    log.born("agent", "s:a1", cause=1, id="s:a1", session_id="s", adapter="test")


@breaks("intent_before_effect")
def start_of_a_strangers_agent(log: Log) -> None:
    log.running("z")
    log.session("s")
    log.request("s")
    log.tell("s", "PromptReady", prompt="p")
    log.tell("s", "SessionStarted", seq=1, incarnation=1, agent_id="z:a1")


@breaks("intent_before_effect")
def prompted_before_its_name_is_known(log: Log) -> None:
    log.session("s")
    log.request("s")
    wanted = log.tell("s", "PromptReady", prompt="p", messages=0)
    log.born("agent", "s:a1", cause=wanted, id="s:a1", session_id="s", adapter="test")
    log.tell("s", "SessionStarted", seq=1, incarnation=1, agent_id="s:a1")
    log.tell("s:a1", "agent_ready", resume_id="u1")


@breaks("intent_before_effect")
def claimed_by_nobody(log: Log) -> None:
    log.born("task", "task:t")
    log.tell("task:t", "claimed", by="ghost")


# ----------------------------------------------------------------------------------------------------- counted right
@breaks("counted_right")
def loss_that_is_charged(log: Log) -> None:
    log.running("s")
    lost = {"exit": "Error", "error": "its supervisor ended", "transition_reason": "orphan_recovered"}
    log.tell("s", "SessionExited", incarnation=1, verdict=lost, to="Stopped")


@breaks("counted_right")
def goes_on_at_the_threshold(log: Log) -> None:
    log.running("s", max_total_errors=1)
    log.tell("s", "SessionExited", incarnation=1, verdict=ERROR, to="CoolingDown")


@breaks("counted_right")
def stops_too_soon(log: Log) -> None:
    log.running("s")
    log.tell("s", "SessionExited", incarnation=1, verdict=ERROR, to="Stopped")


@breaks("counted_right")
def launches_at_the_threshold(log: Log) -> None:
    log.running("s", max_total_errors=1)
    log.tell("s", "SessionExited", incarnation=1, verdict=ERROR, to="CoolingDown")
    log.tell("s", "BackoffElapsed", at=500.0, to="BuildingPrompt")
    log.tell("s", "PromptReady", prompt="p", to="Spawning")


@breaks("counted_right")
def too_soon_again(log: Log) -> None:
    log.running("s")
    log.fail("s", "s:t1")
    log.tell("s", "BackoffElapsed")


@breaks("counted_right")
def too_often(log: Log) -> None:
    log.running("s", restarts_max=1)
    for number in (1, 2):
        log.fail("s", f"s:t{number}")
        log.exit(f"s:a{number}")
        again = log.tell("s", "BackoffElapsed", at=100.0 + 10 * number)
        log.open_turn("s", again)
        log.launch("s", f"s:a{number + 1}")


@breaks("counted_right")
def given_up_before_the_limit(log: Log) -> None:
    log.running("s", restarts_max=1)
    log.fail("s", "s:t1")
    log.tell("s", "FatalError", message="restart limit exceeded: 1 within 60 s")


@breaks("counted_right")
def charged_twice(log: Log) -> None:
    log.running("s")
    log.fail("s", "s:t1")
    log.tell("s", "SessionExited", incarnation=1, verdict=ERROR, source="Running", to="CoolingDown")


@breaks("counted_right")
def data_that_counts_otherwise(log: Log) -> None:
    log.running("s")
    log.records[0] = msgspec.structs.replace(log.records[0], metadata={**log.records[0].metadata, "total_errors": 2})


def test_crashes_that_are_far_apart_do_not_add_up() -> None:
    """Failures that are farther apart than the restart window do not add up to the restart limit."""
    log = Log()
    log.running("s", restarts_max=1)
    for number in (1, 2):
        log.fail("s", f"s:t{number}", at=100.0 * number + 50)
        log.exit(f"s:a{number}")
        again = log.tell("s", "BackoffElapsed", at=100.0 * number + 70)
        log.open_turn("s", again)
        log.launch("s", f"s:a{number + 1}")
    assert violations(log.records, quiescent=False) == []


# ------------------------------------------------------------------------------------------------------ honest ends
@breaks("honest_ends")
def success_without_a_word(log: Log) -> None:
    log.running("s")
    log.tell("s", "SessionExited", incarnation=1, verdict=OK)


@breaks("honest_ends")
def success_with_an_open_call(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.tell("s:t1", "verify_requested", verdict=OK, to="VERIFYING")


@breaks("honest_ends")
def success_by_an_exit_that_is_no_word(log: Log) -> None:
    log.session("s")
    log.request("s")
    log.launch("s", "s:a1", adapter="acp")
    log.tell("s:t1", "verify_requested", verdict=OK)
    log.exit("s:a1")


@breaks("honest_ends")
def success_that_is_none(log: Log) -> None:
    log.running("s")
    log.tell("s:t1", "verify_requested", verdict=ERROR)


@breaks("honest_ends")
def completed_without_a_word(log: Log) -> None:
    log.running("s")
    log.tell("s:t1", "task_completed", to="COMPLETING")


@breaks("honest_ends")
def completed_without_the_verdict_of_its_task(log: Log) -> None:
    log.session("s")
    log.request("s", once=True)
    log.launch("s", "s:a1")
    log.succeed("s", "s:t1", "s:a1")


@breaks("honest_ends")
def counted_as_completed(log: Log) -> None:
    log.running("s")
    log.tell("s", "TurnReaped", turn_id="s:t1", completed=True)


@breaks("honest_ends")
def reaped_with_an_open_call(log: Log) -> None:
    log.running("s")
    log.call("s:t1", 1)
    log.tell("s:t1", "task_failed", verdict=ERROR)
    log.tell("s:t1", "agent_reaped")


@breaks("honest_ends")
def caused_by_what_is_to_come(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", cause_id=9)


@breaks("honest_ends")
def caused_by_no_record(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", cause_id=0)


@breaks("honest_ends")
def nobody_said_so(log: Log) -> None:
    log.session("s")
    log.tell("s", "WorktreeReady", actor="supervisor")


@breaks("honest_ends")
def two_roots(log: Log) -> None:
    log.session("s")
    log.session("z")
    log.stop("s", log.abort("s", "s", "session"), 2)


@breaks("quiescence")
def still_running(log: Log) -> None:
    log.running("s")


# --------------------------------------------------------------------------------------------------------- spec 004
def job(log: Log, **facts: object) -> None:
    log.born("job", "j", **{name: facts.pop(name) for name in ("max_retries",) if name in facts})
    log.tell("j", "scheduler_assigned", **facts)


@breaks("single_active_state")
def job_in_two_states(log: Log) -> None:
    job(log)
    log.tell("j", "worker_started", worker_id="w", source="retrying")


@breaks("monotonic_progress")
def job_comes_back(log: Log) -> None:
    job(log)
    log.tell("j", "user_cancelled")
    log.tell("j", "scheduler_assigned", to="queued")


@breaks("worker_assignment")
def queued_with_a_worker(log: Log) -> None:
    job(log, worker_id="w")


@breaks("retry_limit")
def too_many_retries(log: Log) -> None:
    log.born("job", "j")
    log.tell("j", "scheduler_assigned", retry_count=5, max_retries=4)


@breaks("timestamp_ordering")
def started_before_it_was_created(log: Log) -> None:
    job(log, created_at=5.0, started_at=4.0)


@breaks("dependency_satisfaction")
def queued_too_soon(log: Log) -> None:
    job(log, depends_on=["other"])


@breaks("task_state_consistency")
def ready_though_a_job_runs(log: Log) -> None:
    job(log, workstream_id="ws")
    log.tell("j", "worker_started", worker_id="w")
    log.born("workstream", "ws", tasks=1)
    log.tell("ws", "all_tasks_created", count=1)


@breaks("completion_requirement")
def validating_too_soon(log: Log) -> None:
    job(log, workstream_id="ws")
    log.born("workstream", "ws", tasks=1)
    log.tell("ws", "all_tasks_completed", to="validating")


@breaks("failure_propagation")
def critical_failure_ignored(log: Log) -> None:
    job(log, workstream_id="ws", critical=True)
    log.tell("j", "worker_started", worker_id="w")
    log.tell("j", "execution_failed", error="no", final=True)
    log.born("workstream", "ws", tasks=1)
    log.tell("ws", "all_tasks_created", count=1)


@breaks("capacity_limit")
def more_than_it_can_hold(log: Log) -> None:
    log.born("worker", "w")
    log.tell("w", "registration_complete", max_concurrent_tasks=1, active_tasks=2)


@breaks("graceful_shutdown")
def shut_down_at_work(log: Log) -> None:
    log.born("worker", "w")
    log.tell("w", "registration_complete")
    log.tell("w", "shutdown_requested", active_tasks=1)


@breaks("resource_cleanup")
def idle_with_a_task(log: Log) -> None:
    log.born("worker", "w")
    log.tell("w", "registration_complete", active_tasks=1)


# ---------------------------------------------------------------------------------------------------------- the tests
@pytest.mark.parametrize(("invariant", "lie"), LIES, ids=[f"{name}-{lie.__name__}" for name, lie in LIES])
def test_a_broken_law_is_told(invariant: str, lie: Lie) -> None:
    """The checker reports the violated invariant for each registered log."""
    log = Log()
    lie(log)
    assert invariant in names(log.records)


def test_every_law_has_its_lie() -> None:
    """Every invariant that can be checked on records has a registered log that violates it."""
    assert {name for name, _ in LIES} == set(INVARIANTS) - WORLD
    assert all("(" in INVARIANTS[name] for name in WORLD), "who checks it, or why nobody does yet"


def test_the_demonstration_breaks_none() -> None:
    """The journal of the demonstration run violates no invariant."""
    with no_leaks(), demo.repository() as repository:
        state = StateDir(repository / ".sdd")
        anyio.run(demo.play, repository, state.root, lambda text: None)
        with JournalReader(state.journal) as reader:
            assert violations(list(reader.events())) == []
