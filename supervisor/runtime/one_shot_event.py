"""A moment: something that comes once, and stays come.

It costs two words until somebody waits for it: ten thousand sessions have several each, and most are never waited
for. Whoever is called when it comes must not wait, and must not take long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actors.waiter import new_waiter

__all__ = ["OneShotEvent", "WaitGroup", "first_of"]


class OneShotEvent:
    """A flag that is set once, and those who wait for it, oldest first."""

    __slots__ = ("_calls", "_come")

    def __init__(self) -> None:
        self._come = False
        self._calls: dict[Callable[[], object], None] | None = None

    def is_set(self) -> bool:
        return self._come

    def set(self) -> None:
        """It has come: call everybody who waits, once. A repeat changes nothing."""
        calls, self._calls, self._come = self._calls, None, True
        for call in calls or ():
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call *call* when it comes; at once if it has."""
        if self._come:
            call()
            return
        if self._calls is None:
            self._calls = {}
        self._calls[call] = None

    def forget(self, call: Callable[[], object]) -> None:
        """Do not call it any more."""
        if self._calls is not None:
            self._calls.pop(call, None)

    async def wait(self) -> None:
        """Wait until it comes; without a checkpoint if it has."""
        if not self._come:
            await first_of(self)


class WaitGroup:
    """How many of something are under way, for those who wait until none is."""

    __slots__ = ("_count", "_none")

    def __init__(self) -> None:
        self._count = 0
        self._none: OneShotEvent | None = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more, until its block is left."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if self._none is not None and not self._count:
                none, self._none = self._none, None
                none.set()

    async def none(self) -> None:
        """Wait until none is under way; without a checkpoint if none is."""
        while self._count:
            self._none = self._none or OneShotEvent()
            await self._none.wait()


async def first_of(*moments: OneShotEvent) -> None:
    """Wait until one of *moments* has come."""
    waiter = new_waiter()
    for moment in moments:
        moment.then(waiter.wake)
    try:
        await waiter.wait()
    finally:
        for moment in moments:
            moment.forget(waiter.wake)
