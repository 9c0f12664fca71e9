"""Access to the two backends, asyncio and trio: waiting, waking and the clock.

A wake-up carries no value, so a cancellation that coincides with it loses nothing. Futures of asyncio and reschedules
of trio take half the time of a portable event.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from actors.errors import StrayCancellation

RAISED = (Exception, asyncio.CancelledError)
"""Exceptions that end only the code that raised them, such as a handler: see :func:`is_cancellation`."""


def is_cancellation(error: BaseException) -> bool:
    """Return whether *error* is a ``CancelledError`` that was sent to this task; false for one from a future that was
    cancelled elsewhere, which is an error like any other."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not on asyncio at all
        return False
    return task is not None and task.cancelling() > 0


def as_error(error: BaseException) -> Exception:
    """Return *error* as an ``Exception``, which cannot be mistaken for a cancellation of the present task."""
    if isinstance(error, Exception):
        return error
    stray = StrayCancellation(error)
    stray.__cause__ = error
    return stray


class Waiter(Protocol):
    """Object for a single wait of a task. :meth:`wake` may be called before, during or after the wait, and more than
    once."""

    def wake(self) -> None: ...

    def wait(self) -> Awaitable[Any]: ...


class _AsyncioWaiter:
    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        return self._future


def _checkpoint() -> Awaitable[None]:
    return asyncio.sleep(0)  # a third of a portable checkpoint


async def _wait_until(waiter: Waiter, deadline: float) -> None:
    timer = asyncio.get_running_loop().call_at(deadline, waiter.wake) if deadline < math.inf else None
    try:
        await waiter.wait()
    finally:
        if timer is not None:
            timer.cancel()


class Backend(NamedTuple):
    """Parts of an event loop that the kernel needs: a monotonic clock, ways to wait, and a checkpoint."""

    name: str
    now: Callable[[], float]
    new_waiter: Callable[[], Waiter]
    checkpoint: Callable[[], Awaitable[None]]
    wait_until: Callable[[Waiter, float], Awaitable[None]]
    """Function that waits until the waiter is woken, or until a deadline (seconds of ``now``)."""


def current_backend() -> Backend:
    """Return the backend of the running event loop."""
    trio = sys.modules.get("trio")  # a program that does not run trio need not import it
    if trio is not None and trio.lowlevel.in_trio_run():
        from actors.trio_waiter import TrioWaiter, wait_until

        return Backend("trio", trio.current_time, TrioWaiter, trio.lowlevel.checkpoint, wait_until)
    loop = asyncio.get_running_loop()
    return Backend("asyncio", loop.time, partial(_AsyncioWaiter, loop), _checkpoint, _wait_until)


def new_waiter() -> Waiter:
    """Return a waiter for the running task."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        from actors.trio_waiter import TrioWaiter

        return TrioWaiter()
    return _AsyncioWaiter(asyncio.get_running_loop())


class ResettableEvent:
    """Event that stays set until :meth:`clear`; :meth:`set` wakes every waiting task.

    Unlike ``anyio.Event`` it need not be created anew for each occurrence.
    """

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.wake()

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Wait until the event is set; if it is set already, let other tasks run once before returning."""
        if self._set:
            await current_backend().checkpoint()
            return
        waiter = new_waiter()
        self._waiters.append(waiter)
        await waiter.wait()
