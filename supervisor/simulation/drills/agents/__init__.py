"""What agents say and are told, word by word, and what functions are promised."""

from __future__ import annotations

from supervisor.simulation.drills.agents.acting import ACTING
from supervisor.simulation.drills.agents.believing import BELIEVING
from supervisor.simulation.drills.agents.conversing import CONVERSING
from supervisor.simulation.drills.agents.desks import DESKS
from supervisor.simulation.drills.agents.edging import EDGING
from supervisor.simulation.drills.agents.lasting import LASTING
from supervisor.simulation.drills.agents.limits import LIMITS
from supervisor.simulation.drills.agents.opening import OPENING
from supervisor.simulation.drills.agents.settling import SETTLING
from supervisor.simulation.drills.agents.silent import SILENT
from supervisor.simulation.drills.agents.spenders import SPENDERS

__all__ = ["AGENTS"]

AGENTS = (
    *SPENDERS,
    *SILENT,
    *BELIEVING,
    *ACTING,
    *CONVERSING,
    *OPENING,
    *DESKS,
    *SETTLING,
    *LASTING,
    *LIMITS,
    *EDGING,
)
