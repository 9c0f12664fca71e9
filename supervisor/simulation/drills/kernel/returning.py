"""Returning: what is kept over a restart and what is not, row by row as docs/kernel.md has it, for both kinds of
handler.

And how supervisors meet what seldom happens: factories that break, children that are stopped while they wait.
"""

from __future__ import annotations

from typing import Any

import anyio

from actors import (
    DEFERRED,
    ActorRestarting,
    ActorStopped,
    AskTimeout,
    Backoff,
    ChildActive,
    ChildSpec,
    Context,
    CountChildren,
    Crashed,
    DeadLetter,
    DeleteChild,
    Down,
    Intensity,
    Lane,
    Linked,
    Normal,
    NoSuchActor,
    Poisoned,
    Pool,
    Restart,
    RestartChild,
    Restarted,
    RestartLimitExceeded,
    StartChild,
    StartFailed,
    StopChild,
    Strategy,
    Supervisor,
    WhichChildren,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["RETURNING"]

ASK_S = 5.0
OFTEN = Intensity(50, 1000.0)
SOON = Backoff(base_s=0.0, cap_s=0.0)


class Fixed(Backoff):
    """A delay that no dice decide."""

    __slots__ = ()

    def delay_s(self, failures: int, rng: object) -> float:
        return self.cap_s


SLOW = Fixed(base_s=2.0, factor=1.0, cap_s=2.0)


FAILS = (2, 3)
"""Which starts break."""


class Broken(Exception):
    """What breaks an actor here."""


class Lives:
    """Notes what it hears in which of its lives; does what it is told to with its context."""

    def __init__(self, noted: list[Any]) -> None:
        self.noted = noted

    def started(self, ctx: Context) -> None:
        self.noted.append((ctx.incarnation, "started"))

    def stopped(self, ctx: Context, reason: object) -> None:
        self.noted.append((ctx.incarnation, type(reason).__name__))

    def receive(self, ctx: Context, message: Any) -> Any:
        return self.hear(ctx, message)

    def hear(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            return message(ctx)
        self.noted.append((ctx.incarnation, message))
        if message == "aside" and ctx.incarnation == 1:
            ctx.stash()
        return DEFERRED if message == "later" else f"{ctx.incarnation}:{message}"


class Awaits(Lives):
    """The same, by an async handler."""

    async def receive(self, ctx: Context, message: Any) -> Any:
        return self.hear(ctx, message)


def crash(ctx: Context) -> None:
    raise Broken


class Again:
    """Breaks so many incarnations, and may be handled again."""

    idempotent = True

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, ctx: Context) -> str:
        self.times -= 1
        if self.times >= 0:
            raise Broken
        return f"{ctx.incarnation} bore it"


async def _do(desk: Desk, actor_id: str, act: Any) -> Any:
    ref = desk.system.ref(actor_id)
    assert ref is not None, actor_id
    return await ref.ask(act, timeout_s=ASK_S)


def _tell(desk: Desk, actor_id: str, message: Any, lane: Lane = Lane.NORMAL) -> None:
    ref = desk.system.ref(actor_id)
    assert ref is not None, actor_id
    ref.tell(message, lane=lane)


# ---------------------------------------------------------------------------------------------------- over a restart
async def rows(desk: Desk) -> None:
    """Each row of the page."""
    for kind in (Lives, Awaits):
        await _rows(desk, kind)


async def _rows(desk: Desk, kind: type[Lives]) -> None:
    noted: list[Any] = []
    kids: list[Any] = []
    pal: list[Any] = []
    watched: list[Any] = []
    events: list[Any] = []
    ends: list[Any] = []
    top = kind.__name__
    child, friend, other, watcher = f"{top}/c", f"{top}-pal", f"{top}-other", f"{top}-watcher"
    spec = ChildSpec("c", lambda: kind(noted), name=f"{top}-known")
    desk.system.spawn(Supervisor([spec], backoff=SLOW, intensity=OFTEN, child_intensity=OFTEN), top)
    for name, book in ((friend, pal), (other, []), (watcher, watched)):
        desk.system.spawn(Lives(book), name)
    desk.system.monitor(friend, lambda down: ends.append(down.reason))
    ref = desk.system.whereis(f"{top}-known")
    assert ref is not None
    watched.clear()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            noted.append("task over")

    def furnish(ctx: Context) -> None:
        ctx.label = "mine"
        ctx.register(f"{top}-extra")
        ctx.set_timer("far", 50.0, "far")
        ctx.set_timer("soon", 1.0, "too soon")
        for name in ("k1", "k2"):
            ctx.spawn(Lives(kids), f"{ctx.id}/{name}")
        ctx.link(friend)
        ctx.monitor(other)
        ctx.start_task(work, name="work")

    await _do(desk, child, furnish)
    await _do(desk, watcher, lambda ctx: ctx.monitor(child, watch_restarts=True))
    await _do(desk, watcher, lambda ctx: ctx.monitor(child))
    desk.system.on_event = events.append
    answers: dict[str, Any] = {}
    noted.clear()
    kids.clear()

    async def ask(message: Any, timeout_s: float) -> None:
        try:
            answers[str(message)] = await ref.ask(message, timeout_s=timeout_s)
        except (ActorRestarting, ActorStopped, AskTimeout, Broken) as error:
            answers[str(message)] = error

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "later", 30.0)
        await anyio.sleep(0.01)
        ref.tell("aside")
        await anyio.sleep(0.01)
        await desk.system.suspend(child, timeout_s=1.0)
        group.start_soon(ask, "asked", 30.0)
        await anyio.sleep(1.5)
        _tell(desk, child, crash, Lane.CONTROL)
        for text, lane in (("n1", Lane.NORMAL), ("u1", Lane.URGENT), ("c1", Lane.CONTROL), ("n2", Lane.NORMAL)):
            _tell(desk, child, text, lane)
        desk.system.resume(child)
        await anyio.sleep(0.1)
        await _while_down(desk, top, ask, group, answers)
        await anyio.sleep(4.0)
    desk.system.on_event = lambda event: None
    wanted = [(1, "later"), (1, "aside"), "task over", (1, "Crashed"), (2, "started")]
    heard = [(2, "c1"), (2, "u1"), (2, "aside"), (2, "asked"), (2, "n1"), (2, "n2"), (2, "down")]
    desk.same(f"{top}: what was heard in which life", noted, [*wanted, *heard])
    desk.same(f"{top}: its children", kids, [(1, "Shutdown"), (1, "Shutdown")])
    later = answers["later"]
    shown = (type(later), getattr(later, "started", None), type(getattr(later, "reason", None)))
    desk.same(f"{top}: a deferred ask", shown, (ActorRestarting, True, Crashed))
    desk.same(f"{top}: a queued ask", answers["asked"], "2:asked")
    lost = [(one.message, one.why, one.attempts) for one in events if isinstance(one, DeadLetter)]
    desk.same(f"{top}: what was lost", lost, [(crash, "crashed", 1)])
    seen = desk.system.inspect(child)
    kept = (seen.label, seen.names, seen.links, seen.children, seen.scope_causes, seen.phase, seen.reason)
    desk.same(f"{top}: what it has", kept, ("mine", (f"{top}-known",), [], (), [], "live", ""))
    desk.same(f"{top}: its timers, and its life", (seen.stats.timers, ref.incarnation), (0, 2))
    desk.same(f"{top}: its name", (desk.system.whereis(f"{top}-known") is ref), True)
    desk.same(f"{top}: its friend", [(type(one), getattr(one, "id", "")) for one in ends], [(Linked, child)])
    news = [(type(one), one.id, one.incarnation) for _, one in watched]
    desk.same(f"{top}: what is told of it", news, [(Restarted, child, 2)])
    noted.clear()
    await _do(desk, child, lambda ctx: ctx.set_timer("soon", 0.5, "soon"))
    desk.system.stop(other)
    await anyio.sleep(1.0)
    desk.same(f"{top}: its second life", noted, [(2, "soon")])
    await _last_end(desk, top, ref, watched)


