"""What the actor kernel promises (docs/kernel.md): mailboxes, asks, timers, ends, restarts, breakers."""

from __future__ import annotations

from supervisor.simulation.drills.kernel.asking import ASKING
from supervisor.simulation.drills.kernel.bounds import BOUNDS
from supervisor.simulation.drills.kernel.boxes import BOXES
from supervisor.simulation.drills.kernel.circuits import CIRCUITS
from supervisor.simulation.drills.kernel.ending import ENDING
from supervisor.simulation.drills.kernel.homes import HOMES
from supervisor.simulation.drills.kernel.later import LATER
from supervisor.simulation.drills.kernel.looking import LOOKING
from supervisor.simulation.drills.kernel.manners import MANNERS
from supervisor.simulation.drills.kernel.meeting import MEETING
from supervisor.simulation.drills.kernel.options import OPTIONS
from supervisor.simulation.drills.kernel.returning import RETURNING
from supervisor.simulation.drills.kernel.spans import SPANS
from supervisor.simulation.drills.kernel.supervising import SUPERVISING
from supervisor.simulation.drills.kernel.turns import TURNS
from supervisor.simulation.drills.kernel.waiting import WAITING
from supervisor.simulation.drills.kernel.watching import WATCHING

__all__ = ["KERNEL"]

KERNEL = (
    *BOUNDS,
    *BOXES,
    *ASKING,
    *ENDING,
    *LOOKING,
    *OPTIONS,
    *SUPERVISING,
    *WATCHING,
    *CIRCUITS,
    *WAITING,
    *HOMES,
    *MANNERS,
    *LATER,
    *TURNS,
    *SPANS,
    *RETURNING,
    *MEETING,
)
