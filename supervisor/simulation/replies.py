"""Check of replies to prompts and closes against durable records.

A result that a caller receives must be on record, and no two callers may receive the same recorded result; a session
that is reported as closed must have its last record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from supervisor.lifecycles.types import RecordId
from supervisor.ports import Append

JOURNAL_FAILED = "the journal cannot be written"
"""Prefix of the errors that a supervisor returns when its disk has failed; such errors are on no record."""


class Replies:
    """Checker of replies against the results on record. *say* is called to report a violation, with the invariant, the
    entity, and the message."""

    def __init__(self, say: Callable[[str, str, str], None]) -> None:
        self._say = say
        self._states: dict[str, str] = {}
        self._ended: set[str] = set()
        self._answers = Counter[tuple[str, str, str]]()
        """Number of results on record that no caller has received yet, by session, outcome and error."""
        self._settled: set[tuple[str, int, str, str]] = set()
        """Records that ended a prompt: session, sequence number, outcome, error."""

    def wrote(self, one: Append) -> None:
        """Take in a durable record of a session."""
        session_id = one.record.entity_id
        self._states[session_id] = one.state
        if one.ended:
            self._ended.add(session_id)
        for _, effect in one.owed:
            if b'"Answer"' in effect:
                answer = msgspec.json.decode(effect)
                outcome, error = str(answer["outcome"]), str(answer["error"])
                self._answers[session_id, outcome, error] += 1
                self._settled.add((session_id, one.record.seq, outcome, error))

    def is_stopped(self, session_id: str) -> bool:
        """Whether the session is stopped by the durable records."""
        return self._states.get(session_id) == "Stopped"

    def prompt_answered(self, session_id: str, outcome: str, error: str, seq: RecordId | None) -> None:
        """Check the result that the caller of a prompt received."""
        self.result_told(session_id, outcome, error, seq)
        if error.startswith(JOURNAL_FAILED):
            return
        key = (session_id, outcome, error)
        self._answers[key] -= 1
        if self._answers[key] < 0:
            self._say("durable", session_id, f"a prompt was answered {outcome!r} ({error}); no record says so")

    def result_told(self, session_id: str, outcome: str, error: str, seq: RecordId | None) -> None:
        """Check the result of a session's last prompt that a caller received who did not send the prompt."""
        if error.startswith(JOURNAL_FAILED) or (session_id, seq, outcome, error) in self._settled:
            return
        words = f"a prompt was said to be settled by record {seq}, {outcome!r} ({error}), which settles none so"
        self._say("durable", session_id, words)

    def close_answered(self, session_id: str) -> None:
        """Check that a session that was reported as closed has its last record."""
        if session_id in self._states and session_id not in self._ended:
            self._say("one_answer", session_id, f"was said to be closed, and is {self._states[session_id]} on record")
