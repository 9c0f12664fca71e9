"""Conformance tests of both journals, then tests of the journal on disk: kill -9, other schemas, damage, readers."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import apsw
import msgspec
import pytest

from supervisor.journal.chain import check_chain
from supervisor.journal.database import open_database
from supervisor.journal.files import JournalFiles
from supervisor.journal.jsonl import TransitionLog
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.journal.reader import JournalReader
from supervisor.journal.schema import EVENT_FIELDS
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.tables import VERSION
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, EntityRow, Fenced, JournalError
from tests.support import running_program

pytestmark = pytest.mark.anyio

AnyJournal = MemoryJournal | SqliteJournal


def entry(seq: int, entity_seq: int, entity: str = "s/a", **more: Any) -> Append:
    """Return an Append of a record; fields of the record and of the append are given by name."""
    names = [name for name in ("state", "data", "owed", "settled", "ended", "parent_id") if name in more]
    ours: dict[str, Any] = {"parent_id": None, "state": "Running", "data": b"{}"}
    ours |= {name: more.pop(name) for name in names}
    fields: dict[str, Any] = {"timestamp": 1000.0 + seq, "monotonic_s": float(seq), "event": "Happened"}
    fields |= {"entity_type": "session", "entity_id": entity, "entity_seq": entity_seq} | more
    return Append(record=LifecycleEvent(seq=seq, **fields), **ours)


class InMemory:
    """Opener of journals in memory; its store outlives the journals that are opened on it."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()

    async def open(self) -> AnyJournal:
        return MemoryJournal(self.store)


class OnDisk:
    """Opener of the journal on disk, in one folder, with its transitions.jsonl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> AnyJournal:
        return await SqliteJournal.open(self.folder / "journal.db", jsonl=self.folder / "transitions.jsonl")


Place = InMemory | OnDisk


@pytest.fixture(params=[InMemory, OnDisk])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an opener, in memory or on disk, that can open the same journal again and again."""
    made: Place = request.param(tmp_path)
    return made


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[AnyJournal]:
    journal = await place.open()
    try:
        yield journal
    finally:
        await journal.close()


async def everything(journal: AnyJournal) -> tuple[object, ...]:
    return await journal.events(), await journal.entities(), await journal.owed(), journal.last_seq


# ------------------------------------------------------------------------------------------------ the conformance suite
async def test_a_new_journal_is_empty_and_of_the_first_generation(place: Place) -> None:
    """A new journal has no records, entities or effects, last_seq 0 and generation 1."""
    async with opened(place) as journal:
        assert await everything(journal) == ([], [], [], 0)
        assert journal.generation == 1


