"""Our ends of a program's pipes: non-blocking descriptors, read and written on either backend.

A descriptor must never be closed while somebody waits on it: its number would be given to the next pipe, and the old
waiter, when it wakes, would take the new one's registration in the event loop with it. So closing wakes the waiters,
and the last of them closes. The two faces never raise for what the other side does: an end is ``b""``, a broken pipe
drops what was sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.lowlevel

__all__ = ["CHUNK_BYTES", "Descriptor", "Input", "Output", "ticks_now"]

CHUNK_BYTES = 65536
BORN_BY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock by which Linux tells the birth of a process."""
NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def ticks_now() -> int:
    """Now, in ticks since the boot: as the kernel would tell the birth of a process, rounded down."""
    return time.clock_gettime_ns(BORN_BY) // NS_PER_TICK


class Descriptor:
    """A descriptor of ours that may be closed while somebody waits on it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._waiters = 0
        self.closed = False

    def fileno(self) -> int:
        return self._fd

    async def readable(self) -> None:
        """Until there is something to read, or the descriptor is closed.

        Raises:
            anyio.BusyResourceError: another task is waiting for the same.
        """
        await self._wait(anyio.wait_readable)

    async def writable(self) -> None:
        """Until there is room to write, or the descriptor is closed."""
        await self._wait(anyio.wait_writable)

    async def _wait(self, wait: Callable[[int], Awaitable[None]]) -> None:
        self._waiters += 1
        try:
            with suppress(anyio.ClosedResourceError):
                await wait(self._fd)
        finally:
            self._waiters -= 1
            if self.closed and not self._waiters:
                os.close(self._fd)

    def close(self) -> None:
        """At once, or as soon as the last waiter has left. A second time is nothing."""
        if self.closed:
            return
        self.closed = True
        if self._waiters:
            anyio.notify_closing(self._fd)
        else:
            os.close(self._fd)


class Output:
    """What a program writes."""

    def __init__(self, fd: int) -> None:
        self._end = Descriptor(fd)
        self._emptied = ticks_now()
        """When the pipe was empty last: all that was written before has been received."""
        self.written_between = (self._emptied, self._emptied)
        """The ticks between which the bytes that were received last were written."""

    async def receive(self) -> bytes:
        """The next bytes, at most 64 KiB; ``b""`` at the end, or once we have closed it.

        Raises:
            anyio.BusyResourceError: another task is receiving.
        """
        await anyio.lowlevel.checkpoint()
        while not self._end.closed:
            # Before the read: what is written after it must not be dated earlier.
            now = ticks_now()
            try:
                data = os.read(self._end.fileno(), CHUNK_BYTES)
            except BlockingIOError:
                self._emptied = now
                await self._end.readable()
            else:
                self.written_between = (self._emptied, ticks_now())
                if len(data) < CHUNK_BYTES:
                    self._emptied = now
                return data
        return b""

    def peek(self) -> bytes:
        """What is there now, without waiting."""
        with suppress(OSError):
            return os.read(self._end.fileno(), CHUNK_BYTES)
        return b""

    def close(self) -> None:
        self._end.close()


def unsent(left: memoryview, data: bytes) -> bytes:
    """What is still owed of what was begun, where *left* was not written and ends with *data*, as far as that was not
    begun."""
    return bytes(left[: len(left) - len(data)]) if len(left) >= len(data) else bytes(left)


class Input:
    """What a program reads. Several tasks may send: what each sends stays in one piece."""

    def __init__(self, fd: int) -> None:
        self._end = Descriptor(fd)
        self._turn = anyio.Lock(fast_acquire=True)
        self._rest = b""
        """Of a piece that was begun, and whose sender was cancelled: it goes before the next one."""

    async def send(self, data: bytes) -> None:
        """All of *data*; dropped if the program no longer reads, or we have closed it. Where the sender is cancelled,
        what has not been begun is dropped, and the rest of what has goes before whatever is sent next."""
        async with self._turn:
            left = memoryview(self._rest + data)
            try:
                while left and not self._end.closed:
                    left = left[self._write(left) :]
                    if left:
                        await self._end.writable()
            finally:
                self._rest = unsent(left, data)

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._end.fileno(), data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            self.close()
            return len(data)

    def close(self) -> None:
        self._end.close()
