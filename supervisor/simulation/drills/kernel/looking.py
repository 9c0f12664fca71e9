"""Looking: at an actor between two messages, and at one that is stuck, at the very second."""

from __future__ import annotations

from typing import Any

import anyio

from actors import AskTimeout, Context
from supervisor.simulation.drills.desk import Desk

__all__ = ["LOOKING"]


class Stuck:
    """Waits in its handler."""

    def __init__(self) -> None:
        self.known = 7

    async def receive(self, ctx: Context, message: Any) -> None:
        await anyio.sleep(2.0)

    def get_state(self) -> int:
        return self.known


async def stuck(desk: Desk) -> None:
    """What it has in hand, and since when; who looks in-band waits for that, or for his own deadline."""
    ref = desk.system.spawn(Stuck(), "s")
    for number in range(3):
        ref.tell(number)
    await anyio.sleep(0.5)
    seen = desk.system.inspect("s")
    desk.same("in hand", (seen.handling, seen.phase, seen.suspended), ("int", "live", False))
    desk.at("in hand since", 0.5, 1, seen.handling_s)
    desk.same("tasks", [one.name for one in seen.tasks], ["receive"])
    desk.same("counters", (seen.stats.handled, seen.stats.queued["normal"]), (1, 2))
    await desk.raises("a look that is too short", desk.system.get_state("s", timeout_s=0.5), AskTimeout)
    desk.at("a look that is too short", 1.0, 2)
    desk.same("a look", await desk.system.get_state("s", timeout_s=5.0), 7)
    desk.at("a look", 2.0, 3)
    desk.same("its next message", list(await desk.system.peek("s", timeout_s=5.0)), [2])


class Quick:
    """Hears, and is done."""

    def receive(self, ctx: Context, message: Any) -> None:
        return None


async def traces(desk: Desk) -> None:
    """A trace has the messages in their order, and when; a suspended actor handles nothing."""
    ref = desk.system.spawn(Quick(), "q")
    desk.system.trace("q")
    ref.tell("a")
    await anyio.sleep(1.0)
    await desk.system.suspend("q", timeout_s=1.0)
    ref.tell(2)
    await anyio.sleep(1.0)
    desk.same("while it is suspended", desk.system.inspect("q").suspended, True)
    desk.same("handled then", (await desk.system.stats("q", timeout_s=1.0)).handled, 1)
    desk.system.resume("q")
    await desk.system.idle()
    desk.same("its trace", [kind for _, _, kind in desk.system.trace("q", on=False)], ["str", "int"])
    stats = await desk.system.stats("q", timeout_s=1.0)
    desk.same("handled", (stats.handled, sum(stats.queued.values()), stats.incarnation), (2, 0, 1))


LOOKING = (stuck, traces)