async def test_what_was_appended_is_there_after_reopen(place: Place) -> None:
    """After a reopen the records, entities, effects in the outbox and last_seq are the same, and the generation is
    2."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, owed=(("e1", b"{}"),)), entry(2, 1, "s/b", parent_id="s/a")])
        await journal.append([entry(3, 2, state="Stopped", ended=True)])
        before = await everything(journal)
        assert journal.last_seq == 3
    async with opened(place) as journal:
        assert await everything(journal) == before
        assert journal.generation == 2


async def test_a_record_comes_back_field_for_field(place: Place) -> None:
    """Every field of a record is read back unchanged: numbers exactly, text of any script, nested metadata."""
    record = LifecycleEvent(
        seq=1,
        timestamp=1754300000.123456,
        monotonic_s=0.1 + 0.2,
        entity_type="turn",
        entity_id="s/ä/turn-1",
        entity_seq=1,
        event="task_failed",
        from_status="running",
        to_status="failed",
        outcome="transition",
        actor="operator",
        reason="stop it\nnow",
        transition_reason="aborted",
        abort_reason="user_interrupt",
        abort_id="ab-1",
        cause_id=7,
        severity="error",
        metadata={"list": [1, 2.5, None, True], "deep": {"é": "\u2028"}},
    )
    async with opened(place) as journal:
        await journal.append([Append(record=record, parent_id="s/ä", state="failed", data=b'{"n": 1}')])
        assert await journal.events() == [record]


async def test_records_keep_the_order_of_their_appends(place: Place) -> None:
    """Records are read in the order in which they were appended, within and across batches."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, "s/b"), entry(2, 1, "s/a"), entry(3, 2, "s/b")])
        await journal.append([entry(4, 2, "s/a"), entry(5, 3, "s/b")])
        found = [(one.seq, one.entity_id, one.entity_seq) for one in await journal.events()]
    assert found == [(1, "s/b", 1), (2, "s/a", 1), (3, "s/b", 2), (4, "s/a", 2), (5, "s/b", 3)]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        pytest.param(entry(3, 3), "session s/a: expected entity_seq 2, found 3", id="a gap"),
        pytest.param(entry(3, 1), "session s/a: expected entity_seq 2, found 1", id="a repeat"),
        pytest.param(entry(3, 2, "s/new"), "session s/new: expected entity_seq 1, found 2", id="unborn"),
        pytest.param(entry(2, 2), "session s/a: expected a seq above 2, found 2", id="seq again"),
    ],
)
async def test_a_fenced_batch_writes_nothing_at_all(place: Place, bad: Append, named: str) -> None:
    """A record out of order makes ``append`` refuse the whole batch, with its effects and acknowledgements; the next
    batch is accepted."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, owed=(("e1", b"{}"),))])
        before = await everything(journal)
        with pytest.raises(Fenced, match=named):
            await journal.append([entry(2, 1, "s/b", owed=(("e2", b"{}"),), settled=("e1",)), bad])
        assert await everything(journal) == before
        await journal.append([entry(2, 2)])
        assert journal.last_seq == 2


async def test_an_earlier_generation_is_fenced(place: Place) -> None:
    """After a later supervisor has opened the journal, the earlier one can neither append nor acknowledge effects."""
    async with opened(place) as earlier:
        await earlier.append([entry(1, 1, owed=(("e1", b"{}"),))])
        async with opened(place) as later:
            with pytest.raises(Fenced, match="generation 2 owns this journal now, ours was 1"):
                await earlier.append([entry(2, 2)])
            with pytest.raises(Fenced, match="this supervisor must stop"):
                await earlier.settle(["e1"])
            assert [one[0] for one in await later.owed()] == ["e1"]
            await later.append([entry(2, 2)])
            assert later.last_seq == 2


async def test_an_earlier_generation_leaves_without_a_word(tmp_path: Path) -> None:
    """A journal whose owner was replaced writes nothing when it is closed, and its write-ahead log stays."""
    place = OnDisk(tmp_path)
    async with opened(place) as earlier:
        await earlier.append([entry(1, 1)])
        async with opened(place) as later:
            await later.append([entry(2, 2)])
            log = (tmp_path / "journal.db-wal").stat().st_size
            assert log > 0
            await earlier.close()
            assert (tmp_path / "journal.db-wal").stat().st_size == log


async def test_owed_effects_stay_until_they_are_settled(place: Place) -> None:
    """Effects stay in the outbox, in order and with their payloads, over a reopen, until an append or ``settle`` names
    them."""
    async with opened(place) as journal:
        await journal.append(
            [entry(1, 1, owed=(("z", b'{"a": 1}'), ("y", b"2"))), entry(2, 1, "s/b", owed=(("x", b"3"),))]
        )
        await journal.append([entry(3, 2, owed=(("w", b"4"),), settled=("y",))])
        owed = [("z", "s/a", b'{"a": 1}'), ("x", "s/b", b"3"), ("w", "s/a", b"4")]
        assert await journal.owed() == owed
    async with opened(place) as journal:
        assert await journal.owed() == owed
        await journal.settle(["z", "w"])
        assert await journal.owed() == [("x", "s/b", b"3")]
    async with opened(place) as journal:
        assert await journal.owed() == [("x", "s/b", b"3")]


async def test_settling_twice_or_what_was_never_owed_changes_nothing(place: Place) -> None:
    """``settle`` of an effect that was acknowledged before, or of an unknown effect, changes nothing and is no
    error."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, owed=(("e1", b"1"), ("e2", b"2")))])
        for _ in range(2):
            await journal.settle(["e1", "never"])
            assert await journal.owed() == [("e2", "s/a", b"2")]


