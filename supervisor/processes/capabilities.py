"""What this machine lets a supervisor do about processes, found by trying it; and what follows for who may die.

Nothing is left of a try. A guarantee is a sentence about deaths; it is given, given at the next start, or not given,
and then it says what would have to be there.
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
from supervisor.processes.shim import LISTED, PR_SET_CHILD_SUBREAPER

__all__ = ["Ability", "Guarantee", "abilities", "guarantees"]

PR_GET_CHILD_SUBREAPER = 37
NAMESPACE = Path(__file__).with_name("pid_namespace.py")


class Ability(NamedTuple):
    """``name`` is there or not; ``used_for`` says what for, ``fix`` how to get it where it is missing."""

    name: str
    there: bool
    used_for: str
    fix: str


class Guarantee(NamedTuple):
    """What holds when these die. ``given`` is ``at once``, ``at the next start``, ``mostly at the next start``, or
    ``not``; ``missing`` names the abilities whose lack weakens it."""

    dies: str
    given: str
    missing: tuple[str, ...]


def abilities() -> list[Ability]:
    """Everything that is tried, in the order of its weight."""
    return [Ability(name, _tried(there), used_for, fix) for name, there, used_for, fix in _ABILITIES]


def guarantees(found: list[Ability]) -> list[Guarantee]:
    """Of every death that is accounted for: what then becomes of the processes."""
    there = {one.name: one.there for one in found}
    adopts, group = there["subreaper"], there["control group"]
    at_once = "at once" if adopts else "not"
    lacks = () if adopts else ("subreaper",)
    last = "at the next start" if group else "mostly at the next start" if there["environments"] else "not"
    return [
        Guarantee("the agent, or a tool", at_once, lacks),
        Guarantee("a warden", at_once, lacks),
        Guarantee("the supervisor", at_once, lacks),
        Guarantee("the supervisor and all wardens at the same moment", at_once, lacks),
        Guarantee("the keeper too, at the same moment", last, () if group else ("control group",)),
        _enclosed(there["pid namespace"], last),
    ]


def _enclosed(allowed: bool, otherwise: str) -> Guarantee:
    lacks = () if allowed else ("pid namespace",)
    return Guarantee("the keeper too, with pid_namespaces: true", "at once" if allowed else otherwise, lacks)


def _tried(there: Callable[[], bool]) -> bool:
    with suppress(OSError, AttributeError, ValueError):
        return there()
    return False


def _subreaper() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    if libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0) == 0)


def _pidfd() -> bool:
    os.close(os.pidfd_open(os.getpid()))
    return True


def _group() -> bool:
    group = Path(group_for(f"doctor-{os.getpid()}") or "/nowhere")
    group.mkdir()
    try:
        return (group / "cgroup.procs").exists()
    finally:
        group.rmdir()


def _namespace() -> bool:
    """Tried by a process of its own, whose children alone would be born in it."""
    return subprocess.run([sys.executable, "-I", "-S", str(NAMESPACE)], stderr=subprocess.DEVNULL).returncode == 0


def _environments() -> bool:
    return bool(Path(f"/proc/{os.getpid()}/environ").read_bytes())


_ABILITIES: tuple[tuple[str, Callable[[], bool], str, str], ...] = (
    (
        "subreaper",
        _subreaper,
        "wardens and the keeper adopt whatever is orphaned below them, and so can end all of it",
        "run on Linux (3.4 or later); on macOS only a program's own process group is ended",
    ),
    (
        "pidfd",
        _pidfd,
        "exits are waited for, and old processes signalled, without being taken for another",
        "run on Linux 5.3 or later; in a container, allow pidfd_open in its seccomp profile",
    ),
    (
        "list of children",
        lambda: LISTED,
        "a warden finds what it has adopted by one look; without it, it looks through all processes",
        "a kernel with CONFIG_PROC_CHILDREN, and /proc mounted",
    ),
    (
        "control group",
        _group,
        "what lost supervisor, wardens and keeper at the same moment is found at the next start, whatever it has done",
        "systemd: Delegate=yes in the service; container: --cgroupns=private, /sys/fs/cgroup (version 2) writable",
    ),
    (
        "pid namespace",
        _namespace,
        "with pid_namespaces: true, the kernel kills all that a program has started at the moment its warden dies",
        "run as root, or with CAP_SYS_ADMIN; in a container, allow unshare and mounts of proc (seccomp, AppArmor)",
    ),
    (
        "environments",
        _environments,
        "the same, for whoever has kept its environment, where there is no control group",
        "mount /proc, without hidepid for this user",
    ),
)
