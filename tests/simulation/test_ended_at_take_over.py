"""A supervisor takes a plan over, and is told to end before anything of it is tried again: what was to be tried is over
on record, also where nothing of it had been begun."""

from __future__ import annotations

import pytest

from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("ended-at-take-over", "commit_s = 0.1", "[settings.recovery]", 'sessions = "resume"')


class Ender(Foremen):
    """Kills the supervisor when the run of the task is in that state and a worker has it, and ends the next one while
    it is being recorded that this worker is lost."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self.ends = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        run, job, task = (world.disk.entities.get(f"{kind}:w0t0") for kind in ("run", "job", "task"))
        if world.killed.is_set() or run is None or job is None or task is None or world.stop_asked:
            return
        if world.lives == 1 and (run.state, job.state) == (self._run, "running") and task.state != "OPEN":
            world.kill()
        elif world.lives == 2 and job.state == "running" and self._is_taken_further():
            self.ends = True
            world.told_to_end(now=False)
            host._group.start_soon(host._sup.stop)

    def _is_taken_further(self) -> bool:
        runner = self.foremen[-1].runner
        return len(self.foremen) == 2 and runner.begun.is_set() and runner.plan_run.executions["w0t0"].lock.locked()


@pytest.mark.parametrize("run", ["PENDING", "HALF_OPEN"])
def test_its_run_is_over(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = (Way.DONE,) if run == "PENDING" else (Way.BUSY,)
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, ways))
    drawn, ended = SCENARIO, 0
    for seed in range(20):
        ender = Ender(run)
        report = ender.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        ended += ender.ends and bool(report.reached.get(f"run: {run} cancelled CANCELLED"))
    assert ended >= 5
