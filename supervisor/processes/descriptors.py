"""Limits on the file descriptors of this process, and a reserve of one descriptor.

Every session needs some five descriptors of the supervisor, every client of the control socket one. When no descriptor
is left, a client cannot even be refused: the client stays in the queue of the socket, the socket stays readable, and
the event loop spins. So one descriptor is held in reserve. The reserve is closed for the moment in which such a client
is accepted, refused and disconnected. An abort needs no new descriptor: its orders are sent over sockets that are open.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

CLIENTS_MAX: Final = 64
"""Largest number of clients of the control socket at the same time: a second terminal, a monitor, and some clients that
follow the records."""
CLIENTS_SHARE: Final = 8
"""Divisor for the descriptors that clients may use: at most an eighth (32 of 256, 64 of 1,024); the rest is for
agents."""
CLIENTS_LEAST: Final = 4

AGENT_SPARE_MAX: Final = 16
"""Number of descriptors that the launch of an agent leaves free. The start of a helper program (git, or a command that
the supervisor runs for an agent) needs eight. Without room for two helpers, agents that use every descriptor could wait
for their commands for ever."""

TRANSCRIPTS_MAX: Final = 128
"""Largest number of transcript files that are open at the same time; also limited to an eighth of the descriptors. More
sessions hardly write at the same time, and a transcript that was closed is opened again for its next line."""

_LINUX_LIST: Final = "/proc/self/fd"
_LISTED: Final = _LINUX_LIST if os.path.isdir(_LINUX_LIST) else "/dev/fd"


def limit() -> int | None:
    """Return the number of descriptors that this process may have open; ``None`` for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def clients_max() -> int:
    """Return the largest number of clients that the control socket serves at the same time, within the present
    limit."""
    most = limit()
    return CLIENTS_MAX if most is None else max(CLIENTS_LEAST, min(CLIENTS_MAX, most // CLIENTS_SHARE))


def agent_spare() -> int:
    """Return the number of descriptors that the launch of an agent leaves free, within the present limit."""
    most = limit()
    return AGENT_SPARE_MAX if most is None else min(AGENT_SPARE_MAX, most // 8)


def transcripts_max() -> int:
    """Return the largest number of transcript files that are open at the same time, within the present limit."""
    most = limit()
    return TRANSCRIPTS_MAX if most is None else max(1, min(TRANSCRIPTS_MAX, most // 8))


def free_descriptors() -> int | None:
    """Return the number of descriptors that can still be opened; ``None`` if this process has no limit.

    Linux has told the number as the size of ``/proc/self/fd`` since version 6.2, in a time that does not grow with the
    number.

    Raises:
        OSError: the descriptors must be listed, and not even the one that the listing takes is left.
    """
    most = limit()
    if most is None:
        return None
    if number := os.stat(_LISTED).st_size if _LISTED == _LINUX_LIST else 0:
        return most - number
    return most - len(os.listdir(_LISTED)) + 1  # + 1: the listing counts its own


class Reserve:
    """Reserve of one descriptor, which is held open, and closed to make room when no other descriptor is left."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._take()

    def _take(self) -> None:
        if self._fd is None:
            with suppress(OSError):  # tried again by the next ``lent``
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Close the reserved descriptor while the context is open, and open it again afterwards."""
        self.close()
        try:
            yield
        finally:
            self._take()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
