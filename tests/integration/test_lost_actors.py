"""Crashes of an actor by a bug of the runtime: its session ends with all descendants, and every caller gets a
result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from actors import ActorStopped
from supervisor import AgentTurn, CancelMode, open_supervisor
from supervisor.sessions.termination import BACKGROUND_ACTOR
from tests.support import quick_settings, send_prompt

pytestmark = pytest.mark.anyio

LATER_S = 30


async def hang(turn: AgentTurn) -> None:
    await anyio.sleep_forever()


async def obey(turn: AgentTurn) -> str:
    if turn.prompt == "hang":
        await turn.call("hang", anyio.sleep_forever)
    return turn.prompt


def bug(data: Any, event: Any) -> bool:
    raise TypeError("a bug")


def break_actor(sup: Any, entity_id: str) -> None:
    """Patch an entity so that its actor crashes at its next event."""
    entity = sup.core.registry.entity(entity_id)
    entity.lifecycle = entity.lifecycle._replace(stale=bug)


async def test_a_crashed_session_ends_its_descendants(tmp_path: Path) -> None:
    """When the actor of a session crashes, the prompts of the session, its child and its grandchild fail at once; other
    sessions go on."""
    with anyio.fail_after(LATER_S):
        async with (
            open_supervisor(settings=quick_settings(), workdir=tmp_path) as sup,
            anyio.create_task_group() as group,
        ):
            parent = await sup.start_session("parent", agent=hang)
            child = await parent.start_child("child")
            grandchild = await child.start_child("grandchild")
            other = await sup.start_session("other", agent=obey)
            asked = [send_prompt(group, one, "work") for one in (parent, child, grandchild)]
            await anyio.wait_all_tasks_blocked()
            break_actor(sup, "parent")
            with pytest.raises(TypeError):
                await parent.send("hello")
            results = [await one.result() for one in asked]
            assert [one.outcome for one in results] == ["failed"] * 3
            assert "its parent was lost" in results[2].error
            assert (await other.run("still here")).text == "still here"
            assert set(sup.core.registry.sessions) == {"other"}


async def test_a_turn_that_crashes_ends_its_session(tmp_path: Path) -> None:
    """When the actor of a turn crashes, the session of the turn ends, and the prompt fails with the crash as the
    reason."""
    with anyio.fail_after(LATER_S):
        async with (
            open_supervisor(settings=quick_settings(), workdir=tmp_path) as sup,
            anyio.create_task_group() as group,
        ):
            session = await sup.start_session("s", agent=obey)
            asked = send_prompt(group, session, "hang")
            async with sup.subscribe(after_seq=0) as events:
                async for event in events:
                    if event.event == "tool_started":
                        break
            break_actor(sup, "s:t1")
            await sup.abort("s:t1:c1", "tool", reason="enough")
            result = await asked.result()
            assert result.outcome == "failed"
            assert "the actor of s:t1 crashed" in result.error
    assert not sup.core.registry.entities


async def test_effects_of_a_crash_name_it_as_their_cause(tmp_path: Path) -> None:
    """The records of a child that is re-parented, and of one that is stopped, after a crash of the parent's actor name
    the crash as their cause."""
    with anyio.fail_after(LATER_S):
        async with open_supervisor(settings=quick_settings(), workdir=tmp_path) as sup:
            parent = await sup.start_session("parent", agent=obey)
            await parent.start_child("free", cancel_mode="abandon")
            asked = await parent.start_child("asked", cancel_mode="wait_requested")
            break_actor(sup, "parent")
            with pytest.raises(TypeError):
                await parent.send("hello")
            await asked.close()
            records = await sup.core.journal.events()
    lost = next(one for one in records if one.event == "ActorLost")
    follows = [
        one for one in records if one.event == "Adopted" or (one.event, one.entity_id) == ("OperatorStop", asked.id)
    ]
    assert [(one.cause_id, one.actor) for one in follows] == [(lost.seq, "kernel")] * 3


async def test_a_parent_does_not_wait_for_a_lost_child(tmp_path: Path) -> None:
    """The abort of a parent does not wait for a WAIT_REQUESTED child whose actor has crashed."""
    with anyio.fail_after(LATER_S):
        async with open_supervisor(settings=quick_settings(), workdir=tmp_path) as sup:
            parent = await sup.start_session("parent", agent=obey)
            await parent.start_child("child", cancel_mode=CancelMode.WAIT_REQUESTED)
            break_actor(sup, "parent/child")
            receipt = await parent.abort(reason="enough")
            assert [node.outcome for node in receipt.nodes if node.id == "parent"] == ["ended"]
            assert receipt.killed_at is not None


@pytest.mark.parametrize("where", ["agent", "tool"])
async def test_a_cancelled_future_of_an_agent_is_its_error(tmp_path: Path, where: str) -> None:
    """A stray cancellation error in a function agent fails the turn; in a tool call of the agent it fails the call
    only."""

    async def stray() -> None:
        import asyncio

        raise asyncio.CancelledError

    async def agent(turn: AgentTurn) -> str:
        if where == "agent":
            await stray()
        try:
            await turn.call("stray", stray)
        except Exception as error:
            return type(error).__name__
        return "no error"

    with anyio.fail_after(LATER_S):
        limits = quick_settings(max_consecutive_errors=1, max_total_errors=1)
        async with open_supervisor(settings=limits, workdir=tmp_path) as sup:
            session = await sup.start_session("s", agent=agent)
            result = await session.run("go")
    if where == "tool":
        assert (result.outcome, result.text) == ("completed", "StrayCancellation")
    else:
        assert result.outcome == "failed"
        assert "cancelled elsewhere" in result.error


async def test_a_heartbeat_needs_the_background_actor(tmp_path: Path) -> None:
    """A heartbeat raises an error once the background actor has ended, so that systemd notices the failure."""
    with anyio.fail_after(LATER_S):
        async with open_supervisor(settings=quick_settings(), workdir=tmp_path) as sup:
            await sup.core.background.heartbeat(timeout_s=5)
            sup.core.registry.system.kill(BACKGROUND_ACTOR)
            await sup.core.registry.system.join(BACKGROUND_ACTOR)
            with pytest.raises(ActorStopped):
                await sup.core.background.heartbeat(timeout_s=5)
