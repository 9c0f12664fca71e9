"""Plain directory as a workspace: the directory must exist, and nothing is made or merged.

Several sessions may work in the directory, so only the files that a task owns can be distinguished from other work.
Copies of these files are made, from which work can be continued or undone; no other file is ever touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from supervisor.lifecycles.workstream import WorkBranch
from supervisor.ports import Changes, Merge, MergePlan, Released, WorkspaceSpec
from supervisor.workspaces.copies import FileCopies
from supervisor.workspaces.recent_changes import changed_since

THREADS: Final = 4
"""Number of threads that examine directories. Each new thread has a heap of its own: with a thread for each of forty
sessions that start, the process grows by megabytes that are never released."""


_BEFORE: Final = "before"
"""Suffix of the copy to which an attempt can be rolled back; the copy exists while the attempt runs."""


class DirectoryWorkspace:
    """Workspace (``supervisor.ports.Workspace``) in a directory that exists.

    Args:
        copies: the directory, within the state directory, for copies of the files that tasks own; ``None``: no copies
            are made.
    """

    temporary: bool = False

    def __init__(self, copies: Path | None = None) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._copies = FileCopies(copies) if copies is not None else None
        self._apart = copies.absolute().parent if copies is not None else None
        """The state directory, whose changes are not those of an agent."""

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        path, is_there = await self._thread(_resolve, directory)
        if not is_there:
            raise NotADirectoryError(f"the working directory {path} of session {session_id!r} does not exist")
        return str(path)

    async def commit(self, session_id: str, message: str) -> str:
        return ""

    async def open_branch(
        self, workstream_id: str, directory: str, *, resumes: str = "", holds: Sequence[str] = ()
    ) -> WorkBranch:
        raise NotADirectoryError(f"{directory} has no branches: the work is done in place")

    async def plan_merge(self, workstream_id: str, commit: str = "") -> MergePlan:
        raise NotADirectoryError("there is nothing to merge: the work was done in place")

    async def merge(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Merge:
        return Merge(outcome="nothing", why="the session worked in place")

    async def changes(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Changes | None:
        return None

    async def changed_since(self, session_id: str, directory: str, since: float) -> bool:
        changed: bool = await self._thread(changed_since, Path(directory), since, self._apart)
        return changed

    async def begin(self, session_id: str, spec: WorkspaceSpec) -> None:
        """Copy the task's files before an attempt; restore the checkpoint that the attempt begins with.

        Raises:
            OSError: the files cannot be copied, or the checkpoint does not exist.
        """
        if self._copies is None or not (spec.files and spec.rollback):
            return
        await self._thread(self._copies.make, Path(spec.directory), spec.files, f"{_copy_prefix(spec)}{_BEFORE}")
        if spec.starts_at:
            await self._restore(self._copies, spec.starts_at, spec)

    async def save(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Copy the task's files; return the name of the copy, ``""`` for a task that owns no files, whose work stays in
        place.

        Raises:
            OSError: the files cannot be copied.
        """
        if self._copies is None or not spec.files:
            return ""
        name: str = await self._thread(self._copies.make, Path(spec.directory), spec.files, _copy_prefix(spec))
        return name

    async def roll_back(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Restore the task's files as they were before the attempt; return the name of a copy of the attempt's work.

        Do nothing, and return ``""``, if there is no copy from before an attempt.

        Raises:
            OSError: the files cannot be copied.
        """
        before = f"{_copy_prefix(spec)}{_BEFORE}"
        if self._copies is None or not await self._thread(self._copies.has, before):
            return ""
        saved = await self.save(session_id, spec, message)
        await self._restore(self._copies, before, spec)
        await self._thread(self._copies.drop, before)
        return saved

    async def accept(self, spec: WorkspaceSpec) -> None:
        """Remove the copy from before the attempt.

        Raises:
            OSError: the copy cannot be removed.
        """
        before = f"{_copy_prefix(spec)}{_BEFORE}"
        if self._copies is not None and await self._thread(self._copies.has, before):
            await self._thread(self._copies.drop, before)

    async def forget(self, spec: WorkspaceSpec) -> None:
        """Remove every copy that was made for the task.

        Raises:
            OSError: a copy cannot be removed.
        """
        if self._copies is not None and spec.files:
            await self._thread(self._copies.drop_all, _copy_prefix(spec))

    async def outside_changes(self, session_id: str) -> list[str]:
        return []

    async def list_sessions(self) -> list[str]:
        return []

    async def clean_up(self, session_id: str, message: str) -> Released:
        return Released()

    async def _restore(self, copies: FileCopies, name: str, spec: WorkspaceSpec) -> None:
        await self._thread(copies.restore, name, Path(spec.directory), spec.files)

    async def _thread(self, fn: Any, *args: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(fn, *args), limiter=self._limiter)


def _copy_prefix(spec: WorkspaceSpec) -> str:
    """Return the prefix of the names of a task's copies."""
    return f"{hashlib.sha256(spec.owner.encode()).hexdigest()[:12]}-"


def _resolve(directory: str) -> tuple[Path, bool]:
    """Return the absolute path, and whether it is a directory; both are found in one call of a thread, since a
    session's start waits for it."""
    path = Path(directory).absolute()
    return path, path.is_dir()
