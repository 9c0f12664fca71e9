"""The archive of a run: what must be in it, compared with its files.

A workstream that has ended, failed or completed, is preserved by the supervisor under which it ended, unless that is
killed first: every record of it, of its tasks and of what worked on them is in one file of the archive, word for word.
Which those are is known by who is below whom in durable records, and by the claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append

__all__ = ["ArchiveChecker"]

Say = Callable[[str, str, str], None]
KEPT: Final = frozenset({"completed", "failed"})
_encode: Final = msgspec.json.Encoder().encode


class ArchiveChecker:
    """What became of workstreams, and the files of the archive. *say* reports a law that was broken."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._records: list[LifecycleEvent] = []
        self._whose: dict[str, str] = {}
        """The workstream that an entity belongs to; of sessions, those that claimed a task."""
        self._over: dict[str, tuple[str, int]] = {}
        """Workstreams that have ended under this supervisor: how, and with which record."""
        self._files: dict[str, dict[int, bytes]] = {}

    def wrote(self, one: Append) -> None:
        """This is durable."""
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
        """A file of that name holds these."""
        self._files[name] = {record.seq: _encode(record) for record in records}

    def killed(self) -> None:
        """The supervisor is no more: what it did not come to stays in the journal."""
        self._over.clear()

    def closed(self) -> None:
        """The supervisor has closed in order."""
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
        """Whether it belongs to it, or to a session that worked for it: its turns, its agents, its children."""
        root = entity_id.partition(":")[0].partition("/")[0]
        return workstream in (self._whose.get(entity_id), self._whose.get(root))
