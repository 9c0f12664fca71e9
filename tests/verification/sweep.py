"""Sweeps: an abort, a kill of the supervisor, or a cancellation of its host at every single step of a run, so that no
race depends on luck.

A point lies between two steps of the run: the task of the intruder (the part that aborts, kills or cancels) is made
before the next step, and runs first. Up to a point, the run equals the run without intruder; so the possible targets
of an abort at each point are known beforehand, and a point is a function of scenario, seed, level and step. The
schedule ``window`` runs one step at a time; otherwise many steps would count as one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from supervisor.lifecycles.types import AbortScope
from supervisor.simulation.engine import Schedule
from supervisor.simulation.host import Host
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.scenario import DrawnScenario, Scenario, named
from supervisor.simulation.search.many import TaskFailed, map_in_order
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

LEVELS = tuple(one.value for one in AbortScope)
CRASH = "crash"
"""Level of a sweep that kills the supervisor."""
CANCEL = "cancel"
"""Level of a sweep that cancels the host, whatever the host waits for."""
LOAD = {"customers": 2, "turns": 1, "tasks": 2, "arrival_s": 0.5, "sessions_max": 2}
SHAPE = {"steps": [1, 3], "tools": [1, 3], "depth_max": 1, "delegation": 0.15}
WORLD = {"schedules": (Schedule.WINDOW,), "operators": 1, "heal_after_s": 10.0}
"""World settings of the small variants of scenarios: runs of about a thousand steps, so that 30,000 points take
minutes."""
SEEDS_TRIED = 20
FAR = 10**9
"""Stride that is longer than every run; selects a single point."""
KEPT = 50
"""Largest number of failing points that are stored with their messages; all failing points are counted."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Point of a run: the intruder (the abort, kill or cancellation) acts before the step ``step``."""

    scenario: str
    seed: int
    level: str
    step: int


class Every(msgspec.Struct, frozen=True):
    """Choice of steps: the step ``offset``, and every ``every``-th step after that."""

    every: int = 1
    offset: int = 0

    def takes(self, step: int) -> bool:
        return step >= self.offset and (step - self.offset) % self.every == 0


class FailingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Point whose run violated an invariant, and the command that runs the point again."""

    point: Point
    problem: str
    reproduce: str


class Counts(msgspec.Struct, kw_only=True):
    """Counts of the points of one scenario. ``not_applicable``: for each level, the steps at which the level had no
    target. ``same_as``: an earlier scenario whose small run is the same, step for step."""

    seed: int = 0
    same_as: str = ""
    steps: int = 0
    faults: int = 0
    points: int = 0
    violations: int = 0
    not_applicable: dict[str, str] = {}


class Sweep(msgspec.Struct, kw_only=True):
    """Sums over all points of a sweep."""

    points: int = 0
    not_applicable: int = 0
    violations: int = 0
    steps: int = 0
    scenarios: dict[str, Counts] = {}
    failing: list[FailingPoint] = []

    def add(self, point: Point, outcome: Outcome | TaskFailed) -> None:
        """Add the outcome of one point."""
        counts = self.scenarios[point.scenario]
        self.points += 1
        counts.points += 1
        if isinstance(outcome, TaskFailed):
            outcome = Outcome(violations=1, problem=f"simulator: {outcome.words}", steps=0)
        self.steps += outcome.steps
        if outcome.violations:
            self.violations += 1
            counts.violations += 1
            if len(self.failing) < KEPT:
                self.failing.append(FailingPoint(point=point, problem=outcome.problem, reproduce=_line(point)))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run with an intruder: the number of violations, the first problem, and the number of steps."""

    violations: int
    problem: str
    steps: int


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run without intruder: seed, digest, number of steps and faults, the first problem, and for each level
    the steps at which the level has a target."""

    seed: int
    digest: str
    faults: int
    steps: int
    problem: str
    applicable: dict[str, list[int]]


def _line(point: Point) -> str:
    how = f"--{point.level}" if point.level in (CRASH, CANCEL) else f"--levels {point.level}"
    where = f"--scenario {shlex.quote(point.scenario)} --seed {point.seed}"
    return f"python -m tests.verification sweep {where} {how} --every {FAR} --offset {point.step}"


# -------------------------------------------------------------------------------------------------------- one point
def small(scenario: Scenario) -> Scenario:
    """Return a scenario with less work, so that all points of its run can be tried."""
    load = scenario.load.model_copy(update=LOAD)
    world = scenario.world.model_copy(update={**WORLD, "crashes_max": min(1, _least(scenario.world.crashes_max))})
    agents = scenario.agents.model_copy(update={"shape": {**scenario.agents.shape, **SHAPE}})
    return scenario.model_copy(update={"load": load, "world": world, "agents": agents})


def _least(value: Any) -> int:
    """Return the least value of a setting that may be a number or a range."""
    return min(value) if isinstance(value, list) else int(value)


@lru_cache(maxsize=64)
def _drawn(scenario: str, seed: int) -> DrawnScenario:
    return small(named(scenario)).draw(seed)


def chart(start: Point) -> Chart:
    """Find a run in which a fault strikes, from *start*'s seed on; if none of the seeds tried has a fault, take the run
    of *start*'s seed. Level and step of *start* do not matter."""
    charts = (_chart(start.scenario, start.seed + number) for number in range(SEEDS_TRIED))
    first = next(charts)
    return first if first.faults else next((one for one in charts if one.faults), first)


