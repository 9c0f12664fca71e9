"""The retry budget of a workstream: a fifth of its tasks, ten at least."""

from __future__ import annotations

import pytest

from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.policies.retry_budget import RetryBudget, retries_spent


@pytest.mark.parametrize(
    ("tasks", "retries"), [(0, 10), (1, 10), (50, 10), (54, 10), (55, 11), (100, 20), (10_000, 2000)]
)
def test_a_fifth_of_the_tasks(tasks: int, retries: int) -> None:
    """Two retries per ten tasks, rounded down, and ten in any case."""
    assert RetryBudget(tasks=tasks).retries_max == retries
    assert RetryBudget().grown(tasks).retries_max == retries


def test_it_is_spent_one_by_one() -> None:
    """A retry budget of two allows two retries; then ``spend`` returns ``None``, and the description says so."""
    budget: RetryBudget | None = RetryBudget(retries_min=2, tasks=3)
    spent = []
    while budget is not None:
        spent.append((budget.spent, budget.left))
        last, budget = budget, budget.spend()
    assert spent == [(0, 2), (1, 1), (2, 0)]
    assert last.describe() == "the workstream's retry budget is spent (2 of 2 retries)"


def test_spending_makes_another_value() -> None:
    """Spending returns a new budget, and the old one is unchanged."""
    budget = RetryBudget(tasks=100)
    assert budget.spend() == RetryBudget(tasks=100, spent=1)
    assert budget == RetryBudget(tasks=100)


def test_it_grows_with_the_workstream() -> None:
    """Tasks added to a workstream enlarge its retry budget; the retries spent so far stay spent."""
    budget = RetryBudget(tasks=50, spent=10)
    assert budget.spend() is None
    grown = budget.grown(50)
    assert (grown.tasks, grown.spent, grown.left) == (100, 10, 10)


def test_a_plan_can_set_both_figures() -> None:
    """A plan can set the share and the minimum of the retry budget; a budget of 0 allows no retry."""
    assert RetryBudget(share=0.5, retries_min=1, tasks=8).retries_max == 4
    assert RetryBudget(share=0.0, retries_min=0, tasks=1000).spend() is None
    assert RetryBudget(retries_min=1, spent=5).left == 0


def test_a_share_is_what_it_says() -> None:
    """The share of a round number of tasks is an exact number of retries, despite rounding of floats."""
    assert RetryBudget(share=0.29, retries_min=0, tasks=100).retries_max == 29


@pytest.mark.parametrize(
    ("state", "data", "spent"),
    [
        (TaskRun.PENDING, TaskRunData(), 0),
        (TaskRun.RETRYING, TaskRunData(failures=2), 2),
        (TaskRun.IN_PROGRESS, TaskRunData(failures=2), 2),
        (TaskRun.COMPLETED, TaskRunData(failures=1), 1),
        (TaskRun.FAILED, TaskRunData(failures=1), 0),
        (TaskRun.CIRCUIT_OPEN, TaskRunData(failures=3), 2),
        (TaskRun.CIRCUIT_OPEN, TaskRunData(failures=4, probes=1), 3),
        (TaskRun.HALF_OPEN, TaskRunData(failures=3, probes=1), 3),
        (TaskRun.IN_PROGRESS, TaskRunData(failures=3, probes=1), 3),
        (TaskRun.IN_PROGRESS, TaskRunData(relaunches=2), 2),
        (TaskRun.CANCELLED, TaskRunData(failures=1, permanent=True), 0),
    ],
)
def test_what_a_run_has_spent_is_known_again(state: TaskRun, data: TaskRunData, spent: int) -> None:
    """After a recovery, each failure in a task run that another launch has answered counts as a spent retry: by another
    attempt, by a probe, or by the session itself."""
    assert retries_spent([], [(state, data)]) == spent
    assert retries_spent([TaskData(retries=2)], [(state, data)]) == spent + 2
