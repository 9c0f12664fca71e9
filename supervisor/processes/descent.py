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

An agent can kill its shim and the fork server. Then the kernel gives the processes below the shim to the *adopter* of
orphans, usually init, and their lineages name no shim any more. After such a loss ``orphans_since`` finds the children
of the adopter that may have been below the shim: those that were started since the shim, unless their process session
proves another origin. A process inherits its session or makes a new one, so that the members of a session descend from
its leader, and a program below a shim is never in a session that is older than the shim.

Example: a shim that was born at 4000 is lost. The adopter, 1, has the children 70, 81 and 90::

    70, born 4100, session 65, whose leader has ended     # may have been below the shim
    81, born 4200, session 30, with a member of 2000      # a background job of an older login
    90, born 4300, session 90                             # a tmux server, or a daemon of the agent: nobody can tell

Parents and start times are read from ``/proc``, which only Linux has. Elsewhere every caller counts as an operator, as
docs/explanation/security.md says.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
from collections.abc import Callable, Container, Mapping, Sequence
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
_PARENT, _SESSION, _BORN = 1, 3, 19
"""Indices of ``ppid``, ``session`` and ``starttime`` among the fields of ``/proc/PID/stat`` after the name
(proc(5))."""


class ProcessStat(NamedTuple):
    """Parent, start time and process session of a process, from ``/proc/PID/stat``. A parent or a session outside of
    our pid namespace is 0."""

    parent: int
    born: int
    session: int = 0


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


def orphans_since(table: Mapping[int, ProcessStat], adopter: int, since: int, ours: Container[Process]) -> set[int]:
    """Return the children of *adopter* in *table* that may have been below a lost shim which was born at *since*.

    *ours* are the shims and fork servers that are left: they are orphans, too, and no escaped processes.
    """
    older_sessions = {0, *(stat.session for stat in table.values() if stat.born < since)}

    def may_have_escaped(pid: int) -> bool:
        followed: set[int] = set()
        while pid not in followed:
            followed.add(pid)
            top = _top(table, pid, adopter)
            if top is None:
                return False
            stat = table[top]
            if stat.born < since or stat.session in older_sessions or (top, stat.born) in ours:
                return False
            if stat.session == top or stat.session not in table:
                return True
            pid = stat.session  # the leader still runs, and the process descends from it: its lineage counts
        return True

    return {pid for pid, stat in table.items() if stat.parent == adopter and may_have_escaped(pid)}


def _top(table: Mapping[int, ProcessStat], pid: int, adopter: int) -> int | None:
    """Return the child of *adopter* that is *pid* or an ancestor of it; ``None`` if there is none."""
    for _ in table:
        stat = table.get(pid)
        if stat is None:
            return None
        if stat.parent == adopter:
            return pid
        pid = stat.parent
    return None


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
    """Return parent, start time and session of a process, read from ``/proc``; ``None`` if the process is gone.

    Raises:
        OSError: no file descriptor is left.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return ProcessStat(int(fields[_PARENT]), int(fields[_BORN]), int(fields[_SESSION]))
    except (OSError, IndexError) as error:
        if shortage_of(error):
            raise
        return ProcessStat(0, 0) if _is_hidden(pid) else None


def read_table() -> dict[int, ProcessStat]:
    """Return the parent, start time and session of every process. The result is no snapshot: a process that starts, or
    loses its parent, meanwhile can be missing or have a parent that is missing.

    Raises:
        OSError: no file descriptor is left.
    """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid: stat for pid in pids if (stat := read_stat(pid)) is not None}


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


def caller_at(connection: socket.socket, pid: int, find_origin: Callable[[int], Caller]) -> Caller:
    """Return the origin of the process that has connected, as *find_origin* finds it for *pid*, the pid that the kernel
    reports for the connection.

    A pid of 0 stands for a process outside of our pid namespace. Our programs are in our namespace or in a namespace
    below it, and no process can leave its namespace: so pid 0 is an operator's process.

    Raises:
        OSError: no file descriptor is left.
    """
    if sys.platform != "linux" or pid == 0:
        return Caller(Origin.OPERATOR, pid)
    found = find_origin(pid)
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
        return is_ended(pidfd)
    finally:
        os.close(pidfd)


def is_ended(pidfd: int) -> bool:
    """Return whether the process of *pidfd* has ended."""
    poll = select.poll()  # select() takes no descriptor from 1024 on
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
