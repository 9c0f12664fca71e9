"""What was used, by whom: the sums of what agents have said, per turn, session, task and workstream, from the records.

The log of a session says what its agents have used so far; nothing is counted but that, so the sums are the same for
whoever reads the journal, whenever, and after however many supervisors. A session's sum holds its child sessions, a
task's the sessions that have claimed it, a workstream's its tasks. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from supervisor.budgets import Amounts
from supervisor.vocabulary import LifecycleEvent

__all__ = ["TOLD_IN", "USAGE", "UsageBooks"]

USAGE: Final = "Usage"
"""The fact that says what a session has used so far, and every scope that it counts in."""
TOLD_IN: Final = ("Born", USAGE, "claimed")
"""The records that are read; others change nothing."""
NOTHING: Final = Amounts()


class UsageBooks:
    """Adds up. Records are taken in their order."""

    def __init__(self, records: Iterable[LifecycleEvent] = ()) -> None:
        self._own: dict[str, Amounts] = {}
        """By session and by turn."""
        self._above: dict[str, str] = {}
        """The session that a child session lies below, the task that a session has claimed last, and so on."""
        for record in records:
            self.take(record)

    def take(self, record: LifecycleEvent) -> None:
        """The next record."""
        told = record.metadata
        if record.event == USAGE and record.outcome == "fact":
            self._used(record.entity_id, str(told["turn"]), msgspec.convert(told["used"], Amounts))
        elif record.event == "claimed" and record.outcome == "transition" and told.get("by"):
            self._above[str(told["by"])] = record.entity_id
        elif record.outcome == "born":
            self._born(record)

    def _used(self, session_id: str, turn_id: str, used: Amounts) -> None:
        """A session's records say what it has used in all; what is new is the turn's that they name."""
        more = used - self._own.get(session_id, NOTHING)
        self._own[session_id] = used
        self._own[turn_id] = self._own.get(turn_id, NOTHING) + more

    def _born(self, record: LifecycleEvent) -> None:
        if record.entity_type == "session" and "/" in record.entity_id:
            self._above[record.entity_id] = record.entity_id.rpartition("/")[0]
        elif record.entity_type == "task" and record.metadata.get("workstream"):
            self._above[record.entity_id] = str(record.metadata["workstream"])

    def sums(self) -> Mapping[str, Amounts]:
        """By the id of every entity that has used something."""
        sums = dict(self._own)
        for entity_id, used in self._own.items():
            above = self._above.get(entity_id)
            while above is not None:
                sums[above] = sums.get(above, NOTHING) + used
                above = self._above.get(above)
        return sums
