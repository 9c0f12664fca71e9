"""What a blocked task waits for is said to be there as another supervisor takes its plan over: it goes on once, not as
what was left and as what was commanded, however long the rest of the plan takes to be put in order."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from supervisor.plans import Plan, TaskConfig
from supervisor.plans.task_control import Verb
from supervisor.runtime.entity import Refused
from supervisor.simulation import host as hosting
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way, prompt_of
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("unblocked-at-take-over", "commit_s = 0.1")
OTHERS = ("w0t1", "w0t2", "w0t3")


def _planned(*args: Any, **options: Any) -> Plan:
    """Tasks that hang at first, all of them at once."""
    plan, tasks = plans.draw_plan(*args, **options), []
    for name in ("w0t0", *OTHERS):
        if args[4].of(name) is None:
            args[4].add(TaskScript(name, (Way.HANGS, Way.DONE)))
        tasks.append(TaskConfig(id=name, agent=plans.WORKER, prompt=prompt_of(name)))
    one = {"tasks": tuple(tasks), "workers": {}, "max_sessions": 8, "approve_plan": False, "validation": ()}
    return plan.model_copy(update=one)


class Operator(Foremen):
    """Blocks one task and splits the others as agents work on them, kills the supervisor then, and unblocks the first
    as soon as the next one has begun the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = self.unblocked = False
        self.jobs = set[str]()

    def __call__(self, number: int, world: World, host: Host) -> None:
        tasks = [world.disk.entities.get(f"task:{name}") for name in ("w0t0", *OTHERS)]
        states = [one.state for one in tasks if one is not None]
        if world.killed.is_set():
            return
        if not self.stopped and states == ["IN_PROGRESS"] * 4:
            self.stopped = True
            for name in OTHERS:
                self._command(host, world, Verb.SPLIT, name)
            host._group.start_soon(self._block)
        elif world.lives == 1 and states == ["BLOCKED", *["WAITING_FOR_SUBTASKS"] * 3]:
            world.kill()
        elif world.lives == 2 and states[0] == "OPEN" and not self.jobs:
            self.jobs.add(world.disk.entities["job:w0t0"].state)
        elif world.lives == 2 and states[0] == "BLOCKED" and not self.unblocked and len(self.foremen) == 2:
            self.unblocked = True
            self._command(host, world, Verb.UNBLOCK, "w0t0")

    def _command(self, host: Host, world: World, verb: Verb, name: str) -> None:
        host._group.start_soon(self.foremen[-1].command, verb, name, world.chance.below(name), f"operator.{name}")

    async def _block(self) -> None:
        with suppress(Refused):  # it was done too soon
            await self.foremen[-1]._control.block("w0t0", ["a key"], by="operator")


def test_it_goes_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "draw_plan", _planned)
    drawn, jobs = SCENARIO, set[str]()
    for seed in range(20):
        operator = Operator()
        report = operator.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        jobs |= operator.jobs
    assert jobs == {"retrying"}  # its lost worker was on record by then
