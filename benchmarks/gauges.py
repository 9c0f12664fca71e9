"""Quantities of a process that may leak, sampled together; and whether they stayed flat.

A quantity is flat if the mean of the last fifth of its samples is at most 5 % above the mean of the first fifth. The
garbage collector runs before each sample: only objects that are still referenced are counted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

FLAT: Final = 0.05
"""Aim of this project: the largest share by which a quantity may grow from the first fifth of the samples to the
last."""
PARTS: Final = 5
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
MUST_BE_FLAT: Final = ("rss_mb", "uss_mb", "descriptors", "tasks", "threads", "objects")
"""Quantities that must be flat. Journal size and the number of sessions started so far are shown without an aim."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Sample of all quantities: seconds since the start, and each quantity; sizes in 10^6 bytes. ``ps_ms`` is the time
    of ``supervisor ps``, where that is measured."""

    at_s: float
    rss_mb: float
    uss_mb: float
    descriptors: int
    tasks: int
    threads: int
    objects: int
    journal_mb: float
    started: int
    ps_ms: float = 0.0


def take(at_s: float, state_dir: Path, started: int) -> Sample:
    """Take a sample; must be called inside an event loop."""
    gc.collect()
    return Sample(
        at_s=round(at_s, 3),
        rss_mb=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6,
        uss_mb=_uss_mb(),
        descriptors=len(os.listdir("/proc/self/fd")),
        tasks=_tasks(),
        threads=threading.active_count(),
        objects=len(gc.get_objects()),
        journal_mb=sum(path.stat().st_size for path in _journal_files(state_dir)) / 1e6,
        started=started,
    )


def drift(values: Sequence[float]) -> float:
    """Return the share by which the mean of the last fifth of *values* exceeds that of the first fifth."""
    part = max(1, len(values) // PARTS)
    first, last = statistics.fmean(values[:part]), statistics.fmean(values[-part:])
    return (last - first) / first if first else float(last > 0)


def _uss_mb() -> float:
    """Return the memory of this process alone in 10^6 bytes. (A share of memory that other processes map would grow
    whenever one of them ends.)"""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    own = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(own)) / 1e6


def _tasks() -> int:
    if trio.lowlevel.in_trio_run():
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


def _journal_files(state_dir: Path) -> list[Path]:
    return [path for path in (state_dir / "runtime").glob("journal.db*") if path.is_file()]
