"""Duties of the first process of a container (pid 1): reap strangers, and forward signals.

The kernel gives the children of ended processes to pid 1, which must reap them, and does not apply the usual effect of
a signal to pid 1. Where no ``tini`` does that, the process forks: the parent stays pid 1 and does only this, and its
child is the daemon. A daemon that reaped strangers itself could take the exit status of a child of its own.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def leave_first_process() -> None:
    """Return in a process that is not pid 1: at once, or in a child while pid 1 does its duties until the child has
    ended, and then exits with the status of the child. To be called before there are threads."""
    if os.getpid() != 1:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # none is lost before the handlers are there
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    for number in FORWARDED:
        signal.signal(number, lambda received, frame: _forward(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _forward(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)
