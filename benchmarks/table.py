"""Table of the benchmarks: measures cases, and prints the rows of each case when it is done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks import ends, hostile, lives, machine, messages, report
from benchmarks.harness import FULL, SHORT, Case, Sizes, measure, options


class Rounds(Protocol):
    """Sizes of a benchmark's measurements, with the number of times that each is made."""

    @property
    def rounds(self) -> int: ...


Effort = TypeVar("Effort", bound=Rounds)
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


def show_beside_checkout(
    about: str | None,
    make_cases: Callable[[Effort, Path | None, Path | None], list[Case]],
    full: Effort,
    short: Effort,
    arguments: Sequence[str] | None,
) -> None:
    """Measure the cases of a benchmark that can compare two checkouts, as its command line says, and print the table.

    Args:
        about: the description of the command.
        make_cases: makes the cases of an effort, on the disk of a folder, beside another checkout; ``None``: on the
            usual disk, beside bare counterparts.
        full: the effort of a measurement with aims.
        short: the effort that only shows that everything runs.
        arguments: the words of the command line; ``None``: those of this process.
    """
    parser = options(about, folder=True)
    parser.add_argument("--against", type=Path, help="directory of another checkout to compare with")
    parser.add_argument("--only", default="", help="only the cases with this in a row's name")
    parser.add_argument("--rounds", type=int, default=full.rounds, help="repetitions of each measurement")
    args = parser.parse_args(arguments)
    if args.against is not None and not (args.against / "supervisor" / "__init__.py").is_file():
        parser.error(f"--against: {args.against} is no checkout; give the directory that contains supervisor/")
    against = None if args.against is None else args.against.resolve()
    cases = make_cases(short if args.short else full, args.folder, against)
    cases = [one for one in cases if any(args.only in line.what for line in one.lines)]
    rounds = short.rounds if args.short else args.rounds
    if args.short:
        print("The short form: smallest sizes, once; no aims.")
    show([one.without_aims() if args.short else one for one in cases], FULL._replace(rounds=rounds))


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
