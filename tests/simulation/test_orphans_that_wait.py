"""A supervisor is killed while a task waits for another attempt: the one that failed is no work that a crash
interrupted, so it is not taken for done, whatever the policy for orphans says."""

from __future__ import annotations

import pytest

from supervisor.embedding.runtime import Session
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "orphans-that-wait"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = []
[world]
operators = 0
schedules = ["fifo"]
[settings.recovery]
orphans = "done"
"""


class Killer:
    """Kills the first supervisor when the job of the task is in that state; its session works then, or was closed."""

    def __init__(self, state: str) -> None:
        self.state, self.kills, self.closed = state, 0, False

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        job, task, session = (rows.get(f"{kind}w0t0") for kind in ("job:", "task:", ""))
        if world.lives > 1 or world.killed.is_set() or job is None or task is None or session is None:
            return
        if (job.state, task.state) != (self.state, "IN_PROGRESS"):
            return
        if self.state == "running" or session.state == "Stopped":
            self.kills += 1
            world.kill()
        elif not self.closed:
            self.closed = True
            host._group.start_soon(Session(host._sup, "w0t0").close)


@pytest.mark.parametrize(
    ("state", "reached", "never"),
    [
        ("retrying", "task: ORPHANED requeued OPEN", "task: ORPHANED recovered DONE"),
        ("running", "task: ORPHANED recovered DONE", "task: ORPHANED requeued OPEN"),
    ],
)
def test_only_what_was_under_way_counts_as_done(
    state: str, reached: str, never: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had failed is tried again by another session; nothing of either looks alive in the end."""
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.BUSY, Way.DONE)))
    drawn, tried = parsed("orphans-that-wait", SCENARIO), 0
    for seed in range(12):
        killer = Killer(state)
        report = simulate(drawn.draw(seed), intrude=killer)
        assert report.problems == (), f"seed {seed}"
        tried += killer.kills * report.reached.get(reached, 0)
        assert not killer.kills * report.reached.get(never, 0), f"seed {seed}"
    assert tried >= 3
