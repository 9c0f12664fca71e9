"""Functions that wait: for the first of several events, with a timeout that allows for pauses, and despite
cancellation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio

from actors.timers import GRACE_S, LATE_S

_T = TypeVar("_T")


class Awaited(Protocol):
    """One-shot event such as ``anyio.Event``."""

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
    """Call *wait*, which may be called twice, for at most *seconds*; return whether it returned in time.

    For code without an actor system, whose timers allow for pauses: if this process did not run when the time was up,
    input that came meanwhile is still unread, and *wait* may take ``GRACE_S`` more.
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
    """Run *work* to its end, also if the caller is cancelled meanwhile, and return its result.

    A shielded scope stops only the cancellations of anyio: a Ctrl-C, and asyncio's own ``Task.cancel``, as in its
    ``timeout`` and ``wait_for``, still end a wait in it. Both reach the caller's task only, so *work* runs in a task of
    its own; they are raised here when *work* is done.
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
    except BaseExceptionGroup as interrupted:  # Ctrl-C on trio, maybe several times
        raise interrupted.exceptions[0] from None
    if failed:
        raise failed[0]
    return given[0]
