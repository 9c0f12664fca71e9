"""The wall clock."""

from __future__ import annotations

from typing import Protocol


class WallClock(Protocol):
    """Function that returns Unix time, for people; decisions never use it."""

    def time(self) -> float: ...