@pytest.mark.parametrize("settled_before", [False, True])
async def test_an_effect_id_is_owed_once(place: Place, settled_before: bool) -> None:
    """A batch with an effect id that the journal already has, acknowledged or not, is refused."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, owed=(("e1", b"1"),), settled=("e1",) if settled_before else ())])
        before = await everything(journal)
        with pytest.raises(JournalError):
            await journal.append([entry(2, 1, "s/b"), entry(3, 2, owed=(("e1", b"2"),))])
        assert await everything(journal) == before


async def test_events_are_filtered_by_entity_number_and_count(place: Place) -> None:
    """``entity_id``, ``after_seq`` and ``limit`` of ``events`` narrow the result, each alone and together."""
    async with opened(place) as journal:
        await journal.append([entry(n, (n + 1) // 2, "s/odd" if n % 2 else "s/even") for n in range(1, 11)])

        async def seqs(**wanted: Any) -> list[int]:
            return [one.seq for one in await journal.events(**wanted)]

        assert await seqs() == list(range(1, 11))
        assert await seqs(entity_id="s/odd") == [1, 3, 5, 7, 9]
        assert await seqs(after_seq=7) == [8, 9, 10]
        assert await seqs(limit=2) == [1, 2]
        assert await seqs(entity_id="s/even", after_seq=4, limit=2) == [6, 8]
        assert await seqs(entity_id="s/nobody") == []
        assert await seqs(after_seq=10) == []
        assert await seqs(limit=0) == []


async def test_entities_are_as_their_last_append_left_them(place: Place) -> None:
    """An entity's row has the state and data after its last record, and the number and time of its birth."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, "s/b", state="Idle"), entry(2, 1, "s/a", parent_id="s/b")])
        await journal.append([entry(3, 2, "s/b", state="Running", data=b'{"errors": 1}')])
        first, second = await journal.entities()
    assert first == EntityRow(
        kind="session",
        id="s/b",
        parent_id=None,
        state="Running",
        data=b'{"errors": 1}',
        entity_seq=2,
        ended=False,
        born_seq=1,
        born_at=1001.0,
        changed_at=1003.0,
    )
    assert (second.id, second.parent_id, second.born_seq) == ("s/a", "s/b", 2)


async def test_live_only_leaves_out_what_has_ended(place: Place) -> None:
    """``entities(live_only=True)`` returns the entities that have not ended."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, "s/a"), entry(2, 1, "s/b"), entry(3, 2, "s/a", ended=True)])
        assert [(row.id, row.ended) for row in await journal.entities()] == [("s/a", True), ("s/b", False)]
        assert [row.id for row in await journal.entities(live_only=True)] == ["s/b"]


async def test_entities_are_found_by_their_ids(place: Place) -> None:
    """``entities(ids=...)`` returns the entities with these ids; with ``live_only``, only those that have not ended."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, "s/a"), entry(2, 1, "s/b", ended=True), entry(3, 1, "s/c")])
        assert [row.id for row in await journal.entities(ids=["s/a", "s/b", "s/no"])] == ["s/a", "s/b"]
        assert [row.id for row in await journal.entities(ids=["s/a", "s/b"], live_only=True)] == ["s/a"]
        assert await journal.entities(ids=[]) == []


async def test_ids_are_those_that_somebody_chose(place: Place) -> None:
    """``ids`` returns the ids of sessions and tasks, ended ones included, but not those of turns, which are derived."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, "s/a"), entry(2, 1, "s/a:t1", entity_type="turn", parent_id="s/a")])
        await journal.append([entry(3, 1, "task:x", entity_type="task", ended=True), entry(4, 2, "s/a", ended=True)])
        assert await journal.ids() == {"s/a", "task:x"}


async def test_a_refusal_does_not_revive_what_has_ended_but_a_transition_does(place: Place) -> None:
    """A refused event of an ended entity leaves the entity ended; a transition makes it live again."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1, ended=True)])
        await journal.append([entry(2, 2, outcome="refused")])
        assert await journal.entities(live_only=True) == []
        await journal.append([entry(3, 3, outcome="transition")])
        assert [row.id for row in await journal.entities(live_only=True)] == ["s/a"]


