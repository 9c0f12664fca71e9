"""Supervision: who is started again, with whom, how often and when, held to OTP's rules as docs/kernel.md has them.

Each drill reckons beforehand what must happen, from its own account of strategies, restart types, windows and delays.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import anyio

from actors import (
    Backoff,
    ChildSpec,
    Context,
    Intensity,
    InvalidOption,
    NoSuchActor,
    RestartLimitExceeded,
    Shutdown,
    Supervisor,
)
from actors.errors import NameTaken, StartFailed
from actors.restart import AutoShutdown, Restart, Strategy
from actors.supervision import (
    ChildActive,
    CountChildren,
    DeleteChild,
    Pool,
    RestartChild,
    StartChild,
    StopChild,
    WhichChildren,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["SUPERVISING"]

SOON = Backoff(base_s=0.0, cap_s=0.0)
OFTEN = Intensity(100, 1000.0)
ASK_S = 5.0


class Member:
    """A child that notes its beginning and its end, and crashes or leaves as it is told to."""

    def __init__(self, name: str, noted: list[str]) -> None:
        self.name, self.noted = name, noted

    def started(self, ctx: Context) -> None:
        self.noted.append(f"+{self.name}")

    def stopped(self, ctx: Context, reason: object) -> None:
        self.noted.append(f"-{self.name}")

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "crash":
            raise RuntimeError(self.name)
        if message == "leave":
            ctx.exit()
        return ctx.incarnation


def _specs(names: Iterable[str], noted: list[str], **options: Any) -> list[ChildSpec]:
    return [ChildSpec(one, lambda one=one: Member(one, noted), **options) for one in names]  # type: ignore[misc]


async def _tell(desk: Desk, actor_id: str, words: str) -> None:
    """Tell it, and let what follows from that happen."""
    ref = desk.system.ref(actor_id)
    if ref is None:
        desk.same(f"{actor_id} is there", False, True)
        return
    ref.tell(words)
    await anyio.sleep(0.5)


async def _ask(desk: Desk, wish: object, of: str = "s") -> Any:
    ref = desk.system.ref(of)
    return None if ref is None else await ref.ask(wish, timeout_s=ASK_S)


async def strategies(desk: Desk) -> None:
    """Who goes down with a crash, the youngest first, and comes back with it, the oldest first."""
    for number, (strategy, failed) in enumerate(product(Strategy, "abc")):
        noted: list[str] = []
        name = f"s{number}"
        app = Supervisor(_specs("abc", noted), strategy=strategy, backoff=SOON, intensity=OFTEN, child_intensity=OFTEN)
        desk.system.spawn(app, name)
        desk.same("the order of starts", noted, ["+a", "+b", "+c"])
        noted.clear()
        await _tell(desk, f"{name}/{failed}", "crash")
        group = {
            Strategy.ONE_FOR_ONE: failed,
            Strategy.ONE_FOR_ALL: "abc",
            Strategy.REST_FOR_ONE: "abc"["abc".index(failed) :],
        }[strategy]
        wanted = [f"-{failed}", *(f"-{one}" for one in reversed(group) if one != failed), *(f"+{one}" for one in group)]
        desk.same(f"{strategy} of {failed}", noted, wanted)
        told = {one.id: (one.state, one.restarts) for one in await _ask(desk, WhichChildren(), name)}
        desk.same(f"{strategy} of {failed}: restarts", told, {one: ("running", int(one == failed)) for one in "abc"})
        desk.system.stop(name)
        await desk.system.join(name)
        desk.same(f"{strategy}: the order of ends", noted[len(wanted) :], ["-c", "-b", "-a"])


async def types(desk: Desk) -> None:
    """A permanent child comes back always, a transient one after a crash, a temporary one never: it is forgotten."""
    noted: list[str] = []
    specs = [*_specs("p", noted), *_specs("t", noted, restart=Restart.TRANSIENT)]
    specs += _specs("x", noted, restart=Restart.TEMPORARY)
    desk.system.spawn(Supervisor(specs, backoff=SOON, intensity=OFTEN, child_intensity=OFTEN), "s")
    for one, end, lives in (
        ("p", "leave", True),
        ("p", "crash", True),
        ("t", "crash", True),
        ("t", "leave", False),
        ("x", "crash", False),
    ):
        await _tell(desk, f"s/{one}", end)
        desk.same(f"{one} after a {end}", f"s/{one}" in desk.system, lives)
    told = {one.id: (one.state, one.restarts) for one in await _ask(desk, WhichChildren())}
    desk.same("what is left of them", told, {"p": ("running", 2), "t": ("down", 1)})
    desk.same("how many", await _ask(desk, CountChildren()), {"specs": 2, "active": 1, "restarting": 0})
    desk.same("its incarnation", await _ask(desk, "hello", "s/p"), 3)


async def requests(desk: Desk) -> None:
    """Children are added, stopped, started again and forgotten, each only where that can be."""
    noted: list[str] = []
    desk.system.spawn(Supervisor(_specs("a", noted), backoff=SOON), "s")
    ref = desk.system.ref("s")
    assert ref is not None
    (spec,) = _specs("b", noted)
    desk.same("a new child", (await _ask(desk, StartChild(spec))).id, "s/b")
    for wish, error in (
        (StartChild(spec), NameTaken),
        (StartChild(spec, (1,)), InvalidOption),
        (StartChild(None), InvalidOption),
        (StartChild(ChildSpec("c", lambda: 1)), StartFailed),  # type: ignore[arg-type, return-value]
        (RestartChild("b"), ChildActive),
        (DeleteChild("b"), ChildActive),
        (StopChild("nobody"), NoSuchActor),
        (RestartChild("nobody"), NoSuchActor),
        (DeleteChild("nobody"), NoSuchActor),
    ):
        await desk.raises(f"{type(wish).__name__} of {wish}", ref.ask(wish, timeout_s=ASK_S), error)
    await _ask(desk, StopChild("b"))
    desk.same("a child that was stopped", ("s/b" in desk.system, noted[-1]), (False, "-b"))
    await _ask(desk, StopChild("b"))
    desk.same("one that is down", (await _ask(desk, CountChildren())), {"specs": 2, "active": 1, "restarting": 0})
    desk.same("one that is started again", (await _ask(desk, RestartChild("b"))).id, "s/b")
    desk.same("its start", noted[-1], "+b")
    await _ask(desk, StopChild("b"))
    await _ask(desk, DeleteChild("b"))
    desk.same("who is left", [one.id for one in await _ask(desk, WhichChildren())], ["a"])
    desk.same("that was no failure", (await _ask(desk, WhichChildren()))[0].restarts, 0)


async def windows(desk: Desk) -> None:
    """As many restarts within a period as may be, of one child and of all; one more is the end."""
    for number, (each, of_all, ends) in enumerate(((2, 9, "aaa"), (9, 3, "abab"), (0, 9, "a"))):
        noted: list[str] = []
        ended: list[object] = []
        app = Supervisor(
            _specs("ab", noted),
            backoff=SOON,
            intensity=Intensity(of_all, 30.0),
            child_intensity=Intensity(each, 30.0),
        )
        name = f"s{number}"
        desk.system.spawn(app, name)
        desk.system.monitor(name, lambda down, ended=ended: ended.append(down.reason))  # type: ignore[misc]
        for one in ends[:-1]:
            await _tell(desk, f"{name}/{one}", "crash")
        desk.same(f"{ends[:-1]} is not too often", ended, [])
        if len(ends) > 1:
            await anyio.sleep(31.0)
            for one in ends[:-1]:
                await _tell(desk, f"{name}/{one}", "crash")
            desk.same(f"{ends[:-1]} again, a period later, is not too often", ended, [])
        await _tell(desk, f"{name}/{ends[-1]}", "crash")
        desk.same(f"{ends} is too often", [type(one) for one in ended], [RestartLimitExceeded])
        desk.same("nobody is left", [one for one in (f"{name}/a", f"{name}/b") if one in desk.system], [])


async def delays(desk: Desk) -> None:
    """A restart waits for a part of a ceiling that doubles to its cap, and begins anew after a long life."""
    noted: list[str] = []
    backoff = Backoff(base_s=4.0, factor=2.0, cap_s=16.0)
    names = [f"c{number}" for number in range(8)]
    desk.system.spawn(Supervisor(_specs(names, noted), backoff=backoff, intensity=OFTEN, child_intensity=OFTEN), "s")
    for ceiling_s in (4.0, 8.0, 16.0, 16.0):
        for name in names:
            await _tell(desk, f"s/{name}", "crash")
        now_s = desk.system.timers.now()
        told = [one for one in await _ask(desk, WhichChildren()) if one.next_attempt_s is not None]
        most_s = max((one.next_attempt_s - now_s for one in told), default=0.0)
        if not (ceiling_s / 8 < most_s + len(names) * 0.5 and most_s <= ceiling_s):
            desk.same("the longest of eight delays", most_s, f"a good part of {ceiling_s:g} s")
        desk.same("who waits", {one.state for one in told} <= {"restarting"}, True)
        await anyio.sleep(20.0)
        desk.same("who is back", (await _ask(desk, CountChildren()))["active"], len(names))
    await anyio.sleep(121.0)
    for name in names:
        await _tell(desk, f"s/{name}", "crash")
    told = [
        one.next_attempt_s - desk.system.timers.now() for one in await _ask(desk, WhichChildren()) if one.next_attempt_s
    ]
    desk.same("delays after a long life", [one for one in told if one > 4.0], [])


async def significants(desk: Desk) -> None:
    """A supervisor ends with the first, or the last, of its significant children that ends by itself."""
    for auto, ends, over in (
        (AutoShutdown.ANY_SIGNIFICANT, "a", True),
        (AutoShutdown.ANY_SIGNIFICANT, "z", False),
        (AutoShutdown.ALL_SIGNIFICANT, "a", False),
        (AutoShutdown.ALL_SIGNIFICANT, "ab", True),
        (AutoShutdown.NEVER, "z", False),
    ):
        noted: list[str] = []
        important = auto is not AutoShutdown.NEVER
        specs = _specs("ab", noted, restart=Restart.TRANSIENT, significant=important)
        specs += _specs("z", noted, restart=Restart.TRANSIENT)
        name = f"{auto.value}-{ends}"
        reasons: list[object] = []
        desk.system.spawn(Supervisor(specs, backoff=SOON, auto_shutdown=auto), name)
        desk.system.monitor(name, lambda down, reasons=reasons: reasons.append(type(down.reason)))  # type: ignore[misc]
        for one in ends:
            await _tell(desk, f"{name}/{one}", "leave")
        desk.same(f"{auto} after {ends}", reasons, [Shutdown] if over else [])
        if not over:
            await _ask(desk, StopChild("b"), name)
            desk.same(f"{auto} after one was stopped", reasons, [])


async def pools(desk: Desk) -> None:
    """A pool starts what it is asked for, numbered; who ends is forgotten, who crashes comes back."""
    noted: list[str] = []
    template = ChildSpec("any", lambda: Member("any", noted), restart=Restart.TRANSIENT)
    desk.system.spawn(Pool(lambda name: Member(name, noted), template, backoff=SOON), "s")
    ref = desk.system.ref("s")
    assert ref is not None
    started = [(await _ask(desk, StartChild(args=(name,)))).id for name in "xyz"]
    desk.same("what was started", (started, noted), (["s/1", "s/2", "s/3"], ["+x", "+y", "+z"]))
    await desk.raises("a spec for a pool", ref.ask(StartChild(template), timeout_s=ASK_S), InvalidOption)
    await desk.raises("wrong arguments", ref.ask(StartChild(args=(1, 2)), timeout_s=ASK_S), StartFailed)
    await _tell(desk, "s/1", "leave")
    await _tell(desk, "s/2", "crash")
    told = [(one.id, one.state, one.restarts) for one in await _ask(desk, WhichChildren())]
    desk.same("who is left", told, [("2", "running", 1), ("3", "running", 0)])
    noted.clear()
    desk.system.stop("s")
    await desk.system.join("s")
    desk.same("who ended", sorted(noted), ["-y", "-z"])


SUPERVISING = (strategies, types, requests, windows, delays, significants, pools)
