"""A git worktree and a branch for each root session, and the way back into the branch that all the work is for.

What an agent leaves is committed before its worktree goes; a branch goes only when its work is in the target; nothing
is ever checked out over, reset or forced, but a worktree that is rolled back, and what was done there is a checkpoint
by then. A checkpoint is a commit that a reference of its own holds, whatever becomes of branches, until the target has
it. The target moves by fast-forward alone: a merge is made beside every worktree, and whoever has the target checked
out keeps local changes, or the merge is refused.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import anyio
import msgspec

from supervisor.ports import NO_WORKSPACE, Changes, Merge, ProcessHost, Released, WorkspaceSpec
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import make_private
from supervisor.ports.shortages import shortage_of
from supervisor.processes.helper_programs import OUTPUT_MAX
from supervisor.workspaces.fast_forward import FastForward
from supervisor.workspaces.git_command import (
    LISTED_MAX,
    RAW,
    SHOW_INNER,
    Git,
    WorkspaceError,
    error_of,
    names_in_list,
    repositories_listed,
    some_of,
    text_of,
)
from supervisor.workspaces.stale_locks import locks_of_references, locks_of_worktree, remove_stale_locks
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
    is_worktree,
    move_aside,
    operation_begun_in,
    plain_name,
    remove_entries,
    remove_index_lock,
    remove_torn_lock,
    sweep,
    worktree_names,
)

__all__ = ["GitWorkspaces"]

_log = get_logger()

STEP_FILE: Final = ".step.json"
"""The record of the step that is under way, beside the worktrees; no session has a name like that."""

GIT_MIN: Final = (2, 38)
"""The first that merges without a worktree (``merge-registry --write-registry``)."""

TRIES = 5
"""How often a merge is made anew because the target moved meanwhile."""

_ALL_THAT_IS_THERE: Final = ("-c", "core.sparseCheckout=true", "-c", "sparse.expectFilesOutsideOfPatterns=false")
"""So git looks at files that it was to leave out of the worktree (sparse checkout, ``--skip-worktree``), where they are
in it all the same."""
_QUIT: Final = (("rebase", "--quit"), ("am", "--quit"), ("cherry-pick", "--quit"), ("bisect", "reset", "HEAD"))
"""The ends of all that, which leave ``HEAD`` where it is."""
_SAVED: Final = "refs/supervisor/checkpoints"
"""Below it, what holds checkpoints: no branches, so that nobody sees, checks out or deletes one by mistake."""
NOTHING: Final = "0" * 40
"""The commit of a branch that is not there."""


class GitWorkspaces:
    """``supervisor.ports.Workspace`` over the worktrees of one repository; one task at a time changes anything."""

    temporary: Final = True

    def __init__(self, host: ProcessHost, root: Path, repository: str, target: str = "") -> None:
        """Args:
        host: where git is run.
        root: the directory below which worktrees are made.
        repository: a directory in the repository.
        target: the branch that the work is for; by default the one that is checked out there.
        """
        self._git = Git(host, repository)
        self._steps = StepFile(root / STEP_FILE)
        self._forward = FastForward(self._git, self._steps)
        self._root = root
        self._repository = repository
        self._target = target
        self._one_at_a_time = anyio.Lock()

    async def check(self) -> None:
        """See that git can do what will be asked of it.

        Raises:
            WorkspaceError: it is missing or too old; there is no repository or no target, or a branch is in the way.
        """
        version = await self._git.run(self._repository, "version")
        if not version.ok:
            raise WorkspaceError(f"workspace: worktree needs git: {error_of(version)}")
        found = re.search(r"(?<!\d)(\d{1,9})\.(\d{1,9})", text_of(version))
        if found is None or tuple(map(int, found.groups())) < GIT_MIN:
            raise WorkspaceError(
                f"workspace: worktree needs git {'.'.join(map(str, GIT_MIN))}, this is {text_of(version)}"
            )
        await self._inside(self._repository)
        await self.target()
        if await self._git.commit_of(self._repository, f"refs/heads/{BRANCHES}"):
            words = f"{self._repository} has a branch {BRANCHES!r}, so that no session can have one below {BRANCHES}/"
            raise WorkspaceError(f"{words}; rename it (git branch -m {BRANCHES} NAME), or use workspace: directory")
        async with self._one_at_a_time:
            await self._recover()
        await self.forget(NO_WORKSPACE)  # an earlier supervisor may not have lived to

    # ------------------------------------------------------------------------------------------ one step at a time
    @asynccontextmanager
    async def _step(self, step: Step) -> AsyncIterator[None]:
        """Take *step* alone, with a record of it that is there until it is done: what could be neither finished nor
        undone is tried again before the next one.

        Raises:
            WorkspaceError: the step before cannot be finished or undone yet, or this one cannot be put on record.
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
            await anyio.to_thread.run_sync(self._steps.end)

    async def _recover(self) -> None:
        """Finish or undo the step that was begun and not ended, if there is one. Asked for again it changes nothing.

        Raises:
            WorkspaceError: that cannot be done now; the step stays on record.
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
        """Remove a worktree that may be half made, and its branch unless that alone holds commits. No agent has worked
        there yet.

        Raises:
            WorkspaceError: the worktree cannot be removed.
        """
        place, branch = self._root / name, f"{BRANCHES}/{name}"
        await anyio.to_thread.run_sync(_remove_half_made, place)
        await self._remove_traces(name, since_ns)
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if tip and not await self._git.holders(branch) and await self._is_held(branch, tip):
            await self._git.run(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)

    async def _finish_removal(self, name: str, since_ns: int) -> None:
        """A worktree that is still there is put away with the others that nobody works in."""
        if not await anyio.to_thread.run_sync(os.path.lexists, self._root / name):
            await self._remove_traces(name, since_ns)
            await self._dropped(f"{BRANCHES}/{name}", await self.target())

    async def _finish_roll_back(self, name: str, base: str) -> None:
        try:
            if is_worktree(self._root / name):
                await self._put_back(self._root / name, f"{BRANCHES}/{name}", base)
        except WorkspaceError as error:  # it is rolled back again before anybody works there
            _log.warning("a worktree could not be rolled back", worktree=str(self._root / name), why=str(error))

    async def _is_held(self, branch: str, tip: str) -> bool:
        """True if something else holds what *branch* holds: the target, a checkpoint, or the branch that it was set
        aside to."""
        if await self._git.contains(f"refs/heads/{await self.target()}", tip):
            return True
        if await self._git.contains(f"refs/heads/{branch_beside(branch, tip)}", tip):
            return True
        held = await self._git.must(self._repository, "for-each-ref", "--contains", tip, "--count=1", _SAVED)
        return bool(text_of(held))

    async def _remove_traces(self, name: str, since_ns: int) -> None:
        """Remove what a worktree that was made or removed by half has left, in our folder and where git keeps it."""
        await anyio.to_thread.run_sync(sweep, self._root)
        common = await self._git.common_dir()
        await anyio.to_thread.run_sync(remove_entries, common, self._root / name, since_ns)

    # ------------------------------------------------------------------------------------------ a place to work
    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """A worktree on a branch of its own; the place in it that *directory* has in the repository.

        Raises:
            WorkspaceError: the repository, its target or the directory is missing, or git cannot do it.
        """
        inside = await self._inside(directory)
        await self._have(root_id, "")
        return str(self._place(root_id) / inside)

    async def begin(self, session_id: str, place: WorkspaceSpec) -> None:
        """Make the worktree of a session, unless it has one, at the checkpoint that it begins with; lock it, if it is
        to be kept.

        Raises:
            WorkspaceError: git cannot do it, or the checkpoint is not there any more.
        """
        where = self._place(session_id)
        await self._have(session_id, place.starts_at)
        async with self._one_at_a_time:
            if place.kept and not await anyio.to_thread.run_sync(is_kept, where):
                await anyio.to_thread.run_sync(remove_torn_lock, where)
                await self._git.must(self._repository, "worktree", "lock", "--reason", KEPT_LOCK, str(where))

    async def _have(self, session_id: str, starts_at: str) -> None:
        """Make the worktree of a session, unless it has one, at a checkpoint or where the target is."""
        place = self._place(session_id)
        async with self._one_at_a_time:
            await self._recover()
            if await self._is_whole(place):
                return
        target = f"refs/heads/{await self.target()}"
        start = await self._git.commit_of(self._repository, starts_at or target)
        if not start:
            words = f"the checkpoint {starts_at} that session {session_id!r} begins with is not in the repository"
            raise WorkspaceError(f"{words}; run the task without --resume")
        async with self._step(MakeWorktree(plain_name(session_id), start)):
            if not await self._is_whole(place):
                await self._make(session_id, place, start)

    async def _inside(self, directory: str) -> str:
        """The way from the top of the repository to *directory*."""
        found = await self._git.run(directory, "rev-parse", "--show-toplevel", "--show-prefix")
        if not found.ok:
            raise WorkspaceError(
                f"{directory} is not in a git repository ({error_of(found)}); use workspace: directory"
            )
        top, _, inside = found.stdout.decode(errors="surrogateescape").partition("\n")
        ours = text_of(await self._git.must(self._repository, "rev-parse", "--show-toplevel"))
        if top != ours:
            raise WorkspaceError(f"{directory} is in another repository than {ours}; use workspace: directory")
        return inside.strip("\n")

    async def _is_whole(self, place: Path) -> bool:
        """True if it was checked out to the end: git keeps a worktree locked while it is made.

        Raises:
            WorkspaceError: that cannot be said; nothing is made anew then.
        """
        if not is_worktree(place):
            return False
        kept = await self._git.must(str(place), "rev-parse", "--absolute-git-dir")
        return not await anyio.to_thread.run_sync(is_being_made, Path(text_of(kept)))

    async def _make(self, session_id: str, place: Path, start: str) -> None:
        await anyio.to_thread.run_sync(_parent_of, place)
        await self._remove(place)
        branch, target = branch_of(session_id), await self.target()
        if holders := await self._git.holders(branch):
            raise WorkspaceError(
                f"the branch {branch} is checked out in {holders[0]}; end what works there, or rename it"
            )
        await self._set_aside(branch, target)
        made = await self._git.run(self._repository, "worktree", "add", "-B", branch, str(place), start)
        if not made.ok:
            raise WorkspaceError(f"no worktree for session {session_id!r}: {error_of(made)}")

    async def _set_aside(self, branch: str, target: str) -> None:
        """A branch of that name that holds work of an earlier journal gets another name, unless one of that name has it
        already."""
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if not tip or await self._git.contains(f"refs/heads/{target}", tip):
            return
        beside = f"refs/heads/{branch_beside(branch, tip)}"
        if not await self._git.contains(beside, tip):
            before = await self._git.commit_of(self._repository, beside) or NOTHING
            # Made first and dropped then: a rename by git that is killed in its middle leaves neither.
            await self._git.must(self._repository, "update-ref", beside, tip, before)
        await self._git.must(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)

    async def target(self) -> str:
        """The branch that the work is for.

        Raises:
            WorkspaceError: there is none: no branch is checked out, or it has no commit.
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

    # ------------------------------------------------------------------------------------------ the way back
    async def commit(self, session_id: str, message: str) -> str:
        """Commit what a session has not committed; the commit that it has come to, ``""`` where :meth:`merge` would
        refuse that.

        Raises:
            WorkspaceError: its worktree is gone, or git cannot do what it must.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            if not is_worktree(place := self._place(session_id)):
                words = f"the worktree {place} is gone, and what was not committed there is lost"
                raise WorkspaceError(f"{words}; the branch {branch_of(session_id)} has what was committed")
            checked = await self._work(session_id, message, await self.target())
            return checked if isinstance(checked, str) else ""

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        """Bring *commit* of a session into the target; with ``""`` commit first what the session has not committed.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            target = await self.target()
            work = commit or await self._work(session_id, message, target)
            if isinstance(work, Merge):
                return work
            for _ in range(TRIES):
                merge = await self._merge_once(target, work, message)
                if merge is not None:
                    return msgspec.structs.replace(merge, target=target)
            return Merge(outcome="refused", target=target, why=f"it moved {TRIES} times while the merge was made")

    async def _work(self, session_id: str, message: str, target: str) -> str | Merge:
        """The commit of all that a session has done; why that is not merged, where it cannot be."""
        begun, unmerged = await self._begun(session_id)
        if begun:
            return Merge(outcome="refused", target=target, files=unmerged, why=begun)
        work = await self._saved(session_id, message)
        if not work:
            return Merge(outcome="nothing", target=target, why="there is no branch of that session")
        if ahead := await self._ahead(target, branch_of(session_id), work):
            return Merge(outcome="refused", target=target, why=ahead)
        if inside := await self._changed_inside(session_id):
            why = f"what is not committed in repositories inside it would be left behind: {some_of(inside)}"
            return Merge(outcome="refused", target=target, files=inside, why=why)
        return work

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        """What a session changed since it and the target parted: up to *commit*, or its own commits and what was not
        committed.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            target = await self.target()
            if not commit:
                if any(await self._begun(session_id)):
                    return None
                commit = await self._saved(session_id, message)
            if not commit:
                return None
            return await self._between(await self._parted(f"refs/heads/{target}", commit), commit)

    async def _parted(self, head: str, commit: str) -> str:
        """Where a session's work and *head*, which is the target's, parted.

        Raises:
            WorkspaceError: nowhere: its agent began a history of its own.
        """
        if base := await self._git.base(head, commit):
            return base
        words = f"the commit {commit[:12]} that it has come to has no history in common with the branch that it is for"
        raise WorkspaceError(f"{words}; take what you need from there by hand (git cherry-pick)")

    async def _between(self, base: str, commit: str) -> Changes:
        how = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", SHOW_INNER)
        named = await self._git.run_bounded(self._repository, *how, "--name-only", "-z", base, commit)
        patch = await self._git.run_bounded(self._repository, *how, base, commit, output_max=OUTPUT_MAX)
        if bad := next((ran for ran in (named, patch) if not ran.ok), None):
            raise WorkspaceError(f"git diff failed in {self._repository}: {error_of(bad)}")
        shown = patch.stdout.decode(errors="replace") if len(patch.stdout) < OUTPUT_MAX else ""
        whole = len(named.stdout) < LISTED_MAX
        return Changes(base=base, commit=commit, files=names_in_list(named.stdout), whole=whole, diff=shown)

    async def _saved(self, session_id: str, message: str) -> str:
        """The commit that a session has come to, with all that was not committed; ``""`` where there is none."""
        place, branch = self._place(session_id), branch_of(session_id)
        if not is_worktree(place):
            return await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        where = str(place)
        await self._unlock(where)
        # What git was told to take for unchanged, or to leave out, is work all the same where it has changed.
        await self._git.run(where, "update-index", "-q", "--really-refresh")
        added = await self._git.run(where, *_ALL_THAT_IS_THERE, "add", "--all", "--sparse")
        if not added.ok:
            unborn = _without_commit(added.output)
            words = f"{where}/{unborn} is a repository without a commit" if unborn else error_of(added)
            fix = f"; remove {where}/{unborn}.git, or commit there" if unborn else ""
            raise WorkspaceError(f"nothing can be committed in {where}: {words}{fix}")
        staged = await self._git.run(where, "diff", "--cached", "--quiet", SHOW_INNER)
        if not staged.ok:
            # Empty is for git what only changes a repository inside, where its settings say that those are ignored.
            await self._git.must(where, "commit", "--allow-empty", "--no-verify", "--quiet", "--message", message)
        return await self._named(where, branch)

    async def _begun(self, session_id: str) -> tuple[str, tuple[str, ...]]:
        """What an agent began and did not end, in words, and the files that it left in conflict: what is there is half
        of its work."""
        place = self._place(session_id)
        if not is_worktree(place):
            return "", ()
        listed = await self._git.must(str(place), "diff", "--name-only", "--diff-filter=U", "-z")
        if unmerged := names_in_list(listed.stdout):
            return f"a merge was begun there and not ended: {some_of(unmerged)}", unmerged
        begun = await anyio.to_thread.run_sync(operation_begun_in, place)
        return f"a {begun} was begun there and not ended" if begun else "", ()

    async def _ahead(self, target: str, branch: str, work: str) -> str:
        """Why *work* is not all that a session has done: it is what came before, looked at again."""
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if tip in ("", work) or await self._git.contains(f"refs/heads/{target}", tip):
            return ""
        came_before = await self._git.contains(tip, work)
        return f"the commit {work[:12]} was left checked out there, and {branch} has more" if came_before else ""

    async def _named(self, where: str, branch: str) -> str:
        """The commit of the worktree, which a branch is made to hold: an agent may have checked out something else."""
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

    async def _merge_once(self, target: str, work: str, message: str) -> Merge | None:
        """One merge; ``None`` if the target moved meanwhile."""
        head = await self._git.commit_of(self._repository, f"refs/heads/{target}")
        if await self._git.contains(head, work):
            return Merge(outcome="nothing", commit=head, why=f"everything is in {target} already")
        if inside := await self._git.repositories_inside(await self._parted(head, work), work):
            why = f"repositories inside it would be lost, since only their names are committed: {some_of(inside)}"
            return Merge(outcome="refused", files=inside, why=why)
        how = ("--write-tree", "--name-only", "--no-messages", "-z")
        tried = await self._git.run(self._repository, "merge-tree", *how, head, work)
        registry, *files = names_in_list(tried.stdout) or ("",)
        if tried.status == 1 and registry:
            return Merge(outcome="refused", files=tuple(files), why=f"in conflict with {target}: {some_of(files)}")
        if not tried.ok:
            raise WorkspaceError(f"git merge-tree failed: {error_of(tried)}")
        made = await self._git.must(self._repository, "commit-tree", registry, "-p", head, "-p", work, "-m", message)
        return await self._forward.advance(target, head, text_of(made))

    async def _changed_inside(self, session_id: str) -> tuple[str, ...]:
        """The repositories inside the worktree in which something is changed that they have not committed."""
        place = self._place(session_id)
        if not is_worktree(place):
            return ()
        return repositories_listed((await self._git.must(str(place), "diff", *RAW)).stdout)

    # ------------------------------------------------------------------------------------------ checkpoints
    async def save(self, session_id: str, place: WorkspaceSpec, message: str) -> str:
        """Commit what a session has not committed, and hold the commit that it has come to; ``""`` where there is none,
        or something was begun there and not ended.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            return "" if any(await self._begun(session_id)) else await self._held(session_id, message)

    async def _held(self, session_id: str, message: str) -> str:
        commit = await self._saved(session_id, message)
        if commit:
            await self._git.must(self._repository, "update-ref", f"{_SAVED}/{plain_name(session_id)}/{commit}", commit)
        return commit

    async def roll_back(self, session_id: str, place: WorkspaceSpec, message: str) -> str:
        """Have a worktree as it was where it and the target parted, or at the checkpoint that it began with. What was
        done there is a checkpoint then, the branch of the session too; what git ignores is removed.

        Raises:
            WorkspaceError: git cannot do it, or there is a repository inside, which would be lost.
        """
        async with self._step(CommitWork(plain_name(session_id))):
            path, branch, target = self._place(session_id), branch_of(session_id), await self.target()
            if not is_worktree(path):
                raise WorkspaceError(f"session {session_id!r} has no worktree")
            where = str(path)
            commit = await self._held(session_id, message)
            if await self._holds_more(where, target):
                raise WorkspaceError(f"{where} holds more than can be committed")
            tip = await self._git.commit_of(where, f"refs/heads/{branch}")
            if tip and tip != commit:  # its agent had checked out something else
                await self._git.must(self._repository, "update-ref", f"{_SAVED}/{plain_name(session_id)}/{tip}", tip)
            base = place.starts_at or await self._parted(f"refs/heads/{target}", commit)
            await anyio.to_thread.run_sync(self._steps.begin, RollBack(plain_name(session_id), base))
            await self._put_back(path, branch, base)
            return commit

    async def _put_back(self, place: Path, branch: str, base: str) -> None:
        await self._unlock(str(place))
        await self._quit(place)
        await self._git.must(str(place), "checkout", "--quiet", "--force", "-B", branch, base)
        await self._git.must(str(place), "clean", "--quiet", "--force", "-d", "-x")

    async def accept(self, place: WorkspaceSpec) -> None:
        """Nobody else works in a worktree."""

    async def forget(self, place: WorkspaceSpec) -> None:
        """Drop the references to checkpoints that the target has.

        Raises:
            WorkspaceError: git cannot do it.
        """
        if await self._merged_checkpoints():
            async with self._step(DropCheckpoints()):
                await self._drop_checkpoints()

    async def _merged_checkpoints(self) -> list[str]:
        target = f"refs/heads/{await self.target()}"
        listed = await self._git.must(
            self._repository, "for-each-ref", "--merged", target, "--format=%(refname)", _SAVED
        )
        return text_of(listed).splitlines()

    async def _drop_checkpoints(self) -> None:
        for name in await self._merged_checkpoints():
            await self._git.run(self._repository, "update-ref", "-d", name)

    # ------------------------------------------------------------------------------------------ clean-up
    async def clean_up(self, session_id: str, message: str) -> Released:
        """Commit what a session has not committed, and remove its worktree; its branch too if the target has it all.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._step(RemoveWorktree(plain_name(session_id))):
            place, branch, target = self._place(session_id), branch_of(session_id), await self.target()
            commit = await self._saved(session_id, message)
            if not is_worktree(place) and await self._git.holders(branch):
                return Released()  # somebody else's, who had it first
            if is_worktree(place):
                if await self._holds_more(str(place), target):
                    return Released(branch=branch, directory=str(place))
                await self._quit(place)
                await self._remove(place)
            if not await self._dropped(branch, target):
                return Released(branch=branch)
            elsewhere = commit and not await self._git.contains(f"refs/heads/{target}", commit)
            return Released(branch=branch_beside(branch, commit) if elsewhere else "")

    async def list_sessions(self) -> list[str]:
        """The sessions that have a worktree which is not kept."""
        names = await anyio.to_thread.run_sync(worktree_names, self._root)
        await anyio.to_thread.run_sync(sweep, self._root)
        return [unquote(name, errors="surrogateescape") for name in names]

    async def _holds_more(self, where: str, target: str) -> bool:
        """True if a removal would lose something: what is not committed, or a repository inside this one."""
        status = await self._git.must(where, "status", "--porcelain", "--untracked-files=normal", SHOW_INNER)
        here, head = await self._git.commit_of(where, "HEAD"), f"refs/heads/{target}"
        base = await self._git.base(head, here) or head
        return bool(status.stdout.strip()) or bool(await self._git.repositories_inside(base, here))

    async def _quit(self, place: Path) -> None:
        """Nothing is under way there any more; what a rebase had stashed is a stash then, and would be lost else."""
        if await anyio.to_thread.run_sync(operation_begun_in, place):
            for words in _QUIT:
                await self._git.run(str(place), *words)

    async def _unlock(self, where: str) -> None:
        """Nobody works there now: a lock of the index is one that a git which was killed has left."""
        kept = await self._git.must(where, "rev-parse", "--absolute-git-dir")
        await anyio.to_thread.run_sync(remove_index_lock, Path(text_of(kept)))

    async def _remove(self, place: Path) -> None:
        """Remove a worktree: at once aside, so that half of one is never taken for work, and then for good."""
        with anyio.CancelScope(shield=True):
            aside = await anyio.to_thread.run_sync(move_aside, place)
            await self._git.run(self._repository, "worktree", "remove", "--force", "--force", str(place))
            if aside is not None:
                await anyio.to_thread.run_sync(partial(shutil.rmtree, aside, ignore_errors=True))

    async def _dropped(self, branch: str, target: str) -> bool:
        """Remove *branch* if the target has it; exactly the commit that was looked at. True if it is gone."""
        tip = await self._git.commit_of(self._repository, f"refs/heads/{branch}")
        if not tip:
            return True
        if branch == target or await self._git.holders(branch):
            return False
        if not await self._git.contains(f"refs/heads/{target}", tip):
            return False
        return (await self._git.run(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)).ok

    # ------------------------------------------------------------------------------------------ git itself
    def _place(self, session_id: str) -> Path:
        return self._root / plain_name(session_id)


def _parent_of(place: Path) -> None:
    make_private(place.parent)


def _remove_half_made(place: Path) -> None:
    """Remove a worktree that was not made to its end.

    Raises:
        WorkspaceError: it is still there.
        OSError: the machine lacks file descriptors.
    """
    try:
        shutil.rmtree(place)
    except OSError as error:
        if shortage_of(error):
            raise
        if os.path.lexists(place):
            words = f"{place}, a worktree that was not made to its end, cannot be removed: {error}"
            raise WorkspaceError(f"{words}; remove it") from error


def _without_commit(output: str) -> str:
    """The directory that git does not add, since it is a repository without a commit; ``""`` where git names none."""
    before, named, _ = output.partition("' does not have a commit checked out")
    return before.rpartition("\n")[2].partition("'")[2] if named else ""
