"""Archives: which entities leave the journal, that no record is lost or doubled, and that everything stays
verifiable."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
import apsw
import pytest

from supervisor.journal import archive, sqlite
from supervisor.journal.archive import OWN_CONNECTION, WRITING, compact_pieces
from supervisor.journal.database import Database, open_database
from supervisor.journal.files import JournalFiles
from supervisor.journal.history import History
from supervisor.journal.integrity import check_all
from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.reader import JournalReader
from supervisor.journal.schema import read_ids
from supervisor.journal.sqlite import SqliteJournal
from supervisor.ports import Append, Compacted, JournalDamaged, JournalError, Retention
from tests.unit.journal.test_journal import entry

pytestmark = pytest.mark.anyio

NOW = 1_000_000.0
ALL = Retention(keep_s=0.0, records_max=None)
"""Retention settings under which every entity that may be archived is archived."""


class Made:
    """Generator of appends: sessions with turns, of which most end and some live on, and effects that later records
    acknowledge."""

    def __init__(self, seed: int, sessions: int = 12) -> None:
        self._rng = random.Random(seed)
        self._seq = 0
        self._logs: dict[str, int] = {}
        self._owed: list[str] = []
        self.batches: list[list[Append]] = []
        self._live = [f"s{number}" for number in range(sessions)]
        for name in self._live:
            self.add(name)
        while len(self._live) > 3:
            self._happen()
        self.add(self._live[0])

    def _happen(self) -> None:
        name = self._rng.choice(self._live)
        match self._rng.randrange(8):
            case 0 if not self._open_turns(name):
                self.add(name, ended=True, state="Stopped")
                self._live.remove(name)
            case 1 | 2:
                self.add(f"{name}:t{self._rng.randrange(1000)}", kind="turn", parent_id=name)
            case 3 | 4 | 5 if self._open_turns(name):
                turn = self._rng.choice(self._open_turns(name))
                self.add(turn, kind="turn", parent_id=name, ended=True, state="REAPED")
                self._logs[turn] = -1
            case _:
                self.add(name)

    def _open_turns(self, name: str) -> list[str]:
        return [one for one, seq in self._logs.items() if one.startswith(f"{name}:") and seq > 0]

    def add(self, name: str, kind: str = "session", **more: Any) -> None:
        if self._logs.get(name) == -1:
            return
        self._seq += 1
        self._logs[name] = self._logs.get(name, 0) + 1
        settled = tuple(self._owed)
        self._owed = []
        if self._rng.random() < 0.5 and not more.get("ended"):
            self._owed = [f"e{self._seq}.{number}" for number in range(self._rng.randrange(1, 3))]
            more["owed"] = tuple((one, b"{}") for one in self._owed)
        self.batches.append([entry(self._seq, self._logs[name], name, entity_type=kind, settled=settled, **more)])


def journal_of(folder: Path, seed: int) -> Database:
    """Return an open journal in a state directory below *folder*, filled by :class:`Made`."""
    (folder / "runtime").mkdir(parents=True)
    database = open_database(folder / "runtime" / "journal.db", None)
    for batch in Made(seed).batches:
        database.append(batch)
    return database


def compact(database: Database, folder: Path, retention: Retention = ALL, now: float = NOW) -> Compacted:
    return [told for _, told in compact_pieces(database, folder / "archive", retention, now)][-1]


def everything(folder: Path) -> list[Any]:
    """Return all records, entities and effects of a state directory, from the journal and the archives."""
    with History(folder / "runtime" / "journal.db", folder / "archive") as history:
        rows = sorted(history.entities(archived=True), key=lambda row: row.born_seq)
        return [list(history.events(archived=True)), rows, sorted(history.effects().items())]


@pytest.fixture(params=range(4))
def seed(request: pytest.FixtureRequest) -> int:
    """Return a seed, for several different journals."""
    made: int = request.param
    return made


# ------------------------------------------------------------------------------------------------------- moving
def test_what_ended_leaves_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    """A compaction moves ended entities into archives: journal and archives together have what the journal had, and
    each passes its check."""
    with closing(journal_of(tmp_path, seed)) as database:
        before = everything(tmp_path)
        told = compact(database, tmp_path)
        assert told.records > 20
        assert (told.records_left, told.entities_left) == (database.checksums.records, database.checksums.entities)
        assert told.records + told.records_left == len(before[0])
        assert everything(tmp_path) == before
        assert check_all(database.db) == database.checksums
        assert {row[0] for row in database.db.execute("SELECT ended FROM entities")} == {0}
        for name in told.archives:
            with JournalReader(tmp_path / "archive" / name) as reader:
                assert reader.check().records == told.records


def test_a_compacted_journal_goes_on_and_is_compacted_again(tmp_path: Path, seed: int) -> None:
    """After a compaction record numbers continue, living entities can end, and the next archive has those that ended
    since."""
    with closing(journal_of(tmp_path, seed)) as database:
        compact(database, tmp_path)
        seq = database.last_seq
        rows = database.db.execute(
            "SELECT id, kind, entity_seq, parent_id FROM entities WHERE id LIKE '%:%'"
        ).fetchall()
        for number, (who, kind, entity_seq, parent) in enumerate(rows, start=seq + 1):
            last = entry(number, entity_seq + 1, who, entity_type=kind, parent_id=parent, ended=True)
            database.append([last])
        database.append([entry(database.last_seq + 1, 1, "s/new")])
        before = everything(tmp_path)
        told = compact(database, tmp_path)
        assert told.entities == len(rows)
        assert everything(tmp_path) == before
        assert check_all(database.db) == database.checksums
    with closing(open_database(tmp_path / "runtime" / "journal.db", None)) as database:
        assert database.last_seq == before[0][-1].seq


def test_ids_stay_taken_and_numbers_go_on(tmp_path: Path, seed: int) -> None:
    """The ids of archived sessions stay reserved, and record numbers continue."""
    with closing(journal_of(tmp_path, seed)) as database:
        before, seq = read_ids(database.db), database.last_seq
        compact(database, tmp_path)
        assert read_ids(database.db) == before == {f"s{number}" for number in range(12)}
        assert database.last_seq == seq


@pytest.mark.parametrize("most", [1, 7])
def test_a_slice_is_bounded_and_after_each_the_journal_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """No transaction of a compaction deletes more records than the limit, also for an entity with more; after each
    transaction the journal passes its check."""
    monkeypatch.setattr(archive, "RECORDS_PER_SLICE", most)
    with closing(journal_of(tmp_path, 1)) as database:
        before = everything(tmp_path)
        left = database.checksums.records
        with closing(compact_pieces(database, tmp_path / "archive", ALL, NOW)) as pieces:
            for _ in pieces:
                assert left - database.checksums.records <= most
                left = database.checksums.records
                assert check_all(database.db) == database.checksums
        assert everything(tmp_path) == before


def test_archives_are_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many records go into several archives, and no record is lost."""
    monkeypatch.setattr(archive, "RECORDS_PER_ARCHIVE", 20)
    with closing(journal_of(tmp_path, 2)) as database:
        before = everything(tmp_path)
        told = compact(database, tmp_path)
        assert len(told.archives) > 1
        assert everything(tmp_path) == before


