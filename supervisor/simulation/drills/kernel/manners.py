"""Manners: who goes away and what goes with him, what is just possible, and what can be seen of that.

The rules are the rows of docs/kernel.md that customers of a supervisor seldom come by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from itertools import pairwise
from math import inf
from typing import Any

import anyio

from actors import (
    DEFERRED,
    ActorCrashed,
    ActorStopped,
    AskTimeout,
    Backoff,
    ChildSpec,
    Context,
    DeadLetter,
    DeadlockError,
    Down,
    Intensity,
    InvalidOption,
    Killed,
    Lane,
    Limits,
    MailboxFull,
    MessageDropped,
    Overflow,
    Ref,
    Restart,
    StrayCancellation,
    Supervisor,
    TaskFailed,
    WrongMessage,
    open_system,
)
from actors.breaker import BreakerLimits
from actors.parking import Backend
from actors.restart import AutoShutdown
from actors.timers import TimerService
from actors.waits import WaitGraph
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.does import Does, DoesLater, ref_of

__all__ = ["MANNERS"]

ASK_S = 5.0
QUANTUM = 16
LEFT = 1000
"""Messages that are to be handled, where many are."""
SEEN: ContextVar[str] = ContextVar("drill", default="nobody's")


async def _do(desk: Desk, name: str, act: Any) -> Any:
    return await ref_of(desk, name).ask(act, timeout_s=ASK_S)


# --------------------------------------------------------------------------------------------------- who goes away
async def leaves(desk: Desk) -> None:
    """An asker that is cancelled: what is queued is not heard, handler and tasks for it end; not when detached, and not
    what is detached once it is heard."""
    noted: list[str] = []

    async def slowly(name: str) -> None:
        try:
            await anyio.sleep(3.0)
        except BaseException:
            noted.append(f"{name} cut")
            raise
        noted.append(f"{name} done")

    def by_task(ctx: Context, name: str) -> Any:
        ctx.start_task(slowly, name)
        return DEFERRED

    def taken_over(ctx: Context) -> Any:
        reply = ctx.envelope.reply if ctx.envelope is not None else None
        assert reply is not None, "it is an ask"
        reply.detach()
        return by_task(ctx, "taken over")

    for detach, verb in ((False, "cut"), (True, "done")):
        noted.clear()
        plain, later = desk.system.spawn(Does(), f"p{detach}"), desk.system.spawn(DoesLater(), f"l{detach}")
        wishes: tuple[tuple[Ref, Any], ...] = (
            (plain, lambda ctx: by_task(ctx, "task")),
            (plain, taken_over),
            (later, lambda ctx: slowly("handler")),
            (later, lambda ctx: slowly("queued")),
        )
        scopes = [anyio.CancelScope() for _ in wishes]
        async with anyio.create_task_group() as group:
            for scope, (ref, act) in zip(scopes, wishes, strict=True):
                group.start_soon(_ask_within, scope, ref, act, detach)
                await anyio.sleep(0.1)
            await anyio.sleep(0.5)
            for scope in reversed(scopes):
                scope.cancel()
                await anyio.sleep(0.1)
        await anyio.sleep(9.0)
        done = [f"task {verb}", "taken over done", f"handler {verb}", *(["queued done"] if detach else [])]
        desk.same(f"who goes, detach={detach}", sorted(noted), sorted(done))
        desk.same("answers that came too late", (plain.late_replies, later.late_replies), (0, 2 if detach else 0))
        desk.same("they live", await later.ask(lambda ctx: "yes", timeout_s=1.0), "yes")


async def _ask_within(scope: anyio.CancelScope, ref: Ref, act: Any, detach: bool) -> None:
    with scope:
        await ref.ask(act, timeout_s=60.0, detach=detach)


async def drops(desk: Desk) -> None:
    """An ask that a policy drops fails at once, with its name; what one says on CONTROL waits for nobody."""
    ref = desk.system.spawn(Does(), "d", limits=Limits(1, 100, Overflow.DROP_OLDEST))
    await desk.system.suspend("d", timeout_s=1.0)
    desk.again()
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            error = await desk.raises("an ask that is dropped", ref.ask("a", timeout_s=9.0), MessageDropped)
            desk.same("why", (getattr(error, "actor_id", ""), getattr(error, "why", "")), ("d", "dropped_oldest"))

        group.start_soon(ask)
        await anyio.sleep(0.5)
        ref.tell("b")
    desk.at("an ask that is dropped", 0.5, 1)
    full = desk.system.spawn(Does(), "full", capacity=1)
    await desk.system.suspend("full", timeout_s=1.0)
    full.tell("0")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: full.send("1", timeout_s=9.0))
        await anyio.sleep(0.5)
        desk.again()
        await full.send("c", timeout_s=9.0, lane=Lane.CONTROL)
        desk.at("a send on CONTROL", 0.0)
        await desk.raises("no room in time", full.send("2", timeout_s=0.5), MailboxFull)
        desk.at("no room in time", 0.5, 1)
        await desk.raises("no room for an ask in time", full.ask("3", timeout_s=0.5), MailboxFull)
        desk.system.resume("full")
    await desk.system.idle()
    heard: Any = desk.system.cell("full")
    desk.same("what was heard", heard.actor.heard, ["c", "0", "1"])
    strict = desk.system.spawn(Does(), "strict", limits=Limits(1, 100, Overflow.REJECT))
    await desk.system.suspend("strict", timeout_s=1.0)
    strict.tell("0")
    desk.again()
    for wish in (strict.send("1", timeout_s=9.0), strict.ask("1", timeout_s=9.0)):
        await desk.raises("a box that lets nobody wait", wish, MailboxFull)
    desk.at("a box that lets nobody wait", 0.0)


class Picky(Does):
    """Takes words only."""

    accepts = (str,)


async def wants(desk: Desk) -> None:
    """What is not accepted is its sender's error, in every way to send; what the kernel has to say always comes."""
    picky = Picky()
    ref = desk.system.spawn(picky, "picky")
    for lane in (Lane.URGENT, Lane.NORMAL):
        with suppress(WrongMessage):
            ref.tell(1, lane=lane)
            desk.same(f"a number by {lane.name}", "taken", "refused")
    ref.tell(1, lane=Lane.CONTROL)
    await desk.raises("an ask with a number", ref.ask(1, timeout_s=1.0), WrongMessage)
    await desk.raises("a number that is sent", ref.send(1, timeout_s=1.0), WrongMessage)
    context: Any = desk.system.context("picky")
    with suppress(WrongMessage):
        context.set_timer("t", 0.1, 1)
        desk.same("a timer with a number", "set", "refused")
    desk.same("an ask with a word", await ref.ask("word", timeout_s=1.0), None)

    async def breaks() -> None:
        raise ValueError

    context.start_task(breaks, name="breaks")
    context.start_task(breaks, 1, name="wrong")
    await anyio.sleep(0.5)
    shown = [(one.name, type(one.error)) if isinstance(one, TaskFailed) else one for one in picky.heard]
    desk.same("what it hears", shown[:2], [1, "word"])
    desk.same("what failed", sorted(shown[2:]), [("breaks", ValueError), ("wrong", TypeError)])


