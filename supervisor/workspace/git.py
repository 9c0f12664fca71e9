"""A git worktree and a branch for each root session, and the way back into the branch that all the work is for.

What an agent leaves is committed before its worktree goes; a branch goes only when its work is in the target; nothing
is ever checked out over, reset or forced, but a worktree that is rolled back, and what was done there is a checkpoint
by then. A checkpoint is a commit that a reference of its own holds, whatever becomes of branches, until the target has
it. The target moves by fast-forward alone: a merge is made beside every worktree, and whoever has the target checked
out keeps local changes, or the merge is refused. Hooks that an agent may have put into the repository are not run;
filters and merge drivers of its settings are, as the user's own are needed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import anyio
import msgspec

from supervisor.ports import Changes, Launch, Merge, Place, ProcessHost, Released
from supervisor.private import make_private
from supervisor.programs import OUTPUT_MAX, Ran, run_program

__all__ = ["GitWorkspaces", "WorkspaceError", "branch_of"]

GIT_S = 60.0
"""How long one git command may take: a checkout of a large repository is the longest of them."""

FORWARD_S = 300.0
"""How long a fast-forward may take where the target is checked out: one that is ended leaves half of it there, and a
large repository with filters (LFS) on a slow disk takes minutes."""

LISTED_MAX: Final = 16 * 1024 * 1024
"""Bytes of what git lists that are read, some 100,000 files. A longer list is refused: all of it decides, or none."""

NAMED_MAX: Final = 20
"""Files that are named where somebody is told of them."""

GIT_MIN: Final = (2, 38)
"""The first that merges without a worktree (``merge-tree --write-tree``)."""

TRIES = 5
"""How often a merge is made anew because the target moved meanwhile."""

LOCK_TRIES = 20
"""How often the index of whoever has the target checked out is tried: who commits there, or has an editor that asks for
the status, locks it for a moment."""

LOCK_WAIT_S = 0.5
"""The pause between two such tries."""

_IDENTITY: Final = {
    "GIT_AUTHOR_NAME": "supervisor",
    "GIT_AUTHOR_EMAIL": "supervisor@localhost",
    "GIT_COMMITTER_NAME": "supervisor",
    "GIT_COMMITTER_EMAIL": "supervisor@localhost",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_QUIET: Final = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "commit.gpgSign=false",
    "gc.auto=0",
)
_BRANCHES: Final = "supervisor"
"""Below it, the branches of sessions."""
_INNER: Final = "--ignore-submodules=none"
"""Repositories inside are looked at, whatever the settings of this one say: an agent can change them."""
_ALL_THAT_IS_THERE: Final = ("-c", "core.sparseCheckout=true", "-c", "sparse.expectFilesOutsideOfPatterns=false")
"""So git looks at files that it was to leave out of the worktree (sparse checkout, ``--skip-worktree``), where they are
in it all the same."""
_RAW: Final = ("--raw", "-z", "--no-renames", _INNER)
_SUBMODULE: Final = b"160000"
_LINK: Final = "gitdir: "
"""How the one line of the ``.git`` of a worktree begins."""
_BEGUN: Final = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase (or git am)",
    "sequencer": "cherry-pick (or revert)",
    "BISECT_LOG": "bisection",
}
"""What git keeps with a worktree while something is under way there that moves its ``HEAD``."""
_REBASES: Final = ("rebase-merge", "rebase-apply")
_QUIT: Final = (("rebase", "--quit"), ("am", "--quit"), ("cherry-pick", "--quit"), ("bisect", "reset", "HEAD"))
"""The ends of all that, which leave ``HEAD`` where it is."""
_GONE: Final = ".gone-"
_SAVED: Final = "refs/supervisor/checkpoints"
"""Below it, what holds checkpoints: no branches, so that nobody sees, checks out or deletes one by mistake."""
_KEPT: Final = "supervisor: kept as it is"
"""The lock of a worktree that is not put away when its session ends."""
NOTHING: Final = "0" * 40
"""The commit of a branch that is not there."""


class WorkspaceError(OSError):
    """There is no place to work, or what was done there cannot be had; the message says why."""


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
        self._host = host
        self._root = root
        self._repository = repository
        self._target = target
        self._one_at_a_time = anyio.Lock()

    async def check(self) -> None:
        """See that git can do what will be asked of it.

        Raises:
            WorkspaceError: it is missing or too old; there is no repository or no target, or a branch is in the way.
        """
        version = await self._git(self._repository, "version")
        if not version.ok:
            raise WorkspaceError(f"workspace: worktree needs git: {_last(version)}")
        found = re.search(r"(\d+)\.(\d+)", _text(version))
        if found is None or tuple(map(int, found.groups())) < GIT_MIN:
            raise WorkspaceError(
                f"workspace: worktree needs git {'.'.join(map(str, GIT_MIN))}, this is {_text(version)}"
            )
        await self._inside(self._repository)
        await self.target()
        if await self._commit_of(self._repository, f"refs/heads/{_BRANCHES}"):
            words = f"{self._repository} has a branch {_BRANCHES!r}, so that no session can have one below {_BRANCHES}/"
            raise WorkspaceError(f"{words}; rename it (git branch -m {_BRANCHES} NAME), or use workspace: directory")

    # ------------------------------------------------------------------------------------------ a place to work
    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """A worktree on a branch of its own; the place in it that *directory* has in the repository.

        Raises:
            WorkspaceError: the repository, its target or the directory is missing, or git cannot do it.
        """
        inside = await self._inside(directory)
        place = self._place(root_id)
        async with self._one_at_a_time:
            if not await self._is_whole(place):
                await self._make(root_id, place, f"refs/heads/{await self.target()}")
        return str(place / inside)

    async def begin(self, session_id: str, place: Place) -> None:
        """Make the worktree of a session, unless it has one, at the checkpoint that it begins with; lock it, if it is
        to be kept.

        Raises:
            WorkspaceError: git cannot do it, or the checkpoint is not there any more.
        """
        where = self._place(session_id)
        async with self._one_at_a_time:
            if not await self._is_whole(where):
                start = place.starts_at or f"refs/heads/{await self.target()}"
                if not await self._commit_of(self._repository, start):
                    words = f"the checkpoint {start} that session {session_id!r} begins with is not in the repository"
                    raise WorkspaceError(f"{words}; run the task without --resume")
                await self._make(session_id, where, start)
            if place.kept and not await anyio.to_thread.run_sync(_is_kept, where):
                await self._must(self._repository, "worktree", "lock", "--reason", _KEPT, str(where))

    async def _inside(self, directory: str) -> str:
        """The way from the top of the repository to *directory*."""
        found = await self._git(directory, "rev-parse", "--show-toplevel", "--show-prefix")
        if not found.ok:
            raise WorkspaceError(f"{directory} is not in a git repository ({_last(found)}); use workspace: directory")
        top, _, inside = found.stdout.decode(errors="surrogateescape").partition("\n")
        ours = _text(await self._must(self._repository, "rev-parse", "--show-toplevel"))
        if top != ours:
            raise WorkspaceError(f"{directory} is in another repository than {ours}; use workspace: directory")
        return inside.strip("\n")

    async def _is_whole(self, place: Path) -> bool:
        """True if it was checked out to the end: git keeps a worktree locked while it is made.

        Raises:
            WorkspaceError: that cannot be said; nothing is made anew then.
        """
        if not _is_worktree(place):
            return False
        kept = await self._must(str(place), "rev-parse", "--absolute-git-dir")
        return not await anyio.to_thread.run_sync(_is_being_made, Path(_text(kept)))

    async def _make(self, session_id: str, place: Path, start: str) -> None:
        await anyio.to_thread.run_sync(_parent_of, place)
        await self._remove(place)
        branch, target = branch_of(session_id), await self.target()
        if (holder := await self._holder(branch)) is not None:
            raise WorkspaceError(f"the branch {branch} is checked out in {holder}; end what works there, or rename it")
        await self._set_aside(branch, target)
        made = await self._git(self._repository, "worktree", "add", "-B", branch, str(place), start)
        if not made.ok:
            raise WorkspaceError(f"no worktree for session {session_id!r}: {_last(made)}")

    async def _set_aside(self, branch: str, target: str) -> None:
        """A branch of that name that holds work of an earlier journal gets another name, unless one of that name has it
        already."""
        tip = await self._commit_of(self._repository, f"refs/heads/{branch}")
        if not tip or await self._contains(f"refs/heads/{target}", tip):
            return
        if not await self._contains(f"refs/heads/{_elsewhere(branch, tip)}", tip):
            await self._must(self._repository, "branch", "--move", branch, _elsewhere(branch, tip))

    async def target(self) -> str:
        """The branch that the work is for.

        Raises:
            WorkspaceError: there is none: no branch is checked out, or it has no commit.
        """
        if not self._target:
            here = await self._git(self._repository, "symbolic-ref", "--quiet", "HEAD")
            if not here.ok:
                raise WorkspaceError(f"{self._repository} has no branch checked out; name one as merge_into")
            self._target = _text(here).removeprefix("refs/heads/")
        if not await self._commit_of(self._repository, f"refs/heads/{self._target}"):
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
        async with self._one_at_a_time:
            if not _is_worktree(place := self._place(session_id)):
                words = f"the worktree {place} is gone, and what was not committed there is lost"
                raise WorkspaceError(f"{words}; the branch {branch_of(session_id)} has what was committed")
            checked = await self._work(session_id, message, await self.target())
            return checked if isinstance(checked, str) else ""

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        """Bring *commit* of a session into the target; with ``""`` commit first what the session has not committed.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._one_at_a_time:
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
            why = f"what is not committed in repositories inside it would be left behind: {_told(inside)}"
            return Merge(outcome="refused", target=target, files=inside, why=why)
        return work

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        """What a session changed since it and the target parted: up to *commit*, or its own commits and what was not
        committed.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._one_at_a_time:
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
        if base := await self._base(head, commit):
            return base
        words = f"the commit {commit[:12]} that it has come to has no history in common with the branch that it is for"
        raise WorkspaceError(f"{words}; take what you need from there by hand (git cherry-pick)")

    async def _between(self, base: str, commit: str) -> Changes:
        how = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", _INNER)
        named = await self._run(self._repository, *how, "--name-only", "-z", base, commit)
        patch = await self._run(self._repository, *how, base, commit, output_max=OUTPUT_MAX)
        if bad := next((ran for ran in (named, patch) if not ran.ok), None):
            raise WorkspaceError(f"git diff failed in {self._repository}: {_last(bad)}")
        shown = patch.stdout.decode(errors="replace") if len(patch.stdout) < OUTPUT_MAX else ""
        whole = len(named.stdout) < LISTED_MAX
        return Changes(base=base, commit=commit, files=_names(named.stdout), whole=whole, diff=shown)

    async def _saved(self, session_id: str, message: str) -> str:
        """The commit that a session has come to, with all that was not committed; ``""`` where there is none."""
        place, branch = self._place(session_id), branch_of(session_id)
        if not _is_worktree(place):
            return await self._commit_of(self._repository, f"refs/heads/{branch}")
        where = str(place)
        await self._unlock(where)
        # What git was told to take for unchanged, or to leave out, is work all the same where it has changed.
        await self._git(where, "update-index", "-q", "--really-refresh")
        added = await self._git(where, *_ALL_THAT_IS_THERE, "add", "--all", "--sparse")
        if not added.ok:
            unborn = re.search("'(.+)' does not have a commit checked out", added.output)
            words = f"{where}/{unborn[1]} is a repository without a commit" if unborn else _last(added)
            fix = f"; remove {where}/{unborn[1]}.git, or commit there" if unborn else ""
            raise WorkspaceError(f"nothing can be committed in {where}: {words}{fix}")
        staged = await self._git(where, "diff", "--cached", "--quiet", _INNER)
        if not staged.ok:
            # Empty is for git what only changes a repository inside, where its settings say that those are ignored.
            await self._must(where, "commit", "--allow-empty", "--no-verify", "--quiet", "--message", message)
        return await self._named(where, branch)

    async def _begun(self, session_id: str) -> tuple[str, tuple[str, ...]]:
        """What an agent began and did not end, in words, and the files that it left in conflict: what is there is half
        of its work."""
        place = self._place(session_id)
        if not _is_worktree(place):
            return "", ()
        listed = await self._must(str(place), "diff", "--name-only", "--diff-filter=U", "-z")
        if unmerged := _names(listed.stdout):
            return f"a merge was begun there and not ended: {_told(unmerged)}", unmerged
        begun = await anyio.to_thread.run_sync(_begun_in, place)
        return f"a {begun} was begun there and not ended" if begun else "", ()

    async def _ahead(self, target: str, branch: str, work: str) -> str:
        """Why *work* is not all that a session has done: it is what came before, looked at again."""
        tip = await self._commit_of(self._repository, f"refs/heads/{branch}")
        if tip in ("", work) or await self._contains(f"refs/heads/{target}", tip):
            return ""
        came_before = await self._contains(tip, work)
        return f"the commit {work[:12]} was left checked out there, and {branch} has more" if came_before else ""

    async def _named(self, where: str, branch: str) -> str:
        """The commit of the worktree, which a branch is made to hold: an agent may have checked out something else."""
        here = await self._commit_of(where, "HEAD")
        if not here:
            words = f"nothing is left in {where}, and a branch without a commit is checked out there"
            raise WorkspaceError(f"{words}; check out {branch}, which has what was committed, or remove the worktree")
        if not await self._contains(f"refs/heads/{branch}", here):
            moved = await self._contains(here, f"refs/heads/{branch}")
            name = branch if moved else _elsewhere(branch, here)
            before = await self._commit_of(where, f"refs/heads/{name}") or NOTHING
            await self._must(where, "update-ref", f"refs/heads/{name}", here, before)
        return here

    async def _merge_once(self, target: str, work: str, message: str) -> Merge | None:
        """One merge; ``None`` if the target moved meanwhile."""
        head = await self._commit_of(self._repository, f"refs/heads/{target}")
        if await self._contains(head, work):
            return Merge(outcome="nothing", commit=head, why=f"everything is in {target} already")
        if inside := await self._repositories_inside(await self._parted(head, work), work):
            why = f"repositories inside it would be lost, since only their names are committed: {_told(inside)}"
            return Merge(outcome="refused", files=inside, why=why)
        how = ("--write-tree", "--name-only", "--no-messages", "-z")
        tried = await self._git(self._repository, "merge-tree", *how, head, work)
        tree, *files = _names(tried.stdout) or ("",)
        if tried.status == 1 and tree:
            return Merge(outcome="refused", files=tuple(files), why=f"in conflict with {target}: {_told(files)}")
        if not tried.ok:
            raise WorkspaceError(f"git merge-tree failed: {_last(tried)}")
        made = await self._must(self._repository, "commit-tree", tree, "-p", head, "-p", work, "-m", message)
        return await self._advance(target, head, _text(made))

    async def _repositories_inside(self, base: str, work: str) -> tuple[str, ...]:
        """The repositories inside the worktree that the work has and *base* has not, or not at that commit."""
        return _repositories((await self._must(self._repository, "diff", *_RAW, base, work)).stdout)

    async def _changed_inside(self, session_id: str) -> tuple[str, ...]:
        """The repositories inside the worktree in which something is changed that they have not committed."""
        place = self._place(session_id)
        if not _is_worktree(place):
            return ()
        return _repositories((await self._must(str(place), "diff", *_RAW)).stdout)

    async def _advance(self, target: str, head: str, commit: str) -> Merge | None:
        """Move the target on; ``None`` if it moved meanwhile. Who has it checked out has all of it then, or nothing."""
        holder = await self._holder(target)
        if holder is None:
            if await self._is_rebased(target):
                return Merge(outcome="refused", why="a rebase of it is under way, which could not be ended then")
            moved = await self._git(self._repository, "update-ref", f"refs/heads/{target}", commit, head)
            return Merge(outcome="merged", commit=commit) if moved.ok else None
        how = (
            "--ff-only",
            "--no-squash",
            "--no-verify-signatures",
            "--no-overwrite-ignore",
            "--no-autostash",
            "--quiet",
        )
        for _ in range(LOCK_TRIES):
            with anyio.CancelScope(shield=True):
                moved = await self._git(holder, "merge", *how, commit, timeout_s=FORWARD_S)
            if moved.ok:
                return Merge(outcome="merged", commit=commit)
            if await self._commit_of(self._repository, f"refs/heads/{target}") != head:
                return None
            if moved.problem:
                why = f"{moved.problem}; half of it may be there (git -C {holder} status)"
                return Merge(outcome="refused", why=f"git merge --ff-only {commit[:12]} in {holder}: {why}")
            if "index.lock" not in _last(moved):
                break
            await anyio.sleep(LOCK_WAIT_S)
        else:
            return Merge(outcome="refused", why=f"another git is at work in {holder}, or was killed: {_last(moved)}")
        return Merge(outcome="refused", why=f"{holder} has changes of its own in the way: {_last(moved)}")

    async def _holder(self, target: str) -> str | None:
        """The worktree that has *target* checked out."""
        listed = await self._must(self._repository, "worktree", "list", "--porcelain", "-z")
        for entry in listed.stdout.decode(errors="surrogateescape").split("\0\0"):
            fields = dict(line.partition(" ")[::2] for line in entry.split("\0"))
            if fields.get("branch") == f"refs/heads/{target}" and "prunable" not in fields:
                return fields["worktree"]
        return None

    async def _is_rebased(self, target: str) -> bool:
        """True while somebody rebases *target*: no worktree has it checked out then, and one will move it."""
        common = await self._must(self._repository, "rev-parse", "--path-format=absolute", "--git-common-dir")
        heads = await anyio.to_thread.run_sync(_rebased_in, Path(_text(common)))
        return f"refs/heads/{target}" in heads

    # ------------------------------------------------------------------------------------------ checkpoints
    async def save(self, session_id: str, place: Place, message: str) -> str:
        """Commit what a session has not committed, and hold the commit that it has come to; ``""`` where there is none,
        or something was begun there and not ended.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._one_at_a_time:
            return "" if any(await self._begun(session_id)) else await self._held(session_id, message)

    async def _held(self, session_id: str, message: str) -> str:
        commit = await self._saved(session_id, message)
        if commit:
            await self._must(self._repository, "update-ref", f"{_SAVED}/{_plain(session_id)}/{commit}", commit)
        return commit

    async def roll_back(self, session_id: str, place: Place, message: str) -> str:
        """Have a worktree as it was where it and the target parted, or at the checkpoint that it began with. What was
        done there is a checkpoint then, the branch of the session too; what git ignores is removed.

        Raises:
            WorkspaceError: git cannot do it, or there is a repository inside, which would be lost.
        """
        async with self._one_at_a_time:
            path, branch, target = self._place(session_id), branch_of(session_id), await self.target()
            if not _is_worktree(path):
                raise WorkspaceError(f"session {session_id!r} has no worktree")
            where = str(path)
            commit = await self._held(session_id, message)
            if await self._holds_more(where, target):
                raise WorkspaceError(f"{where} holds more than can be committed")
            tip = await self._commit_of(where, f"refs/heads/{branch}")
            if tip and tip != commit:  # its agent had checked out something else
                await self._must(self._repository, "update-ref", f"{_SAVED}/{_plain(session_id)}/{tip}", tip)
            base = place.starts_at or await self._parted(f"refs/heads/{target}", commit)
            await self._quit(path)
            await self._must(where, "checkout", "--quiet", "--force", "-B", branch, base)
            await self._must(where, "clean", "--quiet", "--force", "-d", "-x")
            return commit

    async def accept(self, place: Place) -> None:
        """Nobody else works in a worktree."""

    async def forget(self, place: Place) -> None:
        """Drop the references to checkpoints that the target has.

        Raises:
            WorkspaceError: git cannot do it.
        """
        async with self._one_at_a_time:
            target = await self.target()
            listed = await self._must(
                self._repository, "for-each-ref", "--merged", f"refs/heads/{target}", "--format=%(refname)", _SAVED
            )
            for name in _text(listed).splitlines():
                await self._must(self._repository, "update-ref", "-d", name)

    # ------------------------------------------------------------------------------------------ clean-up
    async def put_away(self, session_id: str, message: str) -> Released:
        """Commit what a session has not committed, and remove its worktree; its branch too if the target has it all.

        Raises:
            WorkspaceError: git cannot do what it must.
        """
        async with self._one_at_a_time:
            place, branch, target = self._place(session_id), branch_of(session_id), await self.target()
            commit = await self._saved(session_id, message)
            if not _is_worktree(place) and await self._holder(branch) is not None:
                return Released()  # somebody else's, who had it first
            if _is_worktree(place):
                if await self._holds_more(str(place), target):
                    return Released(branch=branch, directory=str(place))
                await self._quit(place)
                await self._remove(place)
            if not await self._dropped(branch, target):
                return Released(branch=branch)
            elsewhere = commit and not await self._contains(f"refs/heads/{target}", commit)
            return Released(branch=_elsewhere(branch, commit) if elsewhere else "")

    async def left(self) -> list[str]:
        """The sessions that have a worktree which is not kept."""
        names = await anyio.to_thread.run_sync(_names_in, self._root)
        await anyio.to_thread.run_sync(_sweep, self._root)
        return [unquote(name, errors="surrogateescape") for name in names]

    async def _holds_more(self, where: str, target: str) -> bool:
        """True if a removal would lose something: what is not committed, or a repository inside this one."""
        status = await self._must(where, "status", "--porcelain", "--untracked-files=normal", _INNER)
        here, head = await self._commit_of(where, "HEAD"), f"refs/heads/{target}"
        base = await self._base(head, here) or head
        return bool(status.stdout.strip()) or bool(await self._repositories_inside(base, here))

    async def _quit(self, place: Path) -> None:
        """Nothing is under way there any more; what a rebase had stashed is a stash then, and would be lost else."""
        if await anyio.to_thread.run_sync(_begun_in, place):
            for words in _QUIT:
                await self._git(str(place), *words)

    async def _unlock(self, where: str) -> None:
        """Nobody works there now: a lock of the index is one that a git which was killed has left."""
        kept = await self._must(where, "rev-parse", "--absolute-git-dir")
        await anyio.to_thread.run_sync(_no_lock, Path(_text(kept)))

    async def _remove(self, place: Path) -> None:
        """Remove a worktree: at once aside, so that half of one is never taken for work, and then for good."""
        with anyio.CancelScope(shield=True):
            aside = await anyio.to_thread.run_sync(_set_aside, place)
            await self._git(self._repository, "worktree", "remove", "--force", "--force", str(place))
            if aside is not None:
                await anyio.to_thread.run_sync(partial(shutil.rmtree, aside, ignore_errors=True))

    async def _dropped(self, branch: str, target: str) -> bool:
        """Remove *branch* if the target has it; exactly the commit that was looked at. True if it is gone."""
        tip = await self._commit_of(self._repository, f"refs/heads/{branch}")
        if not tip:
            return True
        if branch == target or await self._holder(branch) is not None:
            return False
        if not await self._contains(f"refs/heads/{target}", tip):
            return False
        return (await self._git(self._repository, "update-ref", "-d", f"refs/heads/{branch}", tip)).ok

    # ------------------------------------------------------------------------------------------ git itself
    def _place(self, session_id: str) -> Path:
        return self._root / _plain(session_id)

    async def _contains(self, one: str, other: str) -> bool:
        """True if *other* is *one*, or came before it."""
        return (await self._git(self._repository, "merge-base", "--is-ancestor", other, one)).ok

    async def _base(self, one: str, other: str) -> str:
        """The last commit that both came from; ``""`` where there is none."""
        found = await self._git(self._repository, "merge-base", one, other)
        return _text(found) if found.ok else ""

    async def _commit_of(self, where: str, name: str) -> str:
        found = await self._git(where, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return _text(found) if found.ok else ""

    async def _must(self, where: str, *words: str) -> Ran:
        ran = await self._git(where, *words)
        if not ran.ok:
            raise WorkspaceError(f"git {words[0]} failed in {where}: {_last(ran)}")
        return ran

    async def _git(self, where: str, *words: str, timeout_s: float | None = None) -> Ran:
        """All that it says, or it has failed."""
        ran = await self._run(where, *words, timeout_s=timeout_s)
        if len(ran.stdout) < LISTED_MAX:
            return ran
        return msgspec.structs.replace(ran, status=None, problem=f"it lists more than {LISTED_MAX} bytes")

    async def _run(self, where: str, *words: str, output_max: int = LISTED_MAX, timeout_s: float | None = None) -> Ran:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), **_IDENTITY}
        config = [part for setting in _QUIET for part in ("-c", setting)]
        launch = Launch(argv=("git", *config, *words), cwd=where, env=env)
        return await run_program(self._host, launch, timeout_s=timeout_s or GIT_S, output_max=output_max)


