"""Texts for an exit status, the same in every codec.

A status has Python's form: a negative number is the signal that ended the process; ``None`` is an unknown status.
"""

from __future__ import annotations

import signal

__all__ = ["exit_words", "signal_name"]


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, and ``SIG35`` where this platform has no name for the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def exit_words(status: int | None) -> str:
    """Return the end of a sentence about a process: ``exited with status 3``, ``was ended by SIGKILL``."""
    if status is None:
        return "ended, and its exit status is not known"
    if status < 0:
        return f"was ended by {signal_name(-status)}"
    return f"exited with status {status}"
