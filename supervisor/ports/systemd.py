"""Notifications to systemd, if systemd has requested them: ready, alive, reloading, stopping (sd_notify(3)).

Without ``NOTIFY_SOCKET`` nothing is sent. No function here waits, and a manager that does not listen is no error.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Sender of notifications to the service manager (systemd) of this process."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environ) if address else None
        """Seconds within which the manager wants a sign of life; ``None``: it wants none."""

    def ready(self) -> None:
        self._send("READY=1", "STATUS=running")

    def status(self, words: str) -> None:
        """Set the status text of this service that the manager shows."""
        self._send(f"STATUS={words}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report a reload, until the next :meth:`ready`."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def stopping(self, words: str, within_s: float) -> None:
        """Report that the service stops within *within_s* seconds; until then ``TimeoutStopSec=`` does not apply."""
        self._send("STOPPING=1", f"STATUS={words}", f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return ``WATCHDOG_USEC`` in seconds if the variable is meant for this process; else ``None``."""
    wanted, for_pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or int(wanted) == 0 or for_pid not in ("", str(os.getpid())):
        return None
    return int(wanted) / 1e6
