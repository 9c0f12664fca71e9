"""The trace of a run as one digest: every durable record, process event, request and reply, in order.

Two runs with the same digest took the same steps. Nothing enters the digest that differs between machines: no ids of
objects, no reprs, no real time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b


class Trace:
    """Trace of one run, kept as a running digest. *on_line* is called with each line of the trace."""

    __slots__ = ("_digest", "_on_line", "now")

    def __init__(self, now: Callable[[], float], on_line: Callable[[str], None] | None = None) -> None:
        self.now = now
        self._digest = blake2b(digest_size=16)
        self._on_line = on_line

    def records(self, encoded: Sequence[bytes]) -> None:
        """Add durable records to the trace, encoded as in the journal."""
        now_s = self.now()
        stamp = b"%.6f " % now_s
        for one in encoded:
            self._digest.update(stamp + one)
            if self._on_line is not None:
                self._on_line(f"{now_s:12.6f} record {one.decode()}")

    def note(self, line: str) -> None:
        """Add a line for an event that is not a durable record."""
        self._digest.update(f"{self.now():.6f} {line}\n".encode())
        if self._on_line is not None:
            self._on_line(f"{self.now():12.6f} {line}")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
