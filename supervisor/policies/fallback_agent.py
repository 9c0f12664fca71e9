"""Choose the agent of the next attempt: the task's own agent, then its fallbacks in order, then always the last one."""

from __future__ import annotations

from collections.abc import Sequence


def next_agent(agent: str, fallback_agents: Sequence[str], failures: int) -> str:
    """Return the name of the agent for the attempt after that many *failures* of the task."""
    agents = (agent, *fallback_agents)
    return agents[min(failures, len(agents) - 1)]
