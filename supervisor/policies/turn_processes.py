"""Decide which processes below an agent are those of its turn, and have to end before the work is judged.

A process of the turn was born since the agent was given its first prompt, lives, and is neither the agent nor a server
that the agent keeps from turn to turn, nor what such a server has started.

Processes that were there before the first prompt, not before this turn, are the agent's own: else a daemon that a
failed attempt has left would pass for the agent's own in the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from supervisor.policies.call_processes import ProcessSeen, servers_in

__all__ = ["processes_of_turn"]


def processes_of_turn(
    seen: Sequence[ProcessSeen], agent_pid: int, since: int, servers: Collection[str] = ()
) -> tuple[ProcessSeen, ...]:
    """Return the processes of a turn that still run, parents before their children.

    Args:
        seen: the agent and its descendants, parents before their children.
        agent_pid: the main process of the agent.
        since: the tick in which the agent was given its first prompt.
        servers: names of programs that are servers of the agent.
    """
    kept = servers_in(seen, agent_pid, servers)
    return tuple(one for one in seen if one.pid not in {agent_pid, *kept} and one.alive and one.born >= since)
