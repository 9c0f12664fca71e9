"""Who tries next: the task's own agent first, then its fallbacks in their order, and the last of them from then on."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["next_agent"]


def next_agent(agent: str, fallback_agents: Sequence[str], failures: int) -> str:
    """The name of the agent for the attempt after that many failures that were charged to the task."""
    ladder = (agent, *fallback_agents)
    return ladder[min(failures, len(ladder) - 1)]