# ----------------------------------------------------------------------------------------------------- crashes
class Crash(Exception):
    """Stand-in for the death of the process."""


def crashes(folder: Path, seed: int) -> Iterator[int]:
    """Run compactions that are stopped after 0, 1, 2 and more pieces, each on a journal of its own, and yield that
    number."""
    for pieces_done in range(10_000):
        place = folder / str(pieces_done)
        database = journal_of(place, seed)
        pieces = compact_pieces(database, place / "archive", ALL, NOW)
        done = sum(1 for _ in zip(range(pieces_done), pieces, strict=False))
        pieces.close()
        database.close()
        yield pieces_done
        if done < pieces_done:
            return


def test_a_crash_between_any_two_pieces_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash between any two pieces the journal opens, has every record once together with its archives, and the
    next compaction completes the work."""
    monkeypatch.setattr(archive, "RECORDS_PER_SLICE", 15)
    monkeypatch.setattr(archive, "RECORDS_PER_PAGE", 15)
    count, before = 0, None
    for number in crashes(tmp_path, 3):
        place = tmp_path / str(number)
        before = before or everything(place)
        assert everything(place) == before
        with closing(open_database(place / "runtime" / "journal.db", None)) as database:
            assert check_all(database.db) == database.checksums
            compact(database, place)
            assert check_all(database.db) == database.checksums
            named = {name for (name,) in database.db.execute("SELECT file FROM archives WHERE done")}
        assert everything(place) == before
        left = {one.name for one in (place / "archive").iterdir()} - named
        assert len(left) <= 1  # whatever no journal names may be the only copy of another one's
        count += 1
    assert count > 15


class Failing(JournalFiles):
    """Stand-in for the machine's files that fails at the n-th sync or rename."""

    def __init__(self, at: int) -> None:
        self.calls, self._at = 0, at

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            raise OSError(5, "Input/output error")

    def sync(self, path: Path) -> None:
        self._count()
        super().sync(path)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)


