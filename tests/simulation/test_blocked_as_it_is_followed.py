"""A task is split as it is worked on, and its supervisor killed: the next one finds that its subtask takes too long,
and its own turn under way, which no worker has taken up yet."""

from __future__ import annotations

import pytest

from supervisor.plans.task_control import Verb
from supervisor.simulation import running
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from supervisor.work.workers import WorkerPool
from tests.simulation.foremen import Foremen, lone_plan
from tests.verification.checkers import simulate

SCENARIO = lone_plan("blocked-as-it-is-followed", "[settings]", 'recovery = { sessions = "restart" }')
TIMEOUT_S = 45.0
DOWN_S = 10.0
BUSY_S = 1.0
"""For so long the workers of the next supervisor have no slot: its agent begins again after that."""


class Splitter(Foremen):
    """Splits the task as its agent works on it, and kills the supervisor shortly before that takes too long."""

    def __init__(self) -> None:
        super().__init__()
        self.split_s: float | None = None
        self.free_s: float | None = None
        self.busy = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        task = world.disk.entities.get("task:w0t0")
        if world.lives == 2:
            self._free(world.now())
        if world.lives > 1 or world.killed.is_set() or task is None:
            return
        if self.split_s is None and task.state == "IN_PROGRESS":
            self.split_s = world.now()
            host._group.start_soon(self.foremen[-1].command, Verb.SPLIT, "w0t0", world.chance.below("split"), "split")
        elif self.split_s is not None and world.now() > self.split_s + TIMEOUT_S - DOWN_S / 2:
            self.busy = True
            world.kill()

    def _free(self, now_s: float) -> None:
        """The workers of the second supervisor have slots by and by."""
        if not self.busy or len(self.foremen) < 2 or not self.foremen[-1].runner.begun.is_set():
            return
        self.free_s = self.free_s or now_s + BUSY_S
        if now_s > self.free_s:
            self.busy = False
            self.foremen[-1].runner.plan_run.wake()


def test_it_has_no_agent_while_it_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own turn is seen through first."""
    monkeypatch.setattr(running, "RESTART_S", DOWN_S)
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, (Way.HANGS, Way.DONE)))
    monkeypatch.setattr(plans._Task, "_options", lambda task: {"timeout_s": TIMEOUT_S})
    drawn, blocked, free = SCENARIO, 0, WorkerPool.free
    for seed in range(8):
        splitter = Splitter()
        with monkeypatch.context() as patched:
            splitter.listen(patched)
            patched.setattr(WorkerPool, "free", lambda pool, at=splitter: [] if at.busy else free(pool))
            report = simulate(drawn.draw(seed), intrude=splitter)
        assert report.problems == (), f"seed {seed}"
        blocked += report.reached.get("task: WAITING_FOR_SUBTASKS subtask_timed_out BLOCKED", 0)
    assert blocked >= 3
