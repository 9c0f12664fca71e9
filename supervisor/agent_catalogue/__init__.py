"""Knowledge of agents: the catalogue, its mappings of lines, and its quirks. All of it is data.

Nothing here starts a program or looks at this machine.
"""

from supervisor.agent_catalogue.catalogue import (
    AgentVariant,
    KnownAgent,
    PermissionStart,
    UnknownAgent,
    catalogue,
    known_agent,
)
from supervisor.agent_catalogue.data import BadData, read_data
from supervisor.agent_catalogue.line_rules import LineMapping
from supervisor.agent_catalogue.quirks import NO_QUIRKS, Quirks

__all__ = [
    "NO_QUIRKS",
    "AgentVariant",
    "BadData",
    "KnownAgent",
    "LineMapping",
    "PermissionStart",
    "Quirks",
    "UnknownAgent",
    "catalogue",
    "known_agent",
    "read_data",
]
