"""Asks: answers, deadlines, who goes away, who waits for whom; and what an actor puts aside, or sets for later."""

from __future__ import annotations

from typing import Any

import anyio

from actors import (
    DEFERRED,
    ActorStopped,
    AskTimeout,
    Context,
    DeadlockError,
    Lane,
    Ref,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["ASKING", "Takes"]


class Broken(Exception):
    """What a handler raises here."""


class Plain:
    """Answers at once, later, never, or by an error."""

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "broken":
            raise Broken
        if message == "later":
            envelope = ctx.envelope
            assert envelope is not None
            ctx.start_task(self._answer, envelope.reply)
            return DEFERRED
        return DEFERRED if message == "never" else f"{message}!"

    async def _answer(self, reply: Any) -> None:
        await anyio.sleep(1.0)
        reply.resolve("at last")


class Waits:
    """An async handler that takes two seconds, and notes how that ended."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    async def receive(self, ctx: Context, message: Any) -> Any:
        try:
            await anyio.sleep(2.0)
        except BaseException:
            self.noted.append(f"{message} cancelled")
            raise
        self.noted.append(f"{message} done")
        return message


class Asks:
    """Asks another one on behalf of its asker."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.other: Ref | None = None
        self.timeout_s = timeout_s

    async def receive(self, ctx: Context, message: Any) -> Any:
        assert self.other is not None
        return await self.other.ask(message, timeout_s=self.timeout_s)


async def answers(desk: Desk) -> None:
    """An answer comes at once, or when it is given; an error is the asker's, and the actor's end."""
    ref = desk.system.spawn(Plain(), "p")
    desk.same("an answer", await ref.ask("yes", timeout_s=1.0), "yes!")
    desk.at("an answer in place", 0.0)
    desk.same("a deferred answer", await ref.ask("later", timeout_s=5.0), "at last")
    desk.at("a deferred answer", 1.0)
    desk.again()
    await desk.raises("an ask that nobody answers", ref.ask("never", timeout_s=0.5), AskTimeout)
    desk.at("an ask that nobody answers", 0.5)
    late = ref.late_replies
    await desk.raises("a late answer", ref.ask("later", timeout_s=0.5), AskTimeout)
    await anyio.sleep(2.0)
    desk.same("late answers", ref.late_replies - late, 0)
    await desk.raises("an ask that breaks it", ref.ask("broken", timeout_s=1.0), Broken)
    await desk.system.join("p")
    await desk.raises("an ask of who is gone", ref.ask("yes", timeout_s=1.0), ActorStopped)
    desk.same("crashes", desk.system.crashes, 1)


async def leaving(desk: Desk) -> None:
    """Whose asker is gone is cancelled where he did not say *detach*, and what is queued is not handled."""
    waits = Waits()
    ref = desk.system.spawn(waits, "w")
    await desk.raises("too short a time", ref.ask("a", timeout_s=0.5), AskTimeout)
    desk.at("too short a time", 0.5)
    await desk.raises("too short, but detached", ref.ask("b", timeout_s=0.5, detach=True), AskTimeout)
    await desk.raises("queued behind that", ref.ask("c", timeout_s=0.5), AskTimeout)
    await anyio.sleep(3.0)
    desk.same("what became of them", waits.noted, ["a cancelled", "b done"])
    desk.same("late answers", ref.late_replies, 1)
    desk.again()
    desk.same("who waits has it", await ref.ask("d", timeout_s=5.0), "d")
    desk.at("who waits has it", 2.0)


async def stopping(desk: Desk) -> None:
    """Asks in hand and in the queue fail when the actor is stopped, with the reason of that."""
    ref = desk.system.spawn(Waits(), "w")
    failed: list[str] = []

    async def ask(text: str) -> None:
        error = await desk.raises(text, ref.ask(text, timeout_s=9.0), ActorStopped)
        failed.append(f"{text} {getattr(error, 'actor_id', '')}")

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a")
        group.start_soon(ask, "b")
        await anyio.sleep(0.5)
        desk.system.stop("w", "enough")
    desk.at("both have failed", 0.5)
    desk.same("who failed", sorted(failed), ["a w", "b w"])


async def chains(desk: Desk) -> None:
    """Who asks on behalf of an asker has no longer than that one; a circle is refused as it closes."""
    first, second, third = Asks(), Asks(), Waits()
    a, b = desk.system.spawn(first, "a"), desk.system.spawn(second, "b")
    c = desk.system.spawn(third, "c")
    first.other, second.other = b, c
    await desk.raises("a chain that is too slow", a.ask("x", timeout_s=1.0), AskTimeout)
    desk.at("a chain that is too slow", 1.0)
    await anyio.sleep(0.5)
    desk.again()
    desk.same("a chain in time", await a.ask("y", timeout_s=5.0), "y")
    desk.at("a chain in time", 2.0)
    second.other = a
    await desk.raises("a circle", a.ask("z", timeout_s=5.0), DeadlockError)
    desk.at("a circle", 2.0)


async def long_chains(desk: Desk) -> None:
    """Whose asker has longer than there was a clock before has all of that."""
    takes_s = anyio.current_time() + 10.0
    first = Asks(takes_s + 9.0)
    a, first.other = desk.system.spawn(first, "a"), desk.system.spawn(Takes(takes_s), "b")
    desk.same("a long chain", await a.ask("x", timeout_s=takes_s + 5.0), "x")


class Takes:
    """Takes so long for each message, and gives it back."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s

    async def receive(self, ctx: Context, message: Any) -> Any:
        await anyio.sleep(self.takes_s)
        return message


class Sends:
    """Sends on what it hears after so long, or asks for it, and notes how that went, and when."""

    def __init__(self, desk: Desk, after_s: float, *, asks: bool) -> None:
        self.desk, self.after_s, self.asks = desk, after_s, asks
        self.other: Ref | None = None
        self.noted: list[tuple[str, float]] = []

    async def receive(self, ctx: Context, message: Any) -> None:
        if message != "go":
            return
        assert self.other is not None
        await anyio.sleep(self.after_s)
        try:
            await (self.other.ask("x", timeout_s=9.0) if self.asks else self.other.send("x", timeout_s=9.0))
            self.noted.append(("done", self.desk.since()))
        except DeadlockError:
            self.noted.append(("a circle", self.desk.since()))


async def full_circles(desk: Desk) -> None:
    """Who waits for room waits for whoever has none: so a circle is closed by a send, too, and refused then."""
    asking, sending = Sends(desk, 1.0, asks=True), Sends(desk, 0.5, asks=False)
    full = desk.system.spawn(asking, "full", capacity=1)
    sending.other, asking.other = full, desk.system.spawn(sending, "sends")
    full.tell("go")
    asking.other.tell("go")
    await anyio.sleep(0.1)
    full.tell("its only room")
    await anyio.sleep(5.0)
    for whose, noted, how in (("who asks", asking.noted, "a circle"), ("who sends", sending.noted, "done")):
        desk.same(whose, [what for what, _ in noted], [how])
        for _, at_s in noted:
            desk.at(whose, 1.0, 3, at_s)


class Anything:
    """Equal to all there is, as ``unittest.mock.ANY`` is."""

    def __eq__(self, other: object) -> bool:
        return True


class Same:
    """Gives back what it is asked."""

    def receive(self, ctx: Context, message: Any) -> Any:
        return message


async def odd_answers(desk: Desk) -> None:
    """What an answer is equal to is its own business: it is given."""
    odd = Anything()
    for name, actor in (("at once", Same()), ("later", Takes(0.5))):
        ref = desk.system.spawn(actor, name)
        desk.same(name, await ref.ask(odd, timeout_s=2.0) is odd, True)


class Clock:
    """Sets timers, and notes which of them ring, and when."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.rung: list[tuple[str, float]] = []

    def started(self, ctx: Context) -> None:
        for key, delay_s in (("a", 1.0), ("b", 2.0), ("c", 0.5), ("d", 0.0)):
            ctx.set_timer(key, delay_s, key)
        ctx.set_timer("a", 3.0, "a again")
        ctx.cancel_timer("b")

    def receive(self, ctx: Context, message: Any) -> None:
        self.rung.append((message, self.desk.since()))
        if message == "c":
            ctx.set_timer("e", 1.0, "e")


async def timers(desk: Desk) -> None:
    """Each rings once, at its instant; one that is set again, or cancelled, does not."""
    clock = Clock(desk)
    desk.system.spawn(clock, "clock")
    await anyio.sleep(1.0)
    desk.same("timers that run", (await desk.system.stats("clock", timeout_s=1.0)).timers, 2)
    await anyio.sleep(9.0)
    desk.same("what rang", [key for key, _ in clock.rung], ["d", "c", "e", "a again"])
    for (key, at_s), wanted_s in zip(clock.rung, (0.0, 0.5, 1.5, 3.0), strict=False):
        desk.at(key, wanted_s, 2, at_s)


class Choosy:
    """Puts everything aside until it is opened."""

    def __init__(self) -> None:
        self.open = False
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "open":
            self.open = True
            ctx.unstash_all()
        elif not self.open:
            ctx.stash()
        else:
            self.heard.append(message)
            return f"{message}!"
        return None


async def stashes(desk: Desk) -> None:
    """What was put aside comes first, in its order, and an ask among it is answered."""
    choosy = Choosy()
    ref = desk.system.spawn(choosy, "c")
    for text in ("1", "2"):
        ref.tell(text, lane=Lane.URGENT if text == "2" else Lane.NORMAL)
    answered: list[str] = []

    async def ask() -> None:
        answered.append(await ref.ask("3", timeout_s=5.0))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(1.0)
        desk.same("put aside", (await desk.system.stats("c", timeout_s=1.0)).stashed, 3)
        ref.tell("open")
        ref.tell("4")
    await desk.system.idle()
    desk.same("what was heard", choosy.heard, ["2", "1", "3", "4"])
    desk.same("the answer", answered, ["3!"])


ASKING = (answers, leaving, stopping, chains, long_chains, full_circles, odd_answers, timers, stashes)
