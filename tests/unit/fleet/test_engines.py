"""Conformance of the fleet's engines: in memory, one server, three servers. Each does what ``fleet.ports`` says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.fleet.options import FleetOptions
from supervisor.fleet.ports import Conflict, Engine, EngineUnavailable, Entry
from tests.fleet_kit import MemoryEngine, Servers, nats_servers

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["memory", "one server", "three servers"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers | None]:
    """Start the servers of one kind of engine; ``None``: the engine is in memory."""
    if request.param == "memory":
        yield None
        return
    number = 1 if request.param == "one server" else 3
    with nats_servers(tmp_path_factory.mktemp("nats"), number) as started:
        yield started


@pytest.fixture
def fleet(request: pytest.FixtureRequest, anyio_backend: str) -> str:
    """Return the name of a fleet that is this test's own."""
    return f"f{abs(hash(request.node.name)) % 10**9}-{anyio_backend}"


@asynccontextmanager
async def opened(servers: Servers | None, fleet: str) -> AsyncIterator[Engine]:
    """Open an engine, and close it at the end."""
    if servers is None:
        yield MemoryEngine()
        return
    from supervisor.fleet.nats_engine import NatsEngine

    engine = NatsEngine(FleetOptions(servers=servers.addresses, name=fleet, host="a"))
    try:
        yield engine
    finally:
        await engine.close()


async def test_an_append_expects_the_last_number(servers: Servers | None, fleet: str) -> None:
    """An append with the number of the key's last entry is stored; any other number is refused, and stores nothing."""
    async with opened(servers, fleet) as engine:
        first = await engine.log.append("a", b"1", expected=0, message_id="a1")
        other = await engine.log.append("b", b"2", expected=0, message_id="b1")
        assert first < other
        for wrong in (0, other):
            with pytest.raises(Conflict):
                await engine.log.append("a", b"3", expected=wrong, message_id=f"a2 {wrong}")
        second = await engine.log.append("a", b"4", expected=first, message_id="a2")
        last = await engine.log.last("a")
        assert last is not None
        assert (last.number, last.body, last.message_id) == (second, b"4", "a2")


async def test_a_repeated_append_is_stored_once(servers: Servers | None, fleet: str) -> None:
    """The same append again returns the number of the first one, also where the servers answer "wrong last sequence"
    (one replica) instead of "duplicate" (three): discovery 3."""
    async with opened(servers, fleet) as engine:
        first = await engine.log.append("a", b"1", expected=0, message_id="same")
        assert await engine.log.append("a", b"1", expected=0, message_id="same") == first
        assert await engine.log.following(first) is None


async def test_entries_are_read_in_order(servers: Servers | None, fleet: str) -> None:
    """The entries of all keys, or of one, follow each other by number; those before a number can be removed."""
    async with opened(servers, fleet) as engine:
        numbers = {"a": 0, "b": 0}
        for index, key in enumerate("abab"):
            numbers[key] = await engine.log.append(
                key, b"%d" % index, expected=numbers[key], message_id=f"{key}{index}"
            )
        found, number = [], 0
        while (entry := await engine.log.following(number)) is not None:
            found.append((entry.key, entry.body))
            number = entry.number
        assert found == [("a", b"0"), ("b", b"1"), ("a", b"2"), ("b", b"3")]
        assert await engine.log.end() == number
        await engine.log.remove_before("a", numbers["a"])
        entry = await engine.log.following(0, "a")
        assert entry is not None
        assert entry.body == b"2"
        entry = await engine.log.following(0)
        assert entry is not None
        assert entry.key == "b"
        assert await engine.log.end() == number


async def test_nothing_is_there_at_first(servers: Servers | None, fleet: str) -> None:
    """Keys without an entry have no last entry, nothing follows, and no key is listed."""
    async with opened(servers, fleet) as engine:
        assert await engine.log.last("a") is None
        assert await engine.log.following(0) is None
        assert await engine.directory.get("a") is None
        assert await engine.directory.keys() == []


async def test_the_directory_keeps_the_last_entry(servers: Servers | None, fleet: str) -> None:
    """A put replaces the entry whose number it names; keys are listed once."""
    async with opened(servers, fleet) as engine:
        first = await engine.directory.put("a", b"1", expected=0, message_id="1", ttl_s=600)
        second = await engine.directory.put("a", b"2", expected=first, message_id="2", ttl_s=None)
        with pytest.raises(Conflict):
            await engine.directory.put("a", b"3", expected=first, message_id="3", ttl_s=None)
        await engine.directory.put("b", b"4", expected=0, message_id="4", ttl_s=None)
        entry = await engine.directory.get("a")
        assert entry is not None
        assert (entry.number, entry.body) == (second, b"2")
        assert await engine.directory.keys() == ["a", "b"]


