"""Looking: at an actor between two messages, and at one that is stuck, at the very second."""

from __future__ import annotations

from typing import Any

import anyio

from actors import AskTimeout, Context, Lane
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.asking import Takes

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
    await anyio.sleep(9.0)
    seen = desk.system.inspect("s")
    desk.same("at rest", (seen.handling, seen.handling_s), ("", 0.0))


async def for_ages(desk: Desk) -> None:
    """Who has been at a message for longer than there was a clock before it says so."""
    age_s = anyio.current_time() + 1.0
    desk.system.spawn(Takes(2 * age_s), "a").tell("x")
    await anyio.sleep(age_s)
    desk.at("in hand since", age_s, 1, desk.system.inspect("a").handling_s)
    desk.system.stop("a", "enough")


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


class Slow:
    """Hears, and takes its time."""

    async def receive(self, ctx: Context, message: Any) -> None:
        await anyio.sleep(0.0)


async def handled(desk: Desk) -> None:
    """However a message comes, it is counted once: by any lane, asked in place or in the queue, or from a timer."""
    for kind in (Quick, Slow):
        for closely in (False, True):
            name, wanted = f"{kind.__name__}, traced: {closely}", 0
            ref = desk.system.spawn(kind(), name)
            context: Any = desk.system.context(name)
            if closely:
                desk.system.trace(name)
            for place in range(12):
                match desk.chance.choice((*Lane, "ask", "asks", "timer"), "how", name, place):
                    case "ask":
                        await ref.ask(place, timeout_s=1.0)
                        wanted += 1
                    case "asks":
                        ref.tell(place)
                        await ref.ask(place, timeout_s=1.0)
                        wanted += 2
                    case "timer":
                        context.set_timer("t", 0.0, place)
                        wanted += 1
                    case lane:
                        ref.tell(place, lane=lane)
                        wanted += 1
                await anyio.sleep(0.1)
                stats = await desk.system.stats(name, timeout_s=1.0)
                desk.same(f"{name}: handled, with number {place}", (stats.handled, stats.timers), (wanted, 0))


LOOKING = (stuck, for_ages, traces, handled)
