"""Containment of the programs of one state directory, and the sweeps that kill processes of an earlier supervisor, and
of shims that were lost together with the fork server.

Four independent mechanisms, strongest first: the fork server, which kills remaining processes by itself; if configured,
a pid namespace for each program (the kernel kills its members when the shim dies); if allowed, a control group (which
lists every process that was started in it); and a variable in the environment of every program.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel

from supervisor.policies.stage_deadlines import EXITING_S
from supervisor.processes.descent import identity_of
from supervisor.processes.exit_wait import LOOK_S
from supervisor.processes.shim import exiting_processes, is_alive, is_exiting

TAG_VARIABLE = "SUPERVISOR_STATE"
"""Environment variable whose value stands for the state directory that a program belongs to. Most daemons keep this
variable (of 9 real agents, all 9)."""
FORK_SERVER_S = 15.0
"""Seconds that the fork server of an earlier supervisor may take to exit; that fork server gives its shims 10 s."""
SWEEP_S = 5.0
"""Seconds for killing the remaining processes. A process that runs after so long could not be killed: it belongs to
another user, for example."""
ROUND_S = 0.01
CLEAR_ROUNDS = 3
"""Number of consecutive rounds, ``ROUND_S`` apart, that must find no process after some were found: a single scan may
miss a process that forks meanwhile."""


class Containment(NamedTuple):
    """Containment settings of one state directory.

    ``tag`` is the value of ``SUPERVISOR_STATE``, ``group`` the folder of the control group; empty for none. The file
    ``fork_server_file`` identifies the fork server for the next supervisor; the file is written only while ``is_ours``
    returns True: this supervisor owns the state directory. With ``pid_namespaces`` each program gets a pid namespace of
    its own, where the machine allows this.
    """

    tag: str = ""
    group: str = ""
    fork_server_file: Path | None = None
    pid_namespaces: bool = False
    is_ours: Callable[[], bool] = lambda: True


UNCONTAINED = Containment()
"""Settings without containment beyond the shims and the fork server: without a state directory, no later supervisor
could sweep."""


class Swept(NamedTuple):
    """Result of a sweep: the number of processes that were killed, and the pids that are left."""

    killed: int
    left: tuple[int, ...]


def group_for(tag: str) -> str:
    """Return the folder for a control group (version 2) below this process's own group; empty if none can be made.

    This function does not make the folder: the fork server does.
    """
    with suppress(OSError):
        home = _own_group()
        if home is not None and os.access(home, os.W_OK) and os.access(home / "cgroup.procs", os.W_OK):
            return str(home / f"supervisor-{tag}")
    return ""


def _own_group() -> Path | None:
    within = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), None)
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    mounted = next((words[4] for words in mounts if "cgroup2" in words[words.index("-") :]), None)
    return Path(mounted) / within.lstrip("/") if mounted is not None and within is not None else None


async def sweep(containment: Containment) -> Swept:
    """Kill every process that an earlier supervisor of this state directory has left running.

    The caller must hold the lock of the state directory.
    """
    await _wait_for_fork_server(containment.fork_server_file)
    swept = await kill_all(lambda: marked(containment), lambda pid: is_marked(pid, containment))
    with suppress(OSError):
        os.rmdir(containment.group)
    return swept


def marked(containment: Containment) -> set[int]:
    """Return the pids of the processes that are proven to be programs of this state directory: by the control group, or
    by the variable in their environment."""
    return {*_members(containment.group), *_tagged(containment.tag)}


def is_marked(pid: int, containment: Containment) -> bool:
    """Return whether the process *pid* is one of the :func:`marked`."""
    return pid in _members(containment.group) or (bool(containment.tag) and _has_tag(pid, containment.tag))


async def kill_all(find: Callable[[], Collection[int]], is_wanted: Callable[[int], bool]) -> Swept:
    """Kill the processes that *find* returns, until none is left in ``CLEAR_ROUNDS`` rounds or ``SWEEP_S`` seconds have
    passed; ``EXITING_S`` if the kernel is ending all that is left. *is_wanted* decides the same about a single pid;
    other tasks run between two processes."""
    killed: dict[int, str] = {}
    began_s, clear_rounds = anyio.current_time(), 0
    while True:
        # What was killed is remembered: the environment, and so the tag, is the first thing that an exit takes away.
        ending = [pid for pid, identity in killed.items() if identity_of(pid) == identity and is_alive(pid)]
        left = {*find(), *ending}
        clear_rounds = 0 if left else clear_rounds + 1
        if not left and (not killed or clear_rounds == CLEAR_ROUNDS):
            break
        for pid in left:
            identity = identity_of(pid)
            if _kill(pid, is_wanted):
                killed[pid] = identity
            await anyio.lowlevel.checkpoint()
        bound_s = EXITING_S if all(map(is_exiting, left)) else SWEEP_S
        if anyio.current_time() - began_s > bound_s:
            break
        await anyio.sleep(ROUND_S)
    reap_adopted(killed)
    return Swept(len(killed), tuple(sorted(left)))


def reap_adopted(pids: Iterable[int]) -> None:
    """Reap those of *pids* that have ended and are children of this process, which adopts orphans if it is the init of
    a container, or a subreaper. A pid of 0 stands for a process that was not started."""
    for pid in pids:
        if pid <= 0:  # waitpid would take the exit status of some child of the embedding program
            continue
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


async def _wait_for_fork_server(fork_server_file: Path | None) -> None:
    """Wait until the fork server of an earlier supervisor has killed its programs and exited; after ``FORK_SERVER_S``
    seconds kill this fork server, or after ``EXITING_S`` if the kernel is ending all that is left below it.

    ``sweep`` then kills the processes that are left.
    """
    identity = _read_identity(fork_server_file)
    with suppress(OSError, ValueError, IndexError):
        pid = int(identity.split()[1])
        if identity_of(pid) != identity:
            return
        pidfd = os.pidfd_open(pid)
        try:
            bound_s = anyio.current_time() + EXITING_S
            with anyio.move_on_after(FORK_SERVER_S) as waited:
                await anyio.wait_readable(pidfd)
            while waited.cancelled_caught and exiting_processes([pid]) and anyio.current_time() < bound_s:
                with anyio.move_on_after(LOOK_S) as waited:
                    await anyio.wait_readable(pidfd)
            if waited.cancelled_caught:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _read_identity(fork_server_file: Path | None) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return fork_server_file.read_text() if fork_server_file is not None else ""
    return ""


def _members(group: str) -> Iterator[int]:
    with suppress(OSError):
        if group:
            yield from map(int, Path(group, "cgroup.procs").read_text().split())


def _tagged(tag: str) -> Iterator[int]:
    """Yield the pids of the other processes whose environment contains our variable with the value *tag*."""
    for name in os.listdir("/proc") if tag and os.path.isdir("/proc/self") else ():
        if name.isdigit() and int(name) != os.getpid() and _has_tag(int(name), tag):
            yield int(name)


def _has_tag(pid: int, tag: str) -> bool:
    """Return whether the environment of the process *pid*, as it was at exec, contains our variable with the value
    *tag*."""
    with suppress(OSError):
        return f"\0{TAG_VARIABLE}={tag}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _kill(pid: int, is_wanted: Callable[[int], bool]) -> bool:
    """Send SIGKILL to *pid*, unless the pid has been given to another process since it was found; return whether the
    signal was sent."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if is_wanted(pid):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return True
        finally:
            os.close(pidfd)
    return False
