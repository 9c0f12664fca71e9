"""Turns: after how many messages, and after how long, whoever has the loop gives it up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import anyio

from actors import (
    Lane,
)
from actors.dispatch import Dispatcher
from actors.host import Worker
from actors.parking import Backend, Parker
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.does import Does, DoesLater

__all__ = ["TURNS"]

QUANTUM = 16
LEFT = 1000
"""Messages that are to be handled, where many are."""


class Counted:
    """Awaits something, and notes after how much of it the loop was given up each time."""

    def __init__(self, wait: Awaitable[Any], seen: Callable[[], int]) -> None:
        self._wait, self._seen = wait, seen
        self.at: list[int] = []

    def __await__(self) -> Generator[Any, Any, None]:
        steps, given = self._wait.__await__(), None
        while True:
            try:
                trap = steps.send(given)
            except StopIteration:
                return
            self.at.append(self._seen())
            given = yield trap


async def shares(desk: Desk) -> None:
    """A worker gives the loop up after 16 messages that did not wait; who asks in place, or sends, after 64."""

    class Owner:
        backend = desk.system.dispatcher.backend

        def __init__(self) -> None:
            self.served = 0

        def has_message(self) -> bool:
            return True

        async def serve_next(self, worker: Worker) -> None:
            self.served += 1
            worker.retired = self.served == 100

    owner = Owner()
    counted = Counted(Worker(owner).run(), lambda: owner.served)
    await counted
    desk.same("when a worker lets others go on", sorted({*counted.at}), [*range(QUANTUM, 100, QUANTUM)])
    ref = desk.system.spawn(Does(), "asked", capacity=500)
    await desk.system.idle()

    async def pauses_of(does: Callable[..., Awaitable[Any]]) -> list[int]:
        done = 0

        async def often() -> None:
            nonlocal done
            for _ in range(400):
                await does("x", timeout_s=1.0)
                done += 1

        many = Counted(often(), lambda: done)
        await many
        return [0, *sorted({*many.at}), 400]

    for what, does in (("asks are answered in place", ref.ask), ("messages are sent", ref.send)):
        pauses = await pauses_of(does)
        longest = max(later - sooner for sooner, later in pairwise(pauses))
        desk.same(f"how many {what} in a row", (longest <= 64, len(pauses) < 40), (True, True))


class Steady:
    """Has so many messages to handle, so many in each turn, and each of them takes its time."""

    def __init__(self, left: int, each: int, loop: Loop) -> None:
        self.left, self.front, self.queued = left, False, False
        self._each, self._loop = each, loop

    def drain(self, most: int) -> int:
        taken = min(most, self._each, self.left)
        self.left -= taken
        self._loop.handled += taken
        self._loop.now_s += taken * self._loop.takes_s
        return taken

    def ready(self) -> bool:
        return self.left > 0

    def pressing(self) -> bool:
        return False

    def step_down(self) -> None:
        raise AssertionError("it does not end")


class Loop:
    """The loop as the dispatcher sees it: a clock that messages move."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s, self.now_s, self.handled = takes_s, 50.0, 0

    async def never(self, *given: Any) -> None:
        raise AssertionError("nobody waits here")

    async def given_up(self, *runnable: Any) -> list[int]:
        """After how many messages the dispatcher gives it up, where these are all that it has to do."""

        def parker() -> Parker:
            raise Enough

        clock = partial(getattr, self, "now_s")
        self.dispatcher = Dispatcher(Backend("drill", clock, parker, partial(anyio.sleep, 0.0), self.never))
        for one in runnable:
            self.dispatcher.make_runnable(one)
        counted = Counted(self.dispatcher.run(), partial(getattr, self, "handled"))
        with suppress(Enough):
            await counted
        return counted.at


class Enough(Exception):
    """There is nothing more to do."""


async def batches(desk: Desk) -> None:
    """The loop is given up after 256 messages, by turns of any length, or after 1 ms, which is looked at after 16."""
    for each, takes_s, wanted in (
        (QUANTUM, 0.0, 256),
        (3, 0.0, 258),  # no turn is cut short
        (7, 0.0, 259),
        (QUANTUM, 1e-5, 112),
        (3, 1e-5, 108),
        (1, 1e-5, 112),
        (QUANTUM, 1.0, QUANTUM),
    ):
        loop = Loop(takes_s)
        given_up = await loop.given_up(*(Steady(LEFT // 2, each, loop) for _ in range(2)))
        shown = [0, *range(wanted, LEFT, wanted)]
        desk.same(f"when the loop is given up, {each} at a time for {takes_s:g} s", given_up[: len(shown)], shown)


async def idlers(desk: Desk) -> None:
    """A turn in which nothing is handled counts for nothing, whoever has it: who waits, is held, or is gone."""
    system, cells = desk.system, list[Any]()
    for number in range(40):
        for kind in (Does, DoesLater):
            names = [f"{kind.__name__}-{what}-{number}" for what in ("waits", "held", "traced", "gone")]
            for name in names:
                system.spawn(kind(), name)
            cells += [system.cell(name) for name in names]
            await system.suspend(names[1], timeout_s=1.0)
            system.trace(names[2])
            system.stop(names[3], grace_s=1.0)
            await system.join(names[3])
    for takes_s, wanted in ((0.0, 256), (1e-5, 112)):
        for place, what in enumerate(("waits", "held", "traced", "gone")):
            loop = Loop(takes_s)
            busy = (Steady(LEFT // 2, QUANTUM, loop) for _ in range(2))
            given = await loop.given_up(*cells[place::4], *busy)
            desk.same(f"when the loop is given up after one who {what}", given[:2], [0, wanted])


async def bursts(desk: Desk) -> None:
    """The count of URGENT messages in a row begins anew with each burst."""
    does = Does()
    ref = desk.system.spawn(does, "b", capacity=200)
    for urgent, normal in ((40, 0), (20, 3), (31, 1), (70, 2), (3, 3)):
        await desk.system.suspend("b", timeout_s=1.0)
        wanted: list[str] = []
        for number in range(normal):
            ref.tell(f"n{number}")
        for number in range(urgent):
            ref.tell(f"u{number}", lane=Lane.URGENT)
        desk.system.resume("b")
        await desk.system.idle()
        left = [f"n{number}" for number in range(normal)]
        for number in range(urgent):
            wanted.append(f"u{number}")
            if number % 32 == 31 and left and number + 1 < urgent:
                wanted.append(left.pop(0))
        desk.same(f"{urgent} and {normal}", does.heard, [*wanted, *left])
        does.heard.clear()


TURNS = (shares, bursts, batches, idlers)
