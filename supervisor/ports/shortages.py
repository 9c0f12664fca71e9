"""Shortages of the machine: recognised by their error numbers (descriptors, processes, memory), and waited out."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio

from actors.backoff import Backoff
from actors.one_shot_event import OneShotEvent
from supervisor.ports.logs import get_logger

_log = get_logger()
_T = TypeVar("_T")

DESCRIPTORS: Final = "file descriptors"
RETRY: Final = Backoff(base_s=0.1, factor=2.0, cap_s=5.0)
"""Pauses between two tries, given by their upper bounds: a very short outage costs 0.1 s, and the end of a long one is
noticed within 5 s. There is one writer, so the pauses need no jitter."""

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


async def outlast_shortage(do: Callable[[], Awaitable[_T]], until: OneShotEvent | None = None) -> _T:
    """Call *do*, and call it again after a pause as long as it fails for lack of file descriptors and *until* is not
    set.

    Raises:
        OSError: another error of *do*; or the shortage, if *until* is set.
    """
    until = until or OneShotEvent()
    tries = 0
    while True:
        try:
            return await do()
        except OSError as error:
            if shortage_of(error) != DESCRIPTORS:
                raise
            tries += 1
            if tries == 1:
                _log.warning("no file descriptor is left: it is tried again until there is one", error=str(error))
            with anyio.move_on_after(RETRY.ceiling_s(tries)):
                await until.wait()
            if until.is_set():
                raise
