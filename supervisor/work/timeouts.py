"""Time limits of attempts: from the size of the task, then from the durations of tasks of its kind.

A task without a size has a fixed limit: an agent has longer than a program that is no agent. The limit of a task with
a size is at first the seconds of its size times the factor of its complexity; as soon as enough tasks of the same kind
are completed, their durations determine the limit instead. All times are arguments and results in seconds: no clock is
read here.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from supervisor.plans.agents import AgentConfig

KINDS_MAX: Final = 256
"""Maximal number of task kinds whose durations are remembered; the kind that was used longest ago is dropped first."""
SAMPLES_MAX: Final = 100
"""Maximal number of durations remembered for one kind, the latest ones: enough for a 95th percentile, while old
durations disappear."""


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
    """Kind of task; tasks of one kind (same role, size and complexity) take about the same time."""

    scope: TaskSize
    complexity: Complexity = Complexity.MEDIUM
    role: str = ""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the time limits, in seconds, and of their adaptation to observed durations.

    ``default_s`` is for tasks without a size, ``command_s`` for such tasks of a program that is no agent. ``min_s`` and
    ``max_s`` bound the adapted limit; ``hard_cap_s`` is the limit up to which an attempt at a task with a size is
    extended while progress is seen, and also the limit of the wait for subtasks.
    """

    default_s: float = 1800.0
    command_s: float = 300.0
    min_s: float = 300.0
    max_s: float = 7200.0
    hard_cap_s: float = 5400.0
    samples_min: int = 5
    percentile: float = 95.0
    margin: float = 1.5

    def of(self, kind: TaskKind, finished: Sequence[float] = ()) -> float:
        """Return the limit of an attempt, in seconds.

        Args:
            kind: the kind of the task.
            finished: durations of completed tasks of that kind, in seconds.
        """
        known = len(finished) >= self.samples_min
        wanted_s = self._usual_s(finished) if known else BASES_S[kind.scope] * FACTORS[kind.complexity]
        return min(max(wanted_s, self.min_s), self.max_s)

    def without_size(self, agent: AgentConfig | None) -> float:
        """Return the limit of an attempt at a task without a size, in seconds: a command that is no known agent has
        ``command_s``."""
        is_command = agent is not None and agent.adapter == "command" and agent.known is None
        return self.command_s if is_command else self.default_s

    def _usual_s(self, finished: Sequence[float]) -> float:
        """Return the percentile by nearest rank (an observed duration, not a mean of two) times the margin."""
        rank = math.ceil(len(finished) * self.percentile / 100.0)
        return sorted(finished)[max(rank, 1) - 1] * self.margin


class Durations:
    """The latest durations of completed tasks, for the most recently used kinds of task."""

    def __init__(self) -> None:
        self._taken: OrderedDict[TaskKind, deque[float]] = OrderedDict()

    def note(self, kind: TaskKind | None, took_s: float) -> None:
        """Add a duration in seconds. For a task without a kind, nothing is added."""
        if kind is None:
            return
        self._taken.setdefault(kind, deque(maxlen=SAMPLES_MAX)).append(took_s)
        self._taken.move_to_end(kind)
        if len(self._taken) > KINDS_MAX:
            self._taken.popitem(last=False)

    def of(self, kind: TaskKind | None) -> tuple[float, ...]:
        """Return the remembered durations of that kind, oldest first."""
        return tuple(self._taken.get(kind, ())) if kind is not None else ()
