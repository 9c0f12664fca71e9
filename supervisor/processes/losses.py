"""Losses: shims that were killed together with their fork server, and the processes that escaped thereby.

Theory of operation
-------------------
A shim that is killed loses no process: the fork server above it adopts and ends its processes. A fork server that is
killed loses none either: its shims go on. Only if both are killed before the shim's processes have ended, the kernel
gives these processes to the adopter of orphans (``adopter``), and no lineage proves any more that they are ours.

1. ``remember``, at once: the processes that may have been below the shim (``descent.orphans_since``) are remembered as
   unidentified, with all processes below them, and those in their process sessions. Requests of unidentified processes
   are refused, for as long as this supervisor runs. One that belongs to the user, because it was started by chance
   between the start and the loss of the shim, is refused, too.
2. ``sweep``: the processes that the control group or the tag prove to be ours are killed.

A process is killed only if its origin is proven, and remembered only if it is not. Every other process stays what its
lineage says.

Example: agent 70 kills its shim 60 and the fork server 50. Its tool 80 runs on, as does a tmux server, 90, that the
user had started after the shim. The tool has the tag and is killed; 90 is listed as unidentified, and may read. A tmux
server that the user starts now is an operator.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from supervisor.ports import Caller, Origin, UnidentifiedProcess
from supervisor.processes import shim
from supervisor.processes.adopter import INIT, find_adopter
from supervisor.processes.containment import TAG_VARIABLE, Containment, Swept, is_marked, kill_all, marked
from supervisor.processes.descent import (
    Process,
    identity,
    is_ended,
    lineage_of,
    origin_of,
    orphans_since,
    read_stat,
    read_table,
)
from supervisor.processes.pipes import Descriptor

SCANS_MAX = 5
"""Largest number of scans for escaped processes after a loss. A scan that finds none that is new is the last: a process
whose parent ends during a scan is found by the next."""
SESSIONS_S = 60.0
"""Seconds between two checks which process sessions of unidentified processes still have members."""


class Watch:
    """Watch over the end of a shim or a fork server, by a pidfd.

    Where no pidfd can be opened (an old kernel, no descriptor left), ``wait`` never returns, and ``has_ended`` is what
    ``is_running`` finds.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._ended = False
        self._pidfd: Descriptor | None = None
        try:
            self._pidfd = Descriptor(os.pidfd_open(process[0]))
        except ProcessLookupError:
            self._ended = True
        except (OSError, AttributeError):
            return
        self._ended = self._ended or self._is_another()  # the pid may have been given to another process

    def _is_another(self) -> bool:
        return self.process[1] != -1 and identity(self.process[0])[1] not in (-1, self.process[1])

    @property
    def has_ended(self) -> bool:
        if not self._ended and self._pidfd is None:
            self._ended = not is_running(self.process)
        elif not self._ended and self._pidfd is not None and not self._pidfd.closed:
            self._ended = is_ended(self._pidfd.fileno())
        return self._ended

    async def wait(self) -> None:
        """Wait until the process has ended or ``close`` is called."""
        if not self._ended:
            await (anyio.sleep_forever() if self._pidfd is None else self._pidfd.readable())

    def close(self) -> None:
        """End the watch; the last value of ``has_ended`` stays."""
        if self._pidfd is not None and not self._pidfd.closed:
            self._ended = self.has_ended
            self._pidfd.close()


