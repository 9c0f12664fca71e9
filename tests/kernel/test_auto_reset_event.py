"""Bells: a ring is heard by all who wait, kept for who comes late, and forgotten once somebody says so."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from actors.waiter import AutoResetEvent

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await checkpoint()


async def test_a_ring_is_heard_by_all_and_kept() -> None:
    """Two wait, one comes late: all three go on; after ``silence`` the next one waits for the next ring."""
    bell, heard = AutoResetEvent(), []

    async def wait(name: str) -> None:
        await bell.wait()
        heard.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "a")
        group.start_soon(wait, "b")
        await settle()
        assert not heard
        bell.set()
        bell.set()
        await settle()
        assert sorted(heard) == ["a", "b"]
        await wait("late")
        assert bell.is_set()
        bell.clear()
        group.start_soon(wait, "next")
        await settle()
        assert heard[2:] == ["late"]
        bell.set()
    assert heard[2:] == ["late", "next"]


async def test_who_gives_up_takes_no_ring_from_others() -> None:
    """If one of two waiters is cancelled, the other one is woken."""
    bell, heard = AutoResetEvent(), []

    async def wait() -> None:
        await bell.wait()
        heard.append("heard")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        with anyio.move_on_after(0):
            await bell.wait()
        await settle()
        bell.set()
    assert heard == ["heard"]


async def test_a_late_listener_gives_the_others_a_turn() -> None:
    """A task that waits for a set event in a loop does not keep other tasks from running."""
    bell, turns = AutoResetEvent(), []
    bell.set()

    async def other() -> None:
        turns.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(3):
            await bell.wait()
        assert turns == ["other"]
