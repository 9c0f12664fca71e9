"""What the subtasks of a task made is not accepted, and somebody resets its run before the task has heard of that."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from supervisor.plans import Plan, TaskConfig
from supervisor.runtime.entity import Refused
from supervisor.simulation import host as hosting
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, prompt_of
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan
from tests.verification.checkers import simulate

SCENARIO = lone_plan("reset-while-looked-at", 'schedules = ["fifo"]')
PART = "w0t0s0"


def _planned(*args: Any, **options: Any) -> Plan:
    """A task of one part. The whole is not accepted at first."""
    plan = plans.draw_plan(*args, **options)
    task_scripts = args[4]
    task_scripts.add(TaskScript("w0t0", checks=(False, True)))
    task_scripts.add(TaskScript(PART))
    given: dict[str, Any] = {
        "id": "w0t0",
        "agent": plans.WORKER,
        "prompt": prompt_of("w0t0"),
        "max_retries": 1,
        "acceptance": ({"command": (plans.CHECK, "w0t0")},),
        "subtasks": ({"id": PART, "agent": plans.WORKER, "prompt": prompt_of(PART)},),
    }
    tasks = (TaskConfig.model_validate(given),)
    return plan.model_copy(update={"tasks": tasks, "workers": {}, "approve_plan": False, "validation": ()})


class Resetter(Foremen):
    """Resets the run as soon as its circuit is open, which its job has not heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.resets = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        run, job = (world.disk.entities.get(f"{kind}:w0t0") for kind in ("run", "job"))
        if run is None or job is None or self.resets or world.killed.is_set():
            return
        if (run.state, job.state) == ("CIRCUIT_OPEN", "validating"):
            self.resets += 1
            host._group.start_soon(self._reset)

    async def _reset(self) -> None:
        with suppress(Refused):  # it is tried again by then
            await self.foremen[-1]._control.reset("w0t0", by="operator")


def test_its_run_rests_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not begun anew by somebody who came too late: nothing is left of it when the plan is over."""
    monkeypatch.setattr(hosting, "draw_plan", _planned)
    resetter = Resetter()
    resetter.listen(monkeypatch)
    report = simulate(SCENARIO.draw(1), intrude=resetter)
    assert resetter.resets == 1
    assert report.problems == ()