# ------------------------------------------------------------------------------------------------ what is just possible
def _refused(desk: Desk, what: str, wish: Callable[[], object]) -> None:
    desk.refused(what, wish, InvalidOption)


def _taken(desk: Desk, what: str, wish: Callable[[], object]) -> None:
    try:
        wish()
    except InvalidOption as error:
        desk.same(what, str(error), "taken")


async def edges(desk: Desk) -> None:
    """Every bound at its edge: the last value that can be is taken, the one beyond is refused."""
    small = 0.001
    spec = ChildSpec("a", Does)
    checked: list[tuple[str, Callable[[Any], object], Any, Any]] = [
        ("capacity", lambda value: Limits(value).checked("x"), 1, 0),
        ("bytes", lambda value: Limits(1, value).checked("x"), 1, 0),
        ("size_of", lambda value: Limits(1, 1, size_of=value).checked("x"), len, 3),
        ("restarts", lambda value: Intensity(value, 1.0).checked("x", "y"), 0, -1),
        ("period", lambda value: Intensity(1, value).checked("x", "y"), small, 0.0),
        ("base", lambda value: Backoff(base_s=value).checked("x"), 0.0, -small),
        ("cap", lambda value: Backoff(base_s=1.0, cap_s=value).checked("x"), 1.0, 1.0 - small),
        ("factor", lambda value: Backoff(factor=value).checked("x"), 1.0, 1.0 - small),
        ("failures", lambda value: BreakerLimits(failures_max=value).checked("x"), 1, 0),
        ("window", lambda value: BreakerLimits(window_s=value).checked("x"), small, 0.0),
        ("cooldown", lambda value: BreakerLimits(cooldown_s=value).checked("x"), small, 0.0),
        ("window below", lambda value: BreakerLimits(window_s=value).checked("x"), small, -small),
        ("cooldown below", lambda value: BreakerLimits(cooldown_s=value).checked("x"), small, -small),
        ("period below", lambda value: Intensity(1, value).checked("x", "y"), small, -small),
        ("id", lambda value: Supervisor([spec._replace(id=value)]), "a", "a/b"),
        ("no id", lambda value: Supervisor([spec._replace(id=value)]), "a", ""),
        ("odd id", lambda value: Supervisor([spec._replace(id=value)]), "a", 3),
        ("start", lambda value: Supervisor([spec._replace(start=value)]), Does, None),
        ("restart", lambda value: Supervisor([spec._replace(restart=value)]), "transient", "sometimes"),
        ("shutdown", lambda value: Supervisor([spec._replace(shutdown_s=value)]), 0.0, -small),
        ("odd shutdown", lambda value: Supervisor([spec._replace(shutdown_s=value)]), 1, "1"),
        ("redeliver", lambda value: Supervisor([spec._replace(redeliver=value)]), 0, -1),
        ("odd redeliver", lambda value: Supervisor([spec._replace(redeliver=value)]), 1, 1.5),
        ("limits", lambda value: Supervisor([spec._replace(limits=value)]), Limits(1), 256),
        ("its limits", lambda value: Supervisor([spec._replace(limits=value)]), Limits(1), Limits(0)),
        ("name", lambda value: Supervisor([spec._replace(name=value)]), "n", None),
        ("spec", lambda value: Supervisor([value]), spec, "a"),
        ("strategy", lambda value: Supervisor(strategy=value), "rest_for_one", "best_for_one"),
        ("auto", lambda value: Supervisor(auto_shutdown=value), "all_significant", "all"),
        ("grace", lambda value: desk.system.stop("nobody", grace_s=value), 0.0, -small),
        ("odd grace", lambda value: desk.system.stop("nobody", grace_s=value), 1.0, float("nan")),
    ]
    for what, wish, last, beyond in checked:
        _taken(desk, f"{what}={last!r}", lambda wish=wish, last=last: wish(last))  # type: ignore[misc]
        _refused(desk, f"{what}={beyond!r}", lambda wish=wish, beyond=beyond: wish(beyond))  # type: ignore[misc]
    for restart in Restart:
        for auto in AutoShutdown:
            wanted = spec._replace(restart=restart, significant=True)
            may = restart is not Restart.PERMANENT and auto is not AutoShutdown.NEVER
            check = _taken if may else _refused
            check(desk, f"significant {restart} with {auto}", lambda one=wanted, auto=auto: one.checked(auto))  # type: ignore[misc]
    desk.system.spawn(Does(), "e")
    _taken(desk, "shutdown_s", lambda: desk.system.spawn(Does(), "brief", shutdown_s=0.0))
    _refused(desk, "shutdown_s", lambda: desk.system.spawn(Does(), "no", shutdown_s=-small))
    context: Any = desk.system.context("e")
    for budget_s in (-small, float("nan")):
        with suppress(InvalidOption), context.cleanup(budget_s):
            desk.same(f"a clean-up of {budget_s}", "begun", "refused")
    with context.cleanup(0.0) as scope:
        await anyio.sleep(1.0)
    desk.same("a clean-up without time", scope.cancelled_caught, True)
    for timeout_s in (0.0, 0):
        seen: Any = await desk.system.get_state("e", timeout_s=timeout_s)
        desk.same("a look without time", [*seen], ["heard"])
        desk.same("an ask in place without time", await ref_of(desk, "e").ask(1, timeout_s=timeout_s), None)
    desk.same("a look at nothing", list(await desk.system.peek("e", most=0, timeout_s=1.0)), [])
    await desk.raises("less than nothing", desk.system.peek("e", most=-1, timeout_s=1.0), InvalidOption)


