"""Possession of a state directory: detect that a file which the supervisor has opened was deleted or replaced.

A lock and a database are identified by their inodes, not by their names. If the state directory is deleted (an agent
runs ``git clean -fdx``) or moved away, or a file is replaced by a copy, the open descriptors continue to work: every
commit succeeds, into files that no program will ever find, and a second supervisor can lock the new file at the old
path. So the device and inode of each file are stored when the file is opened, and compared with the file at its path
before and after each commit, and each second. A loss is final: the supervisor writes nothing more into that directory,
which may be another supervisor's by then.

A path that cannot be examined (an I/O error, no permission) proves no loss, and is examined again later.
"""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.ports import JournalLost


class Possession:
    """The files of one state directory, identified by device and inode as they were opened."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[str, os.stat_result]] = {}
        self._lost: JournalLost | None = None

    def hold(self, what: str, path: Path) -> None:
        """Store the device and inode of the file at *path*, just after the file was opened; *what* names the file in
        messages.

        Raises:
            OSError: there is no such file.
        """
        self._held[path.absolute()] = what, os.stat(path)

    def check(self) -> None:
        """Compare each stored file with the file that is now at its path. If several are lost, the error names the file
        that was added last.

        Raises:
            JournalLost: a file is missing or was replaced, now or at an earlier check.
        """
        if self._lost is None:
            held = reversed(self._held.items())
            self._lost = next((_loss(what, path) for path, (what, at) in held if _gone(path, at)), None)
        if self._lost is not None:
            raise self._lost

    def holds(self) -> bool:
        """Return whether all files are still in place."""
        try:
            self.check()
        except JournalLost:
            return False
        return True


def _gone(path: Path, known: os.stat_result) -> bool:
    try:
        return not os.path.samestat(os.stat(path), known)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _loss(what: str, path: Path) -> JournalLost:
    return JournalLost(
        f"the {what} {path} was deleted or replaced under this supervisor: everything that runs is ended, and nothing"
        " more is written there; put the state directory back and start the run again to go on with it, or start it"
        " anew without"
    )
