"""Event that is set once, with callbacks, and a counter of running work.

An event costs two words of memory until a caller waits for it: a program may have tens of thousands of events, most of
which are never waited for. A callback must not wait, and must not take long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actors.waiter import new_waiter


class OneShotEvent:
    """Event that is set once, with callbacks, which are called in the order in which they were added."""

    __slots__ = ("_calls", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._calls: dict[Callable[[], object], None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the event, and call every callback once. A second call of this method has no effect."""
        calls, self._calls, self._is_set = self._calls, None, True
        for call in calls or ():
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call the function *call* when the event is set; at once if the event is set already."""
        if self._is_set:
            call()
            return
        if self._calls is None:
            self._calls = {}
        self._calls[call] = None

    def forget(self, call: Callable[[], object]) -> None:
        """Remove the callback *call*."""
        if self._calls is not None:
            self._calls.pop(call, None)

    async def wait(self) -> None:
        """Wait until the event is set; return without a checkpoint if the event is set already."""
        if not self._is_set:
            await first_of(self)


class WaitGroup:
    """Counter of running work: a caller can wait until no work is running."""

    __slots__ = ("_count", "_none")

    def __init__(self) -> None:
        self._count = 0
        self._none: OneShotEvent | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more piece of running work until the block is left."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if self._none is not None and not self._count:
                none, self._none = self._none, None
                none.set()

    async def none(self) -> None:
        """Wait until the count is 0; return without a checkpoint if the count is 0 already."""
        while self._count:
            self._none = self._none or OneShotEvent()
            await self._none.wait()


async def first_of(*moments: OneShotEvent) -> None:
    """Wait until at least one of the events *moments* is set."""
    waiter = new_waiter()
    for moment in moments:
        moment.then(waiter.wake)
    try:
        await waiter.wait()
    finally:
        for moment in moments:
            moment.forget(waiter.wake)
