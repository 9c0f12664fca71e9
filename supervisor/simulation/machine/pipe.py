"""A pipe of a simulated machine: 64 KiB between its writers and one reader.

The pipe ends when the last holder of an end is gone. Nothing here waits for anything but the pipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from actors.waiter import ResettableEvent

CAPACITY_BYTES: Final = 65536
"""Capacity of a pipe on Linux (``man 7 pipe``), and so the most that one read returns."""


class Pipe:
    """A buffer of 64 KiB between its writers and one reader.

    Args:
        piece: how many of so many bytes (at least 1) one read takes; all, if not given.
    """

    __slots__ = ("_changed", "_data", "_piece", "_reading", "has_reader", "writers")

    def __init__(self, piece: Callable[[int], int] | None = None) -> None:
        self._data = bytearray()
        self._piece = piece
        self._changed = ResettableEvent()
        self._reading = False
        self.has_reader = True
        self.writers = 1

    @property
    def waits(self) -> bool:
        """Whether a read would have to wait."""
        return bool(self.has_reader and not self._data and self.writers)

    async def read(self) -> bytes:
        """Read the bytes that are there; ``b""`` at the end, or once the reading end is closed.

        Raises:
            anyio.BusyResourceError: somebody else is waiting for the same.
        """
        while self.waits:
            if self._reading:
                raise anyio.BusyResourceError("reading from")
            self._reading = True
            try:
                await self.change()
            finally:
                self._reading = False
        return self._take() if self.has_reader and self._data else b""

    def _take(self) -> bytes:
        size = len(self._data) if self._piece is None else self._piece(len(self._data))
        data = bytes(self._data[:size])
        del self._data[:size]
        self._changed.set()
        return data

    def put(self, data: memoryview) -> int:
        """Put as much of *data* as there is room for; return the number of bytes."""
        size = min(len(data), CAPACITY_BYTES - len(self._data))
        if size:
            self._data += data[:size]
            self._changed.set()
        return size

    def close_reading(self) -> None:
        """Close the reading end; what is in the pipe is lost."""
        self.has_reader = False
        self._data.clear()
        self._changed.set()

    def close_writing(self) -> None:
        """Remove one writer; without any writer the reader sees the end."""
        self.writers -= 1
        if not self.writers:
            self._changed.set()

    async def change(self) -> None:
        """Wait until something was written or read, or an end was closed."""
        self._changed.clear()
        await self._changed.wait()