# ---------------------------------------------------------------------------------------------------------- whose turn


async def contexts(desk: Desk) -> None:
    """A handler sees the context variables of who opened the system; what it sets is seen by its tasks alone."""
    seen: list[str] = []

    async def look() -> None:
        seen.append(SEEN.get())

    def sets(ctx: Context) -> str:
        before = SEEN.get()
        SEEN.set("the handler's")
        ctx.start_task(look)
        return before

    token = SEEN.set("the opener's")
    async with open_system(seed=1) as system:
        SEEN.set("the asker's")
        ref = system.spawn(Does(), "c")
        for _ in range(2):
            desk.same("what a handler sees", await ref.ask(sets, timeout_s=ASK_S), "the opener's")
            desk.same("what an asker sees", SEEN.get(), "the asker's")
        ref.tell(lambda ctx: seen.append(sets(ctx)))
        await anyio.sleep(0.5)
    SEEN.reset(token)
    desk.same("what its tasks see", sorted(seen), ["the handler's"] * 3 + ["the opener's"])


# ----------------------------------------------------------------------------------------------------- ends, and scopes
async def scopes(desk: Desk) -> None:
    """A cancelled scope takes no new task, and ends an actor with an async handler, which cannot read any more."""
    ends: list[Down] = []
    for kind in (Does, DoesLater):
        name = kind.__name__
        ref = desk.system.spawn(kind(), name)
        desk.system.monitor(name, ends.append)
        await ref.ask(lambda ctx: None, timeout_s=1.0)
        context: Any = desk.system.context(name)
        context.scope.cancel("first")
        context.scope.cancel("second")
        with suppress(ActorStopped):
            context.start_task(anyio.sleep, 1.0)
            desk.same("a task in a cancelled scope", "started", "refused")
        desk.same("its causes", [*context.scope.causes], ["first", "second"])
        ref.tell("read")
        await anyio.sleep(1.0)
    told = [(one.id, type(one.reason), getattr(one.reason, "cause", None)) for one in ends]
    desk.same("who ended by that", told, [("DoesLater", Killed, "first")])
    plain: Any = desk.system.cell("Does")
    desk.same("who goes on", plain.actor.heard, ["read"])
    late = DoesLater()
    desk.system.spawn(late, "late")
    desk.system.monitor("late", ends.append)
    unread: Any = desk.system.context("late")
    unread.scope.cancel("early")
    ref_of(desk, "late").tell("unread")
    await anyio.sleep(1.0)
    desk.same("who never began to read", [(one.id, type(one.reason)) for one in ends[1:]], [("late", Killed)])


