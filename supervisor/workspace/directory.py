"""A plain directory as the place where a session works: it must be there, and nothing is made or removed."""

from __future__ import annotations

import anyio

__all__ = ["DirectoryWorkspace"]


class DirectoryWorkspace:
    """``supervisor.ports.Workspace`` over a directory that exists."""

    async def prepare(self, session_id: str, directory: str) -> str:
        path = await anyio.Path(directory).absolute()
        if not await path.is_dir():
            raise NotADirectoryError(f"the working directory {path} of session {session_id!r} does not exist")
        return str(path)
