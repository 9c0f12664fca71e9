"""The files that simulated agents ask for: those that were written in this run, in memory."""

from __future__ import annotations

__all__ = ["SimulatedFiles"]


class SimulatedFiles:
    """``supervisor.ports.Files`` without a disk."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def read(self, path: str) -> str:
        if path not in self._texts:
            raise FileNotFoundError(f"there is no file {path!r}")
        return self._texts[path]

    async def write(self, path: str, text: str) -> None:
        self._texts[path] = text
