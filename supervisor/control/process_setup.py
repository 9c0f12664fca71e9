"""Signals of a supervisor's process, as its starter has left them: ignored ones stay ignored, blocked ones are freed.

A script starts a run in the background with SIGINT ignored, so that a Ctrl-C for the program in the foreground does not
reach the run; ``nohup`` ignores SIGHUP. A starter that blocks signals, as a thread of a server may, leaves the mask to
its children, who would neither hear of the end of their own children nor could be stopped.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_NEEDED: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def free_signals() -> None:
    """Unblock the signals that a supervisor needs, and let no SIGHUP, which means "read the plan again", end the
    process before it can do so. To be called first in a process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NEEDED)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _note_early)


_early: list[int] = []


def _note_early(number: int, frame: FrameType | None) -> None:
    _early.append(number)


def came_early() -> bool:
    """Return whether a SIGHUP has come before its handler was there; the next call returns ``False``."""
    came = bool(_early)
    _early.clear()
    return came


def signals_to_handle() -> list[signal.Signals]:
    """Return the signals that stop a supervisor, or have it read its plan or configuration again, without those that
    its starter has had ignored. SIGTERM is always one: a supervisor that cannot be stopped is of no use."""
    stops = (signal.SIGINT, signal.SIGHUP)
    return [signal.SIGTERM, *(one for one in stops if signal.getsignal(one) is not signal.SIG_IGN)]
