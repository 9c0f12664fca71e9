"""What the pure rooms decide, drawn more densely than sessions have it, against a second account of their rules."""

from __future__ import annotations

from supervisor.simulation.drills.rules.claiming import CLAIMING
from supervisor.simulation.drills.rules.failing import FAILING
from supervisor.simulation.drills.rules.figures import FIGURES
from supervisor.simulation.drills.rules.judging import JUDGING
from supervisor.simulation.drills.rules.lending import LENDING
from supervisor.simulation.drills.rules.patience import PATIENCE
from supervisor.simulation.drills.rules.planning import PLANNING
from supervisor.simulation.drills.rules.reading import READING
from supervisor.simulation.drills.rules.rooms import ROOMS
from supervisor.simulation.drills.rules.spending import SPENDING
from supervisor.simulation.drills.rules.stocking import STOCKING
from supervisor.simulation.drills.rules.wording import WORDING

__all__ = ["RULES"]

RULES = (
    *FIGURES,
    *JUDGING,
    *PLANNING,
    *CLAIMING,
    *SPENDING,
    *READING,
    *PATIENCE,
    *ROOMS,
    *WORDING,
    *STOCKING,
    *FAILING,
    *LENDING,
)
