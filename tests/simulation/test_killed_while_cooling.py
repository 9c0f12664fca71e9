"""A supervisor is killed while a session cools down: how often that failed of late is counted as before."""

from __future__ import annotations

import pytest

from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "cooling"
[load]
customers = 1
turns = 2
plans = 0.0
[agents]
acp = 1.0
command = 0.0
inprocess = 0.0
[faults]
kinds = ["agent.provider_error"]
rates = { "agent.provider_error" = 1.0 }
[world]
operators = 0
schedules = ["fifo"]
[settings.recovery]
sessions = "restart"
"""


class Killer:
    """Kills the first supervisor while the session cools down, and looks at what the second one makes of it."""

    def __init__(self) -> None:
        self.before: list[float] = []
        self.after: list[float] = []

    def __call__(self, number: int, world: World, host: Host) -> None:
        row = world.disk.entities.get("c0")
        if world.killed.is_set() or row is None or row.state != "CoolingDown":
            return
        entity = host._sup.registry.entities.get("c0")
        if world.lives == 1 and entity is not None:
            self.before.append(entity.since_s)
            world.kill()
        elif world.lives == 2 and entity is not None and not self.after:
            self.after.append(entity.since_s)


def test_it_cools_down_since_it_failed() -> None:
    """Not since for ever: what failed long ago is no failure of late."""
    killer = Killer()
    report = simulate(parsed("cooling", SCENARIO).draw(1), intrude=killer)
    assert report.problems == ()
    assert killer.before
    assert killer.after == pytest.approx(killer.before, abs=0.1)
