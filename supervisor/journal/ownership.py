"""Whose a state directory is: it must be this user's, and nobody else may put anything into it.

Who may write into it could replace the journal, or lay a symbolic link where a file is about to be opened. So it is
refused before anything in it is touched, and what lies in it may be no link and nobody else's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

__all__ = ["why_untrusted"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_untrusted(root: Path, inside: Iterable[Path]) -> str | None:
    """Why *root* cannot be trusted, and what to do; ``None`` if it can. What is not there is nobody's.

    The root itself may be reached over a link, which its user has laid; what is *inside* may not be one.

    Raises:
        OSError: it cannot be looked at.
    """
    if not os.path.lexists(root):
        return None
    found = os.stat(root)
    if words := _belongs_to_other(found):
        return f"it {words}; use another --state-dir"
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
    return f"{path} {words}; remove it, or use another --state-dir" if (words := _belongs_to_other(found)) else None


def _belongs_to_other(found: os.stat_result) -> str:
    mine = os.geteuid()
    return f"belongs to user {found.st_uid}, and you are {mine}" if found.st_uid != mine else ""
