"""History of the tasks of one plan: what each took and cost in earlier runs, and how it ended. Pure.

The history is no store of its own: ``plan_histories`` reads it from the results of earlier runs. A completed attempt
counts for its task with the same agent and size, and for all tasks of the plan with that agent and size. Times are
seconds from the start of an attempt to the end of its agent's work, without tests and merge; the time between two
supervisors does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.task import TaskEnd

RUNS_MAX: Final = 20
"""Number of runs of a plan that are kept, the newest ones: enough for a 95th percentile, while old times disappear."""
SAMPLES_MAX: Final = 100
"""Number of durations that are kept of one task, or of the tasks with one agent and size, the latest ones."""
SAMPLES_MIN: Final = 5
"""Number of completed attempts from which on their durations determine a time limit."""


class RecordedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task in an earlier run, as the result of the run has it (``results.TaskResult``)."""

    id: str
    outcome: str
    agent: str
    size: str
    attempt_s: float
    launches: int
    tokens: int
    cost_usd: float


class Durations(NamedTuple):
    """Seconds that completed attempts took, oldest first, and a text that says whose attempts: ``of this task``."""

    seconds: Sequence[float] = ()
    of: str = ""


NO_DURATIONS: Final = Durations()


class TaskHistory:
    """History of the tasks of one plan: the tasks of earlier runs, and what completed attempts took."""

    def __init__(self, past: Iterable[RecordedTask] = (), warnings: Sequence[str] = ()) -> None:
        self.warnings = warnings
        """Sentences about what could not be read, each with its file."""
        self._past: dict[str, deque[RecordedTask]] = {}
        self._taken: dict[tuple[str, str, str], deque[float]] = {}
        for one in past:
            self._past.setdefault(one.id, deque(maxlen=RUNS_MAX)).append(one)
            if one.outcome == TaskEnd.COMPLETED and one.attempt_s:
                self.note(one.id, one.agent, one.size, one.attempt_s)

    def of_task(self, task: str) -> Sequence[RecordedTask]:
        """Return the task with that name in earlier runs, oldest first."""
        return self._past.get(task, ())

    def note(self, task: str, agent: str, size: str, took_s: float) -> None:
        """Count a task that was completed, whose last attempt took *took_s* seconds. Without a size, nothing is
        counted."""
        if size:
            for key in ((task, agent, size), ("", agent, size)):
                self._taken.setdefault(key, deque(maxlen=SAMPLES_MAX)).append(took_s)

    def durations(self, task: str, agent: str, size: str) -> Durations:
        """Return what completed attempts at the task with that agent and size took; of all tasks with that agent and
        size, as long as the task itself has been completed too seldom."""
        own = self._taken.get((task, agent, size), ())
        if len(own) >= SAMPLES_MIN:
            return Durations(tuple(own), "of this task")
        alike = self._taken.get(("", agent, size), ())
        return Durations(tuple(alike), f"of {size} tasks of this plan with {agent}") if alike else NO_DURATIONS


NO_HISTORY: Final = TaskHistory()
"""History of a plan that has never run."""
