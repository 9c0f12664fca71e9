"""A task is split while it waits for its next try, and blocked on its subtask when that delay is over."""

from __future__ import annotations

from contextlib import suppress

import pytest

from supervisor.runtime.entity import Refused
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.operator_bot import OperatorBot
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("blocked-while-delayed")
COOLDOWN_S = 60.0
LIFECYCLE = {
    "max_attempts": 3,
    "default_timeout": 2 * COOLDOWN_S,
    "circuit_breaker": {"enabled": True, "cooldown_period": COOLDOWN_S, "probes_max": 2},
}


class Splitter(Foremen):
    """Splits the task when its circuit is open, into one that hangs for longer than that, and that its parent waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_split = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        run, job = (world.disk.entities.get(f"{kind}:w0t0") for kind in ("run", "job"))
        if self.is_split or run is None or job is None:
            return
        if (run.state, job.state) == ("CIRCUIT_OPEN", "retrying"):
            self.is_split = True
            host._group.start_soon(self._split)

    async def _split(self) -> None:
        foreman = self.foremen[-1]
        part = foreman._part("w0t0s7")
        task_script = foreman._task_script("w0t0s7")
        task_script.ways = (Way.HANGS, Way.DONE)
        with suppress(Refused):  # it was split by its plan
            await foreman._control.split("w0t0", [part], by="operator")


async def _knows_nothing(foreman: OperatorBot, name: str) -> None:
    pass


def test_it_goes_on_when_the_subtask_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody had waited for its delay while it was blocked; somebody does then."""
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.PERMANENT, Way.DONE)))
    monkeypatch.setattr(plans, "_lifecycle", lambda chance: LIFECYCLE)
    monkeypatch.setattr(plans._Task, "_options", lambda task: {"timeout_s": COOLDOWN_S - 15.0})
    monkeypatch.setattr(OperatorBot, "_unblock", _knows_nothing)
    drawn, blocked = SCENARIO, 0
    for seed in range(12):
        splitter = Splitter()
        report = splitter.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        blocked += report.reached.get("task: WAITING_FOR_SUBTASKS subtask_timed_out BLOCKED", 0)
    assert blocked >= 3
