"""The terminal of a command: its width, and whether the controlling terminal has gone, which a SIGHUP alone does not
say."""

from __future__ import annotations

import errno
import os
import sys
from shutil import get_terminal_size
from typing import Final

_GONE: Final = (errno.ENXIO, errno.EIO, errno.ENODEV, errno.ENOENT)


def table_width() -> int | None:
    """Return the columns that a table on standard output may have: those of the terminal, or of the variable
    ``COLUMNS``; ``None`` for a file or a pipe, whose reader takes lines as they are."""
    is_bounded = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return get_terminal_size().columns if is_bounded else None


class ControllingTerminal:
    """The terminal from which the process was started, if any. A process without one, such as a service, never loses
    one."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    @property
    def has_gone(self) -> bool:
        """Whether the terminal was closed, or its connection lost, since this object was made."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    """Return whether ``/dev/tty`` can be opened. When a terminal is closed, the kernel takes it from the processes of
    its session before it sends them SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in _GONE  # any other error, such as a lack of descriptors, says nothing about it
    return True
