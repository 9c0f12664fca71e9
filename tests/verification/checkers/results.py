"""Checker of results that were not reported to anybody yet, by durable records: while such a result exists, no run of
the same plan may begin anew.

Two plans are the same if their tasks have the same names and the same digests of their configuration. Subtasks belong
to their parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent

Say = Callable[[str, str, str], None]
ENDS: Final = frozenset({"completed", "failed", "cancelled"})


class ResultChecker:
    """Checker of the workstreams of one journal. *say* reports a violation."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._tasks: dict[str, dict[str, str]] = {}
        """Digests of the tasks of each workstream, by name of the task."""
        self._told: set[str] = set()
        """Workstreams with a result on record that was not reported to the caller."""
        self._owed: dict[frozenset[tuple[str, str]], str] = {}
        """Workstreams with such a result that their own run has ended, by their tasks."""

    def wrote(self, record: LifecycleEvent) -> None:
        """Process a durable record."""
        if record.entity_type == "task" and record.outcome == "born" and not record.metadata.get("part_of"):
            told = record.metadata
            self._tasks.setdefault(str(told.get("workstream", "")), {})[str(told.get("name", ""))] = str(
                told.get("digest", "")
            )
        elif record.entity_type == "workstream":
            self._stream(record, frozenset(self._tasks.get(record.entity_id, {}).items()))

    def _stream(self, record: LifecycleEvent, tasks: frozenset[tuple[str, str]]) -> None:
        match record.event:
            case "Result":
                self._told.add(record.entity_id)
                if record.to_status in ENDS:  # of a critical task that failed, once the others have ended
                    self._owed[tasks] = record.entity_id
            case "ResultReported":
                self._told.discard(record.entity_id)
                self._owed = {key: one for key, one in self._owed.items() if one != record.entity_id}
            case "all_tasks_created" if (owed := self._owed.get(tasks)) is not None:
                self._say("once", record.entity_id, f"does again what {owed} did, whose result nobody was given")
            case _ if record.to_status in ENDS and record.entity_id in self._told and record.actor == "plan":
                self._owed[tasks] = record.entity_id
