"""Tests of the time limits of attempts: of a task, by its size and by what attempts took, of its agent, of the plan."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.lifecycles.types import TimeLimit
from supervisor.plans import AgentConfig, TaskConfig
from supervisor.work.attempt_limits import AttemptLimit, choose_limit, kind_of
from supervisor.work.task_history import Durations
from supervisor.work.timeouts import Complexity, TaskKind, TaskSize, Timeouts

NOTHING = Durations()


def seconds(kind: TaskKind, finished: list[float], timeouts: Timeouts | None = None) -> float | None:
    return (timeouts or Timeouts()).of(kind, finished).timeout_s


@pytest.mark.parametrize(
    ("scope", "complexity", "limit_s"),
    [
        ("small", "low", 630.0),
        ("small", "medium", 900.0),
        ("small", "high", 1350.0),
        ("medium", "low", 1260.0),
        ("medium", "medium", 1800.0),
        ("medium", "high", 2700.0),
        ("large", "low", 2520.0),
        ("large", "medium", 3600.0),
        ("large", "high", 5400.0),
        ("xl", "low", 5040.0),
        ("xl", "medium", 7200.0),
        ("xl", "high", 10_800.0),
    ],
)
def test_scope_times_complexity(scope: str, complexity: str, limit_s: float) -> None:
    """Without known durations the limit is the seconds of the size times the factor of the complexity, and no bound is
    below these seconds."""
    kind = TaskKind(TaskSize(scope), Complexity(complexity))
    limit = Timeouts().of(kind)
    assert limit.timeout_s == pytest.approx(limit_s)
    assert limit.hard_cap_s == pytest.approx(max(5400.0, limit_s))
    assert Timeouts().cap_s(kind) == limit.hard_cap_s


def test_without_a_scope_it_is_flat() -> None:
    """A task without a size has a limit of half an hour, and one of five minutes if a command that is no known agent
    does it."""
    assert Timeouts().without_size(is_command=False) == 1800.0
    assert Timeouts().without_size(is_command=True) == 300.0
    assert AgentConfig(adapter="command", command=("make",)).is_command
    assert not AgentConfig(known="aider").is_command
    assert not AgentConfig(adapter="acp", command=("agent",)).is_command


def test_a_kind_is_size_and_complexity() -> None:
    """A kind that gives only the size has medium complexity; its text names another complexity."""
    task = {"id": "t", "agent": "a", "prompt": "p"}
    assert kind_of(TaskConfig.model_validate(task)) is None
    assert kind_of(TaskConfig.model_validate({**task, "scope": "large"})) == TaskKind(TaskSize.LARGE)
    hard = kind_of(TaskConfig.model_validate({**task, "scope": "xl", "complexity": "high"}))
    assert hard == TaskKind(TaskSize.XL, Complexity.HIGH)
    assert (TaskKind(TaskSize.LARGE).words, TaskKind(TaskSize.XL, Complexity.HIGH).words) == ("large", "xl high")


def test_experience_needs_five() -> None:
    """Four durations do not change the limit; from the fifth on, the durations determine it."""
    small = TaskKind(TaskSize.SMALL)
    assert seconds(small, [400.0] * 4) == 900.0
    assert seconds(small, [400.0] * 5) == 600.0


@pytest.mark.parametrize(
    ("finished", "limit_s"),
    [
        ([10.0, 1000.0, 20.0, 30.0, 40.0], 1500.0),  # of five, the 95th percentile is the longest
        ([*range(1000, 1020)], 1018 * 1.5),  # of twenty, the nineteenth
        ([*range(1000, 1019)], 1018 * 1.5),  # of nineteen, the nineteenth
        ([*range(1000, 1021)], 1019 * 1.5),  # of twenty-one, the twentieth
    ],
)
def test_the_95th_percentile_by_nearest_rank(finished: list[float], limit_s: float) -> None:
    """The limit is one of the durations, the 95th percentile by nearest rank, times one and a half."""
    assert seconds(TaskKind(TaskSize.SMALL), finished) == limit_s


def test_learned_limits_are_clamped() -> None:
    """Known durations make a limit neither shorter than five minutes nor longer than two hours, or than the seconds of
    the size where these are longer; the cap is never below the limit."""
    small, hard = TaskKind(TaskSize.SMALL), TaskKind(TaskSize.XL, Complexity.HIGH)
    assert Timeouts().of(small, [1.0] * 5) == TimeLimit(300.0, 5400.0)
    assert Timeouts().of(small, [6000.0] * 5) == TimeLimit(7200.0, 7200.0)
    assert Timeouts().of(hard, [9000.0] * 5) == TimeLimit(10_800.0, 10_800.0)
    assert Timeouts().of(hard, [1.0] * 5) == TimeLimit(300.0, 10_800.0)


def test_the_policy_is_the_callers() -> None:
    """A ``Timeouts`` with other samples, percentile and margin computes the limit from these values."""
    small = TaskKind(TaskSize.SMALL)
    policy = Timeouts(samples_min=2, percentile=50.0, margin=2.0, min_s=1.0)
    assert seconds(small, [5.0, 3.0, 100.0], policy) == 10.0
    first = Timeouts(percentile=0.0, margin=1.0, min_s=1.0)
    assert seconds(small, [3.0, 2.0, 9.0, 9.0, 9.0], first) == 2.0


# ------------------------------------------------------------------------------------------------------- the choice
AGENT = AgentConfig(adapter="acp", command=("agent",), timeout_s=700.0)


def chosen(
    task: dict[str, Any],
    agent: AgentConfig | None = None,
    durations: Durations = NOTHING,
    *,
    default_s: float | None = None,
    turn_s: float | None = None,
    is_command: bool = False,
) -> AttemptLimit:
    config = TaskConfig.model_validate({"id": "t", "agent": "a", "prompt": "p", **task})
    return choose_limit(config, agent, durations, default_s=default_s, turn_s=turn_s, is_command=is_command)


def test_the_most_specific_limit_counts() -> None:
    """The task's own time-out comes before that of its size, then that of the agent, of all tasks, of all turns, and
    the default."""
    given = {"default_s": 600.0, "turn_s": 500.0}
    assert chosen({"timeout_s": 5.0}, AGENT, **given) == AttemptLimit(TimeLimit(5.0), 5.0, "timeout_s of the task")
    sized = chosen({"scope": "large"}, AGENT, **given)
    assert sized == AttemptLimit(TimeLimit(3600.0, 5400.0), 3600.0, "its size, large")
    assert sized.longest_s == 5400.0
    assert chosen({}, AGENT, **given) == AttemptLimit(TimeLimit(700.0), 700.0, "timeout_s of the agent")
    all_tasks = AttemptLimit(TimeLimit(600.0), 600.0, "task_lifecycle.default_timeout")
    assert chosen({}, AgentConfig(known="claude"), **given) == all_tasks
    assert chosen({}, turn_s=500.0) == AttemptLimit(TimeLimit(), 500.0, "limits.turn_timeout_s")
    assert chosen({}).why == "the default of an agent"
    assert chosen({}, is_command=True).seconds == 300.0


def test_a_learned_limit_says_what_taught_it() -> None:
    """The reason of a learned limit names the attempts, and the time that most of them needed at most."""
    taught = chosen({"scope": "large"}, AGENT, Durations((1200.0,) * 9, "of this task"))
    assert taught.limit == TimeLimit(1800.0, 5400.0)
    assert taught.why == "95 % of 9 completed attempts of this task took up to 1200 s"
