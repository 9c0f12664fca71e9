"""What a session goes on with under another supervisor is taken away before a worker has it: its next attempt waits for
its delay all the same, also where its subtasks have the rest of it by then."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from supervisor.plans import Plan
from supervisor.plans.task_control import Verb
from supervisor.runtime.entity import Refused
from supervisor.simulation import host as hosting
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("requeued-at-take-over", "commit_s = 0.1", "[settings.recovery]", 'sessions = "restart"')


def _planned(attempts: int, *args: Any, **options: Any) -> Plan:
    """One whose retries, of so many attempts, wait for long."""
    plan = plans.draw_plan(*args, **options)
    circuit = plan.task_lifecycle.circuit_breaker.model_copy(update={"cooldown_period": 60.0, "probes_max": 2})
    slow = {"base_retry_delay": 60.0, "max_retry_delay": 60.0, "max_attempts": attempts, "circuit_breaker": circuit}
    return plan.model_copy(update={"task_lifecycle": plan.task_lifecycle.model_copy(update=slow)})


class Operator(Foremen):
    """Kills the supervisor while the task is worked on, takes it away from the next one before a worker has it, and
    may split it then."""

    def __init__(self, verbs: list[Verb], run: str) -> None:
        super().__init__()
        self._verbs, self._run = verbs, run
        self.waited = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        run, job, task = (world.disk.entities.get(f"{kind}:w0t0") for kind in ("run", "job", "task"))
        if world.killed.is_set() or run is None or job is None or task is None:
            return
        task_script = world.task_scripts.of("w0t0")
        tries = len(task_script.attempts) if task_script is not None else 0
        if world.lives == 1 and tries == 2 and (run.state, job.state) == ("IN_PROGRESS", "running"):
            world.kill()
        elif world.lives == 2 and self._verbs and job.state == "running" and self._is_taken_further():
            host._group.start_soon(self._command, self._verbs, world)
            self._verbs = []
        elif world.lives == 2 and (run.state, job.state) == (self._run, "queued"):
            self.waited = True

    def _is_taken_further(self) -> bool:
        runner = self.foremen[-1].runner
        return len(self.foremen) == 2 and runner.begun.is_set() and runner.plan_run.executions["w0t0"].lock.locked()

    async def _command(self, verbs: list[Verb], world: World) -> None:
        with suppress(Refused):  # it was done too soon
            for verb in verbs:
                await self.foremen[-1].command(verb, "w0t0", world.chance.below(verb), f"operator.{verb}")


@pytest.mark.parametrize("verbs", [[Verb.REQUEUE], [Verb.REQUEUE, Verb.SPLIT]])
@pytest.mark.parametrize(("attempts", "run"), [(3, "RETRYING"), (1, "CIRCUIT_OPEN")])
def test_it_waits_for_its_delay(attempts: int, run: str, verbs: list[Verb], monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"w0t0": (Way.BUSY, Way.HANGS, Way.DONE)}
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, ways.get(name, (Way.DONE,))))
    monkeypatch.setattr(hosting, "draw_plan", partial(_planned, attempts))
    drawn, waited = SCENARIO, 0
    for seed in range(20):
        operator = Operator(verbs, run)
        report = operator.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        waited += operator.waited
    assert waited >= 3
