"""Table of the benchmarks: measures cases, and prints the rows of each case when it is done."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from benchmarks import ends, hostile, lives, machine, messages, report
from benchmarks.harness import FULL, SHORT, Case, Sizes, measure, options

CASES: tuple[Case, ...] = (*messages.CASES, *lives.CASES, *ends.CASES, *machine.CASES, *hostile.CASES)


def show(cases: Sequence[Case], sizes: Sizes) -> None:
    """Run every case and print its rows."""
    since, missing = time.perf_counter(), dict[str, None]()
    print(report.heading(), flush=True)
    for case in cases:
        found, lacks = measure(case, sizes)
        if lacks:
            missing[lacks] = None
        for row in report.rows(case, found, lacks):
            print(row, flush=True)
    for note in report.footnotes(missing):
        print(note)
    print(f"{time.perf_counter() - since:.0f} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases that the options name, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="repetitions of each measurement")
    parser.add_argument("--only", default="", help="only the cases with this in a row's name, or in what it is against")
    args = parser.parse_args(arguments)
    cases = [one for one in CASES if _wanted(one, args.only)]
    if args.short:
        print("The short form: smallest sizes, whatever numbers the rows name; once; no aims.")
        show([one.without_aims() for one in cases], SHORT)
    else:
        show(cases, FULL._replace(rounds=args.rounds))


def _wanted(case: Case, only: str) -> bool:
    return any(only in name for name in (case.against, *(line.what for line in case.lines)))