async def test_the_clock_of_the_engine_goes_on(servers: Servers | None, fleet: str) -> None:
    """An entry is stored at the time of the engine's clock."""
    async with opened(servers, fleet) as engine:
        await engine.directory.keys()  # connects
        before = await engine.now()
        await engine.log.append("a", b"1", expected=0, message_id="1")
        entry = await engine.log.last("a")
        assert entry is not None
        assert before - 1 <= entry.stored_at <= await engine.now() + 1


async def test_a_large_body_is_stored(servers: Servers | None, fleet: str) -> None:
    """A body of the largest size is stored with its headers, and the connection is still there: discovery 7."""
    async with opened(servers, fleet) as engine:
        await engine.directory.keys()  # the size is known from the first connection
        size = engine.log.body_bytes_max
        number = await engine.log.append("a" * 32, b"x" * size, expected=0, message_id="m" * 200)
        entry = await engine.log.last("a" * 32)
        assert entry is not None
        assert (entry.number, len(entry.body or b"")) == (number, size)


async def test_an_entry_expires_unless_it_is_put_again(servers: Servers | None, fleet: str) -> None:
    """An entry that is put again in time stays; one that is not loses its body, and its place can then be taken by
    whoever expects the number of what is left: discovery 5."""
    async with opened(servers, fleet) as engine:
        stays = await engine.directory.put("stays", b"1", expected=0, message_id="s", ttl_s=600)
        number = await engine.directory.put("goes", b"1", expected=0, message_id="1", ttl_s=600)
        number = await engine.directory.put("goes", b"2", expected=number, message_id="2", ttl_s=1)
        if isinstance(engine, MemoryEngine):
            engine.clock += 2
        entry = await expired(engine, "goes")
        assert entry is not None, "what has expired is remembered"
        assert entry.number > number
        assert await engine.directory.keys() == ["goes", "stays"]
        for wrong in (0, number):
            with pytest.raises(Conflict):
                await engine.directory.put("goes", b"3", expected=wrong, message_id=f"3 {wrong}", ttl_s=600)
        await engine.directory.put("goes", b"4", expected=entry.number, message_id="4", ttl_s=600)
        entry = await engine.directory.get("stays")
        assert entry is not None
        assert (entry.number, entry.body) == (stays, b"1")


async def expired(engine: Engine, key: str) -> Entry | None:
    """Return an entry of the directory once it has expired."""
    with anyio.fail_after(60):
        while True:
            entry = await engine.directory.get(key)
            if entry is None or entry.body is None:
                return entry
            await anyio.sleep(0.05)


async def test_what_timed_out_is_stored_later(tmp_path: Path, fleet: str) -> None:
    """An append for which there was no quorum has an unknown outcome, is stored when the quorum is back, and its
    repetition is the same entry: discovery 6. Reads see it at once after the servers were started again: 8."""
    with nats_servers(tmp_path / "nats", 3) as servers:
        async with opened(servers, fleet) as engine:
            number = await engine.log.append("a", b"1", expected=0, message_id="1")
            for index in (0, 1):
                servers.kill(index)
            with pytest.raises(EngineUnavailable):
                await engine.log.append("a", b"2", expected=number, message_id="2")
            for index in (0, 1):
                servers.start(index)
            servers.wait()
            again = await append_until_known(engine, number)
            entry = await engine.log.following(number)
            assert entry is not None
            assert (entry.number, entry.body) == (again, b"2")
            assert await engine.log.following(again) is None


async def append_until_known(engine: Engine, number: int) -> int:
    """Repeat an append until the engine says what became of it."""
    with anyio.fail_after(90):
        while True:
            try:
                return await engine.log.append("a", b"2", expected=number, message_id="2")
            except EngineUnavailable:
                await anyio.sleep(0.1)


async def test_an_engine_that_is_away_says_so(tmp_path: Path, fleet: str) -> None:
    """Every call fails with the addresses and a fix while no server can be reached, and works when one is back."""
    with nats_servers(tmp_path / "nats") as servers:
        async with opened(servers, fleet) as engine:
            number = await engine.log.append("a", b"1", expected=0, message_id="1")
            servers.kill(0)
            with pytest.raises(EngineUnavailable):
                await engine.log.append("a", b"2", expected=number, message_id="2")
            async with opened(servers, fleet) as other:
                with pytest.raises(EngineUnavailable, match=r"no server of the fleet .*: Connect.*; start them"):
                    await other.log.last("a")
                servers.start(0)
                servers.wait()
                entry = await other.log.last("a")
            assert entry is not None
            assert entry.body in (b"1", b"2")
            if entry.body == b"1":  # the first try may have been sent when the server was back
                await engine.log.append("a", b"2", expected=number, message_id="2")
            entry = await engine.log.last("a")
            assert entry is not None
            assert entry.body == b"2"
