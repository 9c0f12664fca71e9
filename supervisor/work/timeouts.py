"""How long an attempt at a task may take: by what is said of it, then by what others of its kind took.

A task without a scope has a flat limit. One with a scope begins with the scope's seconds times its complexity's
factor; as soon as enough tasks of the same kind have been finished, what those took decides instead. Seconds in,
seconds out: no clock is read here.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "BASES_S",
    "FACTORS",
    "KINDS_MAX",
    "SAMPLES_MAX",
    "Complexity",
    "Durations",
    "TaskKind",
    "TaskSize",
    "Timeouts",
]

KINDS_MAX: Final = 256
"""Kinds of task whose durations are remembered; the one that was heard of longest ago is forgotten first."""
SAMPLES_MAX: Final = 100
"""The latest durations of one kind: enough for a 95th percentile, and old habits fade."""


class TaskSize(StrEnum):
    """How much a task is."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    XL = "xl"


class Complexity(StrEnum):
    """How hard a task is for its size."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


BASES_S: Final[Mapping[TaskSize, float]] = MappingProxyType(
    {TaskSize.SMALL: 900.0, TaskSize.MEDIUM: 1800.0, TaskSize.LARGE: 3600.0, TaskSize.XL: 7200.0}
)
"""Seconds that a task of that scope may take at medium complexity (resolution of the seeds, 15 minutes to 2 hours)."""
FACTORS: Final[Mapping[Complexity, float]] = MappingProxyType(
    {Complexity.LOW: 0.7, Complexity.MEDIUM: 1.0, Complexity.HIGH: 1.5}
)
"""What the complexity makes of that."""


class TaskKind(NamedTuple):
    """Tasks that take about as long as each other: the same role, scope and complexity."""

    scope: TaskSize
    complexity: Complexity = Complexity.MEDIUM
    role: str = ""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits, in seconds, and what makes them adapt.

    ``default_s`` is for tasks without a scope. ``min_s`` and ``max_s`` bound what adapts; ``hard_cap_s`` is up to what
    an attempt at a task with a scope is extended while progress is seen, and what a task waits for its subtasks.
    """

    default_s: float = 300.0
    min_s: float = 300.0
    max_s: float = 7200.0
    hard_cap_s: float = 5400.0
    samples_min: int = 5
    percentile: float = 95.0
    margin: float = 1.5

    def of(self, kind: TaskKind | None, finished: Sequence[float] = ()) -> float:
        """The limit of an attempt, in seconds.

        Args:
            kind: what the task is like; ``None`` for one without a scope.
            finished: how long tasks of that kind took that were completed, in seconds.
        """
        if kind is None:
            return self.default_s
        known = len(finished) >= self.samples_min
        wanted_s = self._usual_s(finished) if known else BASES_S[kind.scope] * FACTORS[kind.complexity]
        return min(max(wanted_s, self.min_s), self.max_s)

    def _usual_s(self, finished: Sequence[float]) -> float:
        """The percentile by nearest rank, an observed duration and no mixture of two, times the margin."""
        rank = math.ceil(len(finished) * self.percentile / 100.0)
        return sorted(finished)[max(rank, 1) - 1] * self.margin


class Durations:
    """What tasks of each kind took that were completed: the latest of them, of the kinds heard of last."""

    def __init__(self) -> None:
        self._taken: OrderedDict[TaskKind, deque[float]] = OrderedDict()

    def note(self, kind: TaskKind | None, took_s: float) -> None:
        """A task of that kind was completed after *took_s* seconds. One without a kind teaches nothing."""
        if kind is None:
            return
        self._taken.setdefault(kind, deque(maxlen=SAMPLES_MAX)).append(took_s)
        self._taken.move_to_end(kind)
        if len(self._taken) > KINDS_MAX:
            self._taken.popitem(last=False)

    def of(self, kind: TaskKind | None) -> tuple[float, ...]:
        """The durations known of that kind, oldest first."""
        return tuple(self._taken.get(kind, ())) if kind is not None else ()
