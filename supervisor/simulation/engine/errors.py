"""How a simulated run can fail as a run, whatever the program in it does.

Each message says at what virtual time, and which task waits where: it is all that somebody has who was not there.
What is left of a failed run is cancelled, and given steps; what goes on even so is kept for ever: nothing may be
reported about it later, in somebody else's run. To free a coroutine is to close it, at the interpreter's exit at the
latest, and one that swallows every error then runs without end.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

__all__ = [
    "UNWIND_ROUNDS",
    "UNWIND_STEPS",
    "Deadlock",
    "EngineError",
    "HorizonReached",
    "Livelock",
    "SimulationEscape",
    "code_place",
    "never_free",
    "waiting_place",
]

UNWIND_ROUNDS = 5
"""How often what is left is cancelled."""
UNWIND_STEPS = 5_000
"""Steps it is given."""

LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("asyncio", "anyio", "trio"))
"""Code in these directories is how one waits, not what waits."""
NAMED_MAX = 20
"""Tasks named in a message; the rest is counted."""


class EngineError(Exception):
    """A simulated run did not come to its end."""


class _Stuck(EngineError):
    """Virtual time stopped at *at_s* seconds, with these tasks unfinished."""

    what = "the run is stuck"

    def __init__(self, at_s: float, waiting: Sequence[str]) -> None:
        self.at_s, self.waiting = at_s, tuple(waiting)
        super().__init__(f"at {at_s:g} s: {self.what}{_listed(self.waiting)}")


class Deadlock(_Stuck):
    """Nothing can run, no timer is set, and the program has not ended."""

    what = "nothing can ever happen any more"


class Livelock(_Stuck):
    """Too many steps at one moment of virtual time (``livelock_steps``)."""

    what = "steps are taken and time stands still"


class HorizonReached(_Stuck):
    """The virtual time that the run was given (``horizon_s``) is over."""

    what = "the horizon is reached"


class SimulationEscape(EngineError):
    """The program reached out of the simulation: a clock, chance, a thread, a socket, a process, a file."""


def _listed(waiting: Sequence[str]) -> str:
    lines = [f"\n  {one}" for one in waiting[:NAMED_MAX]]
    more = len(waiting) - NAMED_MAX
    return "".join([":", *lines, f"\n  and {more} more" if more > 0 else ""]) if lines else ""


def never_free(one: object) -> None:
    """Never free it, nor what it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


# ------------------------------------------------------------------------------------------------ where a task waits
def waiting_place(coroutine: Any) -> str:
    """``function (file.py:12)``, where *coroutine* waits; the library's own line if there is no other."""
    frames = [frame for one in _awaiting(coroutine) if (frame := _first(one, "cr_frame", "gi_frame", "ag_frame"))]
    own = [one for one in frames if not any(name in one.f_code.co_filename for name in LIBRARIES)]
    innermost = (own or frames)[-1:]
    return code_place(innermost[0].f_code, innermost[0].f_lineno) if innermost else "nowhere any more"


def code_place(code: CodeType, line: int | None) -> str:
    """A line of code, named without the directories above it."""
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"


def _awaiting(awaited: Any) -> Iterator[Any]:
    """A coroutine, what it awaits, what that awaits, and so on to what does not tell."""
    while awaited is not None:
        yield awaited
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(one: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(one, name, None)) is not None), None)