async def test_a_record_is_what_it_was_when_it_was_appended(place: Place) -> None:
    """A change of the caller's dictionary after the append does not change the record."""
    metadata = {"attempt": 1}
    async with opened(place) as journal:
        await journal.append([entry(1, 1, metadata=metadata)])
        metadata["attempt"] = 2
        assert (await journal.events())[0].metadata == {"attempt": 1}


async def test_a_cancelled_append_is_written_and_the_journal_goes_on(place: Place) -> None:
    """An append in a cancelled scope is written completely; the cancellation takes effect at the next checkpoint."""
    async with opened(place) as journal:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.append([entry(1, 1), entry(2, 2)])
            assert journal.last_seq == 2
            await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        await journal.append([entry(3, 3)])
        assert [one.seq for one in await journal.events()] == [1, 2, 3]


async def test_a_read_that_races_an_append_sees_all_of_it_or_nothing(place: Place) -> None:
    """Concurrent reads and appends are done one after the other, and no read returns a part of a batch."""
    seen: list[int] = []

    async def look(journal: AnyJournal) -> None:
        seen.append(len(await journal.events()))

    async with opened(place) as journal, anyio.create_task_group() as group:
        for n in (1, 4, 7):
            for _ in range(5):
                group.start_soon(look, journal)
            await journal.append([entry(n, n), entry(n + 1, n + 1), entry(n + 2, n + 2)])
    async with opened(place) as journal:
        await look(journal)
    assert len(seen) == 16
    assert set(seen) <= {0, 3, 6, 9}
    assert seen[-1] == 9


async def test_close_is_idempotent_and_nothing_works_after_it(place: Place) -> None:
    """``close`` may be called twice; every other operation of a closed journal raises JournalError."""
    async with opened(place) as journal:
        await journal.append([entry(1, 1)])
        await journal.close()
        await journal.close()
        for call in (
            lambda: journal.append([entry(2, 2)]),
            lambda: journal.settle(["e1"]),
            journal.owed,
            journal.events,
            journal.entities,
        ):
            with pytest.raises(JournalError, match="closed"):
                await call()
        assert (journal.generation, journal.last_seq) == (1, 1)
    async with opened(place) as journal:
        assert journal.last_seq == 1


@pytest.mark.parametrize("seed", range(4))
async def test_both_journals_give_the_same_answers(tmp_path: Path, seed: int) -> None:
    """After the same random appends, valid and invalid ones, the journals in memory and on disk return the same."""
    rng = random.Random(seed)
    async with opened(InMemory(tmp_path)) as memory, opened(OnDisk(tmp_path)) as disk:
        for _ in range(40):
            batch = _random_batch(rng, memory.last_seq, {row.id: row.entity_seq for row in await memory.entities()})
            assert await _told(memory, batch) == await _told(disk, batch)
            assert await everything(memory) == await everything(disk)
        assert memory.last_seq > 0


def _random_batch(rng: random.Random, seq: int, logs: dict[str, int]) -> list[Append]:
    batch = []
    for _ in range(rng.randint(0, 4)):
        seq, name = seq + rng.choice([1, 1, 1, 2]), f"s/{rng.randint(1, 5)}"
        logs[name] = logs.get(name, 0) + 1
        batch.append(
            entry(
                seq,
                logs[name] + (rng.random() < 0.05),
                name,
                outcome=rng.choice(["transition", "refused", "fact"]),
                ended=rng.random() < 0.2,
                state=rng.choice("ABC"),
                owed=tuple((f"e{rng.randint(1, 300)}", b"{}") for _ in range(rng.randint(0, 1))),
                settled=tuple(f"e{rng.randint(1, 300)}" for _ in range(rng.randint(0, 3))),
            )
        )
    return batch


async def _told(journal: AnyJournal, batch: list[Append]) -> str:
    try:
        await journal.append(batch)
    except Fenced as error:
        return str(error)
    except JournalError:
        return "JournalError"
    return "written"


# ------------------------------------------------------------------------------------------------------- on a disk only
async def test_generation_grows_with_every_owner(tmp_path: Path) -> None:
    """Every opening of a journal has the next generation, whether or not anything is written."""
    for expected in (1, 2, 3):
        async with opened(OnDisk(tmp_path)) as journal:
            assert journal.generation == expected


