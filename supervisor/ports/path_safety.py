"""The rule for paths that a plan or an agent names: they stay within their workspace, however they are written.

A plan's agents work at or below the directory of the plan; the commands that an agent asks us to run, at or below the
directory of its session. What counts is where a path leads: ``..`` and symbolic links are followed first. It keeps
mistakes in, and what was talked into one; it is no sandbox, for a program that runs may go anywhere that its user may.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

__all__ = ["absent", "climbs", "outside"]


def climbs(path: str) -> str:
    """Why a path that is to be relative to a workspace, wherever that is, cannot be within it; nothing, if it can."""
    if path.startswith("/"):
        return "is absolute"
    return "leads out of the workspace" if posixpath.normpath(path).split("/")[0] == ".." else ""


def outside(field: str, path: str, workspace: str) -> str:
    """Why *path* may not be used, naming the *field*; nothing, if it is at or below *workspace*. Both are absolute."""
    within, found = os.path.realpath(workspace), os.path.realpath(path)
    if found == within or found.startswith(within.rstrip("/") + "/"):
        return ""
    leads = "" if found == path else f" leads to {found!r}, which"
    return f"{field}: {path!r}{leads} is not within {within!r}; leave it out, or name a directory at or below that"


def absent(directory: str, name: str) -> str:
    """Why that file does not count: it is not there, or not in *directory*."""
    try:
        place, wanted = Path(directory).resolve(), (Path(directory) / name).resolve()
        if not wanted.is_relative_to(place):
            return f"{name} is not inside {place}"
        return "" if wanted.exists() else f"{name} does not exist in {place}"
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a name that no file can have
        return f"{name} cannot be looked for: {error}"
