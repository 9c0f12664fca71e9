"""Private files with the plans that were submitted, as long as their runs go on.

The journal has the plan of a run without its secrets: it is exported and shown. A daemon that is killed needs the whole
plan, with the values of the variables that the submitter has chosen, to go on with the run. So the plan is written into
``submissions/TOKEN.json`` of the state directory (readable for its owner only) before the run begins; the record of the
run names the token; and the file is removed when the end of the run is on the disk. A file without a run that goes on
is left from a kill in between, and is removed at the next start.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import PRIVATE_FOLDER, write_private

_TOKEN: Final = re.compile(r"[0-9a-f]{16}")
_log = get_logger()


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as plain data, with its secrets; the working directory of its agents, the plan's file (``""``: none), and
    the names of the variables that the submitter has chosen."""

    plan: dict[str, Any]
    directory: str
    path: str = ""
    variables: tuple[str, ...] = ()
    by: str = ""

    def origin(self, token: str) -> dict[str, Any]:
        """Return what is recorded with the run."""
        named = {"directory": self.directory, "path": self.path, "variables": list(self.variables), "by": self.by}
        return {**named, "token": token}


class SubmissionStore:
    """The files of the submitted plans in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, stored: StoredPlan) -> str:
        """Write a file for *stored*, and return its token. The file is on the disk when this returns.

        Raises:
            OSError: the file cannot be written.
        """
        self._folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
        token = secrets.token_hex(8)
        write_private(self._path(token), msgspec.json.encode(stored).decode())
        for path in (self._path(token), self._folder):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return token

    def read(self, token: str) -> StoredPlan | None:
        """Return what the file with that token has; ``None`` if there is none that can be read."""
        if not _TOKEN.fullmatch(token):
            return None
        try:
            return msgspec.json.decode(self._path(token).read_bytes(), type=StoredPlan)
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("a submitted plan cannot be read", file=str(self._path(token)), why=str(error))
            return None

    def remove(self, token: str) -> None:
        """Remove the file with that token, if there is one."""
        with suppress(OSError):
            self._path(token).unlink()

    def keep_only(self, tokens: Collection[str]) -> None:
        """Remove every file but those with *tokens*; also those that a kill in the middle of ``add`` has left."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                token, _, ending = path.name.partition(".")
                if _TOKEN.fullmatch(token) and (token not in tokens or ending != "json"):
                    path.unlink()

    def _path(self, token: str) -> Path:
        return self._folder / f"{token}.json"
