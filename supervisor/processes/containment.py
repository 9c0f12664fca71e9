"""What holds the programs of one state directory together, and ends what an earlier supervisor on it has left.

Four things, and none of them needed for the others: the keeper (it waits for nobody's help), where it is wanted a pid
namespace for each program (the kernel kills whoever is in it when its warden dies), and weakest last, a control
group where one can be made (whoever is born in it can be killed by its name), and a variable in every environment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio

from supervisor.processes.process_identity import identity_of

__all__ = ["TAG_VARIABLE", "UNCONTAINED", "Containment", "Swept", "group_for", "sweep"]

TAG_VARIABLE = "SUPERVISOR_STATE"
"""In the environment of every program: whose it is. Most daemons keep it (9 of 9 real agents' did)."""
KEEPER_S = 15.0
"""How long an earlier keeper may take to see everything out; it gives its wardens 10 s."""
SWEEP_S = 5.0
"""How long the rest is struck at. Who is still there then is in the kernel's hands (a disk that does not answer)."""
LOOK_S = 0.01


class Containment(NamedTuple):
    """Of one state directory.

    ``tag`` is the value of ``SUPERVISOR_STATE``; ``group`` the folder of its control group; empty: none.
    ``keeper_file`` is where the keeper is written down for the next supervisor, as long as the directory ``is_ours``.
    ``pid_namespaces``: each program gets one of its own, where that is allowed.
    """

    tag: str = ""
    group: str = ""
    keeper_file: Path | None = None
    pid_namespaces: bool = False
    is_ours: Callable[[], bool] = lambda: True


UNCONTAINED = Containment()
"""Without a state directory there is nobody who could come back to it."""


class Swept(NamedTuple):
    """What an earlier supervisor had left: how many processes were killed, and which are still there."""

    killed: int
    left: tuple[int, ...]


def group_for(tag: str) -> str:
    """The folder of a control group (version 2) below our own, which the keeper makes; empty: there can be none."""
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
    """End every process that an earlier supervisor of this state directory has left. Only for who has its lock."""
    await _last_keeper(containment.keeper_file)
    find = partial(_ours, containment)
    killed: set[int] = set()
    with anyio.move_on_after(SWEEP_S):
        while found := find():
            killed.update(pid for pid in found if _kill(pid, find))
            await anyio.sleep(LOOK_S)
    with suppress(OSError):
        os.rmdir(containment.group)
    return Swept(len(killed), tuple(sorted(find())))


async def _last_keeper(keeper_file: Path | None) -> None:
    """Let it finish: it knows its programs best. One that does not is killed, and its wardens are found below."""
    noted = _noted(keeper_file)
    with suppress(OSError, ValueError, IndexError):
        pid = int(noted.split()[1])
        if identity_of(pid) != noted:
            return
        pidfd = os.pidfd_open(pid)
        try:
            with anyio.move_on_after(KEEPER_S) as waited:
                await anyio.wait_readable(pidfd)
            if waited.cancelled_caught:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _noted(keeper_file: Path | None) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return keeper_file.read_text() if keeper_file is not None else ""
    return ""


def _ours(containment: Containment) -> set[int]:
    return {*_members(containment.group), *_tagged(containment.tag)}


def _members(group: str) -> Iterator[int]:
    with suppress(OSError):
        if group:
            yield from map(int, Path(group, "cgroup.procs").read_text().split())


def _tagged(tag: str) -> Iterator[int]:
    """Whose environment, as it was when its program began, has our tag."""
    wanted = f"\0{TAG_VARIABLE}={tag}\0".encode()
    for name in os.listdir("/proc") if tag and os.path.isdir("/proc/self") else ():
        with suppress(OSError):
            if (
                name.isdigit()
                and int(name) != os.getpid()
                and wanted in b"\0" + Path("/proc", name, "environ").read_bytes()
            ):
                yield int(name)


def _kill(pid: int, find: Callable[[], Collection[int]]) -> bool:
    """SIGKILL it, unless its pid has become somebody else's meanwhile."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if pid in find():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return True
        finally:
            os.close(pidfd)
    return False
