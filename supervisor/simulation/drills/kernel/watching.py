"""Fates: who hears of an end, who shares it, who keeps its name, and what an end grants to those below it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio

from actors import (
    ActorStopped,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    Down,
    Intensity,
    Killed,
    Linked,
    NameTaken,
    Normal,
    NoSuchActor,
    Poisoned,
    Restarted,
    Shutdown,
    Supervisor,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["WATCHING"]


class Told:
    """Does what it is told to with its context, and notes everything else that it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended: list[type] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            return message(ctx)
        self.heard.append(message)
        return None

    def stopped(self, ctx: Context, reason: object) -> None:
        self.ended.append(type(reason))


async def _do(desk: Desk, actor_id: str, act: Callable[[Context], Any]) -> Any:
    ref = desk.system.ref(actor_id)
    assert ref is not None
    return await ref.ask(act, timeout_s=5.0)


async def monitors(desk: Desk) -> None:
    """Each monitor hears of one end, once; what was taken back hears nothing, what is gone is told at once."""
    watcher = Told()
    desk.system.spawn(watcher, "w")
    for name, end, kind in (
        ("a", lambda ctx: ctx.exit(), Normal),
        ("b", lambda ctx: ctx.stop("enough"), Shutdown),
        ("c", lambda ctx: 1 / 0, Crashed),
    ):
        desk.system.spawn(Told(), name)
        for _ in range(2):
            await _do(desk, "w", lambda ctx, name=name: ctx.monitor(name))  # type: ignore[misc]
        taken = await _do(desk, "w", lambda ctx, name=name: ctx.monitor(name))  # type: ignore[misc]
        await _do(desk, "w", lambda ctx, taken=taken: ctx.demonitor(taken))  # type: ignore[misc]
        desk.system.ref(name).tell(end)  # type: ignore[union-attr]
        await desk.system.join(name)
        await desk.system.idle()
        told = [(type(one), one.id, type(one.reason), one.incarnation) for one in watcher.heard]
        desk.same(f"the end of {name}", told, [(Down, name, kind, 1)] * 2)
        watcher.heard.clear()
    await _do(desk, "w", lambda ctx: ctx.monitor("nobody"))
    await desk.system.idle()
    desk.same("an end long ago", watcher.heard, [Down("nobody", None, 0)])


class Breakable(Told):
    """Breaks at a word."""

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "break":
            raise RuntimeError(message)
        return super().receive(ctx, message)


async def rebirths(desk: Desk) -> None:
    """Who wants to know hears that an actor lives again, with its number; a monitor without that only of its end."""
    watcher = Told()
    desk.system.spawn(watcher, "w")
    spec = ChildSpec("c", Breakable)
    app = Supervisor([spec], backoff=Backoff(base_s=0.0, cap_s=0.0), child_intensity=Intensity(2, 60.0))
    desk.system.spawn(app, "s")
    await _do(desk, "w", lambda ctx: ctx.monitor("s/c", watch_restarts=True))
    await _do(desk, "w", lambda ctx: ctx.monitor("s/c"))
    ref = desk.system.ref("s/c")
    assert ref is not None
    for _ in range(3):
        ref.tell("break")
        await anyio.sleep(1.0)
    told = [(type(one), one.incarnation) for one in watcher.heard]
    desk.same("what was heard", told, [(Restarted, 2), (Restarted, 3), (Down, 3), (Down, 3)])
    desk.same("its number", ref.incarnation, 3)


async def links(desk: Desk) -> None:
    """A link goes both ways, an unlinked one neither; being done ends nobody, and who is gone cannot be linked to."""
    for number, (end, shared) in enumerate(
        ((lambda ctx: ctx.exit(), False), (lambda ctx: ctx.stop(), True), (lambda ctx: 1 / 0, True))
    ):
        a, b, c = f"a{number}", f"b{number}", f"c{number}"
        ends: dict[str, Any] = {}
        for name in (a, b, c):
            desk.system.spawn(Told(), name)
            desk.system.monitor(name, lambda down, ends=ends: ends.update({down.id: down.reason}))  # type: ignore[misc]
        await _do(desk, a, lambda ctx, b=b: ctx.link(b))  # type: ignore[misc]
        await _do(desk, b, lambda ctx, c=c: ctx.link(c))  # type: ignore[misc]
        await _do(desk, b, lambda ctx, c=c: ctx.unlink(c))  # type: ignore[misc]
        desk.same("its links", list(desk.system.inspect(b).links), [a])
        desk.system.ref(b).tell(end)  # type: ignore[union-attr]
        await desk.system.join(b)
        await desk.system.idle()
        desk.same(f"who ended with {b}", sorted(ends), [a, b] if shared else [b])
        if shared and a in ends:
            desk.same("why", (type(ends[a]), getattr(ends[a], "id", "")), (Linked, b))
    with suppress(NoSuchActor):
        desk.same("a link to nobody", await _do(desk, "c0", lambda ctx: ctx.link("nobody")), "refused")


