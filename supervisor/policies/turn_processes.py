"""Decide which processes below an agent are those of its turn, and have to end before the work is judged.

A process of the turn was born since the agent was given its first prompt, lives, and is neither the agent nor a server
that the agent keeps from turn to turn. A server is marked in its environment (the MCP servers of the plan are), or its
program has one of the names that the plan gives: as the command line says, where the second word is the script of an
interpreter. What a server has started is the server's.

Processes that were there before the first prompt, not before this turn, are the agent's own: else a daemon that a
failed attempt has left would pass for the agent's own in the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from supervisor.policies.call_processes import ProcessSeen

__all__ = ["processes_of_turn"]


def processes_of_turn(
    seen: Iterable[ProcessSeen], agent_pid: int, since: int, servers: Collection[str] = ()
) -> tuple[ProcessSeen, ...]:
    """Return the processes of a turn, parents before their children.

    Args:
        seen: the agent and its descendants, parents before their children.
        agent_pid: the main process of the agent.
        since: the tick in which the agent was given its first prompt.
        servers: names of programs that are servers of the agent.
    """
    found: list[ProcessSeen] = []
    kept: set[int] = set()
    for one in seen:
        if one.parent in kept or one.server or _is_named(one, servers):
            kept.add(one.pid)
        elif one.pid != agent_pid and one.alive and one.born >= since:
            found.append(one)
    return tuple(found)


def _is_named(one: ProcessSeen, servers: Collection[str]) -> bool:
    return any(word.rpartition("/")[2] in servers for word in one.command.split(" ")[:2])
