"""Usage totals: the usage that agents have reported, summed per turn, session, task and workstream, from the journal's
records; and the last totals that the agents of a session have reported of their conversations.

The log of a session holds the usage of its agents so far. Only these records are counted, so the totals do not depend
on the reader, the time or the number of supervisors. A session's total includes its child sessions, a task's total the
sessions that have claimed the task, a workstream's total its tasks. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.budgets import Amounts

USAGE: Final = "Usage"
"""Name of the fact that records the usage of a session so far, and every budget scope in which the usage counts."""
USAGE_EVENTS: Final = ("Born", USAGE, "claimed")
"""Events whose records are read; the records of other events change nothing."""
OWN_USAGE_EVENTS: Final = USAGE_EVENTS[1:]
"""The events without births, where rows say what is below what."""
NOTHING: Final = Amounts()
_LEFT_OUT: Final = "/~"
"""Part of an id that replaces the middle of a path that would be too long: such an id does not name the parent."""


CONVERSATIONS_MAX: Final = 1_000
"""Number of conversations of one session whose totals are kept; usage of further conversations is not counted."""
_TOTALS: Final = ("input_tokens", "output_tokens", "cost_usd", "cached_tokens")
"""Measures of which an agent may report the total of a conversation."""


class ConversationTotals:
    """Last usage totals of each conversation of a session, by the conversation's id.

    An agent that resumes a conversation in a new process goes on counting where the process before had ended, so the
    totals belong to the conversation. They are recorded together with the usage of the session, and restored from that
    record: usage that was counted and the total up to which it was counted always agree.

    The first total of a conversation counts from 0, also that of a fork, whose id is new. A total that is smaller than
    the last one shows that the agent has begun to count anew, as Claude Code does after a crash: it counts from 0, too.
    """

    def __init__(self, recorded: Mapping[str, Amounts] = MappingProxyType({})) -> None:
        self._totals = dict(recorded)
        self._changed: dict[str, None] = {}

    def increase(self, conversation: str, total: Amounts) -> Amounts:
        """Return the usage that *total* adds to the last total of the conversation. A measure that is 0 is not
        reported; ``requests`` are an increase already, and are returned unchanged."""
        if conversation not in self._totals and len(self._totals) >= CONVERSATIONS_MAX:
            return Amounts()
        last = self._totals.get(conversation, NOTHING)
        reported = {name: amount for name in _TOTALS if (amount := getattr(total, name))}
        began_anew = any(amount < getattr(last, name) for name, amount in reported.items())
        base = NOTHING if began_anew else last
        self._totals[conversation] = msgspec.structs.replace(last, **reported)
        self._changed[conversation] = None
        added = {name: amount - getattr(base, name) for name, amount in reported.items()}
        return Amounts(**added, requests=total.requests)

    def rename(self, before: str, after: str) -> None:
        """Give the conversation *before*, whose id was not known yet, its id, unless a conversation has that id."""
        if before in self._totals and after not in self._totals:
            self._totals[after] = self._totals.pop(before)
            self._changed.pop(before, None)
            self._changed[after] = None

    def take_changed(self) -> dict[str, Any]:
        """Return the totals that have changed since the last call, by conversation, in the form of a record's
        fields."""
        changed, self._changed = self._changed, {}
        return {one: msgspec.to_builtins(self._totals[one]) for one in changed}


def _unknown(session_id: str) -> None:
    """Return ``None``: the parent of *session_id* is not known."""


class UsageTotals:
    """Sums of usage by entity. Records must be added in their order.

    Args:
        parent_of: returns the parent of a session whose id does not name the parent; with ``None``, the usage counts
            for the root session.
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
        """Add the next record of the journal."""
        fact = record.metadata
        if record.event == USAGE and record.outcome == "fact":
            self._used(record.entity_id, str(fact["turn"]), msgspec.convert(fact["used"], Amounts))
        elif record.event == "claimed" and record.outcome == "transition" and fact.get("by"):
            self.place(str(fact["by"]), record.entity_id)
        elif record.outcome == "born":
            self._born(record)

    def place(self, entity_id: str, above: str) -> None:
        """Count the usage of an entity, and of everything below it, for the entity *above*, too. Records say so
        themselves, except where the first record of the entity is not added."""
        self._above[entity_id] = above

    def _used(self, session_id: str, turn_id: str, used: Amounts) -> None:
        """Record the usage of a session so far; the increase counts for the named turn."""
        more = used - self._own.get(session_id, NOTHING)
        self._own[session_id] = used
        self._own[turn_id] = self._own.get(turn_id, NOTHING) + more

    def _born(self, record: LifecycleEvent) -> None:
        if record.entity_type == "session" and "/" in record.entity_id:
            self.place(record.entity_id, self._parent(record.entity_id))
        elif record.entity_type == "task" and record.metadata.get("workstream"):
            self.place(record.entity_id, str(record.metadata["workstream"]))

    def _parent(self, session_id: str) -> str:
        above = session_id.rpartition("/")[0]
        root = above.removesuffix(_LEFT_OUT)
        return above if root == above else self._parent_of(session_id) or root

    def sums(self) -> Mapping[str, Amounts]:
        """Return the totals by entity, for every entity with any usage."""
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