def branch_of(session_id: str) -> str:
    """The branch of a session: one path below ``supervisor/``, whatever its id holds."""
    name = quote(session_id, safe="", errors="surrogateescape").replace("~", "%7E")
    plain = ".." not in name and not name.startswith((".", "-")) and not name.endswith((".", ".lock"))
    return f"{_BRANCHES}/{name if plain else name.replace('.', '%2E').replace('-', '%2D')}"


def _elsewhere(branch: str, commit: str) -> str:
    """The branch that holds what a session came to beside its own."""
    return f"{branch}.{commit[:12]}"


def _plain(session_id: str) -> str:
    """A session's id as one name of a directory, or of a reference."""
    return branch_of(session_id).partition("/")[2]


def _is_worktree(place: Path) -> bool:
    """True if there is one, as git made it: with another ``.git``, or none, git finds a repository of the agent, or the
    one above, where the user works.

    Raises:
        WorkspaceError: there is something else; an agent may have made it.
    """
    link = place / ".git"
    if not os.path.lexists(link) and not (place.is_dir() and any(place.iterdir())):
        return False
    if not _is_linked(place):
        words = f"{place} is no worktree any more: its .git was removed or replaced, or it or its repository was moved"
        raise WorkspaceError(
            f"{words}; what is there is left: git worktree repair {place}, or save what you need and remove it"
        )
    return True


