"""Commands as the records of work have them: once one is refused, nothing follows from it.

Who was to be stopped for it may have been told so by then: what becomes of sessions is not in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent

__all__ = ["CommandLogChecker"]

Say = Callable[[str, str, str], None]
SAID_S: Final = 0.01
"""What was said before that may take so long to be heard."""


class CommandLogChecker:
    """What follows from commands. *say* reports a law that was broken: its name, whose, and the words."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._refused: dict[int, float] = {}
        """The records of those commands, and when they were refused."""

    def wrote(self, record: LifecycleEvent) -> None:
        """This is durable."""
        refused_s = self._refused.get(record.cause_id or 0)
        if refused_s is not None and record.monotonic_s > refused_s + SAID_S:
            words = f"{record.event} follows from command {record.cause_id}, which was refused before"
            self._say("one_answer", record.entity_id, words)
        if record.event == "CommandRefused" and record.outcome == "fact" and record.cause_id is not None:
            self._refused[record.cause_id] = record.monotonic_s
