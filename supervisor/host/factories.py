"""Factories of the parts of a supervisor and its sessions: agent profiles, connections, transcripts, ports.

An agent runs with a clean environment: a PATH, a HOME, and the variables that its configuration names.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from supervisor.agent_catalogue import KNOWN_SERVERS, agent_programs
from supervisor.agents.codecs import codec_for, scripted_command
from supervisor.agents.protocols.command import CommandCodec
from supervisor.host.dependencies import Dependencies
from supervisor.journal.compaction import JournalArchiver
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import OpenTranscripts, Transcript
from supervisor.plans import Settings
from supervisor.plans.agents import AgentConfig, agent_of
from supervisor.plans.enforcement import needs_asking
from supervisor.plugins import Plugins
from supervisor.plugins.guard import AdapterFailed, NoHost
from supervisor.ports import AgentFiles, Journal, Launch, ProcessHost, TranscriptSink, WallClock, Workspace
from supervisor.ports.agent_profile import AgentFunction, AgentProfile
from supervisor.ports.logs import get_logger
from supervisor.processes.containment import UNCONTAINED, Containment, group_for, sweep
from supervisor.processes.descriptors import agent_spare, transcripts_max
from supervisor.processes.host import ShimHost
from supervisor.runtime.availability import RetryingProcessHost
from supervisor.sessions.agent_connection import Delegate
from supervisor.sessions.connection import Connection
from supervisor.sessions.inprocess import FunctionConnection
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.process_connection import ProcessConnection
from supervisor.sessions.registry import SessionRegistry
from supervisor.workspaces.directory import DirectoryWorkspace
from supervisor.workspaces.files import DiskFiles
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import CommitStyle
from supervisor.workspaces.repositories import RepositoryWorkspaces

_log = get_logger()

CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_env() -> dict[str, str]:
    """Return the environment that every program starts with; the program's configuration may add variables."""
    return {"PATH": os.environ.get("PATH", CLEAN_PATH), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


def profile_of(name: str, agent: AgentConfig | AgentFunction, workdir: Path) -> AgentProfile:
    """Return the profile of a configured agent: command or function, directory, clean environment.

    Log a warning for each MCP server whose program is missing: the agent starts the server, perhaps on another machine;
    and for an agent whose permissions are not effective (``unguarded``).

    Raises:
        TypeError: *agent* is neither an AgentConfig nor a function.
        BadData: the agent's file of line rules cannot be read, or is invalid.
    """
    config = agent_of(f"agents[{name!r}]", agent)
    env = clean_env()
    env.update({key: os.environ[key] for key in config.inherit_env if key in os.environ})
    env.update(config.env)
    if config.unguarded and needs_asking(config.permissions):
        _log.warning(
            "an agent is unguarded: it may act without asking, and its permissions hold for what it asks",
            agent=name,
            permissions=str(config.permissions.default),
        )
    for server in config.agent_options.mcp_servers:
        program, path = (*server.command, "")[0], server.env.get("PATH", env["PATH"])
        if program and (os.path.isabs(program) or "/" not in program) and not shutil.which(program, path=path):
            fix = "install it, or correct command or env.PATH of the server"
            _log.warning("an MCP server has no program", agent=name, server=server.name, program=program, fix=fix)
    return AgentProfile(
        name=name,
        adapter=config.adapter,
        command=scripted_command() if config.adapter == "scripted" else (*config.command, *config.arguments),
        env=env,
        directory=str(workdir / config.cwd) if config.cwd else str(workdir),
        permissions=config.permissions.value(),
        operates=tuple(config.operates),
        agent_options=config.agent_options,
        mapping=config.line_mapping,
        quirks=config.quirks,
        known=config.known is not None,
        servers=frozenset(config.servers),
        known_servers=KNOWN_SERVERS,
        own_programs=agent_programs(),
        function=config.function,
        explain_retries=config.explain_retries,
        tool_timeouts={str(kind): limit_s for kind, limit_s in config.tool_timeouts.items()},
        max_sessions=config.max_sessions,
    )


class ConnectionFactory:
    """Makes the connection to a session's next agent: a program under a shim, or a function.

    Args:
        plugins: plug-ins, which may bring adapters of agents.
        delegate: starts a child session for an agent.
        variables: functions that add variables to the environment of an agent's program, given the id of its session.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        delegate: Delegate,
        processes: RetryingProcessHost,
        files: AgentFiles,
        plugins: Plugins,
        variables: Sequence[Callable[[str], Mapping[str, str]]] = (),
    ) -> None:
        self._registry = registry
        self._delegate = delegate
        self._variables = variables
        self._host = processes
        self._files = files
        self._plugins = plugins

    def __call__(self, session: LiveSession, agent_id: str, incarnation: int, prompt: str) -> Connection:
        profile = session.profile
        if profile.function is not None:
            return FunctionConnection(
                self._registry, session, agent_id, incarnation, function=profile.function, delegate=self._delegate
            )
        resume_id, session.resume_id = session.resume_id, None  # one try to resume
        host = self._host
        try:
            codec = codec_for(
                profile.adapter,
                self._plugins.adapters,
                agent_options=profile.agent_options,
                mapping=profile.mapping,
                quirks=profile.quirks,
            )()
            # Of a new conversation, where the protocol lets us choose. From the seed: a run can be repeated.
            random_bits = self._registry.system.rng("conversation", agent_id).getrandbits(128)
            new_id = str(UUID(int=random_bits, version=4))
            argv = codec.argv(profile.command, prompt, new_id, resume_id)
        except AdapterFailed as error:  # of a plug-in: only this agent cannot start
            codec, argv = CommandCodec(), ()
            host = RetryingProcessHost(NoHost(str(error)), self._registry.journal_writer.clock.wall)
        return ProcessConnection(
            self._registry,
            session,
            agent_id,
            incarnation,
            codec=codec,
            host=host,
            launch=Launch(
                argv=argv,
                cwd=session.directory,
                env={**self._added(session.session_id), **profile.env, **session.variables},
                spare=agent_spare(),
                session=session.session_id,
            ),
            delegate=self._delegate,
            files=self._files,
            resume_id=resume_id,
        )

    def _added(self, session_id: str) -> dict[str, str]:
        return {name: value for variables in self._variables for name, value in variables(session_id).items()}


class NoTranscript:
    """Transcript for a supervisor without a state directory: writes nothing."""

    def write(self, source: str, text: str, *, at: float) -> None:
        return None

    def close(self) -> None:
        return None


WALL: Final[WallClock] = time
"""Clock that returns Unix time."""


async def contained(state_dir: StateDir | None, *, pid_namespaces: bool) -> Containment:
    """Kill the processes that an earlier supervisor of the directory left, and return the containment for new
    processes.

    Raises:
        StateDirError: the directory's tag cannot be read or written.
    """
    if state_dir is None:
        return UNCONTAINED._replace(pid_namespaces=pid_namespaces)
    tag = state_dir.tag()
    ours = state_dir.possession.holds
    containment = Containment(tag, group_for(tag), state_dir.fork_server_file, pid_namespaces, ours)
    swept = await sweep(containment)
    if swept.killed:
        _log.warning("an earlier supervisor left processes behind: they were killed", killed=swept.killed)
    if swept.left:
        _log.error("processes of an earlier supervisor cannot be ended; see to them", pids=swept.left)
    return containment


async def workspace_of(
    settings: Settings, state_dir: StateDir | None, workdir: Path, processes: ProcessHost, *, several: bool = False
) -> Workspace:
    """Return the workspace port that *settings* name; *several*: sessions may work in other repositories than that of
    *workdir*.

    Raises:
        ValueError: the settings name worktrees, and there is no state directory for them.
        WorkspaceError: git cannot make worktrees of that directory.
    """
    if settings.workspace == "directory":
        if state_dir is None:
            return DirectoryWorkspace(None)
        # Worktrees of an earlier supervisor with other settings stay: only GitWorkspaces can remove them.
        if state_dir.worktrees.is_dir() and (left := sorted(str(one) for one in state_dir.worktrees.iterdir())):
            _log.warning(
                "worktrees are left that `workspace: worktree` would clean up; merge or remove them", left=left
            )
        return DirectoryWorkspace(state_dir.checkpoints)
    if state_dir is None:
        raise ValueError("settings.workspace: 'worktree' needs a state directory for them; give state_dir")
    kind = RepositoryWorkspaces if several else GitWorkspaces
    setup, commits = settings.worktree.value(clean_env()), CommitStyle(settings.commits.author, settings.commits.sign)
    worktrees = kind(processes, state_dir.worktrees.absolute(), str(workdir), settings.merge_into, setup, commits)
    await worktrees.check()
    return worktrees


def real_parts(
    journal: Journal,
    state_dir: StateDir | None,
    host: ShimHost,
    processes: RetryingProcessHost,
    workspace: Workspace,
    workdir: Path,
) -> Dependencies:
    """Return the ports to this machine: processes, files, clock, and the ports to the state directory, if there
    is one."""
    parts = Dependencies(
        journal=journal,
        processes=processes,
        workspace=workspace,
        files=DiskFiles() if state_dir is None else DiskFiles(state_dir.root, state_dir.worktrees),
        wall=WALL,
        transcript_of=lambda session_id: NoTranscript(),
        workdir=str(workdir),
        caller_at=host.caller_at,
        unidentified=host.unidentified,
        watch_processes=host.watch,
    )
    if state_dir is None:
        return parts
    upkeep = JournalArchiver(journal, state_dir.archive, parts.wall) if isinstance(journal, SqliteJournal) else None
    open_transcripts = OpenTranscripts(transcripts_max(), state_dir.possession.holds)

    def transcript_of(session_id: str) -> TranscriptSink:
        return Transcript(state_dir.transcript(session_id), open_transcripts=open_transcripts)

    return parts._replace(transcript_of=transcript_of, state_dir=str(state_dir.root.absolute()), upkeep=upkeep)
