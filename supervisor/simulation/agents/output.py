"""Output of a simulated program that runs several tasks at once: one task writes whole messages, in order.

A message is queued by ``put`` and written by the task of ``run``, so that the cancellation of a caller never leaves a
message half written.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import anyio

from actors.waiter import ResettableEvent
from supervisor.simulation.machine.kernel import OsProcess

BATCH_BYTES: Final = 64 * 1024
"""The most bytes of queued messages that are joined into one write."""

DRIBBLE_S: Final = 1.0
"""Seconds per byte of a program whose output comes byte by byte (the fault ``process.dribble``)."""


async def write(inside: OsProcess, data: bytes, *, dribbles: bool) -> None:
    """Write *data* to standard output; with *dribbles* one byte a second."""
    if not dribbles:
        await inside.write(data)
        return
    for at in range(len(data)):
        await inside.write(data[at : at + 1])
        await anyio.sleep(DRIBBLE_S)


class Output:
    """Queue in front of a program's standard output; messages are written in the order of ``put``."""

    def __init__(self, inside: OsProcess) -> None:
        self.dribbles = False
        self._inside = inside
        self._held: deque[bytes] = deque()
        self._put = ResettableEvent()
        self._empty = ResettableEvent()

    def put(self, data: bytes) -> None:
        self._held.append(data)
        self._put.set()

    async def run(self) -> None:
        """Write queued messages, until the task that runs this is cancelled."""
        while True:
            await self._put.wait()
            while self._held:
                await write(self._inside, self._batch(), dribbles=self.dribbles)
            self._put.clear()
            self._empty.set()

    async def drained(self) -> None:
        """Wait until all queued messages are written."""
        while self._put.is_set():
            self._empty.clear()
            await self._empty.wait()

    def _batch(self) -> bytes:
        parts, size = [self._held.popleft()], 0
        while self._held and (size := size + len(parts[-1])) + len(self._held[0]) <= BATCH_BYTES:
            parts.append(self._held.popleft())
        return b"".join(parts) if len(parts) > 1 else parts[0]
