"""``WaitGroup``: waiting until no work is in flight."""

from __future__ import annotations

import anyio
import pytest

from actors.one_shot_event import WaitGroup

pytestmark = pytest.mark.anyio


async def test_who_waits_until_none_is_under_way_waits_for_all_of_them() -> None:
    under_way, heard = WaitGroup(), list[str]()
    await under_way.none()

    async def wait(name: str) -> None:
        await under_way.none()
        heard.append(name)

    async with anyio.create_task_group() as group:
        with under_way.one():
            group.start_soon(wait, "a")
            group.start_soon(wait, "b")
            with under_way.one():
                await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            assert heard == []
    assert sorted(heard) == ["a", "b"]


async def test_one_that_begins_just_as_the_last_ends_is_waited_for() -> None:
    under_way, heard = WaitGroup(), list[str]()

    async def wait() -> None:
        await under_way.none()
        heard.append("over")

    async with anyio.create_task_group() as group:
        with under_way.one():
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
        with under_way.one():  # whoever waited is awake by now, and looks again
            await anyio.wait_all_tasks_blocked()
            assert heard == []
    assert heard == ["over"]
