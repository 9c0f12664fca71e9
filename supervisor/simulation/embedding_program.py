"""A host that somebody else wrote: one async function that is given the supervisor, and runs to its end once.

What it raises is kept, not passed on, so that the run ends as every run does and its books can be checked; the
supervisor it leaves behind ends everything at once then, as it would in production.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

import anyio

from supervisor.embedding.runtime import Supervisor
from supervisor.simulation.tally import Tally

__all__ = ["Guest"]

T = TypeVar("T")


class Guest(Generic[T]):
    """That function, as a run has its host. Faults strike for as long as it runs."""

    last_arrival_s = inf

    def __init__(self, main: Callable[[Supervisor], Awaitable[T]]) -> None:
        self._main = main
        self.tally = Tally()
        self.done = False
        self.ended = False
        """It has come to its end by itself."""
        self.value: T | None = None
        self.error: BaseException | None = None

    async def play(self, sup: Supervisor) -> None:
        """Run it. It is not run again, whatever became of it."""
        self.done = True
        try:
            self.value = await self._main(sup)
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            raise
        except BaseException as error:  # also what test frameworks raise, which is no Exception
            self.error = error
            await sup.stop(now=True, actor="host")
        self.ended = True
