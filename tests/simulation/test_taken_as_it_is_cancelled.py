"""A task is taken from whoever works on it as its parent is cancelled, and with it the task: who took it away hears so
at once, and not when it has long been cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.plans import Plan, TaskConfig
from supervisor.plans.task_control import Verb
from supervisor.simulation import host as hosting
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way, prompt_of
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("taken-as-it-is-cancelled", 'schedules = ["fifo"]', "commit_s = 0.01")
PART = "w0t0s0"
MOMENTS = range(0, 120, 6)


def _planned(*args: Any, **options: Any) -> Plan:
    """A task of one part, which hangs; what that did is taken back, which takes its time."""
    plan = plans.draw_plan(*args, **options)
    if args[4].of(PART) is None:
        args[4].add(TaskScript("w0t0"))
        args[4].add(TaskScript(PART, (Way.HANGS,)))
    said = {"rollback": True, "files": plans.FILES[:1]}
    part = {"id": PART, "agent": plans.WORKER, "prompt": prompt_of(PART), **said}
    given: dict[str, Any] = {"id": "w0t0", "agent": plans.WORKER, "prompt": prompt_of("w0t0"), "subtasks": (part,)}
    lifecycle = plan.task_lifecycle.model_copy(update={"cleanup_on_cancel": False})
    one = {"tasks": (TaskConfig.model_validate(given),), "workers": {}, "approve_plan": False, "validation": ()}
    return plan.model_copy(update={**one, "task_lifecycle": lifecycle})


class Operator(Foremen):
    """Cancels the task when its part is worked on, and so many steps later has that taken away."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after
        self.cancelled = self.taken = False
        self.states: list[str] = []

    def __call__(self, number: int, world: World, host: Host) -> None:
        part = world.disk.entities.get(f"task:{PART}")
        if part is None or (part.state != "IN_PROGRESS" and not self.cancelled):
            return
        if not self.states or self.states[-1] != part.state:
            self.states.append(part.state)
        if not self.cancelled:
            self.cancelled = True
            self._command(host, world, Verb.CANCEL, "w0t0")
        self._left -= 1
        if self._left < 0 and not self.taken:
            self.taken = True
            self._command(host, world, Verb.REQUEUE, PART)

    def _command(self, host: Host, world: World, verb: Verb, name: str) -> None:
        host._group.start_soon(self.foremen[-1].command, verb, name, world.chance.below(name), f"operator.{name}")


def test_who_took_it_away_hears_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "draw_plan", _planned)
    drawn, ways = SCENARIO.draw(1), set[tuple[str, ...]]()
    for after in MOMENTS:
        operator = Operator(after)
        report = operator.intrude(drawn, monkeypatch)
        assert report.problems == (), f"after {after} steps"
        ways.add(tuple(operator.states))
    assert ways == {("IN_PROGRESS", "OPEN", "CANCELLED"), ("IN_PROGRESS", "CANCELLED")}  # in time, and too late
