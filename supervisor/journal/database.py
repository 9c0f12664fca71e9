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
from supervisor.journal.integrity import (
    SNAPSHOT_EVERY,
    ChecksumState,
    check_all,
    read_snapshot,
    verify_journal,
    write_snapshot,
)
from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.possession import LOG_MAGIC, Fingerprint, Possession, content_loss
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
    is_damage,
    read_entities,
    read_events,
    read_last_seq,
    read_meta,
    transaction,
    translate_errors,
)
from supervisor.journal.tables import TABLES, VERSION
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import Append, JournalError, JournalLost

BUSY_MS: Final = 5_000
"""Milliseconds to wait for a lock: only a second writer, or a checkpoint by a reader's tool, ever holds a lock."""
_PAGE: Final = 1_000
_OVERWRITTEN: Final = "was truncated or overwritten"
_LOG_OVERWRITTEN: Final = "has lost its write-ahead log, which was truncated or overwritten"
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
        self.last_seq = BEGINNING
        self._lines: TransitionLog | None = None
        self.lines_error: str | None = None
        self._fingerprint: Fingerprint | None = None
        """Fingerprint that this owner's last write has left; ``None`` if it could not be read, or nothing is
        possessed."""
        self._log_pages = 0
        """Number of pages in the write-ahead log after the last commit."""
        self._make_checkpoints()

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
        after = apply_batch(rows, RecordId(last_seq), batch)
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

    def recover(self) -> RecordId:
        """After a failed append, read from the disk which records are durable; return the number of the last record.

        Uses a new connection, and bypasses the system's cache: after a failed sync, the old connection or the cache may
        show data that is on no disk. The old connection is closed without a checkpoint.

        Raises:
            JournalLost: another file lies at the path; that file is not opened.
            Fenced: another supervisor owns the journal.
            apsw.Error, OSError: the disk cannot be read, or its content is damaged; a later try may succeed.
        """
        self.check()
        self._fingerprint = None  # another connection counts the commits of others from another number
        with suppress(apsw.ConnectionClosedError):  # the last look had got no further
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.db.close()
        self._files.reread(Path(f"{self.path}-wal"))
        self.db = self._files.connect(self.path, apsw.SQLITE_OPEN_READWRITE)
        self.db.set_busy_timeout(BUSY_MS)
        _configure(self.db)
        self._make_checkpoints()
        check_generation(self.path, self.generation, read_meta(self.db, "generation"))
        self.checksums = verify_journal(self.db, self.boot)
        self.snapshot_seq = self._last_snapshot()
        self.last_seq = read_last_seq(self.db)
        self._fingerprint = self._read_fingerprint()
        self._follow_on()
        return self.last_seq

    def _follow_on(self) -> None:
        """Write to the line file the lines of records that are durable although their commit had failed."""
        if self._lines is None:
            return
        try:
            self._catch_up(self._lines)
            self.lines_error = None
        except (OSError, JournalError) as error:
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
            JournalLost: the journal was deleted or replaced, or another program has written into it.
            Fenced: a later supervisor owns the journal.
        """
        self.check()
        try:
            with transaction(self.db):
                check_generation(self.path, self.generation, read_meta(self.db, "generation"))
                self.check()  # within the transaction nobody else commits, so what follows is this owner's alone
                yield
        finally:
            self._store_log_fingerprint()
        self.check_files()
        if self._log_pages >= self._checkpoint_pages:
            self._checkpoint()

    # ------------------------------------------------------------------------------------ possession
    def hold(self) -> None:
        """Register the open files for :meth:`check`, once all of them are open.

        Raises:
            OSError: one of the files is gone already.
        """
        if self._possession is not None:
            # Without the file of the locks, SQLite in another process takes itself for the only one.
            self._possession.hold("shared memory of the journal", Path(f"{self.path}-shm"))
            self._possession.hold("write-ahead log of the journal", Path(f"{self.path}-wal"))
            self._possession.hold("journal", self.path)
            self._fingerprint = self._read_fingerprint()

    def check_files(self) -> None:
        """Check that the journal, the files beside it and the lock file lie where they were opened; on any thread.

        Raises:
            JournalLost: one of the files was deleted or replaced.
        """
        if self._possession is not None:
            self._possession.check()

    def check(self) -> None:
        """Check that the files lie where they were opened, and that no other program has written into them.

        Raises:
            JournalLost: a file was deleted or replaced, or its content was changed.
            Fenced: a later supervisor owns the journal.
        """
        self.check_files()
        if self._possession is None or (known := self._fingerprint) is None:
            return
        problem = ""
        try:
            if Fingerprint.read(self.db) != known:
                # Read again: a checkpoint of another program may have been half done.
                problem = self._find_change(known, Fingerprint.read(self.db))
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            # What the disk refuses to show may be there, and is looked at again at the next check. But SQLite says the
            # same of a log that was cut off.
            if is_damage(error) or isinstance(error, apsw.NotADBError):
                problem = _OVERWRITTEN
            elif self._log_is_cut(known):
                problem = _LOG_OVERWRITTEN
        if problem:
            self._possession.lose(content_loss(self.path, problem))
            self.check_files()

    def _log_is_cut(self, known: Fingerprint) -> bool:
        with suppress(OSError):
            return Path(f"{self.path}-wal").stat().st_size < known.log_size_bytes
        return False

    def _find_change(self, known: Fingerprint, found: Fingerprint) -> str:
        """Return what another program has done to the journal; ``""`` if nothing is lost.

        A checkpoint of another program loses nothing. It leaves ``version`` and the log as they are, or increases
        ``version`` and leaves an empty log. The journal is read as a whole then, which takes some 11 s for a million
        records: no other way shows that a database file which has changed is sound, and such a checkpoint is rare.

        Raises:
            Fenced: a later supervisor owns the journal.
            apsw.Error, OSError: the journal cannot be read.
        """
        if found.version != known.version and found.log_size_bytes:
            check_generation(self.path, self.generation, read_meta(self.db, "generation"))
            return "was changed by another program, or opened by another copy of SQLite in this process,"
        if found.version == known.version and found.log != known.log:
            return _LOG_OVERWRITTEN
        with closing(self._files.connect(self.path, apsw.SQLITE_OPEN_READONLY)) as db:  # its cache has no old page
            db.set_busy_timeout(BUSY_MS)
            check_generation(self.path, self.generation, read_meta(db, "generation"))
            if check_all(db) != self.checksums:
                return _OVERWRITTEN
        self._fingerprint = found
        return ""

    def _read_fingerprint(self) -> Fingerprint | None:
        """Return the present fingerprint; ``None`` if nothing is possessed, or the disk fails: then the content is not
        checked until the next write."""
        if self._possession is not None:
            with suppress(apsw.Error, OSError):
                return Fingerprint.read(self.db)
        return None

    def _store_log_fingerprint(self) -> None:
        """Store the present fingerprint of the log, which a commit has changed, also a commit that has failed.

        The rest stays: a change of the database file, or of ``version``, is not this owner's, and the next check has to
        find it. So does a log that became shorter or has no header of SQLite: another program cut it within the commit,
        which then wrote behind the new end.
        """
        found, known = self._read_fingerprint(), self._fingerprint
        if found is not None and known is not None:
            cut = found.log_size_bytes < known.log_size_bytes
            if cut or (found.log_size_bytes and found.log_header[:4] not in LOG_MAGIC):
                return
            found = known._replace(log_size_bytes=found.log_size_bytes, log_header=found.log_header)
        self._fingerprint = found

    # ------------------------------------------------------------------------------------ checkpoints
    def _make_checkpoints(self) -> None:
        """Make the checkpoints of this connection here, and not within SQLite's commit: the database file changes only
        then, and :meth:`check` has to know when."""
        self._checkpoint_pages = int(self.db.pragma("wal_autocheckpoint"))
        self.db.set_wal_hook(self._count_log_pages)

    def _count_log_pages(self, db: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Move the pages of the log to the database file, as far as no reader needs the log."""
        self.check()  # directly before the database file is written
        with suppress(apsw.Error):  # as in SQLite, which tries again after the next commit
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if (known := self._fingerprint) is not None and (found := self._read_fingerprint()) is not None:
            self._fingerprint = found._replace(version=known.version)

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
            if self.lines_error is None and not self._lines.is_cut():
                self._lines.extend(records)
            else:
                self._catch_up(self._lines)
            self.lines_error = None
        except (OSError, JournalError) as error:  # kept, not logged: a log may lie on the same disk
            self.lines_error = str(error)

    def _catch_up(self, lines: TransitionLog) -> None:
        if lines.is_cut():
            lines.find_end()
        seq = RecordId(lines.last_seq)
        while page := read_events(self.db, None, seq, _PAGE):
            lines.extend(page)
            seq = page[-1].seq

    def close(self) -> None:
        """Checkpoint the write-ahead log and close the journal, so that its file is complete by itself.

        SQLite makes that checkpoint only when the last connection closes, and a reader may still have one. A journal
        that was lost is closed without a checkpoint: SQLite would write into the file, and remove the log, at that
        path, which may belong to another journal.

        Raises:
            JournalLost: the loss of the journal is detected only now.
        """
        lost: JournalLost | None = None
        if self._possession is None or self._possession.lost is None:
            try:
                self._close_sound()
            except JournalLost as error:
                lost = error
            except (apsw.Error, JournalError):
                pass  # without the checkpoint the next opening has more to verify; nothing is lost
        if self._possession is not None and self._possession.lost is not None:
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        try:
            if self._lines is not None:
                self._lines.close()
        finally:
            self.db.close()
        if lost is not None:
            raise lost

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
