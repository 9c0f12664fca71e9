"""Trust scores of agents, stored in the journal: each change is a fact of the task that caused the change, with all
scores.

So the next supervisor needs only the newest such fact. The fact stays in the journal as long as the task; after that
all agents start anew, which errs on the side of less trust. Without an access policy no score is stored or recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.access import (
    AccessLevel,
    AccessPolicy,
    Level,
    Rights,
    TrustScore,
    after_success,
    after_violation,
    decode_scores,
    encode_scores,
)
from supervisor.ports import EntityRow, Journal
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.setup import Setups

_log = get_logger()

STANDING: Final = "Standing"
"""Name of the fact, in the log of a task, that trust scores have changed."""


class Trust:
    """Trust scores of the agents, by the agent's name in the plan."""

    def __init__(self, registry: EntityRegistry, setups: Setups) -> None:
        self._registry, self._setups = registry, setups
        self.standings: dict[str, TrustScore] = {}
        self._changes: dict[str, str] = {}
        """The last success or violation of each agent, as text."""
        self._counted: set[str] = set()
        """Ids of tasks that were counted as successes and may not have been closed yet: they are not counted again."""

    @property
    def policy(self) -> AccessPolicy | None:
        """The access policy; ``None``: there is none."""
        return self._setups.access_policy

    def level(self, agent: str) -> Level:
        return self._standing(agent).level

    def levels(self) -> list[AccessLevel]:
        """Return the level of each configured agent and of each agent with a score, by name; none if there is no access
        policy."""
        if self.policy is None:
            return []
        now = self._registry.journal_writer.clock.now()
        known = sorted({*self._setups.common.agents, *self.standings})
        return [self.policy.describe(one, self._standing(one), now, self._changes.get(one, "")) for one in known]

    def rights(self, agent: str) -> Rights | None:
        """Return the present rights of an agent; ``None`` if there is no access policy."""
        return None if self.policy is None else self.policy.rights[self.level(agent)]

    def _standing(self, agent: str) -> TrustScore:
        found = self.standings.get(agent)
        if found is None:
            return self.policy.first(agent) if self.policy is not None else TrustScore()
        return found

    def success(self, agent: str, task_id: str, cause: Cause, *, on: str = "") -> None:
        """Count a success of *agent*, whose task is about to be closed; at most once for each task. The fact is
        recorded for the entity *on* if the task was closed before."""
        if self.policy is not None and task_id not in self._counted:
            self._counted.add(task_id)
            now = self._registry.journal_writer.clock.now()
            after = after_success(self._standing(agent), now, self.policy.decay_s)
            self._record(agent, after, on or task_id, cause, "success", "", task_id)

    def violation(self, agent: str, task_id: str, cause: Cause, why: str, *, on: str = "") -> None:
        """Count a violation: *agent* exceeded its rights in its work on a task."""
        if self.policy is not None:
            now = self._registry.journal_writer.clock.now()
            after = after_violation(self._standing(agent), now, self.policy.decay_s)
            self._record(agent, after, on or task_id, cause, "violation", f": {why}", task_id)

    def _record(self, agent: str, after: TrustScore, on: str, cause: Cause, what: str, why: str, task_id: str) -> None:
        before, self.standings[agent] = self.level(agent), after
        words = self._changes[agent] = f"{what} of {agent}, {before} before and {after.level} now{why}"
        fact: dict[str, object] = {"agent": agent, "what": what, "standings": encode_scores(self.standings)}
        if on != task_id:
            fact["task"] = task_id
        self._registry.record_fact(on, STANDING, cause, fact, reason=words)
        if before is not after.level:
            _log.warning("the standing of an agent has changed", agent=agent, level=after.level.value, why=words)

    async def recall(self, journal: Journal, rows: Sequence[EntityRow]) -> None:
        """Restore the scores from the journal, given the rows of all entities in the journal.

        Raises:
            JournalError: the journal cannot be read.
        """
        newest: LifecycleEvent | None = None
        changes = list[LifecycleEvent]()
        for row in _newest_first(rows):
            if _is_at_rest(row) and newest is not None and row.changed_at < newest.timestamp:
                break  # the facts of this and all further tasks are older
            facts = [one for one in await journal.events(entity_id=row.id) if one.event == STANDING]
            successes = [one for one in facts if one.metadata.get("what") == "success"]
            self._counted |= {str(one.metadata.get("task", row.id)) for one in successes}
            changes += facts
            newest = max([*facts, *([newest] if newest is not None else [])], key=lambda one: one.seq, default=None)
        for one in sorted(changes, key=lambda fact: fact.seq):
            self._changes[str(one.metadata.get("agent", ""))] = one.reason
        if newest is not None:
            try:
                self.standings = decode_scores(newest.metadata["standings"])
            except (KeyError, msgspec.ValidationError) as error:
                _log.error("the trust scores in the journal cannot be read: all agents start anew", error=str(error))


def _is_at_rest(row: EntityRow) -> bool:
    """Return whether the entity's last change came after all its facts."""
    return row.ended or row.state == Task.FAILED.value


def _newest_first(rows: Iterable[EntityRow]) -> list[EntityRow]:
    """Return the rows of tasks and of workstreams (which have the facts of tasks that were merged late): first those
    that were interrupted, then the others by the time of their last change, newest first."""
    tasks = [row for row in rows if row.kind in (Kind.TASK, Kind.WORKSTREAM)]
    return sorted(tasks, key=lambda row: (_is_at_rest(row), -row.changed_at))
