"""Fast-forward of the target branch in the checkout that has it checked out: complete, or undone.

Theory of operation
-------------------
``git merge --ff-only`` writes the files, then the index, then the branch. A git that is killed, or finds the disk full,
leaves what it has written, and ``index.lock``. So the merge is made in steps that can be distinguished afterwards:

1. The step (holder, branch, commit before, commit after) is put on durable record (``steps``).
2. ``index.lock`` is made by the supervisor, with a content that only this step has. While it exists no other git
   changes the index or the files of that checkout; after a kill it proves that none has.
3. Each file that the merge is to change must be as the commit before has it, in the index and in the checkout; else the
   merge is refused, and nothing was touched.
4. Git merges with a copy of the index (``GIT_INDEX_FILE``): it writes files, copy, branch, in this order.
5. The copy replaces the index, and the lock is removed.

After an interruption the branch decides:

* The branch has moved. All files were written before, and the copy too, so the copy replaces the index. If there is no
  copy, the index was replaced already; if another program has removed the lock, the copy may be out of date. In both
  cases a new copy is made of the current index, under another name until it has the merge.
* The branch has not moved. By (3) each file of the merge was as the commit before has it. A file that now has the
  content of the commit after, or the beginning of it, or is missing, is restored; the merge is then made anew in the
  ordinary way. Any other content was written by the user meanwhile: it is left, and named.

Example: killed with 600 of 6,000 new files written. The 600 are removed, then ``index.lock``, and the checkout is as it
was.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final, NamedTuple

import anyio
import msgspec

from actors.waiting import to_the_end
from supervisor.ports import Merge
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import shortage_of
from supervisor.workspaces.git_command import SUBMODULE, Git, WorkspaceError, error_of, names_in_list, some_of, text_of
from supervisor.workspaces.steps import Advance, StepFile
from supervisor.workspaces.worktree_files import branches_rebased_in

_log = get_logger()

FORWARD_S = 300.0
"""Seconds that a fast-forward may take in a checkout: a large repository with filters (LFS) on a slow disk takes
minutes."""

LOCK_TRIES = 20
"""Number of tries to lock the index of the checkout: a commit there, or an editor that reads the status, locks the
index for a moment."""

LOCK_WAIT_S = 0.5
"""Seconds between two tries to lock the index."""

_COPY: Final = "supervisor-index"
"""Name of the copy of the index; it lies beside the index, so that it can replace it."""
_NEW_COPY: Final = "supervisor-new-index"
"""Name of a copy that is made after the branch has moved, until the merge is in the copy: until then it must not
replace the index."""
_NEW_LOCK: Final = "supervisor-lock"
"""Name of the lock file until its content is written."""
_HOW: Final = (
    "--ff-only",
    "--no-squash",
    "--no-verify-signatures",
    "--no-overwrite-ignore",
    "--no-autostash",
    "--quiet",
)
_ABSENT: Final = "000000"
_SYMLINK: Final = "120000"


class _Change(NamedTuple):
    """A file that differs between the commit before and the commit after: mode and blob in each."""

    path: str
    mode_before: str
    mode_after: str
    blob_before: str
    blob_after: str


class _FileStates(NamedTuple):
    """Files of a merge that differ from the commit before the merge."""

    added: list[str]
    """New files with the content of the commit after, or the beginning of it."""
    changed: list[str]
    """Other files that are missing, or have the content of the commit after, or the beginning of it."""
    foreign: list[str]
    """Files with any other content, which the user has written."""


class FastForward:
    """Fast-forward of the target branch to the result of a merge."""

    def __init__(self, git: Git, steps: StepFile) -> None:
        self._git = git
        self._steps = steps

    async def advance(self, target: str, head: str, commit: str) -> Merge | None:
        """Move the target branch to *commit*; return ``None`` if the branch is not at *head* any more.

        Raises:
            WorkspaceError: the step could be neither finished nor undone; its record stays.
            OSError: the machine lacks file descriptors, and nothing has changed.
        """
        holders = await self._git.holders(target)
        if not holders:
            if await self._is_rebased(target):
                return Merge(outcome="refused", why="a rebase of it is under way, which could not be ended then")
            moved = await self._git.run(self._git.repository, "update-ref", f"refs/heads/{target}", commit, head)
            return Merge(outcome="merged", commit=commit) if moved.ok else None
        if len(holders) > 1:
            words = f"{target} is checked out in {some_of(holders)}, and only one of them could be moved on with it"
            return Merge(outcome="refused", why=f"{words}; check out another branch in the others (git switch)")
        return await self._advance_in(holders[0], target, head, commit)

    async def _advance_in(self, holder: str, target: str, head: str, commit: str) -> Merge | None:
        git_dir = text_of(await self._git.must(holder, "rev-parse", "--absolute-git-dir"))
        step = Advance(
            holder=holder,
            git_dir=git_dir,
            target=target,
            before=head,
            after=commit,
            token=f"supervisor {token_hex(16)}\n",
        )
        await anyio.to_thread.run_sync(self._steps.begin, step)
        if not await self._lock(step):
            why = f"another git is at work in {holder}, or was killed: {git_dir}/index.lock is there"
            return Merge(outcome="refused", why=f"{why}; remove it if no git is running")
        return await to_the_end(partial(self._advance_locked, step))

    async def _advance_locked(self, step: Advance) -> Merge | None:
        if await self._commit_checked_out(step) != step.before:
            await self._unlock(step)
            return None
        if in_the_way := await self._changed_files(step):
            await self._unlock(step)
            named = names_in_list(b"\0".join(map(os.fsencode, in_the_way)))
            why = f"{step.holder} has changes of its own in the way: {some_of(named)}"
            return Merge(outcome="refused", why=why)
        step = msgspec.structs.replace(step, begun=True)
        await anyio.to_thread.run_sync(self._steps.begin, step)
        lacking: OSError | None = None
        try:
            await anyio.to_thread.run_sync(_copy_index, step, _copy_of(step))
            moved = await self._git.run(
                step.holder, "merge", *_HOW, step.after, timeout_s=FORWARD_S, index=_copy_of(step)
            )
            why = "" if moved.ok else error_of(moved)
        except OSError as error:
            why, lacking = str(error), error if shortage_of(error) else None
        foreign = await self.recover(step)
        tip = await self._git.commit_of(self._git.repository, f"refs/heads/{step.target}")
        if tip == step.after:
            return Merge(outcome="merged", commit=step.after)
        if tip != step.before:
            return None
        if lacking is not None:
            raise lacking  # no refusal: a shortage of descriptors is waited for, and the merge is made anew
        why = f"git merge --ff-only {step.after[:12]} failed in {step.holder}, which is as it was before: {why}"
        if foreign:
            why = f"{why}; these were changed there meanwhile, and were left: {some_of(foreign)}"
        return Merge(outcome="refused", why=why)

    # ------------------------------------------------------------------------------------ after an interruption
    async def recover(self, step: Advance) -> list[str]:
        """Finish an interrupted fast-forward if the branch has moved, else undo it; return the files that were left to
        the user.

        Idempotent.

        Raises:
            WorkspaceError: another git works in the checkout, or git or the disk fails; the record of the step stays.
        """
        if not await anyio.to_thread.run_sync(os.path.isdir, step.git_dir):
            return []  # the checkout is gone, and with it whatever was half done
        is_there = await anyio.to_thread.run_sync(os.path.isdir, step.holder)
        if not step.begun or not is_there:  # nothing was touched, or the user has removed the checkout meanwhile
            await self._unlock(step)
            return []
        had_lock = await anyio.to_thread.run_sync(_is_ours, step)
        if not had_lock:  # removed by another program, which may have changed the index: the copy is stale
            await anyio.to_thread.run_sync(_remove_copy, step)
        if not had_lock and not await self._lock(step):
            words = f"the merge of {step.after[:12]} into {step.target} was interrupted in {step.holder}"
            raise WorkspaceError(f"{words}, and another git is at work there ({step.git_dir}/index.lock); let it end")
        foreign: list[str] = []
        if await self._git.contains(f"refs/heads/{step.target}", step.after):
            if not await anyio.to_thread.run_sync(_copy_of(step).exists):
                await self._advance_index(step)
            await anyio.to_thread.run_sync(_replace_index, step)
        elif foreign := await self._restore_files(step):
            _log.warning("files of an interrupted merge are left as the user has them", files=foreign, of=step.holder)
        await self._unlock(step)
        return foreign

    async def _advance_index(self, step: Advance) -> None:
        """Make a copy of the index with the changes of the merge and of the user since, and replace the index by the
        copy.

        If the index has the merge already, the copy is equal to it. No copy is made, and the index stays, if the merge
        and the user have changed the same file, or the user has checked out or committed something else.

        Raises:
            WorkspaceError: git did not finish; the record of the step stays.
        """
        if await self._git.commit_of(step.holder, "HEAD") != step.after:
            _log.warning("an index is left as the user has it: another commit is checked out there", of=step.holder)
            return
        new = _beside_index(step, _NEW_COPY)
        await anyio.to_thread.run_sync(_copy_index, step, new)
        made = await self._git.run(step.holder, "read-tree", "-i", "-m", step.before, step.after, index=new)
        if made.status is None:
            raise WorkspaceError(f"git read-tree failed in {step.holder}: {error_of(made)}")
        if made.ok:
            await anyio.to_thread.run_sync(new.replace, _copy_of(step))
        else:
            _log.warning("an index is left as the user has it", of=step.holder, why=error_of(made))

    async def _restore_files(self, step: Advance) -> list[str]:
        changes = await self._changes(step)
        moved_on = await self._list_names(
            step.holder, "diff-tree", "-r", "--no-renames", "--name-only", "-z", step.before, "HEAD"
        )
        staged = await self._staged_files(step)
        found = await self._compare_files(
            step, [one for one in changes if one.path not in moved_on and one.path not in staged]
        )
        await anyio.to_thread.run_sync(_remove_files, step.holder, found.added)
        # A file in place of a folder is known to be missing only now.
        again = await self._compare_files(
            step, [one for one in changes if one.path in {*found.changed, *found.foreign}]
        )
        await anyio.to_thread.run_sync(_remove_links, step.holder, again.changed)
        wanted = sorted(set(again.changed) - await self._sparse_files(step.holder, again.changed))
        await self._git.run_over(step.holder, ("checkout-index", "--force", "--quiet"), wanted)
        return [*again.foreign, *sorted(staged & {one.path for one in changes})]

    # ------------------------------------------------------------------------------------ what is in the checkout
    async def _changed_files(self, step: Advance) -> list[str]:
        """Return the files that the merge is to change and that differ in the checkout from the commit before."""
        changes = await self._changes(step)
        found, staged = await self._compare_files(step, changes, unfinished=False), await self._staged_files(step)
        left_out = await self._sparse_files(step.holder, found.changed)
        new = {one.path for one in changes if one.mode_before == _ABSENT}
        folders = await anyio.to_thread.run_sync(_folders, step.holder, [one for one in found.foreign if one in new])
        # What is a folder now, and a file afterwards, is for git to look into: its files may be going.
        changed = {*found.added, *found.changed, *found.foreign, *(staged & {one.path for one in changes})}
        # What lies behind a symbolic link that the merge removes is no file of this checkout.
        links = {one.path for one in changes if one.mode_before == _SYMLINK and one.mode_after == _ABSENT}
        behind = {path for path in found.foreign if path in new and not links.isdisjoint(map(str, Path(path).parents))}
        return sorted(changed - left_out - folders - behind)

    async def _changes(self, step: Advance) -> list[_Change]:
        listed = await self._git.must(
            step.holder, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", step.before, step.after
        )
        fields = os.fsdecode(listed.stdout).split("\0")
        changes = [
            _Change(path, *what.lstrip(":").split()[:4]) for what, path in zip(fields[::2], fields[1::2], strict=False)
        ]
        return [one for one in changes if SUBMODULE not in (one.mode_before, one.mode_after)]

    async def _staged_files(self, step: Advance) -> set[str]:
        """Return the files whose entries in the index differ from the commit before."""
        return await self._list_names(
            step.holder, "diff-index", "--cached", "--no-renames", "--name-only", "-z", step.before
        )

    async def _sparse_files(self, holder: str, paths: Sequence[str]) -> set[str]:
        """Return the *paths* that a sparse checkout leaves out."""
        listed = await self._git.run_over(holder, ("--literal-pathspecs", "ls-files", "-t", "-z"), paths)
        return {entry[2:] for entry in os.fsdecode(listed).split("\0") if entry.startswith("S ")}

    async def _list_names(self, where: str, *words: str) -> set[str]:
        listed = await self._git.must(where, *words)
        return set(filter(None, os.fsdecode(listed.stdout).split("\0")))

    async def _compare_files(
        self, step: Advance, changes: Sequence[_Change], *, unfinished: bool = True
    ) -> _FileStates:
        """Compare the files of the merge with both commits. *unfinished*: a file with only the beginning of a commit's
        content counts as having that content."""
        holder, found = step.holder, _FileStates([], [], [])
        files, links, missing = await anyio.to_thread.run_sync(_sort, holder, [one.path for one in changes])
        known = {blob for one in changes for blob in (one.blob_before, one.blob_after)}
        listed = await self._git.run_over(holder, ("hash-object",), sorted(files))
        blobs = dict(zip(sorted(files), os.fsdecode(listed).split(), strict=True))
        # A file that was committed with the line ends of Windows stays so where git would convert a new one.
        other = sorted({one.path for one in changes} & {path for path, blob in blobs.items() if blob not in known})
        listed = await self._git.run_over(holder, ("hash-object", "--no-filters"), other)
        blobs |= {path: blob for path, blob in zip(other, os.fsdecode(listed).split(), strict=True) if blob in known}
        sees_modes = await self._sees_modes(holder)
        for one in changes:
            is_new, is_link = one.mode_before == _ABSENT, one.path in links
            if one.path in missing:
                if not is_new:
                    found.changed.append(one.path)
                continue
            blob = _blob_of_link(links[one.path], one) if is_link else blobs.get(one.path, "")
            if blob and blob == one.blob_before and is_link == (one.mode_before == _SYMLINK):
                if sees_modes and one.blob_after == blob and one.mode_before != files.get(one.path, one.mode_before):
                    found.changed.append(one.path)
                continue
            ours = blob == one.blob_after and is_link == (one.mode_after == _SYMLINK)
            if unfinished and not ours and one.path in files and one.mode_after not in (_ABSENT, _SYMLINK):
                ours = await self._git.begins_like(holder, one.path, one.blob_after)
            (found.foreign if not ours else found.added if is_new else found.changed).append(one.path)
        return found

    async def _sees_modes(self, holder: str) -> bool:
        """Return whether the file system stores the executable bit of files."""
        setting = await self._git.run(holder, "config", "--type=bool", "--get", "core.fileMode")
        return text_of(setting) != "false"

    async def _commit_checked_out(self, step: Advance) -> str:
        """Return the commit of the target if the target is still checked out in the holder, else ``""``; called while
        the index is locked, so that the result stays true."""
        head = await self._git.run(step.holder, "symbolic-ref", "--quiet", "HEAD")
        is_there = head.ok and text_of(head) == f"refs/heads/{step.target}"
        return await self._git.commit_of(step.holder, "HEAD") if is_there else ""

    # ------------------------------------------------------------------------------------ the lock of the index
    async def _lock(self, step: Advance) -> bool:
        """Lock the index of *step*, with ``LOCK_TRIES`` tries; return whether that succeeded."""
        tries = 1
        while not (is_made := await anyio.to_thread.run_sync(_make_lock, step)) and tries < LOCK_TRIES:
            await anyio.sleep(LOCK_WAIT_S)
            tries += 1
        return is_made

    async def _unlock(self, step: Advance) -> None:
        await anyio.to_thread.run_sync(_remove_lock, step)

    async def _is_rebased(self, target: str) -> bool:
        """Return whether *target* is being rebased: then no worktree has it checked out, but one will move it."""
        heads = await anyio.to_thread.run_sync(branches_rebased_in, await self._git.common_dir())
        return f"refs/heads/{target}" in heads


# ------------------------------------------------------------------------------------------ files of git
def _lock_of(step: Advance) -> Path:
    return Path(step.git_dir, "index.lock")


def _beside_index(step: Advance, name: str) -> Path:
    """Return the path of a file that the step makes beside the index. The file name contains the step's token, since
    another supervisor may take such a step in the same repository."""
    return Path(step.git_dir, f"{name}-{step.token.split()[-1]}")


def _copy_of(step: Advance) -> Path:
    return _beside_index(step, _COPY)


def _make_lock(step: Advance) -> bool:
    """Make the lock file together with its content, since an empty lock could be any git's. Return ``False`` if the
    index is locked already."""
    new = _beside_index(step, _NEW_LOCK)
    try:
        new.write_text(step.token)
        os.link(new, _lock_of(step))
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return _create_lock(step)  # a file system without hard links: there the content comes a moment later
    finally:
        new.unlink(missing_ok=True)
    return True


def _create_lock(step: Advance) -> bool:
    try:
        lock = _lock_of(step).open("x")
    except FileExistsError:
        return False
    try:
        with lock:
            lock.write(step.token)
    except OSError:  # a full disk: without its content the owner of the lock would be unknown
        _lock_of(step).unlink(missing_ok=True)
        raise
    return True


def _is_ours(step: Advance) -> bool:
    try:
        return _lock_of(step).read_text(errors="replace") == step.token
    except FileNotFoundError:
        return False


def _remove_lock(step: Advance) -> None:
    """Remove the step's files beside the index, the lock last, which excludes other git commands until then."""
    _remove_copy(step)
    _beside_index(step, _NEW_LOCK).unlink(missing_ok=True)
    if _is_ours(step):
        _lock_of(step).unlink()


