"""Contents of simulated workspaces and checkpoints: a worktree for each session, or one workspace for all sessions of a
task.

The contents are on the machine's disk: they outlive supervisors, and each operation is done at once or not at all. The
work of an agent is a piece with a name, so a checker can find out which pieces an attempt found, which pieces a
checkpoint holds, and whether any work is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha1

from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.workstream import WorkBranch
from supervisor.ports import Merge, MergePlan, Released, WorkspaceSpec
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, TaskScripts

Pieces = tuple[str, ...]
BEFORE = "before "


class WorkspaceContents:
    """Contents of all workspaces of one machine. With *worktrees* each session has a separate worktree. *takes_back* is
    called with the owner of the work before that work is rolled back in a shared workspace."""

    def __init__(self, task_scripts: TaskScripts, takes_back: Callable[[str], None], *, worktrees: bool) -> None:
        self.worktrees = worktrees
        self._takes_back = takes_back
        self._task_scripts = task_scripts
        self._trees: dict[str, Pieces] = {}
        self._begun: dict[str, Pieces] = {}
        """Pieces that were in a workspace at its beginning, by workspace."""
        self._branches: dict[str, Pieces] = {}
        """Pieces in the branches of worktrees that were removed, by session."""
        self._kept: set[str] = set()
        self.taken_back: set[str] = set()
        """All pieces that were rolled back so far."""
        self._saved: dict[str, Pieces] = {}
        self._owners: dict[str, set[str]] = {}
        """Names of the checkpoints of each owner (task), by owner."""
        self._target: Pieces = ()
        self._runs: dict[str, Pieces] = {}
        """Pieces on the branches of workstreams, by the id of the run."""

    # ------------------------------------------------------------------ looked at
    def held(self, name: str) -> Pieces | None:
        """Return the pieces in the checkpoint *name*; ``None`` if no such checkpoint exists."""
        return self._saved.get(name)

    def everything(self) -> set[str]:
        """Return all pieces that exist anywhere: in workspaces, branches, checkpoints and the merge target."""
        kept = (*self._trees.values(), *self._branches.values(), *self._saved.values())
        kept = (*kept, *self._runs.values(), self._target)
        return {piece for pieces in kept for piece in pieces}

    # ------------------------------------------------------------------ agents
    def found(self, session_id: str) -> Pieces:
        """Return the pieces that are in the session's workspace, which its agent finds when the agent begins."""
        return self._trees.get(self._key(session_id), ())

    def write(self, session_id: str, attempt: Attempt, task_script: TaskScript) -> None:
        """Add a piece of work to the session's workspace, unless the workspace was removed."""
        key = self._key(session_id)
        if key in self._trees:
            piece = f"{task_script.name}#{sum(len(one.pieces) for one in task_script.attempts)}"
            attempt.pieces.append(piece)
            self._trees[key] = (*self._trees[key], piece)

    # ------------------------------------------------------------------ the workspace
    def prepare(self, session_id: str) -> None:
        """Make an empty workspace for the session of a task, unless the workspace exists already."""
        if self._task_scripts.of(session_id) is not None and self._key(session_id) not in self._trees:
            self._make(self._key(session_id), ())

    def _make(self, key: str, pieces: Pieces) -> None:
        self._trees[key] = self._begun[key] = pieces

    def begin(self, session_id: str, place: WorkspaceSpec) -> None:
        """Set up the workspace as *place* says, perhaps with the contents of a checkpoint.

        Raises:
            OSError: the checkpoint does not exist.
        """
        if place.starts_at and place.starts_at not in self._saved:
            raise FileNotFoundError(f"there is no checkpoint {place.starts_at}")
        if not self.worktrees:
            self._begin_shared(place)
            return
        if session_id not in self._trees:
            self._make(session_id, self._saved.get(place.starts_at, ()))
        if place.kept:
            self._kept.add(session_id)

    def _begin_shared(self, place: WorkspaceSpec) -> None:
        key = self._name_of(place)
        self._saved.setdefault(BEFORE + place.owner, self._trees.get(key, ()))
        if place.starts_at:
            self._trees[key] = self._saved[place.starts_at]

    def save(self, session_id: str, place: WorkspaceSpec) -> str:
        """Save a checkpoint of the session's workspace and return the checkpoint's name; ``""`` if the session has no
        workspace, or the work is not to be copied."""
        key = self._place_of(session_id, place)
        pieces = self._trees.get(key, self._branches.get(key))
        if pieces is None or not (self.worktrees or place.files):
            return ""
        name = sha1("\0".join((key, *pieces)).encode(), usedforsecurity=False).hexdigest()
        self._saved[name] = pieces
        self._owners.setdefault(place.owner, set()).add(name)
        return name

    def roll_back(self, session_id: str, place: WorkspaceSpec) -> str:
        """Restore the contents that the workspace had at its beginning; return the name of a checkpoint of the contents
        before the restoration."""
        key, before = self._place_of(session_id, place), BEFORE + place.owner
        if self.worktrees and key not in self._trees:
            raise FileNotFoundError(f"{session_id} has no worktree")
        if not self.worktrees and before not in self._saved:
            return ""
        if not self.worktrees:
            self._takes_back(place.owner)
        name, found = self.save(session_id, place), self._trees.get(key, ())
        self._trees[key] = self._begun[key] if self.worktrees else self._saved.pop(before)
        self.taken_back |= set(found) - set(self._trees[key])
        return name

    def accept(self, place: WorkspaceSpec) -> None:
        """Accept the work in the workspace, so that the work cannot be rolled back any more."""
        self._saved.pop(BEFORE + place.owner, None)

    def forget(self, place: WorkspaceSpec) -> None:
        """Drop the checkpoints of a shared workspace. Checkpoints of worktrees stay, since branches still refer to
        them."""
        for name in () if self.worktrees else (*self._owners.pop(place.owner, ()), BEFORE + place.owner):
            self._saved.pop(name, None)

    def open_branch(self, workstream_id: str, directory: str, resumes: str) -> WorkBranch:
        """Make the branch of a workstream, with the pieces of the one that it resumes, or else of the merge target."""
        pieces = self._runs[workstream_id] = self._runs.get(resumes, self._target)
        return WorkBranch(name=f"supervisor/{workstream_id}", base=_commit(pieces), directory=directory)

    def plan_merge(self, workstream_id: str) -> MergePlan:
        """Return the plan of the merge of a workstream's branch into the merge target.

        Raises:
            OSError: the branch was removed.
        """
        if workstream_id not in self._runs:
            raise FileNotFoundError(f"there is no branch supervisor/{workstream_id}")
        pieces, new = self._runs[workstream_id], [*self.lacks(self._runs[workstream_id])]
        return MergePlan(
            branch=f"supervisor/{workstream_id}",
            commit=_commit(pieces),
            target="main",
            target_commit=_commit(self._target),
            base=_commit(self._target),
            files=tuple(new),
            is_merged=not new,
        )

    def merged(self, session_id: str, workstream_id: str = "") -> Merge:
        """Merge the work of the session, or the branch of a workstream, into the branch of *workstream_id*, or into the
        merge target; return the result of the merge."""
        had = self._runs[workstream_id] if workstream_id else self._target
        now = (*had, *(piece for piece in self._done_by(session_id) if piece not in set(had)))
        if workstream_id:
            self._runs[workstream_id] = now
        else:
            self._target = now
        return Merge(
            outcome="merged", commit=_commit(now), target=f"supervisor/{workstream_id}" if workstream_id else "main"
        )

    def has(self, session_id: str, workstream_id: str = "") -> bool:
        """Whether the session has work in a worktree, or the workstream on its branch, and all of it is merged."""
        done = self._done_by(session_id)
        into = self._runs.get(workstream_id, ()) if workstream_id else self._target
        return self.worktrees and bool(done) and set(done) <= set(into)

    def lacks(self, pieces: Iterable[str]) -> Pieces:
        """Return the pieces, out of *pieces*, that are neither in the merge target nor on the branch of a
        workstream."""
        held = {*self._target, *(piece for branch in self._runs.values() for piece in branch)}
        return tuple(piece for piece in pieces if piece not in held)

    def _done_by(self, session_id: str) -> Pieces:
        key = self._key(session_id)
        return self._trees.get(key, self._branches.get(key, self._runs.get(session_id, ())))

    def clean_up(self, session_id: str) -> Released:
        """Remove the session's worktree, or the branch of a workstream; return the name of the branch, which stays if
        the work is not merged."""
        if (pieces := self._runs.pop(session_id, None)) is not None:
            if not self.lacks(pieces):
                return Released()
            self._runs[session_id] = pieces
            return Released(branch=f"supervisor/{session_id}")
        if not self.worktrees or session_id not in self._trees:
            return Released()
        self._kept.discard(session_id)
        left = self._branches[session_id] = self._trees.pop(session_id)
        return Released(branch="" if not self.lacks(left) else f"supervisor/{session_id}")

    def list_sessions(self) -> list[str]:
        """Return the sessions whose worktrees were not removed and are not marked to be kept."""
        return sorted(self._trees.keys() - self._kept) if self.worktrees else []

    # ------------------------------------------------------------------ names
    def _key(self, session_id: str) -> str:
        task_script = self._task_scripts.of(session_id)
        return session_id if self.worktrees or task_script is None else task_script.name

    def _place_of(self, session_id: str, place: WorkspaceSpec) -> str:
        """Return the key of a workspace: the session, or, for a shared workspace, the task, which perhaps no session
        holds any more."""
        return session_id if self.worktrees else self._name_of(place)

    def _name_of(self, place: WorkspaceSpec) -> str:
        return self._key(name_of_task(place.owner))


def _commit(pieces: Pieces) -> str:
    return f"{len(pieces):040x}"
