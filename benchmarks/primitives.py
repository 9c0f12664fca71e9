"""Bare queues and bare tasks: the least cost of a message, a reply, or a life on each backend.

Each is written for a user who needs no feature of an actor: no lanes, no deadline, no order of ends.
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
"""Number of messages that a bare queue holds: bounded, and never full in these measurements."""


class Pipe(Protocol):
    """Protocol of a queue with a put and a get side."""

    @property
    def put(self) -> Callable[[Any], Any]: ...

    @property
    def get(self) -> Callable[[], Any]: ...

    def close(self) -> None: ...


class AsyncioPipe:
    """Queue for the measurements: a bounded ``asyncio.Queue``."""

    def __init__(self, size: int) -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue(size)
        self.put, self.get = queue.put_nowait, queue.get

    def close(self) -> None:
        """Do nothing, since an ``asyncio.Queue`` need not be closed."""


class TrioPipe:
    """Queue for the measurements: a trio memory channel."""

    def __init__(self, size: int) -> None:
        self._send, self._receive = trio.open_memory_channel[Any](size)
        self.put, self.get = self._send.send_nowait, self._receive.receive

    def close(self) -> None:
        self._send.close()
        self._receive.close()


class StreamPipe:
    """Queue for the measurements: an anyio memory object stream."""

    def __init__(self, size: int) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[Any](size)
        self.put, self.get = self._send.send_nowait, self._receive.receive

    def close(self) -> None:
        self._send.close()
        self._receive.close()


def native(backend: str) -> type[AsyncioPipe] | type[TrioPipe]:
    """Return the class of the backend's own queue."""
    return AsyncioPipe if backend == "asyncio" else TrioPipe


# ---------------------------------------------------------------------- messages
async def tells_us(make: Callable[[int], Pipe], sizes: Sizes) -> float:
    """Measure bursts of messages through one queue to one task, until the task has handled each burst; per message."""
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
    """Measure a question and its reply through a pair of queues, with *ahead* other messages before each question;
    p50."""
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
    """Measure messages through a bounded ``asyncio.Queue``, whichever backend the figure is compared with."""
    return (run(tells_us, AsyncioPipe, sizes, backend="asyncio"),)


async def bare_tells_us(backend: str, sizes: Sizes) -> float:
    """Measure messages through the backend's own queue."""
    return await tells_us(native(backend), sizes)


async def bare_asks_us(backend: str, sizes: Sizes) -> float:
    """Measure questions and replies through a pair of the backend's own queues."""
    return await asks_p50_us(native(backend), sizes)


# ---------------------------------------------------------------------- tasks
SETTLED = 5
"""Number of checkpoints after which tasks within tasks have begun. One is not enough, since trio shuffles the order of
tasks."""


async def settle() -> None:
    """Let every task that was started begin to run."""
    for _ in range(SETTLED):
        await anyio.lowlevel.checkpoint()


async def parked() -> None:
    """Wait for ever, in a cancel scope of its own."""
    with anyio.CancelScope():
        await anyio.sleep_forever()
