"""Counts what a program left behind, with a proof: the kernel's own word that there is no descendant.

A program that adopts orphans gets every process whose parents are gone; when ``waitpid`` then says that it has no
child, none is left anywhere below it. Only for programs of their own (the demo): it reaps every child of the process.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["adopt_orphans", "children_left"]

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Become the parent of every orphan below this process; ``False`` where the kernel has no such thing."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def children_left() -> int:
    """Reap what has ended; how many descendants of this process are still there (0: the kernel says none)."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == 0:
            return len(_children())


def _children() -> list[int]:
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            found += [int(pid) for pid in file.read().split()]
    return found
