"""The journal's database: what an append writes, and how a journal is made, opened and checked.

Synchronous, for one thread at a time; ``supervisor.journal.sqlite`` gives it a thread of its own. A journal is SQLite
in WAL mode with synchronous=FULL, appears under its name whole or not at all, and is refused when anything in it is
not what was written. The database is the truth: ``transitions.jsonl`` is written from it after the commit, and when
that fails the journal goes on and the file catches up later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw

from supervisor.journal.chain import Dues, chained, check_chain, check_entities, entity_hash, read_end
from supervisor.journal.files import DISK, Files
from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.schema import (
    ENTITY_FIELDS,
    EVENT_FIELDS,
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
from supervisor.ports import Append
from supervisor.vocabulary import LifecycleEvent

__all__ = ["Database", "open_database"]

_BUSY_MS: Final = 5_000
"""How long to wait for a lock: only a second writer or a checkpoint by a reader's tool ever holds one."""
_PAGE: Final = 1_000
_SETTLE: Final = "UPDATE effects SET settled = ? WHERE effect_id = ? AND settled = 0"
_BY_NO_RECORD: Final = -1
_OWED: Final = "SELECT effect_id, entity_id, payload FROM effects WHERE settled = 0 ORDER BY seq, rowid"
_UNCOUNTED: Final = "SELECT (SELECT count(*) FROM events) - (SELECT coalesce(sum(entity_seq), 0) FROM entities)"
"""How many records belong to no entity as it stands."""


class Database:
    """The connection and the line file, used by one thread at a time. Made by :func:`open_database`; close it."""

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

    def _write(self, batch: Sequence[Append], events: Sequence[tuple[Any, ...]]) -> None:
        ids = list(dict.fromkeys(one.record.entity_id for one in batch))
        rows = {row.id: row for row in read_entities(self.db, ids=ids)}
        last_seq, link = read_end(self.db)
        after = folded(rows, last_seq, batch)
        entities = [entity_values(row) for row in after.values()]
        self.db.executemany(WRITE_ENTITY, entities)
        self.db.executemany(WRITE_EVENT, chained(_with_entities(events, entities), self._write_effects(batch), link))

    def _write_effects(self, batch: Sequence[Append]) -> Dues:
        dues, owed = Dues(), effect_rows(batch)
        self.db.executemany(WRITE_EFFECT, owed)
        for row in owed:
            dues.owe(*row)
        for seq, name in [(one.record.seq, name) for one in batch for name in one.settled]:
            self.db.execute(_SETTLE, (seq, name))
            if self.db.changes():  # not settled before, and known at all
                dues.settle(name, seq)
        return dues

    def settle(self, effect_ids: Sequence[str]) -> None:
        with self._writing():
            self.db.executemany(_SETTLE, [(_BY_NO_RECORD, name) for name in effect_ids])

    def owed(self) -> list[tuple[str, str, bytes]]:
        return [(str(name), str(entity_id), bytes(payload)) for name, entity_id, payload in self.db.execute(_OWED)]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _transaction(self.db):
            check_generation(self.path, self.generation, read_meta(self.db, "generation"))
            yield

    def take_over(self, jsonl: Path | None) -> None:
        """Become the journal's next owner, once it and *jsonl* are known to be sound."""
        _check_sound(self.db)
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


def _with_entities(events: Sequence[tuple[Any, ...]], entities: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """*events* with what became of their entities, each with the last record of its batch; the others have nothing."""
    hashes = {(row[_ID], row[_ENTITY_SEQ]): entity_hash(row) for row in entities}
    return [(*row, hashes.get((row[_OF], row[_NUMBER]), b"")) for row in events]


_ID, _ENTITY_SEQ = (ENTITY_FIELDS.index(name) for name in ("id", "entity_seq"))
_OF, _NUMBER = (EVENT_FIELDS.index(name) for name in ("entity_id", "entity_seq"))


# ------------------------------------------------------------------------------------------------------- opening
def open_database(path: Path, jsonl: Path | None, files: Files = DISK) -> Database:
    """Open or create the journal at *path* as its next generation, and bring *jsonl* up to date.

    Raises:
        JournalError: of another version, damaged or somebody else's; one of another version was left as it was.
    """
    with explaining(path):
        if not files.exists(path):
            _create(path, files)
        files.reread(Path(f"{path}-wal"))
        database = Database(path, files.connect(path, apsw.SQLITE_OPEN_READWRITE))
        try:
            _check_ours(database.db, path)
            _configure(database.db)
            database.take_over(jsonl)
        except BaseException:
            database.close()
            raise
    return database


def _check_ours(db: apsw.Connection, path: Path) -> None:
    """Refuse the journal of another version, or what is none, and leave even its write-ahead log as it was."""
    db.set_busy_timeout(_BUSY_MS)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    check_version(db, path)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def _configure(db: apsw.Connection) -> None:
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.pragma("foreign_keys", "on")


def _create(path: Path, files: Files) -> None:
    """A journal appears whole or not at all: a power cut in the first page of a new file must not leave half of one."""
    new = path.with_name(f"{path.name}.new")
    for left in (new, Path(f"{new}-wal"), Path(f"{new}-shm")):
        files.remove(left)
    with closing(files.connect(new, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)) as db:
        _configure(db)
        with _transaction(db):
            db.execute(TABLES)
            db.executemany("INSERT INTO meta VALUES (?, ?)", [("schema_version", VERSION), ("generation", 0)])
    files.sync(new)
    files.rename(new, path)
    files.sync(path.parent)


def _check_sound(db: apsw.Connection) -> None:
    """Refuse what is not as it was written: pages, then records, then entities.

    All of the journal, each time: whoever opens it may ask for any of it, and nothing else would ever look at what is
    old. A million records take about 1 s in SQLite's check and 7 s in the chain's (one core, 2026).

    Raises:
        apsw.CorruptError: it says where.
    """
    if (verdict := db.execute("PRAGMA quick_check(1)").get) != "ok":
        raise apsw.CorruptError(str(verdict))
    if (seq := check_chain(db)) is not None:
        raise apsw.CorruptError(f"record {seq} is not what was written there")
    if (astray := check_entities(db)) is not None:
        raise apsw.CorruptError(f"{astray} is not as its last record left it")
    if uncounted := db.execute(_UNCOUNTED).get:
        raise apsw.CorruptError(f"{uncounted} records more than the entities have")


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
