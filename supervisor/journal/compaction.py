"""Compaction of a journal on disk into its archive, one compaction at a time, and copies of records in the archive.

A compaction is done in small pieces with a pause between two, so that no commit waits for long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from supervisor.journal.files import DISK
from supervisor.journal.sqlite import SqliteJournal
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Compacted, Retention, WallClock

_PAUSE_S: Final = 0.02
"""Seconds between two pieces: with some 5 ms of work in each piece, a compaction takes a fifth of a core at most."""


class JournalArchiver:
    """Archiver that moves ended entities of *journal* into *folder* (``supervisor.ports.Archiver``)."""

    def __init__(self, journal: SqliteJournal, folder: Path, wall: WallClock) -> None:
        self._journal, self._folder, self._wall = journal, folder, wall
        self._lock = anyio.Lock()

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        async with self._lock:
            now = self._wall.time()
            return await self._journal.compact(self._folder, retention, now, living=living, pause_s=_PAUSE_S)

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        await self._journal.check()
        await anyio.to_thread.run_sync(self._write, self._folder / f"{name}.jsonl", records)

    def _write(self, path: Path, records: Sequence[LifecycleEvent]) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for record in records:
                file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        DISK.sync(path.parent)
