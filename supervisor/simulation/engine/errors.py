"""How a simulated run can fail as a run, whatever the program in it does.

Each message says at what virtual time, and which task waits where: it is all that somebody has who was not there.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Deadlock", "EngineError", "HorizonReached", "Livelock", "SimulationEscape"]

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
