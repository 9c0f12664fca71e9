"""A host is cancelled while its supervisor takes over, and what it has begun comes to nothing meanwhile: whoever was to
hear of that, and whose actor was cancelled by then, hears of it from the next supervisor."""

from __future__ import annotations

from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "cannot-start"
[load]
customers = 3
turns = 1
plans = 0.0
arrival_s = 0.0
[agents]
acp = 0.0
command = 1.0
inprocess = 0.0
[faults]
kinds = ["process.spawn_error"]
rates = { "process.spawn_error" = 1.0 }
[world]
operators = 0
schedules = ["fifo"]
commit_s = 0.05
crashes_max = 0
[settings.recovery]
sessions = "restart"
"""
MOMENTS = range(180, 420)


class Intruder:
    """Kills the first supervisor as a turn begins, and cancels the host of the second so many steps later."""

    def __init__(self, after: int) -> None:
        self._left = after
        self.states: set[str] = set()
        """Of the session, as its host was cancelled."""

    def __call__(self, number: int, world: World, host: Host) -> None:
        turn = world.disk.entities.get("c0:t1")
        if turn is None or world.killed.is_set():
            return
        if world.lives == 1 and turn.state == "CLAIMING":
            world.kill()
        elif world.lives == 2 and not self.states:
            self._left -= 1
            if self._left < 0:
                self.states.add(world.disk.entities["c0"].state)
                world.cancel()


def test_nobody_waits_for_what_was_not_said() -> None:
    drawn, states = parsed("cannot-start", SCENARIO).draw(1), set[str]()
    for after in MOMENTS:
        intruder = Intruder(after)
        report = simulate(drawn, intrude=intruder)
        assert report.problems == (), f"after {after} steps"
        states |= intruder.states
    assert {"BuildingPrompt", "Spawning", "CoolingDown"} <= states
