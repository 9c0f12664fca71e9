"""Tests of the plans of simulated runs, and of the scripts of their tasks, which are drawn from the faults."""

from __future__ import annotations

import anyio
import pytest

from supervisor.ports import NO_WORKSPACE
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.journal import SupervisorKilled
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.plan_workload.plans import draw_plan
from supervisor.simulation.plan_workload.task_scripts import TaskScript, TaskScripts, Try, draw_task_script
from supervisor.simulation.plan_workload.workspace import SimulatedWorkspace
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents


# ------------------------------------------------------------------------------------------------------- scripts
def test_without_faults_nothing_is_in_the_way() -> None:
    """A task that no fault strikes is done at the first try, accepted, merged and approved."""
    task_script = draw_task_script("w0t0", FaultPlan(KeyedRandom(1), only=()))
    assert (task_script.ways, task_script.checks, task_script.merges, task_script.approvals) == (
        (Try.DONE,),
        (True,),
        (True,),
        (True,),
    )
    assert task_script.wanted


@pytest.mark.parametrize("kind", ["work.busy", "work.permanent", "work.hangs", "work.crashes", "work.unknown"])
def test_what_strikes_comes_first(kind: str) -> None:
    """A task that a fault strikes fails in its first tries; a successful try, if there is one, is the last."""
    for seed in range(30):
        task_script = draw_task_script("w0t0", FaultPlan(KeyedRandom(seed), only=(f"{kind}@w0t0",)))
        assert task_script.ways[0] is not Try.DONE
        assert Try.DONE not in task_script.ways[:-1]


def test_the_last_way_goes_on() -> None:
    """Every try after the last entry of a script's list has the outcome of that entry."""
    task_script = TaskScript("w0t0", (Try.BUSY, Try.DONE), checks=(False, True))
    assert [task_script.begin("w0t0", 0.0).way for _ in range(3)] == [
        Try.BUSY,
        Try.DONE,
        Try.DONE,
    ]
    assert [task_script.check() for _ in range(3)] == [False, True, True]


def test_sessions_know_their_task() -> None:
    """A session is assigned to the task or subtask in its name, also a second session; a child session works on no
    task."""
    task_scripts = TaskScripts()
    for name in ("w0t1", "w0t1s0"):
        task_scripts.add(TaskScript(name))
    found = [task_scripts.of(one) for one in ("w0t1", "w0t1-2", "w0t1s0-3", "w0t1/guest", "c1", "w0t2")]
    assert [one.name if one else None for one in found] == ["w0t1", "w0t1", "w0t1s0", None, None, None]


def test_drawn_plans_hang_together() -> None:
    """For every seed the drawn plan is valid, each task has a script, and the same seed draws the same plan."""
    for seed in range(40):
        task_scripts, faults = TaskScripts(), FaultPlan(KeyedRandom(seed))
        plan = draw_plan(3, 6, KeyedRandom(seed).below("plan"), faults, task_scripts)
        assert all(task_scripts.of(task.id) is not None for task in plan.tasks)
        assert plan == draw_plan(3, 6, KeyedRandom(seed).below("plan"), faults, TaskScripts())


@pytest.mark.anyio
async def test_a_workspace_does_nothing_for_a_killed_supervisor() -> None:
    """Each operation of a simulated workspace whose supervisor was killed raises ``SupervisorKilled`` and changes
    nothing."""
    task_scripts, killed = TaskScripts(), anyio.Event()
    task_scripts.add(task_script := TaskScript("w0t0"))
    workspaces = WorkspaceContents(task_scripts, lambda owner: None, worktrees=True)
    workspace = SimulatedWorkspace(KeyedRandom(1), FaultPlan(KeyedRandom(1), only=()), task_scripts, workspaces, killed)
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
    assert (workspaces.list_sessions(), task_script.merged) == (["w0t0"], [])
