"""Event stream of the HTTP API, on real sockets: snapshot, gaps, filters, readers that leave or stall, and the end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from httpx2 import AsyncClient

from supervisor import Retention, Supervisor
from supervisor.control.http import admission, event_hub, events, serving
from supervisor.control.http.event_hub import EncodedRecord
from supervisor.journal import retention
from supervisor.lifecycles.types import RecordId
from tests.support import DEADLINE_S, wait_for_record
from tests.unit.control.http.http_kit import error, over_unix, unix_client

pytestmark = [
    pytest.mark.anyio,
    # Generators within the client library, which it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

EVENTS = "/api/v1/events"


class Event(NamedTuple):
    """Event of a stream, or a comment."""

    name: str
    data: Any
    id: int | None


@asynccontextmanager
async def stream(client: AsyncClient, headers: Any = None, **wanted: Any) -> AsyncIterator[AsyncIterator[Event]]:
    """Open an event stream, and parse it as a browser does."""

    async def parsed(lines: AsyncIterator[str]) -> AsyncGenerator[Event, None]:
        fields: dict[str, str] = {}
        async for line in lines:
            if line:
                name, _, value = line.partition(": ")
                fields[name or "comment"] = value
            else:
                if "comment" in fields:
                    yield Event("comment", fields["comment"], None)
                if "data" in fields:
                    seq = int(fields["id"]) if "id" in fields else None
                    yield Event(fields["event"], json.loads(fields["data"]), seq)
                fields = {}

    async with client.stream("GET", EVENTS, params=wanted, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async with aclosing(response.aiter_lines()) as lines, aclosing(parsed(lines)) as found:
            yield found


def recorded(sup: Supervisor) -> list[int]:
    """Return the numbers of all records of the journal."""
    with sup.reader() as reader:
        return [one.seq for one in reader.events(archived=True)]


async def work(sup: Supervisor, name: str, prompts: int = 1) -> None:
    """Make records: some twenty for each prompt."""
    session = await sup.start_session(name, agent="helpful")
    for number in range(prompts):
        assert (await session.run(f"prompt {number}")).ok


# ------------------------------------------------------------------------------------------------------- contents
async def test_a_snapshot_comes_first_and_then_every_record(tmp_path: Path) -> None:
    """The stream begins with the living entities and their sequence; each record after it comes once, in order."""
    async with over_unix(tmp_path / "sd") as (sup, client):
        await work(sup, "a")
        async with stream(client) as found:
            first = await anext(found)
            assert (first.name, first.id) == ("snapshot", first.data["seq"])
            assert [one["id"] for one in first.data["nodes"]] == ["a"]
            await work(sup, "b")
            wanted = [seq for seq in recorded(sup) if seq > first.data["seq"]]
            seen = [await anext(found) for _ in wanted]
            assert [one.id for one in seen] == [one.data["seq"] for one in seen] == wanted
            assert {one.name for one in seen} == {"record"}


async def test_a_stream_that_is_cut_every_50_records_delivers_each_once(tmp_path: Path) -> None:
    """A reader that reconnects with the id of its last event, by header or by query, gets exactly the gap."""
    async with over_unix(tmp_path / "sd") as (sup, client):
        await work(sup, "a", prompts=12)
        wanted, seen = recorded(sup), []
        assert len(wanted) > 200
        by_header = False
        while len(seen) < len(wanted):
            after, by_header = seen[-1] if seen else 0, not by_header
            given: dict[str, Any] = {"headers": {"Last-Event-ID": str(after)}} if by_header else {"after": after}
            async with stream(client, **given) as found:
                for _ in range(min(50, len(wanted) - len(seen))):
                    seen.append((await anext(found)).id)
        assert seen == wanted


async def test_a_gap_that_is_too_old_is_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If records after the given one are in an archive, or the number is of another journal, one ``resync`` comes
    before a new snapshot."""
    monkeypatch.setattr(retention, "SETTLED_S", 0.0)
    async with over_unix(tmp_path / "sd") as (sup, client):
        await work(sup, "a")
        await (sup.session("a")).close()
        await work(sup, "b")
        assert (await sup.compact(Retention(keep_s=0))).records
        for after in (1, 1_000_000):
            async with stream(client, after=after) as found:
                first, second = await anext(found), await anext(found)
                assert (first.name, second.name) == ("resync", "snapshot")
                assert [one["id"] for one in second.data["nodes"]] == ["b"]
        async with stream(client, after=recorded(sup)[-1]) as found:
            await work(sup, "c")
            assert (await anext(found)).name == "record"


async def test_a_stream_is_filtered_by_subtree_and_kind(tmp_path: Path) -> None:
    """With ``id`` only the entity and all below it are sent, also children that are born later; with ``kind`` only
    entities of that kind."""
    async with over_unix(tmp_path / "sd") as (sup, client):
        lead = await sup.start_session("lead", agent="helpful")
        async with stream(client, id="lead") as tree, stream(client, kind="session") as sessions:
            assert [one["id"] for one in (await anext(tree)).data["nodes"]] == ["lead"]
            await anext(sessions)
            await work(sup, "other")
            child = await lead.start_child("docs", agent="helpful")
            await child.run("work")
            with sup.reader() as reader:
                records = list(reader.events(after_seq=1))
            inside = [one.seq for one in records if one.entity_id.partition(":")[0] in ("lead", "lead/docs")]
            assert [(await anext(tree)).id for _ in inside] == inside
            kinds = [one.seq for one in records if one.entity_type == "session"]
            assert [(await anext(sessions)).id for _ in kinds] == kinds


