"""Helpers of the kernel tests: a behaviour made of a function, and a system under a deadline.

A test marked ``both`` runs on asyncio and trio and needs no time; a test marked ``virtual`` uses the ``autojump_clock``
fixture and runs on trio, where time passes only when no task can run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from actors import ActorSystem, Context, open_system

DEADLINE_S = 120.0
"""Seconds after which a test that still waits has failed."""

both = pytest.mark.anyio
virtual = pytest.mark.trio


class Script:
    """An actor whose ``receive`` is the given function."""

    def __init__(self, receive: Callable[[Context, Any], Any]) -> None:
        self._receive = receive

    def receive(self, ctx: Context, message: Any) -> Any:
        return self._receive(ctx, message)


class Echo:
    """Actor that replies with the message, and records it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        self.heard.append(message)
        return message


def note(log: list[Any]) -> Script:
    """Return an actor that appends each message to *log*."""
    return Script(lambda ctx, message: log.append(message))


@asynccontextmanager
async def running() -> AsyncIterator[ActorSystem]:
    """Open an actor system, with a deadline over the whole of its life."""
    with anyio.fail_after(DEADLINE_S):
        async with open_system() as system:
            yield system


async def blocked(system: ActorSystem) -> None:
    """Wait until neither an actor nor a task of the test can continue by itself."""
    await anyio.wait_all_tasks_blocked()
    await system.idle()
    await anyio.wait_all_tasks_blocked()


@contextmanager
def held(system: ActorSystem, actor_id: str) -> Iterator[None]:
    """Prevent an actor from handling messages while the block lasts, so that its mailbox fills."""
    cell = system.cell(actor_id)
    assert cell is not None
    cell.running = False
    try:
        yield
    finally:
        cell.running = True
        cell.dispatcher.make_runnable(cell)
