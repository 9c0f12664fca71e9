"""Files that git stores for a worktree, read without git, to find whether the worktree is complete, kept, or in an
operation."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from supervisor.ports.shortages import shortage_of
from supervisor.workspaces.git_command import WorkspaceError

BRANCHES: Final = "supervisor"
"""Prefix of the names of sessions' branches."""
_LINK: Final = "gitdir: "
"""Beginning of the one line in the ``.git`` of a worktree."""
_BEGUN: Final = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase (or git am)",
    "sequencer": "cherry-pick (or revert)",
    "BISECT_LOG": "bisection",
}
"""Files that git stores for a worktree during an operation that moves its ``HEAD``, and the name of each operation."""
_OWN_MERGE: Final = "supervisor-merge"
"""File in git's directory of a worktree with the ``MERGE_HEAD`` of a merge that the supervisor has begun there."""
_MARKS: Final = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)
_REBASES: Final = ("rebase-merge", "rebase-apply")
_GONE: Final = ".gone-"
KEPT_LOCK: Final = "supervisor: kept as it is"
"""Text in git's lock of a worktree that is kept when its session ends."""


def branch_of(session_id: str) -> str:
    """Return the name of a session's branch: one path component below ``supervisor/``, whatever the session's id
    contains."""
    name = quote(session_id, safe="", errors="surrogateescape").replace("~", "%7E")
    plain = ".." not in name and not name.startswith((".", "-")) and not name.endswith((".", ".lock"))
    return f"{BRANCHES}/{name if plain else name.replace('.', '%2E').replace('-', '%2D')}"


def branch_beside(branch: str, commit: str) -> str:
    """Return the name of the additional branch for work (*commit*) that the session's own branch *branch* cannot
    hold."""
    return f"{branch}.{commit[:12]}"


def plain_name(session_id: str) -> str:
    """Return a session's id as one name of a directory, or of a reference."""
    return branch_of(session_id).partition("/")[2]


def is_worktree(worktree: Path) -> bool:
    """Return whether *worktree* is an intact linked worktree; without that check git would use an agent's repository,
    or the user's above it.

    Raises:
        WorkspaceError: the directory is something else, which an agent may have made.
    """
    link = worktree / ".git"
    if not os.path.lexists(link) and not (worktree.is_dir() and any(worktree.iterdir())):
        return False
    if not _is_linked(worktree):
        words = (
            f"{worktree} is no worktree any more: its .git was removed or replaced, or it or its repository was moved"
        )
        raise WorkspaceError(
            f"{words}; what is there is left: git worktree repair {worktree}, or save what you need and remove it"
        )
    return True


def _is_linked(worktree: Path) -> bool:
    """Return whether the ``.git`` of the worktree names a directory of git that names this worktree."""
    if (name := _line_of(worktree / ".git")) is None or not name.startswith(_LINK):
        return False
    kept = worktree / name.removeprefix(_LINK)
    if (back := _line_of(kept / "gitdir")) is None:
        return False
    where = (kept / back).parent
    return where.name == worktree.name and os.path.realpath(where.parent) == os.path.realpath(worktree.parent)


def _line_of(path: Path) -> str | None:
    """Return the text of a small regular file, else ``None``. A pipe is not opened, since reading it would block."""
    if path.is_symlink() or not path.is_file():
        return None
    return os.fsdecode(path.read_bytes()).rstrip("\n")


def is_being_made(kept: Path) -> bool:
    """Return whether the worktree is still being made, by git or by its set-up (its lock says so); a lock with another
    reason is a user's."""
    lock = kept / "locked"
    return lock.exists() and lock.read_text(errors="replace").strip() == "initializing"


def operation_begun_in(worktree: Path) -> str:
    kept = worktree / (_line_of(worktree / ".git") or "").removeprefix(_LINK)
    return next((what for name, what in _BEGUN.items() if (kept / name).exists()), "")


def branches_rebased_in(common: Path) -> list[str]:
    """Return the branches that are being rebased in any worktree."""
    rebases = (one / way / "head-name" for one in (common, *common.glob("worktrees/*")) for way in _REBASES)
    return [name for name in map(_line_of, rebases) if name is not None]


def note_own_merge(kept: Path) -> bool:
    """Note in git's directory *kept* of a worktree that the supervisor has begun the merge under way there; return
    whether there is one."""
    merged = _line_of(kept / "MERGE_HEAD")
    if merged is None:
        return False
    (kept / _OWN_MERGE).write_text(f"{merged}\n")
    return True


def is_own_merge(kept: Path) -> bool:
    """Return whether the supervisor has begun the merge that is under way in the worktree."""
    merged = _line_of(kept / "MERGE_HEAD")
    return merged is not None and merged == _line_of(kept / _OWN_MERGE)


