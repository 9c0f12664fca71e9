"""Ownership of a state directory: the directory must belong to this user, and no other user may write into it.

Another user who can write there could replace the journal, or put a symbolic link where a file is about to be opened.
Such a directory is refused before anything in it is touched, and a file in it may be neither a link nor a file of
another user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_untrusted(root: Path, inside: Iterable[Path]) -> str | None:
    """Return the reason why *root* cannot be trusted, and the fix; ``None`` if it can be trusted, or does not exist.
    The root itself may be reached through a link that its user made; the paths *inside* must not be links.

    Raises:
        OSError: a path cannot be examined.
    """
    if not os.path.lexists(root):
        return None
    found = os.stat(root)
    if words := _belongs_to_other(found):
        return f"it {words}; use another state directory"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write into it (mode {stat.S_IMODE(found.st_mode):04o}); run `chmod go-w {root}`"
    return next((wrong for path in inside if (wrong := _why_path_untrusted(path)) is not None), None)


def _why_path_untrusted(path: Path) -> str | None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link; remove it"
    return f"{path} {words}; remove it, or use another state directory" if (words := _belongs_to_other(found)) else None


def _belongs_to_other(found: os.stat_result) -> str:
    mine = os.geteuid()
    return f"belongs to user {found.st_uid}, and you are {mine}" if found.st_uid != mine else ""
