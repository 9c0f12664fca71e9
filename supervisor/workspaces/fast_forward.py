"""Fast-forward of the target branch in the checkout that has it checked out: complete, or undone.

Theory of operation
-------------------
``git merge --ff-only`` writes the files, then the index, then the branch. A git that is killed, or finds the disk full,
leaves what it has written, and ``index.lock``. So the merge is made in steps that can be distinguished afterwards:

1. Each file that the merge is to change must be as the commit before has it, in the index and in the checkout; else the
   merge is refused, and nothing was touched. This takes many git commands, and nothing is locked meanwhile.
2. The step (holder, branch, commit before, commit after) is put on durable record (``steps``).
3. ``index.lock`` is made by the supervisor, with a content that only this step has. While it exists no other git
   changes the index or the files of that checkout, and a user's ``git commit`` is refused: so the lock is held for what
   follows only. If index, ``HEAD`` or new files have changed since (1), the lock is removed and (1) begins again.
4. Git writes the files, and a copy of the index (``GIT_INDEX_FILE``).
5. The copy replaces the index, the branch moves, and the lock is removed.

A user who commits again and again would always move the branch between (1) and (3). After some tries the lock is made
before the merge is computed (``hold``).

The branch comes last. Between its move and a later change of the index, a user who removes the lock and commits would
commit the old index, and thereby revert the merge. In this order, such a commit contains the merge or leaves it alone.

After an interruption the branch and the index decide, and not which files are left, since the user may have removed
them:

* The branch contains the commit after: everything was done.
* The index has the merge, and the branch is at the commit before: the files are written, so the branch is moved.
* Else the merge is undone, and then made anew in the ordinary way. By (1) each file of the merge was as the commit
  before has it. A file that now has the content of the commit after, or the beginning of it, or is missing, is
  restored, and so is its entry in the index, unless a commit of the user has taken it. Any other content was written by
  the user meanwhile: it is left, and named.

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
from supervisor.ports import Merge, WorkspaceHeld
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import shortage_of
from supervisor.workspaces.git_command import (
    SUBMODULE,
    Git,
    GitKilled,
    error_of,
    names_in_list,
    text_of,
)
from supervisor.workspaces.obstacles import (
    checkout_changed,
    files_unwritable,
    lock_held,
    obstacle_in,
    operation_unfinished,
    target_rebased,
    target_shared,
)
from supervisor.workspaces.steps import Advance, StepFile
from supervisor.workspaces.worktree_files import branches_rebased_in

_log = get_logger()

FORWARD_S = 300.0
"""Seconds that a fast-forward may take in a checkout: a large repository with filters (LFS) on a slow disk takes
minutes."""

LOCK_TRIES = 20
"""Number of tries to lock the index of the checkout: a commit there, or an editor that reads the status, locks the
index for a moment, and changes it."""

LOCK_WAIT_S = 0.5
"""Seconds between two tries to lock the index."""

_COPY: Final = "supervisor-index"
"""Name of the copy of the index; it lies beside the index, so that it can replace it."""
_NEW_LOCK: Final = "supervisor-lock"
"""Name of the lock file until its content is written."""
_UNFINISHED: Final = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick"}
"""Files that git has beside the index while the user's next commit concludes something, and what that is."""
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


class _Comparison(NamedTuple):
    """Result of the comparison of a checkout with the commit before: the files *in_the_way* of the merge, and the new
    files of the merge for which there is nothing at their path (*absent*)."""

    in_the_way: list[str]
    absent: list[str]