# -------------------------------------------------------------------------------------------------------- readers
async def test_a_silent_stream_has_heartbeats_and_a_reader_that_left_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments come while nothing happens; the stream of a reader that is gone ends."""
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.05)
    async with over_unix(tmp_path / "sd") as (sup, client):
        async with stream(client) as found:
            names = [(await anext(found)).name for _ in range(8)]  # a comment may come before a slow snapshot
            assert (names.count("snapshot"), names.count("comment"), names[-1]) == (1, 7, "comment")
            assert (await client.get("/api/v1/health")).json()["streams"] == 1
        with anyio.fail_after(DEADLINE_S):
            while (await client.get("/api/v1/health")).json()["streams"]:
                await anyio.lowlevel.checkpoint()
        assert len(sup.core.subscriptions) == 1  # that of all readers together


async def test_a_reader_that_stalls_is_cut_off_and_delays_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read is disconnected; another reader has every record meanwhile."""
    monkeypatch.setattr(admission, "STALL_S", 1.0)
    monkeypatch.setattr(serving, "STALL_S", 1.0)
    seen: list[int | None] = []

    async def read(client: AsyncClient) -> None:
        async with stream(client, after=0) as found:
            async for one in found:
                seen.extend([one.id] if one.name == "record" else [])

    async with over_unix(tmp_path / "sd") as (sup, client), anyio.create_task_group() as group:
        session = await sup.start_session("a", agent="helpful")
        request = f"GET {EVENTS}?after=0 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        async with await anyio.connect_unix(tmp_path / "sd" / "runtime" / "http.sock") as stalled:
            await stalled.send(request)
            group.start_soon(read, client)
            for _ in range(20):
                await session.send("x" * 100_000)
            with anyio.fail_after(DEADLINE_S):
                while len(seen) < len(recorded(sup)):
                    await anyio.lowlevel.checkpoint()
                assert seen == recorded(sup)
                while (await client.get("/api/v1/health")).json()["streams"] > 1:
                    await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def test_a_reader_that_is_far_behind_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is further behind than the buffer reaches reads on from the journal: each record comes once."""
    monkeypatch.setattr(event_hub, "BYTES_MAX", 250_000)
    for module in (events, admission, serving):
        monkeypatch.setattr(module, "STALL_S", DEADLINE_S)
    async with over_unix(tmp_path / "sd") as (sup, client):
        session = await sup.start_session("a", agent="helpful")
        seen = []
        async with stream(client, after=0) as found:
            for _ in range(40):
                await session.send("x" * 100_000)
            while len(seen) < len(recorded(sup)):
                seen.append((await anext(found)).id)
        assert seen == recorded(sup)


async def test_a_reader_whose_records_were_archived_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what a reader lacks was moved from the journal to an archive after its stream began, the stream ends with
    ``slow``, and a stream from the same number begins with ``resync``."""
    monkeypatch.setattr(retention, "SETTLED_S", 0.0)
    async with over_unix(tmp_path / "sd") as (sup, client):
        await work(sup, "a")
        await sup.session("a").close()
        await work(sup, "b")
        read = events.EventStream._read

        async def archived_meanwhile(self: events.EventStream, position: RecordId) -> Sequence[EncodedRecord]:
            await sup.compact(Retention(keep_s=0))
            return await read(self, position)

        monkeypatch.setattr(events.EventStream, "_read", archived_meanwhile)
        async with stream(client, after=1) as found:
            assert await anext(found) == Event("end", {"reason": "slow"}, None)
        async with stream(client, after=1) as found:
            assert (await anext(found)).name == "resync"


async def test_too_many_streams_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many streams are open, the next one is refused with 503, and no stream that is open suffers."""
    monkeypatch.setattr(events, "STREAMS_MAX", 1)
    async with over_unix(tmp_path / "sd") as (_sup, client):
        async with stream(client) as found:
            await anext(found)
            error(await client.get(EVENTS), 503, "busy")


# ------------------------------------------------------------------------------------------------------------ end
async def test_streams_end_with_the_supervisor(tmp_path: Path) -> None:
    """When the supervisor has ended its sessions, each stream gets the last records and ``end``, and closes within a
    second, whatever the reader does."""
    ends: list[list[Event]] = []

    async def read(started: anyio.Event) -> None:
        async with unix_client(tmp_path / "sd") as client, stream(client) as found:
            seen = [await anext(found)]
            started.set()
            async for one in found:
                seen.append(one)
            ends.append(seen)

    async with anyio.create_task_group() as readers:
        async with over_unix(tmp_path / "sd") as (sup, _client):
            await sup.start_session("a", agent="helpful")
            for _ in range(3):
                started = anyio.Event()
                readers.start_soon(read, started)
                await started.wait()
            silent = await anyio.connect_unix(tmp_path / "sd" / "runtime" / "http.sock")
            await silent.send(f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await sup.stop(now=True)
            await wait_for_record(sup, "Ended", "a")
            began_s = anyio.current_time()
        await silent.aclose()
    assert anyio.current_time() - began_s < 10 * events.CLOSE_S  # a bound that holds on a busy machine, too
    for seen in ends:
        assert (seen[-1].name, seen[-1].data["reason"]) == ("end", "stopped")
        assert seen[-2].data["event"] == "Ended"
    assert len(ends) == 3
