"""Schedules: the instants of a cron expression in a time zone, or of an interval, and which of them start a run. Pure.

Theory of operation
-------------------
An *occurrence* is a UTC instant. Those of a trigger are decided in order, and ``decided_s`` is the last decided one: so
no instant is decided twice, also not by another daemon in a repeated hour, or after the clock was set back.

Cron has the rules of Debian's cron, by ``cronsim``:

* An expression that names hour and minute is local time. A time in the gap of daylight saving time fires once, at the
  first instant after the gap; several in one gap fire once together. A time in the fold fires at its first occurrence.
* An expression whose minute or hour begins with ``*`` follows the time that elapses: it fires in both passes of a
  repeated hour, and not in a gap.

An interval has no local time: its occurrences are ``every_s`` seconds apart, from the start of the trigger on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from supervisor.lifecycles.trigger import QUEUE_MAX

LATE_S: Final = 60.0
"""Seconds after which an occurrence that was not decided counts as missed."""
LOOK_BACK_S: Final = 7 * 86_400.0
"""Seconds after which a missed occurrence is no longer looked at."""
MISSED_MAX: Final = QUEUE_MAX + 1
"""Largest number of missed occurrences that are decided one by one: a run for one, and the others wait."""
_FIELDS: Final = 5


class Missed(StrEnum):
    """Treatment of the occurrences that passed while no daemon ran: no run, one run for all, or a run for each of the
    newest."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Schedule(NamedTuple):
    """Schedule: either *cron* in the time zone *zone*, or every *every_s* seconds (0: cron)."""

    cron: str
    zone: ZoneInfo
    every_s: int = 0

    def after(self, at: float) -> Iterator[float]:
        """Yield the occurrences after the Unix time *at*, in order."""
        if self.every_s:
            while True:
                at += self.every_s
                yield at
        for local in CronSim(self.cron, datetime.fromtimestamp(at, self.zone)):
            # The first pass of a repeated hour comes again if *at* lies in the second one.
            if (found := local.timestamp()) > at:
                at = found
                yield at


class Skipped(NamedTuple):
    """Occurrences that start no run, since they were missed: their number, the first and the last one."""

    number: int
    first: float
    last: float


class Due(NamedTuple):
    """Decision about the occurrences up to now: those that start a run, and, before them, those that start none
    (``None``: there are none)."""

    starts: tuple[float, ...]
    skipped: Skipped | None


def find_due(schedule: Schedule, missed: Missed, decided_s: float, now: float) -> Due:
    """Decide about the occurrences after *decided_s* up to *now*. Of those that were missed the newest are kept, also
    for ``all`` not more than one run and its queue can take."""
    kept_max = {Missed.SKIP: 0, Missed.ONCE: 1, Missed.ALL: MISSED_MAX}[missed]
    late, starts = deque[float](), list[float]()
    skipped = None
    for at in schedule.after(max(decided_s, now - LOOK_BACK_S)):
        if at > now:
            break
        if now - at <= LATE_S:
            starts.append(at)
            continue
        late.append(at)
        if len(late) > kept_max:
            last = late.popleft()
            skipped = Skipped(1, last, last) if skipped is None else Skipped(skipped.number + 1, skipped.first, last)
    return Due((*late, *starts), skipped)


def occurrence_id(at: float) -> str:
    """Return the id of the occurrence at the Unix time *at*: its instant in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def local_text(at: float, schedule: Schedule) -> str:
    """Return the local time of an occurrence, with its offset."""
    return datetime.fromtimestamp(at, schedule.zone).isoformat(sep=" ", timespec="seconds")


def read_zone(name: str) -> ZoneInfo:
    """Return the time zone *name*.

    Raises:
        ValueError: there is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone; give a name such as Europe/Berlin or UTC") from None


def check_cron(expression: str, zone: ZoneInfo, now: float) -> None:
    """Check a cron expression.

    Raises:
        ValueError: the expression has not five fields, a field is wrong, or it never fires.
    """
    fields = expression.split()
    if len(fields) != _FIELDS:
        fix = "give five, minute hour day-of-month month day-of-week, such as '30 6 * * 1-5'; there are no seconds"
        raise ValueError(f"{expression!r} has {len(fields)} field{'s' * (len(fields) != 1)}; {fix}")
    try:
        first = next(Schedule(expression, zone).after(now), None)
    except (CronSimError, ValueError, IndexError) as error:
        fix = "minutes are 0 to 59, hours 0 to 23, days 1 to 31, months 1 to 12 or JAN, weekdays 0 to 7 or SUN"
        raise ValueError(f"{expression!r} is no cron expression ({str(error).lower()}); {fix}") from None
    if first is None:
        raise ValueError(f"{expression!r} never fires; give a day that the month has")
