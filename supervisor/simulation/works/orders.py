"""Commands as the records have them: once one is refused, nothing follows from it."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.vocabulary import LifecycleEvent

__all__ = ["Orders"]

Say = Callable[[str, str, str], None]


class Orders:
    """What follows from commands. *say* reports a law that was broken: its name, whose, and the words."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._refused: set[int] = set()
        """The records of those commands."""

    def wrote(self, record: LifecycleEvent) -> None:
        """This is durable."""
        if record.cause_id in self._refused:
            words = f"{record.event} follows from command {record.cause_id}, which was refused before"
            self._say("one_answer", record.entity_id, words)
        if record.event == "CommandRefused" and record.outcome == "fact" and record.cause_id is not None:
            self._refused.add(record.cause_id)
