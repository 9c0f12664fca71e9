"""What was used, by whom: the sums of what agents have said, per turn, session, task and workstream, from the records.

The log of a session says what its agents have used so far; nothing is counted but that, so the sums are the same for
whoever reads the journal, whenever, and after however many supervisors. A session's sum holds its child sessions, a
task's the sessions that have claimed it, a workstream's its tasks. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.budgets import Amounts

__all__ = ["USAGE", "USAGE_EVENTS", "UsageTotals"]

USAGE: Final = "Usage"
"""The fact that says what a session has used so far, and every scope that it counts in."""
USAGE_EVENTS: Final = ("Born", USAGE, "claimed")
"""The records that are read; others change nothing."""
NOTHING: Final = Amounts()
_LEFT_OUT: Final = "/~"
"""What stands in an id for the middle of a path that would be too long: who is below the root is not told there."""


def _unknown(session_id: str) -> None:
    """Nobody knows the parent of that session."""


class UsageTotals:
    """Adds up. Records are taken in their order.

    Args:
        parent_of: the parent of a session whose id leaves it out, where that is known; else it counts in its root.
    """

    def __init__(
        self, records: Iterable[LifecycleEvent] = (), parent_of: Callable[[str], str | None] = _unknown
    ) -> None:
        self._parent_of = parent_of
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
            self._above[record.entity_id] = self._parent(record.entity_id)
        elif record.entity_type == "task" and record.metadata.get("workstream"):
            self._above[record.entity_id] = str(record.metadata["workstream"])

    def _parent(self, session_id: str) -> str:
        above = session_id.rpartition("/")[0]
        root = above.removesuffix(_LEFT_OUT)
        return above if root == above else self._parent_of(session_id) or root

    def sums(self) -> Mapping[str, Amounts]:
        """By the id of every entity that has used something."""
        sums, missing = dict(self._own), Counter(self._above.values())
        whole = [one for one in self._above if one not in missing]
        for one in whole:  # each is added once, when all below it have been: a chain may be thousands deep
            above = self._above.get(one)
            if above is None:
                continue
            if one in sums:
                sums[above] = sums.get(above, NOTHING) + sums[one]
            missing[above] -= 1
            if not missing[above]:
                whole.append(above)
        return sums