def test_a_disk_that_fails_while_an_archive_is_made_costs_nothing(tmp_path: Path) -> None:
    """Whichever sync or rename of a compaction fails: the journal is unchanged, and a later compaction loses
    nothing."""
    with closing(journal_of(tmp_path, 1)) as database:
        before, checksums = everything(tmp_path), database.checksums
        files, at = Failing(1), 1
        while database.checksums == checksums:
            with suppress(JournalError):
                for _ in compact_pieces(database, tmp_path / "archive", ALL, NOW, files):
                    pass
                assert files.calls < at
            if files.calls >= at:
                assert database.checksums == checksums == check_all(database.db)
                at += 1
                files = Failing(at)
        assert at > 5
        assert everything(tmp_path) == before


def test_the_error_of_such_a_disk_names_the_archive(tmp_path: Path) -> None:
    """The error of a failed sync during a compaction names the archive, and no file remains."""
    with closing(journal_of(tmp_path, 1)) as database:
        pieces = compact_pieces(database, tmp_path / "archive", ALL, NOW, Failing(1))
        with pytest.raises(JournalError, match=r"archive/journal-000001\.db could not be used"):
            list(pieces)
        assert list((tmp_path / "archive").iterdir()) == []


@pytest.mark.parametrize(
    ("reason", "words"), [("'no'", "record {} is not what was"), ("CAST(x'f0' AS TEXT)", "'utf-8'")]
)
def test_a_damaged_record_is_not_archived(tmp_path: Path, reason: str, words: str) -> None:
    """A record that was changed, or is not UTF-8 any more, stops a compaction before the record is archived, and
    nothing is deleted."""
    with closing(journal_of(tmp_path, 1)) as database:
        (seq,) = database.db.execute(
            "SELECT max(seq) FROM events WHERE entity_id IN (SELECT id FROM entities WHERE ended)"
        )
        database.db.execute(f"UPDATE events SET reason = {reason} WHERE seq = ?", seq)
        records = database.checksums.records
        with pytest.raises(JournalError, match=rf"journal\.db is damaged \({words.format(*seq)}"):
            compact(database, tmp_path)
        assert database.db.execute("SELECT count(*) FROM events").get == records