def _is_linked(place: Path) -> bool:
    """True if its ``.git`` names a directory of git that names this place."""
    if (name := _line_of(place / ".git")) is None or not name.startswith(_LINK):
        return False
    kept = place / name.removeprefix(_LINK)
    if (back := _line_of(kept / "gitdir")) is None:
        return False
    where = (kept / back).parent
    return where.name == place.name and os.path.realpath(where.parent) == os.path.realpath(place.parent)


def _line_of(path: Path) -> str | None:
    """What stands in a file; of what is no file, as a pipe that nobody writes to, nothing is read."""
    if path.is_symlink() or not path.is_file():
        return None
    return os.fsdecode(path.read_bytes()).rstrip("\n")


def _is_being_made(kept: Path) -> bool:
    """True if git had not made it to the end; a lock with other words is somebody's."""
    lock = kept / "locked"
    return lock.exists() and lock.read_text(errors="replace").strip() == "initializing"


def _begun_in(place: Path) -> str:
    kept = place / (_line_of(place / ".git") or "").removeprefix(_LINK)
    return next((what for name, what in _BEGUN.items() if (kept / name).exists()), "")


def _rebased_in(common: Path) -> list[str]:
    """The branches that are being rebased in any worktree."""
    rebases = (one / way / "head-name" for one in (common, *common.glob("worktrees/*")) for way in _REBASES)
    return [name for name in map(_line_of, rebases) if name is not None]


