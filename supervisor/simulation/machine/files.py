"""The files that simulated agents ask for: those that were written in this run, in memory."""

from __future__ import annotations

from supervisor.ports import FileRefused
from supervisor.ports.path_safety import outside

__all__ = ["SimulatedFiles"]


class SimulatedFiles:
    """``supervisor.ports.Files`` without a disk."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def read(self, path: str, workspace: str) -> str:
        _check(path, workspace)
        if path not in self._texts:
            raise FileNotFoundError(f"there is no file {path!r}")
        return self._texts[path]

    async def write(self, path: str, text: str, workspace: str) -> None:
        _check(path, workspace)
        self._texts[path] = text


def _check(path: str, workspace: str) -> None:
    if why := outside("path", path, workspace):
        raise FileRefused(why)
