"""A supervisor is killed when a session has cooled down, and a prompt waits for the end of the turn that failed, which
is still cleaned up after: that it has cooled is on record, and happens no second time."""

from __future__ import annotations

import pytest

from supervisor.embedding.runtime import Session
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.simulation.test_asked_beside import Asker
from tests.verification.checkers import simulate

SCENARIO = """
name = "cooled"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = ["work.hangs", "process.ignores_cancel"]
rates = { "work.hangs" = 1.0, "process.ignores_cancel" = 1.0 }
[world]
operators = 0
schedules = ["fifo", "shuffle", "pct"]
[settings.limits]
backoff_base_ms = 1
[settings.recovery]
sessions = "restart"
"""


class Killer(Asker):
    """Asks the session for something when it has cooled down, and kills its supervisor when that is durable; or when it
    is owed that it goes on with that, if it is so *late*."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late

    def __call__(self, number: int, world: World, host: Host) -> None:
        row = world.disk.entities.get("w0t0")
        if row is None or row.state != "CoolingDown" or world.lives > 1 or world.killed.is_set():
            return
        cooled, asked = b'"cooled":true' in row.data, b"what is this about?" in row.data
        if cooled and not self.asked:
            self.asked.append(row.id)
            host._group.start_soon(self._ask, Session(host._sup, row.id))
        if asked and cooled is not self.late:
            world.kill()


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("late", [False, True])
def test_it_goes_on_once(seed: int, late: bool) -> None:
    killer = Killer(late=late)
    report = simulate(parsed("cooled", SCENARIO).draw(seed), intrude=killer)
    assert report.problems == ()
    assert killer.asked == ["w0t0"]
    assert report.lives > 2
