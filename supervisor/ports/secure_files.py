"""Private files and folders: folders are made with 0700 and files with 0600, whatever the umask says.

With an open umask, which some services have, other users could otherwise put a symbolic link where the supervisor is
about to open a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRIVATE_FOLDER: Final = 0o700
PRIVATE_FILE: Final = 0o600


def make_private(folder: Path) -> None:
    """Make *folder*, and missing folders above it; the mode of existing folders does not change.

    Raises:
        OSError: the system refuses.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)


def touch_private(path: Path) -> None:
    """Make an empty file unless *path* exists.

    Raises:
        OSError: the system refuses.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))


def write_private(path: Path, text: str) -> None:
    """Write *text* to *path*, or leave the old content: the file is replaced as a whole, and a symbolic link is not
    followed.

    Raises:
        OSError: the system refuses; no partial file is left.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE), "w") as file:
            file.write(text)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