def _remove_copy(step: Advance) -> None:
    for copy in (_beside_index(step, _NEW_COPY), _copy_of(step)):
        copy.with_name(f"{copy.name}.lock").unlink(missing_ok=True)
        copy.unlink(missing_ok=True)


def _copy_index(step: Advance, copy: Path) -> None:
    """Copy the index with its modification time: git re-examines files that are not older than the index."""
    _remove_copy(step)
    with suppress(FileNotFoundError):  # nothing was ever added there
        shutil.copy2(Path(step.git_dir, "index"), copy)


def _replace_index(step: Advance) -> None:
    with suppress(FileNotFoundError):  # the index stays as the user has it
        _copy_of(step).replace(Path(step.git_dir, "index"))


# ------------------------------------------------------------------------------------------ files of the user
def _sort(holder: str, paths: Sequence[str]) -> tuple[dict[str, str], dict[str, bytes], set[str]]:
    """Sort *paths* into plain files (with modes), symbolic links (with targets) and missing paths. A path that leads
    through a symbolic link is left out: the file there is not the file of the commit."""
    files, links, missing = dict[str, str](), dict[str, bytes](), set[str]()
    through: dict[Path, bool] = {Path(): False}
    for path in paths:
        if _leads_through_link(Path(holder), Path(path).parent, through):
            continue
        try:
            mode = os.lstat(os.path.join(holder, path)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            missing.add(path)
            continue
        if S_ISREG(mode):
            files[path] = "100755" if mode & 0o100 else "100644"
        elif S_ISLNK(mode):
            links[path] = os.fsencode(os.readlink(os.path.join(holder, path)))
    return files, links, missing


def _leads_through_link(top: Path, folder: Path, known: dict[Path, bool]) -> bool:
    if folder not in known:
        known[folder] = _leads_through_link(top, folder.parent, known) or (top / folder).is_symlink()
    return known[folder]


def _blob_of_link(target: bytes, one: _Change) -> str:
    """Return the hash of a symbolic link's blob, by the hash function of its repository."""
    new = hashlib.sha256 if len(one.blob_after) == 64 else hashlib.sha1
    return new(b"blob %d\0" % len(target) + target).hexdigest()


def _folders(holder: str, paths: Sequence[str]) -> set[str]:
    return {path for path in paths if Path(holder, path).is_dir()}


def _remove_files(holder: str, paths: Collection[str]) -> None:
    """Remove files that the merge has added, and the folders that are empty then."""
    for path in paths:
        Path(holder, path).unlink(missing_ok=True)
    folders: Mapping[Path, None] = {folder: None for path in paths for folder in Path(path).parents if folder != Path()}
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        with suppress(OSError):  # it is not empty
            Path(holder, folder).rmdir()


def _remove_links(holder: str, paths: Collection[str]) -> None:
    """Remove the files that ``git checkout-index`` will replace, so that there is room for the old content."""
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            if not S_ISDIR(os.lstat(os.path.join(holder, path)).st_mode):
                os.unlink(os.path.join(holder, path))
