"""Decide which processes below an agent belong to the tool calls that are being ended, and which to the turn.

An agent that runs its tools by itself never says which processes are its tools. Two facts can be seen from outside:
when a process was born, and in which session it lives (``setsid(2)``). This module turns them into three answers:

==============  ============================================================  =====================================
answer          process                                                       treatment
==============  ============================================================  =====================================
belongs         born while only the calls that are being ended were open,     killed
                in another session than the agent's
may belong      born in that time, but the session, an ancestor, another      named in the receipt, as ``unknown``;
                call or the order of events leaves a doubt; or born before,   left alone
                and able to do the work of the call
does not        dead; the agent itself; a server of the agent; another        left alone
                process that was born before
==============  ============================================================  =====================================

A process that the kernel is ending (``exiting``) runs no code any more: it is waited for, and is never a survivor.

**Time.** A process of a call is born after the last moment at which the agent was known to have no open call, not after
the moment at which we read that the call began: a tool may start before that line is read. ``since`` is that moment.
Where one piece of output closes a call and opens the next one, no such moment lies between the two: ``since`` is then
the begin of the time in which that piece was written, ``clear`` its end, and a process born in between may be of either
call. Linux gives births in ticks (10 ms), so both bounds are rounded down, and a process born in the tick of ``since``
belongs.

**Session.** Nine of nine agents that were measured run their tools in sessions of their own. What an agent starts in
its own session during a call may be a tool, but also a server (MCP, language server) that is started when it is first
needed, and that later calls use. Killing that would break the agent, so such a process is named and not killed.

**Older processes.** Agents also hand the work of a call to a process that was there before: a worker of a pool, a shell
that is kept for all commands, a terminal multiplexer that an earlier command has started. Such a process is never
killed, since later calls need it. If no process was found that belongs to the calls, their work is done somewhere else,
and every older process may do it. If one was found, that is the ordinary tool; then only the older processes above a
process of the calls may do the rest of the work, and multiplexers, whose clients end at once. Two kinds of older
processes never count:

* *the agent itself*, whose report counts: the main process, and the processes in which it really runs. Agents are often
  started by a launcher (``npx``, ``sh -c``), which has the agent as its only child, or start a second program of
  theirs (the npm package of Codex starts the binary ``codex``, an ACP bridge starts ``claude``). A child with the same
  command line as its parent was forked from it and is a worker, whatever the name says.
* *servers*, which the environment marks, or whose programs the plan (``agents.*.servers``) or the catalogue names. A
  tool can have the name of a language server (``gopls check x.go``): a process that only the catalogue names, and that
  was born during the calls in another session than the agent's, may belong to them.

**Ancestors.** What a server with a session of its own starts (a browser, a worker) is no more certain than the server
itself: below a process that may belong, or that was there before in a session of its own, a process may belong at most.

**Life.** A process whose main thread has exited is shown in state Z although its other threads work on: it is alive
for as long as it has more than one thread.

Example: the agent 100 was given its prompt in tick 500, and has one call open::

    seen = [ProcessSeen(100, 1, 100, 400, "S", 9),    # the agent
            ProcessSeen(101, 100, 100, 410, "S", 9),  # a worker that it keeps: may belong
            ProcessSeen(102, 100, 102, 500, "Z", 2),  # its tool: belongs
            ProcessSeen(103, 100, 100, 510, "S", 1)]  # a child in its own session: may belong
    processes_of_calls(seen, CallSpan(since=500, clear=500), AgentPrograms(100))
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Final, NamedTuple

import msgspec

LAUNCHERS: Final = frozenset(
    {
        "bash",
        "bunx",
        "dash",
        "env",
        "nice",
        "npm",
        "npx",
        "pipx",
        "pnpm",
        "setsid",
        "sh",
        "timeout",
        "uv",
        "uvx",
        "yarn",
    }
)
"""Programs that start another program, which is the agent, and only wait for its end."""
MULTIPLEXERS: Final = frozenset({"dtach", "screen", "tmux", "zellij"})
"""Programs that run commands for clients which end at once."""
INTERPRETERS: Final = re.compile(
    r"(python|node|nodejs|bun|deno|ruby|java|perl|php)[\d.]*|bash|sh|dash|npx|bunx|uvx|pipx"
)
"""Programs that run the script, or start the program, which the first word that is no option names."""
SCRIPT_ENDINGS: Final = (".js", ".cjs", ".mjs", ".py")


class ProcessSeen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process at one moment, as ``/proc/PID/stat`` describes it.

    ``born`` is in ticks since the boot of the machine; ``state`` a letter; ``threads`` counts a main thread that has
    exited as long as the process is not reaped. ``command_hex`` is the begin of the command line, which may hold any
    bytes; ``server`` is true of a process that has the variable ``SERVER_VARIABLE`` (``supervisor.ports``) in its
    environment; ``exiting`` of a process that the kernel is ending: none of its threads runs its program any more.
    """

    pid: int
    parent: int
    session: int
    born: int
    state: str
    threads: int
    command_hex: str = ""
    server: bool = False
    exiting: bool = False

    @property
    def command(self) -> str:
        """The command line, its words separated by blanks."""
        return bytes.fromhex(self.command_hex).decode(errors="replace")

    @property
    def programs(self) -> frozenset[str]:
        """Names of the program: the first word of the command line, and, if that is an interpreter, its script, which
        is the next word that is no option; both without directory, and without the ending of a script."""
        first, *others = self.command.split(" ")
        names = {name := first.rpartition("/")[2]}
        if INTERPRETERS.fullmatch(name):
            names.add(next((word for word in others if not word.startswith("-")), "").rpartition("/")[2])
        return frozenset(names | {name.removesuffix(end) for name in names for end in SCRIPT_ENDINGS})

    @property
    def alive(self) -> bool:
        return self.state not in "ZX" or self.threads > 1


