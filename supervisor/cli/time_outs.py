"""Time limits of the tasks of a plan, with their reasons, and what earlier runs took and cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from supervisor.cli.rendering import columns, cost, duration
from supervisor.cli.terminal import table_width
from supervisor.lifecycles.task import TaskEnd
from supervisor.plans.plan import Plan
from supervisor.plans.tasks import every_task
from supervisor.work.attempt_limits import AttemptLimit
from supervisor.work.task_history import RecordedTask, TaskHistory
from supervisor.work.worst_case import limit_of

_HEADS = ("TASK", "AGENT", "TIME-OUT", "AT MOST", "BECAUSE OF", "EARLIER RUNS")


class TimeOut(NamedTuple):
    """Time limit of the tasks with these names and that agent, and these tasks in earlier runs."""

    tasks: list[str]
    agent: str
    limit: AttemptLimit
    past: Sequence[RecordedTask]


def time_outs(plan: Plan, history: TaskHistory) -> list[TimeOut]:
    """Return the time limit of each task in the order of the plan; tasks that have not run before, and have the same
    agent and limit, are together. A task that is split in the plan has none, since no agent works on it."""
    found: dict[tuple[object, ...], TimeOut] = {}
    for one in every_task(plan.tasks):
        task = one.task
        if task.subtasks:
            continue
        limit, past = limit_of(plan, task, history), history.of_task(task.id)
        key = (task.id,) if past else ("", task.agent, limit)
        found.setdefault(key, TimeOut([], task.agent, limit, past)).tasks.append(task.id)
    return list(found.values())


def time_outs_text(found: Sequence[TimeOut], names: Sequence[str]) -> str:
    """Return the table of time limits; *names* are the tasks of each row as text."""
    rows = (
        (name, one.agent, duration(one.limit.seconds), _cap(one.limit), one.limit.why, _past_text(one.past))
        for name, one in zip(names, found, strict=True)
    )
    return columns(_HEADS, rows, table_width())


def _cap(limit: AttemptLimit) -> str:
    """Return the time up to which an attempt that makes progress is extended."""
    return duration(limit.longest_s) if limit.longest_s > limit.seconds else "-"


def _past_text(past: Sequence[RecordedTask]) -> str:
    """Return ``9 completed, 1 failed; median 20 min, 0.31 USD``."""
    if not past:
        return "-"
    counts = Counter(one.outcome for one in past)
    ends = ", ".join(f"{counts[end]} {end}" for end in TaskEnd if counts[end])
    completed = _completed(past)
    if not completed:
        return ends
    spent = cost(_median_cost(past), round(median(one.tokens for one in past)))
    return f"{ends}; median {duration(median(one.attempt_s for one in completed))}{f', {spent}' if spent else ''}"


def _completed(past: Sequence[RecordedTask]) -> list[RecordedTask]:
    return [one for one in past if one.attempt_s and one.outcome == TaskEnd.COMPLETED]


def _median_cost(past: Sequence[RecordedTask]) -> float:
    return round(median(one.cost_usd for one in past), 6)


def time_outs_json(found: Sequence[TimeOut]) -> list[dict[str, object]]:
    """Return the time limits, and the figures of earlier runs, as data. Costs are those of a task with all its
    attempts."""
    return [
        {
            "tasks": one.tasks,
            "agent": one.agent,
            "timeout_s": one.limit.seconds,
            "at_most_s": one.limit.longest_s,
            "why": one.limit.why,
            "earlier": {
                "outcomes": dict(Counter(past.outcome for past in one.past)),
                "attempts_s": [past.attempt_s for past in _completed(one.past)],
                "median_cost_usd": _median_cost(one.past),
                "median_tokens": round(median(past.tokens for past in one.past)),
            }
            if one.past
            else None,
        }
        for one in found
    ]
