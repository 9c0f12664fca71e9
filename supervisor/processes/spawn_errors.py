"""Why a program could not be started, as a sentence: it names the program, the value that is wrong, and the fix."""

from __future__ import annotations

import errno
import os
import shutil

from supervisor.ports import Launch, SpawnError, SpawnShortage
from supervisor.ports.shortages import shortage_of

__all__ = ["check", "refusal", "shortage", "silence"]


def check(launch: Launch) -> None:
    """What no kernel would take is refused before anything is started.

    Raises:
        SpawnError: argv is empty, a NUL byte somewhere, or the name of a variable is impossible.
    """
    if not launch.argv or not launch.argv[0]:
        raise SpawnError("cannot start a program: argv is empty; its first word must name the program")
    for place, word in _words(launch):
        if "\0" in word:
            raise _refuse(launch, f"{place} contains a NUL byte ({word!r}); remove it")
    for name in launch.env:
        if not name or "=" in name:
            raise _refuse(launch, f"env has a variable named {name!r}; a name is not empty and has no '=' in it")


def _words(launch: Launch) -> list[tuple[str, str]]:
    argv = [(f"argv[{index}]", word) for index, word in enumerate(launch.argv)]
    env = [(f"env[{name!r}]", f"{name}={value}") for name, value in launch.env.items()]
    return [("cwd", launch.cwd), *argv, *env]


def refusal(launch: Launch, step: str, number: int) -> SpawnError:
    """The warden's *step* failed with this errno."""
    error = _refusal(launch, step, number)
    what = shortage_of(number)
    return SpawnShortage(str(error), what) if what else error


def _refusal(launch: Launch, step: str, number: int) -> SpawnError:
    match step:
        case "cwd":
            return _refuse(launch, _cwd(launch.cwd, number))
        case "exec":
            return _refuse(launch, _program(launch, number))
        case _:
            return _refuse(
                launch, f"its process could not be made ({os.strerror(number)}); raise the limit, or run fewer"
            )


def shortage(launch: Launch, what: str, error: OSError) -> SpawnShortage:
    """The machine lacks *what* it takes to start any program."""
    return SpawnShortage(f"cannot start {launch.argv[0]!r}: no warden for it ({error})", what)


def silence(launch: Launch, said: bytes) -> SpawnError:
    """The warden ended before it started anything; *said* is what it left on standard error."""
    words = said.decode(errors="replace").strip() or "it said nothing"
    return _refuse(launch, f"its warden ended first: {words[-500:]}; check that {launch.cwd!r} and Python are usable")


def _refuse(launch: Launch, why: str) -> SpawnError:
    return SpawnError(f"cannot start {launch.argv[0]!r}: {why}")


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
