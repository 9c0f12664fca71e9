"""Checker of commands on record: no record follows from a command after the command was refused.

A session that was to be stopped for the command may have received the request before the refusal, so records of
sessions do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent

Say = Callable[[str, str, str], None]
SAID_S: Final = 0.01
"""Seconds after a refusal within which a message that was sent before the refusal may still be handled."""


class CommandLogChecker:
    """Checker of the records that follow from commands. *say* reports a violation: the invariant, the entity, and the
    message."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._refused: dict[int, float] = {}
        """Times of the refusals, by the sequence numbers of the refused commands."""

    def wrote(self, record: LifecycleEvent) -> None:
        """Process a durable record."""
        refused_s = self._refused.get(record.cause_id or 0)
        if refused_s is not None and record.monotonic_s > refused_s + SAID_S:
            words = f"{record.event} follows from command {record.cause_id}, which was refused before"
            self._say("one_answer", record.entity_id, words)
        if record.event == "CommandRefused" and record.outcome == "fact" and record.cause_id is not None:
            self._refused[record.cause_id] = record.monotonic_s