class FastForward:
    """Fast-forward of the target branch to the result of a merge."""

    def __init__(self, git: Git, steps: StepFile) -> None:
        self._git = git
        self._steps = steps

    async def hold(self, target: str) -> Advance | None:
        """Lock the index of the checkout of *target* before a merge is computed, so that the user cannot move the
        branch meanwhile; return the step that holds the lock, ``None`` if there is no such checkout, or it stays
        locked.

        Raises:
            WorkspaceError: git failed.
        """
        holders = await self._git.holders(target)
        if len(holders) != 1:
            return None
        step = await self._new_step(holders[0], target)
        await anyio.to_thread.run_sync(self._steps.begin, step)
        return step if await self._lock(step) else None

    async def release(self, step: Advance) -> None:
        """Remove the lock of *step* if it is still there."""
        await self._unlock(step)

    async def _new_step(self, holder: str, target: str) -> Advance:
        git_dir = text_of(await self._git.must(holder, "rev-parse", "--absolute-git-dir"))
        token = f"supervisor {token_hex(16)}\n"
        return Advance(holder=holder, git_dir=git_dir, target=target, before="", after="", token=token)

    async def advance(self, target: str, head: str, commit: str, held: Advance | None = None) -> Merge | None:
        """Move the target branch to *commit*; return ``None`` if the branch is not at *head* any more. *held*: the step
        that holds the lock already.

        Raises:
            WorkspaceHeld: what a person or another program does in the checkout prevents it, and nothing has changed.
            WorkspaceError: the step could be neither finished nor undone; its record stays.
            GitKilled: a git was killed, and the step is undone.
            OSError: the machine lacks file descriptors, and nothing has changed.
        """
        holders = await self._git.holders(target)
        if not holders:
            if await self._is_rebased(target):
                raise WorkspaceHeld(target_rebased(target))
            common = await self._git.common_dir()
            update = ("update-ref", f"refs/heads/{target}", commit, head)
            moved = await to_the_end(partial(self._git.run, self._git.repository, *update))
            if not moved.ok and (held_by := await anyio.to_thread.run_sync(obstacle_in, moved.output, str(common))):
                raise WorkspaceHeld(held_by)
            return Merge(outcome="merged", commit=commit) if moved.ok else None
        if len(holders) > 1:
            raise WorkspaceHeld(target_shared(target, holders))
        step = held if held is not None else await self._new_step(holders[0], target)
        return await self._advance_in(msgspec.structs.replace(step, before=head, after=commit))

    async def _advance_in(self, step: Advance) -> Merge | None:
        holder = step.holder
        begun = msgspec.structs.replace(step, begun=True)
        for tries in range(LOCK_TRIES):
            await anyio.to_thread.run_sync(self._steps.begin, step)
            if tries:
                await anyio.sleep(LOCK_WAIT_S)
            if await anyio.to_thread.run_sync(_is_locked_by_other, step):
                continue  # a comparison now would be out of date as soon as that git has ended
            known = await anyio.to_thread.run_sync(_identify, step)
            if await self._commit_checked_out(step) != step.before:
                return None
            if unfinished := await anyio.to_thread.run_sync(_unfinished_in, step):
                raise WorkspaceHeld(operation_unfinished(holder, *unfinished))
            found = await self._compare(step)
            if found.in_the_way:
                named = names_in_list(b"\0".join(map(os.fsencode, found.in_the_way)))
                raise WorkspaceHeld(checkout_changed(holder, named))
            await anyio.to_thread.run_sync(_copy_index, step)
            # Git takes a file for changed if only its time has; in the copy that can be settled without a lock.
            await self._git.run(holder, "update-index", "-q", "--refresh", index=_copy_of(step))
            await anyio.to_thread.run_sync(self._steps.begin, begun)
            if await anyio.to_thread.run_sync(_lock_unchanged, step, known, found.absent):
                return await to_the_end(partial(self._advance_locked, begun))
            await self._unlock(step)
        raise WorkspaceHeld(await anyio.to_thread.run_sync(lock_held, _lock_of(step), holder))

    async def _advance_locked(self, step: Advance) -> Merge | None:
        failure: OSError | None = None
        try:
            why = await self._replace(step)
            if why == "":
                await self._unlock(step)
                return Merge(outcome="merged", commit=step.after)
        except OSError as error:
            why, failure = str(error), error
        foreign = await self.recover(step)
        tip = await self._git.commit_of(self._git.repository, f"refs/heads/{step.target}")
        if await self._git.contains(tip, step.after):
            return Merge(outcome="merged", commit=step.after)
        if tip != step.before or why is None:
            return None
        if failure is not None and (isinstance(failure, GitKilled) or shortage_of(failure)):
            raise failure  # the merge is made anew
        held_by = await anyio.to_thread.run_sync(obstacle_in, why, step.git_dir)
        raise WorkspaceHeld(held_by or files_unwritable(step.holder, step.after, why, foreign))

    async def _replace(self, step: Advance) -> str | None:
        """Replace files, index and branch, in this order; return ``""`` if that succeeded, else the reason why not;
        ``None`` if another program has removed the lock meanwhile.

        Raises:
            OSError: git was killed, or the disk or the machine has failed.
        """
        words = ("read-tree", "-m", "-u", "--no-recurse-submodules", step.before, step.after)
        written = await self._git.run(step.holder, *words, timeout_s=FORWARD_S, index=_copy_of(step))
        if not written.ok:
            return error_of(written)
        if not await anyio.to_thread.run_sync(_replace_index, step):
            return None
        return await self._move_branch(step)

    async def _move_branch(self, step: Advance) -> str:
        words = ("update-ref", "-m", f"merge {step.after}: Fast-forward")
        moved = await self._git.run(step.holder, *words, f"refs/heads/{step.target}", step.after, step.before)
        return "" if moved.ok else error_of(moved)

    # ------------------------------------------------------------------------------------ after an interruption
    async def recover(self, step: Advance) -> list[str]:
        """Finish an interrupted fast-forward if the index has the merge, else undo it; return the files that were left
        to the user.

        Idempotent.

        Raises:
            WorkspaceHeld: another git works in the checkout; the record of the step stays.
            WorkspaceError: git or the disk fails; the record of the step stays.
        """
        if not await anyio.to_thread.run_sync(os.path.isdir, step.git_dir):
            return []  # the checkout is gone, and with it whatever was half done
        is_there = await anyio.to_thread.run_sync(os.path.isdir, step.holder)
        # Not begun: nothing was touched. Not there: the user has removed the checkout. Contained: all was done.
        if not step.begun or not is_there or await self._git.contains(f"refs/heads/{step.target}", step.after):
            await self._unlock(step)
            return []
        if not await anyio.to_thread.run_sync(_is_ours, step) and not await self._lock(step):
            raise WorkspaceHeld(await anyio.to_thread.run_sync(lock_held, _lock_of(step), step.holder))
        changes = await self._changes(step)
        is_moved = False
        if await self._commit_checked_out(step) == step.before and await self._index_has(step, changes):
            is_moved = not await self._move_branch(step)
        foreign = [] if is_moved else await self._restore(step, changes)
        if foreign:
            _log.warning("files of an interrupted merge are left as the user has them", files=foreign, of=step.holder)
        await self._unlock(step)
        return foreign

    async def _index_has(self, step: Advance, changes: Sequence[_Change]) -> bool:
        """Return whether the index was replaced: an index without the merge has the entry of the commit before for some
        file. A file that the user has staged since has neither."""
        entries = await self._entries(step.holder, changes)
        has_after = any(_has_entry(entries, one.path, one.mode_after, one.blob_after) for one in changes)
        return has_after and not any(_has_entry(entries, one.path, one.mode_before, one.blob_before) for one in changes)

    async def _restore(self, step: Advance, changes: Sequence[_Change]) -> list[str]:
        """Restore entries of the index, and files, that have the content of the commit after; return those that have
        any other."""
        moved_on = await self._list_names(
            step.holder, "diff-tree", "-r", "--no-renames", "--name-only", "-z", step.before, "HEAD"
        )
        changes = [one for one in changes if one.path not in moved_on]
        await self._restore_index(step, changes)
        staged = await self._staged_files(step)
        found = await self._compare_files(step, [one for one in changes if one.path not in staged])
        await anyio.to_thread.run_sync(_remove_files, step.holder, found.added)
        # A file in place of a folder is known to be missing only now.
        again = await self._compare_files(
            step, [one for one in changes if one.path in {*found.changed, *found.foreign}]
        )
        await anyio.to_thread.run_sync(_remove_links, step.holder, again.changed)
        wanted = sorted(set(again.changed) - await self._sparse_files(step.holder, again.changed))
        await self._git.run_over(step.holder, ("checkout-index", "--force", "--quiet"), wanted)
        return [*again.foreign, *sorted(staged & {one.path for one in changes})]

    async def _restore_index(self, step: Advance, changes: Sequence[_Change]) -> None:
        entries = await self._entries(step.holder, changes)
        merged = [one.path for one in changes if _has_entry(entries, one.path, one.mode_after, one.blob_after)]
        if merged:
            await anyio.to_thread.run_sync(_copy_index, step)
            words = ("--literal-pathspecs", "reset", "--quiet", "HEAD")
            await self._git.run_over(step.holder, words, merged, index=_copy_of(step))
            await anyio.to_thread.run_sync(_replace_index, step)

    async def _entries(self, holder: str, changes: Sequence[_Change]) -> dict[str, tuple[str, str]]:
        """Return mode and blob of the files in the index of *holder*; a file in conflict has an entry that no commit
        has."""
        words = ("--literal-pathspecs", "ls-files", "--stage", "-z")
        listed = await self._git.run_over(holder, words, [one.path for one in changes])
        entries = dict[str, tuple[str, str]]()
        for what, _, path in (entry.partition("\t") for entry in filter(None, os.fsdecode(listed).split("\0"))):
            mode, blob, stage = what.split()
            entries[path] = (mode, blob if stage == "0" else "")
        return entries

    # ------------------------------------------------------------------------------------ what is in the checkout
    async def _compare(self, step: Advance) -> _Comparison:
        """Compare the files that the merge is to change with the commit before."""
        changes = await self._changes(step)
        found, staged = await self._compare_files(step, changes, unfinished=False), await self._staged_files(step)
        left_out = await self._sparse_files(step.holder, found.changed)
        new = {one.path for one in changes if one.mode_before == _ABSENT}
        gone = {one.path for one in changes if one.mode_after == _ABSENT}
        # A folder whose place a file is to take is no hindrance if all that is in the folder goes.
        foreign = [path for path in found.foreign if path in new]
        inside = await anyio.to_thread.run_sync(_files_inside, step.holder, foreign)
        changed = {*found.added, *found.changed, *found.foreign, *(staged & {one.path for one in changes})}
        changed -= {folder for folder, files in inside.items() if gone.issuperset(files)}
        # What lies behind a symbolic link that the merge removes is no file of this checkout.
        links = {one.path for one in changes if one.mode_before == _SYMLINK and one.mode_after == _ABSENT}
        behind = {path for path in foreign if not links.isdisjoint(map(str, Path(path).parents))}
        absent = sorted(new - changed - set(found.foreign))
        in_place = await anyio.to_thread.run_sync(_files_above, step.holder, absent)
        return _Comparison(sorted((changed - left_out - behind) | (in_place - gone)), absent)

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
        """Return the commit of the target if the target is still checked out in the holder, else ``""``.

        Without the lock of the index the result may be out of date at once: the branch is moved only if it still has
        the old value (``update-ref``).
        """
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


