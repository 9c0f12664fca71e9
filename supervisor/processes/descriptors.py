"""File descriptors of this process: how many it may have, how many it has, and one that is kept back.

Every session costs the supervisor some five descriptors, every client of the control socket one. When none is left
even a client cannot be refused: it stays in the queue of the socket, which stays readable, and the event loop turns
without end. So one descriptor is held open for nothing, and is given up for the moment in which a client is taken,
told so, and let go of. An abort needs none: its orders go over pipes that are open.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["Reserve", "agent_spare", "clients_max", "left", "transcripts_max"]

CLIENTS_MAX: Final = 64
"""Clients of the control socket at once: a second terminal, a monitor, and some who follow the records."""
CLIENTS_SHARE: Final = 8
"""They have an eighth of the descriptors at most: at 256 that is 32, and 1,024 allow the 64. The rest is for agents."""
CLIENTS_LEAST: Final = 4

AGENT_SPARE_MAX: Final = 16
"""Descriptors that the launch of an agent leaves free: two programs that agents have us run, or git, need eight each
for the moment of their start. Without them, agents that hold every descriptor could wait for each other's commands for
ever."""

TRANSCRIPTS_MAX: Final = 128
"""Transcripts whose files are open at once, and an eighth of the descriptors at most: more than so many sessions hardly
write at once, and one that was closed is opened with its next line."""

_LISTED: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def limit() -> int | None:
    """Descriptors that this process may have now; ``None``: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def clients_max() -> int:
    """Return the most clients that the control socket serves at once, within today's limit."""
    most = limit()
    return CLIENTS_MAX if most is None else max(CLIENTS_LEAST, min(CLIENTS_MAX, most // CLIENTS_SHARE))


def agent_spare() -> int:
    """Descriptors that the launch of an agent leaves free, within today's limit."""
    most = limit()
    return AGENT_SPARE_MAX if most is None else min(AGENT_SPARE_MAX, most // 8)


def transcripts_max() -> int:
    """Return the most transcripts whose files are open at once, within today's limit."""
    most = limit()
    return TRANSCRIPTS_MAX if most is None else max(1, min(TRANSCRIPTS_MAX, most // 8))


def left() -> int | None:
    """Descriptors that can still be opened; ``None``: as many as the machine has.

    Raises:
        OSError: none, not even the one that looking takes.
    """
    most = limit()
    return None if most is None else most - len(os.listdir(_LISTED)) + 1  # the listing's own is closed by now


class Reserve:
    """One descriptor that is held open, to be given up where there is no other."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._take()

    def _take(self) -> None:
        if self._fd is None:
            with suppress(OSError):  # tried again the next time it is lent
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Give the descriptor up while the context is open, and take one again."""
        self.close()
        try:
            yield
        finally:
            self._take()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
