"""Common measurements of the peers: resident memory, and one call by the wall clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wall_us(call: Callable[[], Any]) -> float:
    """Return the time that *call* takes, in microseconds of the wall clock."""
    since = time.perf_counter()
    call()
    return (time.perf_counter() - since) * 1e6
