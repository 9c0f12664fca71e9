"""Pipes to a program, at the supervisor's ends: non-blocking descriptors that work on both event loops.

A descriptor must never be closed while a task waits on it: the kernel would give its number to the next pipe, and the
old waiter, when it wakes, would remove the new pipe's registration in the event loop. So ``close`` wakes the waiters,
and the last waiter closes the descriptor. ``Output`` and ``Input`` never raise because of the program's behaviour: the
end of output is ``b""``, and data sent into a broken pipe is dropped.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.lowlevel

CHUNK_BYTES = 65536
BORN_BY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock in which Linux gives the start time of a process."""
NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def ticks_now() -> int:
    """Return the current time in clock ticks since the boot, rounded down as the kernel does for start times."""
    return time.clock_gettime_ns(BORN_BY) // NS_PER_TICK


class Descriptor:
    """File descriptor that may be closed while tasks wait on it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._waiters = 0
        self.closed = False

    def fileno(self) -> int:
        return self._fd

    async def readable(self) -> None:
        """Wait until data can be read, or the descriptor is closed.

        Raises:
            anyio.BusyResourceError: another task is waiting to read.
        """
        await self._wait(anyio.wait_readable)

    async def writable(self) -> None:
        """Wait until data can be written, or the descriptor is closed."""
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

    def wake(self) -> None:
        """Wake the tasks that wait on the descriptor."""
        if self._waiters:
            anyio.notify_closing(self._fd)

    def close(self) -> None:
        """Close the descriptor as soon as no task waits on it; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        if self._waiters:
            self.wake()
        else:
            os.close(self._fd)


class Output:
    """Read end of a pipe that a program writes to."""

    def __init__(self, fd: int) -> None:
        self._end = Descriptor(fd)
        self._emptied = ticks_now()
        """Clock tick at which the pipe was last seen empty: everything written before has been received."""
        self.written_between = (self._emptied, self._emptied)
        """Clock ticks between which the bytes that were received last were written."""
        self._left: int | None = None
        """Number of bytes until the end of output, once the program has ended; ``None`` before."""

    async def receive(self) -> bytes:
        """Return the next bytes, at most 64 KiB; ``b""`` at the end of output, once everything that the pipe held when
        ``finish`` was called is received, or once this end is closed.

        Raises:
            anyio.BusyResourceError: another task is receiving.
        """
        await anyio.lowlevel.checkpoint()
        while not self._end.closed and self._left != 0:
            # Taken before the read: bytes that are written after the read must not be dated earlier.
            now = ticks_now()
            try:
                data = os.read(self._end.fileno(), min(CHUNK_BYTES, self._left or CHUNK_BYTES))
            except BlockingIOError:
                self._emptied = now
                if self._left is not None:
                    break
                await self._end.readable()
            else:
                if self._left is not None:
                    self._left -= len(data)
                self.written_between = (self._emptied, ticks_now())
                if len(data) < CHUNK_BYTES:
                    self._emptied = now
                return data
        return b""

    def finish(self) -> None:
        """Let the output end with the bytes that the pipe holds now, because the program has ended. A process that was
        not ended with the program may hold the pipe open, and write to it, for ever."""
        if not self._end.closed and self._left is None:
            number = fcntl.ioctl(self._end.fileno(), termios.FIONREAD, b"\0" * 4)
            self._left = int.from_bytes(number, sys.byteorder)
            self._end.wake()

    def peek(self) -> bytes:
        """Return the bytes that the pipe holds now, at most 64 KiB, without waiting."""
        with suppress(OSError):
            return os.read(self._end.fileno(), CHUNK_BYTES)
        return b""

    def close(self) -> None:
        self._end.close()


def unsent(left: memoryview, data: bytes) -> bytes:
    """Return the part of *left* that must still be written to complete the pieces that were begun.

    *left* is the data that was not written yet. If *left* is at least as long as *data*, no byte of *data* was written:
    then *data* is dropped, and only the rest of an earlier piece before it remains.
    """
    return bytes(left[: len(left) - len(data)]) if len(left) >= len(data) else bytes(left)


class Input:
    """Write end of a pipe that a program reads from. Several tasks may send; each piece of data stays whole."""

    def __init__(self, fd: int) -> None:
        self._end = Descriptor(fd)
        self._lock = anyio.Lock(fast_acquire=True)
        self._rest = b""
        """Rest of a piece whose sender was cancelled in the middle; the rest is written before the next piece."""

    async def send(self, data: bytes) -> None:
        """Write all of *data*; drop it if the program no longer reads, or if this end is closed.

        If the sender is cancelled before the first byte was written, *data* is dropped; after that, the rest of *data*
        is written before the next piece.
        """
        async with self._lock:
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
