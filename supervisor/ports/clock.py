"""The wall clock."""

from __future__ import annotations

from typing import Protocol

__all__ = ["WallClock"]


class WallClock(Protocol):
    """Unix time, for people; decisions never use it."""

    def time(self) -> float: ...
