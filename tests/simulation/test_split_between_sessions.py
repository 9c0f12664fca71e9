"""A task whose session has ended is split at any moment of the way to its next one: no session works on it that does
not hold it on record."""

from __future__ import annotations

import pytest

from supervisor.plans.task_control import Verb
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("split-between-sessions", 'schedules = ["fifo"]', "commit_s = 0.01")
LIFECYCLE = {"max_attempts": 3, "base_retry_delay": 0.5, "circuit_breaker": {"enabled": False, "probes_max": 0}}
MOMENTS = range(40)


class Splitter(Foremen):
    """Ends the session of the task as that waits for its next attempt, and splits it so many steps after its run is to
    be tried again."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after
        self.closed = self.split = False
        self.sessions = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        run, job = rows.get("run:w0t0"), rows.get("job:w0t0")
        if run is None or job is None:
            return
        self.sessions = 1 + ("w0t0-2" in rows)
        if run.state == "RETRYING" and not self.closed:
            self.closed = True
            host._group.start_soon(self._close, host)
        if not self.closed or job.state not in ("queued", "running"):
            return
        self._left -= 1
        if self._left < 0 and not self.split:
            self.split = True
            chance = world.chance.below("splitter")
            host._group.start_soon(self.foremen[-1].command, Verb.SPLIT, "w0t0", chance, "splitter")

    @staticmethod
    async def _close(host: Host) -> None:
        await host._sup.close_session("w0t0", reason="enough of it")


def test_who_works_on_it_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.BUSY, Way.DONE)))
    monkeypatch.setattr(plans, "_lifecycle", lambda chance: LIFECYCLE)
    monkeypatch.setattr(plans._Task, "_options", lambda task: {"max_retries": 0})
    drawn, sessions = SCENARIO.draw(4), set[int]()
    for after in MOMENTS:
        splitter = Splitter(after)
        report = splitter.intrude(drawn, monkeypatch)
        assert report.problems == (), f"after {after} steps"
        assert splitter.split, f"after {after} steps"
        sessions.add(splitter.sessions)
    assert sessions == {1, 2}  # it was split before there was another one, and after
