"""Conformance tests of ``supervisor.ports.Reader``: of a running supervisor with its journal in memory and on disk, of
a state directory while a supervisor runs there and afterwards, and of an archive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from supervisor import AgentTurn, Reader, Supervisor, open_reader, open_supervisor
from supervisor.embedding.journals import open_file
from supervisor.journal.archive import compact_database
from supervisor.journal.database import open_database
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.record_ids import id_after
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import JournalError, Retention

pytestmark = pytest.mark.anyio


async def echo(turn: AgentTurn) -> str:
    return turn.prompt


@asynccontextmanager
async def in_memory(folder: Path) -> AsyncIterator[tuple[Supervisor, Reader]]:
    async with open_supervisor(agents={"echo": echo}) as sup:
        with sup.reader() as reader:
            yield sup, reader


@asynccontextmanager
async def on_disk(folder: Path) -> AsyncIterator[tuple[Supervisor, Reader]]:
    async with open_supervisor(folder, agents={"echo": echo}) as sup:
        with sup.reader() as reader:
            yield sup, reader


@asynccontextmanager
async def by_path(folder: Path) -> AsyncIterator[tuple[Supervisor, Reader]]:
    async with open_supervisor(folder, agents={"echo": echo}) as sup:
        with open_reader(folder) as reader:
            yield sup, reader


async def worked(sup: Supervisor, name: str) -> None:
    session = await sup.start_session(name, agent="echo")
    await session.run("hello")
    await session.close()
    await sup.core.journal_writer.flush()


def seqs(events: Iterator[LifecycleEvent]) -> list[int]:
    return [event.seq for event in events]


@pytest.mark.parametrize("opened", [in_memory, on_disk, by_path])
async def test_a_reader_has_what_the_owner_has(opened: object, tmp_path: Path) -> None:
    """A reader returns the records and rows that the journal's owner reads, now and after further records."""
    assert callable(opened)
    async with opened(tmp_path / "state") as (sup, reader):
        for name in ("first", "second"):
            await worked(sup, name)
            journal = sup.core.journal
            assert list(reader.events()) == list(reader.events(archived=True)) == await journal.events()
            assert list(reader.events(name)) == await journal.events(entity_id=name)
            assert list(reader.events(after_seq=3)) == await journal.events(after_seq=3)
            assert reader.entities() == reader.entities(archived=True) == await journal.entities()
            assert reader.entities(live_only=True) == await journal.entities(live_only=True)
            assert reader.entities(ids=[name, "none"]) == await journal.entities(ids=[name])
            assert [reader.entity(name)] == await journal.entities(ids=[name])
            assert reader.entity("none") is None
            assert reader.last_seq == journal.last_seq
            assert reader.archived_records() == 0
            born = list(reader.events_named("Born", "Launched"))
            assert born == [one for one in reader.events() if one.event in ("Born", "Launched")]
            assert name in {one.entity_id for one in born}
            assert [reader.record(one.seq) for one in reader.events()] == list(reader.events())
            assert reader.record(id_after(reader.last_seq)) is None
            rows = [one for one in reader.entities() if one.kind in ("session", "turn") or not one.ended]
            assert reader.entities(ended_kinds=("session", "turn")) == rows
            assert reader.entities(ended_kinds=()) == reader.entities(live_only=True)


@pytest.mark.parametrize("opened", [in_memory, on_disk, by_path])
async def test_a_follower_has_past_and_later_records(opened: object, tmp_path: Path) -> None:
    """``follow`` yields the records after a number without a gap, those to come included, until the supervisor has
    ended; with an id only those of the entity."""
    assert callable(opened)
    every: list[int] = []
    second: list[LifecycleEvent] = []

    async def follow(reader: Reader, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with aclosing(reader.follow(after_seq=2)) as events:
            async for event in events:
                every.append(event.seq)
                if len(every) == 1:
                    task_status.started()

    async def follow_second(reader: Reader) -> None:
        async with aclosing(reader.follow("second")) as events:
            second.extend([event async for event in events])

    async with anyio.create_task_group() as group:
        with anyio.fail_after(30):
            async with opened(tmp_path / "state") as (sup, reader):
                await worked(sup, "first")
                await group.start(follow, reader)
                group.start_soon(follow_second, reader)
                await worked(sup, "second")
    assert every == list(range(3, every[-1] + 1))
    assert {one.entity_id for one in second} == {"second"}
    assert second[0].entity_seq == 1
    assert second[-1].event == "Ended"


async def ended(folder: Path) -> None:
    async with open_supervisor(folder, agents={"echo": echo}) as sup:
        await worked(sup, "first")


async def test_a_follower_of_an_ended_supervisor_ends(tmp_path: Path) -> None:
    """Without a supervisor, ``follow`` yields the records of the journal and ends."""
    await ended(tmp_path / "state")
    with open_reader(tmp_path / "state") as reader:
        assert [event.seq async for event in reader.follow(after_seq=2)] == seqs(reader.events(after_seq=2))
        assert [event.seq async for event in reader.follow("first")] == seqs(reader.events("first"))


async def test_archived_records_are_read_where_they_are_wanted(tmp_path: Path) -> None:
    """The journal alone lacks what was moved to an archive; with ``archived``, and by id, it is read. The archive is
    readable by itself."""
    await ended(tmp_path / "state")
    state = StateDir(tmp_path / "state")
    with open_reader(state.root) as reader:
        events, rows = list(reader.events()), reader.entities()
    with closing(open_database(state.journal, None)) as database:
        compacted = compact_database(database, state.archive, Retention(keep_s=0.0), rows[-1].changed_at + 3_600)
    assert compacted.records > 0
    with open_reader(state.root) as reader:
        assert len(list(reader.events())) == len(events) - compacted.records == len(events) - reader.archived_records()
        assert list(reader.events(archived=True)) == events
        assert list(reader.events_named("Born", archived=True)) == [one for one in events if one.event == "Born"]
        gone = next(one for one in events if reader.record(one.seq) is None)
        assert reader.record(gone.seq, archived=True) == gone
        assert {row.id: row for row in reader.entities(archived=True)} == {row.id: row for row in rows}
        assert [reader.entity(row.id) for row in rows] == rows
    with open_file(state.archive / compacted.archives[0]) as archive:
        assert archive.is_part
        assert len(list(archive.events())) == compacted.records
        assert [event.seq async for event in archive.follow()] == seqs(archive.events())


def test_there_is_one_error_for_a_directory_without_a_journal(tmp_path: Path) -> None:
    """A state directory without a journal is an error that names the path and the fix."""
    (tmp_path / "runtime").mkdir()
    with pytest.raises(JournalError, match=r"no journal at .*journal\.db: run `supervisor run` there first"):
        with open_reader(tmp_path):
            pass
