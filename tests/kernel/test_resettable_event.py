"""ResettableEvent: set() wakes every waiting task, and the event stays set until clear()."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from actors.waiter import ResettableEvent

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await checkpoint()


async def test_set_wakes_every_waiter_and_lasts_until_clear() -> None:
    event, woken = ResettableEvent(), []

    async def wait(name: str) -> None:
        await event.wait()
        woken.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "a")
        group.start_soon(wait, "b")
        await settle()
        assert not woken
        event.set()
        event.set()
        await settle()
        assert sorted(woken) == ["a", "b"]
        await wait("late")
        assert event.is_set()
        event.clear()
        group.start_soon(wait, "next")
        await settle()
        assert woken[2:] == ["late"]
        event.set()
    assert woken[2:] == ["late", "next"]


async def test_a_cancelled_waiter_does_not_use_up_a_set() -> None:
    event, woken = ResettableEvent(), []

    async def wait() -> None:
        await event.wait()
        woken.append("woken")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with anyio.move_on_after(0):
            await event.wait()
        await settle()
        event.set()
    assert woken == ["woken"]


async def test_waiting_for_a_set_event_lets_other_tasks_run() -> None:
    """A task that waits in a loop for an event that is already set lets other tasks run."""
    event, turns = ResettableEvent(), []
    event.set()

    async def other() -> None:
        turns.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(3):
            await event.wait()
        assert turns == ["other"]
