"""Usage totals: what agents have reported, summed per turn, session, task and workstream, from the journal's records.

The log of a session holds what its agents have used so far. Only these records are counted, so the totals do not depend
on the reader, the time or the number of supervisors. A session's total includes its child sessions, a task's total the
sessions that have claimed the task, a workstream's total its tasks. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.budgets import Amounts

USAGE: Final = "Usage"
"""The fact that records what a session has used so far, and every budget scope that it counts in."""
USAGE_EVENTS: Final = ("Born", USAGE, "claimed")
"""Events whose records are read; others change nothing."""
NOTHING: Final = Amounts()
_LEFT_OUT: Final = "/~"
"""Part of an id that replaces the middle of a path that would be too long: such an id does not name the parent."""


def _unknown(session_id: str) -> None:
    """Return ``None``: the parent of *session_id* is not known."""


class UsageTotals:
    """Sums of usage. Records must be added in their order.

    Args:
        parent_of: the parent of a session whose id leaves it out, where that is known; else it counts in its root.
    """

    def __init__(
        self, records: Iterable[LifecycleEvent] = (), parent_of: Callable[[str], str | None] = _unknown
    ) -> None:
        self._parent_of = parent_of
        self._own: dict[str, Amounts] = {}
        """Usage by session and by turn, without what is below."""
        self._above: dict[str, str] = {}
        """The parent of a child session, the task that a session has claimed last, the workstream of a task."""
        for record in records:
            self.take(record)

    def take(self, record: LifecycleEvent) -> None:
        """Add the next record."""
        fact = record.metadata
        if record.event == USAGE and record.outcome == "fact":
            self._used(record.entity_id, str(fact["turn"]), msgspec.convert(fact["used"], Amounts))
        elif record.event == "claimed" and record.outcome == "transition" and fact.get("by"):
            self._above[str(fact["by"])] = record.entity_id
        elif record.outcome == "born":
            self._born(record)

    def _used(self, session_id: str, turn_id: str, used: Amounts) -> None:
        """Record the usage of a session so far; the increase is that of the named turn."""
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
        """Return the totals by entity, for every entity that has used something."""
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
