"""Decide whether a process that sends the supervisor a request is one of the supervisor's own programs.

Every program that the supervisor starts is below a shim. A shim is a subreaper: a process whose parents have ended
becomes the shim's child, whatever session or process group the process has made for itself. A walk from a process to
its parent, and so on, therefore reaches a shim exactly if the process is below a shim. The fork server is above all
shims and adopts the processes of a lost shim. Other children of the embedding program are below neither a shim nor the
fork server.

The steps of a walk must have been true at the same moment: a parent may end between two steps, and its pid may be given
to another process. So a lineage counts only if a second walk finds the same processes with the same start times, and if
the process itself still runs at the end. Otherwise the origin is unknown: ``UNIDENTIFIED``.

Example: ``supervisor answer`` (90) below a shell (80) below an agent (70) below the shim (60) of session ``t``::

    lineage_of(90, read_stat)                              # [(90, 4100), (80, 4000), (70, 3900), (60, 3890), ...]
    origin_of(lineage, {(60, 3890): "t", (50, 100): ""})   # Caller(Origin.AGENT, 90, "t")

Parents and start times are read from ``/proc``, which only Linux has. Elsewhere every caller counts as an operator, as
docs/explanation/security.md says.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from supervisor.ports import Caller, Origin
from supervisor.ports.shortages import shortage_of

Process = tuple[int, int]
"""Type of a process's identity: the pid and the start time, in clock ticks since the boot; together unique until the
next boot."""

WALKS_MAX: Final = 16
"""Number of walks in which two consecutive walks must agree. A walk that differs from the walk before shows that an
ancestor has ended."""
SO_PEERPIDFD: Final = 77
"""Socket option for the pidfd of the process that connected (Linux 6.5); the module ``socket`` has no name for it."""
_PARENT, _BORN = 1, 19
"""Indices of ``ppid`` and ``starttime`` among the fields of ``/proc/PID/stat`` after the name (proc(5))."""


class ProcessStat(NamedTuple):
    """Parent and start time of a process, from ``/proc/PID/stat``."""

    parent: int
    born: int


ReadStat = Callable[[int], "ProcessStat | None"]
"""Function that reads the ``ProcessStat`` of a pid; ``None`` if there is no such process."""


# ---------------------------------------------------------------------------------------------------- the decision
def lineage_of(pid: int, read: ReadStat) -> list[Process] | None:
    """Return the process *pid* and its ancestors, the process first.

    Return ``None`` if the process is gone, or if no two consecutive walks of ``WALKS_MAX`` agree.
    """
    before: list[Process] | None = None
    for _ in range(WALKS_MAX):
        found = _walk_once(pid, read)
        if found is not None and found == before:
            return found
        before = found
    return None


def _walk_once(pid: int, read: ReadStat) -> list[Process] | None:
    found: list[Process] = []
    while pid > 0:  # the parent is 0 where it is outside of our pid namespace
        stat = read(pid)
        if stat is None:
            return None
        found.append((pid, stat.born))
        pid = stat.parent
    return found


def origin_of(lineage: Sequence[Process] | None, ours: Mapping[Process, str]) -> Caller:
    """Return the origin of the process with this lineage: an agent, an operator, or unidentified.

    *ours* maps our shims to their sessions, and our fork servers to ``""``. If another supervisor runs this supervisor,
    the other supervisor's shims are not part of *ours*.
    """
    if lineage is None:
        return Caller(Origin.UNIDENTIFIED, 0)
    pid = lineage[0][0]
    for process in lineage:
        if process in ours:
            return Caller(Origin.AGENT, pid, ours[process])
    return Caller(Origin.OPERATOR, pid)


# ----------------------------------------------------------------------------------------------------- the look-up
def identity(pid: int) -> Process:
    """Return pid and start time of a process; the start time is -1 if the process is gone, or if no file descriptor is
    left."""
    try:
        stat = read_stat(pid)
    except OSError:
        stat = None
    return pid, stat.born if stat is not None else -1


def identity_of(pid: int) -> str:
    """Return the text ``BOOT PID START``, which identifies a process across restarts of the supervisor: the id of this
    boot (empty if the kernel has none), the pid, and the start time in clock ticks since the boot. Empty if *pid* is
    gone or belongs to another user."""
    _, born = identity(pid)
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {pid} {born}" if born > 0 else ""


def read_stat(pid: int) -> ProcessStat | None:
    """Return parent and start time of a process, read from ``/proc``; ``None`` if the process is gone.

    Raises:
        OSError: no file descriptor is left.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return ProcessStat(int(fields[_PARENT]), int(fields[_BORN]))
    except (OSError, IndexError) as error:
        if shortage_of(error):
            raise
        return ProcessStat(0, 0) if _is_hidden(pid) else None


def _is_hidden(pid: int) -> bool:
    """Return whether *pid* exists and belongs to another user, so that ``/proc`` hides it (``hidepid``, proc(5)). Such
    a process is no shim of ours, and a walk ends there."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def caller_at(connection: socket.socket, pid: int, ours: Callable[[], Mapping[Process, str]]) -> Caller:
    """Return the origin of the process that has connected; *pid* is the pid that the kernel reports for the connection.

    A pid of 0 stands for a process outside of our pid namespace. Our programs are in our namespace or in a namespace
    below it, and no process can leave its namespace: so pid 0 is an operator's process.

    Raises:
        OSError: no file descriptor is left.
    """
    if sys.platform != "linux" or pid == 0:
        return Caller(Origin.OPERATOR, pid)
    found = origin_of(lineage_of(pid, read_stat), ours())
    # Checked after the walk: a client that still runs has had its pid all the time, so the walk was about the client.
    return Caller(Origin.UNIDENTIFIED, pid) if _has_ended(connection) else found


def _has_ended(connection: socket.socket) -> bool:
    """Return whether the process that connected has ended.

    Where the kernel lacks ``SO_PEERPIDFD`` the result is ``False``, and the pid alone identifies the process: the
    kernel reuses a pid only after it has used the whole range of pids.
    """
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
