"""Possession of a state directory: detect that a file which the supervisor has opened was deleted, replaced, or written
by another program.

Theory of operation
-------------------
A lock and a database are identified by their inodes, not by their names. If the state directory is deleted (an agent
runs ``git clean -fdx``) or moved away, or a file is replaced by a copy, the open descriptors continue to work: every
commit succeeds, into files that no program will ever find, and a second supervisor can lock the new file at the old
path. So the device and inode of each file are stored when the file is opened, and compared with the file at its path
before and after each commit, and each second.

An inode does not show that a file was truncated, or that a backup was copied over it, or that SQL has emptied its
tables. So the content has a ``Fingerprint``, which is compared before each commit, and each second. Only the
connection that commits changes it:

* ``version`` is SQLite's count of the commits of all *other* connections (``PRAGMA data_version``). Nobody else
  commits, so no change of it is the supervisor's. A checkpoint of another program that empties the log counts as well.
* The database file is written by checkpoints only, so its size and first page stay as the last checkpoint left them.
* The write-ahead log never becomes shorter, and its header stays, between two commits of the supervisor.

Example: an agent runs ``: > .sdd/runtime/journal.db``. The inode is the same and ``version`` too, since no other
connection has committed anything; the size is 0.

A checkpoint of another program moves pages from the log to the database file and loses nothing, but it changes the
fingerprint. ``Database.check`` tells such a checkpoint from a loss, by reading the whole journal.

A loss is final: the supervisor writes nothing more into that directory, which may be another supervisor's by then. A
path that cannot be examined (an I/O error, no permission) proves no loss, and is examined again later.

Descriptors of the database file are never opened here: when a process closes any descriptor of a file, the kernel
releases all locks of the process on that file, SQLite's too. The file is read through SQLite instead.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from supervisor.ports import JournalLost

_PAGE_BYTES: Final = 4096
"""Bytes of the first page: SQLite's default page size, which the journal is created with."""
_LOG_HEADER_BYTES: Final = 32
LOG_MAGIC: Final = (0x377F0682.to_bytes(4), 0x377F0683.to_bytes(4))
"""First bytes of a write-ahead log, by the byte order of its checksums (SQLite's file format, section 4.1)."""


class Fingerprint(NamedTuple):
    """Content of a journal's files, as far as only the supervisor's own connection changes it."""

    version: int
    size_bytes: int
    first_page: bytes
    log_size_bytes: int
    log_header: bytes

    @property
    def log(self) -> tuple[int, bytes]:
        return self.log_size_bytes, self.log_header

    @classmethod
    def read(cls, db: apsw.Connection) -> Fingerprint:
        """Return the present fingerprint of the journal to which its owner has the connection *db*.

        Raises:
            apsw.Error, OSError: a file cannot be read.
        """
        # The log first: a checkpoint that empties the log meanwhile is then seen in `version` at least.
        log_size_bytes = os.stat(db.filename_wal).st_size
        return cls(
            version=int(db.pragma("data_version")),
            size_bytes=os.stat(db.filename).st_size,
            first_page=db.read("main", 0, 0, _PAGE_BYTES)[1],
            log_size_bytes=log_size_bytes,
            log_header=db.read("main", 1, 0, _LOG_HEADER_BYTES)[1],
        )


class Possession:
    """The files of one state directory, identified by device and inode as they were opened."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[str, os.stat_result]] = {}
        self.lost: JournalLost | None = None
        """The loss that was detected first."""

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
            JournalLost: a file is missing or was replaced, or its content is lost, now or at an earlier check.
        """
        if self.lost is None:
            held = reversed(self._held.items())
            self.lost = next((_loss(what, path) for path, (what, at) in held if _gone(path, at)), None)
        if self.lost is not None:
            raise self.lost

    def holds(self) -> bool:
        """Return whether all files are still in place, and no loss of their content was detected."""
        try:
            self.check()
        except JournalLost:
            return False
        return True

    def lose(self, loss: JournalLost) -> None:
        """Mark the directory as lost because of *loss*, unless it is lost already."""
        self.lost = self.lost or loss


def _gone(path: Path, known: os.stat_result) -> bool:
    try:
        return not os.path.samestat(os.stat(path), known)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


_ENDED: Final = "everything that runs is ended, and nothing more is written there"


def _loss(what: str, path: Path) -> JournalLost:
    return JournalLost(
        f"the {what} {path} was deleted or replaced under this supervisor: {_ENDED}; put the state directory back and"
        " start the run again to go on with it, or start it anew without"
    )


def content_loss(path: Path, problem: str) -> JournalLost:
    """Return the error for the journal at *path* whose content another program has changed; *problem* says how."""
    return JournalLost(
        f"the journal {path} {problem} under this supervisor: {_ENDED}; check the journal: if it is sound,"
        " start the run again to go on with it; else restore a copy, or move the state directory away and start the run"
        " anew"
    )
