"""Bare queues and bare tasks: the least that a message, an answer, or a life costs on each backend.

Each is written as somebody would who needs nothing of an actor: no lanes, no deadline, no order of ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import trio

from benchmarks.harness import Sizes, Stopwatch, per_us, percentile, round_trips_us, run

PIPE = 1024
"""Messages a bare queue holds: bounded, and never full here."""


class Pipe(Protocol):
    """A queue with one way in and one way out."""

    @property
    def put(self) -> Callable[[Any], Any]: ...

    @property
    def get(self) -> Callable[[], Any]: ...

    def close(self) -> None: ...


class AsyncioPipe:
    """A bounded ``asyncio.Queue``."""

    def __init__(self, size: int) -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue(size)
        self.put, self.get = queue.put_nowait, queue.get

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class TrioPipe:
    """A trio memory channel."""

    def __init__(self, size: int) -> None:
        self._send, self._receive = trio.open_memory_channel[Any](size)
        self.put, self.get = self._send.send_nowait, self._receive.receive

    def close(self) -> None:
        self._send.close()
        self._receive.close()


class StreamPipe:
    """An anyio memory object stream."""

    def __init__(self, size: int) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[Any](size)
        self.put, self.get = self._send.send_nowait, self._receive.receive

    def close(self) -> None:
        self._send.close()
        self._receive.close()


def native(backend: str) -> type[AsyncioPipe] | type[TrioPipe]:
    """Queue of the backend itself."""
    return AsyncioPipe if backend == "asyncio" else TrioPipe


# ---------------------------------------------------------------------- messages
async def tells_us(make: Callable[[int], Pipe], sizes: Sizes) -> float:
    """Bursts through one queue to one task, until it has drained each; per message."""
    through, drained = make(PIPE), make(PIPE)

    async def consume() -> None:
        while True:
            if await through.get() == sizes.burst - 1:
                drained.put(None)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        with Stopwatch() as watch:
            for _ in range(sizes.bursts):
                for n in range(sizes.burst):
                    through.put(n)
                await drained.get()
        group.cancel_scope.cancel()
    through.close()
    drained.close()
    return per_us(watch.spent_s, sizes.burst * sizes.bursts)


async def asks_p50_us(make: Callable[[int], Pipe], sizes: Sizes, ahead: int = 0) -> float:
    """A question and its answer through a pair of queues, *ahead* other messages before each."""
    questions, answers = make(PIPE), make(PIPE)

    async def answer() -> None:
        while True:
            question = await questions.get()
            if question is not None:
                answers.put(question)

    async def ask(n: int) -> None:
        for _ in range(ahead):
            questions.put(None)
        questions.put(n)
        await answers.get()

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        p50 = percentile(await round_trips_us(ask, sizes.asks), 50)
        group.cancel_scope.cancel()
    questions.close()
    answers.close()
    return p50


def asyncio_tells_us(backend: str, sizes: Sizes) -> tuple[float]:
    """A bounded ``asyncio.Queue``, whichever backend it is compared with."""
    return (run(tells_us, AsyncioPipe, sizes, backend="asyncio"),)


async def bare_tells_us(backend: str, sizes: Sizes) -> float:
    """The backend's own queue."""
    return await tells_us(native(backend), sizes)


async def bare_asks_us(backend: str, sizes: Sizes) -> float:
    """A pair of the backend's own queues."""
    return await asks_p50_us(native(backend), sizes)


# ---------------------------------------------------------------------- tasks
SETTLED = 5
"""Checkpoints after which tasks within tasks have begun. One is not enough: trio shuffles who runs first."""


async def settle() -> None:
    """Let every task that was started begin."""
    for _ in range(SETTLED):
        await anyio.lowlevel.checkpoint()


async def parked() -> None:
    """A task that has its own scope and waits."""
    with anyio.CancelScope():
        await anyio.sleep_forever()
