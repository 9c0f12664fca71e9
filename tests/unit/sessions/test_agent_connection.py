"""``AgentConnection``: waiting for the end of one turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.sessions.agent_connection import AgentConnection

pytestmark = pytest.mark.anyio


async def test_who_waits_for_a_turn_does_not_wait_for_the_next_one() -> None:
    """An agent may be given its next turn in the step in which it is done with the one before."""
    connection = AgentConnection(SimpleNamespace(), SimpleNamespace(), "s:a1", 1)  # type: ignore[arg-type]  # neither is looked at
    connection.turn_id = "s:t1"
    woken: list[str] = []

    async def wait(name: str, *turn_id: Any) -> None:
        await connection.wait_turn_over(*turn_id)
        woken.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "that one", "s:t1")
        group.start_soon(wait, "another", "s:t0")
        group.start_soon(wait, "any")
        await anyio.wait_all_tasks_blocked()
        assert woken == ["another"]
        freed, connection._freed, connection.turn_id = connection._freed, OneShotEvent(), "s:t2"
        freed.set()
        await anyio.wait_all_tasks_blocked()
        assert woken == ["another", "that one"]
        connection.turn_id = None
        connection._freed.set()
    assert woken == ["another", "that one", "any"]
