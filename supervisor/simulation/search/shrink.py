"""Shrinking: from a run that violates an invariant to the smallest run that still violates the invariant.

Theory of operation: a scenario with its draws written down, and a list of strikes, determines a run. A smaller scenario
is accepted only if its run violates the same invariant; the run is ended at the violation, so later strikes are dropped
at once. Rounds are repeated until the scenario does not get smaller:

1. if many faults struck, small runs of other seeds: such a run that fails too needs fewer reductions;
2. less work, since small runs are fast;
3. fewer kinds of faults, then fewer strikes, by delta debugging (``ddmin``);
4. plainer values: FIFO order, no cut streams.

Draws have names, so a removed part changes no other draw; only the order of steps changes. A race may not survive that
change; therefore other seeds are tried in every round. A scenario that was tried in vain is not tried again.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from supervisor.simulation.oracle import MakeCheckers, no_checkers
from supervisor.simulation.running import Report, simulate
from supervisor.simulation.scenario import DrawnScenario, Scenario, parsed
from supervisor.simulation.search.smaller import (
    PLAINER,
    REDUCIBLE,
    less,
    other_seed,
    pinned,
    plainer,
    with_strikes,
)

T = TypeVar("T")
WIDE = 100
"""Length in characters above which a list is written with one line for each member."""
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Pattern for TOML keys that need no quotes."""

LOOK = 1024
"""Number of steps between two calls of *patience*, which decides whether the search goes on."""
FEW = 5
"""Number of faults that a person can follow: with so few faults, other seeds are not tried."""
OTHER_SEEDS = 100
"""Number of other seeds that are tried in one round."""
STEPS = 500
"""Number of steps that every run of the search may take at least."""
LIVELOCK_STEPS = 20_000
"""Number of steps at one moment of virtual time that counts as a livelock in the search, a tenth of the usual number: a
busy system of 1,000 actors takes some 10,000 steps. The final check of the smallest run uses the usual number."""
LATE = "quiescence"
"""Name of the invariant that can be violated only at the end of a run, however small the run is."""
LONGER = 2
"""A smaller run is given up when it has taken this many times the steps of the run that it is to replace."""
ROUNDS = 10
"""Number of rounds in a row, each with other seeds, that may fail to make the run smaller while it has too many
faults."""


class NothingViolated(Exception):
    """Error: the run violates no invariant, so there is nothing to shrink."""


class Shrunk(msgspec.Struct, kw_only=True):
    """Result of shrinking: the smallest run that was found, and numbers of the search. ``minimal``: no step to a
    smaller run was left to try; ``interrupted``: Ctrl-C ended the search."""

    scenario: Scenario
    seed: int
    invariant: str
    problem: str
    faults_before: int
    faults: tuple[str, ...]
    runs: int
    minimal: bool
    interrupted: bool = False


def invariant_of(problem: str) -> str:
    """Return the name of the invariant that a problem violates: the text before the first colon."""
    return problem.partition(":")[0]


def fails_again(shrunk: Shrunk, checkers: MakeCheckers = no_checkers) -> bool:
    """Whether the shrunk run fails again: its scenario, written as a file, read again and run to the end, violates the
    same invariant."""
    again = parsed("shrunk", to_toml(shrunk.scenario, shrunk.problem)).draw(shrunk.seed)
    return any(invariant_of(one) == shrunk.invariant for one in simulate(again, checkers=checkers).problems)


class _Enough(Exception):
    """Exception that ends a simulated run early, when its result for the search is known."""


class _StopCondition:
    """Condition that ends a run: the run has violated *invariant* (``""``: any), *patience* returns false, or
    *steps_max* steps are over."""

    def __init__(self, invariant: str, patience: Callable[[], bool], steps_max: float) -> None:
        self._words = f" VIOLATION {invariant}"
        self._patience, self._steps_max = patience, steps_max
        self.heard = self.cut_off = False

    def on_line(self, line: str) -> None:
        self.heard = self.heard or self._words in line

    def before_step(self, number: int) -> None:
        over = number > self._steps_max or (number % LOOK == 0 and not self._patience())
        self.cut_off = self.cut_off or (over and not self.heard)
        if self.heard or self.cut_off:
            raise _Enough


def run_until(
    drawn: DrawnScenario,
    invariant: str,
    patience: Callable[[], bool],
    steps_max: float = math.inf,
    watch: Callable[[int], None] | None = None,
    checkers: MakeCheckers = no_checkers,
) -> Report | None:
    """Run until the invariant is violated, or to the end, and return the report; ``None`` if *patience* returned false
    or *steps_max* was reached first."""
    listener = _StopCondition(invariant, patience, steps_max)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of what had not begun yet when the run was cut off
        report = simulate(
            drawn,
            on_line=listener.on_line,
            before_step=listener.before_step,
            livelock_steps=LIVELOCK_STEPS,
            watch=watch,
            checkers=checkers,
        )
    return None if listener.cut_off else report


