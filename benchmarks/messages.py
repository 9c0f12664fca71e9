"""Cost of a message: tell, ask of an idle actor, ask of a busy actor, and a control message under a flood.

Lanes, bounds and fairness are always on. An ask has a deadline; the bare queues compared with it have none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from actors import DEFERRED, Context, Lane, MailboxFull, Ref, open_system
from benchmarks.harness import (
    Case,
    Figures,
    Line,
    Sizes,
    Stopwatch,
    asynchronous,
    at_most_times,
    faster_by,
    per_us,
    percentile,
    round_trips_us,
)
from benchmarks.peers import peer
from benchmarks.primitives import asks_p50_us, asyncio_tells_us, bare_asks_us, bare_tells_us, native, settle

TIMEOUT_S = 30.0
MIXED = (Lane.CONTROL, Lane.URGENT, Lane.URGENT, *[Lane.NORMAL] * 7)
"""Lanes of ten messages to a busy actor, over all lanes."""


class Sink:
    def receive(self, ctx: Context, message: Any) -> None:
        return None


class Echo:
    def receive(self, ctx: Context, message: Any) -> Any:
        return message


class Later:
    """Actor that replies to an ask when it handles its next message, which it sends to itself."""

    def __init__(self) -> None:
        self._reply: Any = None

    def receive(self, ctx: Context, message: Any) -> Any:
        if message is None:
            self._reply.resolve(None)
            return None
        assert ctx.envelope is not None
        self._reply = ctx.envelope.reply
        ctx.tell_self(None)
        return DEFERRED


# ---------------------------------------------------------------------- tell
async def tells(backend: str, sizes: Sizes) -> float:
    async with open_system() as system:
        ref = system.spawn(Sink(), "sink", capacity=sizes.burst)
        with Stopwatch() as watch:
            for _ in range(sizes.bursts):
                for n in range(sizes.burst):
                    ref.tell(n)
                await system.idle()
    return per_us(watch.spent_s, sizes.burst * sizes.bursts)


async def mixed_tells(backend: str, sizes: Sizes) -> float:
    async with open_system() as system:
        ref = system.spawn(Sink(), "sink", capacity=sizes.burst)
        lanes = [MIXED[n % len(MIXED)] for n in range(sizes.burst)]
        with Stopwatch() as watch:
            for _ in range(sizes.bursts):
                for lane in lanes:
                    ref.tell(lane, lane=lane)
                await system.idle()
    return per_us(watch.spent_s, sizes.burst * sizes.bursts)


async def scattered_tells(backend: str, sizes: Sizes) -> float:
    """Measure sending a message to each of a thousand actors in turn, so that no messages are handled in a batch."""
    many, times = max(1, sizes.actors // 10), 10
    async with open_system() as system:
        refs = [system.spawn(Sink(), str(n)) for n in range(many)]
        with Stopwatch() as watch:
            for n in range(times):
                for ref in refs:
                    ref.tell(n)
                await system.idle()
    return per_us(watch.spent_s, many * times)


async def scattered_puts(backend: str, sizes: Sizes) -> float:
    """Measure the same with a queue and a task for each actor."""
    many, times = max(1, sizes.actors // 10), 10
    pipes = [native(backend)(16) for _ in range(many)]
    left, done = many * times, anyio.Event()

    async def consume(pipe: Any) -> None:
        nonlocal left
        while True:
            await pipe.get()
            left -= 1
            if not left:
                done.set()

    async with anyio.create_task_group() as group:
        for pipe in pipes:
            group.start_soon(consume, pipe)
        await settle()
        with Stopwatch() as watch:
            for n in range(times):
                for pipe in pipes:
                    pipe.put(n)
                await anyio.lowlevel.checkpoint()
            await done.wait()
        group.cancel_scope.cancel()
    return per_us(watch.spent_s, many * times)


# ---------------------------------------------------------------------- ask
async def idle_asks(backend: str, sizes: Sizes) -> float:
    """Measure asks of an actor that has nothing to do; p50."""
    async with open_system() as system:
        ref = system.spawn(Echo(), "echo")
        await system.idle()
        return percentile(await round_trips_us(lambda n: ref.ask(n, timeout_s=TIMEOUT_S), sizes.asks), 50)


async def queued_asks(backend: str, sizes: Sizes) -> float:
    """Measure asks of an actor that has a message to handle first, so that the dispatcher handles the ask; p50 for both
    messages."""
    async with open_system() as system:
        ref = system.spawn(Echo(), "echo")

        async def ask(n: int) -> None:
            ref.tell(None)
            await ref.ask(n, timeout_s=TIMEOUT_S)

        return percentile(await round_trips_us(ask, sizes.asks), 50)


async def deferred_asks(backend: str, sizes: Sizes) -> float:
    """Measure asks of an actor that replies in its next turn; p50."""
    async with open_system() as system:
        ref = system.spawn(Later(), "later")
        return percentile(await round_trips_us(lambda n: ref.ask(n, timeout_s=TIMEOUT_S), sizes.asks), 50)


async def bare_asks_behind_one(backend: str, sizes: Sizes) -> float:
    return await asks_p50_us(native(backend), sizes, ahead=1)


# ---------------------------------------------------------------------- control under a flood
async def flood(ref: Ref) -> None:
    """Keep the mailbox of an actor full, for ever."""
    while True:
        try:
            ref.tell(None)
        except MailboxFull:
            await anyio.lowlevel.checkpoint()


async def control_latency(target: str, flooded: bool, sizes: Sizes) -> Figures:
    """Measure p50 and p99 of a control ask, from the moment its sender may run until it has the reply."""
    async with open_system() as system, anyio.create_task_group() as group:
        refs = {name: system.spawn(Echo(), name) for name in ("flooded", "other")}
        if flooded:
            group.start_soon(flood, refs["flooded"])

        async def ask(n: int) -> None:
            await anyio.lowlevel.checkpoint()
            await refs[target].ask(n, timeout_s=TIMEOUT_S, lane=Lane.CONTROL)

        times = await round_trips_us(ask, sizes.control_asks)
        group.cancel_scope.cancel()
    return percentile(times, 50), percentile(times, 99)


def control(target: str, flooded: bool) -> Callable[[str, Sizes], Awaitable[Figures]]:
    async def once(backend: str, sizes: Sizes) -> Figures:
        return await control_latency(target, flooded, sizes)

    return once


PAIR = "a pair of the backend's queues"
CASES = (
    Case(
        (Line("tell, in bursts", "us", faster_by(1.5)),),
        asynchronous(tells),
        "bounded asyncio.Queue",
        asyncio_tells_us,
    ),
    Case((Line("tell, in bursts", "us"),), asynchronous(tells), "the backend's queue", asynchronous(bare_tells_us)),
    Case((Line("tell, in bursts", "us", faster_by(8)),), asynchronous(tells), "Pykka", peer("pykka", "tell")),
    Case(
        (Line("tell, in bursts, all lanes", "us"),),
        asynchronous(mixed_tells),
        "bounded asyncio.Queue",
        asyncio_tells_us,
    ),
    Case(
        (Line("tell, one each to 1,000 actors", "us", faster_by(10, "prototype")),),
        asynchronous(scattered_tells),
        "1,000 tasks with queues",
        asynchronous(scattered_puts),
    ),
    Case(
        (Line("ask, idle actor, p50", "us", at_most_times(1.0)),),
        asynchronous(idle_asks),
        PAIR,
        asynchronous(bare_asks_us),
    ),
    Case(
        (Line("ask, a message ahead of it, p50", "us", at_most_times(1.0)),),
        asynchronous(queued_asks),
        f"{PAIR}, one ahead",
        asynchronous(bare_asks_behind_one),
    ),
    Case(
        (Line("ask, answered a turn later, p50", "us", at_most_times(1.0)),),
        asynchronous(deferred_asks),
        PAIR,
        asynchronous(bare_asks_us),
    ),
    Case(
        (Line("ask, idle actor, p50", "us"),), asynchronous(idle_asks), "Erlang gen_server:call", peer("erlang", "ask")
    ),
    Case(
        (Line("control ask beside a flood, p50", "us"), Line("control ask beside a flood, p99", "us")),
        asynchronous(control("other", True)),
        "without the flood",
        asynchronous(control("other", False)),
    ),
    Case(
        (Line("control ask of the flooded, p50", "us"), Line("control ask of the flooded, p99", "us")),
        asynchronous(control("flooded", True)),
        "without the flood",
        asynchronous(control("flooded", False)),
    ),
)
