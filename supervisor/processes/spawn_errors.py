"""Texts of spawn errors: sentences that name the program that could not be started, the value that is wrong, and the
fix."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Final

from supervisor.ports import InvalidLaunch, Launch, SpawnError, SpawnShortage
from supervisor.ports.shortages import shortage_of


def check_launch(launch: Launch) -> None:
    """Reject a launch that no operating system would accept, before any process is started.

    Raises:
        InvalidLaunch: argv is empty, a value contains a NUL byte, or a variable has an impossible name.
    """
    if not launch.argv or not launch.argv[0]:
        raise InvalidLaunch("cannot start a program: argv is empty; its first word must name the program")
    argv = [(f"argv[{index}]", word) for index, word in enumerate(launch.argv)]
    env = [(f"env[{name!r}]", f"{name}={value}") for name, value in launch.env.items()]
    for field, value in [("cwd", launch.cwd), *argv, *env]:
        if "\0" in value:
            raise _invalid(launch, f"{field} contains a NUL byte ({value!r}); remove it")
    for name in launch.env:
        if not name or "=" in name:
            raise _invalid(launch, f"env has a variable named {name!r}; a name is not empty and has no '=' in it")


def step_failed(launch: Launch, step: str, number: int) -> SpawnError:
    """Return the error for a *step* of the shim (``fork``, ``start``, ``cwd``, ``exec``) that failed with the errno
    *number*."""
    match step:
        case "cwd":
            why = _cwd(launch.cwd, number)
        case "exec":
            why = _program(launch, number)
        case _:
            why = f"its process could not be made ({os.strerror(number)}); raise the limit, or run fewer"
    if what := shortage_of(number):
        return SpawnShortage(f"cannot start {launch.argv[0]!r}: {why}", what)
    return (_invalid if step in ("cwd", "exec") and number in _INVALID else _error)(launch, why)


def resource_missing(launch: Launch, what: str, error: OSError) -> SpawnShortage:
    """Return the error for a machine that lacks *what*, a resource that every start of a program needs."""
    return SpawnShortage(f"cannot start {launch.argv[0]!r}: no shim for it ({error})", what)


def shim_ended_early(launch: Launch, said: bytes) -> SpawnError:
    """Return the error for a shim that ended before it started the program; *said* is the shim's standard error."""
    words = said.decode(errors="replace").strip() or "it said nothing"
    return _error(launch, f"its shim ended first: {words[-500:]}; check that {launch.cwd!r} and Python are usable")


_INVALID: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.E2BIG})
"""Error numbers of a program or working directory that every later launch meets, too."""


def _error(launch: Launch, why: str) -> SpawnError:
    return SpawnError(f"cannot start {launch.argv[0]!r}: {why}")


def _invalid(launch: Launch, why: str) -> InvalidLaunch:
    return InvalidLaunch(f"cannot start {launch.argv[0]!r}: {why}")


def _cwd(cwd: str, number: int) -> str:
    match number:
        case errno.ENOENT:
            return f"the working directory {cwd!r} does not exist; create it, or correct cwd"
        case errno.ENOTDIR:
            return f"the working directory {cwd!r} is not a directory; correct cwd"
        case _:
            return f"the working directory {cwd!r} cannot be entered ({os.strerror(number)}); correct cwd or its mode"


def _program(launch: Launch, number: int) -> str:
    match number:
        case errno.ENOENT | errno.ENOTDIR:
            return _missing(launch)
        case errno.EACCES:
            return "it is not an executable file; chmod +x it, or put its interpreter first in argv"
        case errno.ENOEXEC:
            return "it is no program of this machine and has no #! line; put its interpreter first in argv"
        case errno.E2BIG:
            return "argv and env are too large for this kernel; pass the large part in a file or on standard input"
        case _:
            return f"{os.strerror(number)}; correct argv[0]"


def _missing(launch: Launch) -> str:
    name, path = launch.argv[0], launch.env.get("PATH", os.defpath)
    if shutil.which(os.path.join(launch.cwd, name) if "/" in name else name, path=path):
        return "it exists, but the interpreter named in its #! line does not; install that, or correct the line"
    if "/" in name:
        return "there is no such file; install it, or correct argv[0]"
    return (
        f"there is no such program on PATH {path!r}; install it, extend PATH in env, or name its full path in argv[0]"
    )
