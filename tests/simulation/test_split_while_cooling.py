"""A task is split while it cools down: the next attempt is its subtasks', and it waits for them."""

from __future__ import annotations

import pytest

from supervisor.plans.task_control import Verb
from supervisor.simulation.host import Host
from supervisor.simulation.works import plans
from supervisor.simulation.works.task_scripts import TaskScript, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen, lone_plan

SCENARIO = lone_plan("split-while-cooling", 'schedules = ["fifo"]')


class Splitter(Foremen):
    """Splits the task when it cools down, and looks at when it and its subtasks are done."""

    def __init__(self) -> None:
        super().__init__()
        self.split = False
        self.states: list[tuple[str, ...]] = []

    def __call__(self, number: int, world: World, host: Host) -> None:
        rows = world.disk.entities
        run, job, task = (rows.get(f"{kind}:w0t0") for kind in ("run", "job", "task"))
        if run is None or job is None or task is None:
            return
        if not self.split and (run.state, job.state) == ("CIRCUIT_OPEN", "running"):
            self.split = True
            chance = world.chance.below("splitter")
            host._group.start_soon(self.foremen[-1].command, Verb.SPLIT, "w0t0", chance, "splitter")
        elif task.state == "DONE" and "task:w0t0s7" in rows and not self.states:
            self.states.append(tuple(rows[f"task:w0t0s{part}"].state for part in (7, 8)))


def test_it_waits_for_its_subtasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its circuit has cooled down before they are closed."""
    ways = {"w0t0": (Way.BUSY, Way.DONE)}
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, ways.get(name, (Way.DONE,))))
    drawn, split = SCENARIO, 0
    for seed in range(40):
        splitter = Splitter()
        report = splitter.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        assert splitter.states in ([], [("CLOSED", "CLOSED")]), f"seed {seed}"
        split += len(splitter.states)
    assert split >= 3


class Loser(Splitter):
    """The same; its worker is lost while it is being recorded that its subtasks have the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        super().__call__(number, world, host)
        rows = world.disk.entities
        run, job = (rows.get(f"{kind}:w0t0") for kind in ("run", "job"))
        if self.split and not self.lost and run is not None and job is not None:
            self.lost = (run.state, job.state) == ("VALIDATING", "running")
            if self.lost:
                runner = self.foremen[-1].runner
                claim = runner.plan_run.executions["w0t0"].claim
                assert claim is not None
                runner.plan_run.take_from_lost_worker(claim.worker_id, ["w0t0"])


def test_it_needs_no_worker_to_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given it again, who could do nothing with it: its plan goes on to its end."""
    ways = {"w0t0": (Way.BUSY, Way.DONE)}
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: TaskScript(name, ways.get(name, (Way.DONE,))))
    drawn, lost = SCENARIO, 0
    for seed in range(40):
        loser = Loser()
        report = loser.intrude(drawn.draw(seed), monkeypatch)
        assert report.problems == (), f"seed {seed}"
        lost += loser.lost
    assert lost >= 2
