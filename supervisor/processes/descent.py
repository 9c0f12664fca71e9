"""Tell from the process that asks something of the supervisor whether it is a program of the supervisor's own.

Everything that the supervisor starts is below a warden. A warden is a subreaper, so that a process which its parents
have left becomes the warden's child, whatever session or group it has made for itself: walking from a process to its
parent, and so on, reaches a warden exactly where the process is below one. The keeper is above all wardens and takes
what a lost one had. The children of the program that embeds the supervisor are below neither.

What a walk finds must have been true all at once: a parent may end between two steps, and its pid may be given to
somebody else. So a lineage counts only if a second walk finds the same processes, born at the same time, and if the
process itself is still there at the end. Where that cannot be had, nobody can say who asks: ``UNTOLD``.

Example: ``supervisor answer`` (90) below a shell (80) below an agent (70) below the warden (60) of session ``t``::

    lineage_of(90, see)                                    # [(90, 4100), (80, 4000), (70, 3900), (60, 3890), ...]
    origin_of(lineage, {(60, 3890): "t", (50, 100): ""})   # Caller(Origin.AGENT, 90, "t")

Only Linux tells parents and births (``/proc``). Elsewhere everybody is an operator
(docs/explanation/security.md).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from supervisor.ports import Caller, Origin
from supervisor.ports.shortages import shortage_of

__all__ = ["Process", "Seen", "caller_at", "identity", "lineage_of", "origin_of"]

Process = tuple[int, int]
"""A pid, and when that process was born, in clock ticks since the boot: together nobody else's."""

WALKS_MAX: Final = 16
"""Walks until two that follow each other agree: each one that does not has seen an ancestor end."""
SO_PEERPIDFD: Final = 77
"""The pidfd of the process that connected (Linux 6.5); the module ``socket`` has no name for it."""
_PARENT, _BORN = 1, 19
"""The places of ``ppid`` and ``starttime`` among the fields of ``/proc/PID/stat`` after the name (proc(5))."""


class Seen(NamedTuple):
    """What the kernel says of a process: its parent, and when it was born."""

    parent: int
    born: int


See = Callable[[int], "Seen | None"]
"""Look at a process; ``None`` where there is none."""


# ---------------------------------------------------------------------------------------------------- the decision
def lineage_of(pid: int, see: See) -> list[Process] | None:
    """The process and its ancestors, itself first; ``None`` where it is gone, or its ancestors end all the time."""
    before: list[Process] | None = None
    for _ in range(WALKS_MAX):
        found = _walked(pid, see)
        if found is not None and found == before:
            return found
        before = found
    return None


def _walked(pid: int, see: See) -> list[Process] | None:
    found: list[Process] = []
    while pid > 0:  # the parent of who has none in our pid namespace is 0
        seen = see(pid)
        if seen is None:
            return None
        found.append((pid, seen.born))
        pid = seen.parent
    return found


def origin_of(lineage: Sequence[Process] | None, ours: Mapping[Process, str]) -> Caller:
    """Decide the origin of a lineage. *ours* maps our shims to their sessions, ``""`` for none and for the keeper."""
    if lineage is None:
        return Caller(Origin.UNTOLD, 0)
    pid = lineage[0][0]
    for one in lineage:  # of a supervisor within a supervisor, each knows its own wardens only
        if one in ours:
            return Caller(Origin.AGENT, pid, ours[one])
    return Caller(Origin.OPERATOR, pid)


# ----------------------------------------------------------------------------------------------------- the look-up
def identity(pid: int) -> Process:
    """Return the pid and birth of that process; birth -1 where the process is gone, or no descriptor is left."""
    try:
        seen = see_process(pid)
    except OSError:
        seen = None
    return pid, seen.born if seen is not None else -1


def see_process(pid: int) -> Seen | None:
    """Read parent and birth from ``/proc``; ``None`` where the process is gone.

    Raises:
        OSError: there is no descriptor for the look.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return Seen(int(fields[_PARENT]), int(fields[_BORN]))
    except (OSError, IndexError) as error:
        if shortage_of(error):
            raise
        return Seen(0, 0) if _is_hidden(pid) else None


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process, of another user (``hidepid``, proc(5)): no warden of ours, so the walk ends."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def caller_at(connection: socket.socket, pid: int, ours: Callable[[], Mapping[Process, str]]) -> Caller:
    """Tell who connected, from the *pid* that the kernel names.

    A pid of 0 is that of a process outside of our pid namespace. What we start is in it, or in one below it, and no
    process leaves its own: so that one is an operator's.

    Raises:
        OSError: there is no descriptor for the look.
    """
    if sys.platform != "linux" or pid == 0:
        return Caller(Origin.OPERATOR, pid)
    found = origin_of(lineage_of(pid, see_process), ours())
    # After the walk: a client that is there now has had its pid all the time, so the walk was about nobody else.
    return Caller(Origin.UNTOLD, pid) if _has_ended(connection) else found


def _has_ended(connection: socket.socket) -> bool:
    """Tell whether the process that connected has ended. Where the kernel has no such option the pid alone stands for
    the process: a pid is given to another one only after the whole range was."""
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if shortage_of(error):
            raise
        return error.errno != errno.ENOPROTOOPT
    try:
        poll = select.poll()  # select() takes no descriptor from 1024 on
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(pidfd)