async def strays(desk: Desk) -> None:
    """A cancellation that is somebody else's is an error like any other; an error at an end is told."""
    events: list[Any] = []
    desk.system.on_event = events.append

    def stray(ctx: Context) -> None:
        raise asyncio.CancelledError

    ends: list[Any] = []
    for name, message in (("a", stray), ("b", lambda ctx: 1 / 0)):
        ref = desk.system.spawn(Does(), name)
        desk.system.monitor(name, lambda down: ends.append(type(down.reason.error)))  # type: ignore[attr-defined]
        ref.tell(message)
        await desk.system.join(name)
    desk.same("what they ended with", ends, [StrayCancellation, ZeroDivisionError])
    await _strays_while_waiting(desk)

    class Curses(Does):
        def stopped(self, ctx: Context, reason: object) -> None:
            raise OSError

    async def fails() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError

    desk.system.spawn(Curses(), "c")
    await _do(desk, "c", lambda ctx: ctx.start_task(fails))
    await anyio.sleep(0.5)
    events.clear()
    desk.system.stop("c")
    await desk.system.join("c")
    told = [(one.actor_id, type(one.error)) for one in events if isinstance(one, ActorCrashed)]
    desk.same("errors of an end", sorted(told, key=str), [("c", KeyError), ("c", OSError)])
    desk.same("how many are counted", desk.system.crashes, 5)


