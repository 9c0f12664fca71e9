"""Stale lock files of git commands that were killed: those of the supervisor, and those of an agent that has ended.

Git creates ``X.lock`` before it changes ``X``, and a git that dies from SIGKILL leaves the file: from then on nobody
can change ``X``. A lock counts as left by the supervisor's own git if the recorded step could have made it (by its
name), it is not older than that step, it stays the same for a second (a living git holds the lock of a reference for
milliseconds), and no process has it open. The lock of the index of the user's checkout is not among them: its lock is
made by the supervisor, with a content that identifies it (``fast_forward``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio

SETTLED_S = 1.0
"""Seconds that a lock must stay the same before it counts as stale."""

Identity = tuple[int, int, int]


def locks_of_references(common: Path, prefixes: Iterable[str], target: str) -> list[Path]:
    """Return the lock files that a change of a reference may leave: for the references below *prefixes*, and for the
    target."""
    names = ("HEAD.lock", "packed-refs.lock", "packed-refs.new", "config.lock", f"refs/heads/{target}.lock")
    below = (lock for prefix in prefixes for lock in sorted((common / prefix).rglob("*.lock")))
    return [*(common / name for name in names), *below]


def locks_of_worktree(git_dir: Path, *, index: bool) -> list[Path]:
    """List lock files in *git_dir*: all of them with *index*, else only the locks of ``HEAD`` and ``ORIG_HEAD``, since
    the index may be locked by the user."""
    locks = sorted(git_dir.glob("*.lock"))
    return [lock for lock in locks if index or lock.name in ("HEAD.lock", "ORIG_HEAD.lock")]


def locks_of_agent(common: Path, git_dir: Path, name: str) -> list[Path]:
    """Return the lock files that an agent may have left in *git_dir*, git's directory of its worktree *name*, and for
    its branch. The references of that worktree alone (``refs/bisect``, ``refs/worktree``) are below *git_dir*."""
    branches = (common / "refs" / "heads" / "supervisor").glob("*.lock")
    of_branch = [lock for lock in branches if lock.name == f"{name}.lock"]
    return [*sorted(git_dir.rglob("*.lock")), *of_branch]


async def remove_stale_locks(locks: Iterable[Path], since_ns: int) -> list[Path]:
    """Remove the *locks* that a killed git command of the supervisor has left since *since_ns*; return the removed
    ones."""
    first = {lock: found for lock in locks if (found := _identity(lock)) is not None and found[1] >= since_ns}
    if not first:
        return []
    await anyio.sleep(SETTLED_S)
    return await anyio.to_thread.run_sync(_remove_unchanged, first)


def _remove_unchanged(first: dict[Path, Identity]) -> list[Path]:
    opened = set(_open_files())
    removed = []
    for lock, identity in first.items():
        if _identity(lock) == identity and (identity[0], identity[2]) not in opened:
            lock.unlink(missing_ok=True)
            removed.append(lock)
    return removed


def _identity(path: Path) -> Identity | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_dev


def _open_files() -> Iterator[tuple[int, int]]:
    """Yield the files that processes have open, as inode and device; nothing if there is no ``/proc``."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            found = os.stat(descriptor)
            yield found.st_ino, found.st_dev