async def _while_down(desk: Desk, top: str, ask: Any, group: Any, answers: dict[str, Any]) -> None:
    """It has crashed, and waits for its next start."""
    child = f"{top}/c"
    seen = desk.system.inspect(child)
    desk.same(f"{top}: while it is down", (seen.phase, seen.stats.incarnation, seen.tasks), ("exited", 1, []))
    names = [desk.system.whereis(f"{top}-{one}") for one in ("known", "extra")]
    desk.same(f"{top}: its names while it is down", names, [None, None])
    (info,) = await _do(desk, top, WhichChildren())
    shown = (info.id, info.actor_id, info.state, info.restart, info.restarts)
    desk.same(f"{top}: as its supervisor sees it", shown, ("c", child, "restarting", Restart.PERMANENT, 1))
    counts = await _do(desk, top, CountChildren())
    desk.same(f"{top}: how many", counts, {"specs": 1, "active": 0, "restarting": 1})
    left_s = (info.next_attempt_s or 0.0) - desk.system.timers.now()
    if not 1.5 <= left_s <= 2.0:
        desk.same(f"{top}: when it is started again", left_s, "after 2 s")
    await ask("in vain", 0.2)
    desk.same(f"{top}: an ask whose time is up", type(answers["in vain"]), AskTimeout)
    _tell(desk, child, "down")
    for wish in (RestartChild("c"), DeleteChild("c")):
        await desk.raises(f"{wish} while it waits", desk.system.ref(top).ask(wish, timeout_s=ASK_S), ChildActive)  # type: ignore[union-attr]