async def _strays_while_waiting(desk: Desk) -> None:
    """It comes out of what somebody waits for: who does so in a handler ends by that, of a task it is told."""

    async def waits() -> None:
        await anyio.sleep(0.0)
        raise asyncio.CancelledError  # on trio too, where it is nobody's

    ends: list[Any] = []
    ref = desk.system.spawn(DoesLater(), "waiting")
    desk.system.monitor("waiting", lambda down: ends.append(type(getattr(down.reason, "error", None))))
    asked = ref.ask(lambda ctx: waits(), timeout_s=ASK_S)
    error = await desk.raises("an ask whose handler waits for it", asked, StrayCancellation, ActorStopped)
    desk.same("an ask whose handler waits for it", type(error), StrayCancellation)
    await anyio.sleep(0.1)
    desk.same("what the handler ended with", ends, [StrayCancellation])
    tells = Does()
    desk.system.spawn(tells, "tells")
    await _do(desk, "tells", lambda ctx: ctx.start_task(waits))
    await anyio.sleep(0.1)
    desk.same("what a task ended with", [type(one.error) for one in tells.heard], [StrayCancellation])


# --------------------------------------------------------------------------------------------------------- seen of that
async def waits(desk: Desk) -> None:
    """Who waits for whom, drawn: a wait that closes a circle is refused with that circle, every other one is not."""
    for number in range(8):
        graph, drawn = WaitGraph(), list[tuple[str, str]]()
        open_: list[Any] = []
        for step in range(40):
            chance = desk.chance.below(number, step)
            waiter, target = chance.choice("abcdef", "waiter"), chance.choice("abcdef", "target")
            if open_ and chance.happens(0.4, "over"):
                place = chance.integer(0, len(open_) - 1, "which")
                open_.pop(place).__exit__(None, None, None)
                drawn.pop(place)
                continue
            closes = waiter == target or waiter in _reached(drawn, target)
            block = graph.waiting(waiter, target)
            try:
                block.__enter__()
                desk.same(f"{waiter} waits for {target}", closes, False)
                open_.append(block)
                drawn.append((waiter, target))
            except DeadlockError as error:
                desk.same(f"{waiter} waits for {target}", closes, True)
                cycle = error.cycle
                steps = {*drawn, (waiter, target)}
                walked = all(one in steps for one in pairwise(cycle))
                desk.same(
                    f"the circle {cycle}", (cycle[0], cycle[1], cycle[-1], walked), (waiter, target, waiter, True)
                )
            for one in "abcdef":
                mine = sorted(target for waiter, target in drawn if waiter == one)
                desk.same(f"what {one} waits for", sorted(graph.waits_of(one)), mine)


def _reached(drawn: list[tuple[str, str]], start: str) -> set[str]:
    found = {start}
    while more := {target for waiter, target in drawn if waiter in found} - found:
        found |= more
    return found


