"""Errors of a simulated run itself, whatever the program in it does.

Each message gives the virtual time and the place where each task waits: nobody was there to see. After a failure the
remaining tasks are cancelled and given steps to unwind. What goes on even so is never freed: freeing a coroutine closes
it, and one that swallows every error would then run without end, in a later run or at the interpreter's exit.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

UNWIND_ROUNDS = 5
"""Rounds of cancellation for the tasks that remain."""
UNWIND_STEPS = 5_000
"""Steps that each round gives them."""

LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("asyncio", "anyio", "trio"))
"""Directories of the libraries through which a task waits; the code that waits is above them."""
NAMED_MAX = 20
"""Tasks named in a message; more are counted."""


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
    """The program reached out of the simulation: a clock, a random number, a thread, a socket, a process, a file."""


def _listed(waiting: Sequence[str]) -> str:
    lines = [f"\n  {one}" for one in waiting[:NAMED_MAX]]
    more = len(waiting) - NAMED_MAX
    return "".join([":", *lines, f"\n  and {more} more" if more > 0 else ""]) if lines else ""


def never_free(one: object) -> None:
    """Never free *one*, nor what it refers to."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


# ------------------------------------------------------------------------------------------------ where a task waits
def waiting_place(coroutine: Any) -> str:
    """Place where *coroutine* waits, as ``function (file.py:12)``; a line of a library if there is no other."""
    frames = [frame for one in _awaiting(coroutine) if (frame := _first(one, "cr_frame", "gi_frame", "ag_frame"))]
    own = [one for one in frames if not any(name in one.f_code.co_filename for name in LIBRARIES)]
    innermost = (own or frames)[-1:]
    return code_place(innermost[0].f_code, innermost[0].f_lineno) if innermost else "nowhere any more"


def code_place(code: CodeType, line: int | None) -> str:
    """A line of code, without the directories above its file."""
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"


def _awaiting(awaited: Any) -> Iterator[Any]:
    """The coroutine, what it awaits, what that awaits, and so on."""
    while awaited is not None:
        yield awaited
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(one: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(one, name, None)) is not None), None)
