"""Contents of simulated workspaces and checkpoints: a worktree for each session, or one place for all sessions of a
task.

They are the machine's disk: they outlive supervisors, and each operation is done at once or not at all. The work of an
agent is a piece with a name, so a checker can say what an attempt found, what a checkpoint holds, and whether any work
is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha1

from supervisor.ports import Merge, Released, WorkspaceSpec
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, TaskScripts

Pieces = tuple[str, ...]
BEFORE = "before "


class WorkspaceContents:
    """Workspaces of one machine. With *worktrees* each session has its own. *takes_back* is called with the owner
    before its work is rolled back in a shared place."""

    def __init__(self, task_scripts: TaskScripts, takes_back: Callable[[str], None], *, worktrees: bool) -> None:
        self.worktrees = worktrees
        self._takes_back = takes_back
        self._task_scripts = task_scripts
        self._trees: dict[str, Pieces] = {}
        self._begun: dict[str, Pieces] = {}
        """Pieces that each tree began with."""
        self._branches: dict[str, Pieces] = {}
        """Pieces in the worktrees that are gone."""
        self._kept: set[str] = set()
        self.taken_back: set[str] = set()
        """Pieces that were rolled back."""
        self._saved: dict[str, Pieces] = {}
        self._owners: dict[str, set[str]] = {}
        """Checkpoints of each task of a shared place."""
        self._target: Pieces = ()

    # ------------------------------------------------------------------ looked at
    def held(self, name: str) -> Pieces | None:
        """Pieces in that checkpoint; ``None`` if there is no such checkpoint."""
        return self._saved.get(name)

    def everything(self) -> set[str]:
        """Pieces that are anywhere: in trees, branches, checkpoints and the merge target."""
        kept = (*self._trees.values(), *self._branches.values(), *self._saved.values(), self._target)
        return {piece for pieces in kept for piece in pieces}

    # ------------------------------------------------------------------ agents
    def found(self, session_id: str) -> Pieces:
        """Pieces that a session finds when its agent begins."""
        return self._trees.get(self._key(session_id), ())

    def write(self, session_id: str, attempt: Attempt, task_script: TaskScript) -> None:
        """Add a piece of work to the session's place, unless that is gone."""
        key = self._key(session_id)
        if key in self._trees:
            piece = f"{task_script.name}#{sum(len(one.pieces) for one in task_script.attempts)}"
            attempt.pieces.append(piece)
            self._trees[key] = (*self._trees[key], piece)

    # ------------------------------------------------------------------ the workspace
    def prepare(self, session_id: str) -> None:
        """Make an empty place for the session of a task, unless there is one."""
        if self._task_scripts.of(session_id) is not None and self._key(session_id) not in self._trees:
            self._make(self._key(session_id), ())

    def _make(self, key: str, pieces: Pieces) -> None:
        self._trees[key] = self._begun[key] = pieces

    def begin(self, session_id: str, place: WorkspaceSpec) -> None:
        """Set up the place as *place* says.

        Raises:
            OSError: the checkpoint is not there.
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
        """Save a checkpoint and return its name; ``""`` if the session has no place, or its work is not to be
        copied."""
        key = self._place_of(session_id, place)
        pieces = self._trees.get(key, self._branches.get(key))
        if pieces is None or not (self.worktrees or place.files):
            return ""
        name = sha1("\0".join((key, *pieces)).encode(), usedforsecurity=False).hexdigest()
        self._saved[name] = pieces
        self._owners.setdefault(place.owner, set()).add(name)
        return name

    def roll_back(self, session_id: str, place: WorkspaceSpec) -> str:
        """Restore what the place began with; return the checkpoint of what was there."""
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
        """Keep the work: it is not rolled back any more."""
        self._saved.pop(BEFORE + place.owner, None)

    def forget(self, place: WorkspaceSpec) -> None:
        """Drop the checkpoints of a shared place. Worktrees keep theirs: branches still refer to them."""
        for name in () if self.worktrees else (*self._owners.pop(place.owner, ()), BEFORE + place.owner):
            self._saved.pop(name, None)

    def merged(self, session_id: str) -> Merge:
        """Merge the work of the session."""
        new = self._done_by(session_id)
        self._target = (*self._target, *(piece for piece in new if piece not in set(self._target)))
        return Merge(outcome="merged", commit=f"{len(self._target):040x}", target="main")

    def has(self, session_id: str) -> bool:
        """Whether the work of the session is merged."""
        done = self._done_by(session_id)
        return self.worktrees and bool(done) and set(done) <= set(self._target)

    def lacks(self, pieces: Iterable[str]) -> Pieces:
        """Those of *pieces* that are not merged."""
        return tuple(piece for piece in pieces if piece not in set(self._target))

    def _done_by(self, session_id: str) -> Pieces:
        key = self._key(session_id)
        return self._trees.get(key, self._branches.get(key, ()))

    def clean_up(self, session_id: str) -> Released:
        """Remove the session's worktree; its branch stays if its work is not merged."""
        if not self.worktrees or session_id not in self._trees:
            return Released()
        self._kept.discard(session_id)
        left = self._branches[session_id] = self._trees.pop(session_id)
        return Released(branch="" if set(left) <= set(self._target) else f"supervisor/{session_id}")

    def list_sessions(self) -> list[str]:
        """Sessions whose worktrees were not removed and are not kept."""
        return sorted(self._trees.keys() - self._kept) if self.worktrees else []

    # ------------------------------------------------------------------ names
    def _key(self, session_id: str) -> str:
        task_script = self._task_scripts.of(session_id)
        return session_id if self.worktrees or task_script is None else task_script.name

    def _place_of(self, session_id: str, place: WorkspaceSpec) -> str:
        """Key of a place: for a shared one that of the task, which perhaps nobody holds any more."""
        return session_id if self.worktrees else self._name_of(place)

    def _name_of(self, place: WorkspaceSpec) -> str:
        return self._key(place.owner.removeprefix("task:"))
