"""Knowledge of agents: the catalogue, its mappings of lines, and its quirks. All of it is data.

Nothing here starts a program or looks at this machine.
"""

from supervisor.agent_catalogue.catalogue import Asking, Known, UnknownAgent, Way, catalogue, known
from supervisor.agent_catalogue.data import BadData, read_data
from supervisor.agent_catalogue.line_rules import Mapping
from supervisor.agent_catalogue.quirks import NO_QUIRKS, Quirks

__all__ = [
    "NO_QUIRKS",
    "Asking",
    "BadData",
    "Known",
    "Mapping",
    "Quirks",
    "UnknownAgent",
    "Way",
    "catalogue",
    "known",
    "read_data",
]
