"""Journal on disk: a SQLite database on a thread of its own, one operation at a time.

Theory of operation
-------------------
``append`` returns when its transaction is on the disk (WAL mode, synchronous=FULL). Every operation runs on a worker
thread, so that the event loop never waits for a disk, and inside a shield, so that a cancellation never leaves a
transaction open: it is delivered at the caller's next checkpoint.

A shield does not stop a Ctrl-C, or asyncio's own cancel. Such a cancel ends the wait for the thread, never the thread's
work. Therefore the operations are serialised by a lock, and not only by anyio's limiter: the limiter is free as soon as
the wait has ended, the lock when the thread has finished. An opening and a closing are always waited for to their end.

Example: ``append`` waits for the disk and its task is cancelled. The transaction commits, ``append`` returns, and the
task is cancelled at its next checkpoint. After a Ctrl-C instead, the wait ends at once, the transaction still commits,
and the next operation starts after it.

``compact`` reads on a connection and a thread of its own, and uses the journal's thread only for its short writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from actors.waiting import to_the_end
from supervisor.journal.archive import WRITING, compact_pieces
from supervisor.journal.database import Database, open_database
from supervisor.journal.history import History
from supervisor.journal.possession import Possession
from supervisor.journal.schema import read_entities, read_events, read_ids, translate_errors
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import Append, Compacted, EntityRow, FollowRecords, JournalError, Reader, Retention
from supervisor.ports.logs import get_logger

_T = TypeVar("_T")
_Alone = AbstractContextManager[Any]
"""Context manager that excludes other operations on the journal."""
_NOBODY: Final[_Alone] = nullcontext()
_log = get_logger()


class SqliteJournal:
    """A journal in one file (``supervisor.ports.Journal``); made by :meth:`open`, and must be closed."""

    def __init__(self, path: Path, database: Database) -> None:
        self._path = path
        self._limiter = anyio.CapacityLimiter(1)
        self._working = Lock()
        """Serialises the threads: the limiter is released when a wait has ended, which may be before its thread has."""
        self._database: Database | None = database
        self.generation = database.generation
        self.last_seq = database.last_seq
        self.lines_error: str | None = None
        """Error for which ``transitions.jsonl`` is behind the journal, ``None`` if it is not. Each append tries
        again."""

    @classmethod
    async def open(cls, path: Path, *, jsonl: Path | None, possession: Possession | None = None) -> SqliteJournal:
        """Open or create the journal at *path* as its next generation, and bring *jsonl* up to date.

        The opened files are registered in *possession*, which detects when they are deleted, replaced, or written by
        another program.

        Raises:
            JournalError: another version, damage, or another program's file; a journal of another version is unchanged.
        """
        opened: list[Database] = []

        def on_thread() -> None:
            opened.append(open_database(path, jsonl, possession=possession))

        try:
            await to_the_end(partial(anyio.to_thread.run_sync, on_thread))
        except BaseException:
            for database in opened:  # no caller has it
                await to_the_end(partial(anyio.to_thread.run_sync, database.close))
            raise
        return cls(path, opened[0])

    async def append(self, batch: Sequence[Append]) -> None:
        before = self.lines_error
        await self._run(lambda database: database.append(batch))
        if self.lines_error is not None and before is None:
            _log.warning("transitions.jsonl cannot be written, and falls behind the journal", error=self.lines_error)
        elif before is not None and self.lines_error is None:
            _log.warning("transitions.jsonl can be written again, and has caught up with the journal")

    async def recover(self) -> RecordId:
        """After a failed append, read from the disk which records are durable; return the number of the last one."""
        return await self._run(lambda database: database.recover())

    async def check(self) -> None:
        await self._run(lambda database: database.check())

    async def settle(self, effect_ids: Sequence[str]) -> None:
        await self._run(lambda database: database.settle(effect_ids))

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """Return the effects that were not performed yet, oldest first: (effect id, entity id, payload)."""
        return await self._run(lambda database: database.owed())

    async def events(
        self, *, entity_id: str | None = None, after_seq: RecordId = BEGINNING, limit: int = 10_000
    ) -> list[LifecycleEvent]:
        return await self._run(lambda database: read_events(database.db, entity_id, after_seq, limit))

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        return await self._run(lambda database: read_entities(database.db, ids=ids, live_only=live_only))

    async def ids(self) -> set[str]:
        return await self._run(lambda database: read_ids(database.db))

    def reader(self, follow: FollowRecords) -> AbstractContextManager[Reader]:
        return History(self._path, follow=follow)

    async def read(self, follow: FollowRecords, work: Callable[[Reader], _T]) -> _T:
        def on_thread() -> _T:
            with self.reader(follow) as reader:
                return work(reader)

        return await anyio.to_thread.run_sync(on_thread)

    async def compact(
        self,
        folder: Path,
        retention: Retention,
        now: float,
        *,
        pause_s: float,
        living: Callable[[], Collection[str]] = tuple,
    ) -> Compacted:
        """Move the entities that *retention* does not keep into archives in *folder*, in small pieces, while the
        journal is in use.

        *now* is Unix time, *pause_s* the pause between two pieces. The entities whose ids *living* returns stay. After
        a cancellation the next compaction moves the rest.

        Raises:
            JournalError: the data to be moved is damaged, or an archive is missing; nothing more was moved.
        """
        if self.lines_error is not None:
            raise JournalError(f"transitions.jsonl is behind the journal ({self.lines_error}); see to that first")
        apart, progress = anyio.CapacityLimiter(1), Compacted()
        with closing(compact_pieces(self._opened(), folder, retention, now, living=living)) as pieces:
            limiter, exclusive = apart, _NOBODY
            while (piece := await to_the_end(partial(self._next, pieces, limiter, exclusive))) is not None:
                where, progress = piece
                limiter, exclusive = (self._limiter, self._working) if where == WRITING else (apart, _NOBODY)
                await anyio.sleep(pause_s)
        return progress

    async def _next(self, pieces: Iterator[_T], limiter: anyio.CapacityLimiter, exclusive: _Alone) -> _T | None:
        def piece() -> _T | None:
            with exclusive:
                self._opened().check_files()  # an archive must not be written into a directory that is another's by now
                return next(pieces, None)

        return await anyio.to_thread.run_sync(piece, limiter=limiter)

    def _opened(self) -> Database:
        if self._database is None:
            raise JournalError(f"{self._path} is closed; open the journal again")
        return self._database

    async def close(self) -> None:
        await to_the_end(partial(anyio.to_thread.run_sync, self._close, limiter=self._limiter))

    async def _run(self, work: Callable[[Database], _T]) -> _T:
        answer: _T
        with anyio.CancelScope(shield=True):
            answer = await anyio.to_thread.run_sync(self._on_thread, work, limiter=self._limiter)
        return answer

    def _on_thread(self, work: Callable[[Database], _T]) -> _T:
        with self._working:
            database = self._opened()
            try:
                with translate_errors(self._path):
                    return work(database)
            finally:
                self.last_seq, self.lines_error = database.last_seq, database.lines_error

    def _close(self) -> None:
        with self._working:
            database, self._database = self._database, None
            if database is not None:
                with translate_errors(self._path):
                    database.close()
