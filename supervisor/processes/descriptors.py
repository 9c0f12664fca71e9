"""Limits on the file descriptors of this process, and one descriptor held in reserve.

Every session costs the supervisor some five descriptors, every client of the control socket one. When no descriptor is
left, a client cannot even be refused: it stays in the queue of the socket, the socket stays readable, and the event
loop spins. So one descriptor is held in reserve, and closed for the moment in which such a client is accepted, refused
and disconnected. An abort needs no new descriptor: its orders go over sockets that are open.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

CLIENTS_MAX: Final = 64
"""Clients of the control socket at once: a second terminal, a monitor, and some who follow the records."""
CLIENTS_SHARE: Final = 8
"""Clients get an eighth of the descriptors at most (32 of 256, 64 of 1,024); the rest is for agents."""
CLIENTS_LEAST: Final = 4

AGENT_SPARE_MAX: Final = 16
"""Descriptors that the launch of an agent leaves free. The start of a helper (git, a command that an agent has us run)
needs eight; without room for two helpers, agents that hold every descriptor could wait for their commands for ever."""

TRANSCRIPTS_MAX: Final = 128
"""Transcript files open at once, and an eighth of the descriptors at most. More sessions hardly write at the same time,
and a transcript that was closed is opened again for its next line."""

_LISTED: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def limit() -> int | None:
    """Return how many descriptors this process may have; ``None`` for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def clients_max() -> int:
    """Return the most clients that the control socket serves at once, within today's limit."""
    most = limit()
    return CLIENTS_MAX if most is None else max(CLIENTS_LEAST, min(CLIENTS_MAX, most // CLIENTS_SHARE))


def agent_spare() -> int:
    """Return how many descriptors the launch of an agent leaves free, within today's limit."""
    most = limit()
    return AGENT_SPARE_MAX if most is None else min(AGENT_SPARE_MAX, most // 8)


def transcripts_max() -> int:
    """Return the most transcripts whose files are open at once, within today's limit."""
    most = limit()
    return TRANSCRIPTS_MAX if most is None else max(1, min(TRANSCRIPTS_MAX, most // 8))


def free_descriptors() -> int | None:
    """Return how many descriptors can still be opened; ``None`` if this process has no limit.

    Raises:
        OSError: not even the one that the listing takes is left.
    """
    most = limit()
    return None if most is None else most - len(os.listdir(_LISTED)) + 1  # + 1: the listing counts its own


class Reserve:
    """A descriptor that is held open, and closed to make room when no other is left."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._take()

    def _take(self) -> None:
        if self._fd is None:
            with suppress(OSError):  # tried again by the next ``lent``
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Close the descriptor while the context is open, and open it again afterwards."""
        self.close()
        try:
            yield
        finally:
            self._take()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