async def _last_end(desk: Desk, top: str, ref: Any, watched: list[Any]) -> None:
    """Stopped while it is down: what waits is bounced, and each monitor hears of one end."""
    child, letters = f"{top}/c", list[Any]()
    watched.clear()
    _tell(desk, child, crash)
    await anyio.sleep(0.1)
    ref.tell("unheard")
    failed: list[Any] = []

    async def ask() -> None:
        failed.append(await desk.raises("an ask of who is stopped", ref.ask("q", timeout_s=9.0), ActorStopped))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.1)
        desk.system.on_event = letters.append
        await _do(desk, top, StopChild("c"))
    desk.system.on_event = lambda event: None
    lost = [(one.message, one.why) for one in letters if isinstance(one, DeadLetter)]
    desk.same(f"{top}: what nobody will hear", lost, [("unheard", "stopped")])
    await desk.system.idle()
    news = [(type(one), one.id, one.incarnation) for _, one in watched]
    desk.same(f"{top}: what is told of its end", news, [(Down, child, 2)] * 2)
    try:
        ref.tell("late")
        desk.same("a tell of the dead", "taken", "refused")
    except ActorStopped as error:
        desk.same("why", type(error.reason), Crashed)
    counts = await _do(desk, top, CountChildren())
    desk.same(f"{top}: how many are left", counts, {"specs": 1, "active": 0, "restarting": 0})
    await _do(desk, top, RestartChild("c"))
    desk.same(f"{top}: another one", (await _do(desk, child, "hello")), "1:hello")
    desk.system.stop(top)
    await desk.system.join(top)


