"""Steps in the user's repository, with a durable record of each step before it is taken.

Theory of operation
-------------------
A supervisor may be killed at any instant, and a disk may be full. Half-done changes then lie in a repository that
belongs to the user: a locked index, a branch that is not needed, half of a fast-forward. So each step is first written
to a file of the state directory (content, rename and folder are synced), and the file is removed when the step is done.
A file that exists at the start of a supervisor, or of the next step, names a step that must be finished or undone
before anything else happens. Steps are taken one at a time, so there is one file.

Example: ``{"type": "MakeWorktree", "name": "t", "start": "4f0c..."}`` exists while ``git worktree add`` runs. If the
supervisor is killed, the next one removes what exists of that worktree and of its branch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from supervisor.ports.secure_files import PRIVATE_FILE, make_private
from supervisor.workspaces.git_command import WorkspaceError


class MakeWorktree(msgspec.Struct, frozen=True, tag="MakeWorktree"):
    """Step: make a worktree and its branch. An interrupted ``MakeWorktree`` is undone.

    Attributes:
        name: the folder of the worktree, and the last part of its branch.
        start: the commit that the branch begins with.
    """

    name: str
    start: str


class CommitWork(msgspec.Struct, frozen=True, tag="CommitWork"):
    """Step: commit the work of a session and let references name it. After an interrupted ``CommitWork`` stale locks
    are removed; nothing else can be left."""

    name: str


class RollBack(msgspec.Struct, frozen=True, tag="RollBack"):
    """Step: reset a worktree to a commit; a reference holds the work that was done there. An interrupted ``RollBack``
    is completed."""

    name: str
    base: str


class RemoveWorktree(msgspec.Struct, frozen=True, tag="PutAway"):
    """Step: remove a worktree, and its branch if the target contains it. An interrupted ``RemoveWorktree`` is completed
    if the removal had begun."""

    name: str


class DropCheckpoints(msgspec.Struct, frozen=True, tag="Forget"):
    """Step: remove references to checkpoints that the target contains. An interrupted ``DropCheckpoints`` is
    completed."""


class Advance(msgspec.Struct, frozen=True, tag="Advance"):
    """The target is moved on in a directory that has it checked out. An interrupted ``Advance`` is completed if the
    branch has moved, or the index has the merge; else it is undone.

    Attributes:
        holder: the directory that has the target checked out.
        git_dir: the directory in which git keeps the index of *holder*.
        target: the branch.
        before: its commit before the step.
        after: its commit after the step.
        token: content of the lock file that belongs to this step alone.
        begun: files of the user may have been touched: before, all of them were as *before* has them.
    """

    holder: str
    git_dir: str
    target: str
    before: str
    after: str
    token: str
    begun: bool = False


Step = MakeWorktree | CommitWork | RollBack | RemoveWorktree | DropCheckpoints | Advance


class OpenStep(msgspec.Struct, frozen=True):
    """A step that was begun and not ended, and the time of its record: no file older than ``since_ns`` can be a trace
    of the step."""

    step: Step
    since_ns: int


class StepFile:
    """The file with the record of the current step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f"{path.name}.new")

    def read(self) -> OpenStep | None:
        """Return the step that was begun and not ended, or ``None``.

        Raises:
            WorkspaceError: the file cannot be read, or is no record of a step.
        """
        try:
            self._new.unlink(missing_ok=True)
            content, since_ns = self._path.read_bytes(), self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        try:
            return OpenStep(msgspec.convert(json.loads(content), type=Step), since_ns)
        except (ValueError, msgspec.ValidationError) as error:
            words = f"{self._path} is to name the last step in the repository, and cannot be read ({error})"
            raise WorkspaceError(f"{words}; see that git status is clean there, and remove the file") from error

    def begin(self, step: Step) -> None:
        """Write the record of *step*, in place of the record before.

        Raises:
            OSError: the record cannot be written; the step must not be taken.
        """
        make_private(self._path.parent)
        fields: dict[str, Any] = msgspec.to_builtins(step)
        # json, since a path may hold bytes that are no UTF-8: as lone surrogates they survive only there.
        with open(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE), "w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(file.fileno())
        self._new.replace(self._path)
        self._sync_folder()

    def end(self) -> None:
        """Remove the record of the step. If a power cut undoes the removal, the next supervisor only checks the step
        once more."""
        self._path.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
