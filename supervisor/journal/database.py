"""Database of the journal: append, creation, opening and takeover. Synchronous, for one thread at a time.

A journal is SQLite in WAL mode with synchronous=FULL. A new journal gets its name only when it is complete; a journal
in which the integrity check finds damage is not opened. The database is authoritative: ``transitions.jsonl`` is written
from it after the commit; if that fails, the journal continues without it, and the missing lines are written later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw

from supervisor.journal.chain import BatchEffects, entity_hash, hash_rows, read_end
from supervisor.journal.files import DISK, JournalFiles
from supervisor.journal.integrity import SNAPSHOT_EVERY, ChecksumState, read_snapshot, verify_journal, write_snapshot
from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.possession import Possession
from supervisor.journal.schema import (
    ENTITY_FIELDS,
    EVENT_FIELDS,
    WRITE_EFFECT,
    WRITE_ENTITY,
    WRITE_EVENT,
    apply_batch,
    check_generation,
    check_version,
    effect_rows,
    entity_values,
    event_values,
    read_entities,
    read_events,
    read_last_seq,
    read_meta,
    transaction,
    translate_errors,
)
from supervisor.journal.tables import TABLES, VERSION
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, JournalError

BUSY_MS: Final = 5_000
"""Milliseconds to wait for a lock: only a second writer, or a checkpoint by a reader's tool, ever holds a lock."""
_PAGE: Final = 1_000
_SETTLE: Final = "UPDATE effects SET settled = ? WHERE effect_id = ? AND settled = 0"
_BY_NO_RECORD: Final = -1
_OWED: Final = "SELECT effect_id, entity_id, payload FROM effects WHERE settled = 0 ORDER BY seq, rowid"


class Database:
    """Connection to the journal and to its line file, used by one thread at a time; made by :func:`open_database`, and
    must be closed."""

    def __init__(
        self, path: Path, db: apsw.Connection, files: JournalFiles = DISK, possession: Possession | None = None
    ) -> None:
        self.path = path
        self.db = db
        self._files = files
        self._possession = possession
        self.boot = files.boot()
        self.checksums = ChecksumState(0, b"", 0, 0, 0)
        """Checksums of the verified content of the disk."""
        self.snapshot_seq = 0
        self.generation = 0
        self.last_seq = 0
        self._lines: TransitionLog | None = None
        self.lines_error: str | None = None

    def append(self, batch: Sequence[Append]) -> None:
        events = [event_values(one.record) for one in batch]
        checksums = self.checksums
        try:
            with self.writing():
                checksums = self._write(batch, events)
        finally:
            self.last_seq = read_last_seq(self.db)  # also after a commit that was reported as failed
            if checksums.seq == self.last_seq:
                self.checksums = checksums
        self._publish([one.record for one in batch])

    def _write(self, batch: Sequence[Append], events: Sequence[tuple[Any, ...]]) -> ChecksumState:
        ids = list(dict.fromkeys(one.record.entity_id for one in batch))
        rows = {row.id: row for row in read_entities(self.db, ids=ids)}
        last_seq, link = read_end(self.db)
        after = apply_batch(rows, last_seq, batch)
        entities = [entity_values(row) for row in after.values()]
        hashes = {(row[_ID], row[_ENTITY_SEQ]): entity_hash(row) for row in entities}
        self.db.executemany(WRITE_ENTITY, entities)
        made = hash_rows(_add_entity_hashes(events, hashes), self._write_effects(batch), link)
        self.db.executemany(WRITE_EVENT, made)
        checksums = self.checksums.after(
            seq=made[-1][0] if made else last_seq,
            chain=made[-1][-1] if made else link,
            records=len(made),
            came=hashes.values(),
            went=[entity_hash(entity_values(row)) for row in rows.values()],
            more=len(after) - len(rows),
        )
        if checksums.seq >= self.snapshot_seq + SNAPSHOT_EVERY:
            self.write_snapshot(checksums)
        return checksums

    def write_snapshot(self, checksums: ChecksumState) -> None:
        """Write a snapshot of *checksums* in the caller's transaction."""
        write_snapshot(self.db, checksums, self.boot)
        self.snapshot_seq = checksums.seq

    def _write_effects(self, batch: Sequence[Append]) -> BatchEffects:
        effects, owed = BatchEffects(), effect_rows(batch)
        self.db.executemany(WRITE_EFFECT, owed)
        for row in owed:
            effects.add_owed(*row)
        for seq, name in [(one.record.seq, name) for one in batch for name in one.settled]:
            self.db.execute(_SETTLE, (seq, name))
            if self.db.changes():  # not settled before, and known at all
                effects.add_settled(name, seq)
        return effects

    def recover(self) -> int:
        """After a failed append, read from the disk which records are durable; return the number of the last record.

        Uses a new connection, and bypasses the system's cache: after a failed sync, the old connection or the cache may
        show data that is on no disk. The old connection is closed without a checkpoint.

        Raises:
            JournalLost: another file lies at the path; that file is not opened.
            Fenced: another supervisor owns the journal.
            apsw.Error, OSError: the disk cannot be read, or its content is damaged; a later try may succeed.
        """
        self.check()
        with suppress(apsw.ConnectionClosedError):  # the last look had got no further
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.db.close()
        self._files.reread(Path(f"{self.path}-wal"))
        self.db = self._files.connect(self.path, apsw.SQLITE_OPEN_READWRITE)
        self.db.set_busy_timeout(BUSY_MS)
        _configure(self.db)
        check_generation(self.path, self.generation, read_meta(self.db, "generation"))
        self.checksums = verify_journal(self.db, self.boot)
        self.snapshot_seq = self._last_snapshot()
        self.last_seq = read_last_seq(self.db)
        self._follow_on()
        return self.last_seq

    def _follow_on(self) -> None:
        """Write to the line file the lines of records that are durable although their commit had failed."""
        if self._lines is None:
            return
        try:
            self._catch_up(self._lines)
            self.lines_error = None
        except OSError as error:
            self.lines_error = str(error)

    def _last_snapshot(self) -> int:
        """Return the number of the last record of the last snapshot; a snapshot of a failed transaction was never
        written."""
        found = read_snapshot(self.db)
        return found[0].seq if found is not None else 0

    def settle(self, effect_ids: Sequence[str]) -> None:
        with self.writing():
            self.db.executemany(_SETTLE, [(_BY_NO_RECORD, name) for name in effect_ids])

    def owed(self) -> list[tuple[str, str, bytes]]:
        return [(str(name), str(entity_id), bytes(payload)) for name, entity_id, payload in self.db.execute(_OWED)]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the body in a transaction of this owner. The commit counts only if the journal is still in place after
        it.

        Raises:
            JournalLost: the journal was deleted or replaced.
            Fenced: a later supervisor owns the journal.
        """
        self.check()
        with transaction(self.db):
            check_generation(self.path, self.generation, read_meta(self.db, "generation"))
            yield
        self.check()

    def hold(self) -> None:
        """Register the open files for :meth:`check`, once all of them are open.

        Raises:
            OSError: one of the files is gone already.
        """
        if self._possession is not None:
            self._possession.hold("write-ahead log of the journal", Path(f"{self.path}-wal"))
            self._possession.hold("journal", self.path)

    def check(self) -> None:
        """Check that the journal, its write-ahead log and the lock file lie where they were opened.

        Raises:
            JournalLost: one of the files was deleted or replaced.
        """
        if self._possession is not None:
            self._possession.check()

    def take_over(self, jsonl: Path | None) -> None:
        """Verify the journal and *jsonl*, and become the journal's next owner."""
        self.checksums = verify_journal(self.db, self.boot)
        with transaction(self.db):
            self.generation = read_meta(self.db, "generation") + 1
            self.last_seq = read_last_seq(self.db)
            if jsonl is not None:
                self._follow(jsonl)
            self.write_snapshot(self.checksums)
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'generation'", (self.generation,))

    def _follow(self, jsonl: Path) -> None:
        with translate_errors(jsonl):
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
        """Checkpoint the write-ahead log and close the journal, so that its file is complete by itself.

        SQLite makes that checkpoint only when the last connection closes, and a reader may still have one. A journal
        that was lost is closed without a checkpoint: SQLite would remove the log at that path, which may belong to
        another journal.
        """
        if self._possession is not None and not self._possession.holds():
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        else:
            with suppress(apsw.Error, JournalError):  # without it the next opening has more to verify; nothing is lost
                self._close_sound()
        try:
            if self._lines is not None:
                self._lines.close()
        finally:
            self.db.close()

    def _close_sound(self) -> None:
        if not self.generation:
            return
        with self.writing():  # whose journal it is by now need not wait for a checkpoint of ours
            if self.checksums.seq == self.last_seq > self.snapshot_seq:
                self.write_snapshot(self.checksums)
        self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _add_entity_hashes(
    events: Sequence[tuple[Any, ...]], hashes: Mapping[tuple[Any, Any], bytes]
) -> list[tuple[Any, ...]]:
    """Append to each of *events* the hash of its entity if the event is the entity's last record in the batch; else
    append ``b""``."""
    return [(*row, hashes.get((row[_OF], row[_NUMBER]), b"")) for row in events]


