"""A supervisor is killed when a turn is there and has no agent yet: the next one goes on with that very turn."""

from __future__ import annotations

from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "opened-before-a-kill"
[load]
customers = 1
turns = 1
[agents]
acp = 1.0
command = 0.0
inprocess = 0.0
[faults]
kinds = ["agent.asks_in_vain"]
rates = { "agent.asks_in_vain" = 1.0 }
[world]
operators = 0
schedules = ["fifo"]
"""


class Killer:
    """Kills the first supervisor when its first turn is claimed, and has not begun."""

    def __init__(self) -> None:
        self.kills = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities.values()
        if self.kills == 0 and any((row.kind, row.state) == ("turn", "CLAIMING") for row in rows):
            self.kills += 1
            world.kill()


def test_it_is_bounded_like_any_other() -> None:
    """Whose agent asks its model in vain is noticed, and that very turn fails by it."""
    lines: list[str] = []
    killer = Killer()
    report = simulate(parsed("opened-before-a-kill", SCENARIO).draw(1), intrude=killer, tell=lines.append)
    assert killer.kills == 1
    assert report.problems == ()
    asked = next(one for one in lines if '"ModelAskedInVain"' in one)
    assert '"turn":"c0:t1"' in asked
    failed = next(one for one in lines if '"entity_id":"c0:t1"' in one and '"to_status":"FAILED"' in one)
    assert "the agent asks its model in vain" in failed
