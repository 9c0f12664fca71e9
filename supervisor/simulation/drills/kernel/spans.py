"""What is waited for: two of which one is enough, for a time, or to the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from actors.waiting import any_of, to_the_end, within
from supervisor.simulation.drills.desk import Desk

__all__ = ["SPANS"]


async def pair(desk: Desk) -> None:
    """Whichever comes first is waited for, and no longer than that."""
    for number in range(3):
        events = [anyio.Event() for _ in range(3)]
        desk.again()
        async with anyio.create_task_group() as group:

            async def later(event: anyio.Event = events[number]) -> None:
                await anyio.sleep(1.0)
                event.set()

            group.start_soon(later)
            await any_of(*events)
            desk.at("one of three", 1.0, 1)
        await any_of(*events)
        desk.at("one that is there", 1.0, 1)
    for seconds, takes_s, came in ((2.0, 1.0, True), (1.0, 3.0, False)):
        desk.again()
        desk.same("within its time", await within(seconds, partial(anyio.sleep, takes_s)), came)
        desk.at("within its time", min(seconds, takes_s), 1)


async def uncut(desk: Desk) -> None:
    """What is done to its end is, also where its caller is cancelled meanwhile, who has what it gives, or its error."""
    for fails in (False, True):

        async def work(fails: bool = fails) -> int:
            await anyio.sleep(2.0)
            if fails:
                raise ValueError("no")
            return 7

        for cut in (False, True):
            came: list[object] = []

            async def calls(work: Callable[[], Awaitable[int]] = work, came: list[object] = came) -> None:
                try:
                    came.append(await to_the_end(work))
                except ValueError as error:
                    came.append(str(error))

            desk.again()
            async with anyio.create_task_group() as group:
                group.start_soon(calls)
                await anyio.sleep(1.0)
                if cut:
                    group.cancel_scope.cancel()
            desk.at("it is done", 2.0, 1)
            desk.same("what comes of it", came, ["no" if fails else 7])


class Awaited:
    """What does not come at once; who gives it up is held up for so long, and who waits again has it after so long."""

    def __init__(self, held_s: float, again_s: float) -> None:
        self._held_s, self._again_s, self.begun = held_s, again_s, 0

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun > 1:
            await anyio.sleep(self._again_s)
            return
        try:
            await anyio.sleep(9.0)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self._held_s)


async def graces(desk: Desk) -> None:
    """Who looks at the time more than a second late waits for two more: what came meanwhile may still be unread."""
    for held_s, again_s, came, begun, over_s in (
        (0.5, 0.0, False, 1, 1.5),
        (1.5, 0.0, True, 2, 2.5),
        (1.5, 1.0, True, 2, 3.5),
        (1.5, 3.0, False, 2, 4.5),
        (40.0, 3.0, False, 2, 43.0),
    ):
        one = Awaited(held_s, again_s)
        desk.again()
        given = await within(1.0, one)
        desk.same(f"what comes {again_s:g} s after it was late by {held_s:g} s", (given, one.begun), (came, begun))
        desk.at(f"after it was late by {held_s:g} s", over_s, 3)


SPANS = (pair, uncut, graces)
