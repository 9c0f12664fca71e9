"""Data about agents: the catalogue, the meaning of their output lines, and their quirks.

This package starts no program and does not read the state of this machine.
"""

from supervisor.agent_catalogue.catalogue import (
    KNOWN_SERVERS,
    AgentVariant,
    KnownAgent,
    PermissionStart,
    UnknownAgent,
    agent_called,
    agent_programs,
    catalogue,
    known_agent,
)
from supervisor.agent_catalogue.data import BadData, read_data
from supervisor.agent_catalogue.line_rules import LineMapping, is_one_shot
from supervisor.agent_catalogue.quirks import NO_QUIRKS, Quirks

__all__ = [
    "KNOWN_SERVERS",
    "NO_QUIRKS",
    "AgentVariant",
    "BadData",
    "KnownAgent",
    "LineMapping",
    "PermissionStart",
    "Quirks",
    "UnknownAgent",
    "agent_called",
    "agent_programs",
    "catalogue",
    "is_one_shot",
    "known_agent",
    "read_data",
]