async def hands(desk: Desk) -> None:
    """What is in hand at a crash: an ask that may be repeated is answered by the next life; too often is poison."""
    for number, (kind, redeliver) in enumerate((kind, times) for kind in (Lives, Awaits) for times in (0, 1, 2)):
        noted: list[Any] = []
        events: list[Any] = []
        top = f"h{number}"
        spec = ChildSpec("c", lambda kind=kind, noted=noted: kind(noted), redeliver=redeliver)  # type: ignore[misc]
        desk.system.spawn(Supervisor([spec], backoff=SOON, intensity=OFTEN, child_intensity=OFTEN), top)
        ref = desk.system.ref(f"{top}/c")
        assert ref is not None
        await _do(desk, f"{top}/c", "first")
        desk.system.on_event = events.append
        wanted: tuple[type[Exception], ...] = (ActorRestarting,)
        for times in (1, 2, 3):
            events.clear()
            before = ref.incarnation
            if times <= redeliver:
                answer = await ref.ask(Again(times), timeout_s=ASK_S)
                desk.same("who bore it", answer, f"{before + times} bore it")
            else:
                error: Any = await desk.raises("an ask that breaks", ref.ask(Again(times), timeout_s=ASK_S), *wanted)
                shown = (getattr(error, "started", None), type(getattr(error, "__cause__", None)))
                desk.same("what its asker is told", shown, (True, Broken))
            await anyio.sleep(0.5)
            broke = min(times, redeliver + 1)
            poisoned = [one.attempts for one in events if isinstance(one, Poisoned)]
            desk.same("poison", poisoned, [redeliver + 1] if redeliver and times > redeliver else [])
            desk.same("how often it broke", ref.incarnation - before, broke)
            events.clear()
            before, again = ref.incarnation, Again(times)
            await desk.system.suspend(f"{top}/c", timeout_s=1.0)
            ref.tell(again)
            ref.tell(f"after {times}")
            desk.system.resume(f"{top}/c")
            await anyio.sleep(0.5)
            lost = [(one.message is again, one.why, one.attempts) for one in events if isinstance(one, DeadLetter)]
            wanted_lost = [] if times <= redeliver else [(True, "crashed", redeliver + 1)]
            desk.same("what is lost of a tell", lost, wanted_lost)
            desk.same("what was behind it", noted[-1], (before + broke, f"after {times}"))
        desk.system.on_event = lambda event: None
        desk.system.stop(top)
        await desk.system.join(top)


async def cut_off(desk: Desk) -> None:
    """A handler that is cancelled as its group goes down: what it had in hand is heard again only where it may be."""

    class Slow(Awaits):
        async def receive(self, ctx: Context, message: Any) -> Any:
            self.noted.append((ctx.incarnation, getattr(message, "text", message)))
            if ctx.incarnation == 1:
                await anyio.sleep(3.0)

    class Text:
        def __init__(self, text: str, idempotent: bool) -> None:
            self.text, self.idempotent = text, idempotent

    for number, (redeliver, idempotent) in enumerate(((0, True), (1, False), (1, True))):
        noted: list[Any] = []
        letters: list[Any] = []
        specs = [
            ChildSpec("a", lambda noted=noted: Slow(noted), redeliver=redeliver),  # type: ignore[misc]
            ChildSpec("b", lambda: Lives([])),
        ]
        top = f"u{number}"
        app = Supervisor(specs, strategy=Strategy.ONE_FOR_ALL, backoff=SOON, intensity=OFTEN, child_intensity=OFTEN)
        desk.system.spawn(app, top)
        desk.system.on_event = letters.append
        _tell(desk, f"{top}/a", Text("x", idempotent))
        _tell(desk, f"{top}/a", Text("y", False))
        await anyio.sleep(1.0)
        _tell(desk, f"{top}/b", crash)
        await anyio.sleep(1.0)
        desk.system.on_event = lambda event: None
        again = redeliver > 0 and idempotent
        heard = [one for one in noted if one[1] in ("x", "y")]
        desk.same("what is heard", heard, [(1, "x"), *([(2, "x")] if again else []), (2, "y")])
        lost = [(getattr(one.message, "text", ""), one.why) for one in letters if isinstance(one, DeadLetter)]
        desk.same("what is not", lost, [("", "crashed"), *([] if again else [("x", "stopped")])])
        desk.system.stop(top)
        await desk.system.join(top)


