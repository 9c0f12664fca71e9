"""A task is split while it cools down: the next attempt is its subtasks', and it waits for them."""

from __future__ import annotations

import pytest

from supervisor.scheduling.control import Verb
from supervisor.simulation.host import Host
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import parsed
from supervisor.simulation.works import plans
from supervisor.simulation.works.errands import Errand, Way
from supervisor.simulation.world import World
from tests.simulation.foremen import Foremen

SCENARIO = """
name = "split-while-cooling"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = []
[world]
operators = 0
schedules = ["fifo"]
"""


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
    monkeypatch.setattr(plans, "draw_errand", lambda name, faults: Errand(name, ways.get(name, (Way.DONE,))))
    drawn, split = parsed("split-while-cooling", SCENARIO), 0
    for seed in range(40):
        splitter = Splitter()
        with monkeypatch.context() as patched:
            splitter.listen(patched)
            report = simulate(drawn.draw(seed), intrude=splitter)
        assert report.problems == (), f"seed {seed}"
        assert splitter.states in ([], [("CLOSED", "CLOSED")]), f"seed {seed}"
        split += len(splitter.states)
    assert split >= 3
