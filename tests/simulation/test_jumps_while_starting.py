"""The wall clock jumps while a supervisor starts: it is held to what that clock shows when it reads it."""

from __future__ import annotations

from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.simulation.test_killed_while_cooling import SCENARIO
from tests.verification.checkers import simulate

JUMP_S = 600.0
"""Longer than any backoff."""


class Jumper:
    """Kills the first supervisor while the session cools down, and sets the clock before the second one reads it."""

    def __init__(self) -> None:
        self.jumped = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        row = world.disk.entities.get("c0")
        if world.lives == 1 and not world.killed.is_set() and row is not None and row.state == "CoolingDown":
            world.kill()
        elif world.lives == 2 and not self.jumped:
            self.jumped = True
            world.wall.offset_s += JUMP_S


def test_a_jump_before_the_clock_is_read_is_no_breach() -> None:
    """A backoff that is over by the new time goes on at once."""
    jumper = Jumper()
    report = simulate(parsed("cooling", SCENARIO).draw(1), intrude=jumper)
    assert jumper.jumped
    assert report.problems == ()
