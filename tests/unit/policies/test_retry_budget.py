"""One budget of retries for a workstream: a fifth of its tasks, ten at least, and never given back."""

from __future__ import annotations

import pytest

from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.policies.retry_budget import RetryBudget, retries_spent


@pytest.mark.parametrize(
    ("tasks", "retries"), [(0, 10), (1, 10), (50, 10), (54, 10), (55, 11), (100, 20), (10_000, 2000)]
)
def test_a_fifth_of_the_tasks(tasks: int, retries: int) -> None:
    """Two per ten tasks, begun fifths not counted, and ten in any case."""
    assert RetryBudget(tasks=tasks).retries_max == retries
    assert RetryBudget().grown(tasks).retries_max == retries


def test_it_is_spent_one_by_one() -> None:
    """Exactly as many as there are can be spent; then there is none, and the words say so."""
    budget: RetryBudget | None = RetryBudget(retries_min=2, tasks=3)
    spent = []
    while budget is not None:
        spent.append((budget.spent, budget.left))
        last, budget = budget, budget.spend()
    assert spent == [(0, 2), (1, 1), (2, 0)]
    assert last.describe() == "the workstream's retry budget is spent (2 of 2 retries)"


def test_the_last_one_can_be_given_back() -> None:
    """Whether there was one for it is asked once more; none is won by that."""
    for spent in (1, 2, 3, 4):
        budget = RetryBudget(tasks=100, spent=spent)
        assert budget.given_back() == RetryBudget(tasks=100, spent=spent - 1)
        assert budget.given_back().spend() == budget


def test_spending_makes_another_value() -> None:
    """The budget that was spent from is as it was."""
    budget = RetryBudget(tasks=100)
    assert budget.spend() == RetryBudget(tasks=100, spent=1)
    assert budget == RetryBudget(tasks=100)


def test_it_grows_with_the_workstream() -> None:
    """Tasks that are added make it larger; what was spent stays spent."""
    budget = RetryBudget(tasks=50, spent=10)
    assert budget.spend() is None
    grown = budget.grown(50)
    assert (grown.tasks, grown.spent, grown.left) == (100, 10, 10)


def test_a_plan_can_set_both_figures() -> None:
    """Share and least are the plan's; a budget of nothing lets nothing be tried again, and is never negative."""
    assert RetryBudget(share=0.5, retries_min=1, tasks=8).retries_max == 4
    assert RetryBudget(share=0.0, retries_min=0, tasks=1000).spend() is None
    assert RetryBudget(retries_min=1, spent=5).left == 0


def test_a_share_is_what_it_says() -> None:
    """Floats do not take one away."""
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
        (TaskRun.CIRCUIT_OPEN, TaskRunData(failures=4, probes=1), 2),
        (TaskRun.IN_PROGRESS, TaskRunData(failures=3, probes=1), 1),
        (TaskRun.CANCELLED, TaskRunData(failures=1, permanent=True), 0),
    ],
)
def test_what_a_run_has_spent_is_known_again(state: TaskRun, data: TaskRunData, spent: int) -> None:
    """Each failure that another attempt followed is one; a probe is none."""
    assert retries_spent([], [(state, data)]) == spent
    assert retries_spent([TaskData(retries=2)], [(state, data)]) == spent + 2
