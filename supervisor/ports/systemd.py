"""What systemd is told of a run, where it asks: ready, alive, reloading, stopping (sd_notify(3)).

Without ``NOTIFY_SOCKET`` nothing happens. Nothing here waits, and nothing here fails a run: a manager that does not
listen is no reason to stop working.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["Notifier"]


class Notifier:
    """Speaks to the manager of this service."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environ) if address else None
        """The manager wants a sign of life at least so often (seconds); ``None``: it wants none."""

    def ready(self) -> None:
        self._tell("READY=1", "STATUS=running")

    def status(self, words: str) -> None:
        """What a manager shows of this service; it goes on."""
        self._tell(f"STATUS={words}")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        """Until the next :meth:`ready`."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def stopping(self, words: str, within_s: float) -> None:
        """It ends within so many seconds: for so long it is not to be killed, whatever ``TimeoutStopSec=`` says."""
        self._tell("STOPPING=1", f"STATUS={words}", f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """``WATCHDOG_USEC``, if it is meant for this process."""
    wanted, for_pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or int(wanted) == 0 or for_pid not in ("", str(os.getpid())):
        return None
    return int(wanted) / 1e6