# ------------------------------------------------------------------------------------------------------- shrinking
class _Search:
    """Search for the smallest run: the smallest run so far, and the steps that make this run smaller."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        patience: Callable[[], bool],
        heard: Callable[[int], None],
        watch: Callable[[int], None] | None,
        checkers: MakeCheckers,
    ) -> None:
        self._checkers = checkers
        drawn = scenario.draw(seed)
        report = run_until(drawn, "", lambda: True, watch=watch, checkers=checkers)
        if report is None or not report.problems:
            raise NothingViolated(f"seed {seed} of {scenario.name} violates nothing, so there is nothing to shrink")
        self.seed = seed
        self.runs = 1
        self._others = 0
        self._in_vain: set[str] = set()
        self.invariant = invariant_of(report.problems[0])
        self.first = self.best = report
        self.scenario = pinned(scenario, drawn, report.struck)
        self._open = scenario.with_drawn_profile(seed)
        self.patience, self._heard = patience, heard

    @property
    def problem(self) -> str:
        """First problem of the smallest run that violates the invariant of the search."""
        return next(one for one in self.best.problems if invariant_of(one) == self.invariant)

    @property
    def too_many(self) -> bool:
        """Whether the smallest run has more faults than a person can follow."""
        return len(self.best.struck) > FEW

    def takes(self, scenario: Scenario) -> bool:
        """Run *scenario*, and keep the run as the smallest if it violates the same invariant; return whether it
        does."""
        if not self.patience() or (key := f"{self.seed} {scenario.model_dump_json()}") in self._in_vain:
            return False
        report = self._failed(scenario.draw(self.seed), LONGER * self.best.steps + STEPS)
        if report is None:
            self._in_vain.add(key)
            return False
        self.best = report
        self.scenario = with_strikes(scenario, report.struck)
        return True

    def _failed(self, drawn: DrawnScenario, steps_max: float) -> Report | None:
        """Run at most *steps_max* steps; return the report if the run violates the same invariant, else ``None``."""
        report = run_until(drawn, self.invariant, self.patience, steps_max, checkers=self._checkers)
        self.runs += 1
        self._heard(self.runs)
        failed = report is not None and any(invariant_of(one) == self.invariant for one in report.problems)
        return report if failed else None

    def smaller(self) -> None:
        """Try every way to make the run smaller, once."""
        self.other_seeds()
        self.work()
        self.kinds()
        self.faults()
        self.make_plainer()

    def other_seeds(self) -> None:
        """Try runs of other seeds: if many faults were needed to meet a race, another seed may meet the race with
        few."""
        for _ in range(OTHER_SEEDS):
            if not (self.too_many and self.patience()):
                return
            self._others += 1
            other = other_seed(self._open, _kinds(self.first.struck), self._others)
            drawn = other.draw(self._others)
            report = self._failed(drawn, self._short_steps())
            if report is not None:
                self._instead(pinned(other, drawn, report.struck), self._others, report)

    def _short_steps(self) -> int:
        """Return the most steps for runs of other seeds: half of the smallest run's steps, since a shorter run has
        fewer faults; all of them for an invariant that is violated only at the end."""
        steps = self.best.steps
        return steps + STEPS if self.invariant == LATE else max(steps // 2, STEPS)

    def _instead(self, scenario: Scenario, seed: int, report: Report) -> None:
        """Replace the smallest run by a run of another seed, if that run can be reduced to fewer faults."""
        before = self.scenario, self.seed, self.best
        self.scenario, self.seed, self.best = scenario, seed, report
        self.kinds()
        self.faults()
        if len(self.best.struck) >= len(before[-1].struck):
            self.scenario, self.seed, self.best = before

    def kinds(self) -> None:
        """Try runs with fewer kinds of faults."""
        ddmin(_kinds(self.best.struck), self._of_kinds)

    def _of_kinds(self, kinds: Sequence[str]) -> Sequence[str] | None:
        struck = self._strikes([one for one in self.best.struck if _kind(one) in kinds])
        return None if struck is None else _kinds(struck)

    def faults(self) -> None:
        """Try runs with fewer strikes of faults."""
        ddmin(self.best.struck, self._strikes)

    def _strikes(self, only: Sequence[str]) -> Sequence[str] | None:
        return self.best.struck if self.takes(with_strikes(self.scenario, only)) else None

    def work(self) -> None:
        """Try runs with less work, fewer operators, and lower limits for errors."""
        for path in REDUCIBLE:
            while any(self.takes(one) for one in less(self.scenario, path)):
                pass

    def make_plainer(self) -> None:
        """Try runs with plainer values, which make a run easier to follow."""
        for path in PLAINER:
            if (one := plainer(self.scenario, path)) is not None:
                self.takes(one)


def _kind(strike: str) -> str:
    return strike.partition("@")[0]


def _kinds(strikes: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(_kind, strikes)))


def shrink(
    scenario: Scenario,
    seed: int,
    patience: Callable[[], bool],
    heard: Callable[[int], None],
    watch: Callable[[int], None] | None = None,
    checkers: MakeCheckers = no_checkers,
) -> Shrunk:
    """Find the smallest run that violates the invariant that the run of this seed violates first. Ctrl-C ends the
    search with the smallest run so far.

    Args:
        patience: called before and during each run; when it returns false, the search ends with the smallest run so
            far.
        heard: called after each run with the number of runs so far.
        watch: called now and then with the number of steps of the first run, which is never cut off.
        checkers: function that returns the checkers that check the runs beside the oracle.

    Raises:
        NothingViolated: the run of the seed violates no invariant.
        KeyboardInterrupt: Ctrl-C came in the first run, so there is no result yet.
    """
    search = _Search(scenario, seed, patience, heard, watch, checkers)
    interrupted = False
    try:
        in_vain = 0
        while search.patience() and in_vain < (ROUNDS if search.too_many else 1):
            before = search.scenario
            search.smaller()
            in_vain = in_vain + 1 if before == search.scenario else 0
    except KeyboardInterrupt:
        interrupted = True
    return _shrunk(search, minimal=not interrupted and patience(), interrupted=interrupted)


def _shrunk(search: _Search, *, minimal: bool, interrupted: bool) -> Shrunk:
    name = f"{search.scenario.name}-{search.seed}"[-64:].lstrip("-")
    return Shrunk(
        scenario=search.scenario.model_copy(update={"name": name, "about": f"Shrunk: {search.problem}"}),
        seed=search.seed,
        invariant=search.invariant,
        problem=search.problem,
        faults_before=len(search.first.struck),
        faults=search.best.struck,
        runs=search.runs,
        minimal=minimal,
        interrupted=interrupted,
    )


# -------------------------------------------------------------------------------------------------- delta debugging
def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], Sequence[T] | None]) -> Sequence[T]:
    """Find a part of *items* that still fails and from which no item can be left out (Zeller and Hildebrandt, 2002).

    Args:
        fails: function that returns ``None`` if the given items do not fail; else the items that were needed, perhaps
            fewer than given.
    """
    if items and (needed := fails(())) is not None:
        return needed
    parts = 2
    while len(items) > 1:
        smaller = next((found for rest in _without_one(items, parts) if (found := fails(rest)) is not None), None)
        if smaller is not None:
            items, parts = smaller, max(parts - 1, 2)
        elif parts >= len(items):
            break
        else:
            parts = min(len(items), 2 * parts)
    return items


def _without_one(items: Sequence[T], parts: int) -> Iterator[Sequence[T]]:
    """Split *items* into *parts* parts; for each part, yield *items* without that part."""
    size = -(-len(items) // parts)
    for start in range(0, len(items), size):
        yield [*items[:start], *items[start + size :]]


# --------------------------------------------------------------------------------------------------------- as a file
def to_toml(scenario: Scenario, comment: str) -> str:
    """Return the scenario as the text of a TOML file for people, with *comment* at the top. The text, when loaded,
    gives the same scenario."""
    lines = [f"# {one}".rstrip() for one in comment.splitlines()]
    return "\n".join([*lines, *_table((), scenario.model_dump(mode="json", exclude_none=True))]) + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table in TOML: first the values, then the nested tables; a table without values has no
    header."""
    below = {key: value for key, value in table.items() if isinstance(value, dict) and "any" not in value}
    values = {key: value for key, value in table.items() if key not in below and value is not None}
    if path and values:
        yield ""
        yield f"[{'.'.join(path)}]"
    for key, value in values.items():
        yield f"{key if BARE.fullmatch(key) else json.dumps(key)} = {_value(value)}"
    for key, value in below.items():
        yield from _table((*path, key), value)


def _value(value: Any) -> str:
    """Return a value in TOML. Strings are written as in JSON, except for one character (DEL)."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
        case list():
            members = [_value(one) for one in value]
            line = f"[{', '.join(members)}]"
            return line if len(line) <= WIDE else "[\n" + "".join(f"    {one},\n" for one in members) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
