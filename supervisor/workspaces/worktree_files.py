"""Files that git keeps for a worktree, read without git: whether it is whole, kept, or in the middle of something."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from supervisor.workspaces.git_command import WorkspaceError

__all__ = [
    "BRANCHES",
    "KEPT_LOCK",
    "branch_beside",
    "branch_of",
    "branches_rebased_in",
    "entries_of",
    "is_being_made",
    "is_kept",
    "is_worktree",
    "move_aside",
    "operation_begun_in",
    "plain_name",
    "remove_entries",
    "remove_index_lock",
    "remove_torn_lock",
    "sweep",
    "worktree_names",
]

BRANCHES: Final = "supervisor"
"""Below it, the branches of sessions."""
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
_GONE: Final = ".gone-"
KEPT_LOCK: Final = "supervisor: kept as it is"
"""The lock of a worktree that is not put away when its session ends."""


def branch_of(session_id: str) -> str:
    """The branch of a session: one path below ``supervisor/``, whatever its id holds."""
    name = quote(session_id, safe="", errors="surrogateescape").replace("~", "%7E")
    plain = ".." not in name and not name.startswith((".", "-")) and not name.endswith((".", ".lock"))
    return f"{BRANCHES}/{name if plain else name.replace('.', '%2E').replace('-', '%2D')}"


def branch_beside(branch: str, commit: str) -> str:
    """The branch that holds what a session came to beside its own."""
    return f"{branch}.{commit[:12]}"


def plain_name(session_id: str) -> str:
    """A session's id as one name of a directory, or of a reference."""
    return branch_of(session_id).partition("/")[2]


def is_worktree(place: Path) -> bool:
    """Return whether *place* is an intact linked worktree; without that check git would use an agent's repository, or
    the user's above it.

    Raises:
        WorkspaceError: something else is there; an agent may have made it.
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
    """Return the text of a regular file, else ``None``. A pipe is not opened: reading it would block."""
    if path.is_symlink() or not path.is_file():
        return None
    return os.fsdecode(path.read_bytes()).rstrip("\n")


def is_being_made(kept: Path) -> bool:
    """True if git had not made it to the end; a lock with other words is somebody's."""
    lock = kept / "locked"
    return lock.exists() and lock.read_text(errors="replace").strip() == "initializing"


def operation_begun_in(place: Path) -> str:
    kept = place / (_line_of(place / ".git") or "").removeprefix(_LINK)
    return next((what for name, what in _BEGUN.items() if (kept / name).exists()), "")


def branches_rebased_in(common: Path) -> list[str]:
    """The branches that are being rebased in any worktree."""
    rebases = (one / way / "head-name" for one in (common, *common.glob("worktrees/*")) for way in _REBASES)
    return [name for name in map(_line_of, rebases) if name is not None]


def remove_index_lock(kept: Path) -> None:
    (kept / "index.lock").unlink(missing_ok=True)


def move_aside(place: Path) -> Path | None:
    """Where a worktree was moved to; ``None`` where there is none."""
    if not is_worktree(place):
        return None
    aside = Path(tempfile.mkdtemp(prefix=_GONE, dir=place.parent))
    place.rename(aside / "gone")
    return aside


def sweep(root: Path) -> None:
    """What was set aside to be removed, and never was."""
    for aside in root.glob(f"{_GONE}*"):
        shutil.rmtree(aside, ignore_errors=True)


def worktree_names(root: Path) -> list[str]:
    places = sorted(root.iterdir()) if root.is_dir() else []
    return [place.name for place in places if not place.name.startswith(_GONE) and _is_left(place)]


def _is_left(place: Path) -> bool:
    """True if it is to be put away; of what is no worktree any more whoever tries that is told."""
    try:
        return is_worktree(place) and not is_kept(place)
    except WorkspaceError:
        return True


def is_kept(place: Path) -> bool:
    """True if it has our lock, which is a file where git keeps what belongs to the worktree."""
    lock = place / (_line_of(place / ".git") or "").removeprefix(_LINK) / "locked"
    return lock.exists() and lock.read_text(errors="replace").strip() == KEPT_LOCK


def remove_torn_lock(place: Path) -> None:
    """Remove our lock of a worktree where its reason was never written to the end."""
    lock = place / (_line_of(place / ".git") or "").removeprefix(_LINK) / "locked"
    if lock.exists() and KEPT_LOCK.startswith(lock.read_text(errors="replace").strip()):
        lock.unlink()


def entries_of(common: Path, place: Path, since_ns: int) -> list[Path]:
    """Return the directories below ``.git/worktrees`` that belong to *place*. A half-made or half-removed one does not
    name its worktree: it is recognised by its name and by being newer than *since_ns*."""
    entries = sorted((common / "worktrees").glob("*"))
    return [entry for entry in entries if _is_entry_of(entry, place, since_ns)]


def _is_entry_of(entry: Path, place: Path, since_ns: int) -> bool:
    if back := _line_of(entry / "gitdir"):
        return os.path.realpath((entry / back).parent.parent) == os.path.realpath(place.parent) and (
            Path(back).parent.name == place.name
        )
    return entry.name.rstrip("0123456789") == place.name.rstrip("0123456789") and entry.stat().st_mtime_ns >= since_ns


def remove_entries(common: Path, place: Path, since_ns: int) -> None:
    """Have git know nothing of the worktree *place*, which is gone."""
    for entry in entries_of(common, place, since_ns):
        shutil.rmtree(entry, ignore_errors=True)
    with suppress(OSError):  # there are others
        (common / "worktrees").rmdir()
