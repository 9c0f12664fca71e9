"""Tests in virtual time that the time limit of a task with a task size is extended while progress is seen, up to a
cap."""

from __future__ import annotations

import anyio
import pytest

from supervisor import AgentTurn
from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Plan, Settings
from supervisor.simulation.testing import Simulate
from supervisor.work.plan_handle import run_plan

SMALL_S = 900.0
CAP_S = 5400.0


def plan(**task: object) -> Plan:
    """Make a plan of one task, which is tried once."""
    made = {"id": "t", "agent": "worker", "prompt": "work", "max_retries": 0, **task}
    return Plan.model_validate(
        {
            "agents": {"worker": {"adapter": "command", "command": ["true"]}},
            "tasks": [made],
            "task_lifecycle": {"max_attempts": 1, "circuit_breaker": {"probes_max": 0}},
        }
    )


async def turns(sup: Supervisor) -> list[LifecycleEvent]:
    await sup.core.journal_writer.flush()
    return [one for one in await sup.core.journal.events() if one.entity_type == "turn"]


async def seen(sup: Supervisor) -> list[float]:
    """Return the times at which progress was recorded, in seconds since the first turn began to run."""
    records = await turns(sup)
    began, *_ = [one.monotonic_s for one in records if (one.event, one.to_status) == ("agent_spawned", "RUNNING")]
    return [one.monotonic_s - began for one in records if one.event == "ProgressSeen"]


async def works(turn: AgentTurn, for_s: float) -> str:
    """Agent that works for so many seconds, with a heartbeat every minute."""
    for _ in range(int(for_s / 60)):
        await anyio.sleep(60)
        turn.heartbeat()
    return "done"


def test_who_moves_is_given_more(simulated_supervisor: Simulate) -> None:
    """A task of size ``small`` (fifteen minutes) that works for an hour is given ten more minutes at a time, each
    shortly before its limit."""

    async def agent(turn: AgentTurn) -> str:
        return await works(turn, 3600)

    async def main(sup: Supervisor) -> None:
        result = await run_plan(sup, plan(scope="small"))
        assert result.ok
        at_s = await seen(sup)
        assert len(at_s) == 5
        assert all(25 < SMALL_S + 600 * number - one <= 60 for number, one in enumerate(at_s))

    simulated_supervisor(main, agents={"worker": agent})


def test_no_further_than_the_cap(simulated_supervisor: Simulate) -> None:
    """A task of size ``small`` that never ends is ended after an hour and a half, and the reason names the extended
    limit."""

    async def agent(turn: AgentTurn) -> str:
        return await works(turn, 20_000)

    async def main(sup: Supervisor) -> None:
        assert not (await run_plan(sup, plan(scope="small"))).ok
        records = await turns(sup)
        (late,) = [one for one in records if one.event == "task_failed" and one.outcome == "transition"]
        (began,) = [one for one in records if (one.event, one.to_status) == ("agent_spawned", "RUNNING")]
        assert late.monotonic_s - began.monotonic_s == pytest.approx(CAP_S, abs=1.0)
        assert late.reason.endswith("limits.turn_timeout_s), and what that was extended by while progress was seen")
        assert not [one for one in records if one.outcome == "stale" and one.event == "ProgressSeen"]

    simulated_supervisor(main, agents={"worker": agent})


@pytest.mark.parametrize("task", [{"timeout_s": 900}, {}])
def test_a_limit_that_somebody_named_is_one(simulated_supervisor: Simulate, task: dict[str, object]) -> None:
    """A limit that the plan names, or the default limit, is not extended: only a limit that follows from a task size
    is."""

    async def agent(turn: AgentTurn) -> str:
        return await works(turn, 3600)

    async def main(sup: Supervisor) -> None:
        assert not (await run_plan(sup, plan(**task))).ok
        assert await seen(sup) == []

    simulated_supervisor(main, agents={"worker": agent})


def test_who_is_silent_has_no_more(simulated_supervisor: Simulate) -> None:
    """An agent that is silent for the last two minutes before its limit is given no more time."""

    async def agent(turn: AgentTurn) -> str:
        await works(turn, 660)
        await turn.call("sleep", anyio.sleep, 3600)
        return "done"

    async def main(sup: Supervisor) -> None:
        assert not (await run_plan(sup, plan(scope="small"))).ok
        assert await seen(sup) == []

    simulated_supervisor(main, agents={"worker": agent}, settings=Settings())
