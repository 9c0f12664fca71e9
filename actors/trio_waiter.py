"""Waiter for trio; imported only under trio."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import trio


async def wait_until(waiter: Any, deadline: float) -> None:
    """Wait until *waiter* is woken, or until *deadline* on trio's clock."""
    with trio.move_on_at(deadline):
        await waiter.wait()


class TrioWaiter:
    """Object for a single wait of a task under trio."""

    __slots__ = ("_task", "_woken")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._woken = False

    def wake(self) -> None:
        self._woken = True
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    def wait(self) -> TrioWaiter:
        return self

    def __await__(self) -> Generator[Any, Any, None]:
        if not self._woken:
            self._task = trio.lowlevel.current_task()
            yield from trio.lowlevel.wait_task_rescheduled(self._gone).__await__()  # noqa: ASYNC105  it is awaited

    def _gone(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
