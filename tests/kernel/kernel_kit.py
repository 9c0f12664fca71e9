"""Helpers of the kernel tests: a behaviour made of a function, and a system under a deadline.

A test marked ``both`` runs on asyncio and trio and needs no time; one marked ``virtual`` takes the ``autojump_clock``
fixture and runs on trio, where time passes only when nothing else can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from actors import ActorSystem, Context, open_system

DEADLINE_S = 30
"""A test that waits longer has failed."""

both = pytest.mark.anyio
virtual = pytest.mark.trio


class Script:
    """An actor whose ``receive`` is the given function."""

    def __init__(self, receive: Callable[[Context, Any], Any]) -> None:
        self._receive = receive

    def receive(self, ctx: Context, message: Any) -> Any:
        return self._receive(ctx, message)


class Echo:
    """Answers with the message, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        self.heard.append(message)
        return message


def note(log: list[Any]) -> Script:
    """An actor that appends each message to *log*."""
    return Script(lambda ctx, message: log.append(message))


@asynccontextmanager
async def running() -> AsyncIterator[ActorSystem]:
    """A system, and a deadline over the whole of its life."""
    with anyio.fail_after(DEADLINE_S):
        async with open_system() as system:
            yield system


async def blocked(system: ActorSystem) -> None:
    """Wait until neither an actor nor a task of the test can go on by itself."""
    await anyio.wait_all_tasks_blocked()
    await system.idle()
    await anyio.wait_all_tasks_blocked()


@contextmanager
def held(system: ActorSystem, actor_id: str) -> Iterator[None]:
    """Have an actor handle nothing while the block lasts: its mailbox fills."""
    cell = system.cell(actor_id)
    assert cell is not None
    cell.running = False
    try:
        yield
    finally:
        cell.running = True
        cell.dispatcher.make_runnable(cell)
