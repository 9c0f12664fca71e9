"""Ends: the order of a tree, who hears of it, tasks that do not want to, and coming back."""

from __future__ import annotations

from typing import Any

import anyio

from actors import (
    Abandoned,
    ActorRestarting,
    ActorStopped,
    Backoff,
    CancelSwallowed,
    ChildSpec,
    Context,
    Crashed,
    Down,
    GraceExceeded,
    Intensity,
    Linked,
    RestartLimitExceeded,
    Shutdown,
    Supervisor,
    TaskFailed,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["ENDING"]


class Mortal:
    """Notes its end."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self.name, self.noted = name, noted

    def receive(self, ctx: Context, message: Any) -> None:
        if message == "crash":
            raise RuntimeError(self.name)
        if message == "exit":
            ctx.exit()
        if isinstance(message, str) and message.startswith("link "):
            ctx.link(message.removeprefix("link "))

    def stopped(self, ctx: Context, reason: object) -> None:
        self.noted.append(f"{self.name} {type(reason).__name__}")


async def trees(desk: Desk) -> None:
    """The youngest ends first, a parent after all below it; each end is heard of once."""
    noted: list[str] = []
    downs: list[Down] = []
    for name, parent in (("p", None), ("p/a", "p"), ("p/b", "p"), ("p/a/x", "p/a")):
        above = {} if parent is None else {"parent": parent}
        desk.system.spawn(Mortal(name, noted), name, **above)  # type: ignore[arg-type]
        desk.system.monitor(name, downs.append)
    lost = desk.system.dead_letters
    ref = desk.system.ref("p/b")
    assert ref is not None
    desk.system.stop("p", "enough")
    await desk.system.join("p")
    desk.same("the order of ends", noted, ["p/b Shutdown", "p/a/x Shutdown", "p/a Shutdown", "p Shutdown"])
    desk.same("who heard of it", sorted(one.id for one in downs), ["p", "p/a", "p/a/x", "p/b"])
    desk.same("why", {type(one.reason) for one in downs}, {Shutdown})
    desk.same("who is left", len(desk.system), 0)
    try:
        ref.tell("too late")
        desk.same("a tell of the dead", "taken", "refused")
    except ActorStopped:
        pass
    desk.same("dead letters", desk.system.dead_letters, lost)


async def links(desk: Desk) -> None:
    """A crash ends those that are linked to it, over any number of links; being done ends nobody."""
    noted: list[str] = []
    downs: dict[str, object] = {}
    for name in "abcd":
        desk.system.spawn(Mortal(name, noted), name)
        desk.system.monitor(name, lambda down: downs.update({down.id: type(down.reason)}))
    for name, other in (("a", "b"), ("b", "c"), ("d", "c")):
        desk.system.ref(name).tell(f"link {other}")  # type: ignore[union-attr]
    await desk.system.idle()
    desk.system.ref("d").tell("exit")  # type: ignore[union-attr]
    await desk.system.idle()
    desk.same("after one is done", sorted(downs), ["d"])
    desk.system.ref("a").tell("crash")  # type: ignore[union-attr]
    await desk.system.idle()
    desk.same("after one crashed", {one: downs.get(one) for one in "abc"}, {"a": Crashed, "b": Linked, "c": Linked})


class Stubborn:
    """Has a task that swallows its cancellation, or cleans up for longer than it may."""

    def __init__(self, cleans: bool) -> None:
        self.cleans = cleans
        self.released = anyio.Event()

    def receive(self, ctx: Context, message: Any) -> None:
        ctx.start_task(self._clean if self.cleans else self._stay, ctx, name="task")

    async def _stay(self, ctx: Context) -> None:
        with anyio.CancelScope(shield=True):
            await self.released.wait()

    async def _clean(self, ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(10.0):
                await anyio.sleep(10.0)


async def stubborn(desk: Desk) -> None:
    """It is reported after 250 ms, given up at its deadline, and waited for by nobody; clean-up is cut then."""
    for cleans in (False, True):
        one = Stubborn(cleans)
        told: list[tuple[type, float]] = []
        desk.system.on_event = lambda event, told=told: told.append((type(event), desk.since()))  # type: ignore[misc]
        desk.system.spawn(one, "s", shutdown_s=2.0).tell("begin")
        await anyio.sleep(1.0)
        desk.again()
        desk.system.stop("s")
        await desk.system.join("s")
        wanted = [(GraceExceeded, 2.0)] if cleans else [(CancelSwallowed, 0.25), (GraceExceeded, 2.0), (Abandoned, 2.0)]
        desk.same("what was reported", [kind for kind, _ in told], [kind for kind, _ in wanted])
        for (kind, at_s), (_, wanted_s) in zip(told, wanted, strict=False):
            desk.at(kind.__name__, wanted_s, 10, at_s)
        desk.at("the end", 2.0, 10)
        one.released.set()


class Tidy:
    """Has a task that takes three seconds to clean up."""

    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    def receive(self, ctx: Context, message: Any) -> None:
        ctx.start_task(self._clean, ctx, name="task")

    async def _clean(self, ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(5.0):
                await anyio.sleep(3.0)
                self.noted.append("clean")


async def haunted(desk: Desk) -> None:
    """Whoever is above one that was given up ends as soon as that is, though its task still runs in there; but not
    before its own tasks are over, which clean up as they always may."""
    for tidy in (False, True):
        one, noted = Stubborn(cleans=False), list[str]()
        desk.system.spawn(Mortal("p", []), "p")
        middle = desk.system.spawn(Tidy(noted) if tidy else Mortal("q", []), "p/q", parent="p", shutdown_s=20.0)
        desk.system.spawn(one, "p/q/s", parent="p/q", shutdown_s=2.0).tell("begin")
        middle.tell("begin")
        await anyio.sleep(1.0)
        desk.again()
        desk.system.stop("p")
        await desk.system.join("p")
        desk.at("the end", 5.0 if tidy else 2.0, 10)
        desk.same("what was cleaned up", noted, ["clean"] if tidy else [])
        one.released.set()


async def tasks(desk: Desk) -> None:
    """An error of a task is a message; a cancelled scope ends the tasks and keeps the actor."""
    heard: list[object] = []

    class Works:
        def receive(self, ctx: Context, message: Any) -> None:
            if isinstance(message, TaskFailed):
                heard.append((message.name, str(message.error)))
            else:
                ctx.start_task(message, name="work")

    async def breaks() -> None:
        await anyio.sleep(1.0)
        raise ValueError("no")

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            heard.append("cancelled")

    ref = desk.system.spawn(Works(), "w")
    ref.tell(breaks)
    ref.tell(waits)
    await anyio.sleep(2.0)
    desk.same("an error", heard, [("work", "no")])
    desk.same("tasks", len(desk.system.inspect("w").tasks), 1)
    ctx = desk.system.context("w")
    assert ctx is not None
    ctx.scope.cancel("enough")
    await anyio.sleep(1.0)
    desk.same("a cancellation", heard[1:], ["cancelled"])
    desk.same("its cause", list(desk.system.inspect("w").scope_causes), ["enough"])
    desk.same("it lives", "w" in desk.system, True)


class Phoenix:
    """Crashes when it is told to, and says which of its lives hears what."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "crash":
            raise RuntimeError(message)
        self.heard.append(f"{ctx.incarnation}:{message}")
        return ctx.incarnation


async def restarts(desk: Desk) -> None:
    """It comes back with its ref, its mailbox and its name; what was in hand is lost; too often is the end."""
    heard: list[str] = []
    spec = ChildSpec("child", lambda: Phoenix(heard), name="phoenix")
    often = Intensity(restarts_max=2, period_s=60.0)
    app = Supervisor([spec], backoff=Backoff(base_s=1.0, cap_s=1.0), child_intensity=often)
    desk.system.spawn(app, "app")
    reasons: list[object] = []
    desk.system.monitor("app", lambda down: reasons.append(type(down.reason)))
    ref = desk.system.whereis("phoenix")
    assert ref is not None
    await desk.system.suspend("app/child", timeout_s=1.0)
    for text in ("a", "crash", "b"):
        ref.tell(text)
    desk.system.resume("app/child")
    await anyio.sleep(5.0)
    desk.same("what was heard", heard, ["1:a", "2:b"])
    await desk.raises("the ask in hand", ref.ask("crash", timeout_s=5.0), ActorRestarting)
    desk.same("the next ask", await ref.ask("c", timeout_s=5.0), 3)
    desk.same("its name", desk.system.whereis("phoenix") is ref, True)
    ref.tell("crash")
    await desk.system.join("app")
    desk.same("one too many", reasons, [RestartLimitExceeded])


ENDING = (trees, links, stubborn, haunted, tasks, restarts)
