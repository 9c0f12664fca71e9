"""Setup of sessions: the agents by name, the settings, and the working directory.

A supervisor has one setup. A run of a plan that was submitted to a daemon has a setup of its own, by the id of the run:
the agents and limits of its plan, and the directory of its submitter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from supervisor.lifecycles.run_ids import run_of
from supervisor.plans import Settings
from supervisor.ports.agent_profile import AgentProfile


class Setup(NamedTuple):
    """Agents by name, settings and working directory of sessions that start from now on."""

    agents: Mapping[str, AgentProfile]
    settings: Settings
    workdir: str


class Setups:
    """The setup of a supervisor (``common``), and the setups of runs that have one of their own (``of_runs``)."""

    def __init__(self, common: Setup) -> None:
        self.common = common
        self.of_runs: dict[str, Setup] = {}

    def of(self, entity_id: str) -> Setup:
        """Return the setup of a run, or of a task, given its id; the common one if the run has none of its own, or for
        ``""``."""
        return self.of_runs.get(run_of(entity_id), self.common)
