"""Path safety: paths that a plan or an agent names stay within their workspace, however they are written.

A plan's agents work at or below the directory of the plan; commands that the supervisor runs for an agent, at or below
the directory of the agent's session. The resolved path counts: ``..`` and symbolic links are followed first. The check
stops mistakes, and paths that an agent was tricked into naming; it is no sandbox, since a program that runs may go
wherever its user may.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path


def climbs(path: str) -> str:
    """Return the reason why a path relative to some workspace cannot stay within the workspace; ``""`` if it can."""
    if path.startswith("/"):
        return "is absolute"
    return "leads out of the workspace" if posixpath.normpath(path).split("/")[0] == ".." else ""


def outside(field: str, path: str, workspace: str) -> str:
    """Return the reason why *path* may not be used, naming the *field*; ``""`` if *path* is at or below *workspace*.
    Both paths are absolute."""
    within, found = os.path.realpath(workspace), os.path.realpath(path)
    if found == within or found.startswith(within.rstrip("/") + "/"):
        return ""
    leads = "" if found == path else f" leads to {found!r}, which"
    return f"{field}: {path!r}{leads} is not within {within!r}; leave it out, or name a directory at or below that"


def absent(directory: str, name: str) -> str:
    """Return the reason why the file *name* does not count (it does not exist, or is not in *directory*); ``""`` if the
    file counts."""
    try:
        place, wanted = Path(directory).resolve(), (Path(directory) / name).resolve()
        if not wanted.is_relative_to(place):
            return f"{name} is not inside {place}"
        return "" if wanted.exists() else f"{name} does not exist in {place}"
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a name that no file can have
        return f"{name} cannot be looked for: {error}"