def unresolved_files(worktree: Path, stages: bytes) -> tuple[str, ...]:
    """Return the files of a merge that are in conflict and not resolved. *stages* is the output of
    ``git ls-files --unmerged -z``.

    A text file is resolved when it has no marks of a conflict any more. Git marks neither a binary file nor a file that
    only one side has: such a file stays unresolved until it is added (``git add``) or removed (``git rm``).
    """
    found = dict[bytes, set[bytes]]()
    for what, _, path in (entry.partition(b"\t") for entry in filter(None, stages.split(b"\0"))):
        found.setdefault(path, set()).add(what.split()[2])
    left = [path for path, has in found.items() if not has >= {b"2", b"3"} or _has_marks(worktree, path)]
    return tuple(path.decode(errors="backslashreplace") for path in left)


def _has_marks(worktree: Path, path: bytes) -> bool:
    """Return whether a file has marks of a conflict, or is no text file in which git could have put them."""
    where = os.path.join(os.fsencode(worktree), path)
    if os.path.islink(where) or not os.path.isfile(where):
        return os.path.lexists(where)  # removed: that is a decision
    with open(where, "rb") as file:
        content = file.read()
    return b"\0" in content or _MARKS.search(content) is not None


def remove_index_lock(kept: Path) -> None:
    (kept / "index.lock").unlink(missing_ok=True)


def move_aside(worktree: Path) -> Path | None:
    """Rename a worktree for removal; return the new directory that contains it, ``None`` if there is no worktree."""
    if not is_worktree(worktree):
        return None
    aside = Path(tempfile.mkdtemp(prefix=_GONE, dir=worktree.parent))
    worktree.rename(aside / "gone")
    return aside


def sweep(root: Path) -> None:
    """Remove the worktrees that were renamed for removal and are still there."""
    for aside in root.glob(f"{_GONE}*"):
        shutil.rmtree(aside, ignore_errors=True)


def worktree_names(root: Path) -> list[str]:
    places = sorted(root.iterdir()) if root.is_dir() else []
    # No session's name begins with a dot: such an entry is being removed, or belongs to another repository.
    return [worktree.name for worktree in places if not worktree.name.startswith(".") and _is_left(worktree)]


def _is_left(worktree: Path) -> bool:
    """Return whether the worktree is to be cleaned up; true for a broken worktree, for which the clean-up reports the
    error."""
    try:
        return is_worktree(worktree) and not is_kept(worktree)
    except WorkspaceError:
        return True


def is_kept(worktree: Path) -> bool:
    """Return whether the worktree is kept: git's directory for it contains the supervisor's lock."""
    lock = worktree / (_line_of(worktree / ".git") or "").removeprefix(_LINK) / "locked"
    return lock.exists() and lock.read_text(errors="replace").strip() == KEPT_LOCK


def remove_half_made(worktree: Path) -> None:
    """Remove a worktree that was not made completely.

    Raises:
        WorkspaceError: the worktree still exists.
        OSError: the machine lacks file descriptors.
    """
    try:
        shutil.rmtree(worktree)
    except OSError as error:
        if shortage_of(error):
            raise
        if os.path.lexists(worktree):
            words = f"{worktree}, a worktree that was not made to its end, cannot be removed: {error}"
            raise WorkspaceError(f"{words}; remove it") from error


def remove_torn_lock(worktree: Path) -> None:
    """Remove the supervisor's lock of a worktree if the reason in it was not written completely."""
    lock = worktree / (_line_of(worktree / ".git") or "").removeprefix(_LINK) / "locked"
    if lock.exists() and KEPT_LOCK.startswith(lock.read_text(errors="replace").strip()):
        lock.unlink()


def entries_of(common: Path, worktree: Path, since_ns: int) -> list[Path]:
    """Return the directories below ``.git/worktrees`` that belong to *worktree*. A half-made or half-removed directory
    does not name its worktree: it is recognised by its name and by being newer than *since_ns*."""
    entries = sorted((common / "worktrees").glob("*"))
    return [entry for entry in entries if _is_entry_of(entry, worktree, since_ns)]


def _is_entry_of(entry: Path, worktree: Path, since_ns: int) -> bool:
    if back := _line_of(entry / "gitdir"):
        return os.path.realpath((entry / back).parent.parent) == os.path.realpath(worktree.parent) and (
            Path(back).parent.name == worktree.name
        )
    return (
        entry.name.rstrip("0123456789") == worktree.name.rstrip("0123456789") and entry.stat().st_mtime_ns >= since_ns
    )


def remove_entries(common: Path, worktree: Path, since_ns: int) -> None:
    """Remove git's records of the worktree *worktree*, which is gone."""
    for entry in entries_of(common, worktree, since_ns):
        shutil.rmtree(entry, ignore_errors=True)
    with suppress(OSError):  # there are others
        (common / "worktrees").rmdir()
