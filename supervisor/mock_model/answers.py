"""Answers of the model server, and the script language with which a prompt asks for them. Pure.

A prompt contains the script: ``RUN[[make test]] SAY[[done]]`` asks for a tool call, followed by a text. A call takes
two requests: the server answers the first request with the call, and the second request brings the call's result. Any
other answer ends the turn. An unknown word is not an error, because prompts of agents contain all kinds of text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec


class Spent(msgspec.Struct, frozen=True):
    """Token usage that an answer reports; the defaults are small and constant."""

    input_tokens: int = 11
    output_tokens: int = 7


class Say(msgspec.Struct, frozen=True):
    """Scripted answer: a text, which ends the turn."""

    text: str = "stub: ok"


class Run(msgspec.Struct, frozen=True):
    """Scripted answer: a call of the agent's own shell tool, whatever the tool's name."""

    command: str


class Parallel(msgspec.Struct, frozen=True):
    """Scripted answer: several calls of the shell tool in one answer, one for each command."""

    commands: tuple[str, ...]


class Background(msgspec.Struct, frozen=True):
    """Scripted answer: a call of the shell tool that leaves the command running: by the tool's own parameter if it has
    one, otherwise with ``&``."""

    command: str


class Edit(msgspec.Struct, frozen=True):
    """Scripted answer: a call of the agent's own tool that writes files, with this path and content."""

    path: str
    text: str


class Loop(msgspec.Struct, frozen=True):
    """Scripted answer: a call of the shell tool with the same command again and again, as long as the agent continues,
    so that the agent makes no progress."""

    command: str


class Delegate(msgspec.Struct, frozen=True):
    """Scripted answer: a call of the agent's own tool for sub-agents, with this prompt."""

    prompt: str


class Use(msgspec.Struct, frozen=True):
    """Scripted answer: a call of the agent's tool with this name, with these arguments."""

    tool: str
    arguments: dict[str, Any] = {}


class Slow(msgspec.Struct, frozen=True):
    """Scripted answer: a text in *pieces* pieces, one piece every *every_s* seconds."""

    pieces: int = 5
    every_s: float = 1.0


class Fail(msgspec.Struct, frozen=True):
    """Scripted answer: an HTTP error with the provider's usual text.

    Args:
        status: HTTP status, 400 to 599.
        why: the cause, if the status does not name the cause: ``context`` (prompt too long), ``quota`` (quota used up).
        times: number of requests with the same prompt that fail before the script continues; ``None``: all.
        retry_after_s: seconds that the error asks the client to wait; ``None``: 1 second with status 429, else none;
            ``NO_TIME``: none with any status.
    """

    status: int = 500
    why: str = ""
    times: int | None = None
    retry_after_s: float | None = None


class Hang(msgspec.Struct, frozen=True):
    """Scripted answer: silence, after the beginning of an answer or, with *mute*, without a single byte."""

    mute: bool = False


class Drop(msgspec.Struct, frozen=True):
    """Scripted answer: a text that is cut off in the middle. With *clean* the HTTP response ends properly, but the
    answer in the response is incomplete; otherwise the connection is cut after *after_bytes* bytes of the body, or,
    with ``None``, before the end of the text."""

    clean: bool = False
    after_bytes: int | None = None


Answer = Say | Run | Parallel | Background | Edit | Loop | Delegate | Use | Slow | Fail | Hang | Drop
CALLS: Final = (Run, Parallel, Background, Edit, Delegate, Use)
"""Answers after which the client sends another request, with the result of the tool call."""
FAILURES: Final = {"context": 400, "quota": 429}
"""HTTP status that most providers use for a failure, for each failure that has a name in scripts."""

NO_TIME: Final = -1.0
"""Value of ``Fail.retry_after_s`` for an error that names no time to wait."""

