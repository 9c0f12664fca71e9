"""A take-over on a slow disk, of many sessions that nobody continues: all are stopped at once, so each of them has its
last record in time, and after those of what is below it."""

from __future__ import annotations

import pytest

from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "taken-over-slowly"
[load]
customers = 12
turns = 1
plans = 0.0
[agents]
inprocess = 1.0
[agents.shape]
steps = [3, 3]
delegation = 0.3
[faults]
kinds = []
[world]
operators = 0
commit_s = {commit_s}
schedules = ["fifo", "shuffle", "pct"]
[settings.recovery]
sessions = "stop"
"""


class Killer:
    """Kills the first supervisor when many of its sessions are at work."""

    def __call__(self, number: int, world: World, host: Host) -> None:
        at_work = [row for row in world.disk.living.values() if row.kind == "agent" and row.state == "working"]
        if world.lives == 1 and len(at_work) >= 6 and not world.killed.is_set():
            world.kill()


@pytest.mark.parametrize("commit_s", [5.0, 8.0])
def test_nobody_ends_before_who_is_below(commit_s: float) -> None:
    for seed in range(3):
        report = simulate(parsed("slow", SCENARIO.format(commit_s=commit_s)).draw(seed), intrude=Killer())
        assert report.problems == (), f"seed {seed}"
        assert report.reached["session: Running FatalError Stopped"] >= 4
