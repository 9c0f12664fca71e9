"""Mutants of the runtime, and which of them simulation alone kills. Run it with ``make mutants-simulation``.

A seeded sample of the mutants (``specimens.py``) of what a supervisor is made of (``soak.py``) is tried, each in a fork
of its own of a program that has imported everything (``transplant.py``), on those runs of the soak that come by what it
changes, the cheapest first (``reach.py``), until the first violation. Only the oracle may kill: by a violation, because
a run breaks, or because it comes to no end; never a digest. A mutant that no run comes by is called so, and survives.

Two rates are told: of all mutants, and of those that ``equivalents.toml`` does not name as the same program in other
words, each with its reason. Fewer than ``KILLED_MIN`` of the latter are exit status 1.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from equivalents import reason
from reach import Reach, chosen, file_of, keep, kept
from soak import RUNS, SIMULATED, Run, play
from specimens import Mutant, draw, lines_of, make
from transplant import Mutated, Population, forget, population, transplanted
from trials import NEVER_ENTERED, Tally, confine, each, stop_at, warm

SEED = 20261122
SAMPLE = 200
KILLED_MIN = 0.90
SOAK_S = 40.0
"""What the runs may compute, all in all, that a mutant is tried on."""
CPU_S = 5.0
"""A run that computes for this much longer than four times what the original takes has become endless."""
WALL_S = 1200
WORDS_MAX = 200
"""Characters of what a mutant is killed by."""


class Trial(NamedTuple):
    """A mutant, and the runs that come by it. *imported*: so do the imports."""

    mutant: Mutant
    runs: Sequence[Reach]
    imported: bool


# ------------------------------------------------------------------------------------------------------- the trial
def suffer(trial: Trial, say: int, alive: Population) -> int:
    """In a process of its own: put the mutant in, and run it until it is noticed; 0 means that it never was."""
    confine(WALL_S)
    limit(30.0)
    where = "its import"
    try:
        if trial.imported or not transplanted(trial.mutant, alive):
            forget()
            sys.meta_path.insert(0, Mutated(trial.mutant))
            importlib.import_module(trial.mutant.module)
        listen(say)
        for one in trial.runs:
            assert one.run is not None, "the imports are no run"
            where = str(one.run)
            limit(CPU_S + 4 * one.cpu_s)
            if problems := play(one.run):
                noticed(say, f"{where}: {problems[0]}")
    except BaseException as error:
        noticed(say, f"{where}: {type(error).__name__}: {error}")
    return 0 if trial.runs else NEVER_ENTERED


def limit(cpu_s: float) -> None:
    """Compute for no longer than that from now on."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + cpu_s) + 1, resource.RLIM_INFINITY))


def listen(say: int) -> None:
    """The first violation is enough: nobody waits for the end of its run."""
    trace = importlib.import_module("supervisor.simulation.trace").Trace
    note = trace.note

    def heard(self: object, line: str) -> None:
        if line.startswith("VIOLATION "):
            noticed(say, line.removeprefix("VIOLATION "))
        note(self, line)

    trace.note = heard


def noticed(say: int, words: str) -> NoReturn:
    os.write(say, words[:WORDS_MAX].encode(errors="replace"))
    os._exit(1)


def note_reach(run: Run | None, say: int) -> int:
    """In a process of its own: where that run comes by."""
    confine(WALL_S)
    try:
        keep(run)
    except Exception as error:
        noticed(say, f"{type(error).__name__}: {error}")
    return 0


# -------------------------------------------------------------------------------------------------- before and after
def reached(jobs: int) -> list[Reach]:
    """What every run reaches, the imports first; reckoned anew where the sources, or the scenarios, have changed."""
    wanted = (None, *RUNS)
    missing = [one for one in wanted if not file_of(one).exists()]
    for number, one in enumerate(each(missing, note_reach, jobs), 1):
        print(f"reckoned {number}/{len(missing)}: {one.trial} ({one.cpu_s:.1f} s)", file=sys.stderr, flush=True)
        if one.outcome == "killed":
            sys.exit(f"where {one.trial} comes by could not be reckoned: {one.words}")
    return [kept(one) for one in wanted]


def sampled(options: argparse.Namespace) -> list[Mutant]:
    return draw(options.module, options.sample, options.seed, options.jobs, audible=True)


def named(names: Sequence[str]) -> list[Mutant]:
    """Those that were told by these names, wherever a sample had them from."""
    told = [one.replace("#", "").split() for one in names]
    made = [make((module, f"core/{operator}", int(number)), audible=True) for module, operator, number in told]
    return [one for one in made if one is not None]


def broken(runs: Sequence[Run], jobs: int) -> list[str]:
    """The runs in which something is violated without any mutant, and what."""
    return [f"{one.trial}: {one.words}" for one in each(runs, sound, jobs) if one.outcome == "killed"]


def sound(run: Run, say: int) -> int:
    """In a process of its own: a run without a mutant; 0 means that it is clean."""
    confine(WALL_S)
    problems = play(run)
    return noticed(say, problems[0]) if problems else 0


def trial_of(mutant: Mutant, reaches: Sequence[Reach]) -> Trial:
    lines = lines_of(mutant)
    imported = bool(lines & set(reaches[0].lines.get(mutant.module, ())))
    return Trial(mutant, chosen(reaches, mutant.module, lines, SOAK_S), imported)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"how many mutants ({SAMPLE})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="stop after so long, with the totals so far")
    parser.add_argument("--module", action="append", choices=sorted(SIMULATED), help="only of this module")
    parser.add_argument("--only", action="append", metavar="NAME", help="no sample, but the mutant of that name")
    options = parser.parse_args()
    options.module = options.module or list(SIMULATED)
    return options


def main() -> int:
    options = parsed()
    started = time.monotonic()
    warm()
    mutants = named(options.only) if options.only else sampled(options)
    for name in ("running", "scenario"):
        importlib.import_module(f"supervisor.simulation.{name}")
    reaches = reached(options.jobs)
    alive = population()
    gc.freeze()
    if problems := broken(RUNS, options.jobs):
        print(f"without any mutant, what should be clean is not: {'; '.join(problems)}; mend that first")
        return 1
    trials = [trial_of(one, reaches) for one in mutants]
    tally = Tally(len(trials))
    try:
        stop_at(options.minutes)
        for one in each(trials, lambda trial, say: suffer(trial, say, alive), options.jobs):
            mutant = one.trial.mutant
            tally.take(mutant, one, reason(mutant) or "")
    except KeyboardInterrupt:
        print(f"interrupted: {len(trials) - tally.tried} of {len(trials)} mutants were not tried")
    return summed_up(options, tally, time.monotonic() - started)


def summed_up(options: argparse.Namespace, tally: Tally, took_s: float) -> int:
    outcomes = tally.outcomes
    print(
        f"{tally.tried} mutants of {len(options.module)} modules (seed {options.seed}): {tally.share:.1%} killed by "
        f"simulation, {outcomes['survived']} survived, {outcomes['never entered']} where no run comes by, "
        f"{outcomes['equivalent']} equivalent; without these {tally.told_share:.1%} of {tally.told}; "
        f"{tally.cpu_s / max(1, tally.tried):.1f} CPU s each, {took_s:.0f} s in all"
    )
    return 0 if tally.told_share >= KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
