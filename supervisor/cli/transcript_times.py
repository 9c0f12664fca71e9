"""Times of the lines of transcripts, and points in time that a user gives. Pure.

A line of a transcript has the time of day in UTC, and no date. The date of the last line is known from the last write;
the lines before are dated backwards from there, so that the newest lines have the right date also where an agent was
silent for more than a day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

TRANSCRIPT_LINE: Final = re.compile(r"(?P<timestamp>\d\d:\d\d:\d\d\.\d{3}) (?P<source>\w+)\| (?P<text>.*)")
"""Pattern of a line of a transcript; the time of day is UTC. Other lines are notes of the transcript itself."""
_DAY_S: Final = 86_400.0
_STEP_BACK_MAX_S: Final = 3_600.0
"""Largest number of seconds by which the wall clock may have been set back between two lines."""
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": _DAY_S}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(:\d\d)?")


def line_times(lines: Sequence[str], last_at: float) -> list[float]:
    """Return the Unix time of each line of a transcript.

    Args:
        lines: the lines, in their order. A line without a time has the time of the line before.
        last_at: the Unix time of the last write.
    """
    found: list[float | None] = []
    next_at = last_at
    for line in reversed(lines):
        said = TRANSCRIPT_LINE.fullmatch(line)
        if said is not None:
            next_at = _latest_before(said["timestamp"], next_at + _STEP_BACK_MAX_S)
        found.append(next_at if said is not None else None)
    times: list[float] = []
    before = next_at
    for at in reversed(found):
        before = before if at is None else at
        times.append(before)
    return times


def _latest_before(time_of_day: str, limit: float) -> float:
    """Return the latest Unix time with that time of day in UTC that is not after *limit*."""
    hours, minutes, seconds = time_of_day.split(":")
    of_day_s = int(hours) * 3_600 + int(minutes) * 60 + float(seconds)
    return limit - (limit - of_day_s) % _DAY_S


def read_since(text: str, now: float) -> float:
    """Return the Unix time that a user means by *text*: a duration before *now* (``10m``), a local time of day
    (``14:30``), today or yesterday, or a date and time as in ISO 8601 (``2026-03-01T14:30``).

    Raises:
        ValueError: *text* is none of these.
    """
    parts = _DURATION.findall(text)
    if parts and "".join(f"{number}{unit}" for number, unit in parts) == text:
        return now - sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if _CLOCK.fullmatch(text):
        hour, minute, second = (int(one) for one in f"{text}:00".split(":")[:3])
        today = datetime.fromtimestamp(now).astimezone()
        at = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (at if at <= today else at - timedelta(days=1)).timestamp()
    return datetime.fromisoformat(text).astimezone().timestamp()
