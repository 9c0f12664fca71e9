"""Answers that come later: what is kept of who waits for one, and what he hears when none comes."""

from __future__ import annotations

import weakref
from typing import Any

import anyio

from actors import (
    DEFERRED,
    ActorRestarting,
    ActorStopped,
    AskTimeout,
    Backoff,
    ChildSpec,
    Context,
    Intensity,
    Ref,
    Supervisor,
)
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.does import Does, ref_of

__all__ = ["LATER"]

ASK_S = 5.0


async def frees(desk: Desk) -> None:
    """What was answered later is not kept: an actor that defers a hundred answers keeps none of the asks, and not many
    more than those that still wait, where some do."""

    class Wish:
        """Somebody's, who is gone when nobody keeps it."""

    kept: list[Any] = []

    class Later:
        def receive(self, ctx: Context, message: Any) -> Any:
            envelope = ctx.envelope
            assert envelope is not None
            kept.append(envelope.reply)
            asked.set()
            return DEFERRED

    for waiting in (0, 1, 2, 5):
        ref, most = desk.system.spawn(Later(), f"later{waiting}"), 0
        alive: weakref.WeakSet[Wish] = weakref.WeakSet()
        async with anyio.create_task_group() as others:
            for number in range(waiting + 100):
                wish, asked = Wish(), anyio.Event()
                alive.add(wish)
                async with anyio.create_task_group() as group:
                    (others if number < waiting else group).start_soon(_hear, desk, ref, wish, number)
                    await asked.wait()
                    if number >= waiting:
                        kept.pop().resolve(number)
                del wish
                most = max(most, len(alive))
            for number, reply in enumerate(kept):
                reply.resolve(number)
            kept.clear()
        desk.same(f"how many asks are kept at a time beside {waiting}", most <= 2 * (waiting + 4), True)


async def owes(desk: Desk) -> None:
    """Whoever still waits for a later answer hears of the end of its actor. That one more waits costs the same, however
    many there are: they are gone through only when they have doubled."""
    kept: list[Any] = []
    lists: list[Any] = []

    class Later:
        def receive(self, ctx: Any, message: Any) -> Any:
            kept.append(ctx.envelope.reply)
            if not any(one is ctx.rare.asks for one in lists[-1:]):
                lists.append(ctx.rare.asks)
            asked.set()
            return DEFERRED

    async def ask(ref: Ref, number: int, told: dict[int, Any]) -> None:
        try:
            told[number] = await ref.ask(number, timeout_s=ASK_S)
        except (ActorStopped, AskTimeout) as error:
            told[number] = type(error)

    for many in (1, 2, 3, 5, 8, 200):
        ref, told = desk.system.spawn(Later(), f"owes{many}"), dict[int, Any]()
        async with anyio.create_task_group() as group:
            for number in range(many):
                asked = anyio.Event()
                group.start_soon(ask, ref, number, told)
                await asked.wait()
            for number in range(0, many, 3):
                kept[number].resolve(number)
            desk.system.stop(f"owes{many}")
        wanted = {number: ActorStopped if number % 3 else number for number in range(many)}
        desk.same(f"what {many} hear", told, wanted)
        desk.same(f"how often {many} are gone through: {len(lists)}", len(lists) <= 2 * many.bit_length(), True)
        kept.clear()
        lists.clear()


async def _hear(desk: Desk, ref: Ref, wish: Any, number: int) -> None:
    desk.same("an answer that comes later", await ref.ask(wish, timeout_s=ASK_S), number)


class Owes(Does):
    """Answers nobody before it is told to, and breaks when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.owed: dict[int, Any] = {}

    def receive(self, ctx: Context, message: Any) -> Any:
        if not isinstance(message, int):
            raise ValueError(message)
        assert ctx.envelope is not None, "it is an ask"
        self.owed[message] = ctx.envelope.reply
        return DEFERRED


class OwesLater(Owes):
    """The same, by an async handler."""

    async def receive(self, ctx: Context, message: Any) -> Any:
        return super().receive(ctx, message)


async def owed(desk: Desk) -> None:
    """Whoever waits for an answer that is deferred hears of the end at once, however many wait; who has one has it."""
    many, asks = Intensity(9, 1000.0), range(20)
    for kind in (Owes, OwesLater):
        for comes_back, wanted in ((False, "ActorStopped"), (True, "ActorRestarting")):
            top = f"{kind.__name__}-{comes_back}"
            spec = ChildSpec("c", kind)
            desk.system.spawn(Supervisor([spec], backoff=Backoff(base_s=5.0), intensity=many), top)
            ref, told = ref_of(desk, f"{top}/c"), dict[int, Any]()

            async def ask(number: int, ref: Ref = ref, told: dict[int, Any] = told) -> None:
                try:
                    told[number] = await ref.ask(number, timeout_s=ASK_S)
                except (ActorStopped, ActorRestarting, AskTimeout) as error:
                    told[number] = type(error).__name__

            async with anyio.create_task_group() as group:
                for number in asks:
                    group.start_soon(ask, number)
                    await anyio.sleep(0.01)
                    if number % 3 == 2:  # that of the first of three, while the others are owed
                        cell: Any = desk.system.cell(ref.id)
                        cell.actor.owed[number - 2].resolve("answered")
                desk.again()
                if comes_back:
                    ref.tell("break")
                else:
                    desk.system.stop(top, grace_s=1.0)
            desk.at(f"{top}: who waits hears of it", 0.0)
            answered = {number: "answered" for number in asks if number % 3 == 0 and number + 2 in asks}
            desk.same(f"{top}: what they hear", told, {**dict.fromkeys(asks, wanted), **answered})


LATER = (frees, owes, owed)
