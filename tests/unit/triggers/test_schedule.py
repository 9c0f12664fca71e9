"""Occurrences of schedules over the nights of daylight saving time, and those that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise

import pytest

from supervisor.triggers.schedule import (
    LATE_S,
    MISSED_MAX,
    Missed,
    Schedule,
    Skipped,
    check_cron,
    find_due,
    local_text,
    occurrence_id,
    read_zone,
)

HOUR_S = 3600.0
NOW = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def at(text: str) -> float:
    """Return the Unix time of an instant in UTC, such as ``2026-03-28 12:00``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next occurrences after an instant in UTC as local times with their offsets."""
    schedule = Schedule(cron, read_zone(zone))
    return [local_text(one, schedule) for one in islice(schedule.after(at(after)), count)]


# Spring: the clock goes from 02:00 to 03:00 (Lord Howe: to 02:30). Autumn: from 03:00 to 02:00 (New York: from 02:00 to
# 01:00; Lord Howe: from 02:00 to 01:30).
SPRING = [
    ("Europe/Berlin", "30 2 * * *", "2026-03-28 12:00", ["2026-03-29 03:00:00+02:00", "2026-03-30 02:30:00+02:00"]),
    ("America/New_York", "30 2 * * *", "2026-03-07 12:00", ["2026-03-08 03:00:00-04:00", "2026-03-09 02:30:00-04:00"]),
    (
        "Australia/Lord_Howe", "15 2 * * *", "2026-10-03 06:00",
        ["2026-10-04 02:30:00+11:00", "2026-10-05 02:15:00+11:00"],
    ),
]  # fmt: skip
AUTUMN = [
    ("Europe/Berlin", "30 2 * * *", "2026-10-24 12:00", ["2026-10-25 02:30:00+02:00", "2026-10-26 02:30:00+01:00"]),
    ("America/New_York", "30 1 * * *", "2026-10-31 12:00", ["2026-11-01 01:30:00-04:00", "2026-11-02 01:30:00-05:00"]),
    (
        "Australia/Lord_Howe", "45 1 * * *", "2026-04-04 06:00",
        ["2026-04-05 01:45:00+11:00", "2026-04-06 01:45:00+10:30"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "cron", "after", "expected"), [*SPRING, *AUTUMN])
def test_daily_jobs_over_both_nights(zone: str, cron: str, after: str, expected: list[str]) -> None:
    """A time in the gap fires once, at the first instant after it; a time in the fold once, at its first occurrence."""
    assert times(cron, zone, after, 2) == expected


def test_several_times_in_one_gap_fire_once() -> None:
    """Times that all lie in the gap are one occurrence, since they have one instant."""
    assert times("0,20,40 2 * * *", "Europe/Berlin", "2026-03-28 12:00", 2) == [
        "2026-03-29 03:00:00+02:00", "2026-03-30 02:00:00+02:00"
    ]  # fmt: skip
    assert times("30 2,3 * * *", "Europe/Berlin", "2026-03-28 12:00", 2) == [
        "2026-03-29 03:00:00+02:00", "2026-03-29 03:30:00+02:00"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("zone", "begin", "end"),
    [
        ("Europe/Berlin", "2026-03-28 22:00", "2026-03-29 06:00"),
        ("Europe/Berlin", "2026-10-24 22:00", "2026-10-25 06:00"),
        ("America/New_York", "2026-03-08 02:00", "2026-03-08 12:00"),
        ("America/New_York", "2026-11-01 02:00", "2026-11-01 12:00"),
        ("Australia/Lord_Howe", "2026-10-03 12:00", "2026-10-03 20:00"),
        ("Australia/Lord_Howe", "2026-04-04 12:00", "2026-04-04 20:00"),
    ],
)
def test_elapsed_time_over_both_nights(zone: str, begin: str, end: str) -> None:
    """An interval, and an expression with ``*/15``, fire every 15 minutes of elapsed time, also in a repeated hour."""
    for schedule in (Schedule("*/15 * * * *", read_zone(zone)), Schedule("", read_zone("UTC"), 900)):
        found = [one for one in islice(schedule.after(at(begin)), 60) if one <= at(end)]
        steps = {second - first for first, second in pairwise(found)}
        assert (len(found), steps) == ((at(end) - at(begin)) / 900, {900.0})


def test_a_restart_in_the_repeated_hour_fires_nothing_again() -> None:
    """An occurrence that was decided in the first pass does not come again, wherever in the second one a daemon
    starts."""
    for minute in range(60):
        now = at(f"2026-10-25 01:{minute:02}")  # the second pass: 02:00 to 02:59 with +01:00
        schedule = Schedule("30 2 * * *", read_zone("Europe/Berlin"))
        assert occurrence_id(next(schedule.after(now))) == "2026-10-26T01:30:00Z"


def test_no_occurrence_comes_twice_in_a_year() -> None:
    """Over a year the instants of each kind of expression rise, from whatever instant they are asked for."""
    for zone in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"):
        for cron in ("30 2 * * *", "45 1 * * *", "45 * * * *", "0 */2 * * *"):
            schedule = Schedule(cron, read_zone(zone))
            found = [one for one in islice(schedule.after(NOW), 9000) if one < NOW + 366 * 24 * HOUR_S]
            assert all(first < second for first, second in pairwise(found))
            for start in range(0, 366 * 24, 173):
                moment = NOW + start * HOUR_S + 1800
                following = next((one for one in found if one > moment), None)
                assert following is None or next(schedule.after(moment)) == following


@pytest.mark.parametrize(
    ("missed", "starts", "skipped"), [(Missed.SKIP, 0, 3), (Missed.ONCE, 1, 2), (Missed.ALL, 3, 0)]
)
def test_missed_occurrences(missed: Missed, starts: int, skipped: int) -> None:
    """Of three occurrences that are late none, the last or each starts a run; one that is on time starts one too."""
    schedule, begin = Schedule("0 * * * *", read_zone("UTC")), at("2026-01-01 00:30")
    due = find_due(schedule, missed, begin, at("2026-01-01 03:30"))
    first = at("2026-01-01 01:00")
    expected = Skipped(skipped, first, first + (skipped - 1) * HOUR_S) if skipped else None
    assert (len(due.starts), due.skipped) == (starts, expected)
    assert due.starts[-1:] in ((), (at("2026-01-01 03:00"),))
    due = find_due(schedule, missed, begin, at("2026-01-01 04:00") + LATE_S)
    assert (len(due.starts), due.skipped) == (starts + 1, expected)


def test_a_long_absence_is_bounded() -> None:
    """After a year only the occurrences of the last seven days are looked at."""
    due = find_due(Schedule("", read_zone("UTC"), 3600), Missed.SKIP, NOW, NOW + 365 * 86_400)
    assert due.skipped is not None
    assert due.skipped.number == 7 * 24 - 1


def test_missed_occurrences_are_bounded() -> None:
    """Of a week of an interval of ten seconds, ``all`` keeps as many as one run and its queue can take, the newest;
    the number of the others, and the first and the last of them, are known."""
    week_s = 7 * 86_400
    due = find_due(Schedule("", read_zone("UTC"), 10), Missed.ALL, NOW, NOW + week_s)
    late = [at for at in due.starts if at < NOW + week_s - LATE_S]
    assert (len(late), late[-1]) == (MISSED_MAX, NOW + week_s - LATE_S - 10)
    assert due.skipped == Skipped(week_s // 10 - 7 - MISSED_MAX, NOW + 10, late[0] - 10)


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        ("* * * * * *", "has 6 fields; give five"),
        ("@daily", "has 1 field; give five"),
        ("61 * * * *", "bad minute"),
        ("* * * * MON-SUN", "bad day-of-week"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("", "has 0 fields"),
    ],
)
def test_bad_expressions(cron: str, message: str) -> None:
    """An expression with six fields or a wrong field is refused with the fix."""
    with pytest.raises(ValueError, match=message):
        check_cron(cron, read_zone("UTC"), NOW)


def test_weekdays_have_one_meaning() -> None:
    """``MON#1`` is the first Monday of a month, 0 and 7 are Sunday; a day of the month and a weekday mean either."""
    assert [one[:10] for one in times("0 0 * * MON#1", "UTC", "2026-01-01 12:00", 3)] == [
        "2026-01-05", "2026-02-02", "2026-03-02"
    ]  # fmt: skip
    sundays = ["2026-01-04", "2026-01-11"]
    assert [one[:10] for one in times("0 0 * * 0", "UTC", "2026-01-01 12:00", 2)] == sundays
    assert [one[:10] for one in times("0 0 * * 7", "UTC", "2026-01-01 12:00", 2)] == sundays
    assert [one[:10] for one in times("0 0 2 * SUN", "UTC", "2026-01-01 12:00", 2)] == ["2026-01-02", "2026-01-04"]


def test_unknown_zones() -> None:
    """A name that is no time zone is refused, also one that is a path."""
    for name in ("Europe/Berli", "../etc/passwd", "", "/etc/localtime"):
        with pytest.raises(ValueError, match="is no time zone; give a name"):
            read_zone(name)
