"""Output to a reader who may have stopped reading: a pager, a paused terminal, a pipe that nobody empties.

A program that writes to a full pipe waits for its reader, without an end. While a run lasts, its view may wait: the
run goes on. When the run is over, nothing is waited for but a reader that still reads: after ``PATIENCE_S`` seconds in
which it has taken nothing, the output is given up with an error, as one that cannot be written.

Standard error is written by the event loop, too, which must not wait: a reader that has stopped reading misses lines.

Output that an operating system cannot wait for, such as a ``StringIO``, is written as it is.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO, cast

PATIENCE_S: Final = 10.0
"""Seconds in which a reader must take something once the run is over."""
ERROR_PATIENCE_S: Final = 1.0
"""Seconds for which a line on standard error waits for room."""
LOOK_MS: Final = 100
PIECE_BYTES: Final = select.PIPE_BUF
"""Number of bytes that a pipe takes without a wait once it is ready."""


class PatientOutput(io.TextIOBase):
    """Text stream that writes to *out* without a buffer, and gives up a reader that has stopped reading when *is_over*
    returns ``True``."""

    def __init__(self, out: TextIO, is_over: Callable[[], bool]) -> None:
        self._out = out
        self._is_over = is_over
        self._descriptor: int | None = None
        if isinstance(out, io.TextIOWrapper):  # characters that its encoding does not have
            out.reconfigure(errors="replace")
        with suppress(OSError, ValueError):
            self._descriptor = out.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._out.encoding or "utf-8"

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()

    def write(self, text: str) -> int:
        if self._descriptor is None:
            return self._out.write(text)
        left = memoryview(text.encode(self.encoding, errors="replace"))
        while left:
            self._wait(self._descriptor)
            left = left[os.write(self._descriptor, left[:PIECE_BYTES]) :]
        return len(text)

    def flush(self) -> None:
        if self._descriptor is None:
            self._out.flush()

    def _wait(self, descriptor: int) -> None:
        """Wait until the reader has room.

        Raises:
            TimeoutError: the run is over, and the reader has taken nothing for ``PATIENCE_S`` seconds.
        """
        poll = _poll_of(descriptor)
        over_since: float | None = None
        while not poll.poll(LOOK_MS):
            now = time.monotonic()
            if self._is_over():
                over_since = now if over_since is None else over_since
                if now - over_since >= PATIENCE_S:
                    raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")


class ErrorOutput(PatientOutput):
    """Standard error, whose reader has ``ERROR_PATIENCE_S`` seconds to take a text, once. After that, a text for which
    there is no room is dropped, and so is the rest of one that was begun."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out, lambda: True)
        self._has_stopped = False

    def write(self, text: str) -> int:
        with suppress(TimeoutError):
            super().write(text)
        return len(text)

    def _wait(self, descriptor: int) -> None:
        if not _poll_of(descriptor).poll(0 if self._has_stopped else ERROR_PATIENCE_S * 1000):
            self._has_stopped = True
            raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
        self._has_stopped = False


@contextmanager
def unhindered_errors() -> Iterator[None]:
    """Write standard error without a wait for its reader, as :class:`ErrorOutput` does."""
    before = sys.stderr
    before.flush()
    sys.stderr = cast(TextIO, ErrorOutput(before))
    try:
        yield
    finally:
        sys.stderr = before


def _poll_of(descriptor: int) -> select.poll:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return poll