async def sights(desk: Desk) -> None:
    """What is seen of an actor from outside: all of it, and nothing that is not so."""
    for name in ("third", "second", "first"):
        desk.system.spawn(DoesLater(), name)
    bare = desk.system.inspect("first")
    shown = (bare.behaviour, bare.label, bare.handling, bare.handling_s, bare.suspended, bare.reason)
    desk.same("of who does nothing", shown, ("DoesLater", "", "", 0.0, False, ""))
    shown_too = (bare.waits_for, bare.waited_chain, bare.scope_causes, bare.names, bare.links, bare.tasks)
    desk.same("nor has anything", [*map(list, shown_too)], [[]] * 6)
    lanes = {"control": 0, "urgent": 0, "normal": 0}
    desk.same("its counters", tuple(bare.stats), (0, lanes, 0, 0, 1, 0, 0, 0, 0))

    def asks(other: str) -> Any:
        return lambda ctx: ref_of(desk, other).ask(asks_of[other], timeout_s=60.0)

    asks_of: dict[str, Any] = {"third": lambda ctx: anyio.sleep(5.0)}
    asks_of["second"] = asks("third")
    ref_of(desk, "first").tell(asks("second"))
    await anyio.sleep(1.0)
    first = desk.system.inspect("first")
    chain = (list(first.waits_for), list(first.waited_chain), first.handling)
    desk.same("who waits for whom", chain, (["second"], ["first", "second", "third"], "function"))
    desk.same("of the last of them", list(desk.system.inspect("third").waited_chain), [])
    await desk.raises("a look in between", desk.system.stats("first", timeout_s=0.5), AskTimeout)
    waiting: list[Any] = []

    async def look() -> None:
        waiting.append(await desk.system.stats("first", timeout_s=20.0))
        desk.at("a look in between", 3.5, 4)

    desk.again()
    async with anyio.create_task_group() as group:
        group.start_soon(look)
    desk.same("what it sees", (waiting[0].handled, waiting[0].tasks), (1, 1))
    error = ValueError("mine")

    class Shy(DoesLater):
        def get_state(self) -> object:
            raise error

    desk.system.spawn(Shy(), "shy")
    await desk.raises("who does not show himself", desk.system.get_state("shy", timeout_s=1.0), ValueError)
    ref_of(desk, "shy").tell(lambda ctx: anyio.sleep(1.0))
    await anyio.sleep(0.5)
    await desk.raises("nor while he is busy", desk.system.get_state("shy", timeout_s=5.0), ValueError)
    desk.same("and lives", "shy" in desk.system, True)
    desk.system.trace("second")
    for number in range(70):
        ref_of(desk, "second").tell(number)
    await anyio.sleep(1.0)
    desk.same("how much is traced", len(desk.system.trace("second", on=False)), 64)
    desk.same("and no more", len(desk.system.trace("second", on=False)), 0)


async def traced(desk: Desk) -> None:
    """An actor that is traced has its turns like any other: it hears nothing after its end, and lets others go on."""
    does, letters = Does(), list[Any]()
    ref = desk.system.spawn(does, "t")
    desk.system.trace("t")
    desk.system.on_event = letters.append
    for message in ("a", lambda ctx: ctx.exit(), "b", "c"):
        ref.tell(message)
    await desk.system.join("t")
    lost = [one.message for one in letters if isinstance(one, DeadLetter)]
    desk.same("what is heard, and what is not", (does.heard, lost), (["a"], ["b", "c"]))
    counted, others = Does(), list[int]()
    one, other = desk.system.spawn(counted, "one"), desk.system.spawn(Does(), "other")
    desk.system.trace("one")
    for number in range(50):
        one.tell(number)
    other.tell(lambda ctx: others.append(len(counted.heard)))
    await desk.system.idle()
    desk.same("when the other had its turn", (others, len(counted.heard)), ([QUANTUM], 50))
    desk.same("how many it has heard", (await desk.system.stats("one", timeout_s=1.0)).handled, 50)


