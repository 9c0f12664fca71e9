"""Workspace port: the directories in which sessions work, the merge of their work, and files that agents request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from supervisor.lifecycles.types import HeldBy
from supervisor.lifecycles.workstream import WorkBranch


class WorkspaceHeld(OSError):
    """Error: something outside of the work, such as a lock of another git, prevents a step; nothing has changed. The
    step says nothing about the work, and can be made when the obstacle is gone.

    Args:
        held_by: the obstacle.
    """

    def __init__(self, held_by: HeldBy) -> None:
        super().__init__(f"held by {held_by.what}; {held_by.fix}")
        self.held_by = held_by


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a merge of a session's work: ``merged`` (*commit* is the new state of the target), ``nothing`` to
    merge, or ``refused``.

    *why* is the reason of a refusal, or the reason why nothing is to be merged; *files* are the files in conflict.
    *conflicts*: the work contradicts the target, and can be merged when the conflict is resolved.
    """

    outcome: str
    commit: str = ""
    target: str = ""
    files: tuple[str, ...] = ()
    why: str = ""
    conflicts: bool = False


class MergePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of the one merge of a workstream: its *commit* on *branch* is to be merged into *target*, which is at
    *target_commit*. *base* is the last commit that both have.

    ``files`` are the paths that the workstream changes; ``whole`` is false if there are more than can be listed.
    ``behind`` is the number of commits that the target has since *base*; ``conflicts`` are the files in conflict with
    them. ``is_merged``: the target has the commit already, so that there is nothing to merge. *run* is the id of the
    workstream, ``tasks`` the names of the tasks whose work is on the branch, ``left_out`` those of the others, each
    with its end.
    """

    branch: str
    commit: str
    target: str
    target_commit: str
    base: str
    files: tuple[str, ...] = ()
    whole: bool = True
    behind: int = 0
    conflicts: tuple[str, ...] = ()
    is_merged: bool = False
    run: str = ""
    tasks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a session since its work and the target diverged: from *base* to *commit*, which holds all changes.

    ``files`` are paths from the top of the repository, at both ends of a rename; ``whole`` is false if there are more
    files than can be listed. ``diff`` is a patch as text, ``""`` if the patch is too long to be shown.
    """

    base: str
    commit: str
    files: tuple[str, ...] = ()
    whole: bool = True
    diff: str = ""


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a clean-up: *branch* names a branch with work that is not in the target, *directory* a directory that
    still exists. Both are empty if nothing is left; *problem* is the reason why the result is unknown."""

    branch: str = ""
    directory: str = ""
    problem: str = ""


class WorkspaceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements on the workspace of a session that works on a task.

    *owner* is the id of the task, *directory* the directory that the session's agent is configured for, *files* the
    paths in it that the task owns. *starts_at* is the checkpoint with which the workspace begins (``""``: the workspace
    is used as it is); with *merges_target* the target is merged in there, and a conflict is left standing. With
    *rollback* the workspace can be reset to its beginning; with *kept* it is not cleaned up when its session ends.
    *workstream* is the workstream whose branch stands for the target (``""``: the target itself).
    """

    owner: str = ""
    directory: str = ""
    files: tuple[str, ...] = ()
    starts_at: str = ""
    merges_target: bool = False
    rollback: bool = False
    kept: bool = False
    workstream: str = ""


NO_WORKSPACE: Final = WorkspaceSpec()
"""Workspace specification without requirements."""


class WorktreeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Set-up of a new worktree: *copied* are paths in the user's checkout that git ignores, such as ``.env``; with
    *submodules* the submodules are checked out; *command* is run last, in the top directory of the worktree, by
    ``sh -c`` in the environment *env*. Each of these, and git's own checkout, may take *timeout_s* seconds."""

    timeout_s: float = 300.0
    submodules: bool = False
    copied: tuple[str, ...] = ()
    command: str = ""
    env: dict[str, str] = {}


