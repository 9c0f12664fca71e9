"""Workspaces: where sessions work, the merge of their work, and the files that agents ask the supervisor for."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

__all__ = ["NO_WORKSPACE", "AgentFiles", "Changes", "FileRefused", "Merge", "Released", "Workspace", "WorkspaceSpec"]


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
    """What a session changed since it and the target parted: from *base* to *commit*, which holds all of it.

    ``files`` are paths from the top of the repository, at both ends of a rename; ``whole`` is false where there are
    more than can be listed. ``diff`` is a patch as text, ``""`` where it is too long to be shown.
    """

    base: str
    commit: str
    files: tuple[str, ...] = ()
    whole: bool = True
    diff: str = ""


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the place where a session worked: *branch* holds work that is not in the target, *directory* is
    still there. Both are empty where nothing is left; *problem* says why that is not known."""

    branch: str = ""
    directory: str = ""
    problem: str = ""


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the place where a session works on a task.

    *owner* is the id of that task, *directory* where its agent is configured to work, *files* what of that the task
    owns: paths relative to it. *starts_at* is the checkpoint that the place begins with (``""``: as the workspace has
    it). With *rollback* it can be taken back to its beginning; *kept* leaves it as it is when its session ends.
    """

    owner: str = ""
    directory: str = ""
    files: tuple[str, ...] = ()
    starts_at: str = ""
    rollback: bool = False
    kept: bool = False


NO_WORKSPACE: Final = WorkspaceSpec()
"""Nothing is asked of it."""


class Workspace(Protocol):
    """Where sessions work."""

    @property
    def temporary(self) -> bool:
        """True if what it prepares is there for the session alone, and is put away after it."""
        ...

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """Have a directory ready; its path. Asked for again it is the same, with what it holds.

        Args:
            session_id: who works there.
            directory: where its agent is configured to work.
            root_id: the session whose work it takes part in: the same place is right for both.

        Raises:
            OSError: there is none, and none can be had; the message says why.
        """
        ...

    async def commit(self, session_id: str, message: str) -> str:
        """The commit of all that a session has done so far: what is judged, and merged if it passes. ``""`` where its
        work stays in place, or cannot be merged as it is (:meth:`merge` says why).

        Raises:
            OSError: the place where it worked is gone, or nothing can be committed; the message says why.
        """
        ...

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        """Bring what a session did to where the work is for: *commit*, and nothing later; all that there is, where that
        is ``""``.

        Raises:
            OSError: it cannot be said what became of it; the message says why.
        """
        ...

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        """What a session changed up to *commit*; with ``""`` so far, committed under *message* where it was not.
        ``None`` where nobody can tell, or nothing is to be merged.

        Raises:
            OSError: it cannot be said; the message says why.
        """
        ...

    async def begin(self, session_id: str, workspace_spec: WorkspaceSpec) -> None:
        """Before it is prepared: have the place of a session as *place* says. Asked again it changes nothing.

        Raises:
            OSError: it cannot be had like that, a checkpoint is not there any more, say; the message says why.
        """
        ...

    async def save(self, session_id: str, workspace_spec: WorkspaceSpec, message: str) -> str:
        """The checkpoint that holds what a session has done so far: it is there until :meth:`forget`. ``""`` where the
        work stays in place, or there is none.

        Raises:
            OSError: it cannot be had; nothing of what was done is lost.
        """
        ...

    async def roll_back(self, session_id: str, workspace_spec: WorkspaceSpec, message: str) -> str:
        """Have the place of a session as it was in the beginning, or at ``workspace_spec.starts_at``; the checkpoint
        that holds what was done there, ``""`` where nothing was.

        Raises:
            OSError: it could not be; nothing of what was done is lost.
        """
        ...

    async def accept(self, workspace_spec: WorkspaceSpec) -> None:
        """What was done there is not taken back any more: others may work there from now on.

        Raises:
            OSError: it could not be said.
        """
        ...

    async def forget(self, workspace_spec: WorkspaceSpec) -> None:
        """The task has come to its end: drop what was saved on the way to it and is not needed any more.

        Raises:
            OSError: it could not be; what is left does no harm.
        """
        ...

    async def list_sessions(self) -> list[str]:
        """The sessions whose places were never put away, and are not kept."""
        ...

    async def clean_up(self, session_id: str, message: str) -> Released:
        """Nobody works there any more: keep what was done, and remove the rest.

        Raises:
            OSError: it could not be; everything is still there.
        """
        ...


class FileRefused(OSError):
    """The file is not for agents: it is not in the workspace, or the supervisor's own, or git's."""


class AgentFiles(Protocol):
    """The text files that an agent asks us for. Whether it may read or write at all is decided before; which files
    there are for an agent that works in *workspace*, here: only what was opened can be judged for good."""

    async def read(self, path: str, workspace: str) -> str:
        """The text of the file at *path*.

        Raises:
            FileRefused: it is not for agents.
            OSError: there is none, it is no regular file, no UTF-8, or longer than ``bounds.FILE_BYTES_MAX``.
        """
        ...

    async def write(self, path: str, text: str, workspace: str) -> None:
        """Make *text* the whole of the file at *path*; it and its directories are made where there are none.

        Raises:
            FileRefused: it is not for agents; nothing was made or changed.
            OSError: it cannot be.
        """
        ...
