"""Shrinking: from a run that violates something to the smallest that still violates it.

First the load, then the faults that struck, by delta debugging (Zeller and Hildebrandt, 2002), and so on in turns
until nothing gets smaller. A smaller run counts only if it violates the same invariant; it is over as soon as it does,
so what struck later is not even looked at. Draws have names: what is taken away changes nothing about what is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.running import Report, simulate
from supervisor.simulation.scenario import Agents, Drawn, Faults, Scenario, World

__all__ = ["NothingViolated", "Shrunk", "ddmin", "invariant_of", "pinned", "shrink"]

T = TypeVar("T")

COUNTS = (
    *(("load", name) for name in ("customers", "turns", "tasks", "sessions_max")),
    *(("world", name) for name in ("operators", "crashes_max")),
)
"""What can be made less of, and from where."""
LEAST = {"customers": 1, "turns": 1, "tasks": 1, "sessions_max": 1}
"""0 for all others."""


class NothingViolated(Exception):
    """There is nothing to shrink."""


class Shrunk(msgspec.Struct, kw_only=True):
    """The smallest run that was found, and how it was found. ``minimal``: no smaller step was left to try."""

    scenario: Scenario
    seed: int
    invariant: str
    problem: str
    faults_before: int
    faults: tuple[str, ...]
    runs: int
    minimal: bool


def invariant_of(problem: str) -> str:
    """The invariant that a problem is told to violate."""
    return problem.partition(":")[0]


class _Seen(Exception):
    """The violation has come; the rest of the run is of no interest."""


def _run_until(drawn: Drawn, invariant: str) -> Report:
    """Run it until that is violated, or to its end. With ``""``, whatever is violated first."""
    seen = False

    def tell(line: str) -> None:
        nonlocal seen
        seen = seen or f" VIOLATION {invariant}" in line

    def before_step(_: int) -> None:
        if seen:
            raise _Seen

    return simulate(drawn, tell=tell, before_step=before_step)


# -------------------------------------------------------------------------------------------------- delta debugging
def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], Sequence[T] | None]) -> Sequence[T]:
    """A part of *items* that still fails, and of which nothing can be left out.

    Args:
        fails: None if these do not fail; else the items that were needed at all, perhaps fewer.
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
    """*items* without each of their *parts*."""
    size = -(-len(items) // parts)
    for start in range(0, len(items), size):
        yield [*items[:start], *items[start + size :]]


# ------------------------------------------------------------------------------------------------------- scenarios
def pinned(scenario: Scenario, drawn: Drawn, only: Sequence[str]) -> Scenario:
    """A scenario of which every draw of that seed is written down, and which faults strike; the load stays open."""
    return Scenario(
        name=scenario.name,
        about=scenario.about,
        load=drawn.load,
        agents=Agents(**dict(zip(("acp", "command", "inprocess"), drawn.weights, strict=True)), shape=_shape(drawn)),
        faults=Faults(only=tuple(only)),
        world=World(
            schedules=(drawn.schedule,),
            seed=drawn.seed,
            **{name: getattr(drawn, name) for name in World.model_fields if name not in ("schedules", "seed")},
        ),
        settings=drawn.settings.model_dump(mode="json", exclude_unset=True),
    )


def _shape(drawn: Drawn) -> dict[str, Any]:
    """What differs from the usual shape."""
    shape, usual = (json.loads(msgspec.json.encode(one)) for one in (drawn.shape, AgentShape()))
    return {name: value for name, value in shape.items() if value != usual[name]}


def _with(scenario: Scenario, where: str, changes: Mapping[str, Any]) -> Scenario:
    part = getattr(scenario, where)
    return scenario.model_copy(update={where: part.model_copy(update=dict(changes))})


# ------------------------------------------------------------------------------------------------------- shrinking
class _Search:
    """The smallest run so far."""

    def __init__(
        self, scenario: Scenario, seed: int, patience: Callable[[], bool], heard: Callable[[int], None]
    ) -> None:
        drawn = scenario.draw(seed)
        report = _run_until(drawn, "")
        if not report.problems:
            raise NothingViolated(f"seed {seed} of {scenario.name} violates nothing, so there is nothing to shrink")
        self.seed = seed
        self.runs = 1
        self.invariant = invariant_of(report.problems[0])
        self.first = self.best = report
        self.scenario = pinned(scenario, drawn, report.struck)
        self._patience, self._heard = patience, heard

    @property
    def patient(self) -> bool:
        return self._patience()

    def takes(self, scenario: Scenario) -> bool:
        """Run it; it is the smallest so far if it violates the same."""
        if not self.patient:
            return False
        report = _run_until(scenario.draw(self.seed), self.invariant)
        self.runs += 1
        self._heard(self.runs)
        if all(invariant_of(one) != self.invariant for one in report.problems):
            return False
        self.best = report
        self.scenario = _with(scenario, "faults", {"only": report.struck})
        return True

    def faults(self) -> None:
        """Fewer faults."""
        ddmin(self.best.struck, self._strikes)

    def _strikes(self, only: Sequence[str]) -> Sequence[str] | None:
        taken = self.takes(_with(self.scenario, "faults", {"only": tuple(only)}))
        return self.best.struck if taken else None

    def load(self) -> None:
        """Less work, and fewer who disturb it."""
        for where, name in COUNTS:
            while self._less(where, name):
                pass

    def _less(self, where: str, name: str) -> bool:
        value, least = getattr(getattr(self.scenario, where), name), LEAST.get(name, 0)
        most = max(value) if isinstance(value, list) else value
        if not isinstance(most, int) or isinstance(value, dict):
            return False
        options = dict.fromkeys(one for one in (least, most // 2, most - 1) if least <= one < most)
        return any(self.takes(_with(self.scenario, where, {name: one})) for one in options)


def shrink(scenario: Scenario, seed: int, patience: Callable[[], bool], heard: Callable[[int], None]) -> Shrunk:
    """The smallest run that violates what this seed violates first.

    Args:
        patience: asked before each run; false ends the search with what it has.
        heard: told after each run how many there have been.

    Raises:
        NothingViolated: the seed violates nothing.
    """
    search = _Search(scenario, seed, patience, heard)
    try:
        _search(search)
        minimal = search.patient
    except KeyboardInterrupt:
        minimal = False
    return _shrunk(search, minimal)


def _search(search: _Search) -> None:
    before: Scenario | None = None
    while before != search.scenario and search.patient:
        before = search.scenario
        search.load()
        search.faults()


def _shrunk(search: _Search, minimal: bool) -> Shrunk:
    problem = next(one for one in search.best.problems if invariant_of(one) == search.invariant)
    name = f"{search.scenario.name}-{search.seed}"[-64:].lstrip("-")
    return Shrunk(
        scenario=search.scenario.model_copy(update={"name": name, "about": f"Shrunk: {problem}"}),
        seed=search.seed,
        invariant=search.invariant,
        problem=problem,
        faults_before=len(search.first.struck),
        faults=search.best.struck,
        runs=search.runs,
        minimal=minimal,
    )
