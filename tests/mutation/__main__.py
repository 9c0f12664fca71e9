"""Record which mutants of a sample are killed (a test fails), and verify later that they still are.

``record`` draws a sample if there is no record yet, tries each mutant that has no verdict, and fails if the share of
killed mutants is below ``--at-least``. ``verify`` tries again the mutants that the record lists as killed and whose
code has not changed, and fails if too many of them survive. Either command continues when it is interrupted and started
again.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from .changes import BUILD
from .reach import files_of
from .record import Verdict, draw, package_of, rates, read, write
from .trials import try_all

SURVIVORS_MAX = 9
SURVIVORS_IN_A_PACKAGE_MAX = 2
GUARD = Path(__file__).with_name("guard.tsv")


def main() -> int:
    options = _parsed()
    path: Path = options.record
    if not path.exists():
        write(path, draw(options.package, options.count, options.seed))
    verdicts, before = read(path), {}
    if options.command == "verify":
        before = {key: one for key, one in verdicts.items() if one.word == "killed"}
        path = BUILD / f"verify-{path.name}"
        kept = read(path) if path.exists() else {}
        verdicts = {key: kept.get(key, Verdict()) for key in before}
    try_all(path, verdicts, files_of(options.tests), options.jobs, {key: one.killer for key, one in before.items()})

    survivors = [key for key, one in verdicts.items() if one.word == "survived"]
    print("\n".join(f"survived: {key}" for key in survivors))
    print(rates(verdicts))
    if options.command == "verify":
        most = max(Counter(map(package_of, survivors)).values(), default=0)
        return 0 if len(survivors) <= SURVIVORS_MAX and most <= SURVIVORS_IN_A_PACKAGE_MAX else 1
    killed = sum(one.word == "killed" for one in verdicts.values())
    return 0 if killed >= options.at_least * (killed + len(survivors)) else 1


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("record", "verify"))
    parser.add_argument("--seed", type=int, default=34, help="of the sample (34)")
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--package", default="", help="only mutants of this package, such as policies")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE", help="of these must be killed (0)")
    parser.add_argument("--tests", nargs="*", default=[], metavar="PATH", help="only tests of these files or folders")
    parser.add_argument("--jobs", type=int, default=2, help="scratch copies at a time (2)")
    parser.add_argument("--record", type=Path, help="the file; of all packages tests/mutation/guard.tsv")
    options = parser.parse_args()
    name = f"{options.package}-{options.seed}-{options.count}.tsv"
    options.record = options.record or (BUILD / name if options.package else GUARD)
    return options


if __name__ == "__main__":
    sys.exit(main())
