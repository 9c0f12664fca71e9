"""Newline framing of a byte stream, for agents that speak one message per line.

Whatever the chunks, the same bytes give the same lines. A line may have ``LINE_BYTES_MAX`` bytes; a longer one is
named once and dropped up to its newline, so it never sits in memory. Nothing here knows what a line means.
"""

from __future__ import annotations

from typing import Final

from supervisor.ports import Malformed

__all__ = ["LINE_BYTES_MAX", "LineBuffer"]

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Longest line that is kept, without its newline: the byte bound of a mailbox."""


class LineBuffer:
    """The lines of one stream: feed it chunks, and tell it when the stream ends."""

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._dropping = False

    @property
    def unfinished(self) -> bool:
        """True while part of a line is waiting for its newline."""
        return self._dropping or bool(self._held)

    def feed(self, data: bytes) -> list[str | Malformed]:
        """The lines that *data* completes, without their newlines; what is wrong with one stands in its place."""
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
        """The stream is over: a line that has begun will never be complete."""
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
