"""A pipe of a simulated machine: 64 KiB between its writers and one reader.

The pipe ends when the last holder of an end is gone. The functions here wait only for changes of the pipe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from actors.waiter import ResettableEvent

CAPACITY_BYTES: Final = 65536
"""Capacity of a pipe on Linux (``man 7 pipe``), and so the most bytes that one read returns."""


class Pipe:
    """Simulated pipe: a buffer of 64 KiB between writers and one reader.

    Args:
        piece: function that, given the number of available bytes (at least 1), returns how many bytes one read takes;
            by default a read takes all bytes.
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
        """Wait for bytes and read them; ``b""`` at the end of the pipe, or once the reading end is closed.

        Raises:
            anyio.BusyResourceError: another task waits in this method already.
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
        """Put as much of *data* into the pipe as fits; return the number of bytes put."""
        size = min(len(data), CAPACITY_BYTES - len(self._data))
        if size:
            self._data += data[:size]
            self._changed.set()
        return size

    def close_reading(self) -> None:
        """Close the reading end; the bytes in the pipe are lost."""
        self.has_reader = False
        self._data.clear()
        self._changed.set()

    def close_writing(self) -> None:
        """Remove one writer; after the last writer the reader sees the end of the pipe."""
        self.writers -= 1
        if not self.writers:
            self._changed.set()

    async def change(self) -> None:
        """Wait until bytes were written or read, or an end of the pipe was closed."""
        self._changed.clear()
        await self._changed.wait()
