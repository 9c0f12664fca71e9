"""Mirror and replicas: the replica of a host is its journal again, whatever the engine does meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.fleet import mirror as mirror_module
from supervisor.fleet.batches import decode_batch
from supervisor.fleet.mirror import Mirror, SecondWriter
from supervisor.fleet.ports import Engine, EngineUnavailable
from supervisor.fleet.replica_files import read_replica_state, replica_path
from supervisor.fleet.replicas import Replicas
from supervisor.journal.archive import compact_database
from supervisor.journal.database import open_database
from supervisor.journal.history import History
from supervisor.journal.sqlite import SqliteJournal
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import Append, EntityRow, Retention
from tests.fleet_kit import MemoryEngine

pytestmark = pytest.mark.anyio


async def no_records(
    entity_id: str | None = None, after_seq: RecordId = BEGINNING
) -> AsyncGenerator[LifecycleEvent, None]:
    """Yield nothing: the mirror reads only what is there."""
    return
    yield


class Host:
    """A journal on disk with sessions that are invented, and the mirror of it."""

    def __init__(self, engine: Engine, folder: Path, journal: SqliteJournal, name: str = "a") -> None:
        self.engine, self.folder, self.journal, self.name = engine, folder, journal, name
        self.mirror = self.start_mirror()

    @classmethod
    async def open(cls, engine: Engine, folder: Path, name: str = "a") -> Host:
        folder.mkdir(exist_ok=True)
        return cls(engine, folder, await SqliteJournal.open(folder / "journal.db", jsonl=None), name)

    def start_mirror(self) -> Mirror:
        self.mirror = Mirror(self.engine.log, self.journal, no_records, self.name, self.folder)
        return self.mirror

    async def record(
        self, entity: str, number: int, *, ended: bool = False, padding: int = 0, parent: str | None = None
    ) -> None:
        seq = RecordId(self.journal.last_seq + 1)
        event = LifecycleEvent(
            seq=seq,
            timestamp=1000.0 + seq,
            monotonic_s=float(seq),
            entity_type="session",
            entity_id=entity,
            entity_seq=number,
            event="born" if number == 1 else "moved",
            to_status=f"s{number}",
            outcome="born" if number == 1 else "transition",
            metadata={"text": "x" * padding, "number": number},
        )
        data = msgspec.json.encode({"number": number, "text": "y" * padding})
        change = Append(record=event, parent_id=parent, state=f"s{number}", data=data, ended=ended)
        await self.journal.append([change])

    async def mirror_all(self) -> None:
        with anyio.fail_after(60):
            while await self.mirror.step():
                pass


async def take_all(replicas: Replicas) -> None:
    with anyio.fail_after(60):
        while await replicas.step():
            pass


def content(path: Path) -> tuple[list[LifecycleEvent], list[EntityRow]]:
    with History(path, path.parent / "no archives") as history:
        return list(history.events()), history.entities()


def replica(folder: Path, host: str = "a") -> tuple[list[LifecycleEvent], list[EntityRow]]:
    path = replica_path(folder, host)
    assert path is not None
    return content(path)


async def test_a_replica_is_the_journal_again(tmp_path: Path) -> None:
    """Records and rows of a host arrive as they are in its journal: living, ended and child entities, also those that
    change after they were mirrored, and across restarts of both sides."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await host.record("s", 1)
    await host.record("s/child", 1, parent="s")
    await host.mirror_all()
    await take_all(replicas)
    await host.record("s", 2)
    await host.record("s/child", 2, parent="s", ended=True)
    host.start_mirror()
    await host.mirror_all()
    await replicas.close()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    await host.record("s", 3, ended=True)
    await host.mirror_all()
    await take_all(replicas)
    assert replica(tmp_path / "b") == content(tmp_path / "a" / "journal.db")
    assert not host.mirror.is_behind
    assert len(engine.log.entries) == 3, "one entry for each time that there was something new"
    await replicas.close()
    await host.journal.close()