_ID, _ENTITY_SEQ = (ENTITY_FIELDS.index(name) for name in ("id", "entity_seq"))
_OF, _NUMBER = (EVENT_FIELDS.index(name) for name in ("entity_id", "entity_seq"))


# ------------------------------------------------------------------------------------------------------- opening
def open_database(
    path: Path, jsonl: Path | None, files: JournalFiles = DISK, possession: Possession | None = None
) -> Database:
    """Open or create the journal at *path* as its next generation, and bring *jsonl* up to date.

    *possession* detects when the journal is deleted or replaced.

    Raises:
        JournalError: another schema, damage, or another program's file; the file is unchanged.
    """
    with translate_errors(path):
        if not files.exists(path):
            _create(path, files)
        files.reread(Path(f"{path}-wal"))
        db = files.connect(path, apsw.SQLITE_OPEN_READWRITE)
        try:
            _check_ours(db, path)
            _configure(db)
            database = Database(path, db, files, possession)
            database.take_over(jsonl)
            database.hold()
        except BaseException:
            db.close()
            raise
    return database


def _check_ours(db: apsw.Connection, path: Path) -> None:
    """Raise an error for a journal of another schema, or another file, and leave even its write-ahead log unchanged."""
    db.set_busy_timeout(BUSY_MS)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    check_version(db, path)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def _configure(db: apsw.Connection) -> None:
    db.set_busy_timeout(BUSY_MS)
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.pragma("foreign_keys", "on")


def _create(path: Path, files: JournalFiles) -> None:
    """Create the journal under a temporary name, and rename it when it is complete: a power cut must not leave half a
    file."""
    new = path.with_name(f"{path.name}.new")
    for left in (new, Path(f"{new}-wal"), Path(f"{new}-shm")):
        files.remove(left)
    with closing(files.connect(new, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)) as db:
        _configure(db)
        with transaction(db):
            db.execute(TABLES)
            numbers = [("schema_version", VERSION), ("generation", 0), ("partly", 0)]
            db.executemany("INSERT INTO meta VALUES (?, ?)", numbers)
    files.sync(new)
    files.rename(new, path)
    files.sync(path.parent)
