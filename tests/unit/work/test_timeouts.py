"""Tests of the time limits of attempts: by size and complexity, and by the durations of tasks of the same kind."""

from __future__ import annotations

import pytest

from supervisor.plans import AgentConfig
from supervisor.work.timeouts import KINDS_MAX, SAMPLES_MAX, Complexity, Durations, TaskKind, TaskSize, Timeouts


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
        ("xl", "high", 7200.0),
    ],
)
def test_scope_times_complexity(scope: str, complexity: str, limit_s: float) -> None:
    """Without known durations the limit is the seconds of the size times the factor of the complexity, at most two
    hours."""
    kind = TaskKind(TaskSize(scope), Complexity(complexity))
    assert Timeouts().of(kind) == pytest.approx(limit_s)


def test_without_a_scope_it_is_flat() -> None:
    """A task without a size has a limit of half an hour, and one of five minutes if a command that is no known agent
    does it."""
    command, known = AgentConfig(adapter="command", command=("make",)), AgentConfig(known="aider")
    assert Timeouts().without_size(command) == 300.0
    assert [Timeouts().without_size(one) for one in (known, AgentConfig(adapter="acp", command=("a",)), None)] == [
        1800.0,
        1800.0,
        1800.0,
    ]


def test_medium_is_meant_where_nothing_is_said() -> None:
    """A kind that gives only the size has medium complexity and no role."""
    assert TaskKind(TaskSize.LARGE) == TaskKind(TaskSize.LARGE, Complexity.MEDIUM, "")


def test_experience_needs_five() -> None:
    """Four durations do not change the limit; from the fifth on, the durations determine it."""
    small = TaskKind(TaskSize.SMALL)
    assert Timeouts().of(small, [400.0] * 4) == 900.0
    assert Timeouts().of(small, [400.0] * 5) == 600.0


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
    assert Timeouts().of(TaskKind(TaskSize.SMALL), finished) == limit_s


def test_the_limits_are_clamped() -> None:
    """Known durations make a limit neither shorter than five minutes nor longer than two hours."""
    small = TaskKind(TaskSize.SMALL)
    assert Timeouts().of(small, [1.0] * 5) == 300.0
    assert Timeouts().of(small, [6000.0] * 5) == 7200.0
    assert Timeouts(min_s=1.0, max_s=2.0).of(small) == 2.0


def test_the_policy_is_the_callers() -> None:
    """A ``Timeouts`` with other samples, percentile and margin computes the limit from these values."""
    policy = Timeouts(samples_min=2, percentile=50.0, margin=2.0, min_s=1.0)
    assert policy.of(TaskKind(TaskSize.SMALL), [5.0, 3.0, 100.0]) == 10.0
    assert (
        Timeouts(percentile=0.0, margin=1.0, min_s=1.0).of(TaskKind(TaskSize.SMALL), [3.0, 2.0, 9.0, 9.0, 9.0]) == 2.0
    )


def test_durations_of_a_kind() -> None:
    """Durations of one kind do not count for another kind, and durations without a kind are not stored."""
    durations, small, docs = Durations(), TaskKind(TaskSize.SMALL), TaskKind(TaskSize.SMALL, role="docs")
    for took_s in (3.0, 1.0):
        durations.note(small, took_s)
    durations.note(docs, 9.0)
    durations.note(None, 7.0)
    assert durations.of(small) == (3.0, 1.0)
    assert durations.of(docs) == (9.0,)
    assert durations.of(TaskKind(TaskSize.XL)) == ()
    assert durations.of(None) == ()


def test_the_memory_of_one_kind_is_bounded() -> None:
    """Only the latest hundred durations of a kind are stored."""
    durations, small = Durations(), TaskKind(TaskSize.SMALL)
    for number in range(SAMPLES_MAX + 3):
        durations.note(small, float(number))
    assert durations.of(small) == tuple(float(number) for number in range(3, SAMPLES_MAX + 3))


def test_the_memory_of_kinds_is_bounded() -> None:
    """With one kind too many, the kind that was used longest ago is dropped."""
    durations = Durations()
    kinds = [TaskKind(TaskSize.SMALL, role=str(number)) for number in range(KINDS_MAX)]
    assert (KINDS_MAX, SAMPLES_MAX) == (256, 100)
    for kind in [*kinds, kinds[0], TaskKind(TaskSize.XL)]:
        durations.note(kind, 1.0)
    assert durations.of(kinds[0]) == (1.0, 1.0)
    assert durations.of(kinds[1]) == ()
    assert durations.of(kinds[2]) == (1.0,)
    assert durations.of(TaskKind(TaskSize.XL)) == (1.0,)
