"""What the stub can answer, and how a prompt says so. Pure: text in, values out.

The words of a prompt are its script: ``RUN[[make test]] SAY[[done]]`` is a tool call, and then a text. A call stands
for two requests, the one that is answered with it and the one that brings its result; everything else ends the turn.
A word that is none is not an error, since prompts of agents hold all sorts of things: it is no script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

__all__ = [
    "CALLS",
    "FAILURES",
    "Answer",
    "Delegate",
    "Drop",
    "Fail",
    "Hang",
    "Loop",
    "Run",
    "Say",
    "Slow",
    "Spent",
    "Use",
    "answers_in",
    "has_script",
    "spent_in",
]


class Spent(msgspec.Struct, frozen=True):
    """The usage that an answer reports, in tokens; the defaults are small, and the same every time."""

    input_tokens: int = 11
    output_tokens: int = 7


class Say(msgspec.Struct, frozen=True):
    """A text, and the end of the turn."""

    text: str = "stub: ok"


class Run(msgspec.Struct, frozen=True):
    """A call of the agent's own shell tool, whatever it names it."""

    command: str


class Loop(msgspec.Struct, frozen=True):
    """The same command, for as long as the agent goes on asking: an agent that makes no progress."""

    command: str


class Delegate(msgspec.Struct, frozen=True):
    """A call of the agent's own tool for sub-agents, with this prompt."""

    prompt: str


class Use(msgspec.Struct, frozen=True):
    """A call of the tool of that name, with these arguments."""

    tool: str
    arguments: dict[str, Any] = {}


class Slow(msgspec.Struct, frozen=True):
    """*pieces* pieces of text, one every *every_s* seconds."""

    pieces: int = 5
    every_s: float = 1.0


class Fail(msgspec.Struct, frozen=True):
    """An HTTP status with the provider's own words for it.

    Args:
        status: 400 to 599.
        why: what it is, where the status does not say: ``context`` (too long), ``quota`` (nothing left to spend).
        times: how many requests with the same prompt fail before the script goes on; ``None``: all.
        retry_after_s: what the client is told to wait; ``None``: 1 second with a 429, else nothing.
    """

    status: int = 500
    why: str = ""
    times: int | None = None
    retry_after_s: float | None = None


class Hang(msgspec.Struct, frozen=True):
    """Silence: after the beginning of an answer or, *mute*, without one byte of it."""

    mute: bool = False


class Drop(msgspec.Struct, frozen=True):
    """An answer that is cut off in its middle; *clean*: the connection ends as it should, but the answer does not."""

    clean: bool = False


Answer = Say | Run | Loop | Delegate | Use | Slow | Fail | Hang | Drop
CALLS: Final = (Run, Delegate, Use)
"""What is answered again when the result is there."""
FAILURES: Final = {"context": 400, "quota": 429}
"""The failures that have a name, and the status that most providers give them."""

PIECES_MAX: Final = 100_000
_WORD: Final = re.compile(
    r"\b(?:(?P<called>RUN|LOOP|SAY|SLOW|ERR|AGENT|TOOL|USAGE|HANG|DROP)\[\[|(?P<alone>HANG|DROP)\b(?!\[\[))"
)
_CLOSES: Final = re.compile(r"\]\](?!\])")
"""The end of an argument: of more than two brackets the last two. It is searched for apart from the word: a pattern of
both would search the rest of the text again for each word whose argument has no end."""


def has_script(text: str) -> bool:
    """Whether *text* says what to answer."""
    return next(_steps(text), None) is not None


def answers_in(text: str) -> tuple[Answer, ...]:
    """The answers that *text* asks for, in order."""
    return tuple(_steps(text))


def spent_in(text: str) -> Spent:
    """The usage that *text* asks for: ``USAGE[[1200 300]]``, tokens in and out; the last one counts."""
    spent = Spent()
    for word, argument in _script_words(text):
        if word == "USAGE":
            numbers = [_number(number, 0) for number in argument.split()[:2]]
            spent = Spent(*numbers)
    return spent


def _steps(text: str) -> Iterator[Answer]:
    for word, argument in _script_words(text):
        if (make := _MAKE.get(word)) is not None:
            yield make(argument)


def _script_words(text: str) -> Iterator[tuple[str, str]]:
    """Each word of a script with its argument, in order; behind the last end of an argument only those that stand
    alone."""
    at, closed = 0, True
    while (word := _WORD.search(text, at)) is not None:
        at = word.end()
        if word["alone"] is not None:
            yield word["alone"], ""
        elif closed:
            closes = _CLOSES.search(text, at)
            closed = closes is not None
            if closes is not None:
                yield word["called"], text[at : closes.start()]
                at = closes.end()


def _number(word: str, otherwise: int) -> int:
    """Digits as a number, bounded."""
    return min(int(word), PIECES_MAX * 1000) if word.isascii() and word.isdigit() and len(word) < 12 else otherwise


def _seconds(word: str, otherwise: float) -> float:
    """A pause, bounded to an hour."""
    try:
        return min(max(float(word), 0.0), 3600.0) if word not in ("nan", "NaN") else otherwise
    except ValueError:
        return otherwise


def _slow(argument: str) -> Slow:
    pieces, every, *_ = [*argument.split(), "", ""]
    return Slow(min(_number(pieces, 5), PIECES_MAX), _seconds(every, 1.0))


def _fail(argument: str) -> Fail:
    """``ERR[[429]]``, ``ERR[[503 2]]`` (twice), ``ERR[[429 2 30]]`` (wait 30 s), ``ERR[[context]]``."""
    what, times, wait, *_ = [*argument.split(), "", "", ""]
    status = FAILURES.get(what) or _number(what, 500)
    return Fail(
        status=status if 400 <= status <= 599 else 500,
        why=what if what in FAILURES else "",
        times=_number(times, 1) if times else None,
        retry_after_s=_seconds(wait, 1.0) if wait else None,
    )


def _use(argument: str) -> Use:
    """``TOOL[[name {"key": "value"}]]``; arguments that cannot be read are none."""
    name, _, rest = argument.strip().partition(" ")
    try:
        arguments = json.loads(rest or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return Use(name, arguments if isinstance(arguments, dict) else {})


def _delegate(argument: str) -> Delegate:
    """The script of a sub-agent stands in other brackets: ``AGENT[[RUN<<make test>>]]``."""
    return Delegate(argument.replace("<<", "[[").replace(">>", "]]"))


_MAKE: Final[dict[str, Callable[[str], Answer]]] = {
    "RUN": Run,
    "LOOP": Loop,
    "SAY": Say,
    "SLOW": _slow,
    "ERR": _fail,
    "AGENT": _delegate,
    "TOOL": _use,
    "HANG": lambda argument: Hang(mute=argument.strip() == "mute"),
    "DROP": lambda argument: Drop(clean=argument.strip() == "clean"),
}
