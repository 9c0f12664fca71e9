"""Git workspaces: a worktree and a branch for each root session, and the merge of its work into the target branch.

A workstream may have a branch of its own, which then stands for the target: its sessions begin from that branch and are
merged into it, and the branch is merged into the target as a whole (``open_branch``, ``plan_merge``).

An agent's work is committed before its worktree is removed; a branch is removed only when its work is in the target, or
on the branch of another workstream. A
worktree is reset only when it is rolled back, after its work was saved as a checkpoint. A checkpoint is a commit with a
reference of its own, which exists until the target contains the commit, whatever happens to branches. A reset and a
removal lose the files that git ignores. The target moves by fast-forward only: a merge is made without a worktree, and
writes into a checkout of the target only files without local changes, or the merge is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import unquote

import anyio
import msgspec

from supervisor.lifecycles.run_ids import RUN_PREFIX, is_run_id
from supervisor.lifecycles.workstream import WorkBranch
from supervisor.ports import (
    NO_WORKSPACE,
    Changes,
    Merge,
    MergePlan,
    ProcessHost,
    Released,
    WorkspaceHeld,
    WorkspaceSpec,
    WorktreeSetup,
)
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import make_private
from supervisor.workspaces.fast_forward import FastForward
from supervisor.workspaces.git_command import (
    OWN_STYLE,
    RAW,
    SHOW_INNER,
    USER,
    CommitStyle,
    Git,
    GitKilled,
    WorkspaceError,
    error_of,
    failure_of,
    names_in_list,
    repositories_listed,
    some_of,
    text_of,
)
from supervisor.workspaces.main_checkout import Checkout, describe_changes, look, setting_remarks
from supervisor.workspaces.obstacles import obstacle_of, target_moves
from supervisor.workspaces.recent_changes import CLOCK_S, changed_since
from supervisor.workspaces.stale_locks import (
    locks_of_agent,
    locks_of_references,
    locks_of_worktree,
    remove_stale_locks,
)
from supervisor.workspaces.steps import (
    Advance,
    CommitWork,
    DropCheckpoints,
    MakeWorktree,
    RemoveWorktree,
    RollBack,
    Step,
    StepFile,
)
from supervisor.workspaces.worktree_files import (
    BRANCHES,
    KEPT_LOCK,
    branch_beside,
    branch_of,
    entries_of,
    is_being_made,
    is_kept,
    is_own_merge,
    is_worktree,
    move_aside,
    note_own_merge,
    operation_begun_in,
    plain_name,
    remove_entries,
    remove_half_made,
    remove_index_lock,
    remove_torn_lock,
    sweep,
    unresolved_files,
    worktree_names,
)
from supervisor.workspaces.worktree_setup import INITIALIZING, NO_SETUP, check_setup, fill_worktree

_log = get_logger()
_P = ParamSpec("_P")
_T = TypeVar("_T")

STEP_FILE: Final = ".step.json"
"""File name of the record of the current step, beside the worktrees; no session has such a name."""

GIT_MIN: Final = (2, 38)
"""First version of git that merges without a worktree (``merge-tree --write-tree``)."""

TRIES = 10
"""Number of tries of a merge whose target moves meanwhile."""

UNLOCKED_TRIES: Final = 5
"""Number of these tries that lock the user's index only while files are replaced. The others lock it before the merge
is computed, so that a user who commits more often than some 20 git commands take cannot prevent the merge."""

PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds between the tries of a step whose git was killed."""

_ALL_THAT_IS_THERE: Final = ("-c", "core.sparseCheckout=true", "-c", "sparse.expectFilesOutsideOfPatterns=false")
"""Settings with which git also examines files that it was to leave out of the worktree (sparse checkout,
``--skip-worktree``), if they exist there."""
_QUIT: Final = (("rebase", "--quit"), ("am", "--quit"), ("cherry-pick", "--quit"), ("bisect", "reset", "HEAD"))
"""Git commands that end an operation under way and leave ``HEAD`` where it is."""
_SAVED: Final = "refs/supervisor/checkpoints"
"""Prefix of the references that hold checkpoints. Such a reference is no branch, so that it is not checked out by
mistake."""
NOTHING: Final = ""
"""Old value of a branch that must not exist. Git takes zeros, too; their number depends on the repository's hash."""


