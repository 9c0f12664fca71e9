"""Mutants of the pure modules, and which of them the suite kills. Run it with ``make mutants``.

A seeded sample of the mutants (``specimens.py``) is tried, each in a process of its own, against the tests of its
module (``targets.py``), until the first failure. Each is told as it comes, those that survive with their change; fewer
than ``KILLED_MIN`` killed is exit status 1. Ctrl-C, or ``--minutes``, ends it with the totals so far.

With ``--by simulation`` (``make mutants-simulation``) there are no tests: mutants of the runtime and of the pure
modules below it run through a fixed soak in virtual time (``soak.py``), and only the simulator's oracle may kill them:
by a violation, or because a run comes to no end. A mutant of a function that the soak never enters is called so, and
counts as one that survived.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import NamedTuple, NoReturn

from soak import SIMULATED, judged
from specimens import ROOT, Mutant, change, draw, function_of, marked, path_of
from targets import ALWAYS, TESTS

SEED = 20261121
SAMPLE = 250
SAMPLE_SIMULATED = 200
KILLED_MIN = 0.90
CPU_S = 5.0
"""A mutant that computes for this much longer than thrice what the original takes has made something endless."""
WALL_S = 120
"""And one that waits for this long waits for ever."""
MEMORY_MAX = 2 * 1024**3
WORDS_MAX = 200
"""Characters of what a mutant is killed by."""

NEVER_ENTERED = 9
OUTCOMES = {0: "survived", NEVER_ENTERED << 8: "never entered"}
"""By the status that a trial ends with; any other means that it was killed."""
MARK = "_mutant_entered"
"""What the changed function calls."""

WARMED = (
    "pytest",
    "hypothesis",
    "_hypothesis_pytestplugin",
    "anyio.pytest_plugin",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "pytest_trio.plugin",
    "msgspec",
    "structlog",
    "pydantic",
    "rich.console",
    "click",
    "yaml",
    "apsw",
)
"""Imported once, before the first fork: nothing of these is ever mutated."""


# ------------------------------------------------------------------------------------------------------- the trial
class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets one module be imported with another source."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self.entered = function_of(mutant) is None
        """The function that it changes was called."""

    def _enter(self) -> None:
        self.entered = True

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(path_of(name)))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(path_of(self._mutant.module))
        module.__dict__[MARK] = self._enter
        exec(compile(marked(self._mutant, MARK), module.__file__, "exec"), module.__dict__)


class Trial(NamedTuple):
    """A module, or a mutant of it, that the tests of the module are run against, or the simulator's soak."""

    module: str
    mutant: Mutant | None
    cpu_s: float
    simulated: bool = False


class Ordeal(NamedTuple):
    """A trial that is over: what became of it, by what (as far as it said so), and for how long did it compute."""

    trial: Trial
    outcome: str
    words: str
    cpu_s: float


def suffer(trial: Trial, say: int) -> int:
    """In a process of its own: run the tests, or the soak; 0 means that nothing was noticed. *say*: where words go."""
    confine(trial)
    if trial.mutant is None:
        return simulated(say) if trial.simulated else tested(trial)
    mutated = _Mutated(trial.mutant)
    sys.meta_path.insert(0, mutated)
    status = simulated(say) if trial.simulated else tested(trial)
    return status or (0 if mutated.entered else NEVER_ENTERED)


def simulated(say: int) -> int:
    """The soak, until the first run that is violated, or breaks."""
    place = "before the first run"
    try:
        for place, problems in judged():
            if problems:
                os.write(say, f"{place}: {problems[0]}"[:WORDS_MAX].encode())
                return 1
    except BaseException as error:
        os.write(say, f"after {place}: {type(error).__name__}: {error}"[:WORDS_MAX].encode())
        return 1
    return 0


