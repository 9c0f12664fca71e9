"""A whole supervisor of the drill's own, with puppets for agents; its journal, its heirs, its lifecycles."""

from __future__ import annotations

from supervisor.simulation.drills.whole.afterlives import AFTERLIVES
from supervisor.simulation.drills.whole.bounding import BOUNDING
from supervisor.simulation.drills.whole.commanding import COMMANDING
from supervisor.simulation.drills.whole.doors import DOORS
from supervisor.simulation.drills.whole.grove import GROVE
from supervisor.simulation.drills.whole.heirs import HEIRS
from supervisor.simulation.drills.whole.hosting import HOSTING
from supervisor.simulation.drills.whole.leaving import LEAVING
from supervisor.simulation.drills.whole.living import LIVING
from supervisor.simulation.drills.whole.pasts import PASTS
from supervisor.simulation.drills.whole.recording import RECORDING
from supervisor.simulation.drills.whole.resuming import RESUMING
from supervisor.simulation.drills.whole.stepping import STEPPING
from supervisor.simulation.drills.whole.verifying import VERIFYING

__all__ = ["WHOLE"]

WHOLE = (
    *RECORDING,
    *GROVE,
    *HOSTING,
    *HEIRS,
    *VERIFYING,
    *PASTS,
    *STEPPING,
    *COMMANDING,
    *LIVING,
    *BOUNDING,
    *AFTERLIVES,
    *DOORS,
    *RESUMING,
    *LEAVING,
)
