"""Lines of a program's output, from chunks of any size, in bounded memory."""

from __future__ import annotations

from supervisor.ports.agent import StrayLine
from supervisor.ports.input_limits import LINE_BYTES_MAX, STRAY_CHARS_MAX


class LineBuffer:
    """Splitter of a byte stream into lines: call :meth:`feed` with each chunk and :meth:`end` when the stream ends.

    The same bytes give the same lines, however the bytes are cut into chunks. For a line longer than *limit_bytes* a
    single ``StrayLine`` with the line's beginning is returned, and the line's other bytes up to the newline are dropped
    as they arrive, so that a line never takes more memory than the limit. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()
        self._dropping = False

    @property
    def unfinished(self) -> bool:
        """True while an incomplete line waits for its newline."""
        return self._dropping or bool(self._held)

    def feed(self, data: bytes) -> list[str | StrayLine]:
        """Return the lines that *data* completes, without newlines; a ``StrayLine`` is returned in the place of a line
        that is too long."""
        found: list[str | StrayLine] = []
        start = 0
        if not self.unfinished and data.endswith(b"\n") and len(data) <= self._limit_bytes:
            return [line.decode(errors="replace") for line in data[:-1].split(b"\n")]
        while (end := data.find(b"\n", start)) >= 0:
            found += self._hold(data[start:end])
            found += self._complete()
            start = end + 1
        return found + self._hold(data[start:])

    def end(self) -> list[str]:
        """Handle the end of the stream: return the incomplete line that is left, if any; its newline will never
        arrive."""
        return self._complete() if self.unfinished else []

    def _hold(self, part: bytes) -> list[StrayLine]:
        if self._dropping:
            return []
        if len(self._held) + len(part) <= self._limit_bytes:
            self._held += part
            return []
        shown = min(self._limit_bytes, 4 * STRAY_CHARS_MAX)  # a character has at most 4 bytes
        begun = (bytes(self._held[:shown]) + part[:shown])[:shown]
        self._held.clear()
        self._dropping = True
        why = f"longer than {self._limit_bytes} bytes, the most a message may have; the rest of it was dropped"
        return [StrayLine(begun.decode(errors="replace")[:STRAY_CHARS_MAX], why)]

    def _complete(self) -> list[str]:
        if self._dropping:
            self._dropping = False
            return []
        line = self._held.decode(errors="replace")
        self._held.clear()
        return [line]