async def test_a_host_does_not_copy_itself(tmp_path: Path) -> None:
    """A host's own entries make no replica on it; entries under a name that is none are not looked at."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    await host.record("s", 1)
    await host.mirror_all()
    await engine.log.append("../x", b"{}", expected=0, message_id="x")
    replicas = Replicas(engine.log, tmp_path / "a", "a")
    await take_all(replicas)
    assert replicas.states == {}
    await host.journal.close()


async def test_an_engine_that_is_away_costs_nothing(tmp_path: Path) -> None:
    """Records that are written while the engine is away are mirrored once, in order, when it is back; so are those of
    an append whose answer was lost."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    engine.is_away = True
    await host.record("s", 1)
    with pytest.raises(EngineUnavailable):
        await host.mirror.step()
    engine.is_away, engine.loses_answers = False, True
    with pytest.raises(EngineUnavailable):
        await host.mirror.step()
    await host.record("s", 2)
    assert host.mirror.is_behind
    engine.loses_answers = False
    await host.mirror_all()
    batches = [decode_batch(one.body or b"") for one in engine.log.entries]
    assert [[record.entity_seq for record in one.records] for one in batches] == [[1], [2]]
    assert [one.number for one in batches] == [1, 2]
    await host.journal.close()


@pytest.mark.parametrize("first", [True, False])
async def test_a_kill_with_a_lost_answer_mirrors_no_record_twice(tmp_path: Path, first: bool) -> None:
    """A host that is killed when an append is stored and not answered goes on behind it: the replica has each record
    once, whether it was the first of the epoch or not."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    await host.record("s", 1)
    if not first:
        await host.mirror_all()
        await host.record("s", 2)
    engine.loses_answers = True
    with pytest.raises(EngineUnavailable):
        await host.mirror.step()
    engine.loses_answers = False
    host.start_mirror()
    await host.record("s", 3 - first)
    await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    assert replica(tmp_path / "b") == content(tmp_path / "a" / "journal.db")
    await replicas.close()
    await host.journal.close()


async def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """A process that mirrors under the name of another is refused at its next append, and so is the one that it has
    displaced: two never alternate."""
    engine = MemoryEngine()
    one = await Host.open(engine, tmp_path / "a")
    other = await Host.open(engine, tmp_path / "copy")
    await one.record("s", 1)
    await one.mirror_all()
    await other.record("t", 1)
    await other.mirror_all()  # a new epoch, as for a state directory that was made anew
    await one.record("s", 2)
    with pytest.raises(SecondWriter, match="another process writes the records of host a"):
        await one.mirror_all()
    await other.record("t", 2)
    await other.mirror_all()
    for host in (one, other):
        await host.journal.close()


async def test_a_restored_journal_begins_anew(tmp_path: Path) -> None:
    """A state directory that was restored from a copy has fewer records than were mirrored: it begins an epoch, whose
    replica replaces the former one."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    await host.record("s", 1)
    await host.mirror_all()
    epoch = (tmp_path / "a" / "epoch.json").read_bytes()
    await host.record("s", 2)
    await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    await host.journal.close()
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "epoch.json").write_bytes(epoch)
    host = await Host.open(engine, tmp_path / "restored")
    await host.record("other", 1)
    await host.mirror_all()
    await take_all(replicas)
    assert replica(tmp_path / "b") == content(tmp_path / "restored" / "journal.db")
    assert len(list((tmp_path / "b" / "hosts" / "a").glob("*/journal.db"))) == 1, "the former replica is removed"
    await replicas.close()
    await host.journal.close()


async def test_an_epoch_ends_when_most_of_it_is_archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the journal has moved most mirrored records to its archive, a new epoch has what the journal still has, and
    the log and the replicas lose the rest."""
    monkeypatch.setattr(mirror_module, "RENEW_MIN", 5)
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    await host.record("stays", 1)
    for index in range(10):
        await host.record(f"s{index}", 1, ended=True)
    await host.record("stays", 2)
    await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    await host.journal.close()
    database = open_database(tmp_path / "a" / "journal.db", None)
    retention = Retention(keep_s=0.0, records_max=None)
    assert compact_database(database, tmp_path / "archive", retention, 1e9).entities == 10
    database.close()
    host = await Host.open(engine, tmp_path / "a")
    await host.mirror_all()
    assert [decode_batch(one.body or b"").number for one in engine.log.entries] == [1]
    await take_all(replicas)
    found, rows = replica(tmp_path / "b")
    assert ([one.entity_id for one in found], [row.id for row in rows]) == (["stays"] * 2, ["stays"])
    await host.record("stays", 3)
    await host.mirror_all()
    await take_all(replicas)
    assert replica(tmp_path / "b")[1][0].state == "s3"
    await replicas.close()
    await host.journal.close()


async def test_a_damaged_replica_is_made_again(tmp_path: Path) -> None:
    """A replica whose file is damaged is read again from the log, from its first batch."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    for number in (1, 2):
        await host.record("s", number)
        await host.mirror_all()
    await take_all(replicas)
    await replicas.close()
    path = replica_path(tmp_path / "b", "a")
    assert path is not None
    path.write_bytes(path.read_bytes()[:4096] + b"\0" * 40_000)
    await host.record("s", 3)
    await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    assert replica(tmp_path / "b") == content(tmp_path / "a" / "journal.db")
    await replicas.close()
    await host.journal.close()


