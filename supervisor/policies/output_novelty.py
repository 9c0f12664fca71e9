"""Tell output of an agent that says something new from output that only repeats itself.

An agent that is stuck may go on sending: the same usage, the same title, a list of its commands, a line with a clock
on standard error. Such lines are no sign of progress (rule 45). A line is new if no line shortly before was equal to it
but for numbers and ids. Messages whose meaning shows progress (text, calls, growing usage) are counted elsewhere, also
where they repeat a line. Memory is bounded. Pure.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LINE_MAX: Final = 16_384
"""Length of the longest line that is compared; a longer one counts as new."""
KNOWN_MAX: Final = 256
"""Number of different lines that are remembered."""
_VARIES: Final = re.compile(rb"[0-9a-fA-F]{8,}|\d+")
"""Pattern of what differs between lines that say the same: numbers, times, and ids."""


class OutputNovelty:
    """Finds new lines in one stream of output."""

    __slots__ = ("_known", "_rest")

    def __init__(self) -> None:
        self._known: dict[bytes, None] = {}
        self._rest = b""

    def take(self, data: bytes) -> bool:
        """Process the next piece of output; return whether it ends a new line, or continues a long one."""
        *lines, rest = re.split(rb"[\r\n]+", self._rest + data)
        is_long = len(rest) > LINE_MAX
        self._rest = rest[:LINE_MAX] if is_long else rest
        new = [line for line in lines if line.strip() and self._is_new(line)]  # all are remembered
        return bool(new) or is_long

    def _is_new(self, line: bytes) -> bool:
        if len(line) > LINE_MAX:
            return True
        known = hashlib.blake2b(_VARIES.sub(b"0", line), digest_size=8).digest()
        is_new = known not in self._known
        self._known.pop(known, None)
        self._known[known] = None  # the newest is last
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return is_new
