"""Tests of triggers for short states: a wait ends with the named state and no other, and ends after a time if that
state never comes."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from supervisor import AgentTurn, Settings, Supervisor
from supervisor.plans import LimitsConfig
from supervisor.simulation.operators import Trigger, wait_for
from supervisor.simulation.testing import Simulate

PATIENCE_S = 60.0

Run = Callable[[Trigger], list[str | None]]


async def works(turn: AgentTurn) -> str:
    """Agent that fails in its first turn, with a call that ends slowly, and delegates in later turns."""
    if turn.session_id == "s" and turn.turn_id.endswith(":t1"):
        async with anyio.create_task_group() as group:
            group.start_soon(turn.call, "one that lingers", lingers)
            await anyio.sleep(1.0)
            raise ValueError("it fails")
    if "/" not in turn.session_id:
        await turn.delegate("kid", "work")
    await anyio.sleep(5.0)
    return "done"


async def lingers() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(4.0)


@pytest.fixture
def lie_in_wait() -> Run:
    """Fixture: a function that runs a session ``s`` with a child on three seeds, and returns the sessions that the
    trigger named."""

    def run(moment: Trigger) -> list[str | None]:
        async def main(sup: Supervisor) -> str | None:
            found: list[str | None] = []

            async def watch() -> None:
                found.append(await wait_for(sup, moment, PATIENCE_S))

            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                await anyio.sleep(0.1)
                session = await sup.start_session("s", agent=works)
                assert (await session.run("go")).ok
            return found[0]

        settings = Settings(limits=LimitsConfig(backoff_base_ms=1))
        return [one.value for one in Simulate(range(1, 4), str, None)(main, settings=settings)]

    return run


def test_a_moment_comes_for_whoever_is_first(lie_in_wait: Run) -> None:
    """A trigger names the session that first comes into the state, by the session's own state or by that of its
    turn."""
    assert lie_in_wait(Trigger("session", "CoolingDown")) == ["s"] * 3
    assert lie_in_wait(Trigger("turn", "TOOL_USE")) == ["s"] * 3


def test_a_child_is_waited_for(lie_in_wait: Run) -> None:
    """A trigger for child sessions names the child, and not its parent, which comes into the state first."""
    assert lie_in_wait(Trigger("session", "Running", child=True)) == ["s/kid"] * 3


def test_litter_is_waited_for(lie_in_wait: Run) -> None:
    """A trigger for a littered session names a session whose earlier turn is still being cleaned up; a child has no
    such turn."""
    assert lie_in_wait(Trigger("session", "Running", littered=True)) == ["s"] * 3
    assert lie_in_wait(Trigger("session", "Running", child=True, littered=True)) == [None] * 3


def test_nobody_waits_for_ever(lie_in_wait: Run) -> None:
    """The wait for a state that never comes ends after its time with ``None``."""
    assert lie_in_wait(Trigger("turn", "COMPACTING")) == [None] * 3
