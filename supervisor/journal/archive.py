"""Archive: copy ended entities from the journal into an archive file, then delete them from the journal, in small
transactions.

An archive is a journal itself, with the same tables: its records keep their hashes, and gaps stand for the records that
the archive does not have. An archive is complete, verified and on the disk before the journal names it, and the journal
names an archive before any record is deleted. Records that are still in the journal are authoritative there. A crash at
any point leaves each record in the journal, in a named archive, or in both, and the next compaction first completes the
interrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from supervisor.journal.chain import START, check_entities, link_before, walk_chain
from supervisor.journal.database import Database
from supervisor.journal.deletion import delete_slice
from supervisor.journal.files import DISK, JournalFiles
from supervisor.journal.retention import RetentionSelection, select_entities
from supervisor.journal.schema import translate_errors
from supervisor.journal.tables import TABLES, VERSION
from supervisor.ports import Compacted, JournalError, Retention

RECORDS_PER_ARCHIVE: Final = 50_000
RECORDS_PER_SLICE: Final = 100
"""Number of records that are deleted in one transaction, for which a commit of the supervisor may have to wait."""
GAPS_PER_SLICE: Final = 1_000
"""Number of gaps that are made between two pauses while an archive is built."""
RECORDS_PER_PAGE: Final = 500
"""Number of records that are copied or checked between two pauses while an archive is built."""
_BUSY_MS: Final = 5_000
OWN_CONNECTION: Final = "apart"
"""Marker: the next piece reads the journal with a connection of its own, on any thread."""
WRITING: Final = "writing"
"""Marker: the next piece is a transaction on the journal's own connection, and must run on the journal's thread."""

_ATTACH: Final = "ATTACH ? AS live"
_COPY_ENTITIES: Final = """
INSERT INTO main.entities SELECT one.* FROM live.entities AS one WHERE id IN (SELECT value FROM json_each(?))
"""
_MOVING: Final = """
INSERT INTO moving SELECT seq FROM live.events WHERE entity_id IN (SELECT value FROM json_each(?))
"""
_COPY_EVENTS: Final = """
INSERT INTO main.events SELECT one.* FROM moving JOIN live.events AS one USING (seq) WHERE moving.seq BETWEEN ? AND ?
"""
_COPY_EFFECTS: Final = """
INSERT INTO main.effects SELECT one.* FROM moving JOIN live.effects AS one USING (seq)
WHERE moving.seq BETWEEN ? AND ? ORDER BY one.seq, one.rowid
"""
_COPY_STRAYS: Final = """
INSERT INTO main.strays
SELECT moving.seq, one.effect_id FROM moving JOIN live.strays AS one USING (seq) WHERE moving.seq BETWEEN ?1 AND ?2
UNION SELECT moving.seq, one.effect_id FROM moving JOIN live.effects AS one ON one.settled = moving.seq
WHERE moving.seq BETWEEN ?1 AND ?2 AND one.seq NOT IN (SELECT seq FROM moving)
"""
_PAGE_END: Final = "SELECT max(seq) FROM (SELECT seq FROM moving WHERE seq > ? ORDER BY seq LIMIT ?)"
_RUNS: Final = """
SELECT seq, (SELECT max(seq) FROM moving AS other WHERE other.seq < one.seq) FROM moving AS one
WHERE NOT EXISTS (SELECT 1 FROM moving AS other WHERE other.seq = one.seq - 1) ORDER BY seq
"""
_NAME: Final = "INSERT INTO archives VALUES (?, ?, ?, ?, ?, ?, ?, 0)"
_UNFINISHED: Final = "SELECT number, file, digest FROM archives WHERE done = 0 ORDER BY number"
_NEXT: Final = "SELECT coalesce(max(number), 0) + 1 FROM archives"
_MEASURES: Final = "SELECT count(*), (SELECT count(*) FROM entities), min(seq), max(seq) FROM events"
_encode = msgspec.json.Encoder().encode


class ArchiveName(msgspec.Struct, frozen=True):
    """An archive as the journal names it: its number, its file and the hash of the file."""

    number: int
    file: str
    digest: bytes


def compact_database(database: Database, folder: Path, retention: Retention, now: float) -> Compacted:
    """Compact a journal that no supervisor uses (see :func:`compact_pieces`), and make its file smaller."""
    *_, (_, compacted) = compact_pieces(database, folder, retention, now)
    if compacted.records:
        with translate_errors(database.path):
            database.db.execute("VACUUM")  # a running supervisor fills the free pages instead
    return compacted


def compact_pieces(
    database: Database,
    folder: Path,
    retention: Retention,
    now: float,
    files: JournalFiles = DISK,
    living: Callable[[], Collection[str]] = tuple,
) -> Generator[tuple[str, Compacted], None, None]:
    """Compact the journal piece by piece; each step yields the thread for the next piece, and the progress so far.

    Close the generator if it is not exhausted.

    Args:
        folder: folder of the archives; created if it does not exist.
        now: Unix time.
        living: returns the ids of entities that must stay; called on another thread.

    Raises:
        JournalError: a record is not as it was written (damage), or an archive is missing: nothing more is moved.
    """
    progress = Compacted()
    yield WRITING, progress
    with translate_errors(database.path):
        begun = [ArchiveName(*row) for row in database.db.execute(_UNFINISHED)]
    yield OWN_CONNECTION, progress
    while True:
        for one in begun:
            for so_far in _delete_archived(database, folder, one, progress):
                progress = so_far
                yield WRITING, progress
            progress = _add_progress(database, progress, 0, 0, one.file)
            yield OWN_CONNECTION, progress
        with translate_errors(database.path), closing(_open_read_only(database.path)) as live:
            selected = select_entities(live, retention, now, RECORDS_PER_ARCHIVE, living())
        yield OWN_CONNECTION, progress
        begun = yield from _make_archive(database, folder, selected, files, progress)
        if not begun:
            break
    yield OWN_CONNECTION, _add_progress(database, progress, 0, 0)


Pieces = Generator[tuple[str, Compacted], None, list[ArchiveName]]


# ------------------------------------------------------------------------------------------------ into the archive
def _make_archive(
    database: Database, folder: Path, selected: Sequence[RetentionSelection], files: JournalFiles, progress: Compacted
) -> Pieces:
    """Make the next archive; return its name in a list, empty if nothing is to be moved.

    After an error before the file is renamed, no part of the archive is left.
    """
    if not selected:
        return []
    with translate_errors(database.path), closing(_open_read_only(database.path)) as live:
        number = live.execute(_NEXT).get
    while files.exists(path := folder / f"journal-{number:06}.db"):  # what a crash left, or another journal's only copy
        number += 1
    new = path.with_name(f"{path.name}.new")
    with translate_errors(path):
        folder.mkdir(mode=0o700, exist_ok=True)
        files.remove(new)
    try:
        for _ in _build(new, database.path, selected, files):
            with translate_errors(path):
                files.sync(new)  # little by little: one large sync would hold up the journal's own
            yield OWN_CONNECTION, progress
        with translate_errors(path):
            files.sync(new)
            files.rename(new, path)
            files.sync(folder)
            row = _archive_row(number, path)
    except BaseException:
        with suppress(OSError):  # the disk may be full
            files.remove(new)
        raise
    yield WRITING, progress
    with translate_errors(database.path), database.writing():
        database.db.execute(_NAME, row)
    yield OWN_CONNECTION, progress
    return [ArchiveName(number, path.name, row[2])]


def _open_read_only(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(_BUSY_MS)
    return db


def _build(path: Path, live: Path, selected: Sequence[RetentionSelection], files: JournalFiles) -> Iterator[None]:
    """Copy the *selected* entities, and verify each record and each entity of the copy."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with translate_errors(path), closing(files.connect(path, flags)) as db:
        db.pragma("journal_mode", "off")  # it is synced as a whole, before it has its name
        db.pragma("synchronous", "off")
        db.pragma("temp_store", "memory")
        db.set_busy_timeout(_BUSY_MS)
        db.execute(TABLES)
        db.execute(_ATTACH, (str(live),))
        yield
        yield from _copy_entities(db, _encode([one.id for one in selected]).decode())
        db.execute("DETACH live")
        try:
            yield from _check_copy(db, len(selected))
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            words = "nothing of it was archived; restore a copy or use another state directory"
            raise JournalError(f"{live} is damaged ({error}): {words}") from None


