"""Shortages of the machine, recognised by their error numbers: descriptors, processes, memory."""

from __future__ import annotations

import errno
from typing import Final

__all__ = ["DESCRIPTORS", "shortage_of"]

DESCRIPTORS: Final = "file descriptors"
_LACKS: Final = {
    errno.EMFILE: DESCRIPTORS,
    errno.ENFILE: DESCRIPTORS,
    errno.ETOOMANYREFS: DESCRIPTORS,  # too many of them are on their way to another process
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}


def shortage_of(error: BaseException | int | None) -> str:
    """What the machine lacks, by an error number, by an ``OSError``, or by what anyio has made of one; ``""``: nothing,
    the error is another one."""
    while isinstance(error, BaseException) and not isinstance(error, OSError):
        error = error.__cause__
    return _LACKS.get(error.errno if isinstance(error, OSError) else error or 0, "")  # type: ignore[arg-type]
