"""One-shot event with callbacks, and a counter of work in flight.

An event costs two words of memory until somebody waits for it: ten thousand sessions have several each, and most are
never waited for. A callback must not wait, and must not take long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actors.waiter import new_waiter


class OneShotEvent:
    """Flag that is set once, with callbacks in the order in which they were added."""

    __slots__ = ("_calls", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._calls: dict[Callable[[], object], None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the event, and call every callback once. A second call changes nothing."""
        calls, self._calls, self._is_set = self._calls, None, True
        for call in calls or ():
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call *call* when the event is set; at once if it is."""
        if self._is_set:
            call()
            return
        if self._calls is None:
            self._calls = {}
        self._calls[call] = None

    def forget(self, call: Callable[[], object]) -> None:
        """Remove that callback."""
        if self._calls is not None:
            self._calls.pop(call, None)

    async def wait(self) -> None:
        """Wait until the event is set; without a checkpoint if it is."""
        if not self._is_set:
            await first_of(self)


class WaitGroup:
    """Counter of work in flight, to wait until none is."""

    __slots__ = ("_count", "_none")

    def __init__(self) -> None:
        self._count = 0
        self._none: OneShotEvent | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more until the block is left."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if self._none is not None and not self._count:
                none, self._none = self._none, None
                none.set()

    async def none(self) -> None:
        """Wait until the count is 0; without a checkpoint if it is."""
        while self._count:
            self._none = self._none or OneShotEvent()
            await self._none.wait()


async def first_of(*moments: OneShotEvent) -> None:
    """Wait until one of *moments* is set."""
    waiter = new_waiter()
    for moment in moments:
        moment.then(waiter.wake)
    try:
        await waiter.wait()
    finally:
        for moment in moments:
            moment.forget(waiter.wake)