async def names(desk: Desk) -> None:
    """A name is one actor's, until that gives it up or ends; then anybody may have it."""
    for name in "ab":
        desk.system.spawn(Told(), name)
    await _do(desk, "a", lambda ctx: ctx.register("first"))
    await _do(desk, "a", lambda ctx: ctx.register("first"))
    await _do(desk, "a", lambda ctx: ctx.register("second"))
    desk.same("its names", list(desk.system.inspect("a").names), ["first", "second"])

    def takes(ctx: Context) -> str:
        try:
            ctx.register("first")
        except NameTaken:
            return "taken"
        return "free"

    desk.same("a name that somebody has", await _do(desk, "b", takes), "taken")
    await _do(desk, "b", lambda ctx: ctx.unregister("first"))
    desk.same("whose it is", getattr(desk.system.whereis("first"), "id", None), "a")
    await _do(desk, "a", lambda ctx: ctx.unregister("first"))
    desk.same("a name that was given up", (desk.system.whereis("first"), await _do(desk, "b", takes)), (None, "free"))
    desk.same("a name that is somebody else's now", await _do(desk, "a", takes), "taken")
    found: list[object] = []
    desk.system.monitor("a", lambda down: found.append(desk.system.whereis("second")))
    context = desk.system.context("a")
    desk.system.stop("a")
    await desk.system.join("a")
    desk.same("a name when its end is heard of", found, [None])
    assert context is not None
    with suppress(ActorStopped):
        context.register("third")
        desk.same("a name for the dead", "given", "refused")


class Message:
    """May be handled more than once."""

    idempotent = True


class Sick(Told):
    """Cannot bear some messages."""

    def receive(self, ctx: Context, message: Any) -> Any:
        if isinstance(message, Message):
            raise RuntimeError("sick")
        return super().receive(ctx, message)


async def poison(desk: Desk) -> None:
    """A message that breaks every incarnation is given to as many as its child spec says, and then to nobody."""
    for redeliver in (0, 1, 2):
        events: list[Any] = []
        desk.system.on_event = events.append
        name = f"s{redeliver}"
        app = Supervisor(
            [ChildSpec("c", Sick, redeliver=redeliver)],
            backoff=Backoff(base_s=0.0, cap_s=0.0),
            child_intensity=Intensity(9, 60.0),
        )
        desk.system.spawn(app, name)
        ref = desk.system.ref(f"{name}/c")
        assert ref is not None
        ref.tell(Message())
        await anyio.sleep(2.0)
        desk.same("incarnations", ref.incarnation, redeliver + 2)
        given_up = [one.attempts for one in events if isinstance(one, Poisoned)]
        desk.same("poison", given_up, [redeliver + 1] if redeliver else [])
        desk.same("what nobody has handled", sum(type(one).__name__ == "DeadLetter" for one in events), 1)


class Cleans(Told):
    """Has two tasks that clean up for long."""

    def __init__(self, each_s: float) -> None:
        super().__init__()
        self.each_s = each_s
        self.took: list[float] = []

    def begin(self, ctx: Context, desk: Desk) -> None:
        ctx.start_task(self._clean, ctx, desk, name="cleans")

    async def _clean(self, ctx: Context, desk: Desk) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(self.each_s):
                await anyio.sleep(30.0)
            with ctx.cleanup(self.each_s):
                await anyio.sleep(30.0)
            self.took.append(desk.since())


