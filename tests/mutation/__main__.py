"""Draw a sample of mutants, record which of them are killed, and verify later that they still are.

``draw`` and ``record`` make the record of a sample; ``verify`` tries again those that it calls killed and whose code is
still there, and fails if too many of them survive; ``rate`` tries a new sample of one package. A record, or a trial of
it, that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from .changes import BUILD, Key
from .reach import files_of
from .record import GUARD, Verdict, draw, package_of, rates, read, write
from .trials import try_all

SURVIVORS_MAX = 9
SURVIVORS_IN_A_PACKAGE_MAX = 2
KILLED_MIN = 0.90


def main() -> int:
    options = _parsed()
    files = files_of(options.tests)
    if options.command == "draw":
        write(options.record, draw(options.package, options.count, options.seed))
        return 0
    if options.command == "record":
        verdicts = read(options.record)
        try_all(options.record, verdicts, files, options.jobs)
        print(rates(verdicts.items()))
        return 0
    if options.command == "rate":
        return _rate(options, files)
    return _verify(options, files)


def _rate(options: argparse.Namespace, files: list[str]) -> int:
    path = BUILD / f"{options.package or 'all'}-{options.seed}-{options.count}.tsv"
    verdicts = read(path) if path.exists() else draw(options.package, options.count, options.seed)
    try_all(path, verdicts, files, options.jobs)
    _tell_survivors(verdicts)
    print(rates(verdicts.items()))
    count = Counter(one.word for one in verdicts.values())
    return 0 if count["killed"] >= KILLED_MIN * (count["killed"] + count["survived"]) else 1


def _verify(options: argparse.Namespace, files: list[str]) -> int:
    before = {key: one for key, one in read(options.record).items() if one.word == "killed"}
    path = BUILD / f"verify-{options.record.name}"
    kept = read(path) if path.exists() and options.resume else {}
    verdicts = {key: kept.get(key, Verdict()) for key in before}
    try_all(path, verdicts, files, options.jobs, {key: one.killer for key, one in before.items()})
    survivors = _tell_survivors(verdicts)
    print(rates(verdicts.items()))
    packages = Counter(package_of(key.module) for key in survivors)
    few = len(survivors) <= SURVIVORS_MAX and max(packages.values(), default=0) <= SURVIVORS_IN_A_PACKAGE_MAX
    return 0 if few else 1


def _tell_survivors(verdicts: dict[Key, Verdict]) -> list[Key]:
    survivors = [key for key, one in verdicts.items() if one.word == "survived"]
    for key in survivors:
        print(f"survived: {key.module}:{key.unit} {key.kind} {key.ordinal}")
    return survivors


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("draw", "record", "verify", "rate"))
    parser.add_argument("--seed", type=int, default=34, help="of the sample (34)")
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--package", default="", help="only mutants of this package, such as policies")
    parser.add_argument("--tests", nargs="*", default=[], metavar="PATH", help="only tests of these files or folders")
    parser.add_argument("--jobs", type=int, default=2, help="scratch copies at a time (2)")
    parser.add_argument("--record", type=Path, default=GUARD, help="the file (tests/mutation/guard.tsv)")
    parser.add_argument("--resume", action="store_true", help="verify: keep the verdicts of a run that was interrupted")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
