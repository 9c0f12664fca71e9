"""How much the simulator sees: bugs planted on purpose, and how many runs it takes until one of them is noticed.

A catalogue (``bugs/*.toml``) holds them, three and more for each invariant. Each is hunted in an interpreter of its
own, seed by seed, until something is violated. The control runs the very runs that found something, without a bug: what
is violated there as well was never found. A bug that is not found is a hole in the oracle, or no bug.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from typing import Any

import msgspec

from supervisor.simulation.search.interpreter import Interpreters, NotWanted, NoVerdict
from supervisor.simulation.search.planting import NotPlanted, changing

__all__ = ["BadCatalogue", "Bug", "Found", "Hunted", "Reduced", "catalogue", "chosen", "control", "hunt"]

RUNS_MAX = 500
BUDGET_S = 60.0
THIRDS = 3
FAULTS_MAX = 5
SHRINK_S = 60.0
"""What a failing run must shrink to, and in how many CPU seconds, its interpreter's start included."""
SEARCH_S = 50.0
"""Of these, for the search: the rest is for the last run, which shows that what was found fails by itself."""


class BadCatalogue(Exception):
    """A bug that cannot be planted, or that nobody knows; the message names it and the fix."""


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A planted bug: the only *find* in *module* becomes *replace*.

    ``invariant`` is the number of what it was made to break, by its place among
    ``supervisor.diagnostics.invariants.INVARIANTS``;
    ``thought`` what a careless engineer thought;
    ``scenarios`` where it is hunted, seed by seed in turns.
    """

    name: str
    invariant: int
    module: str
    thought: str
    find: str
    replace: str
    scenarios: tuple[str, ...] = ("swarm",)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a hunt came to: after how many runs and CPU seconds, in which run, and what was violated there.

    ``broken``: the runs that the simulator itself did not survive, or that never ended, and why: they say nothing of
    the bug. ``endless``: the last of them took its interpreter along.
    """

    found: bool
    runs: int
    cpu_s: float
    problems: tuple[str, ...] = ()
    scenario: str = ""
    seed: int = 0
    broken: tuple[str, ...] = ()
    endless: bool = False

    @property
    def clean(self) -> bool:
        """Nothing was violated, and nothing broke."""
        return not (self.problems or self.broken)

    @property
    def law(self) -> str:
        """The first law that was broken."""
        return self.problems[0].partition(":")[0] if self.problems else ""


class Reduced(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the run that found a bug when it was shrunk, in a number of runs and CPU seconds.

    ``scenario`` is a file, and ``fails_again`` whether it violates the same ``invariant`` by itself.
    """

    invariant: str = ""
    faults_before: int = 0
    faults: tuple[str, ...] = ()
    runs: int = 0
    cpu_s: float = 0.0
    minimal: bool = False
    fails_again: bool = False
    scenario: str = ""
    broken: str = ""

    @property
    def small(self) -> bool:
        """It is small enough, came soon enough, and can be kept as a test."""
        return self.fails_again and len(self.faults) <= FAULTS_MAX and self.cpu_s <= SHRINK_S


class Hunted(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, and what became of the hunt for it; ``shrunk`` where that was wanted, and it was found."""

    bug: str
    invariant: int
    result: Found
    shrunk: Reduced | None = None

    @property
    def good(self) -> bool:
        """It was found, and shrinks."""
        return self.result.found and (self.shrunk is None or self.shrunk.small)


def catalogue() -> list[Bug]:
    """All planted bugs, in the order of their invariants.

    Raises:
        BadCatalogue: an entry is none, or two have one name.
    """
    found: list[Bug] = []
    folder = resources.files("supervisor.simulation.search") / "bugs"
    for file in sorted((one for one in folder.iterdir() if one.name.endswith(".toml")), key=lambda one: one.name):
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("bug", [])
        try:
            found += msgspec.convert(entries, list[Bug])
        except msgspec.ValidationError as error:
            raise BadCatalogue(f"{file.name}: {error}") from None
    names = [one.name for one in found]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise BadCatalogue(f"two bugs are named {', '.join(twice)}; give each a name of its own")
    return sorted(found, key=lambda one: one.invariant)


def chosen(names: Sequence[str] = (), third: int | None = None) -> list[Bug]:
    """Those of the catalogue with these names (all, if none is given), or every third of them from *third* on.

    Raises:
        BadCatalogue: nobody knows one of the names, or none is left.
    """
    bugs = catalogue()
    known = {one.name: one for one in bugs}
    if unknown := [one for one in names if one not in known]:
        raise BadCatalogue(f"bug: nothing is named {', '.join(unknown)}; there are {', '.join(known)}")
    picked = [known[one] for one in dict.fromkeys(names)] if names else bugs
    left = picked if third is None else picked[third::THIRDS]
    if not left:  # to find all of none is no success
        raise BadCatalogue(f"third: {third} leaves none of {', '.join(one.name for one in picked)}; leave it out")
    return left


# ---------------------------------------------------------------------------------------------------------- hunting
def hunt(
    bugs: Sequence[Bug], *, seeds: int, budget_s: float, jobs: int, tell: Callable[[Hunted], None], shrink: bool = False
) -> tuple[list[Hunted], bool]:
    """Hunt each of *bugs*, *jobs* at a time; *tell* hears of each as it is done. With *shrink*, shrink what is found.
    What became of them, in their order, and false if Ctrl-C came first.

    A run that is violated without the bug, too, finds nothing: the hunt goes on behind it.

    Raises:
        BadCatalogue: one does not fit the source as it is, so nothing was hunted.
    """
    orders = [_order(one, seeds, budget_s) for one in bugs]
    interpreters = Interpreters()
    clean = _Clean(interpreters, budget_s)
    done: dict[str, Hunted] = {}

    def one_of_them(bug: Bug, order: dict[str, Any]) -> None:
        with suppress(NotWanted):
            found = _told_apart(interpreters, order, clean)
            shrunk = _shrunk(interpreters, order, found) if shrink and found.found else None
            done[bug.name] = Hunted(bug=bug.name, invariant=bug.invariant, result=found, shrunk=shrunk)
            tell(done[bug.name])

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(one_of_them, bugs, orders))
        except KeyboardInterrupt:
            pass
        finally:
            interpreters.end()
    return [done[one.name] for one in bugs if one.name in done], len(done) == len(bugs)


