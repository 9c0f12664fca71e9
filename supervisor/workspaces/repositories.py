"""Worktrees of several repositories: a daemon's sessions work in the repositories of those who submitted their plans.

Theory of operation
-------------------
Each repository has :class:`~supervisor.workspaces.git.GitWorkspaces` of its own: worktrees, branches, the target, the
step under way, and its recovery after a kill. This module only finds the repository of a request::

    directory   prepare, begin, save, ...: the repository that contains the directory in which the agent is configured
    session     commit, merge, clean_up: the repository in which the session has its worktree; else the repository that
                has the commit, or the branch of the session, as for a merge after a restart

The worktrees of the supervisor's own repository are in the directory *root*, those of another repository in a hidden
directory of it, beside a file with the path of the repository, so that the next supervisor finds its worktrees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from supervisor.lifecycles.workstream import WorkBranch
from supervisor.ports import Changes, Merge, MergePlan, ProcessHost, Released, WorkspaceSpec, WorktreeSetup
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import make_private, write_private
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import OWN_STYLE, CommitStyle, Git, text_of
from supervisor.workspaces.worktree_setup import NO_SETUP

_FOLDER: Final = ".of-"
"""Beginning of the name of the directory with the worktrees of another repository; no session has such a name."""
_PATH_FILE: Final = ".repository"
"""File in that directory with the path of the repository."""

_log = get_logger()


class RepositoryWorkspaces:
    """Workspaces (``supervisor.ports.Workspace``) in worktrees of the repository that contains an agent's directory.

    Args:
        host: runs the git commands.
        root: the directory below which worktrees are made.
        repository: a directory in the repository of sessions that name no other.
        target: the branch that the work is for, in each repository; by default the branch that is checked out there.
        setup: what is done in each new worktree.
        commits: author and signature of commits.
    """

    temporary: Final = True

    def __init__(
        self,
        host: ProcessHost,
        root: Path,
        repository: str,
        target: str = "",
        setup: WorktreeSetup = NO_SETUP,
        commits: CommitStyle = OWN_STYLE,
    ) -> None:
        self._host, self._root, self._repository, self._target = host, root, repository, target
        self._setup, self._commits = setup, commits
        self._own = GitWorkspaces(host, root, repository, target, setup, commits)
        self._own_top = ""
        self._others: dict[str, GitWorkspaces] = {}
        """Workspaces of the other repositories, by the top directory of the repository."""
        self._of: dict[str, GitWorkspaces] = {}
        """Workspaces in which a session has its worktree, by the id of the session."""
        self._opening = anyio.Lock()

    @property
    def _every(self) -> tuple[GitWorkspaces, ...]:
        return (self._own, *self._others.values())

    async def check(self) -> None:
        """Check that git and the own repository are usable; finish or undo the steps of an earlier supervisor.

        Raises:
            WorkspaceError: as for ``GitWorkspaces.check``, of the own repository. Another one that cannot be used any
                more is logged, and its worktrees stay.
        """
        await self._own.check()
        self._own_top = await self._top_of(self._repository)
        for file in await anyio.to_thread.run_sync(lambda: sorted(self._root.glob(f"{_FOLDER}*/{_PATH_FILE}"))):
            top = await anyio.to_thread.run_sync(file.read_text)
            try:
                await self._open(top)
            except OSError as error:
                _log.error("a repository with worktrees cannot be used", repository=top, why=str(error))

    async def _top_of(self, directory: str) -> str:
        """Return the top directory of the repository that contains *directory*; ``""`` if there is none."""
        found = await Git(self._host, directory).run(directory, "rev-parse", "--show-toplevel")
        return text_of(found) if found.ok else ""

    async def _open(self, top: str) -> GitWorkspaces:
        """Return the workspaces of the repository with that top directory; check the repository at its first use.

        Raises:
            WorkspaceError: as for ``GitWorkspaces.check``.
        """
        async with self._opening:
            if (known := self._others.get(top)) is not None:
                return known
            folder = self._root / f"{_FOLDER}{hashlib.sha256(top.encode(errors='surrogateescape')).hexdigest()[:16]}"
            made = GitWorkspaces(self._host, folder, top, self._target, self._setup, self._commits)
            await made.check()
            await anyio.to_thread.run_sync(_note_repository, folder, top)
            self._others[top] = made
            return made

    async def _at(self, directory: str) -> GitWorkspaces:
        """Return the workspaces of the repository that contains *directory*. A directory without a repository is left
        to the own workspaces, whose error says so.

        Raises:
            WorkspaceError: the repository cannot be used.
        """
        top = await self._top_of(directory) if directory else ""
        return self._own if top in ("", self._own_top) else await self._open(top)

    async def _having(self, session_id: str, commit: str = "") -> GitWorkspaces:
        """Return the workspaces in which a session has, or had, its worktree."""
        if (known := self._of.get(session_id)) is not None:
            return known
        if not self._others:
            return self._own
        for one in self._every:
            if one.has_worktree(session_id):
                return one
        for one in self._every:
            if await one.has_work(session_id, commit):
                return one
        return self._own

    # ------------------------------------------------------------------ requests that name a directory
    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        workspaces = self._of[root_id] = self._of.get(root_id) or await self._at(directory)
        return await workspaces.prepare(session_id, directory, root_id=root_id)

    async def begin(self, session_id: str, spec: WorkspaceSpec) -> None:
        workspaces = await self._at(spec.directory)
        if session_id:
            self._of[session_id] = workspaces
        await workspaces.begin(session_id, spec)

    async def save(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        return await (await self._having(session_id)).save(session_id, spec, message)

    async def roll_back(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        return await (await self._having(session_id)).roll_back(session_id, spec, message)

    async def accept(self, spec: WorkspaceSpec) -> None:
        await (await self._at(spec.directory)).accept(spec)

    async def forget(self, spec: WorkspaceSpec) -> None:
        await (await self._at(spec.directory)).forget(spec)

    # ------------------------------------------------------------------ requests that name a session
    async def open_branch(
        self, workstream_id: str, directory: str, *, resumes: str = "", holds: Sequence[str] = ()
    ) -> WorkBranch:
        workspaces = self._of[workstream_id] = await self._at(directory)
        return await workspaces.open_branch(workstream_id, directory, resumes=resumes, holds=holds)

    async def plan_merge(self, workstream_id: str, commit: str = "") -> MergePlan:
        return await (await self._having(workstream_id, commit)).plan_merge(workstream_id, commit)

    async def commit(self, session_id: str, message: str) -> str:
        return await (await self._having(session_id)).commit(session_id, message)

    async def merge(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Merge:
        workspaces = await self._having(session_id, commit)
        return await workspaces.merge(session_id, message, commit, workstream=workstream)

    async def changes(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Changes | None:
        workspaces = await self._having(session_id, commit)
        return await workspaces.changes(session_id, message, commit, workstream=workstream)

    async def changed_since(self, session_id: str, directory: str, since: float) -> bool:
        return await (await self._having(session_id)).changed_since(session_id, directory, since)

    async def outside_changes(self, session_id: str) -> list[str]:
        return await (await self._having(session_id)).outside_changes(session_id)

    async def list_sessions(self) -> list[str]:
        return [name for one in self._every for name in await one.list_sessions()]

    async def clean_up(self, session_id: str, message: str) -> Released:
        released = await (await self._having(session_id)).clean_up(session_id, message)
        self._of.pop(session_id, None)
        return released


def _note_repository(folder: Path, top: str) -> None:
    make_private(folder)
    if not (folder / _PATH_FILE).exists():
        write_private(folder / _PATH_FILE, top)
