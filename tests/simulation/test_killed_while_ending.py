"""A critical task has failed, and the supervisor is killed while the others are being cancelled: their workstream has
ended, so nobody goes on with them, and the next run of the plan has them to itself."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.plans import Plan, TaskConfig
from supervisor.simulation import host as hosting
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way, prompt_of
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "killed-while-ending"
[load]
customers = 1
works = 1.0
tasks = 2
[faults]
kinds = []
[world]
operators = 0
schedules = ["fifo"]
[settings.recovery]
sessions = "restart"
"""
COMMITS = 6
"""After which the supervisor is killed: the cancelling of a task takes as many."""


def _task_script(name: str, faults: object) -> TaskScript:
    return TaskScript(name, (Way.PERMANENT if name == "w0t0" else Way.HANGS, Way.DONE))


def _planned(*args: Any, **options: Any) -> Plan:
    """A task that the plan is worth nothing without, and one that takes its time."""
    plan = plans.draw_plan(*args, **options)
    tasks = [
        TaskConfig(id=name, agent=plans.WORKER, prompt=prompt_of(name), critical=name == "w0t0", max_retries=0)
        for name in ("w0t0", "w0t1")
    ]
    return plan.model_copy(update={"tasks": tuple(tasks), "workers": {}, "max_sessions": 2, "approve_plan": False})


class Killer:
    """Kills the first supervisor so many commits after the workstream has failed, if the other task is open then."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._failed_at: int | None = None
        self.kills = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows, commits = world.disk.entities, world.disk.commits
        if world.killed.is_set() or "workstream:w0" not in rows or rows["workstream:w0"].state != "failed":
            return
        self._failed_at = commits if self._failed_at is None else self._failed_at
        if world.lives == 1 and commits - self._failed_at >= self._at and rows["task:w0t1"].state == "IN_PROGRESS":
            self.kills += 1
            world.kill()


def test_nobody_works_beside_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who held a task of the run that has ended is ended, as is the task."""
    monkeypatch.setattr(plans, "draw_errand", _task_script)
    monkeypatch.setattr(hosting, "draw_plan", _planned)
    drawn, kills = parsed("killed-while-ending", SCENARIO).draw(1), 0
    for at in range(COMMITS):
        killer = Killer(at)
        assert simulate(drawn, intrude=killer).problems == (), f"killed {at} commits after the end"
        kills += killer.kills
    assert kills >= 2
