"""Errors of a simulated run itself, as opposed to errors of the program in the run.

Each message gives the virtual time and the place where each task waits, since nobody watched the run. After a failure
the remaining tasks are cancelled, and some steps are run so that they unwind. A task that goes on even so is never
freed: freeing a coroutine closes the coroutine, and a coroutine that swallows every error would then run without end,
in a later run or at the interpreter's exit.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

UNWIND_ROUNDS = 5
"""Number of rounds in which the remaining tasks of a failed run are cancelled."""
UNWIND_STEPS = 5_000
"""Number of steps of each round, in which the remaining tasks may unwind."""

LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("asyncio", "anyio", "trio"))
"""Directories of the libraries in which a task waits; the code that waits is the caller of these libraries."""
NAMED_MAX = 20
"""Number of tasks that are named in a message; further tasks are only counted."""


class EngineError(Exception):
    """Base class of errors: a simulated run did not reach its end."""


class _Stuck(EngineError):
    """Base class of errors: virtual time stopped at *at_s* seconds, with the tasks in *waiting* unfinished."""

    what = "the run is stuck"

    def __init__(self, at_s: float, waiting: Sequence[str]) -> None:
        self.at_s, self.waiting = at_s, tuple(waiting)
        super().__init__(f"at {at_s:g} s: {self.what}{_listed(self.waiting)}")


class Deadlock(_Stuck):
    """Error: no task can run, no timer is set, and the program has not ended."""

    what = "nothing can ever happen any more"


class Livelock(_Stuck):
    """Error: too many steps at one moment of virtual time (``livelock_steps``)."""

    what = "steps are taken and time stands still"


class HorizonReached(_Stuck):
    """Error: the limit of the run's virtual time (``horizon_s``) is reached."""

    what = "the horizon is reached"


class SimulationEscape(EngineError):
    """Error: the program used the real world: a clock, a random number, a thread, a socket, a process, or a file."""


def _listed(waiting: Sequence[str]) -> str:
    lines = [f"\n  {one}" for one in waiting[:NAMED_MAX]]
    more = len(waiting) - NAMED_MAX
    return "".join([":", *lines, f"\n  and {more} more" if more > 0 else ""]) if lines else ""


def never_free(one: object) -> None:
    """Make sure that *one*, and every object to which *one* refers, is never freed."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


# ------------------------------------------------------------------------------------------------ where a task waits
def waiting_place(coroutine: Any) -> str:
    """Return the place where *coroutine* waits, as ``function (file.py:12)``; a line of a library only if no other code
    waits."""
    frames = [frame for one in _awaiting(coroutine) if (frame := _first(one, "cr_frame", "gi_frame", "ag_frame"))]
    own = [one for one in frames if not any(name in one.f_code.co_filename for name in LIBRARIES)]
    innermost = (own or frames)[-1:]
    return code_place(innermost[0].f_code, innermost[0].f_lineno) if innermost else "nowhere any more"


def code_place(code: CodeType, line: int | None) -> str:
    """Return the name of a line of code, without the directories above the file."""
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"


def _awaiting(awaited: Any) -> Iterator[Any]:
    """Yield the awaitable, then the awaitable for which this one waits, and so on to the innermost."""
    while awaited is not None:
        yield awaited
        awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")


def _first(one: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(one, name, None)) is not None), None)
