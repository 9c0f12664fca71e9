"""Leases of hosts, and the service that keeps them: one process to a name, and the states in which hosts are shown."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from supervisor.fleet import service as service_module
from supervisor.fleet.membership import LEASE_S, Membership, NameTaken
from supervisor.fleet.options import BadFleetOptions, FleetOptions
from supervisor.fleet.service import FleetService
from supervisor.fleet.status import FleetStatus, read_status
from supervisor.journal.memory import MemoryJournal
from tests.fleet_kit import MemoryEngine
from tests.unit.fleet.test_mirror import no_records

pytestmark = pytest.mark.anyio


def member(engine: MemoryEngine, instance: str, host: str = "a") -> Membership:
    return Membership(engine.directory, host, instance, "1.0", engine.clock)


async def test_a_name_belongs_to_one_state_directory() -> None:
    """A second state directory is refused while the lease of the first lasts, with where that is; it may take the name
    when the lease is over, or the first has left."""
    engine = MemoryEngine()
    first, second = member(engine, "one"), member(engine, "two")
    await first.join()
    with pytest.raises(NameTaken, match=r"'a' is in the fleet already, on .* with pid \d+; give this"):
        await second.join()
    await first.leave()
    await second.join()
    engine.clock += LEASE_S + 1
    assert await second.others() == {}
    await first.join()
    with pytest.raises(NameTaken, match="was taken by another process"):
        await second.renew()


async def test_a_restarted_host_takes_its_own_lease_over() -> None:
    """The next process of a state directory joins at once although the lease of the killed one lasts; if that one was
    only frozen, it is refused at its next beat."""
    engine = MemoryEngine()
    frozen, restarted = member(engine, "one"), member(engine, "one")
    await frozen.join()
    await restarted.join()
    await restarted.renew()
    with pytest.raises(NameTaken, match="restart one of them under another name"):
        await frozen.renew()
    await restarted.renew()


async def test_a_lease_that_was_over_is_renewed() -> None:
    """A host whose lease expired while it could not reach the engine takes it again; one whose answer was lost goes on
    with what was stored."""
    engine = MemoryEngine()
    host = member(engine, "one")
    await host.join()
    engine.clock += LEASE_S + 1
    await host.renew()
    assert list(await host.others()) == ["a"]
    engine.loses_answers = True
    with pytest.raises(Exception, match="the answer was lost"):
        await host.renew()
    engine.loses_answers = False
    await host.renew()


class ServiceKit:
    """Hosts of a fleet in memory, each with its folder below *path*."""

    def __init__(self, path: Path) -> None:
        self.path, self.engine = path, MemoryEngine()
        self.engine.clock = time.time()

    def service(self, host: str, **options: str) -> FleetService:
        given = FleetOptions(servers=("nats://x",), host=host, **options)
        return FleetService(given, self.engine, self.path / host, "1.0")

    @asynccontextmanager
    async def running(self, host: str) -> AsyncIterator[None]:
        """Run the service of a host; it leaves in order at the end."""
        service, closing = self.service(host), anyio.Event()
        await service.join()
        async with anyio.create_task_group() as group:
            journal = MemoryJournal()

            async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await service.run(journal, no_records, closing, task_status=task_status)

            await group.start(run)
            yield
            closing.set()

    async def status(self, host: str, fact: Callable[[FleetStatus], bool]) -> FleetStatus:
        """Wait until the status of a host is as *fact* says."""
        with anyio.fail_after(60):
            while True:
                found = read_status(self.path / host)
                if found is not None and fact(found):
                    return found
                await anyio.sleep(0.01)


def states(status: FleetStatus) -> dict[str, str]:
    return {one.name: one.state for one in status.hosts}


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceKit:
    for name in ("BEAT_S", "MIRROR_S", "LOOK_S", "AGAIN_S"):
        monkeypatch.setattr(service_module, name, 0.01)
    return ServiceKit(tmp_path)


async def test_hosts_see_each_other_come_and_go(kit: ServiceKit) -> None:
    """A host is alive while its lease lasts, has left when it ended in order, and is silent when its lease is over;
    while the engine is away nothing is known of it."""
    async with kit.running("b"):
        async with kit.running("a"):
            await kit.status("b", lambda one: states(one) == {"a": "alive", "b": "here"})
            kit.engine.is_away = True
            away = await kit.status("b", lambda one: states(one) == {"a": "unknown", "b": "here"})
            assert away.problem == "the engine is away"
            kit.engine.is_away = False
            await kit.status("b", lambda one: states(one) == {"a": "alive", "b": "here"} and not one.problem)
        await kit.status("b", lambda one: states(one) == {"a": "left", "b": "here"})
        killed = member(kit.engine, "other", host="c")
        await killed.join()
        await kit.status("b", lambda one: states(one).get("c") == "alive")
        kit.engine.clock += LEASE_S + 1
        await kit.status("b", lambda one: states(one)["c"] == "silent")


async def test_a_host_that_lost_its_name_mirrors_nothing_more(kit: ServiceKit) -> None:
    """When another process has taken the name, the host says so and stays as it is: its service does not crash."""
    async with kit.running("a"):
        await kit.status("a", lambda one: bool(one.hosts))
        kit.engine.clock += LEASE_S + 1
        entry = await kit.engine.directory.get("a")
        assert entry is not None
        await kit.engine.directory.put("a", b'{"format": 9}', expected=entry.number, message_id="other", ttl_s=600)
        found = await kit.status("a", lambda one: bool(one.problem))
        assert "'a' was taken by another process, on an unknown machine" in found.problem


async def test_a_first_join_needs_the_servers_and_a_later_one_does_not(kit: ServiceKit) -> None:
    """A state directory that was never in the fleet is refused while the engine is away, and nothing is written; one
    that was in it joins when the engine is back."""
    kit.engine.is_away = True
    with pytest.raises(BadFleetOptions, match="fleet: the engine is away"):
        await kit.service("a").join()
    assert not (kit.path / "a").exists()
    kit.engine.is_away = False
    async with kit.running("a"):
        await kit.status("a", lambda one: bool(one.hosts))
    kit.engine.is_away = True
    async with kit.running("a"):
        await kit.status("a", lambda one: bool(one.problem))
        kit.engine.is_away = False
        await kit.status("a", lambda one: not one.problem)


@pytest.mark.parametrize(("difference_s", "text"), [(-120.0, "120 s ahead of"), (120.0, "120 s behind")])
async def test_a_wrong_clock_is_refused(kit: ServiceKit, difference_s: float, text: str) -> None:
    """A host whose clock is more than a minute from the servers' does not join; the message says by how much."""
    kit.engine.clock += difference_s
    with pytest.raises(BadFleetOptions, match=f"the clock of this host is {text} the servers' clock; set it"):
        await kit.service("a").join()