def test_who_is_not_found_by_its_id_is_not_archived_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check finds an entity that an index does not find by its id, and nothing is archived.

    Without the check the entity would be archived, stay, and be archived again, until the disk is full.
    """
    monkeypatch.setattr(JournalFiles, "boot", lambda _: "one boot")  # in which a start does not look at everything
    with closing(open_database(tmp_path / "journal.db", None)) as database:
        database.append([entry(1, 1, "leaves", ended=True), entry(2, 1, "stays")])
    _rot_in_index(tmp_path / "journal.db", b"leaves", b"leavet")
    with JournalReader(tmp_path / "journal.db") as reader, pytest.raises(JournalDamaged, match="missing from index"):
        reader.check()
    with closing(open_database(tmp_path / "journal.db", None)) as database:
        words = r"journal\.db is damaged \(1 entities are not found by their ids\)"
        with closing(compact_pieces(database, tmp_path / "archive", ALL, NOW)) as pieces:
            with pytest.raises(JournalError, match=words):
                list(islice(pieces, 100))  # a few would do
        assert database.db.execute("SELECT count(*) FROM events").get == 2
    assert list((tmp_path / "archive").iterdir()) == []


def _rot_in_index(path: Path, was: bytes, now: bytes) -> None:
    """Change an id in the index of entities by id, and only in the index."""
    with closing(apsw.Connection(str(path))) as db:
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_entities_1'").get
        size = db.execute("PRAGMA page_size").get
    held = path.read_bytes()
    begin, end = (root - 1) * size, root * size
    assert was in held[begin:end]
    path.write_bytes(held[:begin] + held[begin:end].replace(was, now) + held[end:])


def test_an_archive_that_is_gone_keeps_the_rest_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an archive of an unfinished compaction is missing, its records are not deleted from the journal; the error
    says to put the file back."""
    monkeypatch.setattr(archive, "RECORDS_PER_SLICE", 5)
    with closing(journal_of(tmp_path, 1)) as database:
        full = database.checksums.records
        with closing(compact_pieces(database, tmp_path / "archive", ALL, NOW)) as pieces:
            while database.checksums.records == full:
                next(pieces)
        path = tmp_path / "archive" / "journal-000001.db"
        path.rename(tmp_path / "elsewhere")
        left = database.checksums
        with pytest.raises(JournalError, match="put the file back"):
            compact(database, tmp_path)
        assert database.checksums == left
        (tmp_path / "elsewhere").rename(path)
        compact(database, tmp_path)
        assert database.checksums.records < left.records


# ---------------------------------------------------------------------------------------------------- retention
def standing_after(tmp_path: Path, batches: list[Append], retention: Retention, now: float) -> set[str]:
    with closing(open_database(tmp_path / "journal.db", None)) as database:
        database.append(batches)
        compact(database, tmp_path, retention, now)
        return {str(one) for (one,) in database.db.execute("SELECT id FROM entities")}


def test_the_young_stay(tmp_path: Path) -> None:
    """An entity that ended less than ``keep_s`` ago is not archived."""
    batch = [entry(seq, 1, f"s{seq}", ended=True) for seq in range(1, 6)]
    assert standing_after(tmp_path, batch, Retention(keep_s=100.0), 1102.5) == {"s3", "s4", "s5"}


def test_the_oldest_leave_where_there_are_too_many_records(tmp_path: Path) -> None:
    """With more than ``records_max`` records the oldest ended entities are archived, even if ``keep_s`` sets no
    time."""
    batch = [entry(seq, 1, f"s{seq}", ended=True) for seq in range(1, 11)]
    retention = Retention(keep_s=None, records_max=4)
    assert standing_after(tmp_path, batch, retention, NOW) == {"s7", "s8", "s9", "s10"}


def test_without_bounds_nothing_leaves(tmp_path: Path) -> None:
    """With ``keep_s`` and ``records_max`` both ``None`` nothing is archived."""
    batch = [entry(seq, 1, f"s{seq}", ended=True) for seq in range(1, 4)]
    assert len(standing_after(tmp_path, batch, Retention(keep_s=None, records_max=None), NOW)) == 3


def test_the_archive_of_another_journal_is_left_alone(tmp_path: Path) -> None:
    """Archives of another journal in the same directory are not touched: they may be the only copy."""
    with closing(journal_of(tmp_path, 1)) as database:
        compact(database, tmp_path)
    (first,) = sorted((tmp_path / "archive").iterdir())
    held = first.read_bytes()
    for part in (tmp_path / "runtime").iterdir():
        part.unlink()
    (tmp_path / "runtime").rmdir()
    with closing(journal_of(tmp_path, 2)) as database:
        told = compact(database, tmp_path)
    assert first.read_bytes() == held
    assert told.archives == ("journal-000002.db",)


def test_parents_stay_while_a_child_does(tmp_path: Path) -> None:
    """An ended entity with a living descendant is not archived; its ended children are."""
    batch = [
        entry(1, 1, "top", ended=True),
        entry(2, 1, "top/mid", parent_id="top", ended=True),
        entry(3, 1, "top/mid/lives", parent_id="top/mid"),
        entry(4, 1, "top/gone", parent_id="top", ended=True),
        entry(5, 1, "other", ended=True),
        entry(6, 1, "newest"),
    ]
    assert standing_after(tmp_path, batch, ALL, NOW) == {"top", "top/mid", "top/mid/lives", "newest"}