def _identify(step: Advance) -> list[tuple[int, int, int] | None]:
    """Return what identifies the present ``HEAD`` and index: git replaces both by new files when it changes them."""
    found: list[tuple[int, int, int] | None] = []
    for name in ("HEAD", "index"):
        try:
            stat = os.stat(os.path.join(step.git_dir, name))
        except FileNotFoundError:  # nothing was ever added there
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return found


def _unfinished_in(step: Advance) -> tuple[str, float] | None:
    """Return the operation of a person that their next commit concludes, and the Unix time at which it was begun."""
    for name, what in _UNFINISHED.items():
        with suppress(OSError):
            return what, os.stat(os.path.join(step.git_dir, name)).st_mtime
    return None


def _lock_unchanged(step: Advance, known: list[tuple[int, int, int] | None], absent: Sequence[str]) -> bool:
    """Lock the index if ``HEAD`` and index are as *known*, and the *absent* files still are; return whether that
    succeeded. Git itself examines the other files again before it writes them, and would overwrite ignored ones."""
    if not _is_ours(step) and not _make_lock(step):
        return False
    if _identify(step) == known and not any(os.path.lexists(os.path.join(step.holder, path)) for path in absent):
        return True
    _lock_of(step).unlink(missing_ok=True)  # the user may have removed it
    return False


