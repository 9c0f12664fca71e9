"""Waiting for whichever comes first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from actors.timers import GRACE_S, LATE_S

__all__ = ["Awaited", "any_of", "to_the_end", "within"]

_T = TypeVar("_T")


class Awaited(Protocol):
    """What is set once, and can be waited for: ``anyio.Event`` and its like."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


async def any_of(*events: Awaited) -> None:
    """Wait until one of *events* is set."""
    if any(event.is_set() for event in events):
        return
    async with anyio.create_task_group() as group:

        async def watch(event: Awaited) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        for event in events:
            group.start_soon(watch, event)


async def within(seconds: float, wait: Callable[[], Awaitable[object]]) -> bool:
    """Wait at most so long; whether it has come. *wait* can be begun again.

    Where there is no actor system whose timers know of pauses: if this process did not run when the time was up, what
    came meanwhile is still unread, and gets a grace.
    """
    until = anyio.current_time() + seconds
    with anyio.move_on_after(seconds):
        await wait()
        return True
    if anyio.current_time() - until < LATE_S:
        return False
    with anyio.move_on_after(GRACE_S):
        await wait()
        return True
    return False


async def to_the_end(work: Callable[[], Awaitable[_T]]) -> _T:
    """What *work* gives: it is done to its end, whatever becomes of the caller meanwhile.

    A shielded scope keeps the cancellations of anyio out, and no others: a Ctrl-C, and asyncio's own ``Task.cancel``
    with its ``timeout`` and ``wait_for``, end a wait in it all the same. They reach the caller's task alone, so *work*
    has one of its own; when it is done, they come out here as they are.
    """
    given: list[_T] = []
    failed: list[Exception] = []

    async def do() -> None:
        with anyio.CancelScope(shield=True):
            try:
                given.append(await work())
            except Exception as error:
                failed.append(error)

    try:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                group.start_soon(do)
    except BaseExceptionGroup as interrupted:  # trio's Ctrl-C: as many as there were, and each says the same
        raise interrupted.exceptions[0] from None
    if failed:
        raise failed[0]
    return given[0]