def test_what_failed_stays_with_the_session_that_worked_on_it(tmp_path: Path) -> None:
    """A failed task or workstream, the session that worked on the task, and everything below them are not archived."""
    task: dict[str, Any] = {"entity_type": "task"}
    batch = [
        entry(1, 1, "task:a", **task, state="CLAIMED", event="claimed", metadata={"by": "a"}),
        entry(2, 1, "a", ended=True),
        entry(3, 1, "a:t1", parent_id="a", entity_type="turn", ended=True),
        entry(4, 2, "task:a", **task, state="FAILED", ended=True),
        entry(5, 1, "b", ended=True),
        entry(6, 1, "ws", entity_type="workstream", state="failed", ended=True),
        entry(7, 1, "newest"),
    ]
    assert standing_after(tmp_path, batch, ALL, NOW) == {"task:a", "a", "a:t1", "ws", "newest"}


@pytest.mark.parametrize("ended", [False, True])
def test_what_is_below_a_workstream_leaves_after_it_has_ended(tmp_path: Path, ended: bool) -> None:
    """Entities below a workstream are not archived while it runs; a task without a workstream is archived by itself."""
    state = "completed" if ended else "executing"
    task, run = {"entity_type": "task", "state": "CLOSED"}, {"entity_type": "run", "state": "COMPLETED"}
    batch = [
        entry(1, 1, "ws", entity_type="workstream", state=state, ended=ended),
        entry(2, 1, "done", parent_id="ws", ended=True, **task),
        entry(3, 1, "its run", parent_id="done", ended=True, **run),
        entry(4, 1, "of none", ended=True, **task),
        entry(5, 1, "newest"),
    ]
    stands = standing_after(tmp_path, batch, ALL, NOW)
    assert stands == ({"newest"} if ended else {"ws", "done", "its run", "newest"})


def test_who_owes_an_effect_stays_and_so_does_the_newest_record(tmp_path: Path) -> None:
    """An entity with an effect in the outbox is not archived, nor the entity of the newest record, by which the journal
    knows its last number."""
    batch = [entry(1, 1, "owes", owed=(("e", b"{}"),), ended=True), entry(2, 1, "a", ended=True)]
    batch += [entry(3, 1, "last", ended=True)]
    assert standing_after(tmp_path, batch, ALL, NOW) == {"owes", "last"}


# ------------------------------------------------------------------------------------------------- while it runs
async def test_a_journal_is_compacted_while_it_is_written(tmp_path: Path) -> None:
    """Appends succeed during a compaction, and no record is lost or doubled."""
    journal_of(tmp_path, 1).close()
    journal = await SqliteJournal.open(tmp_path / "runtime" / "journal.db", jsonl=None)
    done = anyio.Event()

    async def write() -> None:
        count = 0
        while not done.is_set():
            count += 1
            await journal.append([entry(journal.last_seq + 1, count, "writer")])

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        told = await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)
        done.set()
    last = journal.last_seq
    await journal.close()
    assert told.records > 20
    with JournalReader(tmp_path / "runtime" / "journal.db") as reader:
        reader.check()
    assert [one.seq for one in everything(tmp_path)[0]] == list(range(1, last + 1))


