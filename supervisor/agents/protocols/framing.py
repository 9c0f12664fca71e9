"""Split a byte stream into lines, for agents that send one message per line.

Invariants: the same bytes give the same lines, however the bytes are cut into chunks. A line has at most
``limit_bytes`` bytes; of a longer line only one ``Malformed`` is returned, and its bytes up to the newline are dropped
as they arrive, so that a line never takes more memory than the limit. The content of a line is not interpreted, except
that a line must be UTF-8.
"""

from __future__ import annotations

from typing import Final

from supervisor.ports import Malformed

__all__ = ["LINE_BYTES_MAX", "LineBuffer"]

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest line that is kept, in bytes without the newline: the byte limit of a mailbox."""


class LineBuffer:
    """Buffer of one stream: call :meth:`feed` with each chunk and :meth:`end` when the stream ends."""

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._dropping = False

    @property
    def unfinished(self) -> bool:
        """True while part of a line waits for its newline."""
        return self._dropping or bool(self._held)

    def feed(self, data: bytes) -> list[str | Malformed]:
        """Return the lines that *data* completes, without newlines; a ``Malformed`` stands in the place of a bad
        line."""
        found: list[str | Malformed] = []
        start = 0
        if not self.unfinished and data.endswith(b"\n") and len(data) <= self._limit_bytes:
            return [_decoded(line) for line in data[:-1].split(b"\n")]
        while (end := data.find(b"\n", start)) >= 0:
            found += self._hold(data[start:end])
            found += self._complete()
            start = end + 1
        return found + self._hold(data[start:])

    def end(self) -> list[Malformed]:
        """Report the end of the stream: a line without its newline will never be complete."""
        broken = bool(self._held)
        self._held.clear()
        self._dropping = False
        return [Malformed("the agent's output ended in the middle of a message")] if broken else []

    def _hold(self, part: bytes) -> list[Malformed]:
        if self._dropping:
            return []
        if len(self._held) + len(part) <= self._limit_bytes:
            self._held += part
            return []
        self._held.clear()
        self._dropping = True
        return [Malformed(f"the agent wrote a line longer than {self._limit_bytes} bytes, the most a message may have")]

    def _complete(self) -> list[str | Malformed]:
        if self._dropping:
            self._dropping = False
            return []
        line = bytes(self._held)
        self._held.clear()
        return [_decoded(line)]


def _decoded(line: bytes) -> str | Malformed:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        bad = f"byte 0x{line[error.start]:02x} at position {error.start}"
        return Malformed(f"the agent wrote a line that is not UTF-8: {bad} ({error.reason})")
