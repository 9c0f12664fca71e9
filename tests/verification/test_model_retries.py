"""Tests of the checker of model errors: every breach of the limits for model retries is reported, and nothing else."""

from __future__ import annotations

import pytest

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.model_errors import ModelLimits
from tests.verification.checkers.model_retries import ModelRetryChecker
from tests.verification.records import record_of


def record(
    event: str, entity_id: str, *, outcome: str = "fact", moved: tuple[str, str] = ("", ""), **told: object
) -> LifecycleEvent:
    return record_of(
        "session", entity_id, event, outcome=outcome, from_status=moved[0], to_status=moved[1], metadata=told
    )


def trouble(attempt: int, in_a_row: int, problem: str = "server") -> LifecycleEvent:
    return record("ModelTrouble", "s", attempt=attempt, in_a_row=in_a_row, problem=problem)


def used(requests: int) -> LifecycleEvent:
    return record("Usage", "s", turn="s:t1", said={"requests": requests})


def claimed(request_id: str) -> LifecycleEvent:
    return record("task_claimed", "s:t1", outcome="transition", request_id=request_id)


def exited(*, final: bool) -> LifecycleEvent:
    verdict = {"model": {"problem": "auth", "final": final}}
    return record("SessionExited", "s", outcome="transition", moved=("Running", "CoolingDown"), verdict=verdict)


IN_VAIN = record("ModelAskedInVain", "s", turn="s:t1")
LAWFUL = [
    [trouble(1, 1), trouble(4, 4), trouble(1, 9)],
    [trouble(1, 1, "auth")],
    [used(13)],
    [IN_VAIN, used(99)],
    [claimed("r1"), exited(final=False), claimed("r1")],
    [claimed("r1"), exited(final=True), claimed("r2")],
]
BROKEN = [
    ([trouble(5, 5)], "tries for the 5. time in a row; the most is 3"),
    ([trouble(2, 2, "auth")], "what no retry mends (auth)"),
    ([trouble(3, 1)], "counts 1 failures in a row, its agent 3"),
    ([used(14)], "made 14 requests in vain in s:t1; the most is 5"),
    ([claimed("r1"), exited(final=True), claimed("r1")], "is for the prompt r1, whose model has failed for good"),
]


def heard(records: list[LifecycleEvent]) -> list[str]:
    said: list[str] = []
    account = ModelRetryChecker(
        lambda law, who, words: said.append(f"{law}: {words}"), ModelLimits(retries_max=3, fruitless_max=5)
    )
    for one in records:
        account.wrote(one)
    return said


@pytest.mark.parametrize("records", LAWFUL)
def test_tries_within_the_budget_are_not_reported(records: list[LifecycleEvent]) -> None:
    """Tries within the limits, requests without result that the runtime noticed, and other prompts after a final error
    are not reported."""
    assert heard(records) == []


@pytest.mark.parametrize(("records", "words"), BROKEN, ids=range(len(BROKEN)))
def test_each_breach_is_reported(records: list[LifecycleEvent], words: str) -> None:
    """Each breach gives one report, with the invariant ``one_budget``."""
    (said,) = heard(records)
    assert said.startswith("one_budget: ")
    assert words in said
