"""What is known of agents: the catalogue, its mappings of lines, and its quirks. All of it is data.

Nothing here starts a program or looks at this machine.
"""

from supervisor.agents.catalogue import Asking, Install, Known, UnknownAgent, Way, catalogue, known
from supervisor.agents.data import BadData, read_data
from supervisor.agents.mapping import Mapping
from supervisor.agents.quirks import NO_QUIRKS, Quirks

__all__ = [
    "NO_QUIRKS",
    "Asking",
    "BadData",
    "Install",
    "Known",
    "Mapping",
    "Quirks",
    "UnknownAgent",
    "Way",
    "catalogue",
    "known",
    "read_data",
]
