"""A task is taken away after a slot was reserved for it, and before anybody has begun: the slot is free again."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from supervisor.simulation import host as hosts
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from supervisor.work.plan_runner import PlanRunner
from tests.verification.checkers import simulate

SCENARIO = """
name = "taken-before-it-began"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = []
[world]
operators = 0
"""


class Taker:
    """Stands in line for the task before its worker does, and takes it away when that has claimed it."""

    def __init__(self) -> None:
        self.runners: list[PlanRunner] = []
        self.waits = self.has_taken = False

    def runner(self, *given: Any, **more: Any) -> PlanRunner:
        self.runners.append(PlanRunner(*given, **more))
        return self.runners[-1]

    def __call__(self, number: int, world: World, host: Host) -> None:
        job = world.disk.entities.get("job:w0t0")
        if not self.waits and job is not None and self.runners[-1].plan_run.executions["w0t0"].lock.locked():
            self.waits = True
            host._group.start_soon(self._take)

    async def _take(self) -> None:
        runner = self.runners[-1]
        execution, backlog = runner.plan_run.executions["w0t0"], runner.plan_run.backlog
        async with execution.lock:
            await anyio.sleep(1.0)
            if backlog.holder("w0t0") is not None and execution.active is None:
                self.has_taken = True
                await runner.scheduler.attempt_runner.take(execution, "somebody else is to have it")


def test_its_slot_is_for_the_next_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was the only slot there is, and nothing else happens that would wake who claims."""
    drawn, taken = parsed("taken-before-it-began", SCENARIO), 0
    for seed in range(16, 28):
        taker = Taker()
        with monkeypatch.context() as patched:
            patched.setattr(hosts, "PlanRunner", taker.runner)
            report = simulate(drawn.draw(seed), intrude=taker)
        assert report.problems == (), f"seed {seed}"
        taken += taker.has_taken
        told = [
            one for name, one in report.reached.items() if name.startswith("worker: ") and " task_assigned " in name
        ]
        assert sum(told) >= report.reached["job: queued worker_started running"], f"seed {seed}"
    assert taken >= 3
