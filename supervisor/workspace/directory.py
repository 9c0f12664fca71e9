"""A plain directory as the place where a session works: it must be there, and nothing is made, merged or removed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anyio

from supervisor.ports import Changes, Merge, Released

__all__ = ["DirectoryWorkspace"]


THREADS: Final = 4
"""Looks at directories at once. Each new thread has a heap of its own: of forty, one for each session that starts, a
process grows by megabytes that it never gives back."""


class DirectoryWorkspace:
    """``supervisor.ports.Workspace`` over a directory that exists."""

    temporary: Final = False

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        path, is_there = await anyio.to_thread.run_sync(_found, directory, limiter=self._limiter)
        if not is_there:
            raise NotADirectoryError(f"the working directory {path} of session {session_id!r} does not exist")
        return str(path)

    async def merge(self, session_id: str, message: str) -> Merge:
        return Merge(outcome="nothing", why="the session worked in place")

    async def changes(self, session_id: str, message: str) -> Changes | None:
        return None

    async def left(self) -> list[str]:
        return []

    async def put_away(self, session_id: str, message: str) -> Released:
        return Released()


def _found(directory: str) -> tuple[Path, bool]:
    """In one thread hop: a session's start waits for it."""
    path = Path(directory).absolute()
    return path, path.is_dir()
