"""Tests of the reply checker: replies that disagree with durable records are reported."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.lifecycles.types import AbortScope
from supervisor.policies.abort_plan import NodeReceipt, Receipt
from supervisor.ports import Append
from tests.verification.checkers.replies import ReplyChecker
from tests.verification.records import append_of, record_of

Found = list[tuple[str, str, str]]


@pytest.fixture
def found() -> Found:
    return []


@pytest.fixture
def hearing(found: Found) -> ReplyChecker:
    return ReplyChecker(lambda law, who, words: found.append((law, who, words)), lambda: 0.0, lambda since_s: 0.0, 0.0)


def session(
    name: str, state: str = "Running", parent: str | None = None, ended: bool = False, **told: object
) -> Append:
    """Make the append of a session record after which the session is in *state*."""
    record = record_of(
        "session", name, str(told.get("event", "SessionStarted")), to_status=state, abort_id=told.get("abort_id")
    )
    owed = told.get("owed", ())
    return append_of(record, state, parent, owed=owed, ended=ended)  # type: ignore[arg-type]


def call(turn_id: str, number: int, event: str = "tool_started") -> Append:
    """Make the append of the first or the last record of a tool call."""
    record = record_of("turn", turn_id, event, metadata={"number": number, "call_id": f"n{number}"})
    return append_of(record, "RUNNING")


def receipt(target: str, scope: AbortScope = AbortScope.SESSION, *, ended: bool = False, named: str = "") -> Receipt:
    nodes = tuple(NodeReceipt(id=one, kind="session", outcome="ended") for one in named.split())
    return Receipt(
        abort_id="a1", target=target, scope=scope, reason="", already_ended=ended, nodes=nodes, recorded_at=1.0
    )


def violations(found: Found) -> list[tuple[str, str]]:
    return [(law, who) for law, who, _ in found]


def test_an_abort_that_stopped_nothing_is_noticed(hearing: ReplyChecker, found: Found) -> None:
    """A receipt that names a session as ended, which is not stopped on record, is reported."""
    hearing.wrote(session("s"), 0.0)
    wanted = hearing.want_abort("s", AbortScope.SESSION)
    hearing.abort_answered(wanted, receipt("s", named="s"))
    assert violations(found) == [("one_answer", "s")]


def test_a_receipt_without_a_stopped_session_is_noticed(hearing: ReplyChecker, found: Found) -> None:
    """A receipt that does not name a session that its abort stopped is reported."""
    hearing.wrote(session("s"), 0.0)
    wanted = hearing.want_abort("s", AbortScope.SESSION)
    hearing.wrote(session("s", "Stopped", event="OperatorStop", abort_id="a1"), 0.0)
    hearing.abort_answered(wanted, receipt("s"))
    assert violations(found) == [("one_answer", "s")]


def test_siblings_must_be_stopped_unless_they_are_adopted(hearing: ReplyChecker, found: Found) -> None:
    """After an abort of scope SIBLING, a sibling that is not stopped on record is reported, unless the sibling has
    another parent by then."""
    for one in ("p/a", "p/b", "p/c"):
        hearing.wrote(session(one, parent="p"), 0.0)
    wanted = hearing.want_abort("p/a", AbortScope.SIBLING)
    assert wanted.sessions == ("p/b", "p/c")
    hearing.wrote(session("p/c", parent=None, event="Adopted"), 0.0)
    hearing.abort_answered(wanted, receipt("p/a", AbortScope.SIBLING))
    assert violations(found) == [("one_answer", "p/b")]


@pytest.mark.parametrize("closed", [True, False])
def test_an_aborted_call_that_is_open_is_noticed(hearing: ReplyChecker, found: Found, closed: bool) -> None:
    """After an abort of a tool call, the call is reported if it is still open on record."""
    hearing.wrote(call("s:t1", 1), 0.0)
    wanted = hearing.want_abort("s:t1:c1", AbortScope.TOOL)
    if closed:
        hearing.wrote(call("s:t1", 1, "tool_completed"), 0.0)
    hearing.abort_answered(wanted, receipt("s:t1:c1", AbortScope.TOOL))
    assert violations(found) == ([] if closed else [("one_answer", "s:t1:c1")])


@pytest.mark.parametrize("named", ["s:t1:c1", ""])
def test_calls_that_an_abort_of_a_session_names_must_be_closed(hearing: ReplyChecker, found: Found, named: str) -> None:
    """After an abort of scope TOOL at a session, an open call that the receipt names is reported; a call that the
    receipt does not name is not."""
    hearing.wrote(call("s:t1", 1), 0.0)
    wanted = hearing.want_abort("s", AbortScope.TOOL)
    assert wanted.calls == ("s:t1:c1",)
    hearing.abort_answered(wanted, receipt("s", AbortScope.TOOL, named=named))
    assert violations(found) == ([("one_answer", "s:t1:c1")] if named else [])


def test_a_call_has_begun_with_its_first_record(hearing: ReplyChecker) -> None:
    """A tool call counts as begun from its first record on, also after it returned; a call without a record does
    not."""
    assert not hearing.has_begun("s:t1:c1")
    hearing.wrote(call("s:t1", 1), 0.0)
    hearing.wrote(call("s:t1", 1, "tool_completed"), 0.0)
    assert hearing.has_begun("s:t1:c1")
    assert not hearing.has_begun("s:t1:c2")


def permission(event: str, **told: object) -> Append:
    """Make the append of a permission record of the turn ``s:t1``."""
    words = {"number": 1, "by": "operator", "option": "y", "asked": True, "within_s": 2.0, **told}
    record = record_of("turn", "s:t1", event, metadata=words)
    return append_of(record, "RUNNING")


@pytest.mark.parametrize(
    ("at_s", "slept_s", "down_s", "by", "broken"),
    [
        (9.0, 0.0, None, "operator", False),
        (9.2, 0.0, None, "operator", True),
        (9.2, 0.0, None, "deadline", False),
        (15.0, 6.0, None, "operator", False),
        (15.2, 6.0, None, "operator", True),
        (20.0, 0.0, 1.0, "operator", False),
        (20.2, 0.0, 1.0, "operator", True),
    ],
)
def test_a_permission_is_answered_in_time(
    found: Found, at_s: float, slept_s: float, down_s: float | None, by: str, broken: bool
) -> None:
    """An operator's answer after its time is reported. The time starts when the request is durable, which may take the
    disk 7 s; sleeps do not count, and after an outage of the disk the time is longer, since a failed commit is known
    only then."""
    now = 7.0
    hearing = ReplyChecker(lambda law, *words: found.append((law, *words)), lambda: now, lambda since_s: slept_s, 0.0)
    hearing.wrote(permission("PermissionRequested"), 0.0)
    if down_s is not None:
        now += down_s
        hearing.disk_was_down(down_s)
    now = at_s
    hearing.wrote(permission("PermissionAnswered", by=by), at_s)
    assert violations(found) == ([("punctual", "s:t1:p1")] if broken else [])


def _told(node: NodeReceipt) -> Receipt:
    return Receipt(
        abort_id="a1",
        target=node.id,
        scope=AbortScope.TOOL,
        reason="",
        already_ended=False,
        nodes=(node,),
        recorded_at=1.0,
    )


@pytest.mark.parametrize(("adapter", "broken"), [("inprocess", [("tool_stays_tool", "s:t1:c1")]), ("acp", [])])
def test_a_call_within_our_process_ends_alone(
    hearing: ReplyChecker, found: Found, adapter: str, broken: list[tuple[str, str]]
) -> None:
    """An aborted tool call of an agent within the supervisor's process that ended with its whole turn is reported; for
    an agent in its own process it is not."""
    agent = call("s:a1", 1).record
    born = msgspec.structs.replace(
        agent, entity_type="agent", outcome="born", metadata={"session_id": "s", "adapter": adapter}
    )
    hearing.wrote(append_of(born, "starting", "s"), 0.0)
    node = NodeReceipt(id="s:t1:c1", kind="tool", outcome="ended", rung="request", how="the turn was interrupted")
    hearing.abort_answered(hearing.want_abort(node.id, AbortScope.TOOL), _told(node))
    assert violations(found) == broken


@pytest.mark.parametrize(("took_s", "broken"), [(2.0, []), (3.0, [("one_answer", "s")])])
def test_a_receipt_has_the_seconds_on_record(
    hearing: ReplyChecker, found: Found, took_s: float, broken: list[tuple[str, str]]
) -> None:
    """A receipt whose seconds differ from those of the session's last record is reported."""
    last = session("s", "Stopped", ended=True, event="Ended", abort_id="a1")
    told = msgspec.structs.replace(last.record, metadata={"rung": "kill", "took_s": 2.0})
    hearing.wrote(msgspec.structs.replace(last, record=told), 0.0)
    node = NodeReceipt(id="s", kind="session", outcome="ended", rung="kill", took_s=took_s)
    hearing.abort_answered(hearing.want_abort("s", AbortScope.SESSION), _told(node))
    assert violations(found) == broken
