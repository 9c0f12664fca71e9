"""Time limits of attempts at tasks with a size: from the size, then from what completed attempts took.

The limit is at first the seconds of the size times the factor of the complexity; as soon as enough attempts were
completed, their durations determine the limit instead. No upper bound is below the seconds of the size itself: an XL
task has its two hours, although the cap of other sizes is shorter. All times are arguments and results in seconds: no
clock is read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.types import TimeLimit
from supervisor.work.task_history import SAMPLES_MIN


class TaskSize(StrEnum):
    """Amount of work in a task."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"
    XL = "xl"


class Complexity(StrEnum):
    """Difficulty of a task for its size."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


BASES_S: Final[Mapping[TaskSize, float]] = MappingProxyType(
    {TaskSize.SMALL: 900.0, TaskSize.MEDIUM: 1800.0, TaskSize.LARGE: 3600.0, TaskSize.XL: 7200.0}
)
"""Seconds for a task of each size at medium complexity: 15 minutes to 2 hours, as the ambiguity in the specification
was resolved."""
FACTORS: Final[Mapping[Complexity, float]] = MappingProxyType(
    {Complexity.LOW: 0.7, Complexity.MEDIUM: 1.0, Complexity.HIGH: 1.5}
)
"""Factors by which the complexity multiplies the seconds of the size."""


class TaskKind(NamedTuple):
    """Kind of task: its size and its complexity, as text ``large``, or ``large high``."""

    scope: TaskSize
    complexity: Complexity = Complexity.MEDIUM

    @property
    def default_s(self) -> float:
        """Seconds that an attempt may take as long as nothing is known about such tasks."""
        return BASES_S[self.scope] * FACTORS[self.complexity]

    @property
    def words(self) -> str:
        usual = self.complexity is Complexity.MEDIUM
        return self.scope.value if usual else f"{self.scope.value} {self.complexity.value}"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the time limits, in seconds, and of their adaptation to observed durations.

    ``default_s`` is for tasks without a size, ``command_s`` for such tasks of a program that is no agent. ``min_s`` and
    ``max_s`` bound the adapted limit; ``hard_cap_s`` is the limit up to which an attempt at a task with a size is
    extended while progress is seen, and also the limit of the wait for subtasks. A size that has longer by itself is
    bounded by neither of the two.
    """

    default_s: float = 1800.0
    command_s: float = 300.0
    min_s: float = 300.0
    max_s: float = 7200.0
    hard_cap_s: float = 5400.0
    samples_min: int = SAMPLES_MIN
    percentile: float = 95.0
    margin: float = 1.5

    def of(self, kind: TaskKind, finished: Sequence[float] = ()) -> TimeLimit:
        """Return the limit of an attempt, and the cap up to which it is extended.

        Args:
            kind: the kind of the task.
            finished: durations of completed attempts at that task, or at tasks like it, in seconds.
        """
        limit_s = kind.default_s
        if len(finished) >= self.samples_min:
            limit_s = min(max(self.usual_s(finished) * self.margin, self.min_s), max(self.max_s, kind.default_s))
        return TimeLimit(limit_s, max(self.cap_s(kind), limit_s))

    def cap_s(self, kind: TaskKind | None) -> float:
        """Return the seconds up to which an attempt is extended, and for which subtasks are waited for."""
        return self.hard_cap_s if kind is None else max(self.hard_cap_s, kind.default_s)

    def without_size(self, *, is_command: bool) -> float:
        """Return the limit of an attempt at a task without a size, in seconds; *is_command*: a program that is no agent
        works on the task."""
        return self.command_s if is_command else self.default_s

    def usual_s(self, finished: Sequence[float]) -> float:
        """Return the percentile by nearest rank: an observed duration, not a mean of two."""
        rank = math.ceil(len(finished) * self.percentile / 100.0)
        return sorted(finished)[max(rank, 1) - 1]


TIMEOUTS: Final = Timeouts()
"""The settings that hold: those of the specification."""
