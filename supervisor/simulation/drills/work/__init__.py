"""Plans at work in a house of the drill's own: what becomes of each task, when, and on whose word."""

from __future__ import annotations

from supervisor.simulation.drills.work.after import AFTER
from supervisor.simulation.drills.work.again import AGAIN
from supervisor.simulation.drills.work.befallen import BEFALLEN
from supervisor.simulation.drills.work.chains import CHAINS
from supervisor.simulation.drills.work.commanded import COMMANDED
from supervisor.simulation.drills.work.cut import CUT
from supervisor.simulation.drills.work.gone import GONE
from supervisor.simulation.drills.work.killed import KILLED
from supervisor.simulation.drills.work.ordering import ORDERING
from supervisor.simulation.drills.work.parents import PARENTS
from supervisor.simulation.drills.work.trying import TRYING
from supervisor.simulation.drills.work.waiting import WAITING
from supervisor.simulation.drills.work.words import WORDS

__all__ = ["OFFICES"]

OFFICES = (
    *(*TRYING, *COMMANDED, *BEFALLEN, *KILLED, *ORDERING, *WORDS, *AFTER),
    *(*WAITING, *CHAINS, *CUT, *PARENTS, *GONE, *AGAIN),
)