# ------------------------------------------------------------------------------------------------ broken beginnings
async def beginnings(desk: Desk) -> None:
    """A factory or a beginning that breaks: at the first start nobody is there; at another it is tried again later."""
    for way in ("factory", "started", "name"):
        noted: list[Any] = []
        count = [0]

        class Begins(Lives):
            def __init__(self, noted: list[Any], count: list[int] = count, way: str = way) -> None:
                super().__init__(noted)
                count[0] += 1
                if way == "factory" and count[0] in FAILS:
                    raise Broken

            def started(self, ctx: Context, count: list[int] = count, way: str = way) -> None:
                if way == "started" and count[0] in FAILS:
                    raise Broken
                super().started(ctx)

        top = f"b-{way}"
        spec = ChildSpec("c", lambda noted=noted: Begins(noted), name=f"{top}-name")  # type: ignore[misc]
        desk.system.spawn(Supervisor([spec], backoff=SLOW, intensity=OFTEN, child_intensity=OFTEN), top)
        ref = desk.system.ref(f"{top}/c")
        assert ref is not None
        if way == "name":
            desk.system.spawn(Lives([]), "squatter")
            desk.system.monitor(f"{top}/c", lambda down: None)
            ref.tell(lambda ctx: crash(ctx))
            await anyio.sleep(0.1)
            await _do(desk, "squatter", lambda ctx, top=top: ctx.register(f"{top}-name"))
            await anyio.sleep(2.5)
            await _do(desk, "squatter", lambda ctx, top=top: ctx.unregister(f"{top}-name"))
        else:
            ref.tell(crash)
        ref.tell("kept")
        await anyio.sleep(9.0)
        (info,) = await _do(desk, top, WhichChildren())
        desk.same(f"after {way}", (info.state, desk.system.whereis(f"{top}-name") is ref), ("running", True))
        if way != "name":
            desk.same(f"{way}: how often it was started", (count[0], info.restarts), (4, 3))
            desk.same(f"{way}: who heard what waited", noted[-1], (4, "kept"))
        else:
            desk.same(f"{way}: who heard what waited", noted[-1], (ref.incarnation, "kept"))
        await _do(desk, top, StopChild("c"))
        if way == "factory":
            count[0] = 1
            error = await desk.raises("a start that breaks", _do(desk, top, RestartChild("c")), StartFailed)
            desk.same("whose", getattr(error, "actor_id", ""), f"{top}/c")
            desk.same("it is not there", f"{top}/c" in desk.system, False)
        desk.system.stop(top)
        await desk.system.join(top)
    await _first_start(desk)


async def _first_start(desk: Desk) -> None:
    """What cannot be started is not there, nor is who needs it, nor what was started before it."""

    def breaks() -> Any:
        raise Broken

    for name, specs in (("f1", [ChildSpec("a", lambda: Lives([])), ChildSpec("b", breaks)]),):
        try:
            desk.system.spawn(Supervisor(specs), name)
            desk.same("a supervisor whose child breaks", "started", "not started")
        except StartFailed as error:
            desk.same("who is to blame", error.actor_id, f"{name}/b")
        await desk.system.idle()
        await anyio.sleep(0.5)
        desk.same("who is there", [one for one in (name, f"{name}/a", f"{name}/b") if one in desk.system], [])
    desk.system.spawn(Supervisor([], backoff=SOON), "f2")
    for spec in (ChildSpec("a", breaks), ChildSpec("b", lambda: object())):  # type: ignore[arg-type, return-value]
        await desk.raises("a child that breaks", _do(desk, "f2", StartChild(spec)), StartFailed)
    desk.same("who is there", await _do(desk, "f2", WhichChildren()), ())
    pool = Pool(lambda: Lives([]))
    desk.system.spawn(pool, "f3")
    for wanted in ("f3/1", "f3/2"):
        desk.same("a member", (await _do(desk, "f3", StartChild())).id, wanted)
    await _do(desk, "f3", StopChild("1"))
    await desk.raises("a member that is gone", _do(desk, "f3", RestartChild("1")), NoSuchActor)
    desk.same("the members", [one.id for one in await _do(desk, "f3", WhichChildren())], ["2"])


