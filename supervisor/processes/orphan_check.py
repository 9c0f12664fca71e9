"""Orphan check: counts the processes that a program has left running, by ``waitpid`` instead of a scan.

A subreaper becomes the parent of every process below it whose parent has ended. Once ``waitpid`` reports that the
subreaper has no child, no descendant is left. Only for programs that own their whole process (the demo), because every
child of the process is reaped.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it; return ``False`` if the operating system cannot do
    that."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def children_left() -> int:
    """Reap every ended child, and return the number of children that still run (0: the operating system knows of
    none)."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == 0:
            break
    count = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            count += len(file.read().split())
    return count