async def test_a_new_journal_appears_under_its_name_only(tmp_path: Path) -> None:
    """The first opening of a journal leaves no temporary file, and removes the one of an interrupted opening."""
    (tmp_path / "journal.db.new").write_bytes(b"half a page")
    async with opened(OnDisk(tmp_path)) as journal:
        assert journal.generation == 1
    assert sorted(os.listdir(tmp_path)) == ["journal.db", "transitions.jsonl"]


def test_the_tables_have_the_fields_of_the_records(tmp_path: Path) -> None:
    """The columns of the tables are the fields of the records, so a new field needs a new schema version."""
    anyio.run(_open_and_close, tmp_path)
    with closing(apsw.Connection(str(tmp_path / "journal.db"))) as db:
        columns = {
            table: tuple(row[1] for row in db.execute(f"PRAGMA table_info({table})"))
            for table in ("events", "entities")
        }
        assert db.pragma("journal_mode") == "wal"
    assert columns == {"events": (*EVENT_FIELDS, "entity_hash", "chain"), "entities": EntityRow.__struct_fields__}
    assert EVENT_FIELDS[-1] == "metadata"


async def _open_and_close(folder: Path) -> None:
    async with opened(OnDisk(folder)):
        pass


async def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """A journal with a newer schema is not opened: the error names both schemas and the fix, and no byte changes."""
    await _open_and_close(tmp_path)
    path = tmp_path / "journal.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (VERSION + 1,))
    before = path.read_bytes(), (tmp_path / "transitions.jsonl").read_bytes()
    sentence = (
        f"journal.db has schema {VERSION + 1}, this version reads {VERSION};"
        " use the supervisor-runtime that wrote it, or another state directory"
    )
    with pytest.raises(JournalError, match=sentence):
        await OnDisk(tmp_path).open()
    with pytest.raises(JournalError, match=sentence):
        JournalReader(path)
    assert (path.read_bytes(), (tmp_path / "transitions.jsonl").read_bytes()) == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param(b"this is no database at all, but a letter" * 100, "is not a journal", id="a letter"),
        pytest.param(b"", "is not a journal", id="empty"),
    ],
)
async def test_what_is_no_journal_is_refused_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    """A file that is not a journal is not opened: the error names the file, and the content does not change."""
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=f"{path} {told}"):
        await OnDisk(tmp_path).open()
    with pytest.raises(JournalError, match=f"{path} {told}"):
        JournalReader(path)
    assert path.read_bytes() == content


async def test_somebody_elses_database_is_refused_by_name(tmp_path: Path) -> None:
    """A database of another program is not opened as a journal."""
    with closing(apsw.Connection(str(tmp_path / "journal.db"))) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(JournalError, match=r"journal\.db is not a supervisor's journal; move it away"):
        await OnDisk(tmp_path).open()


class Rebooted(JournalFiles):
    """Stand-in for the machine's files that reports another boot than that of the last snapshot."""

    def boot(self) -> str:
        return "another boot"


def open_rebooted(folder: Path) -> None:
    """Open and close the journal in *folder* as the first opening after a boot does: everything is verified."""
    open_database(folder / "journal.db", folder / "transitions.jsonl", Rebooted()).close()


