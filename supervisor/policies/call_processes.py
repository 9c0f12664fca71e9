"""Decide which processes below an agent belong to the tool calls that are being ended, and which to the turn.

An agent that runs its tools by itself never says which processes are its tools. Two facts can be seen from outside:
when a process was born, and in which session it lives (``setsid(2)``). This module turns them into three answers:

==============  ============================================================  =====================================
answer          process                                                       treatment
==============  ============================================================  =====================================
belongs         born while only the calls that are being ended were open,     killed
                in another session than the agent's
may belong      born in that time, but the session, an ancestor, another      named in the receipt, as ``unknown``;
                call or the order of events leaves a doubt                    left alone
does not        dead, or born before                                          left alone
==============  ============================================================  =====================================

**Time.** A process of a call is born after the last moment at which the agent was known to have no open call, not after
the moment at which we read that the call began: a tool may start before that line is read. ``since`` is that moment.
Where one piece of output closes a call and opens the next one, no such moment lies between the two: ``since`` is then
the begin of the time in which that piece was written, ``clear`` its end, and a process born in between may be of either
call. Linux gives births in ticks (10 ms), so both bounds are rounded down, and a process born in the tick of ``since``
belongs.

**Session.** Nine of nine agents that were measured run their tools in sessions of their own. What an agent starts in
its own session during a call may be a tool, but also a server (MCP, language server) that is started when it is first
needed, and that later calls use. Killing that would break the agent, so such a process is named and not killed. One
that was started before the call was born before ``since``, and is never touched.

**Ancestors.** What a server with a session of its own starts (a browser, a worker) is no more certain than the server
itself: below a process that may belong, or that was there before in a session of its own, a process may belong at most.

**Life.** A process whose main thread has exited is shown in state Z although its other threads work on: it is alive
for as long as it has more than one thread.

Example: the agent 100 was given its prompt in tick 500, and has one call open::

    seen = [ProcessSeen(100, 1, 100, 400, "S", 9),    # the agent
            ProcessSeen(101, 100, 100, 410, "S", 9),  # its MCP server: does not belong
            ProcessSeen(102, 100, 102, 500, "Z", 2),  # its tool: belongs
            ProcessSeen(103, 100, 100, 510, "S", 1)]  # a child in its own session: may belong
    processes_of_calls(seen, 100, CallSpan(since=500, clear=500))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec


class ProcessSeen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process at one moment, as ``/proc/PID/stat`` describes it.

    ``born`` is in ticks since the boot of the machine; ``state`` a letter; ``threads`` counts a main thread that has
    exited as long as the process is not reaped. ``command_hex`` is the begin of the command line, which may hold any
    bytes; ``server`` is true of a process that has the variable ``SERVER_VARIABLE`` (``supervisor.ports``) in its
    environment.
    """

    pid: int
    parent: int
    session: int
    born: int
    state: str
    threads: int
    command_hex: str = ""
    server: bool = False

    @property
    def command(self) -> str:
        """The command line, its words separated by blanks."""
        return bytes.fromhex(self.command_hex).decode(errors="replace")

    @property
    def alive(self) -> bool:
        return self.state not in "ZX" or self.threads > 1


class CallSpan(NamedTuple):
    """The time in which the open calls of an agent start processes, in ticks.

    ``alone`` is false if other calls, which are not being ended, were open in that time too.
    """

    since: int
    clear: int
    alone: bool = True


class CallProcesses(NamedTuple):
    """Processes that still run of the calls that are being ended, parents before their children."""

    belong: tuple[ProcessSeen, ...] = ()
    may_belong: tuple[ProcessSeen, ...] = ()


def servers_in(seen: Iterable[ProcessSeen], agent_pid: int, names: Collection[str] = ()) -> frozenset[int]:
    """Return the pids of the servers that an agent keeps from turn to turn, and of the descendants of these servers.

    A server is marked in its environment (the MCP servers of the plan are), or its program has one of *names*: the
    first word of the command line, or the second (the script of an interpreter). *seen*: parents before their children.
    """
    kept: set[int] = set()
    for one in seen:
        programs = {word.rpartition("/")[2] for word in one.command.split(" ")[:2]}
        if one.pid != agent_pid and (one.parent in kept or one.server or not programs.isdisjoint(names)):
            kept.add(one.pid)
    return frozenset(kept)


def processes_of_calls(
    seen: Sequence[ProcessSeen], agent_pid: int, span: CallSpan, servers: Collection[str] = ()
) -> CallProcesses:
    """Divide the processes below an agent into those that belong to the ended calls and those that may; servers belong
    to no call.

    Args:
        seen: the agent and its descendants, parents before their children.
        agent_pid: the main process of the agent.
        span: the time in which the processes of the calls were born.
        servers: names of programs that are servers of the agent.
    """
    kept = servers_in(seen, agent_pid, servers)
    belong: list[ProcessSeen] = []
    may_belong: list[ProcessSeen] = []
    doubted: set[int] = set()
    """Processes whose children may belong at most."""
    for one in seen:
        if one.pid == agent_pid or one.pid in kept:
            continue
        born_before = one.born < span.since
        in_doubt = (
            not span.alone or one.session == agent_pid or one.parent in doubted or span.since != span.clear >= one.born
        )
        # A wrapper that starts the agent is below the main process, in its session, and was born before: no doubt.
        if (born_before and one.session != agent_pid) or (in_doubt and not born_before):
            doubted.add(one.pid)
        if one.alive and not born_before:
            (may_belong if in_doubt else belong).append(one)
    return CallProcesses(tuple(belong), tuple(may_belong))


def processes_of_turn(
    seen: Sequence[ProcessSeen], agent_pid: int, since: int, servers: Collection[str] = ()
) -> tuple[ProcessSeen, ...]:
    """Return the processes of a turn that still run, parents before their children; they have to end before the work is
    judged.

    A process of the turn was born since the agent was given its first prompt, lives, and is neither the agent, nor a
    server that the agent keeps from turn to turn, nor a descendant of such a server. Processes from before the first
    prompt, not from before this turn, are the agent's own: otherwise a daemon that a failed attempt has left would
    count as the agent's own in the next one.

    Args:
        seen: the agent and its descendants, parents before their children.
        agent_pid: the main process of the agent.
        since: the tick in which the agent was given its first prompt.
        servers: names of programs that are servers of the agent.
    """
    kept = servers_in(seen, agent_pid, servers)
    return tuple(one for one in seen if one.pid not in {agent_pid, *kept} and one.alive and one.born >= since)
