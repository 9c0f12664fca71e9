"""Mirroring over three real servers that are killed in turn: a replica has each record once, in order."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.fleet.options import FleetOptions
from supervisor.fleet.ports import EngineUnavailable
from supervisor.fleet.replicas import Replicas
from tests.fleet_kit import nats_servers
from tests.unit.fleet.test_mirror import Host, content, replica, take_all

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

RECORDS = 60


async def test_nothing_is_lost_while_servers_are_killed(tmp_path: Path) -> None:
    """A host records and mirrors while each server is killed once and started again: its replica is its journal."""
    with nats_servers(tmp_path / "nats", 3) as servers:
        from supervisor.fleet.nats_engine import NatsEngine

        options = {name: FleetOptions(servers=servers.addresses, host=name) for name in ("a", "b")}
        engines = {name: NatsEngine(one) for name, one in options.items()}
        try:
            host = await Host.open(engines["a"], tmp_path / "a")
            replicas = Replicas(engines["b"].log, tmp_path / "b", "b")
            for number in range(1, RECORDS + 1):
                await host.record("s", number)
                if number % 20 == 1:
                    if number > 1:
                        servers.start(number // 20 - 1)
                        servers.wait()
                    servers.kill(number // 20)
                try:
                    await host.mirror.step()
                    await replicas.step()
                except EngineUnavailable:
                    continue  # the records wait; the next step goes on
            servers.start(2)
            servers.wait()
            with anyio.fail_after(120):
                while host.mirror.is_behind:
                    try:
                        await host.mirror.step()
                    except EngineUnavailable:
                        await anyio.sleep(0.1)
            await take_all(replicas)
            assert replica(tmp_path / "b") == content(tmp_path / "a" / "journal.db")
            assert engines["a"].replicas == 3
            await replicas.close()
            await host.journal.close()
        finally:
            for engine in engines.values():
                await engine.close()
