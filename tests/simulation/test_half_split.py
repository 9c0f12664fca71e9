"""A supervisor is killed when a task's subtasks are born, and before it is split into them: they end when the plan
goes on, and the task is done as if nothing had been asked."""

from __future__ import annotations

import pytest

from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "half-split"
[load]
customers = 1
works = 1.0
tasks = [1, 2]
[faults]
kinds = ["host.splits"]
[faults.rates]
"host.splits" = 1.0
[world]
operators = 0
schedules = ["fifo"]
commit_s = 0.01
[settings.recovery]
sessions = "restart"
"""


class Killer:
    """Kills the first supervisor as soon as a subtask is born that no record of a split names."""

    def __init__(self) -> None:
        self.born: set[str] = set()
        self.ended: set[str] = set()

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        if world.lives == 1 and not world.killed.is_set():
            self.born = {one for one, row in rows.items() if row.kind == "task" and self._is_stray(row.data, world)}
            if self.born:
                world.kill()
        elif world.lives == 2 and not rows["workstream:w0"].ended:
            self.ended |= {one for one in self.born if rows[one].state == "CANCELLED"}

    @staticmethod
    def _is_stray(data: bytes, world: World) -> bool:
        """Whether a task is a part of one that is still whole."""
        above = data.partition(b'"part_of":"')[2].partition(b'"')[0].decode()
        return bool(above) and world.disk.entities[above].state in ("PLANNED", "OPEN", "CLAIMED", "IN_PROGRESS")


@pytest.mark.parametrize("seed", [3, 4, 6])
def test_subtasks_of_no_split_end(seed: int) -> None:
    killer = Killer()
    report = simulate(parsed("half-split", SCENARIO).draw(seed), intrude=killer)
    assert report.problems == ()
    assert killer.born
    assert killer.ended == killer.born
