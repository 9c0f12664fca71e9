"""Tests of the oracle's part that compares replies to prompts and closes with durable records."""

from __future__ import annotations

import pytest

from supervisor.ports import Append
from supervisor.simulation.replies import Replies
from tests.verification.records import append_of, record_of

Found = list[tuple[str, str, str]]


@pytest.fixture
def found() -> Found:
    return []


@pytest.fixture
def replies(found: Found) -> Replies:
    return Replies(lambda law, who, words: found.append((law, who, words)))


def session(
    name: str, state: str = "Running", parent: str | None = None, ended: bool = False, **told: object
) -> Append:
    """Make the append of a session record after which the session is in *state*."""
    record = record_of(
        "session", name, str(told.get("event", "SessionStarted")), to_status=state, abort_id=told.get("abort_id")
    )
    owed = told.get("owed", ())
    return append_of(record, state, parent, owed=owed, ended=ended)  # type: ignore[arg-type]


def violations(found: Found) -> list[tuple[str, str]]:
    return [(law, who) for law, who, _ in found]


def test_a_close_that_did_nothing(replies: Replies, found: Found) -> None:
    """A session that is reported as closed, but has no last record, is reported."""
    replies.wrote(session("s", "SessionComplete"))
    replies.close_answered("s")
    assert violations(found) == [("one_answer", "s")]
    replies.wrote(session("s", "Stopped", ended=True))
    replies.close_answered("s")
    assert len(found) == 1


def test_an_answer_that_nobody_gave(replies: Replies, found: Found) -> None:
    """A result that is given twice, or is not on record with its outcome, is reported; errors of a failed disk are
    not."""
    replies.wrote(session("s", owed=(("1.0", b'{"type":"Answer","request_id":"s:r1","outcome":"failed","error":""}'),)))
    replies.prompt_answered("s", "failed", "", 1)
    assert found == []
    replies.prompt_answered("s", "failed", "", 1)
    replies.prompt_answered("s", "failed", "the journal cannot be written: full", None)
    assert violations(found) == [("durable", "s")]


@pytest.mark.parametrize(("outcome", "seq"), [("completed", 1), ("failed", 2), ("failed", None)])
def test_an_answer_that_another_record_gave(replies: Replies, found: Found, outcome: str, seq: int | None) -> None:
    replies.wrote(session("s", owed=(("1.0", b'{"type":"Answer","request_id":"s:r1","outcome":"failed","error":""}'),)))
    replies.result_told("s", outcome, "", seq)
    assert violations(found) == [("durable", "s")]


def test_an_answer_that_is_heard_by_others(replies: Replies, found: Found) -> None:
    """A result that is given to a caller that returns to the session, and also to the caller of the prompt, is not
    reported."""
    replies.wrote(session("s", owed=(("1.0", b'{"type":"Answer","request_id":"s:r1","outcome":"failed","error":""}'),)))
    replies.result_told("s", "failed", "", 1)
    replies.prompt_answered("s", "failed", "", 1)
    assert found == []