# --------------------------------------------------------------------------------------------------- groups in motion
async def groups(desk: Desk) -> None:
    """While a group goes down, or waits: who is stopped stays away, who is temporary too, the others come back."""
    for number, (act, back) in enumerate(
        (("none", "abc"), ("stop a", "bc"), ("stop c", "ab"), ("crash c", "abc"), ("down a", "abc"))
    ):
        noted: list[Any] = []
        top = f"g{number}"
        specs = [
            ChildSpec(one, lambda one=one, noted=noted: Named(one, noted))  # type: ignore[misc]
            for one in "abc"
        ]
        specs.append(
            ChildSpec("x", lambda noted=noted: Named("x", noted), restart=Restart.TEMPORARY)  # type: ignore[misc]
        )
        app = Supervisor(specs, strategy=Strategy.ONE_FOR_ALL, backoff=SLOW, intensity=OFTEN, child_intensity=OFTEN)
        desk.system.spawn(app, top)
        desk.same("who was started", noted, ["+a", "+b", "+c", "+x"])
        noted.clear()
        if act.startswith("down"):
            await _do(desk, top, StopChild(act[-1]))
            noted.clear()
        _tell(desk, f"{top}/b", "crash")
        await anyio.sleep(0.1)
        down = ["-b", "-x", "-c", *([] if act == "down a" else ["-a"])]
        desk.same("who went down", noted, down)
        told = [(one.id, one.state) for one in await _do(desk, top, WhichChildren())]
        desk.same("who waits", told, [(one, "restarting") for one in "abc"])
        if act.startswith("stop"):
            await _do(desk, top, StopChild(act[-1]))
        await anyio.sleep(3.0)
        if act.startswith("crash"):
            noted.clear()
            _tell(desk, f"{top}/c", "crash")
            await anyio.sleep(3.0)
            desk.same("once more", noted, ["-c", "-b", "-a", "+a", "+b", "+c"])
        else:
            desk.same("who came back", noted[len(down) :], [f"+{one}" for one in back])
        states = {one.id: one.state for one in await _do(desk, top, WhichChildren())}
        desk.same("what they are", states, {one: "running" if one in back else "down" for one in "abc"})
        desk.system.stop(top)
        await desk.system.join(top)


async def halves(desk: Desk) -> None:
    """Where one of a group cannot be started again, those after it wait; all go down, and are started again later."""
    noted: list[Any] = []
    starts = [0]

    class Weak(Named):
        def started(self, ctx: Context) -> None:
            starts[0] += 1
            if starts[0] == 2:
                raise Broken
            super().started(ctx)

    specs = [ChildSpec(one, lambda one=one: (Weak if one == "b" else Named)(one, noted)) for one in "abc"]  # type: ignore[misc]
    app = Supervisor(specs, strategy=Strategy.ONE_FOR_ALL, backoff=SLOW, intensity=OFTEN, child_intensity=OFTEN)
    desk.system.spawn(app, "w")
    noted.clear()
    _tell(desk, "w/a", "crash")
    await anyio.sleep(3.0)
    desk.same("what is begun", noted, ["-a", "-c", "-b", "+a", "-b", "-a"])
    await anyio.sleep(3.0)
    desk.same("and then", noted[6:], ["+a", "+b", "+c"])
    desk.system.stop("w")
    await desk.system.join("w")

    class Leaves(Lives):
        def started(self, ctx: Context) -> None:
            ctx.exit()
            raise Broken

    ends: list[Any] = []
    desk.system.spawn(Leaves([]), "leaves")
    desk.system.monitor("leaves", lambda down: ends.append(type(down.reason)))
    await desk.system.idle()
    desk.same("who left before it broke", ends, [Normal])


class Named(Lives):
    """Notes its beginnings and ends by its name."""

    def __init__(self, name: str, noted: list[Any]) -> None:
        super().__init__(noted)
        self.name = name

    def started(self, ctx: Context) -> None:
        self.noted.append(f"+{self.name}")

    def stopped(self, ctx: Context, reason: object) -> None:
        self.noted.append(f"-{self.name}")

    def hear(self, ctx: Context, message: Any) -> Any:
        if message == "crash":
            raise Broken
        return super().hear(ctx, message)