def _no_lock(kept: Path) -> None:
    (kept / "index.lock").unlink(missing_ok=True)


def _set_aside(place: Path) -> Path | None:
    """Where a worktree was moved to; ``None`` where there is none."""
    if not _is_worktree(place):
        return None
    aside = Path(tempfile.mkdtemp(prefix=_GONE, dir=place.parent))
    place.rename(aside / "gone")
    return aside


def _sweep(root: Path) -> None:
    """What was set aside to be removed, and never was."""
    for aside in root.glob(f"{_GONE}*"):
        shutil.rmtree(aside, ignore_errors=True)


def _names_in(root: Path) -> list[str]:
    places = sorted(root.iterdir()) if root.is_dir() else []
    return [place.name for place in places if not place.name.startswith(_GONE) and _is_left(place)]


def _is_left(place: Path) -> bool:
    """True if it is to be put away; of what is no worktree any more whoever tries that is told."""
    try:
        return _is_worktree(place) and not _is_kept(place)
    except WorkspaceError:
        return True


def _is_kept(place: Path) -> bool:
    """True if it has our lock, which is a file where git keeps what belongs to the worktree."""
    lock = place / (_line_of(place / ".git") or "").removeprefix(_LINK) / "locked"
    return lock.exists() and lock.read_text(errors="replace").strip() == _KEPT


