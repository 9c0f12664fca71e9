"""Patterns of texts: ``*`` stands for any text, every other character for itself. A comparison takes linear time.

``find_report`` finds the last words by which an agent reports that its model has failed, in place of an error of its
protocol. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

END_CHARS: Final = 8192
"""Number of characters at the end of an agent's text that are searched for a report."""
BEGINNINGS_MAX: Final = 64
"""Number of places, from the end of the text backwards, at which a report may begin."""


class ReportPattern(NamedTuple):
    """Pattern of a report, from its first word to the end of the agent's text; the text is no report if it matches one
    of the patterns *unless*. The pattern begins with the literal text that a report begins with."""

    words: str
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
    with none. White space counts as one space, since a terminal program breaks its lines where it likes."""
    end = " ".join(text[-END_CHARS:].split())
    for pattern in patterns:
        head = pattern.words.partition("*")[0]
        at, tries = end.rfind(head), BEGINNINGS_MAX
        while at >= 0 and tries:
            said = end[at:]
            if matches(said, pattern.words) and not any(matches(said, one) for one in pattern.unless):
                return said
            at, tries = end.rfind(head, 0, at), tries - 1
    return ""
