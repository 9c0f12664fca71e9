"""Check which mechanisms for process supervision this machine allows, and which guarantees follow.

A check tries a mechanism and leaves nothing behind. A guarantee states when the remaining processes end if certain
processes die: at once, at the next start of the supervisor, or not; it also names the missing capabilities that weaken
the guarantee.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from supervisor.processes.containment import group_for
from supervisor.processes.shim import HAS_CHILDREN_FILE, PR_SET_CHILD_SUBREAPER

PR_GET_CHILD_SUBREAPER = 37
NAMESPACE = Path(__file__).with_name("pid_namespace.py")


class Capability(NamedTuple):
    """Mechanism of the machine: whether the mechanism is available (``there``), its purpose (``used_for``), and how to
    make it available (``fix``)."""

    name: str
    there: bool
    used_for: str
    fix: str


class Guarantee(NamedTuple):
    """Guarantee: the time at which the remaining processes end if the processes named in ``dies`` die.

    ``given`` is ``at once``, ``mostly at once``, ``at the next start``, ``mostly at the next start``, or ``not``;
    ``missing`` names the capabilities whose absence weakens the guarantee.
    """

    dies: str
    given: str
    missing: tuple[str, ...]


def probe_capabilities() -> list[Capability]:
    """Try every mechanism; return the results, the most important mechanism first."""
    return [Capability(name, _probe(there), used_for, fix) for name, there, used_for, fix in _PROBES]


def guarantees(found: list[Capability]) -> list[Guarantee]:
    """Return the guarantees that follow from the capabilities *found*, one guarantee for each combination of deaths."""
    there = {capability.name: capability.there for capability in found}
    adopts, group = there["subreaper"], there["control group"]
    at_once = "at once" if adopts else "not"
    lacks = () if adopts else ("subreaper",)
    found_by = () if group else ("control group",)
    both = "at once" if group else "mostly at once" if there["environments"] else "not"
    last = "at the next start" if group else "mostly at the next start" if there["environments"] else "not"
    enclosed = ("at once", ()) if there["pid namespace"] else (last, ("pid namespace",))
    return [
        Guarantee("the agent, or a tool", at_once, lacks),
        Guarantee("a shim", at_once, lacks),
        Guarantee("a shim and the fork server, at the same moment", both, found_by),
        Guarantee("the supervisor", at_once, lacks),
        Guarantee("the supervisor and all shims at the same moment", at_once, lacks),
        Guarantee("the fork server too, at the same moment", last, found_by),
        Guarantee("the fork server too, with pid_namespaces: true", *enclosed),
    ]


def _probe(there: Callable[[], bool]) -> bool:
    with suppress(OSError, AttributeError, ValueError):
        return there()
    return False


def _try_subreaper() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    if libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0) == 0)


def _try_pidfd() -> bool:
    os.close(os.pidfd_open(os.getpid()))
    return True


def _try_group() -> bool:
    group = Path(group_for(f"doctor-{os.getpid()}") or "/nowhere")
    group.mkdir()
    try:
        return (group / "cgroup.procs").exists()
    finally:
        group.rmdir()


def _try_namespace() -> bool:
    """Return whether a pid namespace can be made. The check runs in a child process, because the namespace affects the
    later children of the process that makes it."""
    return subprocess.run([sys.executable, "-I", "-S", str(NAMESPACE)], stderr=subprocess.DEVNULL).returncode == 0


def _try_environments() -> bool:
    return bool(Path(f"/proc/{os.getpid()}/environ").read_bytes())


_PROBES: tuple[tuple[str, Callable[[], bool], str, str], ...] = (
    (
        "subreaper",
        _try_subreaper,
        "shims and the fork server adopt every process that is orphaned below them, and so can end all of them",
        "run on Linux (3.4 or later); on macOS only a program's own process group is ended",
    ),
    (
        "pidfd",
        _try_pidfd,
        "the supervisor waits for exits and signals old processes without mistaking another process for them",
        "run on Linux 5.3 or later; in a container, allow pidfd_open in its seccomp profile",
    ),
    (
        "list of children",
        lambda: HAS_CHILDREN_FILE,
        "a shim reads its children from one file; without it, a shim searches all processes",
        "a kernel with CONFIG_PROC_CHILDREN, and /proc mounted",
    ),
    (
        "control group",
        _try_group,
        "the next start finds every program that lost supervisor, shims and fork server at the same moment",
        "systemd: Delegate=yes in the service; container: --cgroupns=private, /sys/fs/cgroup (version 2) writable",
    ),
    (
        "pid namespace",
        _try_namespace,
        "with pid_namespaces: true, the kernel kills a program and its descendants at the moment its shim dies",
        "run as root, or with CAP_SYS_ADMIN; in a container, allow unshare and mounts of proc (seccomp, AppArmor)",
    ),
    (
        "environments",
        _try_environments,
        "without a control group, the next start finds the programs that have kept their environment",
        "mount /proc, without hidepid for this user",
    ),
)
