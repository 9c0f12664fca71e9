"""The upkeep of a journal on disk: what ended long ago goes to the archive, now and then, while the supervisor runs.

One compaction at a time; each is cut into small pieces with a pause between two, so that no commit waits for long. What
goes wrong is logged and tried again the next time: a journal that is too long is no reason to end anything.
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
from supervisor.logs import get_logger
from supervisor.ports import Compacted, JournalError, Retention, WallClock
from supervisor.supervision import Supervisor
from supervisor.vocabulary import LifecycleEvent

__all__ = ["JournalUpkeep", "keep_up"]

_PAUSE_S: Final = 0.02
"""Between two pieces: with some 5 ms of work in each, a compaction takes a fifth of a core at most."""
_FIRST_S: Final = 60.0
"""When a supervisor first looks, unless it looks more often than that."""
_log = get_logger()


class JournalUpkeep:
    """Compacts *journal* into *folder* (``supervisor.ports.Upkeep``)."""

    def __init__(self, journal: SqliteJournal, folder: Path, wall: WallClock) -> None:
        self._journal, self._folder, self._wall = journal, folder, wall
        self._lock = anyio.Lock()

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        async with self._lock:
            now = self._wall.time()
            return await self._journal.compact(self._folder, retention, now, living=living, pause_s=_PAUSE_S)

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
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


async def keep_up(supervisor: Supervisor) -> None:
    """Compact the journal of *supervisor* as often as its settings say, for ever."""
    every_s = _FIRST_S
    while True:
        await anyio.sleep(min(every_s, supervisor.settings.retention.every_s))
        every_s = supervisor.settings.retention.every_s
        try:
            told = await supervisor.compact()
        except (JournalError, OSError) as error:
            _log.warning("the journal could not be compacted; it is tried again later", error=str(error))
        else:
            if told.archives:
                _log.info("the journal was compacted", records=told.records, left=told.records_left)