async def limits(desk: Desk) -> None:
    """The last crash that may be, and one more: what waits is bounced, and it is told who gave up on whom, and why."""
    for each, of_all in ((1, 9), (9, 1)):
        noted: list[Any] = []
        letters: list[Any] = []
        ends: list[Any] = []
        top = f"l{each}"
        spec = ChildSpec("c", lambda noted=noted: Lives(noted))  # type: ignore[misc]
        app = Supervisor([spec], backoff=SOON, intensity=Intensity(of_all, 30.0), child_intensity=Intensity(each, 30.0))
        desk.system.spawn(app, top)
        desk.system.monitor(f"{top}/c", ends.append)
        desk.system.monitor(top, ends.append)
        _tell(desk, f"{top}/c", crash)
        await anyio.sleep(0.5)
        await desk.system.suspend(f"{top}/c", timeout_s=1.0)
        _tell(desk, f"{top}/c", crash)
        _tell(desk, f"{top}/c", "lost")
        desk.system.on_event = letters.append
        desk.system.resume(f"{top}/c")
        await desk.system.join(top)
        desk.system.on_event = lambda event: None
        lost = [(one.message, one.why) for one in letters if isinstance(one, DeadLetter)]
        desk.same("what is lost", lost, [(crash, "crashed"), ("lost", "stopped")])
        desk.same("who ended", [(one.id, one.incarnation) for one in ends], [(f"{top}/c", 2), (top, 1)])
        why: Any = ends[-1].reason
        shown = (type(why), getattr(why, "supervisor", ""), getattr(why, "child", ""), getattr(why, "intensity", None))
        desk.same("why", shown, (RestartLimitExceeded, top, "c", Intensity(1, 30.0)))


async def pressed(desk: Desk) -> None:
    """An end that is under way can be made sooner, for all below it, and not later; a kill of one that ends is one."""

    async def stays(name: str) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(60.0)

    acts: tuple[tuple[Any, float], ...] = (
        (lambda name: desk.system.stop(name, grace_s=2.0), 3.0),
        (lambda name: desk.system.stop(name, grace_s=50.0), 10.0),
        (lambda name: desk.system.kill(name), 1.25),
    )
    for number, (act, wanted_s) in enumerate(acts):
        top = f"p{number}"
        ends: list[Any] = []
        for name in (top, f"{top}/q"):
            above = {"parent": top} if "/" in name else {}
            desk.system.spawn(Lives([]), name, shutdown_s=10.0, **above)  # type: ignore[arg-type]
            desk.system.monitor(name, lambda down, ends=ends: ends.append((down.id, desk.since())))  # type: ignore[misc]
        await _do(desk, f"{top}/q", lambda ctx: ctx.start_task(stays, "q"))
        await anyio.sleep(0.5)
        desk.again()
        desk.system.stop(top)
        await anyio.sleep(1.0)
        act(top)
        await desk.system.join(top)
        desk.same("who ended", [one for one, _ in ends], [f"{top}/q", top])
        desk.at(f"the end of {top}", wanted_s, 6)
    await _cuts(desk)


async def _cuts(desk: Desk) -> None:
    """A stop that hastens one whose clean-up goes on cuts that, a moment after its new deadline."""
    noted: list[float] = []

    async def cleans(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(30.0):
                await anyio.sleep(30.0)
            noted.append(desk.since())

    desk.system.spawn(Lives([]), "z", shutdown_s=40.0)
    await _do(desk, "z", lambda ctx: ctx.start_task(cleans, ctx))
    await anyio.sleep(0.5)
    desk.again()
    desk.system.stop("z")
    await anyio.sleep(1.0)
    desk.system.stop("z", grace_s=1.0)
    await desk.system.join("z")
    desk.same("it was cut", len(noted), 1)
    if noted:
        desk.at("a clean-up that is cut", 2.0, 6, noted[0])


async def brief(desk: Desk) -> None:
    """A task that swallows its cancellation is given up at its actor's deadline, and has a quarter of a second."""

    async def stays() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(60.0)

    for shutdown_s, wanted_s in ((0.0, 0.25), (0.1, 0.25), (0.4, 0.4), (0.6, 0.6), (1.0, 1.0)):
        name = f"v{shutdown_s}"
        desk.system.spawn(Lives([]), name, shutdown_s=shutdown_s)
        await _do(desk, name, lambda ctx: ctx.start_task(stays))
        await anyio.sleep(0.1)
        desk.again()
        desk.system.stop(name)
        await desk.system.join(name)
        desk.at(f"with {shutdown_s} s", wanted_s, 5)


RETURNING = (halves, brief, rows, hands, cut_off, beginnings, groups, limits, pressed)
