"""Shortages of the machine, recognised by their error numbers: descriptors, processes, memory."""

from __future__ import annotations

import errno
from typing import Final

DESCRIPTORS: Final = "file descriptors"
_LACKS: Final = {
    errno.EMFILE: DESCRIPTORS,
    errno.ENFILE: DESCRIPTORS,
    errno.ETOOMANYREFS: DESCRIPTORS,  # too many of them are on their way to another process
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}


def shortage_of(error: BaseException | int | None) -> str:
    """Return what the machine lacks, or ``""`` if *error* is no shortage.

    *error* is an error number, an ``OSError``, or an error that anyio raised from an ``OSError``.
    """
    while isinstance(error, BaseException) and not isinstance(error, OSError):
        error = error.__cause__
    number = error.errno if isinstance(error, OSError) else error
    return "" if number is None else _LACKS.get(number, "")
