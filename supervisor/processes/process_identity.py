"""Who a process is, so that nobody else is taken for it: its pid alone is given to another one sooner or later."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["boot_id", "identity_of"]

START_TIME = 19
"""The place of ``starttime`` (field 22 of ``/proc/PID/stat``, proc(5)) among the fields after the command's name."""


def boot_id() -> str:
    """The boot of this machine; empty where the kernel does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def identity_of(pid: int) -> str:
    """``BOOT PID START``: the boot, the pid and the start time (ticks since the boot); empty if it is not there."""
    with suppress(OSError, IndexError):
        started = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[START_TIME].decode()
        return f"{boot_id()} {pid} {started}"
    return ""