def _parent_of(place: Path) -> None:
    make_private(place.parent)


def _text(ran: Ran) -> str:
    return ran.stdout.decode(errors="surrogateescape").strip("\n")


def _names(listed: bytes) -> tuple[str, ...]:
    """Files that git lists with ``-z``, as text that can be kept: of a name that is not UTF-8, bytes as ``\\xff``."""
    return tuple(name.decode(errors="backslashreplace") for name in listed.split(b"\0") if name)


def _repositories(listed: bytes) -> tuple[str, ...]:
    """The repositories among what git lists with ``--raw -z``: for each file what became of it, and its name."""
    fields = listed.split(b"\0")
    entries = zip(fields[::2], fields[1::2], strict=False)
    return _names(b"\0".join(name for modes, name in entries if modes.split()[1] == _SUBMODULE))


def _told(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED_MAX} more" if len(files) > NAMED_MAX else ""
    return f"{', '.join(files[:NAMED_MAX])}{more}"


def _last(ran: Ran) -> str:
    """What git has to say, in a line: its first error, with the files that it lists below, or its last word."""
    lines = ran.output.strip().splitlines()
    errors = [at for at, line in enumerate(lines) if line.startswith(("error:", "fatal:"))]
    if ran.problem or not errors:
        return ran.problem or (lines[-1:] or [f"exit status {ran.status}"])[0]
    files = [line.strip() for line in takewhile(lambda line: line.startswith("\t"), lines[errors[0] + 1 :])]
    return f"{lines[errors[0]]} {', '.join(files)}".strip()
