"""The archive of a simulated run: it takes its time, and tells the oracle what is preserved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import anyio

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Compacted, Retention

__all__ = ["SimulatedArchive"]

TAKES_S: Final = 0.05
"""How long a file takes."""


class SimulatedArchive:
    """The upkeep of a simulated journal (``supervisor.ports.Upkeep``), which never grows too long."""

    def __init__(self, preserved: Callable[[str, Sequence[LifecycleEvent]], None]) -> None:
        self._preserved = preserved

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        return Compacted()

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        await anyio.sleep(TAKES_S)
        self._preserved(name, records)
