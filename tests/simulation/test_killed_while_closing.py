"""A supervisor closes with a plan that nobody had taken up, and is killed in the middle of ending that."""

from __future__ import annotations

import pytest

from supervisor.simulation.host import Host, LoadGenerator
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "killed-while-closing"
[load]
customers = 1
works = 1.0
tasks = 3
[faults]
kinds = []
[world]
operators = 0
schedules = ["fifo"]
"""
COMMITS = 30
"""Of the second supervisor: the end of three tasks takes a few each."""


class Killer:
    """Kills the first supervisor as soon as a task is worked on, and the second one at its commit of that number."""

    def __init__(self, at: int) -> None:
        self._at, self._commits = at, 0
        self.kills = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        if world.killed.is_set():
            self._commits = world.disk.commits
        elif self._is_its_moment(world):
            self.kills += 1
            world.kill()

    def _is_its_moment(self, world: World) -> bool:
        if self.kills == 0:
            return any(row.kind == "task" and row.state == "IN_PROGRESS" for row in world.disk.entities.values())
        return self.kills == 1 and world.lives == 2 and world.disk.commits - self._commits >= self._at


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_what_was_being_ended_is_ended(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third one goes on with the plan, or has all of it anew; nobody has a part of it."""

    async def come_back(host: Host, load_generator: LoadGenerator) -> None:
        if host._world.lives == 2:  # somebody ends it before anybody comes for his plan
            host._world.told_to_end(now=False)
            await host._sup.stop()

    monkeypatch.setattr(Host, "_come_back", come_back)
    drawn, kills = parsed("killed-while-closing", SCENARIO).draw(seed), 0
    for at in range(1, COMMITS):
        killer = Killer(at)
        assert simulate(drawn, intrude=killer).problems == (), f"killed at commit {at} of the second supervisor"
        kills += killer.kills - 1
    assert kills >= 10
