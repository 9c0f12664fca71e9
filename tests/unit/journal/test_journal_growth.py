"""Growth of the journal over months: snapshots, the extent of the check at a start, and journals of other schemas."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from supervisor.journal.chain import check_chain, check_entities
from supervisor.journal.database import Database, open_database
from supervisor.journal.files import JournalFiles
from supervisor.journal.integrity import SNAPSHOT_EVERY, check_all, read_snapshot
from supervisor.journal.reader import JournalReader
from supervisor.journal.schema import translate_errors
from supervisor.journal.tables import VERSION
from supervisor.ports import JournalError
from tests.unit.journal.test_journal import Rebooted, entry

JOURNALS = Path(__file__).parent / "journals"


def kept_journal(folder: Path) -> Path:
    """Make the journal of a real run, 110 records, in WAL mode, and return its path."""
    path = folder / "journal.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute((JOURNALS / "real_run.sql").read_text())
        db.pragma("journal_mode", "wal")
    return path


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_journal_of_another_schema_is_refused(tmp_path: Path, version: int) -> None:
    """A journal of another schema is refused by reader and writer; the error names both schemas, and nothing
    changes."""
    path = kept_journal(tmp_path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    before = path.read_bytes()
    for opening in (JournalReader, lambda path: open_database(path, None)):
        with pytest.raises(JournalError, match=rf"has schema {version}, this version reads {VERSION}; use the"):
            opening(path)
    assert path.read_bytes() == before


def filled(path: Path, records: int, entities: int = 3) -> Database:
    """Return an open journal with *records* records of *entities* entities in turn."""
    database = open_database(path, None)
    for first in range(1, records + 1, 500):
        seqs = range(first, min(first + 500, records + 1))
        database.append([entry(seq, (seq - 1) // entities + 1, f"s/{seq % entities}") for seq in seqs])
    return database


ANOTHERS_PAGE = """
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'events') WHERE name = 'snapshot'
"""
"""SQL that gives the table ``snapshot`` a page of another table, as a disk that does not sync may leave it."""


def abandoned(path: Path, into: Path) -> Path:
    """Copy the files that a kill of the owner would leave of the journal at *path* to *into*, and return the copy's
    path."""
    into.mkdir()
    for one in path.parent.glob(f"{path.name}*"):
        shutil.copy(one, into / one.name)
    return into / path.name


class Counting(JournalFiles):
    """Stand-in for the machine's files that counts the rows of ``events`` read at an opening."""

    def __init__(self) -> None:
        self.rows = 0

    def connect(self, path: Path, flags: int) -> apsw.Connection:
        db = super().connect(path, flags)
        db.exec_trace = self._trace
        return db

    def _trace(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        if "entity_hash, chain FROM events" in sql:
            cursor.row_trace = self._row
        return True

    def _row(self, cursor: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self.rows += 1
        return row


def test_an_orderly_end_leaves_nothing_to_verify(tmp_path: Path) -> None:
    """Closing a journal writes a snapshot of everything, so that the next opening verifies no record."""
    filled(tmp_path / "journal.db", 700).close()
    files = Counting()
    with closing(open_database(tmp_path / "journal.db", None, files)) as database:
        assert (files.rows, database.last_seq) == (0, 700)


def test_after_a_kill_only_what_came_after_the_last_snapshot_is_verified(tmp_path: Path) -> None:
    """After a kill, an opening verifies only the records since the last snapshot."""
    with closing(filled(tmp_path / "journal.db", SNAPSHOT_EVERY + 1_200)) as database:
        left = abandoned(tmp_path / "journal.db", tmp_path / "left")
        expected = database.checksums
    files = Counting()
    with closing(open_database(left, None, files)) as database:
        assert 0 < files.rows <= 1_200 + 500
        assert database.checksums == expected == check_all(database.db)


def test_after_a_boot_all_of_it_is_verified(tmp_path: Path) -> None:
    """After a boot an opening verifies every record, because a snapshot of an earlier boot does not count."""
    filled(tmp_path / "journal.db", 700).close()

    class CountingRebooted(Counting, Rebooted):
        pass

    files = CountingRebooted()
    open_database(tmp_path / "journal.db", None, files).close()
    assert files.rows == 700


def test_the_snapshot_is_what_the_records_fold_to(tmp_path: Path) -> None:
    """The checksums that appends update equal the result of a full check, also after a reopen."""
    path = tmp_path / "journal.db"
    filled(path, 90).close()
    with closing(open_database(path, None)) as database:
        database.append([entry(91, 1, "s/x", ended=True), entry(92, 31, "s/1"), entry(93, 32, "s/1")])
        assert database.checksums == check_all(database.db)
        digest = database.checksums.digest
    with closing(open_database(path, None)) as database:
        found = read_snapshot(database.db)
        assert found is not None
        assert found[0].digest == digest == check_entities(database.db)[1] % (1 << 128)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE snapshot SET digest = zeroblob(16)",
        "UPDATE snapshot SET records = records + 1",
        "UPDATE snapshot SET entities = entities + 1",
    ],
)
def test_entities_that_are_not_what_the_snapshot_says_are_named(tmp_path: Path, change: str) -> None:
    """The full check reports a snapshot that does not agree with the records up to it."""
    filled(tmp_path / "journal.db", 30).close()
    with closing(apsw.Connection(str(tmp_path / "journal.db"))) as db:
        db.execute(change)
        with pytest.raises(apsw.CorruptError, match="up to record 30 it is not what its snapshot says"):
            check_all(db)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param("UPDATE events SET reason = 'no' WHERE seq = 34", "record 34 is not what", id="a new record"),
        pytest.param("DELETE FROM events WHERE seq = 30", "record 30 is not what", id="the snapshot's own"),
        pytest.param("UPDATE entities SET state = 'no' WHERE id = 's/1'", "s/1 is not as its", id="who changed"),
        pytest.param("UPDATE entities SET state = 'no' WHERE id = 's/0'", "s/0 is not as its", id="who lives"),
        pytest.param("DELETE FROM entities WHERE id = 's/1'", "1 entities that have records are not", id="gone"),
        pytest.param("UPDATE snapshot SET chain = zeroblob(16)", "record 30 is not what", id="the snapshot"),
        pytest.param(ANOTHERS_PAGE, "the snapshot is not what was written", id="another's page in its place"),
    ],
)
def test_what_is_found_in_the_same_boot(tmp_path: Path, change: str, told: str) -> None:
    """An opening in the same boot verifies the records since the snapshot, their entities, and the entities that
    live."""
    path = tmp_path / "journal.db"
    filled(path, 30).close()
    with closing(open_database(path, None)) as database:
        database.append([entry(seq, 11 + seq - 31, "s/1") for seq in range(31, 36)])
        left = abandoned(path, tmp_path / "left")
    with closing(apsw.Connection(str(left))) as db:
        db.execute(change)
    with pytest.raises(JournalError, match=told):
        open_database(left, None)


def test_what_rots_in_old_records_is_found_by_the_full_check_and_after_a_boot(tmp_path: Path) -> None:
    """A change of an old record is not found by an opening in the same boot, but by the full check and after a boot."""
    path = tmp_path / "journal.db"
    filled(path, 30).close()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE events SET reason = 'no' WHERE seq = 4")
    open_database(path, None).close()
    with JournalReader(path) as reader:
        assert reader.find_damage() == (4, None, "record 4 is not what was written there")
        with pytest.raises(JournalError, match="record 4 is not what was written"):
            reader.check()
    with pytest.raises(JournalError, match="record 4 is not what was written"):
        open_database(path, None, Rebooted())


def test_a_fenced_owner_leaves_the_snapshot_alone(tmp_path: Path) -> None:
    """Closing a journal that a later supervisor has opened writes no snapshot."""
    path = tmp_path / "journal.db"
    earlier = filled(path, 10)
    later = open_database(path, None)
    later.append([entry(11, 4, "s/2")])
    before = read_snapshot(later.db)
    with translate_errors(path):
        earlier.close()
    assert read_snapshot(later.db) == before
    later.close()
    with closing(open_database(path, None)) as database:
        assert (database.last_seq, check_chain(database.db)) == (11, None)
