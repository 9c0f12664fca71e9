"""Common measurements of the peers: resident memory, and one call by the wall clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wall_us(call: Callable[[], Any]) -> float:
    """Time of a call, in microseconds."""
    since = time.perf_counter()
    call()
    return (time.perf_counter() - since) * 1e6
