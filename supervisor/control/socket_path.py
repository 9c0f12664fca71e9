"""Path of the control socket: a socket address takes few bytes, the path of a state directory may have more."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATH_BYTES_MAX: Final = 100
"""Maximal number of bytes of a path in a socket address: 107 on Linux (unix(7)) and 103 on macOS, less a margin."""

DESCRIPTORS: Final = Path("/proc/self/fd")
"""Directory with a link for each open file of this process, on Linux."""


@contextmanager
def reach(path: Path, descriptors: Path = DESCRIPTORS) -> Iterator[str]:
    """Yield *path*, or, if *path* is too long for a socket address, a short path through *descriptors* to the same file
    that is valid within the context.

    Raises:
        OSError: the path is too long, and there is no such directory; or the directory of *path* cannot be opened.
    """
    size = len(os.fsencode(path))
    if size <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not descriptors.is_dir():
            why = (
                f"the path of the control socket has {size} bytes, and a socket address of this system takes at most "
                f"{PATH_BYTES_MAX}; use a state directory with a shorter path"
            )
            raise OSError(errno.ENAMETOOLONG, why, str(path))
        yield f"{descriptors}/{folder}/{path.name}"
    finally:
        os.close(folder)
