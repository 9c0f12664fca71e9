"""Tests of the lines by which commands show that they wanted input."""

from __future__ import annotations

import pytest

from supervisor.policies.input_wanted import LINE_CHARS, wanted_input

SUDO = "sudo: a terminal is required to read the password; either use -S or configure an askpass helper"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Name: Traceback ...\n    input()\nEOFError: EOF when reading a line\n", "EOFError: EOF when reading a line"),
        (f"{SUDO}\nsudo: a password is required\n", SUDO),
        ("4 MB of disk are used.\nDo you want to continue? [Y/n] Abort.\n", "Do you want to continue? [Y/n] Abort."),
        ("host ready\nadmin@host's password: ", "admin@host's password:"),
        ("Delete all?", "Delete all?"),
        ("the input device is not a TTY\n", "the input device is not a TTY"),
    ],
)
def test_a_question_is_found(output: str, line: str) -> None:
    """A command that fails with a question, or with an error about its input, wanted input."""
    assert wanted_input(output, 1) == line


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("", 1),
        ("expected: 3\nactual: 4\n", 1),
        ("AssertionError: is this right?\n", 1),
        ("Name: ", 0),
        ("Downloading:", -9),
        ("Name: ", None),
    ],
)
def test_other_output_is_no_question(output: str, status: int | None) -> None:
    """A finished line that ends like a question, an output of a command that succeeded, or of one that was ended, does
    not show that input was wanted."""
    assert wanted_input(output, status) == ""


def test_the_line_is_bounded() -> None:
    """A question of any length is quoted up to a limit."""
    assert len(wanted_input("x" * 5000 + "?", 1)) == LINE_CHARS
