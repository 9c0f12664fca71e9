"""Recent changes: whether anything in a directory has changed since a moment, as far as the file system tells.

The file system keeps for each file and directory the time of its last change, which no program sets. So nothing has to
be stored before the work begins, and the search, which ends at the first change, is needed only where an agent reports
neither a call nor an answer. Who made a change is not known: any change counts. What is unknown counts as a change,
too: a clock that was set back, or a directory that is too large.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

ENTRIES_MAX: Final = 200_000
"""Number of files and directories that are looked at; a larger directory counts as changed."""
CLOCK_S: Final = 0.01
"""Seconds by which the time of a change may lie before the time of the clock: the kernel stamps files with the time of
its last tick."""
_GIT: Final = ".git"


def changed_since(directory: Path, since: float, apart: Path | None = None) -> bool:
    """Return whether a file below *directory* may have changed, or something may have been committed there, since
    *since* (Unix time in seconds).

    Files of git do not count, since reading commands write them too; a new entry in the log of HEAD does. The directory
    *apart* and the files to which this process prints do not count either: they are the supervisor's own.

    Raises:
        OSError: a directory cannot be read.
    """
    earliest, left, ours = since - CLOCK_S, ENTRIES_MAX, _printed_to()
    pending = [directory]
    if since > time.time() or directory.stat().st_ctime > earliest:
        return True
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path, left = Path(entry.path), left - 1
                if entry.name == _GIT:
                    if _last_commit(path) > earliest:
                        return True
                    continue
                seen = entry.stat(follow_symlinks=False)
                if path == apart or (seen.st_dev, seen.st_ino) in ours:
                    continue
                if seen.st_ctime > earliest or not left:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
    return False


def _last_commit(git: Path) -> float:
    """Return the time of the last entry in git's log of HEAD; 0 if there is no log. *git* is the directory of a
    repository, or the file of a worktree that names it."""
    with suppress(OSError, ValueError):
        if git.is_file():
            git = git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        return (git / "logs" / "HEAD").stat().st_ctime
    return 0.0


def _printed_to() -> Collection[tuple[int, int]]:
    """Return the devices and inodes of the files that standard output and standard error write to."""
    found = []
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):
            if stream is not None:
                seen = os.fstat(stream.fileno())
                found.append((seen.st_dev, seen.st_ino))
    return found
