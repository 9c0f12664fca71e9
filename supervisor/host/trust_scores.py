"""Everybody's standing, kept in the journal: each change is a fact on the task that caused it, and tells of all agents.

So the newest such fact is all that the next supervisor needs. The journal keeps it as long as it keeps that task; trust
that was not earned or lost for longer than that is gone, and everybody begins again: that is the safe side. Without a
policy nobody is judged, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.access import (
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
from supervisor.runtime.journal_writer import Cause, Clock

__all__ = ["STANDING", "Note", "Trust"]

_log = get_logger()

STANDING: Final = "Standing"
"""The fact that a change of standing leaves in the log of its task."""

Note = Callable[[str, str, Cause, dict[str, object], str], None]
"""Records a fact: about whom, its name, its cause, what it tells, and the reason for people."""


class Trust:
    """The standing of each agent, by the name that the plan gives it.

    Args:
        clock: the time that violations decay by.
        note: records a fact about a task.
    """

    def __init__(self, clock: Clock, note: Note) -> None:
        self._clock, self._note = clock, note
        self.policy: AccessPolicy | None = None
        self.standings: dict[str, TrustScore] = {}
        self._counted: set[str] = set()
        """Tasks that were counted as successes and may not have been closed yet: they are not counted again."""

    # ------------------------------------------------------------------ what holds
    def level(self, agent: str) -> Level:
        """How far that agent is trusted now."""
        return self._standing(agent).level

    def rights(self, agent: str) -> Rights | None:
        """What that agent may do now; ``None``: nobody is judged."""
        return None if self.policy is None else self.policy.rights[self.level(agent)]

    def _standing(self, agent: str) -> TrustScore:
        found = self.standings.get(agent)
        if found is None:
            return self.policy.first(agent) if self.policy is not None else TrustScore()
        return found

    # ------------------------------------------------------------------ what happens
    def success(self, agent: str, task_id: str, cause: Cause, *, on: str = "") -> None:
        """A task of that agent is about to be closed; counted once for each task. *on*: whose fact it is, where
        the task was closed before."""
        if self.policy is not None and task_id not in self._counted:
            self._counted.add(task_id)
            after = after_success(self._standing(agent), self._clock.now(), self.policy.decay_s)
            self._keep(agent, after, on or task_id, cause, "success", "", task_id)

    def violation(self, agent: str, task_id: str, cause: Cause, why: str, *, on: str = "") -> None:
        """That agent did on a task what it may not."""
        if self.policy is not None:
            after = after_violation(self._standing(agent), self._clock.now(), self.policy.decay_s)
            self._keep(agent, after, on or task_id, cause, "violation", f": {why}", task_id)

    def _keep(self, agent: str, after: TrustScore, on: str, cause: Cause, what: str, why: str, task_id: str) -> None:
        before, self.standings[agent] = self.level(agent), after
        words = f"{what} of {agent}, {before} before and {after.level} now{why}"
        fact: dict[str, object] = {"agent": agent, "what": what, "standings": encode_scores(self.standings)}
        if on != task_id:
            fact["task"] = task_id
        self._note(on, STANDING, cause, fact, words)
        if before is not after.level:
            _log.warning("the standing of an agent has changed", agent=agent, level=after.level.value, why=words)

    # ------------------------------------------------------------------ what an earlier supervisor knew
    async def recall(self, journal: Journal, rows: Sequence[EntityRow]) -> None:
        """Take up the standings that the journal holds, given all its entities.

        Raises:
            JournalError: it cannot be read.
        """
        newest: LifecycleEvent | None = None
        for row in _newest_first(rows):
            if _is_at_rest(row) and newest is not None and row.changed_at < newest.timestamp:
                break  # its facts are older still
            facts = [one for one in await journal.events(entity_id=row.id) if one.event == STANDING]
            successes = [one for one in facts if one.metadata.get("what") == "success"]
            self._counted |= {str(one.metadata.get("task", row.id)) for one in successes}
            newest = max([*facts, *([newest] if newest is not None else [])], key=lambda one: one.seq, default=None)
        if newest is not None:
            self._take(newest.metadata)

    def _take(self, fact: Mapping[str, object]) -> None:
        try:
            self.standings = decode_scores(fact["standings"])  # type: ignore[arg-type]  # what is none is refused
        except (KeyError, msgspec.ValidationError) as error:
            _log.error("the standings in the journal cannot be read: everybody begins again", error=str(error))


def _is_at_rest(row: EntityRow) -> bool:
    """Whether its last change came after all its facts."""
    return row.ended or row.state == Task.FAILED.value


def _newest_first(rows: Iterable[EntityRow]) -> list[EntityRow]:
    """The tasks, and the workstreams, which know of tasks that were merged late: those that were interrupted, then the
    others, by their last change."""
    tasks = [row for row in rows if row.kind in (Kind.TASK, Kind.WORKSTREAM)]
    return sorted(tasks, key=lambda row: (_is_at_rest(row), -row.changed_at))
