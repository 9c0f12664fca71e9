"""The journal on disk, as the runtime sees it: a database on a thread of its own, one piece of work at a time.

``append`` returns when its transaction is on the disk. All work is shielded, so that the event loop never waits for a
disk and a cancellation never leaves a transaction open; the cancel is delivered at the caller's next checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio

from supervisor.journal.database import Database, open_database
from supervisor.journal.schema import explaining, read_entities, read_events
from supervisor.ports import Append, EntityRow, JournalError
from supervisor.vocabulary import LifecycleEvent

__all__ = ["SqliteJournal"]

_T = TypeVar("_T")


class SqliteJournal:
    """A journal in one file (``supervisor.ports.Journal``). Made by :meth:`open`; close it."""

    def __init__(self, path: Path, database: Database) -> None:
        self._path = path
        self._limiter = anyio.CapacityLimiter(1)
        self._database: Database | None = database
        self._generation = database.generation
        self._last_seq = database.last_seq
        self._lines_error: str | None = None

    @classmethod
    async def open(cls, path: Path, *, jsonl: Path | None) -> SqliteJournal:
        """Open or create the journal at *path* as its next generation, and bring *jsonl* up to date.

        Raises:
            JournalError: of another version, damaged or somebody else's; one of another version was left as it is.
        """
        with anyio.CancelScope(shield=True):
            database = await anyio.to_thread.run_sync(open_database, path, jsonl)
        return cls(path, database)

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def last_seq(self) -> int:
        return self._last_seq

    @property
    def lines_error(self) -> str | None:
        """Why ``transitions.jsonl`` is behind the journal, ``None`` if it is not. Each append tries again."""
        return self._lines_error

    async def append(self, batch: Sequence[Append]) -> None:
        await self._run(lambda database: database.append(batch))

    async def settle(self, effect_ids: Sequence[str]) -> None:
        await self._run(lambda database: database.settle(effect_ids))

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """The effects that were never settled, oldest first: (effect id, entity id, payload)."""
        return await self._run(lambda database: database.owed())

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]:
        return await self._run(lambda database: read_events(database.db, entity_id, after_seq, limit))

    async def entities(self, *, live_only: bool = False) -> list[EntityRow]:
        return await self._run(lambda database: read_entities(database.db, live_only=live_only))

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close, limiter=self._limiter)

    async def _run(self, work: Callable[[Database], _T]) -> _T:
        answer: _T
        with anyio.CancelScope(shield=True):
            answer = await anyio.to_thread.run_sync(self._on_thread, work, limiter=self._limiter)
        return answer

    def _on_thread(self, work: Callable[[Database], _T]) -> _T:
        if self._database is None:
            raise JournalError(f"{self._path} is closed; open the journal again")
        try:
            with explaining(self._path):
                return work(self._database)
        finally:
            self._last_seq, self._lines_error = self._database.last_seq, self._database.lines_error

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with explaining(self._path):
                database.close()
