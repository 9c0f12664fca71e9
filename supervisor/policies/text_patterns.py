"""Patterns of texts: ``*`` stands for any text, every other character for itself. A comparison takes linear time.

``find_report`` finds the last words by which an agent reports that its model has failed, in place of an error of its
protocol. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from string import ascii_letters
from typing import Final, NamedTuple

END_CHARS: Final = 8192
"""Number of characters at the end of an agent's text that are searched for a report."""
BEGINNINGS_MAX: Final = 64
"""Number of places, from the end of the text backwards, at which a report may begin."""


_WITHIN: Final = " `'\"“‘„«([*_"
"""Characters directly before words that are a part of a sentence, or quoted in it."""
_NAME_CHARS: Final = 64
"""Number of characters before a word that are searched for the beginning of a name."""


class ReportPattern(NamedTuple):
    """Pattern of a report, from its first word to the end of the agent's text; the text is no report if it matches one
    of the patterns *unless*. The pattern begins with the literal text that a report begins with."""

    pattern: str
    unless: Sequence[str] = ()


COMMON: Final = ReportPattern("[API Error: *]")
"""Report that several agents give."""


def matches(text: str, pattern: str) -> bool:
    """Return whether *text* as a whole matches *pattern*."""
    head, *parts = pattern.split("*")
    if not parts:
        return text == head
    *middle, tail = parts
    if len(text) < len(head) + len(tail) or not (text.startswith(head) and text.endswith(tail)):
        return False
    at, end = len(head), len(text) - len(tail)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def find_report(text: str, patterns: Iterable[ReportPattern]) -> str:
    """Return the report of a failed model, in one of *patterns*, with which an agent's *text* ends; ``""`` if it ends
    with none. White space counts as one space, since a terminal program breaks its lines where it likes.

    A report begins a line. If the agent's text before it came in another message, the report may also follow that text
    directly, without a space. Every other beginning is a part of a sentence of the agent.
    """
    lines = [words for line in text[-END_CHARS:].splitlines() if (words := " ".join(line.split()))]
    end, line_starts = " ".join(lines), {0, *accumulate(len(line) + 1 for line in lines)}
    for pattern in patterns:
        head = pattern.pattern.partition("*")[0]
        at, tries = end.rfind(head), BEGINNINGS_MAX
        while at >= 0 and tries:
            said = end[at:]
            begins = at in line_starts or not _is_within(end[max(at - _NAME_CHARS, 0) : at], head)
            if begins and matches(said, pattern.pattern) and not any(matches(said, one) for one in pattern.unless):
                return said
            at, tries = end.rfind(head, 0, at), tries - 1
    return ""


def _is_within(before: str, head: str) -> bool:
    """Return whether *head*, directly after the text *before*, is a part of a sentence, or of a name such as
    ``HTTPError``."""
    name = before[len(before.rstrip(ascii_letters)) :] if head[0].isalpha() else ""
    return before[-1] in _WITHIN or (name != "" and not name.islower())
