"""Tests with simulated processes that the kernel takes 5 s to end: they run nothing meanwhile, are waited for, and are
no survivors; what comes next comes after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from supervisor import AbortScope
from supervisor.host.api import Supervisor
from supervisor.plans import LimitsConfig, Settings
from supervisor.policies.abort_plan import Receipt
from supervisor.policies.stage_deadlines import EXITING_S
from supervisor.simulation.agents import trouble
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.running import simulate_main
from supervisor.simulation.scenario import FaultsConfig, Scenario, WorldConfig

EXIT_S = 5.0
AGENT = "/sim/s$ sim-acp#1"
"""Name of the first agent of the session ``s``, in the names of strikes."""
SLOW_AGENT, SLOW_TOOL = f"process.slow_exit@{AGENT}", f"process.slow_exit@{AGENT}:t1:c1"
SHAPE = AgentShape(
    steps=(1, 1),
    tools=(1, 1),
    terminals=0.0,
    child_processes=1.0,
    delegation=0.0,
    permission=0.0,
    start_s=(1.0, 1.0),
    think_s=(1.0, 1.0),
    tool_s=(1000.0, 1000.0),
    cancel_s=(0.0, 0.0),
)
"""Agent whose turn has one tool call, which takes longer than any test."""


@pytest.fixture(autouse=True)
def exit_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixture: a slow exit takes ``EXIT_S`` seconds."""
    monkeypatch.setattr(trouble, "SLOW_EXIT_S", (EXIT_S, EXIT_S))


def play(main: Callable[[Supervisor], Awaitable[Any]], *strikes: str, seed: int = 1, **limits: Any) -> Any:
    """Run *main* as the host of a supervisor in virtual time; exactly the faults *strikes* happen."""
    world = WorldConfig(crashes_max=0, operators=0, horizon_s=5000.0)
    drawn = Scenario(name="slow", faults=FaultsConfig(only=strikes), world=world).draw(seed)
    settings = Settings(limits=LimitsConfig(**limits))
    played = simulate_main(main, replace(drawn, settings=settings), agents={"a": SHAPE})
    assert played.report.problems == ()
    if played.error is not None:
        raise played.error
    return played.value


async def aborted(sup: Supervisor, target: str, scope: AbortScope, *, now: bool) -> tuple[Receipt, float]:
    """Start the session ``s``, abort *target* while the tool runs; return the receipt, and the seconds that it took."""
    session = await sup.start_session("s", agent="a")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run, "work")
        await anyio.sleep(10.0)
        began = anyio.current_time()
        receipt = await sup.abort(target, scope, reason="enough", now=now)
        took_s = anyio.current_time() - began
        await session.close()
    return receipt, took_s


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_receipt_of_a_session_comes_after_the_exit(seed: int) -> None:
    """An abort of a session whose agent takes 5 s to go after SIGKILL: the receipt comes after it, says ``exiting``,
    and counts no survivor."""

    async def main(sup: Supervisor) -> tuple[Receipt, float]:
        return await aborted(sup, "s", AbortScope.SESSION, now=True)

    receipt, took_s = play(main, SLOW_AGENT, seed=seed)
    [node], [process] = receipt.nodes, receipt.processes
    assert (node.outcome, node.rung, receipt.survivors) == ("ended", "exiting", 0)
    assert process.survivors == 0
    assert EXIT_S <= process.exiting_s <= took_s < EXIT_S + 2.0


@pytest.mark.parametrize("now", [False, True])
def test_a_call_whose_tool_exits_slowly_is_aborted_alone(now: bool) -> None:
    """An abort of a call whose tool takes 5 s to go: the turn is not interrupted, the result is ``aborted``."""

    async def main(sup: Supervisor) -> tuple[Receipt, float]:
        return await aborted(sup, "s:t1:c1", AbortScope.TOOL, now=now)

    receipt, took_s = play(main, SLOW_TOOL)
    [node], [process] = receipt.nodes, receipt.processes
    assert (node.outcome, node.rung, receipt.survivors) == ("ended", "exiting", 0)
    assert "interrupted" not in node.how
    assert (process.owner, process.ended_by) == ("s:t1:c1", "kill")
    assert EXIT_S <= process.exiting_s <= took_s < EXIT_S + 2.0


def test_what_takes_longer_than_its_bound_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has a bound of its own: an agent that is not gone after 60 s is abandoned, and its fate is unknown."""
    monkeypatch.setattr(trouble, "SLOW_EXIT_S", (2 * EXITING_S, 2 * EXITING_S))
    found: list[tuple[Receipt, float]] = []

    async def main(sup: Supervisor) -> None:
        found.append(await aborted(sup, "s", AbortScope.SESSION, now=True))

    world = WorldConfig(crashes_max=0, operators=0, horizon_s=5000.0)
    drawn = Scenario(name="slow", faults=FaultsConfig(only=(SLOW_AGENT,)), world=world).draw(1)
    simulate_main(main, drawn, agents={"a": SHAPE})  # the oracle does not accept it: a process outlives its session
    [(receipt, took_s)] = found
    [node], [process] = receipt.nodes, receipt.processes
    assert (node.outcome, receipt.survivors) == ("abandoned", "unknown")
    assert process.exiting_s == pytest.approx(EXITING_S, abs=1.0)
    assert EXITING_S <= took_s < EXITING_S + 10.0


def test_the_next_agent_starts_after_the_exit() -> None:
    """An agent that is killed for its time-out takes 5 s to go: the next agent of the session starts after it, and the
    records say what is waited for."""

    async def main(sup: Supervisor) -> list[tuple[str, str, float]]:
        session = await sup.start_session("s", agent="a")
        with anyio.move_on_after(60.0):
            await session.run("work")
        await sup.abort("s", AbortScope.SESSION, reason="enough", now=True)
        rows = await sup.core.journal.events()
        return [(one.entity_id, one.event, one.monotonic_s) for one in rows]

    hangs = f"process.ignores_cancel@{AGENT}:t1"
    records = play(main, SLOW_AGENT, hangs, turn_timeout_s=5.0, grace_s=1.0)
    at = {(who, what): seconds for who, what, seconds in reversed(records)}
    assert at["s", "ProcessesExiting"] < at["s:a1", "agent_exited"] <= at["s:a2", "Born"]