async def test_a_damaged_page_is_found_when_the_journal_is_opened(tmp_path: Path) -> None:
    """A damaged page in the middle of the file makes the first opening after a boot fail with an error that names the
    file."""
    async with opened(OnDisk(tmp_path)) as journal:
        await journal.append([entry(n, n, metadata={"text": "x" * 400}) for n in range(1, 200)])
    path = tmp_path / "journal.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(JournalError, match=r"journal\.db is damaged"):
        open_rebooted(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param("UPDATE events SET reason = 'no' WHERE seq = 7", "record 7 is not what was", id="a field"),
        pytest.param("UPDATE events SET timestamp = 1.5 WHERE seq = 3", "record 3 is not what was", id="a time"),
        pytest.param("UPDATE events SET chain = zeroblob(16) WHERE seq = 9", "record 9 is not what was", id="a hash"),
        pytest.param("DELETE FROM events WHERE seq = 5", "record 6 is not what was", id="a hole"),
        pytest.param("DELETE FROM events WHERE seq = 1", "record 2 is not what was", id="the first"),
        pytest.param("DELETE FROM events WHERE seq = 10", "s/a is not as its last record", id="the last"),
        pytest.param("UPDATE entities SET changed_at = 1.0", "s/a is not as its last record", id="an old entity"),
        pytest.param("UPDATE entities SET data = x'00'", "s/a is not as its last record", id="an entity's data"),
        pytest.param("UPDATE effects SET settled = 0", "record 8 is not what was", id="owed again"),
        pytest.param("DELETE FROM effects", "record 4 is not what was", id="no effect"),
        pytest.param("UPDATE effects SET seq = 99", "record 4 is not what was", id="an effect of another"),
        pytest.param("DELETE FROM entities", "10 records more than the entities have", id="no entity"),
    ],
)
async def test_what_somebody_changed_is_named_when_the_journal_is_opened(
    tmp_path: Path, change: str, told: str
) -> None:
    """The first opening after a boot finds a change that SQLite's own check cannot see; the error names the record or
    the entity."""
    async with opened(OnDisk(tmp_path)) as journal:
        dues: dict[int, dict[str, Any]] = {
            4: {"owed": (("e", b"{}"),)},
            8: {"settled": ("e", "unknown")},
            9: {"settled": ("e",)},
        }
        await journal.append([entry(n, n, **dues.get(n, {})) for n in range(1, 11)])
    with closing(apsw.Connection(str(tmp_path / "journal.db"))) as db:
        db.execute(change)
    (tmp_path / "transitions.jsonl").unlink()
    with pytest.raises(JournalError, match=rf"journal\.db is damaged \({told}"):
        open_rebooted(tmp_path)


def test_the_chain_is_over_what_sqlite_gives_back(tmp_path: Path) -> None:
    """The hash chain agrees with the values that SQLite returns: integers in time fields, minus zero, text of any
    script."""
    records = [
        entry(1, 1, timestamp=1000, monotonic_s=-0.0),
        entry(2, 2, timestamp=1e300, reason="\u2028 a\x00b é", metadata={"n": 1.5, "é": [None, True]}),
        entry(3, 3, timestamp=2**53 + 1, cause_id=2**62),
    ]
    with closing(open_database(tmp_path / "journal.db", None)) as database:
        database.append(records[:2])
        database.append(records[2:])
        assert check_chain(database.db) is None


@pytest.mark.parametrize("operation", [JournalFiles().sync, JournalFiles().reread])
def test_a_sync_that_the_kernel_refuses_raises(operation: Callable[[Path], None]) -> None:
    """An error of fsync(2) is raised to the caller; /dev/null, which cannot be synced, stands in for a failing disk."""
    with pytest.raises(OSError, match="Invalid argument"):
        operation(Path(os.devnull))


async def test_a_missing_folder_is_an_error_with_the_path(tmp_path: Path) -> None:
    """Opening a journal in a folder that does not exist is an error with the path."""
    with pytest.raises(JournalError, match=r"nowhere/journal\.db"):
        await OnDisk(tmp_path / "nowhere").open()


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """Limit the size of the files of this process to *size_bytes*, which has the effect of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_refuses_is_told_and_the_journal_goes_on_when_it_heals(tmp_path: Path) -> None:
    """An append that fails for lack of space raises JournalError and writes no part of the batch; the same batch is
    accepted when there is space."""
    async with opened(OnDisk(tmp_path)) as journal:
        await journal.append([entry(1, 1)])
        big = [entry(2, 2, metadata={"text": "x" * 200_000}), entry(3, 1, "s/b")]
        room_bytes = (tmp_path / "journal.db-wal").stat().st_size + 8192
        with files_end_at(room_bytes), pytest.raises(JournalError, match=r"journal\.db could not be"):
            await journal.append(big)
        assert [one.seq for one in await journal.events()] == [1]
        assert journal.last_seq == 1
        await journal.append(big)
    async with opened(OnDisk(tmp_path)) as journal:
        assert [one.seq for one in await journal.events()] == [1, 2, 3]


async def test_lines_that_cannot_be_written_fail_no_append_and_are_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends succeed although transitions.jsonl cannot be written; the next append that can write adds all missing
    lines."""

    def refuse(log: TransitionLog, records: object) -> None:
        raise OSError(28, "No space left on device")

    async with opened(OnDisk(tmp_path)) as journal:
        with monkeypatch.context() as broken:
            broken.setattr(TransitionLog, "extend", refuse)
            await journal.append([entry(1, 1), entry(2, 2)])
            await journal.append([entry(3, 3)])
        assert _line_seqs(tmp_path) == []
        assert isinstance(journal, SqliteJournal)
        assert journal.lines_error == "[Errno 28] No space left on device"
        await journal.append([entry(4, 4)])
        assert journal.lines_error is None
        assert _line_seqs(tmp_path) == [1, 2, 3, 4]
        await journal.append([entry(5, 5)])
        assert _line_seqs(tmp_path) == [1, 2, 3, 4, 5]


