"""Drills: what the actor kernel promises (docs/kernel.md) and a supervisor uses seldom, tried once in every run.

So is what the pure rooms decide, drawn more densely than sessions have it, against a second account of their rules.

They run when the faults have stopped, in the run's own time and order of steps, each in an actor system of its own.
Every instant, order and count is known beforehand, so every difference is a breach. Numbers are drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import anyio

from actors import open_system
from supervisor.simulation.drills.agents import AGENTS
from supervisor.simulation.drills.agents.functions import SCENES
from supervisor.simulation.drills.desk import Desk, Drill
from supervisor.simulation.drills.kernel import KERNEL
from supervisor.simulation.drills.rules import RULES
from supervisor.simulation.drills.whole import WHOLE
from supervisor.simulation.drills.work import OFFICES
from supervisor.simulation.keyed_random import Chance

__all__ = ["NAMES", "OFFICES", "OFFICE_S", "drill"]

DRILLS = (*KERNEL, *RULES, *AGENTS, *WHOLE)
LONG_S = 2000.0
OFFICE_S = 20_000.0
"""What one of :data:`OFFICES` takes at most."""
NAMES = frozenset(one.__name__ for one in (*DRILLS, *OFFICES, *SCENES))
"""What drills are called, in scenarios and by who is told what they found; two of different rooms may share a name."""


async def drill(
    say: Callable[[str, str, str], None],
    chance: Chance,
    now: Callable[[], float],
    grain_s: float,
    only: Collection[str] | None = None,
    drills: Sequence[Drill] = DRILLS,
    long_s: float = LONG_S,
) -> None:
    """Run these *drills*, one after the other.

    Args:
        say: reports a law that was broken: its name, whose, and the words.
        now: the run's clock, in seconds.
        grain_s: to multiples of which the run rounds its timers up.
        only: the names of those that are run; all, unless told.
        long_s: none of them takes that long, unless something in it is never over.
    """
    for one in drills:
        name = one.__name__
        if only is not None and name not in only:
            continue
        with anyio.move_on_after(long_s) as limit:
            async with open_system(seed=chance.integer(0, 2**32, name)) as system:
                await one(Desk(say, name, system, chance.below(name), now, grain_s))
        if limit.cancelled_caught:
            say("kernel", name, f"is not over after {long_s:g} s")