def _repeated(
    step: Callable[Concatenate[GitWorkspaces, _P], Awaitable[_T]],
) -> Callable[Concatenate[GitWorkspaces, _P], Coroutine[Any, Any, _T]]:
    """Make a step of :class:`GitWorkspaces` again when a git of it was killed, at most ``len(PAUSES_S)`` times: a kill
    says nothing about the work (rule 48). The step was finished or undone before, as after a kill of the supervisor. A
    disk that is full becomes the error ``WorkspaceHeld``."""

    async def repeated(self: GitWorkspaces, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        for pause_s in (*PAUSES_S, None):
            try:
                return await step(self, *args, **kwargs)
            except GitKilled as error:
                if pause_s is None:
                    raise
                _log.warning("a step in the repository is made again", why=str(error), pause_s=pause_s)
                await anyio.sleep(pause_s)
            except OSError as error:
                if (held_by := obstacle_of(error, self._repository)) is None:
                    raise
                raise WorkspaceHeld(held_by) from error
        raise AssertionError("the last try returns or raises")

    update_wrapper(repeated, step)
    return repeated


class GitWorkspaces:
    """Workspaces (``supervisor.ports.Workspace``) in worktrees of one repository; one task at a time makes changes."""

    temporary: Final = True

    def __init__(
        self,
        host: ProcessHost,
        root: Path,
        repository: str,
        target: str = "",
        setup: WorktreeSetup = NO_SETUP,
        commits: CommitStyle = OWN_STYLE,
    ) -> None:
        """Args: host: runs the git commands. root: the directory below which worktrees are made. repository: a
        directory in the repository. target: the branch that the work is for; by default the branch that is checked out
        in *repository*. setup: what is done in each new worktree. commits: author and signature of commits."""
        self._host, self._setup, self._commits = host, setup, commits
        self._git = Git(host, repository, commits)
        self._steps = StepFile(root / STEP_FILE)
        self._forward = FastForward(self._git, self._steps)
        self._root, self._repository, self._target = root, repository, target
        self._one_at_a_time = anyio.Lock()
        self._making: dict[Path, anyio.Lock] = {}
        """Locks of the worktrees that are being made, by path: a worktree is filled while others are changed."""
        self._seen: dict[str, Checkout] = {}
        """The user's checkout as it was when the worktree of a session was made, by session."""
        self._merged: set[str] = set()
        """Commits to which merges have moved the target."""

    @_repeated
    async def check(self) -> None:
        """Check that git and the repository are usable; finish or undo the step of an earlier supervisor.

        Raises:
            WorkspaceError: as for ``check_usable``.
        """
        await self.check_usable()
        for remark in await self.remarks():
            _log.warning(remark)
        async with self._one_at_a_time:
            await self._recover()
        await self.forget(NO_WORKSPACE)  # an earlier supervisor may not have lived to

    async def check_usable(self) -> None:
        """Check that git and the repository are usable, and change nothing.

        Raises:
            WorkspaceError: git is missing or too old; there is no repository or no target, or a branch has a name that
                is needed.
        """
        version = await self._git.run(self._repository, "version")
        if not version.ok:
            raise WorkspaceError(f"workspace: worktree needs git: {error_of(version)}")
        found = re.search(r"(?<!\d)(\d{1,9})\.(\d{1,9})", text_of(version))
        if found is None or tuple(map(int, found.groups())) < GIT_MIN:
            raise WorkspaceError(
                f"workspace: worktree needs git {'.'.join(map(str, GIT_MIN))}, this is {text_of(version)}"
            )
        await self._git.path_inside(self._repository)
        if self._commits.author == USER:
            known = await self._git.run(self._repository, "var", "GIT_COMMITTER_IDENT")
            if not known.ok:
                words = f"commits.author: 'user', but git knows no name and address there ({error_of(known)})"
                raise WorkspaceError(f"{words}; set user.name and user.email, or give NAME <EMAIL>")
        await self.target()
        if await self._git.commit_of(self._repository, f"refs/heads/{BRANCHES}"):
            words = f"{self._repository} has a branch {BRANCHES!r}, so that no session can have one below {BRANCHES}/"
            raise WorkspaceError(f"{words}; rename it (git branch -m {BRANCHES} NAME), or use workspace: directory")
        await check_setup(self._git, self._setup)

    async def remarks(self) -> list[str]:
        """Return sentences about settings of the repository that have no effect here (``setting_remarks``)."""
        return await setting_remarks(self._git, self._commits)

    # ------------------------------------------------------------------------------------------ one step at a time
    @asynccontextmanager
    async def _step(self, step: Step) -> AsyncIterator[None]:
        """Run the body as *step*, excluding other steps; a durable record of *step* exists until the body is done.

        A step that could be neither finished nor undone is tried again before the next step.

        Raises:
            WorkspaceError: the step before cannot be finished or undone yet, or *step* cannot be recorded.
        """
        async with self._one_at_a_time:
            await self._recover()
            await anyio.to_thread.run_sync(self._steps.begin, step)
            try:
                yield
            except BaseException:
                with anyio.CancelScope(shield=True):
                    try:
                        await self._recover()
                    except OSError as error:
                        _log.error("a step in the repository is left half done", step=step, why=str(error))
                raise
            with anyio.CancelScope(shield=True):  # the caller learns of what has been done
                await anyio.to_thread.run_sync(self._steps.end)

    async def _recover(self) -> None:
        """Finish or undo the step that was begun and not ended, if there is one. Idempotent.

        Raises:
            WorkspaceError: the step can be neither finished nor undone now; its record stays.
        """
        found = await anyio.to_thread.run_sync(self._steps.read)
        if found is None:
            return
        step = found.step
        await self._remove_locks(step, found.since_ns)
        match step:
            case Advance():
                await self._forward.recover(step)
            case MakeWorktree(name=name):
                await self._undo_make(name, found.since_ns)
            case RemoveWorktree(name=name):
                await self._finish_removal(name, found.since_ns)
            case RollBack(name=name, base=base):
                await self._finish_roll_back(name, base)
            case DropCheckpoints():
                await self._drop_checkpoints()
            case CommitWork():
                pass  # the next commit takes what this one has not
        await anyio.to_thread.run_sync(self._steps.end)

    async def _remove_locks(self, step: Step, since_ns: int) -> None:
        common = await self._git.common_dir()
        locks = locks_of_references(common, (f"refs/heads/{BRANCHES}", _SAVED), await self.target())
        if isinstance(step, Advance):
            locks += locks_of_worktree(Path(step.git_dir), index=False)
        elif not isinstance(step, DropCheckpoints):
            for entry in entries_of(common, self._root / step.name, since_ns):
                locks += locks_of_worktree(entry, index=True)
        if removed := await remove_stale_locks(locks, since_ns):
            _log.warning("locks of a git that was killed are removed", locks=[str(lock) for lock in removed])

    async def _undo_make(self, name: str, since_ns: int) -> None:
        """Remove a worktree that may be half made, and its branch unless only that branch holds commits. No agent has
        worked in the worktree yet.

        Raises:
            WorkspaceError: the worktree cannot be removed.
        """
        worktree, branch = self._root / name, f"{BRANCHES}/{name}"
        await anyio.to_thread.run_sync(remove_half_made, worktree)
        await self._remove_traces(name, since_ns)
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if tip and not await self._git.holders(branch) and await self._is_held(branch, tip):
            await self._git.run(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)

    async def _finish_removal(self, name: str, since_ns: int) -> None:
        """Finish the interrupted removal of a worktree. A worktree that still exists is cleaned up later, with the
        other unused ones."""
        if not await anyio.to_thread.run_sync(os.path.lexists, self._root / name):
            await self._remove_traces(name, since_ns)
            await self._drop_branch(f"{BRANCHES}/{name}", await self.target())

    async def _finish_roll_back(self, name: str, base: str) -> None:
        try:
            if is_worktree(self._root / name):
                await self._reset_worktree(self._root / name, f"{BRANCHES}/{name}", base)
        except WorkspaceError as error:  # it is rolled back again before anybody works there
            _log.warning("a worktree could not be rolled back", worktree=str(self._root / name), why=str(error))

    async def _is_held(self, branch: str, tip: str) -> bool:
        """Return whether the commits of *branch* are also in the target, on a workstream's branch, in a checkpoint, or
        in a branch beside *branch*."""
        if await self._is_merged(branch, tip):
            return True
        if await self._git.contains(f"refs/heads/{branch_beside(branch, tip)}", tip):
            return True
        held = await self._git.must(self._repository, "for-each-ref", "--contains", tip, "--count=1", _SAVED)
        return bool(text_of(held))

    async def _is_merged(self, branch: str, tip: str) -> bool:
        """Return whether the target, or the branch of a workstream other than *branch*, has the commit *tip*."""
        if await self._git.contains(f"refs/heads/{await self.target()}", tip):
            return True
        how = ("for-each-ref", "--contains", tip, "--format=%(refname)", f"refs/heads/{BRANCHES}/{RUN_PREFIX}*")
        listed = text_of(await self._git.must(self._repository, *how)).splitlines()
        names = [name.removeprefix("refs/heads/") for name in listed]
        return any(is_run_id(name.removeprefix(f"{BRANCHES}/")) for name in names if name != branch)

    async def _remove_traces(self, name: str, since_ns: int) -> None:
        """Remove the traces that a half-made or half-removed worktree has left in the supervisor's folder and in
        git's."""
        await anyio.to_thread.run_sync(sweep, self._root)
        common = await self._git.common_dir()
        await anyio.to_thread.run_sync(remove_entries, common, self._root / name, since_ns)

    # ------------------------------------------------------------------------------------------ worktrees
    @_repeated
    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """Make a worktree with a branch of its own; return the directory in it that corresponds to *directory*.

        Raises:
            WorkspaceError: the repository, its target or the directory is missing, or git fails.
        """
        inside = await self._git.path_inside(directory)
        await self._ensure_worktree(root_id, NO_WORKSPACE)
        if session_id == root_id:
            async with self._one_at_a_time:
                self._seen[root_id] = await look(self._git, self._root)
        return str(self._worktree_path(root_id) / inside)

    async def changed_since(self, session_id: str, directory: str, since: float) -> bool:
        return await anyio.to_thread.run_sync(changed_since, self._worktree_path(session_id), since)

    @_repeated
    async def outside_changes(self, session_id: str) -> list[str]:
        """Return what has changed in the user's checkout and branches since the session's worktree was made, or since
        the last call. Commits that no branch has any more are kept.

        Raises:
            WorkspaceError: git fails.
        """
        if (before := self._seen.get(session_id)) is None:
            return []
        async with self._one_at_a_time:  # no merge is half done
            after = self._seen[session_id] = await look(self._git, self._root)
            return await describe_changes(self._git, before, after, self._merged)

    @_repeated
    async def begin(self, session_id: str, spec: WorkspaceSpec) -> None:
        """Make the worktree of a session, unless it exists, at the checkpoint of *spec*, and with the target merged in
        if *spec* says so; lock it if it is to be kept.

        Raises:
            WorkspaceError: git fails, or the checkpoint does not exist any more.
        """
        where = self._worktree_path(session_id)
        await self._ensure_worktree(session_id, spec)
        async with self._one_at_a_time:
            if spec.kept and not await anyio.to_thread.run_sync(is_kept, where):
                await anyio.to_thread.run_sync(remove_torn_lock, where)
                await self._git.must(self._repository, "worktree", "lock", "--reason", KEPT_LOCK, str(where))

    async def _ensure_worktree(self, session_id: str, spec: WorkspaceSpec) -> None:
        """Make the worktree of a session, unless it exists, at the checkpoint of *spec*, with the target merged in if
        *spec* says so, or at the target."""
        worktree = self._worktree_path(session_id)
        async with self._making.setdefault(worktree, anyio.Lock()):
            async with self._one_at_a_time:
                await self._recover()
                if await self._is_complete(worktree):
                    return
            target = f"refs/heads/{await self._onto(spec.workstream)}"
            start = await self._git.commit_of(self._repository, spec.starts_at or target)
            if not start:
                words = (
                    f"the checkpoint {spec.starts_at} that session {session_id!r} begins with is not in the repository"
                )
                raise WorkspaceError(f"{words}; run the plan without resuming it")
            began_ns = time.time_ns()
            async with self._step(MakeWorktree(plain_name(session_id), start)):
                if not await self._is_complete(worktree):
                    await self._make(session_id, worktree, start)
            try:
                await self._fill(worktree, target if spec.merges_target else "")
            except BaseException:
                with anyio.CancelScope(shield=True):
                    async with self._one_at_a_time:
                        await self._undo_make(plain_name(session_id), began_ns)
                raise
        self._making.pop(worktree, None)
        # Else the new files could not be told from what an agent changes that begins at once (`changed_since`).
        await anyio.sleep(CLOCK_S)

    async def _fill(self, worktree: Path, merged: str) -> None:
        """Fill and set up a new worktree, with the branch *merged* merged in unless that is ``""``. Nothing of the
        repository is changed, so other steps go on meanwhile: they must not wait for a server, or for a user's
        command."""
        await fill_worktree(self._git, self._host, worktree, self._setup)
        if merged:
            await self._merge_target(worktree, merged)
        kept = Path(text_of(await self._git.must(str(worktree), "rev-parse", "--absolute-git-dir")))
        await anyio.to_thread.run_sync((kept / "locked").unlink)

    async def _is_complete(self, worktree: Path) -> bool:
        """Return whether the worktree was checked out completely: git keeps a worktree locked while it is made.

        Raises:
            WorkspaceError: that is unknown; then nothing is made anew.
        """
        if not is_worktree(worktree):
            return False
        kept = await self._git.must(str(worktree), "rev-parse", "--absolute-git-dir")
        return not await anyio.to_thread.run_sync(is_being_made, Path(text_of(kept)))

    async def _make(self, session_id: str, worktree: Path, start: str) -> None:
        await anyio.to_thread.run_sync(make_private, worktree.parent)
        await self._remove(worktree)
        branch = branch_of(session_id)
        if holders := await self._git.holders(branch):
            raise WorkspaceError(
                f"the branch {branch} is checked out in {holders[0]}; end what works there, or rename it"
            )
        await self._set_aside(branch)
        lock = ("--quiet", "--no-checkout", "--lock", "--reason", INITIALIZING)
        made = await self._git.run(self._repository, "worktree", "add", *lock, "-B", branch, str(worktree), start)
        if not made.ok:
            message = f"no worktree for session {session_id!r}: {error_of(made)}"
            raise await failure_of(made, self._repository, message)

    async def _merge_target(self, worktree: Path, target: str) -> None:
        """Merge the target into a new worktree; leave a conflict standing, as git does.

        Raises:
            WorkspaceError: git fails, and there is no conflict.
        """
        words = ("merge", "--no-ff", "--no-edit", "--no-verify", "--no-stat", "--no-autostash", "--quiet", target)
        merged = await self._git.run(str(worktree), *words)
        if merged.ok:
            return
        kept = Path(text_of(await self._git.must(str(worktree), "rev-parse", "--absolute-git-dir")))
        if not await anyio.to_thread.run_sync(note_own_merge, kept):
            raise await failure_of(merged, str(worktree), f"git merge failed in {worktree}: {error_of(merged)}")

    async def _set_aside(self, branch: str) -> None:
        """Rename the branch *branch* if it holds work of an earlier journal; only remove it if the branch beside it
        holds that work already."""
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if not tip or await self._is_merged(branch, tip):
            return
        beside = f"refs/heads/{branch_beside(branch, tip)}"
        if not await self._git.contains(beside, tip):
            before = await self._git.commit_of(self._repository, beside) or NOTHING
            # Made first and dropped then: a rename by git that is killed in its middle leaves neither.
            await self._git.must(self._repository, "update-ref", beside, tip, before)
        await self._git.must(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)

    async def target(self) -> str:
        """Return the name of the target branch, into which work is merged.

        Raises:
            WorkspaceError: no branch is checked out, or the branch has no commit.
        """
        if not self._target:
            here = await self._git.run(self._repository, "symbolic-ref", "--quiet", "HEAD")
            if not here.ok:
                raise WorkspaceError(f"{self._repository} has no branch checked out; name one as merge_into")
            self._target = text_of(here).removeprefix("refs/heads/")
        if not await self._git.commit_of(self._repository, f"refs/heads/{self._target}"):
            words = f"the branch {self._target!r} of {self._repository} is not there, or has no commit"
            raise WorkspaceError(f"{words}; make it, with a first commit, or name another one as merge_into")
        return self._target

    # ------------------------------------------------------------------------------------------ workstreams
    async def _onto(self, workstream_id: str) -> str:
        """Return the name of the branch that the work of a workstream begins from and is merged into; with ``""`` the
        target.

        Raises:
            WorkspaceError: the workstream has no branch here.
        """
        if not workstream_id:
            return await self.target()
        branch = branch_of(workstream_id)
        if not await self._git.commit_of(self._repository, f"refs/heads/{branch}"):
            words = f"{self._repository} has no branch {branch!r}, which has the work of run {workstream_id}"
            fix = "make it again from a commit of its tasks; agents in several repositories need merge: each"
            raise WorkspaceError(f"{words}; {fix}")
        return branch

    @_repeated
    async def open_branch(
        self, workstream_id: str, directory: str, *, resumes: str = "", holds: Sequence[str] = ()
    ) -> WorkBranch:
        """Make the branch of a workstream, at the branch of the one that it *resumes*, or else at the target.

        Raises:
            WorkspaceError: a commit of *holds* is missing there, the branch is checked out, or git fails.
        """
        await self._git.path_inside(directory)
        branch, before = branch_of(workstream_id), branch_of(resumes) if resumes else ""
        async with self._step(CommitWork(plain_name(workstream_id))):
            start = await self._git.commit_of(self._repository, f"refs/heads/{before}") if before else ""
            start = start or await self._git.commit_of(self._repository, f"refs/heads/{await self.target()}")
            for commit in holds:
                if not await self._git.contains(start, commit):
                    words = f"the work of run {resumes} is not on its branch {before!r}: {commit[:12]} is missing"
                    raise WorkspaceError(f"{words}; make the branch again (git branch {before} COMMIT), or start fresh")
            if holders := await self._git.holders(branch):
                raise WorkspaceError(f"the branch {branch} is checked out in {holders[0]}; check out another one there")
            await self._set_aside(branch)
            await self._git.must(self._repository, "update-ref", f"refs/heads/{branch}", start)
        return WorkBranch(name=branch, base=start, directory=directory)

    async def plan_merge(self, workstream_id: str, commit: str = "") -> MergePlan:
        """Return the plan of the merge of a workstream's branch, or of its *commit*, into the target.

        Raises:
            WorkspaceError: there is no such branch, or git fails.
        """
        return await self._git.plan_merge(await self._onto(workstream_id), await self.target(), commit)

    # ------------------------------------------------------------------------------------------ commit and merge
    @_repeated
    async def commit(self, session_id: str, message: str) -> str:
        """Commit the uncommitted changes of a session; return the session's commit, ``""`` if :meth:`merge` would
        refuse it.

        Raises:
            WorkspaceError: the worktree is gone, or git fails.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            if not is_worktree(worktree := self._worktree_path(session_id)):
                words = f"the worktree {worktree} is gone, and what was not committed there is lost"
                raise WorkspaceError(f"{words}; the branch {branch_of(session_id)} has what was committed")
            checked = await self._commit_for_merge(session_id, message)
            return checked if isinstance(checked, str) else ""

    @_repeated
    async def merge(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Merge:
        """Merge *commit* of a session into the target, or into the branch of the *workstream*; with ``""`` commit first
        the uncommitted changes of the session.

        Raises:
            WorkspaceError: git fails.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            target = await self._onto(workstream)
            work = commit or await self._commit_for_merge(session_id, message)
            if isinstance(work, Merge):
                return msgspec.structs.replace(work, target=target)
            for tries in range(TRIES):
                held = await self._forward.hold(target) if tries >= UNLOCKED_TRIES else None
                merge = await self._merge_once(target, work, message, held)
                if held is not None:
                    with anyio.CancelScope(shield=True):
                        await self._forward.release(held)
                if merge is not None:
                    self._merged.add(merge.commit)
                    return msgspec.structs.replace(merge, target=target)
            raise WorkspaceHeld(target_moves(target, TRIES))

    async def _commit_for_merge(self, session_id: str, message: str) -> str | Merge:
        """Return the commit with all work of a session, or the refusal if the work cannot be merged."""
        begun, unmerged = await self._unfinished_operation(session_id)
        if begun:
            return Merge(outcome="refused", files=unmerged, why=begun)
        work = await self._commit_all(session_id, message)
        if not work:
            return Merge(outcome="nothing", why="there is no branch of that session")
        if ahead := await self._why_incomplete(branch_of(session_id), work):
            return Merge(outcome="refused", why=ahead)
        if inside := await self._changed_inside(session_id):
            why = f"what is not committed in repositories inside it would be left behind: {some_of(inside)}"
            return Merge(outcome="refused", files=inside, why=why)
        return work

    @_repeated
    async def changes(self, session_id: str, message: str, commit: str = "", *, workstream: str = "") -> Changes | None:
        """Return the session's changes since its branch and the target, or the branch of the *workstream*, diverged: up
        to *commit*, or all changes, which are committed first.

        Raises:
            WorkspaceError: git fails.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            target = await self._onto(workstream)
            if not commit:
                if any(await self._unfinished_operation(session_id)):
                    return None
                commit = await self._commit_all(session_id, message)
            if not commit:
                return None
            return await self._git.diff_commits(await self._git.common_base(f"refs/heads/{target}", commit), commit)

    async def _commit_all(self, session_id: str, message: str) -> str:
        """Commit all changes in a session's worktree; return the commit of the session, ``""`` if there is none."""
        worktree, branch = self._worktree_path(session_id), branch_of(session_id)
        if not is_worktree(worktree):
            return await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        where = str(worktree)
        await self._unlock(where)
        # Files that git was configured to take for unchanged, or to leave out, count as work if they have changed.
        await self._git.run(where, "update-index", "-q", "--really-refresh")
        added = await self._git.run(where, *_ALL_THAT_IS_THERE, "add", "--all", "--sparse")
        if not added.ok:
            unborn = _without_commit(added.output)
            words = f"{where}/{unborn} is a repository without a commit" if unborn else error_of(added)
            fix = f"; remove {where}/{unborn}.git, or commit there" if unborn else ""
            raise await failure_of(added, where, f"nothing can be committed in {where}: {words}{fix}")
        staged = await self._git.run(where, "diff", "--cached", "--quiet", SHOW_INNER)
        if not staged.ok:
            # Empty is for git what only changes a repository inside, where its settings say that those are ignored.
            await self._git.must(where, "commit", "--allow-empty", "--no-verify", "--quiet", "--message", message)
        return await self._hold_head(where, branch)

    async def _unfinished_operation(self, session_id: str) -> tuple[str, tuple[str, ...]]:
        """Return a text about the operation (merge, rebase, ...) that the agent began and did not end, which makes its
        work incomplete, and the files in conflict; ``""`` if there is none."""
        worktree = self._worktree_path(session_id)
        if not is_worktree(worktree):
            return "", ()
        listed = await self._git.must(str(worktree), "diff", "--name-only", "--diff-filter=U", "-z")
        kept = Path(text_of(await self._git.must(str(worktree), "rev-parse", "--absolute-git-dir")))
        if bool(listed.stdout) and await anyio.to_thread.run_sync(is_own_merge, kept):
            # The agent was to resolve this conflict. It need not know git: a file without the marks is resolved.
            stages = await self._git.must(str(worktree), "ls-files", "--unmerged", "-z")
            left = await anyio.to_thread.run_sync(unresolved_files, worktree, stages.stdout)
            return (f"the conflict with the target is not resolved: {some_of(left)}", left) if left else ("", ())
        if unmerged := names_in_list(listed.stdout):
            return f"a merge was begun there and not ended: {some_of(unmerged)}", unmerged
        begun = await anyio.to_thread.run_sync(operation_begun_in, worktree)
        return f"a {begun} was begun there and not ended" if begun else "", ()

    async def _why_incomplete(self, branch: str, work: str) -> str:
        """Return the reason why *work* is not all of the session's work (an earlier commit is checked out); ``""`` if
        it is all."""
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if tip in ("", work) or await self._is_merged(branch, tip):
            return ""
        came_before = await self._git.contains(tip, work)
        return f"the commit {work[:12]} was left checked out there, and {branch} has more" if came_before else ""

    async def _hold_head(self, where: str, branch: str) -> str:
        """Return the commit that is checked out in the worktree, and make sure that a branch holds that commit: the
        agent may have checked out another one."""
        here = await self._git.commit_of(where, "HEAD")
        if not here:
            words = f"nothing is left in {where}, and a branch without a commit is checked out there"
            raise WorkspaceError(f"{words}; check out {branch}, which has what was committed, or remove the worktree")
        if not await self._git.contains(f"refs/heads/{branch}", here):
            moved = await self._git.contains(here, f"refs/heads/{branch}")
            name = branch if moved else branch_beside(branch, here)
            before = await self._git.commit_of(where, f"refs/heads/{name}") or NOTHING
            await self._git.must(where, "update-ref", f"refs/heads/{name}", here, before)
        return here

    async def _merge_once(self, target: str, work: str, message: str, held: Advance | None) -> Merge | None:
        """Try to merge *work* into the target; return ``None`` if the target moved meanwhile."""
        head = await self._git.commit_of(self._repository, f"refs/heads/{target}")
        if await self._git.contains(head, work):
            return Merge(outcome="nothing", commit=head, why=f"everything is in {target} already")
        if inside := await self._git.repositories_inside(await self._git.common_base(head, work), work):
            why = f"repositories inside it would be lost, since only their names are committed: {some_of(inside)}"
            return Merge(outcome="refused", files=inside, why=why)
        tree, files = await self._git.merge_trees(head, work)
        if files is not None:
            why = f"in conflict with {target}: {some_of(files)}"
            return Merge(outcome="refused", files=files, why=why, conflicts=True)
        made = await self._git.must(self._repository, "commit-tree", tree, "-p", head, "-p", work, "-m", message)
        return await self._forward.advance(target, head, text_of(made), held)

    async def _changed_inside(self, session_id: str) -> tuple[str, ...]:
        """Return the repositories nested in the worktree that have uncommitted changes."""
        worktree = self._worktree_path(session_id)
        if not is_worktree(worktree):
            return ()
        return repositories_listed((await self._git.must(str(worktree), "diff", *RAW)).stdout)

    # ------------------------------------------------------------------------------------------ checkpoints
    @_repeated
    async def save(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Commit the uncommitted changes of a session, and make its commit a checkpoint.

        Return ``""`` if there is no commit, or an operation such as a rebase was begun and not ended.

        Raises:
            WorkspaceError: git fails.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            return (
                ""
                if any(await self._unfinished_operation(session_id))
                else await self._save_checkpoint(session_id, message)
            )

    async def _save_checkpoint(self, session_id: str, message: str) -> str:
        commit = await self._commit_all(session_id, message)
        if commit:
            await self._git.must(self._repository, "update-ref", f"{_SAVED}/{plain_name(session_id)}/{commit}", commit)
        return commit

    @_repeated
    async def roll_back(self, session_id: str, spec: WorkspaceSpec, message: str) -> str:
        """Reset a worktree to the checkpoint with which it began, or to the commit where it and the target diverged.
        The work, and the session's branch, are saved as checkpoints before; files that git ignores are removed.

        Raises:
            WorkspaceError: git fails, or a repository is nested in the worktree and would be lost.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            path, branch, target = self._worktree_path(session_id), branch_of(session_id), await self.target()
            if not is_worktree(path):
                raise WorkspaceError(f"session {session_id!r} has no worktree")
            where = str(path)
            commit = await self._save_checkpoint(session_id, message)
            if await self._holds_more(where, target):
                raise WorkspaceError(f"{where} holds more than can be committed")
            tip = await self._git.commit_of(where, f"refs/heads/{branch}")
            if tip and tip != commit:  # its agent had checked out something else
                await self._git.must(self._repository, "update-ref", f"{_SAVED}/{plain_name(session_id)}/{tip}", tip)
            begin = f"refs/heads/{await self._onto(spec.workstream)}"
            base = spec.starts_at or await self._git.common_base(begin, commit)
            await anyio.to_thread.run_sync(self._steps.begin, RollBack(plain_name(session_id), base))
            await self._reset_worktree(path, branch, base)
            return commit

    async def _reset_worktree(self, worktree: Path, branch: str, base: str) -> None:
        await self._unlock(str(worktree))
        await self._end_operations(worktree)
        await self._git.must(str(worktree), "checkout", "--quiet", "--force", "-B", branch, base)
        await self._git.must(str(worktree), "clean", "--quiet", "--force", "-d", "-x")

    async def accept(self, spec: WorkspaceSpec) -> None:
        """Do nothing: no other session works in a worktree."""

    @_repeated
    async def forget(self, spec: WorkspaceSpec) -> None:
        """Remove the references to checkpoints whose commits are in the target, or on the branch of the workstream.

        Raises:
            WorkspaceError: git fails.
        """
        if await self._merged_checkpoints(spec.workstream):
            async with self._step(DropCheckpoints()):
                await self._drop_checkpoints(spec.workstream)

    async def _merged_checkpoints(self, workstream_id: str = "") -> list[str]:
        found: dict[str, None] = {}
        for branch in (await self.target(), *([branch_of(workstream_id)] if workstream_id else ())):
            head = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
            how = ("for-each-ref", "--merged", head, "--format=%(refname)", _SAVED)
            listed = text_of(await self._git.must(self._repository, *how)) if head else ""
            found |= dict.fromkeys(listed.splitlines())
        return [*found]

    async def _drop_checkpoints(self, workstream_id: str = "") -> None:
        for name in await self._merged_checkpoints(workstream_id):
            await self._git.run(self._repository, "update-ref", "-d", name)

    # ------------------------------------------------------------------------------------------ clean-up
    @_repeated
    async def clean_up(self, session_id: str, message: str) -> Released:
        """Commit the uncommitted changes of a session, and remove its worktree; remove its branch too if all of its
        commits are in the target.

        Raises:
            WorkspaceError: git fails.
        """
        self._seen.pop(session_id, None)
        async with self._step(RemoveWorktree(plain_name(session_id))):
            worktree, branch, target = self._worktree_path(session_id), branch_of(session_id), await self.target()
            if is_worktree(worktree) and not await self._is_complete(worktree):
                await self._undo_make(plain_name(session_id), time.time_ns())
                return Released()
            commit = await self._commit_all(session_id, message)
            if not is_worktree(worktree) and await self._git.holders(branch):
                return Released()  # the lock of another program
            if is_worktree(worktree):
                if await self._holds_more(str(worktree), target):
                    return Released(branch=branch, directory=str(worktree))
                await self._end_operations(worktree)
                await self._remove(worktree)
            if not await self._drop_branch(branch, target):
                return Released(branch=branch)
            elsewhere = commit and not await self._is_merged(branch, commit)
            return Released(branch=branch_beside(branch, commit) if elsewhere else "")

    async def list_sessions(self) -> list[str]:
        """Return the sessions that have a worktree, without those whose worktree is kept."""
        names = await anyio.to_thread.run_sync(worktree_names, self._root)
        await anyio.to_thread.run_sync(sweep, self._root)
        return [unquote(name, errors="surrogateescape") for name in names]

    async def _holds_more(self, where: str, target: str) -> bool:
        """Return whether a removal of the worktree would lose work: uncommitted files, or a nested repository."""
        status = await self._git.must(where, "status", "--porcelain", "--untracked-files=normal", SHOW_INNER)
        here, head = await self._git.commit_of(where, "HEAD"), f"refs/heads/{target}"
        base = await self._git.base(head, here) or head
        return bool(status.stdout.strip()) or bool(await self._git.repositories_inside(base, here))

    async def _end_operations(self, worktree: Path) -> None:
        """End an operation, such as a rebase, that was begun in the worktree. Changes that a rebase had stashed become
        a stash; otherwise they would be lost."""
        if await anyio.to_thread.run_sync(operation_begun_in, worktree):
            for words in _QUIT:
                await self._git.run(str(worktree), *words)

    async def _unlock(self, where: str) -> None:
        """Remove the locks of the worktree, of its index, its ``HEAD`` and its branch: no program works in the worktree
        now, so a git that was killed has left them. The agent's branch may be held from elsewhere, so that only a lock
        that nobody has open is removed."""
        kept = Path(text_of(await self._git.must(where, "rev-parse", "--absolute-git-dir")))
        await anyio.to_thread.run_sync(remove_index_lock, kept)
        common = await self._git.common_dir()
        locks = await anyio.to_thread.run_sync(locks_of_agent, common, kept, Path(where).name)
        if removed := await remove_stale_locks(locks, 0):
            _log.warning("locks of an agent that has ended are removed", locks=[str(lock) for lock in removed])

    async def _remove(self, worktree: Path) -> None:
        """Remove a worktree: rename it first, so that a half-removed worktree is never taken for work."""
        with anyio.CancelScope(shield=True):
            aside = await anyio.to_thread.run_sync(move_aside, worktree)
            await self._git.run(self._repository, "worktree", "remove", "--force", "--force", str(worktree))
            if aside is not None:
                await anyio.to_thread.run_sync(partial(shutil.rmtree, aside, ignore_errors=True))

    async def _drop_branch(self, branch: str, target: str) -> bool:
        """Remove *branch* if the target, or the branch of a workstream, has its commit; return whether the branch is
        gone."""
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if not tip:
            return True
        if branch == target or await self._git.holders(branch):
            return False
        if not await self._is_merged(branch, tip):
            return False
        return (await self._git.run(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)).ok

    # ------------------------------------------------------------------------------------------ git itself
    def has_worktree(self, session_id: str) -> bool:
        """Return whether there is something at the place of the session's worktree."""
        return os.path.lexists(self._worktree_path(session_id))

    async def has_work(self, session_id: str, commit: str = "") -> bool:
        """Return whether the repository has *commit*, or with ``""`` the branch of the session.

        Raises:
            WorkspaceError: git failed or timed out.
        """
        name = commit or f"refs/heads/{branch_of(session_id)}"
        return bool(await self._git.commit_of(self._repository, name))

    def _worktree_path(self, session_id: str) -> Path:
        return self._root / plain_name(session_id)


def _without_commit(output: str) -> str:
    """Return the directory that ``git add`` rejects, according to its *output*, as a repository without a commit;
    ``""`` if there is none."""
    before, named, _ = output.partition("' does not have a commit checked out")
    return before.rpartition("\n")[2].partition("'")[2] if named else ""