PIECES_MAX: Final = 100_000
_WORD: Final = re.compile(
    r"\b(?:(?P<called>RUN|PARALLEL|BACKGROUND|EDIT|LOOP|SAY|SLOW|ERR|AGENT|TOOL|USAGE|HANG|DROP)\[\[|(?P<alone>HANG|DROP)\b(?!\[\[))"
)
_CLOSES: Final = re.compile(r"\]\](?!\])")
"""Pattern for the end of an argument: of more than two brackets the last two. The end is searched for separately from
the word, because one pattern for both would search the rest of the text again for each word without an end."""


def has_script(text: str) -> bool:
    """Return whether *text* contains a script."""
    return next(_steps(text), None) is not None


def answers_in(text: str) -> tuple[Answer, ...]:
    """Return the answers that *text* asks for, in order."""
    return tuple(_steps(text))


def spent_in(text: str) -> Spent:
    """Return the usage that *text* asks for: ``USAGE[[1200 300]]`` sets input and output tokens; the last ``USAGE`` in
    the text counts."""
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
    """Yield each word of the script in *text* with the word's argument, in order. After an argument without an end,
    only words without arguments are yielded."""
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
    """Return the number in *word*, bounded; *otherwise* if *word* is not a number of less than 12 digits."""
    return min(int(word), PIECES_MAX * 1000) if word.isascii() and word.isdigit() and len(word) < 12 else otherwise


def _seconds(word: str, otherwise: float) -> float:
    """Return the seconds in *word*, at most one hour; *otherwise* if *word* is not a number."""
    try:
        return min(max(float(word), 0.0), 3600.0) if word not in ("nan", "NaN") else otherwise
    except ValueError:
        return otherwise


def _slow(argument: str) -> Slow:
    pieces, every, *_ = [*argument.split(), "", ""]
    return Slow(min(_number(pieces, 5), PIECES_MAX), _seconds(every, 1.0))


def _fail(argument: str) -> Fail:
    """Parse the argument of ``ERR[[429]]``, ``ERR[[503 2]]`` (twice), ``ERR[[429 2 30]]`` (wait 30 s), ``ERR[[429 2
    -]]`` (without a time) or ``ERR[[context]]``."""
    what, times, wait, *_ = [*argument.split(), "", "", ""]
    status = FAILURES.get(what) or _number(what, 500)
    return Fail(
        status=status if 400 <= status <= 599 else 500,
        why=what if what in FAILURES else "",
        times=_number(times, 1) if times else None,
        retry_after_s=NO_TIME if wait == "-" else _seconds(wait, 1.0) if wait else None,
    )


def _use(argument: str) -> Use:
    """Parse the argument of ``TOOL[[name {"key": "value"}]]``; invalid arguments of the tool count as no arguments."""
    name, _, rest = argument.strip().partition(" ")
    try:
        arguments = json.loads(rest or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return Use(name, arguments if isinstance(arguments, dict) else {})


def _parallel(argument: str) -> Parallel:
    """Parse the argument of ``PARALLEL[[make a ;; make b]]``."""
    return Parallel(tuple(one.strip() for one in argument.split(";;")))


def _edit(argument: str) -> Edit:
    """Parse the argument of ``EDIT[[notes.txt the text]]``."""
    path, _, text = argument.strip().partition(" ")
    return Edit(path, text)


def _drop(argument: str) -> Drop:
    """Parse the argument of ``DROP[[clean]]`` or of ``DROP[[200]]`` (cut after 200 bytes)."""
    word = argument.strip()
    return Drop(clean=word == "clean", after_bytes=_number(word, 0) if word.isdigit() else None)


def _delegate(argument: str) -> Delegate:
    """Parse the argument of ``AGENT[[RUN<<make test>>]]``: the sub-agent's script is written with other brackets."""
    return Delegate(argument.replace("<<", "[[").replace(">>", "]]"))


_MAKE: Final[dict[str, Callable[[str], Answer]]] = {
    "RUN": Run,
    "PARALLEL": _parallel,
    "BACKGROUND": Background,
    "EDIT": _edit,
    "LOOP": Loop,
    "SAY": Say,
    "SLOW": _slow,
    "ERR": _fail,
    "AGENT": _delegate,
    "TOOL": _use,
    "HANG": lambda argument: Hang(mute=argument.strip() == "mute"),
    "DROP": _drop,
}
