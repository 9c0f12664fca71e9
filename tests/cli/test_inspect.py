"""The command ``supervisor inspect``: the activity of a living entity, also of one that hangs, on both backends."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from actors import NoSuchActor
from supervisor import AgentTurn
from supervisor.cli.rendering import inspected_text
from supervisor.lifecycles.types import NoSuchEntity
from tests.support import send_prompt, supervising

pytestmark = pytest.mark.anyio


async def stuck_in_a_lock(begun: anyio.Event) -> None:
    begun.set()
    async with anyio.Lock():
        await anyio.sleep_forever()


async def test_a_call_that_hangs_shows_where(tmp_path: Path) -> None:
    """An inspection of an open call that hangs shows the call's tasks, each with the line of code at which it waits."""
    begun = anyio.Event()

    async def agent(turn: AgentTurn) -> None:
        await turn.call("hang", stuck_in_a_lock, begun)

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        send_prompt(group, session, "go")
        await begun.wait()
        call, turn, parent = (run.sup.inspect(one) for one in ("s:t1:c1", "s:t1", "s"))
        assert (call.kind, call.state, call.phase) == ("tool", "open", "live")
        assert any("stuck_in_a_lock" in where for task in call.tasks for where in task.stack)
        assert (turn.kind, turn.state, turn.open_calls) == ("turn", "TOOL_USE", ("s:t1:c1",))
        assert (parent.kind, parent.state, parent.agent, parent.turn) == ("session", "Running", "s:a1", "s:t1")
        assert set(parent.children) == {"s:a1", "s:t1"}
        text = inspected_text(call)
        assert text.startswith("tool s:t1:c1: open\n  mailbox: nothing queued")
        assert "in stuck_in_a_lock" in text
        await session.abort(reason="seen enough")


async def test_nobody_can_be_inspected_who_is_not_alive(tmp_path: Path) -> None:
    """An inspection of an id that no living entity has raises an error, which says where ids are shown."""
    async with supervising(tmp_path) as run:
        with pytest.raises(NoSuchEntity, match="nothing alive has the id 'nobody'"):
            run.sup.inspect("nobody")
        with pytest.raises(NoSuchActor, match="no living actor has the id 'nobody'"):
            run.sup.core.registry.system.inspect("nobody")
