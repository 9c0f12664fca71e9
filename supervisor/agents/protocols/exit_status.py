"""Words for an exit status, the same in every adapter.

A status is in Python's form: negative is the number of the signal that ended the process, ``None`` means nobody knows.
"""

from __future__ import annotations

import signal

__all__ = ["exit_words", "signal_name"]


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``SIG35`` where this platform has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def exit_words(status: int | None) -> str:
    """What happened to a process, to follow its name: ``exited with status 3``, ``was ended by SIGKILL``."""
    if status is None:
        return "ended, and its exit status is not known"
    if status < 0:
        return f"was ended by {signal_name(-status)}"
    return f"exited with status {status}"
