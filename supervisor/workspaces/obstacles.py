"""Obstacles of a step in the user's repository: which lock, checkout or disk is in the way, and who holds it.

An obstacle says nothing about the work of an agent. So the step raises ``WorkspaceHeld`` with a ``HeldBy`` made here,
and is made again when the obstacle is gone (rule 48). A lock is never removed here: the git that made it may be asleep.

Example: a person's ``git commit`` waits for its editor. The index of their checkout is locked, and the obstacle is
``/r/.git/index.lock, held by git commit (pid 812)``, since the time at which the lock was made.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from supervisor.lifecycles.types import HeldBy

FILES_MAX: Final = 20
"""Number of files that an obstacle lists."""

_COMMAND_CHARS_MAX: Final = 80
_LOCK_WORDS: Final = (("Unable to create '", "': File exists"), ("could not lock config file ", ": File exists"))
"""Words before and after the name of a lock, or of a file that is locked, in an error of git."""
_DISK: Final = ("No space left on device", "Disk quota exceeded", "Read-only file system")
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_BUSY: Final = ("Device or resource busy", "Text file busy")


def _lock_in(output: str) -> str:
    """Return the lock that an error in the *output* of git names, or the file that is locked; ``""`` if there is none.
    Not by a pattern, whose time would be quadratic."""
    for line in output.splitlines():
        for before, after in _LOCK_WORDS if line.startswith(("error: ", "fatal: ")) else ():
            _, is_there, rest = line.partition(before)
            name, ends, _ = rest.rpartition(after)
            if is_there and ends:
                return name
    return ""


def obstacle_in(output: str, where: str) -> HeldBy | None:
    """Return the obstacle that the *output* of a git command in the directory *where* names; ``None`` if it names
    none."""
    if lock := _lock_in(output):
        path = Path(where, lock)
        return lock_held(path if path.suffix == ".lock" else path.with_name(f"{path.name}.lock"), where)
    if problem := next((one for one in _DISK if one in output), ""):
        return disk_full(problem, where)
    if problem := next((one for one in _BUSY if one in output), ""):
        line = next((line for line in output.splitlines() if problem in line), output).strip()
        return HeldBy(
            what=f"a file or directory that another program uses ({line})", fix="end that program", path=where
        )
    return None


def obstacle_of(error: OSError, where: str) -> HeldBy | None:
    """Return the obstacle that *error* of the operating system is; ``None`` if it is none."""
    return disk_full(os.strerror(error.errno), where) if error.errno in _DISK_ERRORS else None


def disk_full(problem: str, where: str) -> HeldBy:
    return HeldBy(what=f"the disk of {where} ({problem})", fix=f"make room there: df {shlex.quote(where)}", path=where)


def lock_held(lock: Path, where: str) -> HeldBy:
    """Return the obstacle for a *lock* of another git, with its age and, where they can be found, the process that
    holds it; *where* is the directory in which that git works."""
    try:
        found = lock.stat()
    except OSError:  # it went away just now
        return HeldBy(what=f"{lock}, which another git changes again and again", fix="let it end", path=str(lock))
    holder = _process_of((found.st_ino, found.st_dev), lock, Path(where))
    if holder is None:
        what = f"{lock}; no process is known to hold it"
        fix = f"if no git works there: rm {shlex.quote(str(lock))}"
        return HeldBy(what=what, fix=fix, path=str(lock), since=found.st_mtime)
    pid, program = holder
    what = f"{lock}, which {program} (pid {pid}) holds"
    return HeldBy(
        what=what,
        fix=f"let it end, or end it: kill {pid}",
        path=str(lock),
        pid=pid,
        program=program,
        since=found.st_mtime,
    )


def checkout_changed(holder: str, files: Sequence[str]) -> HeldBy:
    """Return the obstacle for changes of a person in *files* of their checkout, which the merge would overwrite."""
    listed = tuple(files[:FILES_MAX])
    more = f" and {len(files) - FILES_MAX} more" if len(files) > FILES_MAX else ""
    paths = " ".join(map(shlex.quote, listed)) if not more else "."
    fix = f"commit them, or put them away: git -C {shlex.quote(holder)} stash push --all -- {paths}"
    what = f"{holder}, which has changes of its own in the way: {', '.join(listed)}{more}"
    return HeldBy(what=what, fix=fix, path=holder, files=listed)


def operation_unfinished(holder: str, operation: str, since: float) -> HeldBy:
    """Return the obstacle for an *operation* of a person (merge, cherry-pick) that the next commit concludes."""
    git = f"git -C {shlex.quote(holder)}"
    what = f"a {operation} that was begun in {holder} and not committed"
    fix = f"conclude it ({git} commit), or abort it ({git} {operation} --abort)"
    return HeldBy(what=what, fix=fix, path=holder, since=since)


def target_rebased(target: str) -> HeldBy:
    what = f"a rebase of {target} that is under way, and could not be ended then"
    return HeldBy(what=what, fix="end it (git rebase --continue), or abort it (git rebase --abort)")


def target_shared(target: str, holders: Sequence[str]) -> HeldBy:
    """Return the obstacle for a *target* that is checked out in several directories: only one could be moved on."""
    what = f"{target}, which is checked out in {', '.join(holders)}, and only one of them could be moved on with it"
    fix = f"check out another branch in the others: git -C {shlex.quote(holders[-1])} switch --detach"
    return HeldBy(what=what, fix=fix, path=holders[-1])


def target_moves(target: str, tries: int) -> HeldBy:
    what = f"{target}, which moved {tries} times while the merge was made"
    return HeldBy(what=what, fix="nothing has to be done; the merge is made again")


def files_unwritable(holder: str, commit: str, why: str, foreign: Sequence[str]) -> HeldBy:
    """Return the obstacle for files of *commit* that git could not write into the checkout *holder*, for the reason
    *why*."""
    what = f"{holder}: the files of {commit[:12]} could not be written there, and it is as it was before ({why})"
    if foreign:
        what = f"{what}; these were changed there meanwhile, and were left: {', '.join(foreign[:FILES_MAX])}"
    return HeldBy(what=what, fix="mend what git names", path=holder, files=tuple(foreign[:FILES_MAX]))


# --------------------------------------------------------------------------------------------- who holds a lock
def _process_of(identity: tuple[int, int], lock: Path, where: Path) -> tuple[int, str] | None:
    """Return pid and command line of the process that holds *lock*: one that has the file open, or else a git that
    works in the same directory. (A git that waits for an editor has closed its lock.) ``None`` if there is none, or no
    ``/proc``."""
    own = os.getpid()
    gits: list[tuple[int, str]] = []
    tops = {where.resolve(), lock.parent.resolve()}
    for process in _processes():
        pid = int(process.name)
        if pid == own:
            continue
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    found = os.stat(descriptor)
                    if (found.st_ino, found.st_dev) == identity:
                        return pid, _command_of(process)
            if (process / "comm").read_text().strip() == "git":
                here = (process / "cwd").resolve()
                if any(here == top or top in here.parents for top in tops):
                    gits.append((pid, _command_of(process)))
    return min(gits, default=None)


def _processes() -> Iterator[Path]:
    yield from Path("/proc").glob("[0-9]*")


def _command_of(process: Path) -> str:
    words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode(errors="replace")[:_COMMAND_CHARS_MAX] or (process / "comm").read_text().strip()
