"""The time limit of an attempt: of the task, of its size, of its agent, or of the plan, and the reason for it. Pure.

Theory of operation
-------------------
``choose_limit`` decides; the first row that applies gives the limit::

    timeout_s of the task          these seconds
    scope of the task (its size)   the seconds of the size times the factor of the complexity; or, from five completed
                                   attempts on, 1.5 times the 95th percentile of what they took (``task_history``)
    timeout_s of the agent         these seconds
    task_lifecycle, limits         the seconds that the plan gives all tasks, or the settings give all turns
    none of them                   half an hour; five minutes for a program that is no agent

An attempt at a task with a size is extended while progress is seen, up to a cap. A running plan, and the check of a
plan, choose by the same function.

Example: nine runs of a plan have completed its large task ``build`` with ``coder`` in 20 to 30 min. In the tenth run
the limit is 45 min instead of an hour.
"""

from __future__ import annotations

from typing import NamedTuple

from supervisor.lifecycles.types import USUAL_TIME, TimeLimit
from supervisor.plans.agents import AgentConfig
from supervisor.plans.tasks import TaskConfig
from supervisor.work.task_history import Durations
from supervisor.work.timeouts import TIMEOUTS, Complexity, TaskKind, TaskSize


def kind_of(task: TaskConfig) -> TaskKind | None:
    """Return the kind of a task; ``None`` if the plan gives it no size."""
    return None if task.scope is None else TaskKind(TaskSize(task.scope), Complexity(task.complexity))


class AttemptLimit(NamedTuple):
    """Time limit of an attempt as the session is given it, its seconds, and the reason for it as a text."""

    limit: TimeLimit
    seconds: float
    why: str

    @property
    def longest_s(self) -> float:
        """Seconds that an attempt may take at most, while progress is seen."""
        return max(self.seconds, self.limit.hard_cap_s or 0.0)


def choose_limit(
    task: TaskConfig,
    agent: AgentConfig | None,
    durations: Durations,
    *,
    default_s: float | None,
    turn_s: float | None,
    is_command: bool,
) -> AttemptLimit:
    """Return the time limit of the next attempt at a task.

    Args:
        task: the task.
        agent: the agent of the attempt; ``None`` if the embedding program has it, and the plan has not.
        durations: what completed attempts at the task, or at tasks like it, took.
        default_s: ``task_lifecycle.default_timeout`` of the plan.
        turn_s: ``limits.turn_timeout_s``, if the plan or the settings set it.
        is_command: whether a program that is no agent works on the task.
    """
    if task.timeout_s is not None:
        return AttemptLimit(TimeLimit(task.timeout_s), task.timeout_s, "timeout_s of the task")
    if (kind := kind_of(task)) is not None:
        limit = TIMEOUTS.of(kind, durations.seconds)
        why = f"its size, {kind.words}"
        if len(durations.seconds) >= TIMEOUTS.samples_min:
            usual_s = TIMEOUTS.usual_s(durations.seconds)
            why = f"95 % of {len(durations.seconds)} completed attempts {durations.of} took up to {usual_s:.0f} s"
        return AttemptLimit(limit, limit.timeout_s or kind.default_s, why)
    if agent is not None and agent.timeout_s is not None:
        return AttemptLimit(TimeLimit(agent.timeout_s), agent.timeout_s, "timeout_s of the agent")
    if default_s is not None:
        return AttemptLimit(TimeLimit(default_s), default_s, "task_lifecycle.default_timeout")
    if turn_s is not None:
        return AttemptLimit(USUAL_TIME, turn_s, "limits.turn_timeout_s")
    limit_s = TIMEOUTS.without_size(is_command=is_command)
    why = "the default of a command that is no known agent" if is_command else "the default of an agent"
    return AttemptLimit(TimeLimit(limit_s), limit_s, why)
