"""Waiting for whichever comes first."""

from __future__ import annotations

import anyio

__all__ = ["any_of"]


async def any_of(*events: anyio.Event) -> None:
    """Wait until one of *events* is set."""
    if any(event.is_set() for event in events):
        return
    async with anyio.create_task_group() as group:

        async def watch(event: anyio.Event) -> None:
            await event.wait()
            group.cancel_scope.cancel()

        for event in events:
            group.start_soon(watch, event)