async def voided(desk: Desk) -> None:
    """What is void when its turn comes is not handled, and not counted: a timer that was cancelled or set again, an
    ask whose asker has gone; nor is it where the actor is traced."""
    for kind in (Does, DoesLater):
        for closely in (False, True):
            does, name = kind(), f"{kind.__name__}, traced: {closely}"
            ref = desk.system.spawn(does, name)
            await desk.system.suspend(name, timeout_s=1.0)
            if closely:
                desk.system.trace(name)
            context: Any = desk.system.context(name)
            for key in ("cancelled", "set again", "kept"):
                context.set_timer(key, 0.0, key)
            await anyio.sleep(0.1)
            context.cancel_timer("cancelled")
            context.set_timer("set again", 0.5, "again")
            ref.tell(1)
            await desk.raises("an ask that nobody handles", ref.ask("gone", timeout_s=0.1), AskTimeout)
            desk.system.resume(name)
            await anyio.sleep(1.0)
            desk.same(f"{name}: what is heard", does.heard, ["kept", 1, "again"])
            desk.same(f"{name}: how many", (await desk.system.stats(name, timeout_s=1.0)).handled, 3)
            if closely:
                shown = [word for _, what, word in desk.system.trace(name, on=False) if what == "handled"]
                desk.same(f"{name}: its trace", shown, ["str", "int", "str"])


class Pausing:
    """The loop as timers see it: a clock that this drill moves."""

    def __init__(self) -> None:
        self.now_s, self.fired, self.late = 100.0, list[str](), list[float]()
        backend = Backend("drill", lambda: self.now_s, _never, _never, _never)
        self.timers = TimerService(backend, self.late.append)

    def set(self, name: str, delay_s: float) -> Any:
        return self.timers.set(name, None, delay_s, lambda timer: self.fired.append(name))

    def wake(self, at_s: float) -> float:
        """The loop looks, at that moment; when it will look again."""
        self.now_s = at_s
        return self.timers._fire_due()


def _never(*given: Any) -> Any:
    raise AssertionError("nobody waits here")


async def pauses(desk: Desk) -> None:
    """Nobody ran for more than a second after a timer was due: the clock stands still for that, and for two seconds."""
    for late_s, paused in ((0.0, False), (0.9, False), (1.0, True), (30.0, True)):
        one = Pausing()
        one.set("a", 5.0)
        one.set("b", 6.0)
        one.set("c", 8.0 + late_s)
        desk.same("when it looks first", one.wake(100.0), 105.0)
        again_s = one.wake(105.0 + late_s)
        if not paused:
            desk.same("what is due", (one.fired, one.late, again_s), (["a"], [], 106.0))
            continue
        desk.same("in the grace", (one.fired, one.late, again_s), ([], [late_s], 107.0 + late_s))
        desk.same("its clock stands still", one.timers.now(), 105.0)
        one.now_s += 1.0
        desk.same("still", one.timers.now(), 105.0)
        one.set("d", 1.5)
        desk.same("what is set then", (one.wake(one.now_s), one.fired), (107.0 + late_s, []))
        lost_s = late_s + 2.0
        desk.same("after it", (one.wake(105.0 + lost_s), one.fired), (106.0 + lost_s, ["a"]))
        one.now_s += 0.5
        desk.same("it goes on", one.timers.now(), 105.5)
        desk.same("the next one", (one.wake(106.0 + lost_s), one.fired), (106.5 + lost_s, ["a", "b"]))
        one.set("e", 0.25)
        desk.same("one that is set after it", (one.wake(106.25 + lost_s), one.fired[-1]), (106.5 + lost_s, "e"))
        desk.same("the last", (one.wake(106.5 + lost_s), one.fired[-1]), (108.0 + late_s + lost_s, "d"))
        desk.same("that is left", (len(one.timers), one.timers.pending), (1, 1))
        again_s = one.wake(one.now_s + 40.0 + late_s)
        desk.same("another pause", (len(one.late), again_s), (2, one.now_s + 2.0))
    one = Pausing()
    one.set("early", 5.0)
    desk.same("set before anybody looked", (one.wake(130.0), one.fired, one.late), (inf, ["early"], []))
    one = Pausing()
    kept = [one.set(f"k{number}", 50.0) for number in range(40)]
    gone = [one.set(f"g{number}", 50.0) for number in range(200)]
    for timer in (*gone, *gone):
        one.timers.cancel(timer)
    desk.same("what is kept of those that were cancelled", one.timers.pending, len(kept))
    desk.same("they leave memory", len(one.timers) <= 2 * 65 + len(kept), True)
    desk.same("who rings", (one.wake(150.0), sorted(one.fired)), (inf, sorted(f"k{number}" for number in range(40))))


