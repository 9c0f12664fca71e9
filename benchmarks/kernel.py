"""What the actor kernel costs, as a ratio to bare primitives measured in the same run, on both backends.

Run it as ``python benchmarks/kernel.py``: it prints one table and takes less than a minute. Times are processor time,
best of a few rounds, so that a busy machine shifts both sides alike. Nothing here is asserted: the figures are for
reading, and for comparing two commits on one machine.
"""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import trio

from actors import ActorSystem, Context, Event, Machine, open_system, rule

__all__ = ["main"]

ROUNDS = 3
BURST, BURSTS = 200, 250
ASKS = 4000
ACTORS = 10_000
WIDE = 100
CHAIN = 2000
NESTED = {"asyncio": 200, "trio": 1000}
"""How deep bare task groups are nested: on asyncio a cancellation hangs somewhere above 300."""
STEPS = 100_000


class Row(NamedTuple):
    """One line of the table; *value* and *bare* in *unit*, less is better."""

    what: str
    unit: str
    value: float
    against: str
    bare: float


class Sink:
    def receive(self, ctx: Context, message: Any) -> None:
        return None


class Echo:
    def receive(self, ctx: Context, message: Any) -> Any:
        return message


class Stopwatch:
    """Processor time of a ``with`` block, in seconds, with the garbage of earlier rounds gone."""

    spent_s = 0.0

    def __enter__(self) -> Stopwatch:
        gc.collect()
        self._since = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.spent_s = time.process_time() - self._since


async def best(measure: Callable[[], Awaitable[float]], rounds: int = ROUNDS) -> float:
    return min([await measure() for _ in range(rounds)])


# ---------------------------------------------------------------------- queues to compare with
class AsyncioPipe:
    """A bounded ``asyncio.Queue``."""

    name = "asyncio.Queue"

    def __init__(self, size: int) -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue(size)
        self.put, self.get = queue.put_nowait, queue.get


class TrioPipe:
    """A trio memory channel."""

    name = "trio channel"

    def __init__(self, size: int) -> None:
        self._send, self._receive = trio.open_memory_channel[Any](size)
        self.put, self.get = self._send.send_nowait, self._receive.receive


Pipe = AsyncioPipe | TrioPipe


def pipe(backend: str, size: int = 1024) -> Pipe:
    return AsyncioPipe(size) if backend == "asyncio" else TrioPipe(size)


async def pipe_tells(backend: str) -> float:
    """Bursts through one queue to one task, until it has drained each."""
    through, drained = pipe(backend), pipe(backend)

    async def consume() -> None:
        while True:
            if await through.get() == BURST - 1:
                drained.put(None)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        with Stopwatch() as watch:
            for _ in range(BURSTS):
                for n in range(BURST):
                    through.put(n)
                await drained.get()
        group.cancel_scope.cancel()
    return watch.spent_s / (BURST * BURSTS) * 1e6


async def pipe_asks(backend: str) -> float:
    """A question and its answer through a pair of queues."""
    questions, answers = pipe(backend), pipe(backend)

    async def answer() -> None:
        while True:
            answers.put(await questions.get())

    async def ask(n: int) -> None:
        questions.put(n)
        await answers.get()

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        p50 = await median_us(ask)
        group.cancel_scope.cancel()
    return p50


async def median_us(ask: Callable[[int], Awaitable[Any]]) -> float:
    """The median of single round trips, by the wall clock: too short for processor time."""
    times = []
    for n in range(ASKS):
        since = time.perf_counter()
        await ask(n)
        times.append(time.perf_counter() - since)
    return statistics.median(times) * 1e6


# ---------------------------------------------------------------------- messages
async def kernel_tells() -> float:
    async with open_system() as system:
        ref = system.spawn(Sink(), "sink", capacity=BURST)
        with Stopwatch() as watch:
            for _ in range(BURSTS):
                for n in range(BURST):
                    ref.tell(n)
                await system.idle()
    return watch.spent_s / (BURST * BURSTS) * 1e6


async def kernel_asks() -> float:
    async with open_system() as system:
        ref = system.spawn(Echo(), "echo")
        return await median_us(lambda n: ref.ask(n, timeout_s=30))