def _check_copy(db: apsw.Connection, entities: int) -> Iterator[None]:
    for number, _ in enumerate(walk_chain(db)):
        if not number % RECORDS_PER_PAGE:
            yield
    if (lost := entities - db.execute("SELECT count(*) FROM entities").get) != 0:
        raise apsw.CorruptError(f"{lost} entities are not found by their ids")  # nor would they leave, and go once more
    if (astray := check_entities(db)[0]) is not None:
        raise apsw.CorruptError(f"{astray} is not as its last record left it")


def _copy_entities(db: apsw.Connection, ids: str) -> Iterator[None]:
    db.execute("CREATE TEMP TABLE moving (seq INTEGER PRIMARY KEY)")
    db.execute(_COPY_ENTITIES, (ids,))
    db.execute(_MOVING, (ids,))
    yield
    generation = db.execute("SELECT value FROM live.meta WHERE key = 'generation'").get
    numbers = [("schema_version", VERSION), ("partly", 0), ("generation", generation)]
    db.executemany("INSERT INTO main.meta VALUES (?, ?)", numbers)
    last = 0
    while (end := db.execute(_PAGE_END, (last, RECORDS_PER_PAGE)).get) is not None:
        for query in (_COPY_EVENTS, _COPY_EFFECTS, _COPY_STRAYS):
            db.execute(query, (last + 1, end))
        last = end
        yield
    runs: list[Any] = db.execute(_RUNS).fetchall()
    for number, (seq, earlier) in enumerate(runs, 1):
        _insert_gap(db, seq, earlier)
        if number % GAPS_PER_SLICE == 0:
            yield
    _insert_gap(db, _BEYOND, last)
    db.execute("DROP TABLE temp.moving")


