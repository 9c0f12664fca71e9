"""Tests of the liveness policy with its default times, in virtual time: silent agents are woken, asked to stop and
ended; others are not."""

from __future__ import annotations

import anyio
import pytest

from supervisor import AgentTurn
from supervisor.host.api import Supervisor
from supervisor.host.handle import TurnResult
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import LimitsConfig, LivenessConfig, Settings
from supervisor.simulation.testing import Simulate

PATIENT = Settings(limits=LimitsConfig(turn_timeout_s=7200.0))


async def _facts(sup: Supervisor, name: str, session_id: str = "s") -> list[LifecycleEvent]:
    await sup.core.journal_writer.flush()
    return [one for one in await sup.core.journal.events(entity_id=session_id) if one.event == name]


def test_who_does_not_move_is_woken_then_asked_then_ended(simulated_supervisor: Simulate) -> None:
    """A silent agent is woken after 90 s, asked to stop after 150 s and ended after 210 s, each recorded as a fact; the
    first two are messages in a prompt, and the last is an abort with its reason."""
    prompts: list[str] = []

    async def agent(turn: AgentTurn) -> None:
        prompts.append(turn.prompt)
        await anyio.sleep_forever()

    async def main(sup: Supervisor) -> None:
        prompts.clear()
        session = await sup.start_session("s", agent=agent)
        result = await session.run("go")
        assert result.outcome == "aborted"
        assert result.error == "nothing was heard from it for 210 s, after it was woken up and asked to stop"
        steps = [(one.metadata["step"], one.metadata["silent_s"]) for one in await _facts(sup, "Stalled")]
        assert steps == [("wake", 90.0), ("stop", 150.0), ("kill", 210.0)]
        first, *_, last = [one.monotonic_s for one in await _facts(sup, "Stalled")]
        assert last - first == pytest.approx(120.0, abs=1.0)
        assert ["Say where you are" in one for one in prompts] == [False, True, True]
        assert "Stop what you are at" in prompts[2]

    simulated_supervisor(main, settings=PATIENT)


def test_a_heartbeat_keeps_every_step_away(simulated_supervisor: Simulate) -> None:
    """An agent that sends a heartbeat every minute works for hours without a step of the liveness policy."""

    async def agent(turn: AgentTurn) -> str:
        for _ in range(100):
            await anyio.sleep(60)
            turn.heartbeat()
        return "done"

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=agent)
        assert (await session.run("go")).ok
        assert not await _facts(sup, "Stalled")

    simulated_supervisor(main, settings=PATIENT)


def test_an_open_call_is_given_longer(simulated_supervisor: Simulate) -> None:
    """A tool call of six minutes without output is not interrupted; the message to wake up is delivered after the
    call."""

    async def agent(turn: AgentTurn) -> str:
        if "Urgent" not in turn.prompt:
            await turn.call("test", anyio.sleep, 350)
        return "done"

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=agent)
        assert (await session.run("go")).ok
        assert [one.metadata["step"] for one in await _facts(sup, "Stalled")] == ["wake"]
        (call,) = [one for one in await sup.core.journal.events(entity_id="s:t1") if one.event == "tool_completed"]
        assert call.metadata["outcome"] == "completed"

    simulated_supervisor(main, settings=PATIENT)


def test_a_parent_that_waits_for_its_child_moves_with_it(simulated_supervisor: Simulate) -> None:
    """A session is not woken while a child session of it works."""

    async def agent(turn: AgentTurn) -> str:
        if "/" not in turn.session_id:
            return (await turn.delegate("c", "work")).text
        for _ in range(60):
            await anyio.sleep(50)
            turn.say("on and on ")
        return "done"

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=agent)
        assert (await session.run("go")).text.endswith("done")
        assert not await _facts(sup, "Stalled")

    simulated_supervisor(main, settings=PATIENT)


def test_it_can_be_switched_off(simulated_supervisor: Simulate) -> None:
    """With ``snapshot_s`` 0 a silent agent is neither woken nor ended before its turn's time-out."""

    async def agent(turn: AgentTurn) -> None:
        await anyio.sleep_forever()

    async def main(sup: Supervisor) -> None:
        session = await sup.start_session("s", agent=agent)
        result: list[TurnResult] = []

        async def run() -> None:
            result.append(await session.run("go"))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(3600)
            assert not result
            await session.abort(reason="enough")
        assert not await _facts(sup, "Stalled")

    simulated_supervisor(main, settings=PATIENT.model_copy(update={"liveness": LivenessConfig(snapshot_s=0.0)}))


def test_time_that_is_leased_is_used_up_to_the_second(simulated_supervisor: Simulate) -> None:
    """Two sessions that share a budget of one hour of turns use it up between them, to within two seconds, and both end
    with the reason."""

    async def agent(turn: AgentTurn) -> str:
        while "used up" not in turn.prompt:
            await anyio.sleep(20)
            turn.heartbeat()
        return "what there is"

    async def main(sup: Supervisor) -> None:
        from supervisor.policies.budgets import Budget

        scope = sup.scope("both", "both", Budget(wall_s=3600.0))
        assert scope is not None
        sessions = [await sup.start_session(name, agent=agent, within=scope) for name in ("a", "b")]
        results: list[TurnResult] = []

        async def run(number: int) -> None:
            results.append(await sessions[number].run("work"))

        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(run, number)
        assert [one.outcome for one in results] == ["aborted", "aborted"]
        assert all("the budget of both is spent: wall_s: limit 3600" in one.error for one in results)
        assert 3600.0 <= scope.used.wall_s < 3602.0

    simulated_supervisor(main, settings=PATIENT)
