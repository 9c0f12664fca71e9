"""Measures cases and prints the table as it goes, a row when its case is done."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from benchmarks import report
from benchmarks.harness import FULL, Case, Sizes, measure

__all__ = ["main", "show"]


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


def main(cases: Sequence[Case]) -> None:
    """The command line: how many rounds, and which rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="repetitions of each measurement")
    parser.add_argument("--only", default="", help="only the cases with this in a row's name, or in what it is against")
    args = parser.parse_args()
    show([one for one in cases if _wanted(one, args.only)], FULL._replace(rounds=args.rounds))


def _wanted(case: Case, only: str) -> bool:
    return any(only in name for name in (case.against, *(line.what for line in case.lines)))
