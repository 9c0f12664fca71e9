"""A task is split while its session tries to start an agent that is not there, longer than its subtasks may take."""

from __future__ import annotations

import pytest

from supervisor.plans.task_control import Verb
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

LIMITS = "limits = { max_consecutive_errors = 10, restarts_max = 10 }"
SCENARIO = lone_plan("split-while-starting", "[settings]", LIMITS)
TIMEOUT_S = 45.0
TRIED_S = 300.0
"""So long, or some seconds more, a session with these limits waits between its launches."""


class Splitter(Foremen):
    """Splits the task when it is claimed, and sees what is on record of its session when it is blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.split_s: float | None = None
        self.blocked: tuple[float, str] | None = None
        """How long after that, and the state of its session then."""

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        task = rows.get("task:w0t0")
        if task is None:
            return
        if self.split_s is None and task.state == "CLAIMED":
            self.split_s = world.now()
            host._group.start_soon(self.foremen[-1].command, Verb.SPLIT, "w0t0", world.chance.below("split"), "split")
        elif self.split_s is not None and self.blocked is None and task.state == "BLOCKED":
            self.blocked = (world.now() - self.split_s, rows["w0t0"].state)


def test_its_own_attempt_is_seen_through_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only slot is taken until its session gives up; only then is it blocked on a subtask that had no chance."""
    monkeypatch.setattr(plans, "draw_workers", lambda chance: {"all": {"slots": 1, "roles": plans.ROLES}})
    monkeypatch.setattr(plans._Task, "_options", lambda task: {"timeout_s": TIMEOUT_S, "max_retries": 0})
    monkeypatch.setattr(plans._Task, "_agent", lambda task: plans.MISSING)
    splitter = Splitter()
    report = splitter.intrude(SCENARIO.draw(0), monkeypatch)
    assert report.problems == ()
    assert splitter.blocked is not None
    after_s, state = splitter.blocked
    assert after_s > TRIED_S
    assert state == "Stopped"
