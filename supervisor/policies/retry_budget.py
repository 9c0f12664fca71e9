"""How often a workstream may try anything again: one budget above the limits of sessions, runs and tasks.

Each of those bounds its own retries, and their product would be large: three claims of five attempts of five launches.
Whoever is about to launch once more than the first time spends one here first; who finds nothing left does not try
again. A budget is a value: spending makes another one. It grows with the workstream. Nothing gives back, but whoever
takes over what was spent, and not told of: that is asked for once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import TaskRun, TaskRunData

__all__ = ["RETRIES_MIN", "SHARE", "RetryBudget", "retries_spent"]

SHARE: Final = 0.2
"""Retries per task of the workstream."""
RETRIES_MIN: Final = 10
"""What a workstream has in any case, however small."""
_GIVEN_UP: Final = frozenset({TaskRun.FAILED, TaskRun.TIMEOUT, TaskRun.CIRCUIT_OPEN, TaskRun.HALF_OPEN})


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The retries of one workstream of that many ``tasks``: ``spent`` of them are used."""

    share: float = SHARE
    retries_min: int = RETRIES_MIN
    tasks: int = 0
    spent: int = 0

    @property
    def retries_max(self) -> int:
        """How many there are in all."""
        return max(self.retries_min, int(self.tasks * self.share + 1e-9))  # 0.29 of 100 are 29, whatever floats say

    @property
    def left(self) -> int:
        """How many are left; never below 0."""
        return max(0, self.retries_max - self.spent)

    def spend(self) -> RetryBudget | None:
        """The budget after one more retry; ``None``: there is none left, and nothing may be tried again."""
        return replace(self, spent=self.spent + 1) if self.left else None

    def given_back(self) -> RetryBudget:
        """The budget before the last retry: whether there was one for that is asked once more."""
        return replace(self, spent=self.spent - 1)

    def grown(self, tasks: int) -> RetryBudget:
        """The budget after *tasks* more were added to the workstream."""
        return replace(self, tasks=self.tasks + tasks)

    def describe(self) -> str:
        """Why nothing is tried again, for the record of a circuit that opens."""
        return f"the workstream's retry budget is spent ({self.spent} of {self.retries_max} retries)"


def retries_spent(tasks: Iterable[TaskData], runs: Iterable[tuple[TaskRun, TaskRunData]]) -> int:
    """How many retries *tasks* and their *runs* have had, as far as their data tell.

    Every retry of a task is one, and every charged failure of a run but the one that opened its circuit, and those of
    the probes since. What a person's reset has zeroed is not counted.
    """
    return sum(task.retries for task in tasks) + sum(_spent_by(state, data) for state, data in runs)


def _spent_by(state: TaskRun, data: TaskRunData) -> int:
    given_up = data.permanent or data.probes > 0 or state in _GIVEN_UP
    return max(0, data.failures - data.probes - given_up)