def _line_seqs(folder: Path) -> list[int]:
    lines = (folder / "transitions.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line)["seq"] for line in lines]


# ------------------------------------------------------------------------------------------------------- readers
async def test_a_reader_sees_each_commit_while_the_writer_is_open(tmp_path: Path) -> None:
    """An open reader sees each batch that is committed later, and does not block the writer."""
    async with opened(OnDisk(tmp_path)) as journal:
        await journal.append([entry(1, 1, "s/a"), entry(2, 1, "s/b", ended=True)])
        with JournalReader(tmp_path / "journal.db") as reader:
            stream = reader.events()
            assert next(stream).seq == 1
            await journal.append([entry(3, 2, "s/a", state="Stopped")])
            assert reader.last_seq == 3
            assert [one.seq for one in stream] == [2, 3]
            assert list(reader.events()) == await journal.events()
            assert reader.entities() == await journal.entities()
            assert [row.id for row in reader.entities(live_only=True)] == ["s/a"]
            row = reader.entity("s/a")
            assert row is not None
            assert (row.state, row.entity_seq) == ("Stopped", 2)
            assert reader.entity("s/nobody") is None


async def test_a_closed_journal_is_whole_in_its_one_file_although_a_reader_stays(tmp_path: Path) -> None:
    """After a close, journal.db alone has all records although a reader is open: none remains in the write-ahead
    log."""
    await _open_and_close(tmp_path)
    async with opened(OnDisk(tmp_path)) as journal:
        with JournalReader(tmp_path / "journal.db") as reader:
            await journal.append([entry(1, 1)])
            assert reader.last_seq == 1
            await journal.close()
            copied = tmp_path / "copy.db"
            copied.write_bytes((tmp_path / "journal.db").read_bytes())
    with JournalReader(copied) as reader:
        assert [one.seq for one in reader.events()] == [1]
        assert reader.check().records == 1


async def test_a_reader_pages_through_a_long_journal(tmp_path: Path) -> None:
    """A reader yields more records than one page holds in order and once each, also from ``after_seq`` on."""
    async with opened(OnDisk(tmp_path)) as journal:
        await journal.append([entry(n, (n + 1) // 2, "s/odd" if n % 2 else "s/even") for n in range(1, 2502)])
    with JournalReader(tmp_path / "journal.db") as reader:
        assert [one.seq for one in reader.events()] == list(range(1, 2502))
        assert [one.seq for one in reader.events("s/odd", after_seq=5)][:3] == [7, 9, 11]
        assert len(list(reader.events("s/even"))) == 1250


def test_a_reader_says_where_there_is_no_journal(tmp_path: Path) -> None:
    """A reader for a path without a journal raises JournalError with the path and the command to run first."""
    path = tmp_path / "none" / "journal.db"
    with pytest.raises(JournalError, match=f"no journal at {path}: run `supervisor run` there first"):
        JournalReader(path)
    assert list(tmp_path.iterdir()) == []


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    """A reader's connection to the database is read-only."""
    await _open_and_close(tmp_path)
    with JournalReader(tmp_path / "journal.db") as reader, pytest.raises(apsw.ReadOnlyError):
        reader._db.execute("UPDATE meta SET value = 9")  # no method of a reader writes


# ------------------------------------------------------------------------------------------------------- kill -9
WRITER = """
import sys
from pathlib import Path
import anyio
from supervisor.journal.sqlite import SqliteJournal
from supervisor.ports import Append
from supervisor.lifecycles.types import LifecycleEvent

def entry(seq, logs, name):
    logs[name] = logs.get(name, 0) + 1
    record = LifecycleEvent(
        seq=seq, timestamp=seq, monotonic_s=seq, entity_type="session", entity_id=name, entity_seq=logs[name],
        event="Happened", metadata={"text": "x" * 3000},
    )
    return Append(record=record, parent_id=None, state="Running", data=b"{}", owed=((f"e{seq}", b"{}"),))

async def main(folder):
    journal = await SqliteJournal.open(folder / "journal.db", jsonl=folder / "transitions.jsonl")
    logs = {row.id: row.entity_seq for row in await journal.entities()}
    while True:
        seq = journal.last_seq
        await journal.append([entry(seq + n, logs, f"s/{n}") for n in (1, 2, 3)])
        print(journal.last_seq, flush=True)

anyio.run(main, Path(sys.argv[1]))
"""


def acknowledged_before_kill(folder: Path, lines: int) -> int:
    """Run a child that appends batches of three records, SIGKILL it after *lines* acknowledgements, and return the last
    acknowledged number."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with running_program(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, env=env, text=True
    ) as child:
        deadline = threading.Timer(30, child.kill)
        deadline.start()
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        told += child.stdout.readlines()
        deadline.cancel()
    assert len(told) >= lines
    return int([line for line in told if line.endswith("\n")][-1])


def test_kill_9_in_the_middle_of_appends_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After SIGKILL every acknowledged batch is in the journal, complete, and at most one batch that was not
    acknowledged; entities, effects and lines agree with the records."""
    for lines in (1, 40, 3, 150, 17):
        acknowledged = acknowledged_before_kill(tmp_path, lines)
        last_seq = anyio.run(_inspect, tmp_path)
        assert acknowledged <= last_seq <= acknowledged + 3
        assert last_seq % 3 == 0


async def _inspect(folder: Path) -> int:
    async with opened(OnDisk(folder)) as journal:
        events = await journal.events(limit=1_000_000)
        assert [one.seq for one in events] == list(range(1, journal.last_seq + 1))
        assert [row.entity_seq for row in await journal.entities()] == [journal.last_seq // 3] * 3
        assert [one[0] for one in await journal.owed()] == [f"e{one.seq}" for one in events]
        assert _line_seqs(folder) == [one.seq for one in events]
        return journal.last_seq


def test_a_reader_reads_what_a_killed_writer_left(tmp_path: Path) -> None:
    """A reader reads the write-ahead log of a SIGKILLed supervisor, before another supervisor has recovered the
    journal."""
    acknowledged = acknowledged_before_kill(tmp_path, 5)
    assert (tmp_path / "journal.db-wal").stat().st_size > 0
    with JournalReader(tmp_path / "journal.db") as reader:
        assert acknowledged <= reader.last_seq <= acknowledged + 3
        assert [one.seq for one in reader.events()] == list(range(1, reader.last_seq + 1))


def test_lines_have_what_was_there_although_its_commit_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose commit reported an error, but which is in the journal, gets its line in transitions.jsonl after
    ``recover``."""
    lines = tmp_path / "transitions.jsonl"
    with closing(open_database(tmp_path / "journal.db", lines)) as database:
        database.append([entry(1, 1, "s")])
        writing = database.writing

        @contextmanager
        def and_then_it_fails() -> Iterator[None]:
            with writing():
                yield
            raise apsw.IOError("the sync failed")

        with monkeypatch.context() as once:
            once.setattr(database, "writing", and_then_it_fails)
            with pytest.raises(apsw.IOError):
                database.append([entry(2, 2, "s")])
        assert database.recover() == 2
        database.append([entry(3, 3, "s")])
    assert [json.loads(line)["seq"] for line in lines.read_text().splitlines()] == [1, 2, 3]