async def test_a_compaction_writes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other operation runs during the writing pieces of a compaction; the other pieces do not block the journal."""
    journal_of(tmp_path, 1).close()
    working = Lock()
    monkeypatch.setattr(sqlite, "Lock", lambda: working)
    journal = await SqliteJournal.open(tmp_path / "runtime" / "journal.db", jsonl=None)
    alone: list[tuple[str, bool]] = []

    def watched(*args: Any, **options: Any) -> Iterator[tuple[str, Compacted]]:
        where = OWN_CONNECTION
        for where_next, told in compact_pieces(*args, **options):
            alone.append((where, working.locked()))
            where = where_next
            yield where, told

    monkeypatch.setattr(sqlite, "compact_pieces", watched)
    await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)
    await journal.close()
    assert {where for where, _ in alone} == {OWN_CONNECTION, WRITING}
    assert [where for where, locked in alone if locked is not (where == WRITING)] == []


async def test_a_cancelled_compaction_is_finished_by_the_next(tmp_path: Path) -> None:
    """A cancelled compaction stops between two pieces, and the next compaction completes the work."""
    journal_of(tmp_path, 2).close()
    before = everything(tmp_path)
    journal = await SqliteJournal.open(tmp_path / "runtime" / "journal.db", jsonl=None)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)
    assert scope.cancelled_caught
    assert (await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)).records > 20
    await journal.close()
    assert everything(tmp_path) == before


async def test_a_closed_journal_is_not_compacted(tmp_path: Path) -> None:
    """A compaction of a closed journal raises JournalError."""
    journal = await SqliteJournal.open(tmp_path / "journal.db", jsonl=None)
    await journal.close()
    with pytest.raises(JournalError, match="closed"):
        await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)


async def test_a_journal_whose_lines_are_behind_is_not_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction is refused while transitions.jsonl lacks lines, so that no record is archived before its line is
    written."""

    def refuse(log: TransitionLog, records: object) -> None:
        raise OSError(28, "No space left on device")

    journal = await SqliteJournal.open(tmp_path / "journal.db", jsonl=tmp_path / "transitions.jsonl")
    with monkeypatch.context() as broken:
        broken.setattr(TransitionLog, "extend", refuse)
        await journal.append([entry(1, 1, "a", ended=True), entry(2, 1, "b")])
        with pytest.raises(JournalError, match=r"transitions\.jsonl is behind the journal"):
            await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)
    await journal.append([entry(3, 2, "b")])
    assert (await journal.compact(tmp_path / "archive", ALL, NOW, pause_s=0.0)).records == 1
    await journal.close()


# ------------------------------------------------------------------------------------------------ all of it, read
def test_a_history_is_whole_while_records_leave_the_journal(tmp_path: Path) -> None:
    """A History that is being read yields every record once, although a compaction runs meanwhile."""
    with closing(journal_of(tmp_path, 1)) as database, History(tmp_path / "runtime" / "journal.db") as history:
        seqs = range(1, database.last_seq + 1)
        reading = history.events(archived=True)
        first = next(reading)
        compact(database, tmp_path)
        assert [first.seq, *(one.seq for one in reading)] == list(seqs)
        assert [one.seq for one in history.events(archived=True)] == list(seqs)


def test_a_history_is_as_long_as_its_archives_are_there(tmp_path: Path) -> None:
    """A missing archive is an error that names the file, not a shorter history."""
    with closing(journal_of(tmp_path, 1)) as database:
        compact(database, tmp_path)
    (tmp_path / "archive" / "journal-000001.db").unlink()
    with pytest.raises(JournalDamaged, match=r"journal-000001\.db is not there"):
        everything(tmp_path)


def test_an_archive_that_is_cut_to_nothing_is_damage(tmp_path: Path) -> None:
    """An archive that was truncated to nothing is reported as damage."""
    with closing(journal_of(tmp_path, 1)) as database:
        compact(database, tmp_path)
    (tmp_path / "archive" / "journal-000001.db").write_bytes(b"")
    with pytest.raises(JournalDamaged, match=r"journal-000001\.db is not a journal"):
        everything(tmp_path)


def test_a_changed_archive_is_found_by_the_check(tmp_path: Path) -> None:
    """A changed archive is found by the check, because the journal has a digest of all its bytes."""
    with closing(journal_of(tmp_path, 1)) as database:
        compact(database, tmp_path)
    path = tmp_path / "archive" / "journal-000001.db"
    with closing(apsw.Connection(str(path))) as db, suppress(apsw.Error):
        db.execute("VACUUM")
        db.execute("UPDATE meta SET value = 7 WHERE key = 'generation'")
    with History(tmp_path / "runtime" / "journal.db", tmp_path / "archive") as history:
        (problem,) = [one for one in history.check() if one.problem]
        assert history.find_damage() == [(None, None, f"{path} it is not as it was archived")]
    assert (problem.file, problem.problem) == (str(path), "it is not as it was archived")
