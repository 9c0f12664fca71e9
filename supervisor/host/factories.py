"""What a session is equipped with: its agent's command and environment, its link, its transcript.

Here the names of a configuration become real parts. An agent gets a clean environment: what its configuration names,
a PATH and a HOME, and nothing else of ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

from supervisor.agents.codecs import MakeCodec, scripted_command
from supervisor.agents.protocols.command import CommandCodec
from supervisor.agents.protocols.inprocess import FunctionConnection
from supervisor.journal.compaction import JournalUpkeep
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import OpenTranscripts, Transcript
from supervisor.plans import AgentConfig, Settings
from supervisor.plugins.guard import AdapterFailed, NoHost
from supervisor.ports import AgentFiles, Journal, Launch, ProcessHost, TranscriptSink, Workspace
from supervisor.ports.logs import get_logger
from supervisor.processes.containment import UNCONTAINED, Containment, group_for, sweep
from supervisor.processes.descriptors import agent_spare, transcripts_max
from supervisor.processes.host import ShimHost
from supervisor.runtime.availability import RetryingProcessHost
from supervisor.runtime.dependencies import Dependencies
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import AgentProfile, Connection, LiveSession
from supervisor.sessions.agent_connection import Delegate
from supervisor.sessions.process_connection import ProcessConnection
from supervisor.workspaces.directory import DirectoryWorkspace
from supervisor.workspaces.files import DiskFiles
from supervisor.workspaces.git import GitWorkspaces

__all__ = [
    "WALL",
    "ConnectionFactory",
    "NoTranscript",
    "clean_env",
    "contained",
    "profile_of",
    "real_parts",
    "workspace_of",
]

_log = get_logger()

CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clean_env() -> dict[str, str]:
    """What every program of ours gets, and nothing else but what its configuration names."""
    return {"PATH": os.environ.get("PATH", CLEAN_PATH), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


def profile_of(name: str, config: AgentConfig, workdir: Path) -> AgentProfile:
    """A configured agent as the runtime has it: its command, its directory, and a clean environment.

    Raises:
        BadData: the file that says what its lines mean cannot be read, or says what it may not.
    """
    env = clean_env()
    env.update({key: os.environ[key] for key in config.inherit_env if key in os.environ})
    env.update(config.env)
    return AgentProfile(
        name=name,
        adapter=config.adapter,
        command=scripted_command() if config.adapter == "scripted" else (*config.command, *config.arguments),
        env=env,
        directory=str(workdir / config.cwd) if config.cwd else str(workdir),
        permissions=config.permissions.value(),
        operates=config.operates,
        wishes=config.wishes,
        mapping=config.line_mapping,
        quirks=config.quirks,
        servers=config.servers,
    )


class ConnectionFactory:
    """Makes the link to a session's next agent: a program under a warden, or a function.

    Args:
        codec_of: what makes a codec for an agent of that profile.
    """

    def __init__(
        self,
        registry: EntityRegistry,
        delegate: Delegate,
        processes: RetryingProcessHost,
        files: AgentFiles,
        codec_of: Callable[[AgentProfile], MakeCodec],
    ) -> None:
        self._registry = registry
        self._delegate = delegate
        self._host = processes
        self._files = files
        self._codec_of = codec_of

    def __call__(self, session: LiveSession, agent_id: str, incarnation: int, prompt: str) -> Connection:
        profile = session.profile
        if profile.function is not None:
            return FunctionConnection(
                self._registry, session, agent_id, incarnation, function=profile.function, delegate=self._delegate
            )
        resume_id, interrupted = session.resume_id, session.interrupted
        session.resume_id, session.interrupted = None, False  # it is tried once
        host = self._host
        try:
            codec = self._codec_of(profile)()
            argv = codec.argv(profile.command, prompt, self._new_id(agent_id), resume_id)
        except AdapterFailed as error:  # a plug-in's: its agent cannot start, and nobody else is concerned
            codec, argv, host = (
                CommandCodec(),
                (),
                RetryingProcessHost(NoHost(str(error)), self._registry.journal_writer.clock.wall),
            )
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
                env={**profile.env, **session.variables},
                spare=agent_spare(),
                session=session.session_id,
            ),
            delegate=self._delegate,
            files=self._files,
            resume_id=resume_id,
            interrupted=interrupted,
        )

    def _new_id(self, agent_id: str) -> str:
        """What a new conversation is called, where we may choose; drawn from the seed: a run can be repeated."""
        return str(UUID(int=self._registry.system.rng("conversation", agent_id).getrandbits(128), version=4))


class NoTranscript:
    """A transcript that is not kept: without a state directory nothing is written."""

    def write(self, source: str, text: str, *, at: float) -> None:
        return None

    def close(self) -> None:
        return None


class _Wall:
    def time(self) -> float:
        return time.time()


WALL: Final = _Wall()
"""The clock on the wall: Unix time."""


async def contained(state_dir: StateDir | None, *, pid_namespaces: bool) -> Containment:
    """How programs are held together; first, what an earlier supervisor of the directory left is ended.

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
    settings: Settings, state_dir: StateDir | None, workdir: Path, processes: ProcessHost
) -> Workspace:
    """Where sessions work, as *settings* say.

    Raises:
        ValueError: worktrees are asked for, and there is no state directory to have them in.
        WorkspaceError: git cannot have them there.
    """
    if settings.workspace == "directory":
        _tell_of_worktrees(state_dir)
        return DirectoryWorkspace(state_dir.checkpoints if state_dir is not None else None)
    if state_dir is None:
        raise ValueError("settings.workspace: 'worktree' needs a state directory to have them in; give state_dir")
    place = GitWorkspaces(processes, state_dir.worktrees.absolute(), str(workdir), settings.merge_into)
    await place.check()
    return place


def _tell_of_worktrees(state_dir: StateDir | None) -> None:
    """Those of an earlier supervisor, which had other settings, are left as they are: nobody here knows git."""
    if state_dir is not None and state_dir.worktrees.is_dir():
        left = sorted(str(one) for one in state_dir.worktrees.iterdir())
        if left:
            _log.warning("worktrees are left that `workspace: worktree` would see to; merge or remove them", left=left)


def real_parts(
    journal: Journal,
    state_dir: StateDir | None,
    host: ShimHost,
    processes: RetryingProcessHost,
    workspace: Workspace,
    workdir: Path,
) -> Dependencies:
    """This machine: its processes, its directories, its clock; and, where there is a state directory, what is in it."""
    parts = Dependencies(
        journal=journal,
        processes=processes,
        workspace=workspace,
        files=DiskFiles() if state_dir is None else DiskFiles(state_dir.root, state_dir.worktrees),
        wall=WALL,
        transcript_of=lambda session_id: NoTranscript(),
        workdir=str(workdir),
        caller_at=host.caller_at,
    )
    if state_dir is None:
        return parts
    upkeep = JournalUpkeep(journal, state_dir.archive, parts.wall) if isinstance(journal, SqliteJournal) else None
    shelf = OpenTranscripts(transcripts_max(), state_dir.possession.holds)

    def transcript_of(session_id: str) -> TranscriptSink:
        return Transcript(state_dir.transcript(session_id), shelf=shelf)

    return parts._replace(transcript_of=transcript_of, state_dir=str(state_dir.root.absolute()), upkeep=upkeep)
