"""A task is split at any moment of the end of an attempt that failed for good: it is split and waits for its subtasks,
or it has failed and the split is refused; its plan is not given up for it."""

from __future__ import annotations

import pytest

from supervisor.plans.task_control import Verb
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("split-as-it-fails", 'schedules = ["fifo"]', "commit_s = 0.01")
LIFECYCLE = {"max_attempts": 1, "circuit_breaker": {"enabled": False, "probes_max": 0}}
MOMENTS = range(60)


class Splitter(Foremen):
    """Splits the task so many steps after the turn of its agent has failed."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after
        self.split = False
        self.state = ""

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        turn, task = rows.get("w0t0:t1"), rows.get("task:w0t0")
        if turn is None or task is None or turn.state not in ("FAILED", "REAPED"):
            return
        self.state = task.state
        self._left -= 1
        if self._left < 0 and not self.split:
            self.split = True
            chance = world.chance.below("splitter")
            host._group.start_soon(self.foremen[-1].command, Verb.SPLIT, "w0t0", chance, "splitter")


def test_it_waits_for_them_or_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.PERMANENT,)))
    monkeypatch.setattr(plans, "_lifecycle", lambda chance: LIFECYCLE)
    monkeypatch.setattr(plans._Task, "_options", lambda task: {"max_retries": 0})
    drawn, ended = SCENARIO.draw(4), dict[str, int]()
    for after in MOMENTS:
        splitter = Splitter(after)
        report = splitter.intrude(drawn, monkeypatch)
        assert report.problems == (), f"after {after} steps"
        assert splitter.split, f"after {after} steps"
        ended[splitter.state] = ended.get(splitter.state, 0) + 1
    assert ended.keys() >= {"CLOSED", "FAILED"}, ended
