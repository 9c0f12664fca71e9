"""Limits on the output of agents: identifiers are complete or refused, explanations are cut, lists end."""

from __future__ import annotations

import msgspec
import pytest

from supervisor.ports import (
    ChildRequested,
    Malformed,
    Out,
    PermissionNeeded,
    Ready,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)
from supervisor.ports.input_limits import (
    COMMAND_BYTES_MAX,
    ID_CHARS_MAX,
    OPTIONS_MAX,
    PATH_CHARS_MAX,
    PROMPT_CHARS_MAX,
    USAGE_BYTES_MAX,
    VARIABLES_BYTES_MAX,
    VARIABLES_MAX,
    WORDS_CHARS_MAX,
    bounded,
)

ID, LONG_ID = "i" * ID_CHARS_MAX, "i" * (ID_CHARS_MAX + 1)
WORDS, LONG_WORDS = "w" * WORDS_CHARS_MAX, "w" * (WORDS_CHARS_MAX + 1)

FITTING: tuple[Out, ...] = (
    Ready(ID, WORDS),
    Ready(),
    Text("message", LONG_WORDS * 100),
    ToolOpened(ID, WORDS, ID),
    ToolClosed(ID, "completed"),
    PermissionNeeded(ID, WORDS, ((ID, ID),) * OPTIONS_MAX),
    TerminalOpened(ID, ID, ("true",), None, {}),
    TerminalKilled(ID),
    ChildRequested(ID, ID, "p" * PROMPT_CHARS_MAX, ID, None),
    Usage({"used": 1}),
    TurnEnded(ID, WORDS),
    Malformed(WORDS),
)
TOO_LONG: tuple[Out, ...] = (
    Ready(LONG_ID),
    ToolOpened(LONG_ID, ""),
    ToolOpened("", "", LONG_ID),
    ToolClosed(LONG_ID, ""),
    TurnEnded(LONG_ID),
    PermissionNeeded(LONG_ID, "", ()),
    PermissionNeeded("", "", ((LONG_ID, ""),)),
    PermissionNeeded("", "", (("", ""),) * (OPTIONS_MAX + 1)),
    TerminalOpened(LONG_ID, "", (), None, {}),
    TerminalOpened("", LONG_ID, (), None, {}),
    TerminalKilled(LONG_ID),
    ChildRequested(LONG_ID, "", "", None, None),
    ChildRequested("", LONG_ID, "", None, None),
    ChildRequested("", "", "", LONG_ID, None),
    ChildRequested("", "", "p" * (PROMPT_CHARS_MAX + 1), None, None),
)


@pytest.mark.parametrize("out", FITTING, ids=lambda out: type(out).__name__)
def test_what_fits_is_left_alone(out: Out) -> None:
    """A value within its limit is the same object afterwards; prose has no limit here, since a transcript has its
    own."""
    assert bounded(out) is out


@pytest.mark.parametrize("out", TOO_LONG, ids=lambda out: type(out).__name__)
def test_a_name_that_is_too_long_breaks_the_protocol(out: Out) -> None:
    """An identifier with one character too many breaks the protocol, and the error names its length and the limit."""
    wrong = bounded(out)
    assert isinstance(wrong, Malformed)
    assert "the most is" in wrong.why


@pytest.mark.parametrize(
    "out", [Ready(None, LONG_WORDS), ToolOpened("c", LONG_WORDS), TurnEnded("error", LONG_WORDS), Malformed(LONG_WORDS)]
)
def test_an_explanation_is_cut(out: Out) -> None:
    """A long explanation of an agent is cut at its end, and the rest is replaced by its full length."""
    kept = str(msgspec.structs.asdict(bounded(out)))
    assert f"{WORDS}... ({WORDS_CHARS_MAX + 1} characters)" in kept


def test_of_too_much_use_only_the_size_is_kept() -> None:
    """A usage report that is too large is replaced by its size."""
    told = bounded(Usage({"x": "y" * USAGE_BYTES_MAX}))
    assert told == Usage({"omitted_bytes": USAGE_BYTES_MAX + len('{"x":""}')})


def test_a_terminal_is_bounded_in_words_variables_and_path() -> None:
    """A terminal's words, variables and path are limited; one too many breaks the protocol, with their number."""
    fits = TerminalOpened("t", "c", ("x" * COMMAND_BYTES_MAX,), "/" * PATH_CHARS_MAX, {"a" * 4: "b"})
    assert bounded(fits) is fits
    for opened, words in (
        (TerminalOpened("t", "c", ("é" * (COMMAND_BYTES_MAX // 2), "x"), None, {}), "command of 131073 bytes"),
        (TerminalOpened("t", "c", (), "/" * (PATH_CHARS_MAX + 1), {}), "working directory of 4097 characters"),
        (
            TerminalOpened("t", "c", (), None, {f"V{n}": "" for n in range(VARIABLES_MAX + 1)}),
            "environment of 257 variables",
        ),
        (TerminalOpened("t", "c", (), None, {"V": "x" * VARIABLES_BYTES_MAX}), "environment of 65538 bytes"),
    ):
        broken = bounded(opened)
        assert isinstance(broken, Malformed)
        assert words in broken.why