def confine(trial: Trial) -> None:
    """Say nothing, and use no more than the trial may."""
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (int(trial.cpu_s), int(trial.cpu_s) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(WALL_S if not trial.simulated else 10 * WALL_S)


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


def run(trials: Sequence[Trial], jobs: int) -> Iterator[Ordeal]:
    """Each trial as it ends, at most *jobs* at a time; those that are under way when nobody asks any more are ended."""
    running: dict[int, tuple[Trial, int]] = {}
    try:
        for trial in trials:
            if len(running) == jobs:
                yield _reap(running)
            read, say = os.pipe()
            pid = os.fork()
            if pid == 0:
                _suffer(trial, say)
            os.close(say)
            running[pid] = trial, read
        while running:
            yield _reap(running)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _suffer(trial: Trial, say: int) -> NoReturn:
    status = 1
    try:
        status = suffer(trial, say)
    finally:
        os._exit(status)


def _reap(running: dict[int, tuple[Trial, int]]) -> Ordeal:
    pid, status, used = os.wait4(-1, 0)
    trial, read = running.pop(pid)
    with os.fdopen(read, "rb") as told:
        words = told.read().decode(errors="replace").replace("\n", " ")
    if os.WIFSIGNALED(status):
        words = f"{signal.Signals(os.WTERMSIG(status)).name}: it comes to no end"
    outcome = OUTCOMES.get(status, "killed")
    return Ordeal(trial, outcome, words, used.ru_utime + used.ru_stime)


# -------------------------------------------------------------------------------------------------- before and after
def warm() -> None:
    """Import what is never mutated, once, before the first fork."""
    for name in WARMED:
        importlib.import_module(name)
    gc.freeze()


def originals(modules: Sequence[str], jobs: int, *, simulated: bool) -> tuple[dict[str, float], list[str]]:
    """How long each module's tests compute without a mutant, and for which of them they fail; one soak is for all."""
    trials = [Trial(one, None, WALL_S, simulated) for one in (modules[:1] if simulated else modules)]
    spent_s: dict[str, float] = {}
    broken: list[str] = []
    for one in run(trials, jobs):
        spent_s[one.trial.module] = one.cpu_s
        broken += [f"{one.trial.module} {one.words}".strip()] * (one.outcome == "killed")
    return {one: spent_s.get(one, max(spent_s.values())) for one in modules}, broken


class Tally:
    """What became of the mutants so far, told as it comes."""

    def __init__(self, wanted: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._wanted = wanted

    @property
    def tried(self) -> int:
        return self.outcomes.total()

    @property
    def share(self) -> float:
        """Of those that were tried, how many were killed."""
        return self.outcomes["killed"] / max(1, self.tried)

    def take(self, one: Ordeal) -> None:
        mutant = one.trial.mutant
        assert mutant is not None, "an original is no mutant"
        self.outcomes[one.outcome] += 1
        what = f" {one.words}" if one.outcome == "killed" else f"\n{change(mutant)}"
        print(f"{self.tried}/{self._wanted} {one.outcome}: {mutant.name} ({one.cpu_s:.1f} s){what}", flush=True)


def stop_at(minutes: float | None) -> None:
    """Ctrl-C, a polite kill, and the end of the time all mean the same: the totals, please."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGALRM, interrupt)
    if minutes is not None:
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--by", choices=("tests", "simulation"), default="tests", help="what may kill a mutant")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--sample", type=int, help=f"how many mutants: {SAMPLE}, or {SAMPLE_SIMULATED} by simulation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="stop after so long, with the totals so far")
    parser.add_argument("--module", action="append", choices=sorted({*TESTS, *SIMULATED}), help="only of this module")
    options = parser.parse_args()
    known = sorted(SIMULATED if options.by == "simulation" else TESTS)
    options.module = options.module or known
    if strangers := [one for one in options.module if one not in known]:
        parser.error(f"--module: {', '.join(strangers)} cannot be killed by {options.by}")
    return options


def main() -> int:
    options = parsed()
    simulated = options.by == "simulation"
    started = time.monotonic()
    warm()
    original_s, broken = originals(options.module, options.jobs, simulated=simulated)
    if broken:
        print(f"without any mutant, what should be clean is not: {'; '.join(broken)}; mend that first")
        return 1
    sample = options.sample or (SAMPLE_SIMULATED if simulated else SAMPLE)
    mutants = draw(options.module, sample, options.seed, options.jobs, audible=simulated)
    trials = [Trial(one.module, one, CPU_S + 3 * original_s[one.module], simulated) for one in mutants]
    tally = Tally(len(trials))
    try:
        stop_at(options.minutes)
        for one in run(trials, options.jobs):
            tally.take(one)
    except KeyboardInterrupt:
        print(f"interrupted: {len(trials) - tally.tried} of {len(trials)} mutants were not tried")
    return summed_up(options, tally, time.monotonic() - started)


def summed_up(options: argparse.Namespace, tally: Tally, took_s: float) -> int:
    print(
        f"{tally.tried} mutants of {len(options.module)} modules (seed {options.seed}): {tally.share:.1%} killed by "
        f"{options.by}, {tally.outcomes['survived']} survived, {tally.outcomes['never entered']} in functions that "
        f"are never entered, in {took_s:.0f} s"
    )
    return 0 if tally.share >= KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
