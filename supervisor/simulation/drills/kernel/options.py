"""Options: what no actor can be given is refused at once, and what is just possible is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors import (
    ActorStopped,
    Backoff,
    ChildSpec,
    Coalesce,
    Context,
    Intensity,
    InvalidOption,
    Limits,
    NameTaken,
    NoSuchActor,
    Supervisor,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["OPTIONS"]


class Idle:
    """Hears, and does nothing."""

    def receive(self, ctx: Context, message: Any) -> None:
        return None


def _spawned(desk: Desk, name: str, **options: Any) -> Callable[[], object]:
    return lambda: desk.system.spawn(Idle(), name, **options)


async def options(desk: Desk) -> None:
    """Bounds below one, times below zero, names that are taken, actors that are not there."""
    for limits in (Limits(0), Limits(-1), Limits(1.5), Limits("1"), Limits(1, 0), Limits(1, "1")):  # type: ignore[arg-type]
        desk.refused(f"{limits}", _spawned(desk, "no", limits=limits), InvalidOption)
    for limits in (Limits(1, 1, "block"), Limits(overflow=Coalesce("key")), Limits(size_of="len")):  # type: ignore[arg-type]
        desk.refused(f"{limits}", _spawned(desk, "no", limits=limits), InvalidOption)
    desk.refused("a shutdown before it began", _spawned(desk, "no", shutdown_s=-0.1), InvalidOption)
    desk.system.spawn(Idle(), "a", limits=Limits(1, 1), shutdown_s=0.0)
    desk.system.spawn(Idle(), "b", parent="a")
    desk.refused("a second one of the name", _spawned(desk, "a"), NameTaken)
    desk.refused("a child of nobody", _spawned(desk, "no", parent="nobody"), ActorStopped)
    desk.refused("a home that is no ancestor", _spawned(desk, "no", parent="a", home="b"), InvalidOption)
    desk.same("who is there", ["no" in desk.system, *desk.system.children()], [False, "a"])
    await _refuse_times(desk)
    for wrong in ({"backoff": Backoff(base_s=-1.0)}, {"intensity": Intensity(-1, 1.0)}, {"strategy": "none"}):
        desk.refused(f"a supervisor with {wrong}", lambda wrong=wrong: Supervisor(**wrong), InvalidOption)  # type: ignore[misc]
    twice = [ChildSpec("c", Idle), ChildSpec("c", Idle)]
    desk.refused("two children of one name", lambda: Supervisor(twice), InvalidOption)


async def _refuse_times(desk: Desk) -> None:
    ref, ctx = desk.system.ref("a"), desk.system.context("a")
    assert ref is not None
    assert ctx is not None
    desk.refused("a timer in the past", lambda: ctx.set_timer("t", -0.1, "x"), InvalidOption)
    desk.refused("a timer that is no number", lambda: ctx.set_timer("t", float("nan"), "x"), InvalidOption)
    desk.refused("a lane that is none", lambda: ref.tell("x", lane=7), InvalidOption)  # type: ignore[arg-type]
    for timeout_s in (float("inf"), float("nan"), None, "1"):
        await desk.raises(f"an ask for {timeout_s}", ref.ask("x", timeout_s=timeout_s), InvalidOption)  # type: ignore[arg-type]
        await desk.raises(f"a send for {timeout_s}", ref.send("x", timeout_s=timeout_s), InvalidOption)  # type: ignore[arg-type]
        await desk.raises(f"a look for {timeout_s}", desk.system.stats("a", timeout_s=timeout_s), InvalidOption)  # type: ignore[arg-type]
    await desk.raises("a look at nobody", desk.system.stats("nobody", timeout_s=1.0), NoSuchActor)
    await desk.raises("fewer than no messages", desk.system.peek("a", most=-1, timeout_s=1.0), InvalidOption)


OPTIONS = (options,)
