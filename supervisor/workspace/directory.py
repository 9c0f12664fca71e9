"""A plain directory as the place where a session works: it must be there, and nothing is made or removed."""

from __future__ import annotations

from pathlib import Path

import anyio

__all__ = ["DirectoryWorkspace"]


class DirectoryWorkspace:
    """``supervisor.ports.Workspace`` over a directory that exists."""

    async def prepare(self, session_id: str, directory: str) -> str:
        path, is_there = await anyio.to_thread.run_sync(_found, directory)
        if not is_there:
            raise NotADirectoryError(f"the working directory {path} of session {session_id!r} does not exist")
        return str(path)


def _found(directory: str) -> tuple[Path, bool]:
    """In one thread hop: a session's start waits for it."""
    path = Path(directory).absolute()
    return path, path.is_dir()
