"""Address of the control socket for a path that may be longer than a socket address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATH_BYTES_MAX: Final = 100
"""Maximal number of bytes of a path in a socket address (Linux allows 108); a longer path is opened through its
directory."""


@contextmanager
def reach(path: Path) -> Iterator[str]:
    """Yield *path*, or, if that is too long, a short path to the same file that is valid within the context."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
