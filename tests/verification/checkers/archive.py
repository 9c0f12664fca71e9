"""The archive of a run, compared with durable records.

A workstream that has ended, failed or completed, is preserved by the supervisor under which it ended, unless that is
killed first: every record of the workstream, of its tasks and of the sessions that worked on them is in one file of the
archive, byte for byte. Parents and claims on record say which records those are.
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
    """Ends of workstreams and files of the archive. *say* reports a violation."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._records: list[LifecycleEvent] = []
        self._whose: dict[str, str] = {}
        """The workstream to which an entity belongs; sessions belong to it by a claim."""
        self._over: dict[str, tuple[str, int]] = {}
        """Workstreams that have ended under this supervisor: the state, and the sequence number of the record."""
        self._files: dict[str, dict[int, bytes]] = {}

    def wrote(self, one: Append) -> None:
        """Take in a durable append."""
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
        """Take in a file of the archive."""
        self._files[name] = {record.seq: _encode(record) for record in records}

    def killed(self) -> None:
        """Forget the ends under a killed supervisor: their records stay in the journal."""
        self._over.clear()

    def closed(self) -> None:
        """Check the archive, when the supervisor has closed in order."""
        for workstream, (state, seq) in self._over.items():
            self._check(workstream, state, seq)
        self._over.clear()

    def _check(self, workstream: str, state: str, seq: int) -> None:
        file = self._files.get(workstream.replace(":", "-"))
        if file is None:
            self._say("archive_preservation", workstream, f"is {state}, and no file of the archive has it")
            return
        wanted = [one for one in self._records if one.seq <= seq and self._is_about(one.entity_id, workstream)]
        missing = [one for one in wanted if file.get(one.seq) != _encode(one)]
        if missing:
            words = f"is {state}; of its {len(wanted)} records {len(missing)} are not in the archive as they are"
            self._say("archive_preservation", workstream, f"{words}, as {missing[0].event} of {missing[0].entity_id}")

    def _is_about(self, entity_id: str, workstream: str) -> bool:
        """Whether the entity belongs to the workstream, or to a session that worked for it: turns, agents, children."""
        root = entity_id.partition(":")[0].partition("/")[0]
        return workstream in (self._whose.get(entity_id), self._whose.get(root))