class Workspace(Protocol):
    """Provider of directories for sessions, which also merges the work of the sessions.

    Each step may raise ``WorkspaceHeld``: something outside of the work prevents the step, which has changed nothing.
    """

    @property
    def temporary(self) -> bool:
        """Whether a prepared directory exists for the session alone, and is removed after it."""
        ...

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """Provide a directory; return its path. A second call returns the same directory with its content.

        Args:
            session_id: the session that works there.
            directory: the directory that the session's agent is configured for.
            root_id: the root session above it; both work in the same workspace.

        Raises:
            OSError: the directory does not exist and cannot be made; the message gives the reason.
        """
        ...

    async def commit(self, session_id: str, message: str) -> str:
        """Commit everything that a session has done; return the commit, which is verified and then merged.

        Return ``""`` if the work stays in place, or cannot be merged as it is (:meth:`merge` then gives the reason).

        Raises:
            OSError: the workspace is gone, or nothing can be committed; the message gives the reason.
        """
        ...

    async def open_branch(
        self, workstream_id: str, directory: str, *, resumes: str = "", holds: Sequence[str] = ()
    ) -> WorkBranch:
        """Make the branch of a workstream in the repository of *directory*: at the branch of the workstream that it
        *resumes*, or else at the target. A branch of that name with the work of an earlier journal is renamed.

        Args:
            holds: commits of work that the new branch must have.

        Raises:
            OSError: the branch cannot be made, or a commit of *holds* is missing there; the message gives the reason.
        """
        ...

    async def plan_merge(self, workstream_id: str, commit: str = "") -> MergePlan:
        """Return the plan of the merge of a workstream's branch, or of its *commit*, into the target. Nothing changes.

        Raises:
            OSError: the branch does not exist, or it cannot be read; the message gives the reason.
        """
        ...

    async def merge(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Merge:
        """Merge a session's work, or the branch of a workstream: *commit* and nothing later, or everything if *commit*
        is ``""``. It is merged into the branch of the *workstream*, or with ``""`` into the target.

        If the caller is cancelled, either nothing is merged, or the call returns all the same.

        Raises:
            OSError: the outcome is unknown; the message gives the reason.
        """
        ...

    async def changes(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Changes | None:
        """Return the session's changes up to *commit*; with ``""`` all of them, committed under *message* first. They
        are counted from the branch of the *workstream*, or with ``""`` from the target.

        Return ``None`` if they are unknown, or nothing is to be merged.

        Raises:
            OSError: the changes cannot be read; the message gives the reason.
        """
        ...

    async def changed_since(self, session_id: str, directory: str, since: float) -> bool:
        """Return whether a file in the workspace of a session may have been changed, made or removed, or something
        committed there, since *since* (Unix time in seconds); also if that is unknown.

        Args:
            directory: the directory in which the session's agent works.

        Raises:
            OSError: the workspace cannot be read.
        """
        ...

    async def outside_changes(self, session_id: str) -> list[str]:
        """Return sentences about what has changed outside of the session's workspace, in what belongs to the user,
        since the workspace was set up or this was last asked; none if that is not watched.

        Raises:
            OSError: that cannot be found out.
        """
        ...

    async def begin(self, session_id: str, spec: WorkspaceSpec) -> None:
        """Set up the workspace of a session as *spec* requires, before :meth:`prepare`. A second call changes nothing.

        Raises:
            OSError: the workspace cannot be set up, for example because a checkpoint is gone; the message gives the
                reason.
        """
        ...

    async def save(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Save a session's work so far; return the checkpoint, which exists until :meth:`forget`.

        Return ``""`` if the work stays in place, or there is no work.

        Raises:
            OSError: the work cannot be saved; no work is lost.
        """
        ...

    async def roll_back(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Reset the workspace to its beginning, or to ``spec.starts_at``; return a checkpoint of the work done, ``""``
        if there was no work.

        Raises:
            OSError: the workspace could not be reset; no work is lost.
        """
        ...

    async def accept(self, spec: WorkspaceSpec) -> None:
        """Give up the possibility to roll back the workspace: other sessions may work there from now on.

        Raises:
            OSError: the decision could not be recorded.
        """
        ...

    async def forget(self, spec: WorkspaceSpec) -> None:
        """Remove the checkpoints of a task that has ended, as far as the checkpoints are not needed any more.

        Raises:
            OSError: something could not be removed, which does no harm.
        """
        ...

    async def list_sessions(self) -> list[str]:
        """Return the sessions whose workspaces were not cleaned up yet, without those whose workspaces are kept."""
        ...

    async def clean_up(self, session_id: str, message: str) -> Released:
        """Save the work of a session that has ended, and remove the rest of its workspace; or remove the branch of a
        workstream, unless only that branch has its work.

        Raises:
            OSError: the clean-up failed; everything is still there.
        """
        ...


class FileRefused(OSError):
    """Error: an agent may not use the file: it is outside the workspace, or belongs to the supervisor or to git."""


class AgentFiles(Protocol):
    """Access to the text files that an agent requests. The permission to read or write is decided by the caller; this
    port decides which files an agent in *workspace* may reach, since only an opened file can be checked reliably."""

    async def read(self, path: str, workspace: str) -> str:
        """Return the text of the file at *path*.

        Raises:
            FileRefused: an agent may not use the file.
            OSError: the file does not exist, or is no regular file, no UTF-8, or longer than
                ``input_limits.FILE_BYTES_MAX``.
        """
        ...

    async def write(self, path: str, text: str, workspace: str) -> None:
        """Write *text* to the file at *path*, replacing it as a whole; make missing directories.

        Raises:
            FileRefused: an agent may not use the file; nothing was made or changed.
            OSError: the file cannot be written.
        """
        ...
