"""Tests of the worst cases of a plan: the table of the documentation is what the scheduler does in virtual time."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from supervisor.work.worst_case import worst_cases
from tests.simulation.worst_cases import measure, plan_of, rows, ways

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "retries.md"
HEAD = "| what goes wrong, for ever |"


def test_the_page_has_the_measured_worst_cases() -> None:
    """Each row of the table in ``docs/explanation/retries.md`` has the measured tries and times."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(HEAD))
    table = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    assert [f"| {' | '.join(row)} |" for row in rows()] == list(table)


def test_a_program_that_exits_with_an_error_is_told_within_twenty_seconds() -> None:
    """A program that exits with status 3 each time is launched three times, and its task has failed within 20 s."""
    cost = measure(ways()[0], "command")
    assert (cost.tries, cost.seconds < 20.0) == (3, True)
    assert cost.error.startswith("exit status 3")


@pytest.mark.parametrize(
    ("words", "when"),
    [
        ("the agent fails, with the same error each time", "fails, with the same error each time"),
        ("the agent fails, with another error each time", "fails, with another error each time"),
        ("the agent hangs", "hangs"),
        ("a command prints nothing and does not end", "hangs, or works on without end"),
        ("the agent works on without end", "works on without end"),
        ("the agent exits before it is ready", "exits before it is ready"),
        ("the agent says nothing at its start", "says nothing at its start"),
        ("a reviewer rejects, with other findings each time", "has done other work than wanted, each time"),
    ],
)
def test_plan_check_tells_a_close_bound(words: str, when: str) -> None:
    """The worst case that ``plan check`` tells has the measured tries, and at most a third more time, plus the jitter
    of one second that starts take."""
    way = next(one for one in ways() if one.words == words)
    for adapter in way.adapters:
        plan, cost = plan_of(way, adapter), measure(way, adapter)
        [bound] = [one for one in worst_cases(plan, plan.tasks[0]) if one.when == when]
        assert cost.tries == bound.tries
        assert bound.seconds * 0.75 - 1.0 <= cost.seconds <= bound.seconds + 1.0


@pytest.mark.parametrize(("least", "tries"), [(0, 1), (2, 3), (10, 5)])
def test_the_retry_budget_counts_launches_of_a_session(least: int, tries: int) -> None:
    """A session launches an agent that is never ready only as often as the plan's retry budget allows; the error then
    names the budget."""
    never_ready = next(one for one in ways() if one.words == "the agent says nothing at its start")
    way = never_ready._replace(plan={"retry_budget": {"share": 0.0, "least": least}})
    cost, plan = measure(way, "acp"), plan_of(way, "acp")
    assert cost.tries == tries
    assert ("retry budget is spent" in cost.error) is (least < 10)
    assert [one.tries for one in worst_cases(plan, plan.tasks[0]) if one.when == "says nothing at its start"] == [tries]
