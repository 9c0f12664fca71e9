"""Replies that hosts get to prompts and closes, compared with durable records.

Whoever was told how a prompt ended finds that very answer on record, and nobody else was told it; whoever was told that
a session is closed finds its last record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from supervisor.ports import Append

__all__ = ["JOURNAL_FAILED", "Replies"]

JOURNAL_FAILED = "the journal cannot be written"
"""How the answers begin that a supervisor gives when its disk has failed: those are on no record."""


class Replies:
    """What is on record for those who asked. *say* reports a violation: the invariant, whose it is, and the words."""

    def __init__(self, say: Callable[[str, str, str], None]) -> None:
        self._say = say
        self._states: dict[str, str] = {}
        self._ended: set[str] = set()
        self._answers = Counter[tuple[str, str, str]]()
        """Answers on record that nobody who asked was told yet, by session, outcome and error."""
        self._settled: set[tuple[str, int, str, str]] = set()
        """The records that settled a prompt: by session and number, and how."""

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
        """True if it is on record that the session was told to end."""
        return self._states.get(session_id) == "Stopped"

    def prompt_answered(self, session_id: str, outcome: str, error: str, seq: int | None) -> None:
        """Whoever had asked was told how a prompt ended."""
        self.result_told(session_id, outcome, error, seq)
        if error.startswith(JOURNAL_FAILED):
            return
        key = (session_id, outcome, error)
        self._answers[key] -= 1
        if self._answers[key] < 0:
            self._say("durable", session_id, f"a prompt was answered {outcome!r} ({error}); no record says so")

    def result_told(self, session_id: str, outcome: str, error: str, seq: int | None) -> None:
        """The host was told how the last prompt of a session ended, whoever had asked."""
        if error.startswith(JOURNAL_FAILED) or (session_id, seq, outcome, error) in self._settled:
            return
        words = f"a prompt was said to be settled by record {seq}, {outcome!r} ({error}), which settles none so"
        self._say("durable", session_id, words)

    def close_answered(self, session_id: str) -> None:
        """The host was told that a session is closed."""
        if session_id in self._states and session_id not in self._ended:
            self._say("one_answer", session_id, f"was said to be closed, and is {self._states[session_id]} on record")