def _has_entry(entries: Mapping[str, tuple[str, str]], path: str, mode: str, blob: str) -> bool:
    """Return whether *path* has in the index the *mode* and *blob* of a commit, or no entry if the commit has none."""
    return path not in entries if mode == _ABSENT else entries.get(path) == (mode, blob)


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


def _is_locked_by_other(step: Advance) -> bool:
    return _lock_of(step).exists() and not _is_ours(step)


def _remove_lock(step: Advance) -> None:
    """Remove the step's files beside the index, the lock last, which excludes other git commands until then."""
    _remove_copy(step)
    _beside_index(step, _NEW_LOCK).unlink(missing_ok=True)
    if _is_ours(step):
        _lock_of(step).unlink(missing_ok=True)


def _remove_copy(step: Advance) -> None:
    copy = _copy_of(step)
    copy.with_name(f"{copy.name}.lock").unlink(missing_ok=True)
    copy.unlink(missing_ok=True)


def _copy_index(step: Advance) -> None:
    """Copy the index with its modification time: git re-examines files that are not older than the index."""
    _remove_copy(step)
    with suppress(FileNotFoundError):  # nothing was ever added there
        shutil.copy2(Path(step.git_dir, "index"), _copy_of(step))


def _replace_index(step: Advance) -> bool:
    """Replace the index by its copy if it is locked for this step; return whether it is. Without the lock, the user may
    have changed the index since it was copied."""
    if not _is_ours(step):
        return False
    _copy_of(step).replace(Path(step.git_dir, "index"))
    return True


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


def _files_inside(holder: str, paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the files in each of *paths* that is a folder."""
    found = dict[str, list[str]]()
    for path in paths:
        top = os.path.join(holder, path)
        if os.path.isdir(top) and not os.path.islink(top):
            found[path] = [
                os.path.relpath(os.path.join(folder, name), holder)
                for folder, folders, files in os.walk(top)
                for name in (*files, *(one for one in folders if os.path.islink(os.path.join(folder, one))))
            ]
    return found


def _files_above(holder: str, paths: Sequence[str]) -> set[str]:
    """Return the files that lie where a folder of *paths* is to be."""
    folders = {folder for path in paths for folder in Path(path).parents if folder != Path()}
    return {str(folder) for folder in folders if (Path(holder, folder)).is_file()}


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
