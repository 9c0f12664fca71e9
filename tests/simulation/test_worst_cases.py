"""Tests of the worst cases of a plan: the table of the documentation is what the scheduler does in virtual time."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from tests.simulation.worst_cases import measure, rows, ways

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