async def test_a_log_that_lost_its_beginning_is_reported(tmp_path: Path) -> None:
    """A host whose first batch somebody has removed cannot be shown, which is said with the fix; after a restart of its
    daemon, which begins an epoch, it can."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    for number in (1, 2):
        await host.record("s", number)
        await host.mirror_all()
    await engine.log.remove_before("a", engine.log.entries[-1].number)
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    assert "restart the daemon there" in read_replica_state(tmp_path / "b", "a").problem
    assert replica_path(tmp_path / "b", "a") is None
    host.start_mirror()
    await host.mirror_all()
    await take_all(replicas)
    assert read_replica_state(tmp_path / "b", "a").problem == ""
    assert replica(tmp_path / "b") == content(tmp_path / "a" / "journal.db")
    await replicas.close()
    await host.journal.close()


async def test_streams_that_were_made_again_are_filled_again(tmp_path: Path) -> None:
    """After the engine has lost everything, hosts mirror their journals from the beginning, and replicas follow."""
    engine = MemoryEngine()
    host = await Host.open(engine, tmp_path / "a")
    for number in (1, 2, 3):
        await host.record("s", number)
        await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    await replicas.close()
    engine = MemoryEngine()
    host.engine = engine
    host.start_mirror()
    await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    assert replica(tmp_path / "b") == content(tmp_path / "a" / "journal.db")
    await replicas.close()
    await host.journal.close()


async def test_large_records_are_shortened_and_batches_bounded(tmp_path: Path) -> None:
    """Batches stay below the size that the engine takes; values that are too large for one are named, and left out."""
    engine = MemoryEngine()
    engine.log.body_bytes_max = 8_000
    host = await Host.open(engine, tmp_path / "a")
    for index in range(40):
        await host.record(f"s{index}", 1, padding=500)
    await host.record("large", 1, padding=100_000)
    await host.mirror_all()
    assert len(engine.log.entries) > 10
    assert max(len(one.body or b"") for one in engine.log.entries) <= 8_000
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    found, rows = replica(tmp_path / "b")
    assert len(found) == 41
    assert found[-1].metadata == {"number": 1, "left_out": ["text"]}
    assert msgspec.json.decode(rows[-1].data) == {"number": 1, "left_out": ["text"]}
    await replicas.close()
    await host.journal.close()


ESCAPING = msgspec.json.encode(
    {
        "format": 1, "epoch": "../../../x", "number": 1, "after": 0, "last": 0, "until": 0, "count": 0, "records": [],
        "rows": {},
    }
)  # fmt: skip
"""Batch whose epoch is a path."""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"format": 2}', "its records have format 2, and this version reads 1; upgrade the older host"),
        (b'{"format": 1, "epoch": "0123456789abcdef"}', "is no batch of records"),
        (ESCAPING, "its epoch is '../../../x'"),
        (b"\xff", "is no batch of records"),
        (b"[" * 5_000, "is no batch of records"),
    ],
)
async def test_entries_that_are_no_batches_are_reported(tmp_path: Path, body: bytes, message: str) -> None:
    """An entry of a later format, or that is no batch, is skipped and said; other hosts are still taken."""
    engine = MemoryEngine()
    await engine.log.append("c", body, expected=0, message_id="c")
    host = await Host.open(engine, tmp_path / "a")
    await host.record("s", 1)
    await host.mirror_all()
    replicas = Replicas(engine.log, tmp_path / "b", "b")
    await take_all(replicas)
    assert message in replicas.states["c"].problem
    assert len(replica(tmp_path / "b")[0]) == 1
    await replicas.close()
    await host.journal.close()
