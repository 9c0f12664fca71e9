"""How what is left of a failed run ends: it is cancelled, and given steps. What goes on even so is kept for ever.

Nothing may be reported about it later, in somebody else's run, and it may not hang the process. To free a coroutine is
to close it, at the interpreter's exit at the latest, and one that swallows every error then runs without end.
"""

from __future__ import annotations

import ctypes

__all__ = ["FAREWELL_ROUNDS", "FAREWELL_STEPS", "keep_for_ever"]

FAREWELL_ROUNDS = 5
"""How often what is left is cancelled."""
FAREWELL_STEPS = 5_000
"""Steps it is given."""


def keep_for_ever(one: object) -> None:
    """Never free it, nor what it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
