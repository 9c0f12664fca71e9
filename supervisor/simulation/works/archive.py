"""The archive of a run, and the judge's own record of what must be in it.

A workstream that has ended, failed or completed, is preserved by the supervisor under which it ended, unless that is
killed first: every record of it, of its tasks and of what worked on them is in one file of the archive, word for word.
Which those are is known by who is below whom in durable records, and by the claims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import anyio
import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, Compacted, Retention

__all__ = ["ArchiveBooks", "SimulatedArchive"]

Say = Callable[[str, str, str], None]
KEPT: Final = frozenset({"completed", "failed"})
TAKES_S: Final = 0.05
"""How long a file takes."""
_encode: Final = msgspec.json.Encoder().encode


class ArchiveBooks:
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


class SimulatedArchive:
    """The upkeep of a simulated journal (``supervisor.ports.Upkeep``), which never grows too long."""

    def __init__(self, books: ArchiveBooks) -> None:
        self._books = books

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        return Compacted()

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        await anyio.sleep(TAKES_S)
        self._books.preserved(name, records)
