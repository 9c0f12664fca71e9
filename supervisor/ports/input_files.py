"""Files that a user names as input: opened without waiting for a writer that may never come."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Final

_OPEN_ALREADY: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Beginnings of paths of pipes that are open already, such as ``<(command)`` of a shell: their writer is there."""


def open_input(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: the file cannot be opened, or is a named pipe, a device or a socket: a read of it may last for ever.
    """
    if str(path).startswith(_OPEN_ALREADY):
        return path.open("rb")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
    raise OSError(errno.EINVAL, f"it is {kind}, and no file", str(path))
