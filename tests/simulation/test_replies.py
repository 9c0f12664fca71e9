"""What a host was told of prompts and closes is compared with what is durable."""

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
    """A record of a session that is in *state* after it."""
    record = record_of(
        "session", name, str(told.get("event", "SessionStarted")), to_status=state, abort_id=told.get("abort_id")
    )
    owed = told.get("owed", ())
    return append_of(record, state, parent, owed=owed, ended=ended)  # type: ignore[arg-type]


def violations(found: Found) -> list[tuple[str, str]]:
    return [(law, who) for law, who, _ in found]


def test_a_close_that_did_nothing(replies: Replies, found: Found) -> None:
    """Whoever was told that a session is closed finds its last record."""
    replies.wrote(session("s", "SessionComplete"))
    replies.close_answered("s")
    assert violations(found) == [("one_answer", "s")]
    replies.wrote(session("s", "Stopped", ended=True))
    replies.close_answered("s")
    assert len(found) == 1


def test_an_answer_that_nobody_gave(replies: Replies, found: Found) -> None:
    """A prompt's answer is on record, with that outcome, and is given once; but for what a failed disk keeps back."""
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
    """Who comes back to a session hears how its last prompt ended, whoever had asked; they are told as well."""
    replies.wrote(session("s", owed=(("1.0", b'{"type":"Answer","request_id":"s:r1","outcome":"failed","error":""}'),)))
    replies.result_told("s", "failed", "", 1)
    replies.prompt_answered("s", "failed", "", 1)
    assert found == []
