"""Workspace port: the directories in which sessions work, the merge of their work, and files that agents request."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a merge of a session's work: ``merged`` (*commit* is the target now), ``nothing`` to merge, or
    ``refused``.

    *why* says what stood in the way, or why there is nothing; *files* which ones were in conflict.
    """

    outcome: str
    commit: str = ""
    target: str = ""
    files: tuple[str, ...] = ()
    why: str = ""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a session since it and the target diverged: from *base* to *commit*, which holds all of them.

    ``files`` are paths from the top of the repository, at both ends of a rename; ``whole`` is false where there are
    more than can be listed. ``diff`` is a patch as text, ``""`` where it is too long to be shown.
    """

    base: str
    commit: str
    files: tuple[str, ...] = ()
    whole: bool = True
    diff: str = ""


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a clean-up: *branch* holds work that is not in the target, *directory* still exists. Both are empty if
    nothing is left; *problem* says why the result is unknown."""

    branch: str = ""
    directory: str = ""
    problem: str = ""


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Workspace wanted for a session that works on a task.

    *owner* is the id of the task, *directory* the directory that its agent is configured for, *files* the paths in it
    that the task owns. *starts_at* is the checkpoint with which the workspace begins (``""``: as it is). With
    *rollback* the workspace can be reset to its beginning; *kept*: it is not cleaned up when its session ends.
    """

    owner: str = ""
    directory: str = ""
    files: tuple[str, ...] = ()
    starts_at: str = ""
    rollback: bool = False
    kept: bool = False


NO_WORKSPACE: Final = WorkspaceSpec()
"""Workspace without requirements."""


class Workspace(Protocol):
    """Provides directories for sessions, and merges their work."""

    @property
    def temporary(self) -> bool:
        """Whether a prepared directory exists for the session alone, and is removed after it."""
        ...

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """Provide a directory; return its path. A second call returns the same directory with its content.

        Args:
            session_id: the session that works there.
            directory: where its agent is configured to work.
            root_id: the root session above it; both work in the same workspace.

        Raises:
            OSError: there is none, and none can be made; the message says why.
        """
        ...

    async def commit(self, session_id: str, message: str) -> str:
        """Commit everything that a session has done; return the commit, which is verified and then merged.

        Return ``""`` if the work stays in place, or cannot be merged as it is (:meth:`merge` says why).

        Raises:
            OSError: the workspace is gone, or nothing can be committed; the message says why.
        """
        ...

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        """Merge a session's work into the target: *commit* and nothing later, or everything if *commit* is ``""``.

        Raises:
            OSError: the outcome is unknown; the message says why.
        """
        ...

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        """Return the session's changes up to *commit*; with ``""`` all of them, committed under *message* first.

        Return ``None`` if they are unknown, or nothing is to be merged.

        Raises:
            OSError: the changes cannot be read; the message says why.
        """
        ...

    async def begin(self, session_id: str, spec: WorkspaceSpec) -> None:
        """Make the workspace of a session as *spec* wants it, before it is prepared. A second call changes nothing.

        Raises:
            OSError: that is impossible, for example because a checkpoint is gone; the message says why.
        """
        ...

    async def save(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Save a session's work so far; return the checkpoint, which exists until :meth:`forget`.

        Return ``""`` if the work stays in place, or there is none.

        Raises:
            OSError: it cannot be saved; no work is lost.
        """
        ...

    async def roll_back(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Reset the workspace to its beginning, or to ``spec.starts_at``; return a checkpoint of the work, ``""`` if
        there is none.

        Raises:
            OSError: it could not be reset; no work is lost.
        """
        ...

    async def accept(self, spec: WorkspaceSpec) -> None:
        """Give up the possibility to roll back: other sessions may work there from now on.

        Raises:
            OSError: that could not be recorded.
        """
        ...

    async def forget(self, spec: WorkspaceSpec) -> None:
        """Remove the checkpoints of a task that has ended, as far as they are not needed any more.

        Raises:
            OSError: something could not be removed, which does no harm.
        """
        ...

    async def list_sessions(self) -> list[str]:
        """Return the sessions whose workspaces were never cleaned up, and are not kept."""
        ...

    async def clean_up(self, session_id: str, message: str) -> Released:
        """Keep the work of a session that has ended, and remove the rest.

        Raises:
            OSError: that failed; everything is still there.
        """
        ...


class FileRefused(OSError):
    """The file is not for agents: it is outside the workspace, or the supervisor's own, or git's."""


class AgentFiles(Protocol):
    """Text files that an agent requests. Whether it may read or write at all is decided before; which files an agent in
    *workspace* may reach is decided here, since only an opened file can be checked reliably."""

    async def read(self, path: str, workspace: str) -> str:
        """Return the text of the file at *path*.

        Raises:
            FileRefused: the file is not for agents.
            OSError: there is none, or it is no regular file, no UTF-8, or longer than ``input_limits.FILE_BYTES_MAX``.
        """
        ...

    async def write(self, path: str, text: str, workspace: str) -> None:
        """Write *text* to the file at *path*, replacing it as a whole; make missing directories.

        Raises:
            FileRefused: the file is not for agents; nothing was made or changed.
            OSError: it cannot be written.
        """
        ...