def control(hunted: Sequence[Hunted], *, budget_s: float) -> Found:
    """Those runs that found a bug, once more without one: nothing may be found."""
    runs = list(dict.fromkeys((one.result.scenario, one.result.seed) for one in hunted if one.result.found))
    return _run(Interpreters(), _exactly(runs, budget_s))


class _Clean:
    """Which runs are violated although nothing is planted; each is run once."""

    def __init__(self, interpreters: Interpreters, budget_s: float) -> None:
        self._interpreters, self._budget_s = interpreters, budget_s
        self._known: dict[tuple[str, int], bool] = {}

    def is_clean(self, run: tuple[str, int]) -> bool:
        if run not in self._known:
            self._known[run] = _run(self._interpreters, _exactly([run], self._budget_s)).clean
        return self._known[run]


def _told_apart(interpreters: Interpreters, order: dict[str, Any], clean: _Clean) -> Found:
    """Hunt on after a run that says nothing, since it is violated without the bug as well."""
    while True:
        found = _run(interpreters, order)
        run = found.scenario, found.seed
        if not found.found or clean.is_clean(run):
            return found
        order = {**order, "skip": [*order["skip"], run]}


def _exactly(runs: Sequence[tuple[str, int]], budget_s: float) -> dict[str, Any]:
    where = {"scenarios": (), "exactly": runs, "skip": (), "done": 0, "shrink": False}
    return {"module": "", "source": "", "seeds": 0, "budget_s": budget_s, **where}


def _order(bug: Bug, seeds: int, budget_s: float) -> dict[str, Any]:
    try:
        source = changing(bug.module, bug.find, bug.replace)
    except NotPlanted as error:
        raise BadCatalogue(f"bug {bug.name}: {error}") from None
    where = {"scenarios": bug.scenarios, "exactly": (), "skip": (), "done": 0, "shrink": False}
    return {"module": bug.module, "source": source, "seeds": seeds, "budget_s": budget_s, **where}


def _run(interpreters: Interpreters, order: dict[str, Any]) -> Found:
    """Carry out an order, behind each run without an end in another interpreter, as long as there is CPU time."""
    cpu_s = 0.0
    broken: tuple[str, ...] = ()
    while True:
        found = _begin(interpreters, {**order, "budget_s": order["budget_s"] - cpu_s})
        cpu_s, broken = cpu_s + found.cpu_s, broken + found.broken
        order = {**order, "done": found.runs}
        if not found.endless or cpu_s > order["budget_s"]:
            return msgspec.structs.replace(found, cpu_s=cpu_s, broken=broken)


def _begin(interpreters: Interpreters, order: dict[str, Any]) -> Found:
    """Work on an order in a fresh interpreter. One that breaks has found nothing: the oracle had no say."""
    try:
        return msgspec.json.decode(interpreters.carried_out(order), type=Found)
    except NoVerdict as error:
        return Found(found=False, runs=order["done"], cpu_s=0.0, broken=(str(error),))


# -------------------------------------------------------------------------------------------------------- shrinking
def _shrunk(interpreters: Interpreters, order: dict[str, Any], found: Found) -> Reduced:
    """The run that found it, shrunk with the bug in place."""
    where = {"exactly": [(found.scenario, found.seed)], "skip": (), "shrink": True}
    try:
        answer = interpreters.carried_out({**order, **where, "budget_s": SEARCH_S})
        return msgspec.json.decode(answer, type=Reduced)
    except NoVerdict as error:
        return Reduced(broken=str(error))
