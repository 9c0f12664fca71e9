"""Identity of a process across supervisor restarts: boot, pid and start time, since the kernel reuses pids."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["boot_id", "identity_of"]

START_TIME = 19
"""The index of ``starttime`` (field 22 of ``/proc/PID/stat``, proc(5)) among the fields after the command's name."""


def boot_id() -> str:
    """Return the id of this boot; empty if the kernel does not provide it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def identity_of(pid: int) -> str:
    """Return ``BOOT PID START``, with the start time in clock ticks since the boot; empty if *pid* is gone."""
    with suppress(OSError, IndexError):
        started = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[START_TIME].decode()
        return f"{boot_id()} {pid} {started}"
    return ""
