"""The journal over months: older schemas, snapshots, what a start verifies, and spec 002's tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from supervisor.diagnostics.replay import Replay
from supervisor.journal.chain import check_chain, check_entities
from supervisor.journal.database import Database, open_database
from supervisor.journal.files import Files
from supervisor.journal.integrity import SNAPSHOT_EVERY, check_all, read_snapshot
from supervisor.journal.reader import JournalReader
from supervisor.journal.schema import EVENT_FIELDS, explaining
from supervisor.journal.tables import VERSION
from supervisor.ports import JournalError
from tests.unit.journal.test_journal import Rebooted, entry
from tests.verification.power_cuts.durable_pages import Platter
from tests.verification.power_cuts.simulated_disk import SimulatedDisk

JOURNALS = Path(__file__).parent / "journals"
EARLIER = range(1, VERSION)
_EVENTS = f"SELECT {', '.join(EVENT_FIELDS)} FROM events ORDER BY seq"
_ENTITIES = "SELECT * FROM entities ORDER BY born_seq"
_EFFECTS = "SELECT effect_id, entity_id, seq, payload, settled <> 0 FROM effects ORDER BY seq, rowid"
TABLES = (_EVENTS, _ENTITIES, _EFFECTS)


def kept_journal(folder: Path, version: int) -> Path:
    """The journal of an earlier schema, as the code of its time wrote it, in WAL mode as that left it."""
    path = folder / "journal.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute((JOURNALS / f"schema-{version}.sql").read_text())
        db.pragma("journal_mode", "wal")
    return path


def written(path: Path) -> list[list[Any]]:
    """What a journal holds, but for what schemas differ in."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return [db.execute(query).fetchall() for query in TABLES]


# ---------------------------------------------------------------------------------------------------- migrations
@pytest.mark.parametrize("version", EARLIER)
def test_every_earlier_journal_replays(tmp_path: Path, version: int) -> None:
    """Its records lead to what it keeps, though states and effects have gained fields since it was written."""
    path = kept_journal(tmp_path, version)
    open_database(path, None).close()
    with JournalReader(path) as journal:
        replay = Replay(journal.entities(), journal.effects(), last_seq=journal.last_seq)
        for record in journal.events():
            replay.take(record)
    replay.finish()
    assert replay.rows()
    assert (replay.differences, replay.violations) == ([], [])


@pytest.mark.parametrize("version", EARLIER)
def test_every_earlier_schema_is_brought_up_to_date_and_nothing_is_lost(tmp_path: Path, version: int) -> None:
    """Each record, entity and effect is as it was, the whole journal is sound, and goes on."""
    path = kept_journal(tmp_path, version)
    before = written(path)
    assert len(before[0]) > 100
    with closing(open_database(path, tmp_path / "transitions.jsonl")) as database:
        assert written(path) == before
        assert check_all(database.db) == database.standing
        assert database.generation == 2
        seq = database.last_seq
        database.append([entry(seq + 1, 1, "s/new")])
    with JournalReader(path) as reader:
        assert reader.last_seq == seq + 1
        assert reader.changed() is None


@pytest.mark.parametrize(("version", "vouched"), [(1, 111), (2, 1)])
def test_a_journal_says_from_which_record_on_it_vouches(tmp_path: Path, version: int, vouched: int) -> None:
    """Hashes that were worked out by a migration prove nothing about what was before it."""
    path = kept_journal(tmp_path, version)
    open_database(path, None).close()
    with JournalReader(path) as reader:
        assert reader.vouched_from == vouched


@pytest.mark.parametrize("version", EARLIER)
def test_the_journal_as_it_was_is_kept_beside_the_new_one(tmp_path: Path, version: int) -> None:
    """The copy has the old schema and the same content; nothing else is left."""
    path = kept_journal(tmp_path, version)
    before = written(path)
    open_database(path, None).close()
    kept = tmp_path / f"journal.db.schema-{version}"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["journal.db", kept.name]
    assert written(kept) == before
    with closing(apsw.Connection(str(kept))) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'schema_version'").get == version


@pytest.mark.parametrize("version", EARLIER)
def test_a_reader_of_an_older_journal_says_who_brings_it_up_to_date(tmp_path: Path, version: int) -> None:
    """Reading changes nothing: the error names both schemas and the commands."""
    path = kept_journal(tmp_path, version)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=rf"has schema {version}, this version reads {VERSION}; `supervisor journal"):
        JournalReader(path)
    assert path.read_bytes() == before


