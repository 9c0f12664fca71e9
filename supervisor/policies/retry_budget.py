"""Retry budget of a workstream: one bound above the retry limits of sessions, task runs and tasks.

This module only counts. Whether a failed task is tried again is decided by ``lifecycles.task_cascade``, with the guards
in the tables of ``lifecycles.task_run`` and ``lifecycles.task``.

Each of those limits bounds its own retries, and their product would be large: three claims of five attempts of five
launches. Every launch that answers a charged failure uses one retry of the workstream: a launch by the session itself,
another attempt, the probe of an open circuit, a new claim. When no retry is left, nothing is tried again. A budget is a
value: ``spend`` returns a new budget. The budget grows with the workstream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import TaskRun, TaskRunData

SHARE: Final = 0.2
"""Retries per task of the workstream."""
RETRIES_MIN: Final = 10
"""Number of retries that a workstream has in any case, however small it is."""
_UNANSWERED: Final = frozenset({TaskRun.FAILED, TaskRun.TIMEOUT, TaskRun.CIRCUIT_OPEN})
"""States in which the last failure of a run was not followed by another launch."""


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retry budget of one workstream: ``tasks`` is the number of its tasks, ``spent`` the number of retries that are
    used."""

    share: float = SHARE
    retries_min: int = RETRIES_MIN
    tasks: int = 0
    spent: int = 0

    @property
    def retries_max(self) -> int:
        """The number of retries in all."""
        return max(self.retries_min, int(self.tasks * self.share + 1e-9))  # 0.29 of 100 are 29, whatever floats say

    @property
    def left(self) -> int:
        """The number of retries left; never below 0."""
        return max(0, self.retries_max - self.spent)

    def spend(self) -> RetryBudget | None:
        """Return the budget after one more retry; ``None`` if no retry is left."""
        return replace(self, spent=self.spent + 1) if self.left else None

    def grown(self, tasks: int) -> RetryBudget:
        """Return the budget after *tasks* more were added to the workstream."""
        return replace(self, tasks=self.tasks + tasks)

    def describe(self) -> str:
        """Return the reason why nothing is retried, as text for the record of a circuit that opens."""
        return f"the workstream's retry budget is spent ({self.spent} of {self.retries_max} retries)"


def retries_spent(tasks: Iterable[TaskData], runs: Iterable[tuple[TaskRun, TaskRunData]]) -> int:
    """Return the number of retries of *tasks* and their task *runs*, as far as their data show.

    Each retry of a task counts, each launch that the session of a run repeated by itself, and each charged failure of a
    run except a failure that no launch has answered. Counters that an operator's retry has set to 0 are not counted.
    """
    return sum(task.retries for task in tasks) + sum(_spent_by(state, data) for state, data in runs)


def _spent_by(state: TaskRun, data: TaskRunData) -> int:
    is_unanswered = data.permanent or state in _UNANSWERED
    return data.relaunches + max(0, data.failures - is_unanswered)