_BEYOND: Final = (1 << 63) - 1


def _insert_gap(db: apsw.Connection, seq: int, earlier: int | None) -> None:
    """Insert a gap between the archive's records *earlier* and *seq*, if the journal has other records between these
    two."""
    last_seq, after = link_before(db, seq, schema="live")
    if last_seq == (earlier or 0):
        return
    before = START if earlier is None else db.execute("SELECT chain FROM main.events WHERE seq = ?", (earlier,)).get
    db.execute("INSERT INTO main.gaps VALUES (?, ?, ?, ?)", ((earlier or 0) + 1, last_seq, before, after))


def _archive_row(number: int, path: Path) -> tuple[Any, ...]:
    """Return the row of ``archives`` that names the archive at *path*."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        measures: tuple[int, ...] = db.execute(_MEASURES).fetchone() or ()
        return (number, path.name, digest_of(path), *measures)


def digest_of(path: Path) -> bytes:
    """Return a hash of all bytes of an archive; the journal stores that hash."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.digest()


# ------------------------------------------------------------------------------------------------ out of the journal
_THERE: Final = "SELECT id, entity_seq FROM entities ORDER BY born_seq DESC"
"""Query for the entities of an archive, children before their parents."""


def _delete_archived(database: Database, folder: Path, named: ArchiveName, progress: Compacted) -> Iterator[Compacted]:
    """Delete from the journal the entities that are in the archive *named*. Each piece but the first is for the
    journal's thread."""
    path = folder / named.file
    with translate_errors(path):
        if not path.is_file() or digest_of(path) != named.digest:
            raise JournalError(
                f"{path} is not there, or not as it was archived: what {database.path} still has of it stays there;"
                " put the file back, and compact again"
            )
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as archive:
            selected = [(str(who), int(seq)) for who, seq in archive.execute(_THERE)]
    yield progress
    with translate_errors(database.path):
        while selected:
            progress = _add_progress(database, progress, *delete_slice(database, selected, RECORDS_PER_SLICE))
            yield progress
        with database.writing():
            database.db.execute("UPDATE archives SET done = 1 WHERE number = ?", (named.number,))


def _add_progress(database: Database, progress: Compacted, records: int, entities: int, *files: str) -> Compacted:
    return Compacted(
        archives=(*progress.archives, *files),
        records=progress.records + records,
        entities=progress.entities + entities,
        records_left=database.checksums.records,
        entities_left=database.checksums.entities,
    )