def test_a_journal_that_is_being_read_is_not_migrated(tmp_path: Path) -> None:
    """Its log would be taken for the new one's: the error says what to do, and nothing has changed."""
    path = kept_journal(tmp_path, 1)
    before = written(path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM events").fetchone()
        with pytest.raises(JournalError, match="is being read; end what reads it"):
            open_database(path, None, Impatient())
    assert written(path) == before


class Impatient(Files):
    """Waits for nobody's lock."""

    def connect(self, path: Path, flags: int) -> apsw.Connection:
        return _Impatient(str(path), flags=flags)


class _Impatient(apsw.Connection):
    def set_busy_timeout(self, milliseconds: int) -> None:
        super().set_busy_timeout(0)


@pytest.fixture
def disks() -> Iterator[tuple[SimulatedDisk, SimulatedDisk]]:
    """One to write on, one to find what is left of it."""
    pair = SimulatedDisk("migrated"), SimulatedDisk("after the cut")
    yield pair
    for disk in pair:
        disk.unregister()


@pytest.mark.parametrize("version", EARLIER)
def test_a_power_cut_at_any_step_of_a_migration_loses_nothing(
    tmp_path: Path, disks: tuple[SimulatedDisk, SimulatedDisk], version: int
) -> None:
    """Wherever the power goes, the next opening has every record, entity and effect, and a sound journal."""
    source = kept_journal(tmp_path, version)
    before = written(source)
    name = Path("/disk/journal.db")
    mounted = {str(name): source.read_bytes()}
    disk, machine = disks
    disk.mount(mounted)
    open_database(name, None, disk).close()
    platter, draws, done = Platter(mounted), Random(version), 0
    for point in range(1, len(disk.steps) + 1, 7):
        platter.make(disk.steps[done:point])
        done = point
        machine.mount(platter.cut(draws).files)
        with closing(open_database(name, None, machine)) as database:
            assert [database.db.execute(query).fetchall() for query in TABLES] == before, f"cut at step {point}"
    assert done > 50


# ----------------------------------------------------------------------------------------------------- snapshots
def filled(path: Path, records: int, entities: int = 3) -> Database:
    """A journal that is open, with some records of a few entities that take turns."""
    database = open_database(path, None)
    for first in range(1, records + 1, 500):
        seqs = range(first, min(first + 500, records + 1))
        database.append([entry(seq, (seq - 1) // entities + 1, f"s/{seq % entities}") for seq in seqs])
    return database


ANOTHERS_PAGE = """
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'events') WHERE name = 'snapshot'
"""
"""What a disk that lies about its syncs may leave: no constraint of the table holds for what is read there."""


def abandoned(path: Path, into: Path) -> Path:
    """What a kill of its owner would leave of the journal at *path*, in another folder."""
    into.mkdir()
    for one in path.parent.glob(f"{path.name}*"):
        shutil.copy(one, into / one.name)
    return into / path.name


class Counting(Files):
    """The machine's files; counts the rows of ``events`` that are read one by one when a journal is opened."""

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
    """A close writes a snapshot of all there is: the next opening reads no record."""
    filled(tmp_path / "journal.db", 700).close()
    files = Counting()
    with closing(open_database(tmp_path / "journal.db", None, files)) as database:
        assert (files.rows, database.last_seq) == (0, 700)


def test_after_a_kill_only_what_came_after_the_last_snapshot_is_verified(tmp_path: Path) -> None:
    """There is a snapshot every so many records, and none of them before it is read again."""
    with closing(filled(tmp_path / "journal.db", SNAPSHOT_EVERY + 1_200)) as database:
        left = abandoned(tmp_path / "journal.db", tmp_path / "left")
        expected = database.standing
    files = Counting()
    with closing(open_database(left, None, files)) as database:
        assert 0 < files.rows <= 1_200 + 500
        assert database.standing == expected == check_all(database.db)


def test_after_a_boot_all_of_it_is_verified(tmp_path: Path) -> None:
    """What a power cut took can only be missing then, so no snapshot of an earlier boot counts."""
    filled(tmp_path / "journal.db", 700).close()

    class CountingRebooted(Counting, Rebooted):
        pass

    files = CountingRebooted()
    open_database(tmp_path / "journal.db", None, files).close()
    assert files.rows == 700


def test_the_snapshot_is_what_the_records_fold_to(tmp_path: Path) -> None:
    """The sum that is kept up append by append is that of a full check, over reopenings."""
    path = tmp_path / "journal.db"
    filled(path, 90).close()
    with closing(open_database(path, None)) as database:
        database.append([entry(91, 1, "s/x", ended=True), entry(92, 31, "s/1"), entry(93, 32, "s/1")])
        assert database.standing == check_all(database.db)
        digest = database.standing.digest
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
    """The full check folds the records up to the snapshot and compares."""
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
    """What came after the snapshot, who it is about, and who lives, is verified by each opening."""
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
    """An opening in the same boot does not look there; it says so nowhere, and these do find it."""
    path = tmp_path / "journal.db"
    filled(path, 30).close()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE events SET reason = 'no' WHERE seq = 4")
    open_database(path, None).close()
    with JournalReader(path) as reader:
        assert reader.changed() == (4, None, "record 4 is not what was written there")
        with pytest.raises(JournalError, match="record 4 is not what was written"):
            reader.check()
    with pytest.raises(JournalError, match="record 4 is not what was written"):
        open_database(path, None, Rebooted())


def test_a_fenced_owner_leaves_the_snapshot_alone(tmp_path: Path) -> None:
    """Closing what a later supervisor owns writes nothing."""
    path = tmp_path / "journal.db"
    earlier = filled(path, 10)
    later = open_database(path, None)
    later.append([entry(11, 4, "s/2")])
    before = read_snapshot(later.db)
    with explaining(path):
        earlier.close()
    assert read_snapshot(later.db) == before
    later.close()
    with closing(open_database(path, None)) as database:
        assert (database.last_seq, check_chain(database.db)) == (11, None)
