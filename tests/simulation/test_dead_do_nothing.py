"""A supervisor that was killed does nothing any more, however long its tasks take to unwind beside the next one."""

from __future__ import annotations

import anyio
import pytest

from supervisor.plans import Plan
from supervisor.ports import NO_WORKSPACE
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.host import Host, LoadGenerator
from supervisor.simulation.journal import SupervisorKilled
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.scenario import parsed
from supervisor.simulation.works.places import Places
from supervisor.simulation.works.task_scripts import TaskScript, TaskScripts
from supervisor.simulation.works.workspace import SimulatedWorkspace
from supervisor.simulation.world import World
from supervisor.work.results import PlanResult
from tests.verification.checkers import simulate

SCENARIO = """
name = "dead-do-nothing"
[load]
customers = 1
works = 1.0
tasks = 3
[faults]
kinds = []
[world]
operators = 0
"""
UNWINDS_S = 2.0
"""Longer than it takes until the next supervisor is at work."""
CARRIED_OUT = Host._carried_out


class Killer:
    """Kills the first supervisor as soon as a task is worked on; and looks whether its customer wants the plan still
    while the next one works on it."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.is_wanted = True

    def __call__(self, number: int, world: World, host: Host) -> None:
        load_generator = host.customers[0]
        at_work = world.board.waiting("IN_PROGRESS", [f"w0t{number}" for number in range(3)])
        if at_work and self.plan is None:
            self.plan = load_generator.plan
            world.kill()
        elif at_work:
            self.is_wanted &= load_generator.plan is self.plan


async def _dies_slowly(host: Host, load_generator: LoadGenerator, plan: Plan) -> PlanResult:
    killed = host._world.killed
    try:
        return await CARRIED_OUT(host, load_generator, plan)
    finally:
        if killed.is_set():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(UNWINDS_S)
            raise SupervisorKilled("it was killed long ago")


def test_what_its_host_is_told_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next supervisor goes on with stays its customer's plan, though a dead one says that it is over."""
    monkeypatch.setattr(Host, "_carried_out", _dies_slowly)
    killer = Killer()
    assert simulate(parsed("dead-do-nothing", SCENARIO).draw(1), intrude=killer).problems == ()
    assert killer.plan is not None
    assert killer.is_wanted


@pytest.mark.anyio
async def test_where_it_worked_stays_as_it_was() -> None:
    """What is asked of the workspace when its supervisor was killed is not done."""
    task_scripts, killed = TaskScripts(), anyio.Event()
    task_scripts.add(task_script := TaskScript("w0t0"))
    places = Places(task_scripts, lambda owner: None, worktrees=True)
    workspace = SimulatedWorkspace(KeyedRandom(1), FaultPlan(KeyedRandom(1), only=()), task_scripts, places, killed)
    await workspace.prepare("w0t0", "/sim", root_id="w0t0")
    killed.set()
    for asked in (
        workspace.begin("w0t0-2", NO_WORKSPACE),
        workspace.save("w0t0", NO_WORKSPACE, ""),
        workspace.roll_back("w0t0", NO_WORKSPACE, ""),
        workspace.merge("w0t0", ""),
        workspace.clean_up("w0t0", ""),
        workspace.prepare("w0t0-2", "/sim", root_id="w0t0-2"),
    ):
        with pytest.raises(SupervisorKilled):
            await asked
    assert (places.list_sessions(), task_script.merged) == (["w0t0"], [])
