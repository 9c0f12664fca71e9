"""Possession of a state directory: the files that its owner has opened still lie at their paths.

A lock and a database are known by their inodes, not by their names. When somebody deletes the state directory (an
agent runs ``git clean -fdx``), moves it away, or puts a copy of a file in the place of one, the open descriptors go on
to work: every commit succeeds, into files that nobody will ever find, and a second supervisor can lock the new file
that has the old name. So device and inode of each file are noted when it is opened, and compared with what lies at its
path before and after each commit, and each second. What is lost stays lost: the owner writes nothing more, neither
there nor anywhere else in that directory, which may be another supervisor's by then.

A path that cannot be looked at (an I/O error, no permission) tells nothing, and is looked at again.
"""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.ports import JournalLost

__all__ = ["Possession"]


class Possession:
    """The files of one state directory, as they were opened."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[str, os.stat_result]] = {}
        self._lost: JournalLost | None = None

    def hold(self, what: str, path: Path) -> None:
        """Note which file lies at *path* now, just after it was opened; *what* it is called.

        Raises:
            OSError: none does.
        """
        self._held[path.absolute()] = what, os.stat(path)

    def check(self) -> None:
        """Compare each file with what lies at its path; of several that are lost, the one that was held last is named.

        Raises:
            JournalLost: one is not there, or is another one; and ever after.
        """
        if self._lost is None:
            held = reversed(self._held.items())
            self._lost = next((_loss(what, path) for path, (what, at) in held if _gone(path, at)), None)
        if self._lost is not None:
            raise self._lost

    def holds(self) -> bool:
        """Whether all of it is still there."""
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