class CallSpan(NamedTuple):
    """The time in which the open calls of an agent start processes, in ticks.

    ``alone`` is false if other calls, which are not being ended, were open in that time too; ``had_own`` is true if a
    process that belongs to the calls was found, and killed, before.
    """

    since: int
    clear: int
    alone: bool = True
    had_own: bool = False


class AgentPrograms(NamedTuple):
    """Main process of an agent, and the names of programs below it that do not work on single calls: the *servers* that
    the agent keeps from turn to turn, by the plan; *own* programs, in which known agents themselves run; and
    *known_servers*, the servers of the catalogue, whose programs may also be run as tools."""

    pid: int
    servers: Collection[str] = ()
    own: Collection[str] = ()
    known_servers: Collection[str] = ()


class CallProcesses(NamedTuple):
    """Processes that are left of the calls that are being ended, parents before their children. ``exiting`` are those
    that would belong, or may belong, and that the kernel is ending; ``above`` are those of ``may_belong`` that were
    born before and have started a process of the calls."""

    belong: tuple[ProcessSeen, ...] = ()
    may_belong: tuple[ProcessSeen, ...] = ()
    exiting: tuple[ProcessSeen, ...] = ()
    above: tuple[ProcessSeen, ...] = ()


class LiveProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a session that is alive, or being ended by the kernel.

    ``role`` is ``agent`` (the agent itself), ``server`` (kept by the agent from turn to turn), ``call`` (belongs to one
    of ``calls``), ``maybe`` (may belong to one of them) or ``other`` (was there before). ``calls`` are the ids of the
    open calls, where the role is ``call`` or ``maybe``; several, if nothing tells which of them has started it.
    ``command`` is the begin of the command line."""

    pid: int
    parent: int
    agent: str
    role: str
    calls: tuple[str, ...] = ()
    command: str = ""
    age_s: float = 0.0
    exiting: bool = False


def servers_in(seen: Iterable[ProcessSeen], agent: AgentPrograms, since: float = inf) -> frozenset[int]:
    """Return the pids of the servers that an agent keeps from turn to turn, and of the descendants of these servers.

    A server is marked in its environment (the MCP servers of the plan are), or its program has one of the names. The
    names of the catalogue do not count for a process that was born in the tick *since* or later in another session than
    the agent's. *seen*: parents before their children.
    """
    kept: set[int] = set()
    for process in seen:
        is_server = process.server or not process.programs.isdisjoint(agent.servers)
        if process.born < since or process.session == agent.pid:
            is_server = is_server or not process.programs.isdisjoint(agent.known_servers)
        if process.pid != agent.pid and (process.parent in kept or is_server):
            kept.add(process.pid)
    return frozenset(kept)


def agent_itself(seen: Sequence[ProcessSeen], agent: AgentPrograms, since: int) -> frozenset[int]:
    """Return the pids of the processes in which the agent itself runs: its main process; the only child of a launcher;
    and a child that runs one of the agent's *own* programs, and was not just forked from its parent. *seen*: parents
    before their children; processes that were born in the tick *since* or later do not count."""
    older = [process for process in seen if process.born < since and process.alive]
    children = Counter(process.parent for process in older)
    found = {agent.pid: next((process for process in seen if process.pid == agent.pid), None)}
    for process in older:
        above = found.get(process.parent)
        if above is None or process.command_hex == above.command_hex:
            continue
        is_launched = children[above.pid] == 1 and not above.programs.isdisjoint(LAUNCHERS)
        if is_launched or not process.programs.isdisjoint(agent.own):
            found[process.pid] = process
    return frozenset(found)


def processes_of_calls(seen: Sequence[ProcessSeen], span: CallSpan, agent: AgentPrograms) -> CallProcesses:
    """Divide the processes below an agent into those that belong to the ended calls and those that may; the agent
    itself and its servers belong to no call.

    Args:
        seen: the agent and its descendants, parents before their children.
        span: the time in which the calls started processes.
        agent: the main process of the agent, and the names of its servers and of its own programs.
    """
    spared = servers_in(seen, agent, span.since) | agent_itself(seen, agent, span.since)
    older = {process.pid: process for process in seen if process.born < span.since and process.pid not in spared}
    parents = {process.pid: process.parent for process in seen}
    above: set[int] = set()
    belong: list[ProcessSeen] = []
    may_belong: list[ProcessSeen] = []
    exiting: list[ProcessSeen] = []
    doubted: set[int] = set()
    """Processes whose children may belong at most."""
    for process in seen:
        if process.pid in spared:
            continue
        is_older = process.pid in older
        in_doubt = (
            not span.alone
            or process.session == agent.pid
            or process.parent in doubted
            or not process.programs.isdisjoint(agent.known_servers)  # those that are servers for certain are spared
            or span.since != span.clear >= process.born
        )
        # A child with a session of its own is a tool, also if its parent is an older process in the agent's session.
        if (is_older and process.session != agent.pid) or (in_doubt and not is_older):
            doubted.add(process.pid)
        if not is_older:
            pid = process.parent
            while pid in parents and pid not in above:
                above.add(pid)
                pid = parents[pid]
            if process.alive:
                (exiting if process.exiting else may_belong if in_doubt else belong).append(process)
    is_found = span.had_own or bool(belong)
    may_work = [
        process
        for process in older.values()
        if process.alive
        and not process.exiting
        and (not is_found or process.pid in above or not process.programs.isdisjoint(MULTIPLEXERS))
    ]
    return CallProcesses(
        tuple(belong),
        (*may_work, *may_belong),
        tuple(exiting),
        tuple([process for process in may_work if process.pid in above]),
    )


def processes_of_turn(seen: Sequence[ProcessSeen], since: int, agent: AgentPrograms) -> tuple[ProcessSeen, ...]:
    """Return the processes of a turn that still run, parents before their children; they have to end before the work is
    judged.

    A process of the turn was born since the agent was given its first prompt, lives, and is neither the agent, nor a
    server that the agent keeps from turn to turn, nor a descendant of such a server. Processes from before the first
    prompt, not from before this turn, are the agent's own: otherwise a daemon that a failed attempt has left would
    count as the agent's own in the next one.

    Args:
        seen: the agent and its descendants, parents before their children.
        since: the tick in which the agent was given its first prompt.
        agent: the main process of the agent, and the names of its servers.
    """
    kept = {agent.pid, *servers_in(seen, agent)}
    return tuple(process for process in seen if process.pid not in kept and process.alive and process.born >= since)


def describe_processes(
    seen: Sequence[ProcessSeen], span: CallSpan, agent: AgentPrograms, agent_id: str, calls: Sequence[str]
) -> list[tuple[ProcessSeen, LiveProcess]]:
    """Return the live processes among *seen*, parents before their children, each with its role.

    Args:
        span: the time in which the open *calls* started processes.
        agent: the main process of the agent, and the names of its servers and of its own programs.
        agent_id: the id of the agent.
        calls: the ids of the open calls of which the agent does the work by itself.
    """
    found = processes_of_calls(seen, span._replace(alone=True), agent) if calls else CallProcesses()
    roles = dict.fromkeys(servers_in(seen, agent, span.since), "server")
    roles |= dict.fromkeys(agent_itself(seen, agent, span.since), "agent")
    roles |= dict.fromkeys((one.pid for one in (*found.may_belong, *found.exiting)), "maybe")
    roles |= dict.fromkeys((one.pid for one in found.belong), "call")

    def describe(one: ProcessSeen) -> LiveProcess:
        role = roles.get(one.pid, "other")
        return LiveProcess(
            pid=one.pid,
            parent=one.parent,
            agent=agent_id,
            role=role,
            calls=tuple(calls) if role in ("call", "maybe") else (),
            command=one.command,
            exiting=one.exiting,
        )

    return [(one, describe(one)) for one in seen if one.alive]
