"""Reason of a retry: the part of a prompt that tells an agent why its task or request is tried again.

Theory of operation
-------------------
A failure is recorded in two places. An attempt that failed leaves its error with the request (``Request.reason``) or
with the task run (``TaskRunData``); a claim whose result was not accepted leaves its findings with the task
(``TaskData.failure``). Both are durable data without secrets, so that a takeover does not lose them. ``join_reasons``
makes one text of them, which becomes the ``reason`` of the next request. ``quote_reason`` puts the text into the
prompt, each line quoted, since the text comes from programs, reviewers and other agents, and must not pass for a part
of the task. Example::

    Write a.txt

    This is another attempt, for the reason that is quoted here:
    > not accepted: command make check: exited with 2: no rule
    > make: *** no rule to make target 'check'

A prompt that an interpreter executes (``executes_prompt``) never gets a reason: the interpreter would execute the text
of a failed test. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from supervisor.policies.redaction import printable

REASON_CHARS_MAX: Final = 4_000
"""Number of characters of a longest reason (rule 47 of the specification)."""
LEFT_OUT: Final = "\n[the middle is left out]\n"
"""Text in place of the middle of a longer reason."""
LINE_SLACK: Final = 200
"""Number of characters by which a cut moves to the end of a line."""
HEADING: Final = "This is another attempt, for the reason that is quoted here:"
"""First line of the part of a prompt with the reason."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VARIES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"(?<![\w:.])\d?\d:\d\d(?::\d\d(?:[.,]\d+)?)?\b(?!:)", "<time>"),  # not the line and column of a file
        (r"\b\d+(?:\.\d+)? ?(?:ms|us|ns|secs?|seconds?|min|minutes?|hours?|s|m|h)\b", "<time>"),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-fA-F]+\b", "<id>"),
        (r"\bpid \d+", "<id>"),
        (r"(?<![\w.])/(?:[\w.~+@-]+/)+", "/"),
        (r"\s+", " "),
    )
)
"""Patterns of the parts of a finding that differ from run to run, with their replacements: times, ids, and the
directory of a file, which has the name of the session where each session has a worktree."""

_INTERPRETERS: Final = re.compile(
    r"(?:ba|da|z|k|mk|fi|c|tc)?sh|python[\d.]*|pypy[\d.]*|node|deno|bun|perl|ruby|php|pwsh"
)
_TAKES_PROGRAM: Final = re.compile(r"-\w*[cepr]|-E|--(?:command|eval|print)")
"""Option of an interpreter whose argument is the program."""


def bounded(text: str, chars_max: int = REASON_CHARS_MAX) -> str:
    """Return *text*, cut to its beginning and its end if it has more than *chars_max* characters. A cut is made between
    two lines where a line ends nearby."""
    if len(text) <= chars_max:
        return text
    half = (chars_max - len(LEFT_OUT)) // 2
    head, tail = text[:half], text[-half:]
    if (at := head.rfind("\n")) >= half - LINE_SLACK:
        head = head[:at]
    if 0 <= (at := tail.find("\n")) < LINE_SLACK:
        tail = tail[at + 1 :]
    return f"{head}{LEFT_OUT}{tail}"


def join_reasons(*reasons: str) -> str:
    """Return the *reasons*, oldest first, as one text of at most ``REASON_CHARS_MAX`` characters; a reason that is
    empty, or contained in another, is left out."""
    given = list(dict.fromkeys(one.strip() for one in reasons if one.strip()))
    told = [one for one in given if not any(one in other for other in given if other != one)]
    return bounded("\n\n".join(told))


def make_findings(summary: str, details: str = "") -> str:
    """Return the text of findings, ready to be recorded: the *summary*, and then the *details*, such as the output of a
    failed test, in lines that no terminal acts on. Both must be free of secrets."""
    clean = printable(_COLOURS.sub("", details).replace("\r\n", "\n").strip(), lines=True)
    return bounded(f"{summary}\n{clean}" if clean else summary)


def quote_reason(reason: str) -> str:
    """Return the part of a prompt with the *reason* of the retry, each of its lines quoted."""
    lines = printable(_COLOURS.sub("", bounded(reason)), lines=True).split("\n")
    return "\n".join([HEADING, *(f"> {line}".rstrip() for line in lines)])


def findings_differ(findings: str, before: str) -> bool:
    """Return whether there are *findings*, and they are not the same as the findings *before*: times, ids and
    directories do not count."""
    return bool(findings) and _essence(findings) != _essence(before)


def _essence(findings: str) -> str:
    for pattern, name in _VARIES:
        findings = pattern.sub(name, findings)
    return findings.strip()


def executes_prompt(command: Sequence[str], placeholder: str = "{prompt}") -> bool:
    """Return whether an interpreter executes the prompt of this *command* as a program: ``sh -c {prompt}``, or a bare
    ``python3`` that reads its standard input. A script that takes the prompt as an argument, or reads the prompt, does
    not count: ``sh agent.sh``, ``sh -c 'exec agent "$1"' sh {prompt}``."""
    names = [PurePath(word).name for word in command]
    at = next((number for number, word in enumerate(command) if placeholder in word), len(command))
    first = next((number for number, name in enumerate(names[:at]) if _INTERPRETERS.fullmatch(name)), None)
    if first is None:
        return "ssh" in names[:at] and at < len(command)
    between = command[first + 1 : at]
    if at == len(command):
        return all(word.startswith("-") for word in between)
    has_script = "-m" in between or any("." in word or "/" in word for word in between if not word.startswith("-"))
    return not has_script and bool(between) and _TAKES_PROGRAM.fullmatch(between[-1]) is not None
