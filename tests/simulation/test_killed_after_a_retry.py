"""The run of a task is over when its supervisor is killed, and the task had not heard of that. An earlier run that
rests in its open circuit says nothing of this try."""

from __future__ import annotations

from contextlib import suppress

import pytest

from supervisor.runtime.entity import Refused
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen
from tests.verification.checkers import simulate

SCENARIO = """
name = "killed-after-a-retry"
[load]
customers = 1
works = 1.0
tasks = 1
saves = {saves}
[faults]
kinds = []
[world]
operators = 0
schedules = ["fifo"]
"""


class Killer:
    """Kills the first supervisor when a run of the task is completed, and the task is not."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        if world.lives > 1 or world.killed.is_set() or "run:w0t0-2" not in rows:
            return
        if rows["run:w0t0-2"].state == "COMPLETED" and rows["task:w0t0"].state == "IN_PROGRESS":
            self.runs = [rows["run:w0t0"].state, rows["run:w0t0-2"].state]
            world.kill()


@pytest.mark.parametrize("saves", [0.0, 1.0])
def test_the_last_run_counts(saves: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was completed, so the task is: it does not fail once more by what the run before had failed with."""
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.PERMANENT, Way.DONE)))
    drawn, tried = parsed("killed-after-a-retry", SCENARIO.format(saves=saves)), 0
    for seed in range(20):
        killer = Killer()
        report = simulate(drawn.draw(seed), intrude=killer)
        assert report.problems == (), f"seed {seed}"
        if killer.runs:
            assert killer.runs == ["CIRCUIT_OPEN", "COMPLETED"]
            assert report.reached["task: IN_PROGRESS failed FAILED"] == 1, f"seed {seed}"
            tried += 1
    assert tried >= 3


class Stopper(Foremen):
    """Resets a run that cools down in its worker's slot, has the supervisor end then, and kills it when that has
    cancelled the run, and the task is about to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        run, job, task = (rows.get(f"{kind}:w0t0") for kind in ("run", "job", "task"))
        if world.lives > 1 or world.killed.is_set() or run is None or job is None or task is None:
            return
        if not self.done and (run.state, job.state) == ("CIRCUIT_OPEN", "running"):
            self.done.append("reset")
            host._group.start_soon(self._reset, world, host)
        elif run.state == "CANCELLED" and task.state == "IN_PROGRESS":
            self.done.append("killed")
            world.kill()

    async def _reset(self, world: World, host: Host) -> None:
        with suppress(Refused):  # it had failed for good
            await self.foremen[-1]._control.reset("w0t0", by="operator")
            world.told_to_end(now=False)
            await host._sup.stop()


def test_a_run_that_was_cancelled_fails_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor was ending, and did not live to say so."""
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.PERMANENT, Way.DONE)))
    drawn, tried = parsed("killed-after-a-retry", SCENARIO.format(saves=0.0)), 0
    for seed in range(20, 30):
        stopper = Stopper()
        report = stopper.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        tried += "killed" in stopper.done
    assert tried >= 1