async def messages(backend: str) -> AsyncIterator[Row]:
    name = pipe(backend).name
    yield Row("tell, in bursts", "us", await best(kernel_tells), name, await best(lambda: pipe_tells(backend)))
    asked = await best(kernel_asks)
    yield Row("ask with a deadline, p50", "us", asked, f"two of {name}", await best(lambda: pipe_asks(backend)))


# ---------------------------------------------------------------------- life and death
async def parked() -> None:
    with anyio.CancelScope():
        await anyio.sleep_forever()


async def kernel_lives() -> float:
    async with open_system() as system:
        with Stopwatch() as watch:
            for n in range(ACTORS):
                system.spawn(Sink(), str(n))
            for n in range(ACTORS):
                system.stop(str(n))
            await system.idle()
    return watch.spent_s / ACTORS * 1e6


async def task_lives() -> float:
    with Stopwatch() as watch:
        async with anyio.create_task_group() as group:
            for _ in range(ACTORS):
                group.start_soon(parked)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    return watch.spent_s / ACTORS * 1e6


async def kernel_task_lives() -> float:
    """The same with a live task in every actor."""
    async with open_system() as system:
        with Stopwatch() as watch:
            for n in range(ACTORS // 10):
                system.spawn(Sink(), str(n))
                _context(system, str(n)).start_task(parked)
            await anyio.lowlevel.checkpoint()
            await system.shut_down()
    return watch.spent_s / (ACTORS // 10) * 1e6


def _context(system: ActorSystem, actor_id: str) -> Context:
    context = system.context(actor_id)
    assert context is not None
    return context


async def kernel_bytes() -> float:
    async with open_system() as system:
        gc.collect()
        tracemalloc.start()
        for n in range(ACTORS):
            system.spawn(Sink(), str(n))
        return _traced() / ACTORS


async def task_bytes() -> float:
    async with anyio.create_task_group() as group:
        gc.collect()
        tracemalloc.start()
        for _ in range(ACTORS):
            group.start_soon(parked)
        await anyio.lowlevel.checkpoint()
        held = _traced() / ACTORS
        group.cancel_scope.cancel()
    return held


def _traced() -> float:
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(held)


async def lives(backend: str) -> AsyncIterator[Row]:
    bare = await best(task_lives)
    yield Row("start + stop an actor", "us", await best(kernel_lives), "task with a CancelScope", bare)
    yield Row("start + stop an actor with a task", "us", await best(kernel_task_lives), "task with a CancelScope", bare)
    yield Row("idle actor", "bytes", await kernel_bytes(), "task with a CancelScope", await task_bytes())


# ---------------------------------------------------------------------- ends of trees
def grow_wide(system: ActorSystem) -> None:
    for i in range(WIDE):
        system.spawn(Sink(), f"{i}")
        for j in range(WIDE):
            system.spawn(Sink(), f"{i}.{j}", parent=f"{i}")


def grow_chain(system: ActorSystem) -> None:
    system.spawn(Sink(), "0")
    for n in range(1, CHAIN):
        system.spawn(Sink(), str(n), parent=str(n - 1), home="0")


def task_in_every_tenth(system: ActorSystem) -> None:
    names = [name for top in system.children() for name in _below(system, top)]
    for name in names[::10]:
        _context(system, name).start_task(parked)


def _below(system: ActorSystem, actor_id: str) -> list[str]:
    found, frontier = [], [actor_id]
    while frontier:
        found.append(frontier.pop())
        frontier.extend(system.children(found[-1]))
    return found


async def kernel_stop(*grow: Callable[[ActorSystem], None]) -> float:
    """Milliseconds to stop the tree in order."""
    async with open_system() as system:
        for one in grow:
            one(system)
        await anyio.lowlevel.checkpoint()
        await system.idle()
        with Stopwatch() as watch:
            await system.shut_down()
    return watch.spent_s * 1e3


async def nested(width: int, depth: int, up: Callable[[], None]) -> None:
    """Task groups within task groups, *width* children each, with a parked task at the bottom."""
    async with anyio.create_task_group() as group:
        up()
        for _ in range(width if depth else 0):
            group.start_soon(nested, width, depth - 1, up)
        await anyio.sleep_forever()


async def bare_cancel(width: int, depth: int) -> float:
    """Milliseconds to cancel that from the top."""
    expected = sum(width**level for level in range(depth + 1))
    count, ready = 0, anyio.Event()

    def up() -> None:
        nonlocal count
        count += 1
        if count == expected:
            ready.set()

    async with anyio.create_task_group() as group:
        group.start_soon(nested, width, depth, up)
        await ready.wait()
        gc.collect()
        since = time.process_time()
        group.cancel_scope.cancel()
    return (time.process_time() - since) * 1e3


async def ends(backend: str) -> AsyncIterator[Row]:
    bare, name = await best(lambda: bare_cancel(WIDE, 2), 2), "cancel task groups 100x100"
    yield Row("stop 100x100 actors", "ms", await best(lambda: kernel_stop(grow_wide)), name, bare)
    busy = await best(lambda: kernel_stop(grow_wide, task_in_every_tenth))
    yield Row("stop 100x100, a task in every tenth", "ms", busy, name, bare)
    depth = NESTED[backend]
    bare, name = await best(lambda: bare_cancel(1, depth)) / depth * 1e3, f"task groups nested {depth} deep"
    pure = await best(lambda: kernel_stop(grow_chain)) / CHAIN * 1e3
    yield Row("stop a chain of 2,000, per actor", "us", pure, name, bare)
    busy = await best(lambda: kernel_stop(grow_chain, task_in_every_tenth)) / CHAIN * 1e3
    yield Row("the same, a task in every tenth", "us", busy, name, bare)


# ---------------------------------------------------------------------- the machine
class State(Enum):
    OFF = "off"
    ON = "on"


class Toggle(Event, frozen=True, kw_only=True):
    """The only event there is."""


def enough(data: int, event: Event) -> bool:
    return data < 0


def count(data: int, event: Event) -> tuple[int, tuple[()]]:
    return data + 1, ()


LAMP: Machine[State, int] = Machine(
    "lamp",
    initial=[State.OFF],
    terminal=[],
    rules=[
        rule(Toggle, State.OFF, State.OFF, when=enough),
        rule(Toggle, State.OFF, State.ON, do=[count]),
        rule(Toggle, State.ON, State.OFF, do=[count]),
    ],
)


async def machine_step() -> float:
    state, data = State.OFF, 0
    with Stopwatch() as watch:
        for n in range(STEPS):
            state, data, _, _ = LAMP.step(state, data, Toggle(at=n))
    return watch.spent_s / STEPS * 1e6


async def hand_step() -> float:
    """The same transition written out by hand: an event, a comparison, a guard, a count."""
    state, data = State.OFF, 0
    with Stopwatch() as watch:
        for n in range(STEPS):
            event = Toggle(at=n)
            state = State.ON if state is State.OFF and not enough(data, event) else State.OFF
            data, _ = count(data, event)
    return watch.spent_s / STEPS * 1e6


async def steps(backend: str) -> AsyncIterator[Row]:
    yield Row("machine step, with its event", "us", await best(machine_step), "the same by hand", await best(hand_step))


# ---------------------------------------------------------------------- the table
async def measure(backend: str) -> list[Row]:
    return [row for part in (messages, lives, ends, steps) async for row in part(backend)]


def show(backend: str, rows: list[Row]) -> None:
    print(f"\n{backend}")
    print(f"{'what':<36}{'kernel':>10}  {'':<6}{'bare':>10}  {'ratio':>6}  against")
    for row in rows:
        ratio = row.value / row.bare if row.bare else math.nan
        print(f"{row.what:<36}{row.value:>10.2f}  {row.unit:<6}{row.bare:>10.2f}  {ratio:>5.2f}x  {row.against}")


def main() -> None:
    for backend in ("asyncio", "trio"):
        show(backend, anyio.run(measure, backend, backend=backend))


if __name__ == "__main__":
    main()