def _chart(scenario: str, seed: int) -> Chart:
    """Run that seed without intruder and collect, at every step, the levels that have a target."""
    applicable: dict[str, list[int]] = {level: [] for level in (*LEVELS, CRASH, CANCEL)}

    def look(step: int, world: World, host: Host) -> None:
        for level in LEVELS:
            if host.targets(AbortScope(level)):
                applicable[level].append(step)
        if world.lives and not world.killed.is_set():
            applicable[CRASH].append(step)
            applicable[CANCEL].append(step)

    report = simulate(_drawn(scenario, seed), intrude=look)
    return Chart(
        seed=seed,
        digest=report.digest,
        faults=len(report.struck),
        steps=report.steps,
        problem="".join(report.problems[:1]),
        applicable=applicable,
    )


def run_point(point: Point) -> Outcome:
    """Run one point with its intruder; this can be called in any process."""

    def intrude(step: int, world: World, host: Host) -> None:
        if step != point.step:
            return
        if point.level == CRASH:
            world.kill()
            return
        if point.level == CANCEL:
            world.cancel()
            return
        scope = AbortScope(point.level)
        targets = host.targets(scope)
        target = KeyedRandom(point.seed).below("sweep").choice(targets, point.level, step)
        host.abort(target, scope)

    report = simulate(_drawn(point.scenario, point.seed), intrude=intrude)
    return Outcome(violations=report.violations, problem="".join(report.problems[:1]), steps=report.steps)


# ------------------------------------------------------------------------------------------------------- all points
def sweep(
    scenarios: Sequence[str],
    seed: int,
    levels: Sequence[str],
    every: Every,
    jobs: int,
    heard: Callable[[Sweep, int], None],
) -> tuple[Sweep, bool]:
    """Run all points of the scenarios; return the sums, and false if Ctrl-C interrupted the sweep.

    Args:
        levels: members of ``LEVELS``, ``CRASH`` and ``CANCEL``.
        heard: called with the sums so far, and the number of points.

    Raises:
        BadScenario: there is no such scenario.
    """
    total = Sweep()
    points: list[Point] = []
    first: dict[str, str] = {}

    def charted(point: Point, found: Chart | TaskFailed) -> None:
        counts = total.scenarios[point.scenario] = Counts()
        if isinstance(found, TaskFailed) or found.problem:
            total.add(
                point, found if isinstance(found, TaskFailed) else Outcome(violations=1, problem=found.problem, steps=0)
            )
            return
        counts.seed, counts.steps, counts.faults = found.seed, found.steps, found.faults
        same = first.setdefault(found.digest, point.scenario)
        if same != point.scenario:
            counts.same_as = same
        else:
            points.extend(_points_of(total, point, found, levels, every))

    def done(point: Point, outcome: Outcome | TaskFailed) -> None:
        total.add(point, outcome)
        heard(total, len(points))

    starts = [Point(scenario=_drawable(name, seed), seed=seed, level=LEVELS[0], step=0) for name in scenarios]
    complete = map_in_order(chart, starts, jobs, charted) and map_in_order(run_point, points, jobs, done)
    return total, complete


def _drawable(name: str, seed: int) -> str:
    """Draw a scenario and return its name; an invalid scenario is then reported once, not by every point."""
    _drawn(name, seed)
    return name


def _points_of(total: Sweep, start: Point, found: Chart, levels: Sequence[str], every: Every) -> Iterator[Point]:
    counts = total.scenarios[start.scenario]
    request = [step for step in range(1, found.steps + 1) if every.takes(step)]
    for level in levels:
        applicable = frozenset(found.applicable[level])
        missing = [step for step in request if step not in applicable]
        total.not_applicable += len(missing)
        counts.not_applicable[level] = _ranges(missing, every.every)
        for step in request:
            if step in applicable:
                yield Point(scenario=start.scenario, seed=found.seed, level=level, step=step)


def _ranges(steps: Sequence[int], stride: int) -> str:
    """Format numbers as ranges: ``1-55, 90, 92-93``."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][-1] + stride:
            ranges[-1][1:] = [step]
        else:
            ranges.append([step])
    return ", ".join("-".join(map(str, one)) for one in ranges)
