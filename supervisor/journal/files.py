"""File access of the journal: the seven operations that it needs, so that a simulated disk can replace them.

Production uses the operating system's files. With a simulated disk, exactly the same code of the journal runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import apsw

from supervisor.ports.secure_files import touch_private

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class JournalFiles:
    """Access to the operating system's files. Every method raises the ``OSError`` or ``apsw.Error`` of the system."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def connect(self, path: Path, flags: int) -> apsw.Connection:
        """Connect to the database at *path*; *flags* are SQLite's ``SQLITE_OPEN_...``.

        A database that is created is readable for its user only, and so are the files that SQLite makes beside it,
        which have the same mode. An empty file is no database: SQLite would take the log beside it for a stale one,
        and delete it, although the log may have all that is left.
        """
        if flags & apsw.SQLITE_OPEN_CREATE:
            touch_private(path)
        elif path.exists() and not path.stat().st_size:
            raise apsw.NotADBError("the file is empty")
        return apsw.Connection(str(path), flags=flags)

    def remove(self, path: Path) -> None:
        """Remove the file at *path* if it exists."""
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def sync(self, path: Path) -> None:
        """Return when the file at *path*, or the file names in the directory at *path*, are on the disk."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def boot(self) -> str:
        """Return the id of this boot of the machine, ``""`` if the system has none."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def reread(self, path: Path) -> None:
        """Make the next reads of *path*, if the file exists, come from the disk and not from a cache.

        After a failed sync, Linux keeps the pages that it could not write in its cache and marks them clean, and no
        later sync tries again. A process that starts then would read commits that are lost at the next power cut.
        """
        if not path.exists():
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)  # only what is clean can be forgotten
            if sys.platform == "linux":
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


DISK: Final = JournalFiles()
"""File access of the real machine."""
