"""Homes: in whose scope tasks run, what ends without a word, errors that come in groups, messages that are plain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from actors import (
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DeadLetter,
    Down,
    Killed,
    Lane,
    Shutdown,
    Supervisor,
    TaskFailed,
    WrongMessage,
)
from actors.supervision import BRUTAL_KILL, StopChild
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.bounds import in_order

__all__ = ["HOMES"]


class Works:
    """Runs what it is told as a task, and notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended: list[type] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            ctx.start_task(message, name="work")
        else:
            self.heard.append(message)
        return None

    def stopped(self, ctx: Context, reason: object) -> None:
        self.ended.append(type(reason))


def _forever(noted: list[str], name: str) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            noted.append(name)

    return work


async def scopes(desk: Desk) -> None:
    """A cancelled scope ends the tasks of all that are at home in it, and of nobody else; they take no new ones."""
    for deep in (False, True):
        noted: list[str] = []
        tag = "d" if deep else "f"
        names = [f"{tag}", f"{tag}/q", f"{tag}/q/r", f"{tag}x"]
        for name in names:
            above = name.rpartition("/")[0]
            options: dict[str, Any] = {"parent": above, "home": tag if deep else None} if above else {}
            desk.system.spawn(Works(), name, **options).tell(_forever(noted, name))
        await anyio.sleep(1.0)
        hit = f"{tag}/q"
        context = desk.system.context(hit)
        assert context is not None
        context.scope.cancel("enough")
        await anyio.sleep(1.0)
        desk.same(f"who was at home in {hit}, deep={deep}", sorted(noted), [hit] if deep else [hit, f"{hit}/r"])
        desk.same("who lives", [name in desk.system for name in names], [True] * 4)
        for name in names:
            desk.system.stop(name)
        await desk.system.join(tag)
        await desk.system.join(f"{tag}x")
        desk.same("in the end", sorted(noted), sorted(names))


async def brutes(desk: Desk) -> None:
    """A child without time for its end has no last word, and one with time has; so it is when its group goes down."""
    for number, (shutdown_s, wanted) in enumerate(((BRUTAL_KILL, []), (2.0, [Shutdown]))):
        kids: list[Works] = []
        name = f"s{number}"

        def made(kids: list[Works] = kids) -> Works:
            kids.append(Works())
            return kids[-1]

        specs = [ChildSpec("a", made, shutdown_s=shutdown_s), ChildSpec("b", Breaks)]
        app = Supervisor(specs, strategy="one_for_all", backoff=Backoff(0.0, 2.0, 0.0))  # type: ignore[arg-type]
        downs: list[Down] = []
        ref = desk.system.spawn(app, name)
        desk.system.ref(f"{name}/b").tell("break")  # type: ignore[union-attr]
        await anyio.sleep(1.0)
        desk.same("its last word when its group went down", [one.ended for one in kids], [wanted, []])
        desk.system.monitor(f"{name}/a", downs.append)
        await ref.ask(StopChild("a"), timeout_s=5.0)
        desk.same("its last word", kids[-1].ended, wanted)
        desk.same("its end", [type(one.reason) for one in downs], [Shutdown if wanted else Killed])
        desk.system.stop(name)
        await desk.system.join(name)


class Breaks(Works):
    """Breaks at a word; only takes words."""

    accepts = (str,)

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "break":
            raise ValueError(message)
        return super().receive(ctx, message)


async def errors(desk: Desk) -> None:
    """One error in groups is that error, of several the first has the others; what is not accepted is the sender's."""
    works = Works()
    ref = desk.system.spawn(works, "w")

    async def several(*texts: str) -> None:
        raise ExceptionGroup("several", [ExceptionGroup("inner", [ValueError(one)]) for one in texts])

    async def one() -> None:
        await several("alone")

    async def two() -> None:
        await several("first", "second", "third")

    for work in (one, two):
        ref.tell(work)
        await anyio.sleep(0.5)
    told = [(one.name, str(one.error), len(getattr(one.error, "suppressed", ()))) for one in works.heard]
    desk.same("what failed", told, [("work", "alone", 0), ("work", "first", 2)])
    desk.same("that it did", {type(one) for one in works.heard}, {TaskFailed})
    picky = desk.system.spawn(Breaks(), "p")
    try:
        picky.tell(1)
        desk.same("what is not accepted", "taken", "refused")
    except WrongMessage:
        pass
    letters: list[Any] = []
    desk.system.on_event = letters.append
    await desk.system.suspend("p", timeout_s=1.0)
    for text in ("break", "a", "b"):
        picky.tell(text)
    downs: list[Down] = []
    desk.system.monitor("p", downs.append)
    desk.system.resume("p")
    await desk.system.join("p")
    lost = [(one.message, one.why) for one in letters if isinstance(one, DeadLetter)]
    desk.same("what was lost", lost, [("break", "crashed"), ("a", "stopped"), ("b", "stopped")])
    desk.same("its end", [(type(one.reason), one.incarnation) for one in downs], [(Crashed, 1)])


async def plain(desk: Desk) -> None:
    """Messages without a size are heard in the order of their lanes too, and fill a mailbox by their number."""
    works = Works()
    ref = desk.system.spawn(works, "w", capacity=400)
    await desk.system.suspend("w", timeout_s=1.0)
    queued: list[tuple[Lane, str]] = []
    for number in range(desk.chance.integer(100, 180, "many")):
        lane = desk.chance.choice((Lane.CONTROL, Lane.URGENT, Lane.URGENT, Lane.NORMAL, Lane.NORMAL), "lane", number)
        queued.append((lane, f"{number}"))
        ref.tell(number, lane=lane)
    stats = await desk.system.stats("w", timeout_s=1.0)
    wanted = {lane.name.lower(): sum(one is lane for one, _ in queued) for lane in Lane}
    desk.same("what is queued", (dict(stats.queued), stats.queued_bytes), (wanted, 0))
    desk.same("a look at it", list(await desk.system.peek("w", most=2, timeout_s=1.0)), _first(queued, 2))
    desk.system.resume("w")
    await desk.system.idle()
    desk.same("what was heard", [f"{one}" for one in works.heard], in_order(queued))


def _first(queued: list[tuple[Lane, str]], most: int) -> list[int]:
    return [int(text) for lane in Lane for one, text in queued if one is lane][:most]


HOMES = (scopes, brutes, errors, plain)