async def cleaning(desk: Desk) -> None:
    """Clean-up has its own budget for each block, five seconds in all, and none where the actor is killed."""
    for number, (each_s, killed, wanted_s) in enumerate(((1.0, False, 2.0), (4.0, False, 5.0), (4.0, True, 0.0))):
        name, one = f"c{number}", Cleans(each_s)
        desk.system.spawn(one, name, shutdown_s=20.0)
        await _do(desk, name, lambda ctx, one=one: one.begin(ctx, desk))  # type: ignore[misc]
        await anyio.sleep(1.0)
        desk.again()
        if killed:
            desk.system.kill(name, "now")
        else:
            desk.system.stop(name)
        await desk.system.join(name)
        desk.at(f"clean-up of {each_s:g} s twice{', killed' if killed else ''}", wanted_s, 3)
        desk.same("its last word", one.ended, [] if killed else [Shutdown])


async def overdrawn(desk: Desk) -> None:
    """Who holds its clean-up up for longer than it has finds nothing left of its budget: the next block is over as it
    begins, as one of no time is, and no error."""
    for number, (held_s, left_s) in enumerate(((2.0, 3.0), (4.5, 0.5), (5.0, 0.0), (5.4, 0.0), (7.5, 0.0))):
        await _overdraw(desk, f"o{number}", held_s, left_s)
    for seconds in (-30.0, -0.4, 0.0, 0.4):
        desk.again()
        with desk.system.timers.limit(seconds) as limit:
            await anyio.sleep(1.0)
        desk.same(f"within {seconds:g} s", limit.cancelled_caught, True)
        desk.at(f"within {seconds:g} s", max(seconds, 0.0), 2)
    for shield, ends_s in (({}, 0.5), ({"shield": False}, 0.5), ({"shield": True}, 2.0)):
        desk.again()
        with anyio.move_on_after(0.5), desk.system.timers.limit(2.0, **shield):
            await anyio.sleep(9.0)
        desk.at(f"within a shorter time, {shield}", ends_s, 2)


async def _overdraw(desk: Desk, name: str, held_s: float, left_s: float) -> None:
    took, one = list[tuple[bool, float]](), Told()

    async def cleans(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(1.0), anyio.CancelScope(shield=True):
                await anyio.sleep(held_s)
            for _ in range(2):
                with ctx.cleanup(4.0) as scope:
                    await anyio.sleep(30.0)
                took.append((scope.cancelled_caught, desk.since()))

    desk.system.spawn(one, name, shutdown_s=20.0)
    await _do(desk, name, lambda ctx: ctx.start_task(cleans, ctx))
    await anyio.sleep(1.0)
    desk.again()
    desk.system.stop(name)
    await desk.system.join(name)
    desk.same(f"after {held_s:g} s two more are cut", [cut for cut, _ in took], [True, True])
    for _, at_s in took:
        desk.at(f"after {held_s:g} s another one", held_s + left_s, 4, at_s)
    desk.same("its last word", one.ended, [Shutdown])


async def kills(desk: Desk) -> None:
    """A kill grants no last word, to nobody below either; an end with a grace is one deadline for all."""
    noted: dict[str, Any] = {}
    ones = {name: Told() for name in ("p", "p/q", "p/q/r")}
    for name, one in ones.items():
        desk.system.spawn(one, name, **({"parent": name.rpartition("/")[0]} if "/" in name else {}))  # type: ignore[arg-type]
        desk.system.monitor(name, lambda down: noted.update({down.id: type(down.reason)}))
    desk.system.kill("p", "now")
    await desk.system.join("p")
    desk.same("who was killed", noted, {"p/q/r": Killed, "p/q": Killed, "p": Killed})
    desk.same("their last words", [one.ended for one in ones.values()], [[], [], []])

    async def stays(name: str) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(50.0)

    for name in ("x", "x/y", "x/y/z"):
        desk.system.spawn(Told(), name, shutdown_s=20.0, **({"parent": name.rpartition("/")[0]} if "/" in name else {}))  # type: ignore[arg-type]
        await _do(desk, name, lambda ctx, name=name: ctx.start_task(stays, name))  # type: ignore[misc]
    await anyio.sleep(1.0)
    desk.again()
    desk.system.stop("x", grace_s=3.0)
    await desk.system.join("x")
    if not 3.0 - 1e-6 <= desk.since() <= 4.5:
        desk.at("one deadline for three", 3.0, 9)


WATCHING = (monitors, rebirths, links, names, poison, cleaning, overdrawn, kills)
