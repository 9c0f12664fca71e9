"""Tests of simulated function agents in the real runtime, in virtual time: behaviour without faults, and the effect of
each fault."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from supervisor.host import factories
from supervisor.host.handle import TurnResult
from supervisor.lifecycles.types import AbortScope
from supervisor.plans.monitoring import LivenessConfig
from supervisor.simulation.agents.function_agent import function_agent
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.workspaces.directory import DirectoryWorkspace
from tests.support import Run, quick_settings, send_prompt, supervising

virtual = pytest.mark.trio

SHAPE = AgentShape(steps=(2, 3), tools=(3, 5), delegation=0.0)
FAMILY = AgentShape(steps=(2, 3), tools=(0, 2), delegation=0.5, depth_max=2)
BOUNDS = quick_settings(turn_timeout_s=500.0, max_consecutive_errors=1, max_total_errors=1)
SETTINGS = BOUNDS.model_copy(update={"liveness": LivenessConfig(snapshot_s=0)})


async def _one_turn(workdir: Path, seed: int, *only: str, shape: AgentShape = SHAPE) -> tuple[TurnResult, Run]:
    """Run one prompt for an agent that exactly these faults strike, without retries; return the result and the run."""
    faults = FaultPlan(KeyedRandom(seed), only=only)
    async with supervising(workdir, settings=SETTINGS, within_s=100_000.0) as run:
        session = await run.sup.start_session("s", agent=function_agent(shape, KeyedRandom(seed), faults))
        result = await session.run("work")
    assert set(faults.struck) == set(only)
    return result, run


class _Places(DirectoryWorkspace):
    """Workspace without a real disk, since a thread for real file operations would take very long in virtual time."""

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        await anyio.lowlevel.checkpoint()
        return "/"


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factories, "DirectoryWorkspace", _Places)


def _outcomes(run: Run) -> list[str]:
    return sorted(one.metadata["outcome"] for one in run.transitions("tool_completed"))


@virtual
async def test_functions_without_faults(autojump_clock: MockClock, tmp_path: Path) -> None:
    """For every seed the turn of an agent without faults succeeds with its text, and some agents start child
    sessions."""
    children = 0
    for seed in range(6):
        result, run = await _one_turn(tmp_path, seed, shape=FAMILY)
        assert (result.outcome, result.error) == ("completed", "")
        assert (result.text[:12], result.text[-4:]) == ("s:t1: and so", "done")
        children += sum(one.kind == "session" for one in run.store.entities.values()) - 1
    assert children > 3


@virtual
@pytest.mark.parametrize("kind", ["process.crash", "agent.provider_error", "agent.refuses"])
async def test_a_function_that_raises(autojump_clock: MockClock, tmp_path: Path, kind: str) -> None:
    """The turn of an agent function that raises fails, and the error names the fault."""
    result, _ = await _one_turn(tmp_path, 1, f"{kind}@s:t1")
    assert result.outcome == "failed"
    assert f"AgentFailed: {kind} at s:t1" in result.error


@virtual
@pytest.mark.parametrize("place", ["process.hang@s:t1", "agent.provider_hangs@s:t1", "agent.tool_hangs@s:t1:c1"])
async def test_a_function_that_hangs(autojump_clock: MockClock, tmp_path: Path, place: str) -> None:
    """The turn of an agent function that hangs fails at its time-out."""
    result, _ = await _one_turn(tmp_path, 1, place)
    assert result.outcome == "failed"
    assert "500 s" in result.error


@virtual
async def test_a_tool_that_fails(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A call that fails is recorded as failed, and its turn goes on; a call that is repeated is recorded twice."""
    result, run = await _one_turn(tmp_path, 1, "agent.tool_fails@s:t1:c1", "agent.duplicate@s:t1:c1")
    assert result.outcome == "completed"
    assert _outcomes(run).count("failed") == 1
    _, usual = await _one_turn(tmp_path, 1)
    assert len(_outcomes(run)) == len(_outcomes(usual)) + 1


@virtual
async def test_a_function_that_returns_early(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The turn of an agent function that returns early completes, with fewer calls than were planned."""
    result, run = await _one_turn(tmp_path, 3, "process.lies@s:t1")
    _, usual = await _one_turn(tmp_path, 3)
    assert result.outcome == "completed"
    assert len(_outcomes(run)) < len(_outcomes(usual))


@virtual
async def test_a_stubborn_function(autojump_clock: MockClock, tmp_path: Path) -> None:
    """An aborted agent function that shields itself from cancellation runs until its shield ends; its session ends as
    aborted."""
    faults = FaultPlan(KeyedRandom(1), only=["process.ignores_cancel@s:t1"])
    shape = AgentShape(steps=(1, 1), think_s=(1.0, 1.0), tools=(0, 0))
    async with supervising(tmp_path, settings=SETTINGS, within_s=100_000.0) as run:
        session = await run.sup.start_session("s", agent=function_agent(shape, KeyedRandom(1), faults))
        async with anyio.create_task_group() as group:
            asked = send_prompt(group, session, "work")
            await anyio.sleep(1.1)
            await run.sup.abort("s", AbortScope.SESSION, reason="enough", actor="ann")
            result = await asked.result()
    assert result.outcome == "aborted"
    assert list(faults.struck) == ["process.ignores_cancel@s:t1"]
