"""Thread with an asyncio loop, for a client library that knows only asyncio: called from asyncio and from trio.

The client has a loop of its own also where the caller's loop is asyncio: a caller whose loop is busy delays no answer
to the servers' pings, and there is one way for both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

_T = TypeVar("_T")


class AsyncioThread:
    """A running asyncio loop in a thread, until :meth:`close`. The thread does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        with suppress(Exception):
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def call(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run the coroutine of *work* in the thread, and return its result. A cancellation of the caller cancels it,
        and does not wait for its end."""
        done, wake = anyio.Event(), _waker()
        started: list[asyncio.Task[_T]] = []

        def start() -> None:
            task = self.loop.create_task(work())
            started.append(task)
            task.add_done_callback(lambda _: wake(done.set))

        self.loop.call_soon_threadsafe(start)
        try:
            await done.wait()
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in started])
            raise
        return started[0].result()

    def close(self) -> None:
        """End the loop, and wait for the thread, which ends at once."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5.0)


def _waker() -> Callable[[Callable[[], None]], None]:
    """Return a function that has another function called in the present event loop, from any thread; nothing happens
    if the loop has ended."""
    token: Any = anyio.lowlevel.current_token().native_token
    call = token.run_sync_soon if hasattr(token, "run_sync_soon") else token.call_soon_threadsafe  # trio, asyncio

    def wake(function: Callable[[], None]) -> None:
        with suppress(Exception):  # the loop has ended, and nobody waits any more
            call(function)

    return wake