class Losses:
    """The losses of one supervisor, and the unidentified processes that they have left."""

    def __init__(self, containment: Containment) -> None:
        if containment.tag and os.environ.get(TAG_VARIABLE) == containment.tag:
            containment = containment._replace(tag="")  # every child of this process has the tag: it proves nothing
        self._containment = containment
        self._unidentified: dict[Process, UnidentifiedProcess] = {}
        self._sessions: set[int] = set()
        """Process sessions of the unidentified processes: the members of a session descend from one leader."""
        self._sessions_missing: set[int] = set()
        """Those of the sessions of which the last check has found no member."""
        self._sessions_checked_s = 0.0
        self.count = 0
        """Number of losses that have happened; shims that are lost at the same time are one loss."""
        self._swept_count = 0
        """Number of losses that had happened when the last sweep began."""
        self._sweeping = anyio.Lock()

    # ------------------------------------------------------------------------------------------ after a loss
    def remember(self, born: int, sessions: Collection[str], ours: Container[Process]) -> tuple[Process, ...]:
        """Remember the processes that may have been below lost shims, the shims of *sessions*; return these processes.

        If the adopter of orphans cannot be found, it may be init or any ancestor of this process: a process that may
        have escaped to one of them is remembered.

        Args:
            born: the start time of the oldest of these shims.
            sessions: the sessions of the shims.
            ours: the shims and fork servers that are left.

        Raises:
            OSError: no file descriptor is left; nothing is remembered.
        """
        found: dict[Process, int] = {}
        adopter = find_adopter()
        for _ in range(SCANS_MAX):
            table = read_table()
            above = [pid for pid, _ in lineage_of(os.getpid(), table.get) or ()]
            adopters = {INIT, os.getpid(), *above} if adopter is None else {adopter}
            pids = list(set[int]().union(*(orphans_since(table, one, born, ours) for one in adopters)))
            for pid in pids:  # the loop extends the list that it iterates over
                pids += (child for child, stat in table.items() if stat.parent == pid)
            new = {(pid, table[pid].born): table[pid].session for pid in pids}
            if new.keys() <= found.keys():
                break
            found |= new
        self.count += 1
        self._sessions.update(found.values())
        now_s, named = time.time(), tuple(sorted(sessions))
        for process in found:
            self._unidentified[process] = _described(process[0], now_s, named)
        return tuple(found)

    async def sweep(self, ours: Container[Process]) -> Swept:
        """Kill the processes that are proven to be ours and that are below none of *ours*, the shims and fork servers
        that are left. Callers whose losses were noticed before the last sweep share its work, and get 0 as the number
        of processes that were killed."""
        wanted = self.count
        async with self._sweeping:
            if self._swept_count >= wanted:
                return Swept(0, tuple(self._escaped(ours)))
            self._swept_count = self.count
            return await self.kill_escaped(ours)

    async def kill_escaped(self, ours: Container[Process]) -> Swept:
        """Do the work of ``sweep`` in any case."""
        return await kill_all(
            lambda: self._escaped(ours), lambda pid: is_marked(pid, self._containment) and self._has_escaped(pid, ours)
        )

    def _escaped(self, ours: Container[Process]) -> set[int]:
        return {pid for pid in marked(self._containment) if self._has_escaped(pid, ours)}

    def _has_escaped(self, pid: int, ours: Container[Process]) -> bool:
        lineage = lineage_of(pid, read_stat)  # None while the parents change: the next round looks again
        return lineage is not None and not any(process in ours for process in lineage)

    # ------------------------------------------------------------------------------------------ callers
    def judge(self, lineage: Sequence[Process] | None, ours: Mapping[Process, str]) -> Caller:
        """Return the origin of the process with this lineage: proven by the lineage, then by control group and tag; a
        process that may have escaped is unidentified; every other is an operator."""
        caller = origin_of(lineage, ours)
        if caller.origin is not Origin.OPERATOR or lineage is None:
            return caller
        own = [process[0] for process in lineage]
        own = own[: own.index(os.getpid())] if os.getpid() in own else own
        if any(is_marked(pid, self._containment) for pid in own):
            return Caller(Origin.AGENT, caller.pid)
        self.follow()
        suspects = (one for one in reversed(lineage) if one in self._unidentified or self._is_in_session(one))
        escaped = next(suspects, None)  # the oldest: that is what a person would have to start again
        if escaped is None:
            return caller
        why = (
            f"process {escaped[0]}, from which the request comes, may have escaped from an agent whose shim was killed "
            "with the fork server: nothing proves who started it. If it is yours, start it again, and ask from there"
        )
        return Caller(Origin.UNIDENTIFIED, caller.pid, why=why)

    def _is_in_session(self, process: Process) -> bool:
        stat = read_stat(process[0]) if self._sessions else None
        return stat is not None and stat.born == process[1] and stat.session in self._sessions

    def follow(self) -> None:
        """Remember the processes below the unidentified ones, too, and forget those that have ended."""
        for process, one in list(self._unidentified.items()):
            if not is_running(process):
                del self._unidentified[process]
            for pid in shim.descendants(process[0]) if process in self._unidentified else ():
                child = identity(pid)
                if child[1] != -1:  # else it has ended, or no descriptor is left, and the next look finds it
                    self._unidentified.setdefault(child, _described(pid, one.since, one.sessions))
        if self._sessions and time.monotonic() >= self._sessions_checked_s + SESSIONS_S:
            self._sessions_checked_s = time.monotonic()
            self._forget_sessions()

    def _forget_sessions(self) -> None:
        """Forget the sessions without members, since the kernel gives their numbers to new sessions. One look at /proc
        may miss a process that forks meanwhile, so that a session is forgotten after two checks without a member."""
        with suppress(OSError):
            missing = self._sessions - {stat.session for stat in read_table().values()}
            self._sessions -= missing & self._sessions_missing
            self._sessions_missing = missing

    def unidentified(self) -> tuple[UnidentifiedProcess, ...]:
        """Return the unidentified processes that still run, as of the last :meth:`follow`. Nothing is changed: the call
        may come from any thread."""
        return tuple(one for process, one in list(self._unidentified.items()) if is_running(process))


def _described(pid: int, since: float, sessions: tuple[str, ...]) -> UnidentifiedProcess:
    name = ""
    with suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return UnidentifiedProcess(pid=pid, name=name, since=since, sessions=sessions)


def is_running(process: Process) -> bool:
    """Return whether the process may still run: ``False`` only if it is certain that it has ended.

    Without /proc, or without the start time of the process, only a pid that no process has is certain.
    """
    pid, born = process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        pass
    if sys.platform != "linux" or born == -1:
        return True
    try:
        stat = read_stat(pid)
    except OSError:
        return True
    return stat is not None and stat.born == born and shim.is_alive(pid)
