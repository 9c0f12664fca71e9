"""Drills: what the actor kernel promises (docs/kernel.md) and a supervisor uses seldom, tried once in every run.

So is what the pure rooms decide, drawn more densely than sessions have it, against a second account of their rules.

They run when the faults have stopped, in the run's own time and order of steps, each in an actor system of its own.
Every instant, order and count is known beforehand, so every difference is a breach. Numbers are drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from actors import open_system
from supervisor.simulation.chance import Chance
from supervisor.simulation.drills.acting import ACTING
from supervisor.simulation.drills.asking import ASKING
from supervisor.simulation.drills.believing import BELIEVING
from supervisor.simulation.drills.bounds import BOUNDS
from supervisor.simulation.drills.boxes import BOXES
from supervisor.simulation.drills.circuits import CIRCUITS
from supervisor.simulation.drills.claiming import CLAIMING
from supervisor.simulation.drills.commanding import COMMANDING
from supervisor.simulation.drills.conversing import CONVERSING
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.desks import DESKS
from supervisor.simulation.drills.ending import ENDING
from supervisor.simulation.drills.failing import FAILING
from supervisor.simulation.drills.figures import FIGURES
from supervisor.simulation.drills.grove import GROVE
from supervisor.simulation.drills.heirs import HEIRS
from supervisor.simulation.drills.homes import HOMES
from supervisor.simulation.drills.hosting import HOSTING
from supervisor.simulation.drills.judging import JUDGING
from supervisor.simulation.drills.lending import LENDING
from supervisor.simulation.drills.living import LIVING
from supervisor.simulation.drills.looking import LOOKING
from supervisor.simulation.drills.manners import MANNERS
from supervisor.simulation.drills.opening import OPENING
from supervisor.simulation.drills.options import OPTIONS
from supervisor.simulation.drills.pasts import PASTS
from supervisor.simulation.drills.patience import PATIENCE
from supervisor.simulation.drills.planning import PLANNING
from supervisor.simulation.drills.reading import READING
from supervisor.simulation.drills.recording import RECORDING
from supervisor.simulation.drills.returning import RETURNING
from supervisor.simulation.drills.rooms import ROOMS
from supervisor.simulation.drills.spenders import SPENDERS
from supervisor.simulation.drills.spending import SPENDING
from supervisor.simulation.drills.stepping import STEPPING
from supervisor.simulation.drills.stocking import STOCKING
from supervisor.simulation.drills.supervising import SUPERVISING
from supervisor.simulation.drills.verifying import VERIFYING
from supervisor.simulation.drills.waiting import WAITING
from supervisor.simulation.drills.watching import WATCHING
from supervisor.simulation.drills.wording import WORDING

__all__ = ["drill"]

DRILLS = (
    *BOUNDS,
    *BOXES,
    *ASKING,
    *ENDING,
    *LOOKING,
    *OPTIONS,
    *SUPERVISING,
    *WATCHING,
    *CIRCUITS,
    *FIGURES,
    *JUDGING,
    *PLANNING,
    *CLAIMING,
    *SPENDING,
    *READING,
    *PATIENCE,
    *WAITING,
    *HOMES,
    *MANNERS,
    *RETURNING,
    *ROOMS,
    *RECORDING,
    *GROVE,
    *BELIEVING,
    *ACTING,
    *HOSTING,
    *HEIRS,
    *VERIFYING,
    *PASTS,
    *SPENDERS,
    *STEPPING,
    *CONVERSING,
    *OPENING,
    *WORDING,
    *DESKS,
    *STOCKING,
    *FAILING,
    *COMMANDING,
    *LIVING,
    *LENDING,
)
LONG_S = 600.0
"""No drill takes that long, unless something in it is never over."""


async def drill(say: Callable[[str, str, str], None], chance: Chance, now: Callable[[], float], grain_s: float) -> None:
    """Run all of them, one after the other.

    Args:
        say: reports a law that was broken: its name, whose, and the words.
        now: the run's clock, in seconds.
        grain_s: to multiples of which the run rounds its timers up.
    """
    for one in DRILLS:
        name = one.__name__
        with anyio.move_on_after(LONG_S) as limit:
            async with open_system(seed=chance.integer(0, 2**32, name)) as system:
                await one(Desk(say, name, system, chance.below(name), now, grain_s))
        if limit.cancelled_caught:
            say("kernel", name, f"is not over after {LONG_S:g} s")
