"""Checker that compares the archive of a run with durable records.

A workstream that has failed or completed is preserved by the supervisor under which it ended, unless that supervisor
is killed first: every record of the workstream, of its tasks and of the sessions that worked on these tasks is in one
file of the archive, byte for byte. The checker finds these records by the parents and claims on record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append

Say = Callable[[str, str, str], None]
KEPT: Final = frozenset({"completed", "failed"})
_encode: Final = msgspec.json.Encoder().encode


class ArchiveChecker:
    """Checker of the ends of workstreams and the files of the archive. *say* reports a violation: the invariant, the
    entity, and the message."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._records: list[LifecycleEvent] = []
        self._whose: dict[str, str] = {}
        """Workstream of each entity; a session belongs to the workstream whose task the session has claimed."""
        self._over: dict[str, tuple[str, int]] = {}
        """Workstreams that have ended under this supervisor: the final state of each, and the sequence number of the
        record of that end."""
        self._files: dict[str, dict[int, bytes]] = {}

    def wrote(self, one: Append) -> None:
        """Process a durable append."""
        record = one.record
        self._records.append(record)
        if record.entity_type == "workstream":
            self._whose[record.entity_id] = record.entity_id
            if record.outcome == "transition" and one.state in KEPT:
                self._over[record.entity_id] = one.state, record.seq
        elif (above := self._whose.get(one.parent_id or "")) is not None:
            self._whose.setdefault(record.entity_id, above)
            if record.event == "claimed" and record.outcome == "transition":
                self._whose[str(record.metadata["by"])] = above

    def preserved(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        """Process a file that was added to the archive."""
        self._files[name] = {record.seq: _encode(record) for record in records}

    def killed(self) -> None:
        """Drop the workstreams that ended under a supervisor that was then killed: only the journal has their
        records."""
        self._over.clear()

    def closed(self) -> None:
        """Check the archive when the supervisor has closed in order: each ended workstream must have a complete
        file."""
        for workstream, (state, seq) in self._over.items():
            self._check(workstream, state, seq)
        self._over.clear()

    def _check(self, workstream: str, state: str, seq: int) -> None:
        file = self._files.get(workstream)
        if file is None:
            self._say("archive_preservation", workstream, f"is {state}, and no file of the archive has it")
            return
        wanted = [one for one in self._records if one.seq <= seq and self._is_about(one.entity_id, workstream)]
        missing = [one for one in wanted if file.get(one.seq) != _encode(one)]
        if missing:
            words = f"is {state}; of its {len(wanted)} records {len(missing)} are not in the archive as they are"
            self._say("archive_preservation", workstream, f"{words}, as {missing[0].event} of {missing[0].entity_id}")

    def _is_about(self, entity_id: str, workstream: str) -> bool:
        """Return whether the entity belongs to the workstream, or to a session that worked for the workstream, as that
        session's turns, agents and child sessions do."""
        root = entity_id.partition(":")[0].partition("/")[0]
        return workstream in (self._whose.get(entity_id), self._whose.get(root))
