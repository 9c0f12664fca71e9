"""The journal on disk: SQLite in WAL mode, synchronous=FULL, one writer.

``append`` returns when its transaction is on the disk. All work runs on a worker thread, one piece at a time and
shielded, so that the event loop never waits for a disk and a cancellation never leaves a transaction open; the cancel
is delivered at the caller's next checkpoint. The database is the truth: ``transitions.jsonl`` is written from it after
the commit, and when that fails the journal goes on and the file catches up later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import anyio
import apsw

from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.schema import (
    TABLES,
    VERSION,
    WRITE_EFFECT,
    WRITE_ENTITY,
    WRITE_EVENT,
    check_generation,
    check_version,
    effect_rows,
    entity_values,
    event_values,
    explaining,
    folded,
    read_entities,
    read_events,
    read_last_seq,
    read_meta,
)
from supervisor.ports import Append, EntityRow, JournalError
from supervisor.vocabulary import LifecycleEvent

__all__ = ["SqliteJournal"]

_T = TypeVar("_T")
_BUSY_MS: Final = 5_000
"""How long to wait for a lock: only a second writer or a checkpoint by a reader's tool ever holds one."""
_PAGE: Final = 1_000
_SETTLE: Final = "UPDATE effects SET settled = 1 WHERE effect_id = ?"
_OWED: Final = "SELECT effect_id, entity_id, payload FROM effects WHERE settled = 0 ORDER BY seq, rowid"


class SqliteJournal:
    """A journal in one file (``supervisor.ports.Journal``). Made by :meth:`open`; close it."""

    def __init__(self, path: Path, database: _Database) -> None:
        self._path = path
        self._limiter = anyio.CapacityLimiter(1)
        self._database: _Database | None = database
        self._generation = database.generation
        self._last_seq = database.last_seq
        self._lines_error: str | None = None

    @classmethod
    async def open(cls, path: Path, *, jsonl: Path | None) -> SqliteJournal:
        """Open or create the journal at *path* as its next generation, and bring *jsonl* up to date.

        Raises:
            JournalError: newer, damaged or somebody else's; a newer one was left as it is.
        """
        with anyio.CancelScope(shield=True):
            database = await anyio.to_thread.run_sync(_opened, path, jsonl)
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

    async def _run(self, work: Callable[[_Database], _T]) -> _T:
        answer: _T
        with anyio.CancelScope(shield=True):
            answer = await anyio.to_thread.run_sync(self._on_thread, work, limiter=self._limiter)
        return answer

    def _on_thread(self, work: Callable[[_Database], _T]) -> _T:
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


class _Database:
    """The connection and the line file, used by one thread at a time."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self.path = path
        self.db = db
        self.generation = 0
        self.last_seq = 0
        self._lines: TransitionLog | None = None
        self.lines_error: str | None = None

    def append(self, batch: Sequence[Append]) -> None:
        events = [event_values(one.record) for one in batch]
        try:
            with self._writing():
                self._write(batch, events)
        finally:
            self.last_seq = read_last_seq(self.db)  # whatever was said, this is what is there
        self._publish([one.record for one in batch])

    def _write(self, batch: Sequence[Append], events: Sequence[tuple[object, ...]]) -> None:
        ids = list(dict.fromkeys(one.record.entity_id for one in batch))
        rows = {row.id: row for row in read_entities(self.db, ids=ids)}
        after = folded(rows, read_last_seq(self.db), batch)
        self.db.executemany(WRITE_ENTITY, [entity_values(row) for row in after.values()])
        self.db.executemany(WRITE_EVENT, events)
        self.db.executemany(WRITE_EFFECT, effect_rows(batch))
        self.db.executemany(_SETTLE, [(name,) for one in batch for name in one.settled])

    def settle(self, effect_ids: Sequence[str]) -> None:
        with self._writing():
            self.db.executemany(_SETTLE, [(name,) for name in effect_ids])

    def owed(self) -> list[tuple[str, str, bytes]]:
        return [(str(name), str(entity_id), bytes(payload)) for name, entity_id, payload in self.db.execute(_OWED)]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _transaction(self.db):
            check_generation(self.path, self.generation, read_meta(self.db, "generation"))
            yield

    def take_over(self, jsonl: Path | None) -> None:
        """Become the journal's next owner, once it and *jsonl* are known to be sound."""
        if (verdict := self.db.execute("PRAGMA quick_check(1)").get) != "ok":
            raise apsw.CorruptError(str(verdict))
        with _transaction(self.db):
            self.generation = read_meta(self.db, "generation") + 1
            self.last_seq = read_last_seq(self.db)
            if jsonl is not None:
                self._follow(jsonl)
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'generation'", (self.generation,))

    def _follow(self, jsonl: Path) -> None:
        with explaining(jsonl):
            self._lines = TransitionLog.open(jsonl, journal_seq=self.last_seq)
            self._catch_up(self._lines)

    def _publish(self, records: Sequence[LifecycleEvent]) -> None:
        if self._lines is None:
            return
        try:
            if self.lines_error is None:
                self._lines.extend(records)
            else:
                self._catch_up(self._lines)
            self.lines_error = None
        except OSError as error:  # kept, not logged: a log may lie on the same disk
            self.lines_error = str(error)

    def _catch_up(self, lines: TransitionLog) -> None:
        seq = lines.last_seq
        while page := read_events(self.db, None, seq, _PAGE):
            lines.extend(page)
            seq = page[-1].seq

    def close(self) -> None:
        try:
            if self._lines is not None:
                self._lines.close()
        finally:
            self.db.close()


# ------------------------------------------------------------------------------------------------------- opening
def _opened(path: Path, jsonl: Path | None) -> _Database:
    with explaining(path):
        if not path.exists():
            _create(path)
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            db.set_busy_timeout(_BUSY_MS)
            check_version(db, path)
        database = _Database(path, _connected(path))
        try:
            database.take_over(jsonl)
        except BaseException:
            database.close()
            raise
    return database


def _connected(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    try:
        db.set_busy_timeout(_BUSY_MS)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.pragma("foreign_keys", "on")
    except BaseException:
        db.close()
        raise
    return db


def _create(path: Path) -> None:
    """A journal appears whole or not at all: a power cut in the first page of a new file must not leave half of one."""
    new = path.with_name(f"{path.name}.new")
    for left in (new, Path(f"{new}-wal"), Path(f"{new}-shm")):
        left.unlink(missing_ok=True)
    with closing(_connected(new)) as db, _transaction(db):
        db.execute(TABLES)
        db.executemany("INSERT INTO meta VALUES (?, ?)", [("schema_version", VERSION), ("generation", 0)])
    _sync(new)
    new.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):  # the first error is the one to tell; SQLite itself rolls back after most
            if db.in_transaction:
                db.execute("ROLLBACK")
        raise
