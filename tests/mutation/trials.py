"""Trials of mutants: each is tried in a scratch copy, by the tests that reach the mutant, then by a short
simulation."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .changes import Key, find, locate
from .reach import Test, reached
from .record import Verdict, write
from .scratch import Scratch, share

PLAIN_MAX = 150
"""Number of tests, without those of the simulator, that try a mutant: a number instead of a duration, so that verdicts
do not depend on the load."""
SIMULATED_MAX = 30
"""Number of tests of the simulator that try a mutant that no other test has killed."""
FIRST = 12
"""Number of tests that are run first, before the files of the other tests are collected."""
STEADY_S = 0.3
"""Duration of a test below which its failure counts at once, since such a test starts no process and waits for nothing.
A longer test that fails runs again, since it may fail now and then without a mutant."""
SLACK_S = 60.0
"""Seconds beyond four times their usual time after which tests count as endless."""


def try_all(
    path: Path, verdicts: dict[Key, Verdict], files: Sequence[str], jobs: int, killers: Mapping[Key, str]
) -> None:
    """Try the mutants that have no verdict yet, and write each verdict to the record at once.

    *killers*: for each mutant the test that is run first, if that test still exists.
    """
    known, names = locate(verdicts)
    for key, one in verdicts.items():
        if key not in known and not one.word:
            verdicts[key] = Verdict("changed" if key.unit in names else "deleted")
    write(path, verdicts)
    untried = [key for key in known if not verdicts[key].word]
    if not untried:
        return
    random.Random(len(untried)).shuffle(untried)  # the verdicts of an interrupted run are a sample, too
    with contextlib.ExitStack() as stack:
        scratches = [Scratch() for _ in range(jobs)]
        for one in scratches:
            stack.callback(one.close)
        problem = scratches[0].simulate()
        assert not problem, f"without a mutant: {problem}"
        tests = reached(known, scratches, files)

        def trial(scratch: Scratch, key: Key) -> tuple[Key, Verdict]:
            began = time.monotonic()
            scratch.change(known[key], lambda tree: find(tree, key).make())
            killer = _killer(scratch, sorted(tests[key], key=lambda one: one.name != killers.get(key)))
            scratch.restore(known[key])
            return key, Verdict("killed" if killer else "survived", killer, time.monotonic() - began)

        for done, (key, verdict) in enumerate(share(scratches, untried, trial), 1):
            verdicts[key] = verdict
            write(path, verdicts)
            print(f"{done}/{len(untried)} {verdict.word} {key} {verdict.killer} ({verdict.seconds:.0f} s)", flush=True)


def _killer(scratch: Scratch, tests: Sequence[Test]) -> str:
    """Return the test that fails for the mutant, or the failure of the simulation; ``""`` if the mutant survives."""
    plain = [one for one in tests if not one.is_simulated][:PLAIN_MAX]
    simulated = [one for one in tests if one.is_simulated][:SIMULATED_MAX]
    for batch in (plain[:FIRST], plain[FIRST:], simulated):
        while batch:
            killer = _run(scratch, batch)
            if not killer:
                break
            failed = [one for one in batch if one.name == killer.partition(" (")[0]]
            if not failed or failed[0].seconds < STEADY_S or _run(scratch, failed):
                return killer
            batch = batch[batch.index(failed[0]) + 1 :]  # this test fails now and then, which is no verdict
    return scratch.simulate()


def _run(scratch: Scratch, tests: Sequence[Test]) -> str:
    files = sorted({one.file for one in tests})
    wall_s = SLACK_S + 4 * sum(one.seconds for one in tests)
    return scratch.test(files, [one.name for one in tests], wall_s, "-x").killer
