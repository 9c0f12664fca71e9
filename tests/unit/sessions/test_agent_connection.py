"""AgentConnection: waiting for the end of a turn, and phases, with any kind of agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from supervisor.lifecycles.types import Verdict
from supervisor.sessions.agent_connection import AgentConnection, ConnectionPhase

pytestmark = pytest.mark.anyio


class IdleConnection(AgentConnection):
    """Adapter connection to an agent that does nothing."""

    async def run(self) -> None: ...

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        self._begin(turn_id, incarnation)

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None: ...

    def close_when_idle(self) -> None: ...

    def kill(self, intent: Verdict) -> None: ...

    def end_turn(self) -> None:
        self._conclude("end_turn", "")

    def move_to(self, phase: ConnectionPhase) -> None:
        self._advance(phase)


async def test_a_caller_that_waits_for_one_turn_does_not_wait_for_the_next_turn() -> None:
    """An agent may be given its next turn in the step in which it finishes the turn before."""
    registry: Any = SimpleNamespace(send=lambda *event, **how: None)
    profile = SimpleNamespace(reports=())
    answer = SimpleNamespace(text="done", said="")
    session: Any = SimpleNamespace(
        session_id="s",
        monitor=None,
        answer=answer,
        cause=None,
        profile=profile,
        children={},
    )
    connection = IdleConnection(registry, session, "s:a1", 1)
    connection.start_turn("s:t1", 1, "")
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
        connection.end_turn()
        connection.start_turn("s:t2", 2, "")
        await anyio.wait_all_tasks_blocked()
        assert woken == ["another", "that one"]
        connection.end_turn()
    assert woken == ["another", "that one", "any"]


def test_a_connection_that_is_closing_exited_or_over_takes_no_further_turn() -> None:
    """Only an open connection to an idle agent is used again, and phases never go back."""
    registry: Any = SimpleNamespace(send=lambda *event, **how: None)
    connection = IdleConnection(registry, SimpleNamespace(session_id="s"), "s:a1", 1)  # type: ignore[arg-type]
    connection.is_ready = True
    reusable = []
    for phase in (*ConnectionPhase, ConnectionPhase.OPEN):
        connection.move_to(phase)
        reusable.append(connection.reusable)
    assert reusable == [True, False, False, False, False]