async def bounced(desk: Desk) -> None:
    """An actor that stops: what it has not read, and a tell that an async handler had in hand, are dead letters."""
    for kind in (Does, DoesLater):
        letters: list[Any] = []
        name = kind.__name__
        ref = desk.system.spawn(kind(), name)
        desk.system.on_event = letters.append
        if kind is DoesLater:
            ref.tell(lambda ctx: anyio.sleep(9.0))
            await anyio.sleep(0.5)
        else:
            await desk.system.suspend(name, timeout_s=1.0)
        context: Any = desk.system.context(name)
        context.set_timer("t", 0.0, "own")
        await anyio.sleep(0.5)
        ref.tell("x", lane=Lane.URGENT)
        ref.tell(7)
        desk.system.stop(name)
        await desk.system.join(name)
        desk.system.on_event = lambda event: None
        lost = [
            (one.message if not callable(one.message) else "in hand", one.why, one.attempts)
            for one in letters
            if isinstance(one, DeadLetter)
        ]
        wanted = [("x", "stopped", 0), (7, "stopped", 0)]
        desk.same(
            f"{name}: what was lost", lost, [*wanted, *([("in hand", "stopped", 0)] if kind is DoesLater else [])]
        )


async def crowded(desk: Desk) -> None:
    """Whoever waits for room at an actor that stops is told so then."""
    full = desk.system.spawn(Does(), "full", capacity=1)
    await desk.system.suspend("full", timeout_s=1.0)
    full.tell("0")
    desk.again()
    async with anyio.create_task_group() as group:
        for wish in (full.send("1", timeout_s=20.0), full.ask("2", timeout_s=20.0)):
            group.start_soon(desk.raises, "a wait for who stops", wish, ActorStopped)
        await anyio.sleep(1.0)
        desk.system.stop("full")
    desk.at("who waited is told", 1.0, 1)


class Delays(Backoff):
    """Notes after how many failures it was asked."""

    __slots__ = ()

    def delay_s(self, failures: int, rng: Any) -> float:
        FAILURES.append(failures)
        return 0.0


FAILURES: list[int] = []


async def counts(desk: Desk) -> None:
    """A delay is asked for by the failures in a row, from one; they are forgotten after a long life, and not before."""
    FAILURES.clear()
    many = Intensity(99, 1000.0)
    spec = ChildSpec("c", Does)
    backoff = Delays(base_s=0.0, factor=1.0, cap_s=1.0)
    desk.system.spawn(Supervisor([spec], backoff=backoff, intensity=many, child_intensity=many), "s")
    for pause_s in (1.0, 1.0, 118.0, 121.0, 1.0):
        ref_of(desk, "s/c").tell(lambda ctx: 1 / 0)
        await anyio.sleep(pause_s)
    desk.same("failures in a row", FAILURES, [1, 2, 3, 4, 1])


MANNERS = (
    traced,
    voided,
    pauses,
    leaves,
    drops,
    wants,
    edges,
    contexts,
    scopes,
    strays,
    waits,
    sights,
    bounced,
    crowded,
    counts,
)
