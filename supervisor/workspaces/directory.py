"""A plain directory as the place where a session works: it must be there, and nothing is made or merged.

Several sessions may work in it, so that only what a task owns (its ``files``) can be told from the rest: of that there
are copies, to go on from or to go back to. Nothing else is ever touched: other work stays in place.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from supervisor.ports import Changes, Merge, Released, WorkspaceSpec
from supervisor.workspaces.copies import Copies

__all__ = ["DirectoryWorkspace"]


THREADS: Final = 4
"""Looks at directories at once. Each new thread has a heap of its own: of forty, one for each session that starts, a
process grows by megabytes that it never gives back."""


_BEFORE: Final = "before"
"""How the name of the copy ends that an attempt can be taken back to: it is there while one is under way."""


class DirectoryWorkspace:
    """``supervisor.ports.Workspace`` over a directory that exists.

    Args:
        copies: below which directory there are copies of what tasks own; without it there are none.
    """

    temporary: bool = False

    def __init__(self, copies: Path | None = None) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._copies = Copies(copies) if copies is not None else None

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        path, is_there = await self._thread(_found, directory)
        if not is_there:
            raise NotADirectoryError(f"the working directory {path} of session {session_id!r} does not exist")
        return str(path)

    async def commit(self, session_id: str, message: str) -> str:
        return ""

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        return Merge(outcome="nothing", why="the session worked in place")

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        return None

    async def begin(self, session_id: str, place: WorkspaceSpec) -> None:
        """Copy what the task owns before an attempt; put back the copy that it begins with.

        Raises:
            OSError: it cannot be copied, or there is no such copy.
        """
        if self._copies is None or not (place.files and place.rollback):
            return
        await self._thread(self._copies.make, Path(place.directory), place.files, f"{_of(place)}{_BEFORE}")
        if place.starts_at:
            await self._put_back(self._copies, place.starts_at, place)

    async def save(self, session_id: str, place: WorkspaceSpec, message: str) -> str:
        """The name of a copy of what the task owns; ``""`` where it owns nothing: its work stays in place.

        Raises:
            OSError: it cannot be copied.
        """
        if self._copies is None or not place.files:
            return ""
        name: str = await self._thread(self._copies.make, Path(place.directory), place.files, _of(place))
        return name

    async def roll_back(self, session_id: str, place: WorkspaceSpec, message: str) -> str:
        """Have what the task owns as it was before the attempt, unless it is: a copy of what was done has the name that
        is returned.

        Raises:
            OSError: it cannot be copied.
        """
        before = f"{_of(place)}{_BEFORE}"
        if self._copies is None or not await self._thread(self._copies.has, before):
            return ""
        saved = await self.save(session_id, place, message)
        await self._put_back(self._copies, before, place)
        await self._thread(self._copies.drop, before)
        return saved

    async def accept(self, place: WorkspaceSpec) -> None:
        """Drop the copy of what there was before.

        Raises:
            OSError: it cannot be removed.
        """
        before = f"{_of(place)}{_BEFORE}"
        if self._copies is not None and await self._thread(self._copies.has, before):
            await self._thread(self._copies.drop, before)

    async def forget(self, place: WorkspaceSpec) -> None:
        """Drop every copy that was made for the task.

        Raises:
            OSError: one cannot be removed.
        """
        if self._copies is not None and place.files:
            await self._thread(self._copies.drop_all, _of(place))

    async def list_sessions(self) -> list[str]:
        return []

    async def clean_up(self, session_id: str, message: str) -> Released:
        return Released()

    async def _put_back(self, copies: Copies, name: str, place: WorkspaceSpec) -> None:
        await self._thread(copies.put_back, name, Path(place.directory), place.files)

    async def _thread(self, fn: Any, *args: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(fn, *args), limiter=self._limiter)


def _of(place: WorkspaceSpec) -> str:
    """How the names of a task's copies begin."""
    return f"{hashlib.sha256(place.owner.encode()).hexdigest()[:12]}-"


def _found(directory: str) -> tuple[Path, bool]:
    """In one thread hop: a session's start waits for it."""
    path = Path(directory).absolute()
    return path, path.is_dir()
