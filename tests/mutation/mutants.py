"""Mutants of the pure modules, and which of them the suite kills. Run it with ``make mutants``.

A seeded sample of the mutants (``specimens.py``) is tried, each in a process of its own, against the tests of its
module (``targets.py``), until the first failure. Each is told as it comes, those that survive with their change; fewer
than ``KILLED_MIN`` killed is exit status 1. Ctrl-C, or ``--minutes``, ends it with the totals so far.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from equivalents import reason
from specimens import ROOT, Mutant, draw
from targets import ALWAYS, TESTS
from transplant import Mutated
from trials import Tally, confine, each, stop_at, warm

SEED = 20261121
SAMPLE = 250
KILLED_MIN = 0.90
CPU_S = 5.0
"""A mutant that computes for this much longer than thrice what the original takes has made something endless."""
WALL_S = 120
"""And one that waits for this long waits for ever."""


# ------------------------------------------------------------------------------------------------------- the trial
class Trial(NamedTuple):
    """A module, or a mutant of it, that the tests of the module are run against."""

    module: str
    mutant: Mutant | None
    cpu_s: float


def suffer(trial: Trial, say: int) -> int:
    """In a process of its own: run the tests; 0 means that nothing was noticed."""
    confine(WALL_S)
    resource.setrlimit(resource.RLIMIT_CPU, (int(trial.cpu_s), int(trial.cpu_s) + 1))
    if trial.mutant is not None:
        sys.meta_path.insert(0, Mutated(trial.mutant))
    return tested(trial)


def tested(trial: Trial) -> int:
    """What pytest says of the tests of that module."""
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
    own = [one.format(module=trial.module) for one in ALWAYS]
    asked = [name if name[0] == "-" else f"{ROOT}/tests/{name}" for name in (*TESTS[trial.module], *own)]
    ignored = "ignore::pytest.PytestAssertRewriteWarning"
    return int(pytest.main(["-x", "-q", "-W", ignored, "-p", "no:cacheprovider", "--rootdir", str(ROOT), *asked]))


# -------------------------------------------------------------------------------------------------- before and after
def originals(modules: Sequence[str], jobs: int) -> tuple[dict[str, float], list[str]]:
    """How long each module's tests compute without a mutant, and for which of them they fail."""
    spent_s: dict[str, float] = {}
    broken: list[str] = []
    for one in each([Trial(one, None, WALL_S) for one in modules], suffer, jobs):
        spent_s[one.trial.module] = one.cpu_s
        broken += [one.trial.module] * (one.outcome == "killed")
    return spent_s, broken


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"how many mutants ({SAMPLE})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="stop after so long, with the totals so far")
    parser.add_argument("--module", action="append", choices=sorted(TESTS), help="only of this module")
    options = parser.parse_args()
    options.module = options.module or sorted(TESTS)
    return options


def main() -> int:
    options = parsed()
    started = time.monotonic()
    warm()
    original_s, broken = originals(options.module, options.jobs)
    if broken:
        print(f"the tests fail without any mutant for {', '.join(broken)}; mend them first")
        return 1
    mutants = draw(options.module, options.sample, options.seed, options.jobs)
    trials = [Trial(one.module, one, CPU_S + 3 * original_s[one.module]) for one in mutants]
    tally = Tally(len(trials))
    try:
        stop_at(options.minutes)
        for one in each(trials, suffer, options.jobs):
            mutant = one.trial.mutant
            assert mutant is not None, "an original is no mutant"
            tally.take(mutant, one, reason(mutant) or "")
    except KeyboardInterrupt:
        print(f"interrupted: {len(trials) - tally.tried} of {len(trials)} mutants were not tried")
    print(
        f"{tally.tried} mutants of {len(options.module)} modules (seed {options.seed}): {tally.share:.1%} killed, "
        f"{tally.outcomes['survived']} survived, {tally.outcomes['equivalent']} equivalent; without these "
        f"{tally.told_share:.1%}, in {time.monotonic() - started:.0f} s"
    )
    return 0 if tally.told_share >= KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
