"""Soaks: runs of many seeds, with the sums of violations, and of the transitions, aborts and faults that were reached.

A soak without violations proves only as much as the soak reached, so violations and coverage are reported together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from supervisor.simulation.commands.run_request import Runner, RunRequest
from supervisor.simulation.coverage import to_reach
from supervisor.simulation.oracle import MakeCheckers
from supervisor.simulation.running import Report, simulate
from supervisor.simulation.scenario import BadScenario
from supervisor.simulation.search.many import TaskFailed, map_in_order


class FailingSeed(msgspec.Struct, frozen=True, kw_only=True):
    """Seed whose run violated an invariant: the first problem of the run, and the command that runs the seed again."""

    seed: int
    violations: int
    problem: str
    reproduce: str


class Soak(msgspec.Struct, kw_only=True):
    """Result of a soak: sums over many runs."""

    scenarios: int = 0
    violations: int = 0
    sessions: int = 0
    steps: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    failing: list[FailingSeed] = []
    reached: dict[str, int] = {}

    @property
    def not_reached(self) -> list[str]:
        return [name for name in to_reach() if name not in self.reached]

    def add(self, request: RunRequest, report: Report | TaskFailed, program: str) -> None:
        """Add the report of one run; a run whose task failed counts as a violation, too. *program* is the beginning of
        the command line that repeats the run."""
        self.scenarios += 1
        if isinstance(report, TaskFailed):
            self._fails(request, 1, f"simulator: {report.words}", program)
            return
        self.steps += report.steps
        self.sessions += report.sessions
        self.faults += sum(report.faults.values())
        self.simulated_s = round(self.simulated_s + report.simulated_s, 6)
        faults = {f"fault: {kind}": count for kind, count in report.faults.items()}
        for name, count in (report.reached | faults).items():
            self.reached[name] = self.reached.get(name, 0) + count
        if report.violations:
            self._fails(request, report.violations, report.problems[0], program)

    def _fails(self, request: RunRequest, violations: int, problem: str, program: str) -> None:
        assert request.seed is not None
        self.violations += violations
        line = request.line(program)
        self.failing.append(FailingSeed(seed=request.seed, violations=violations, problem=problem, reproduce=line))


class NotDrawn(msgspec.Struct, frozen=True):
    """Result of a seed whose draws do not make a valid scenario; *words* is the text of the error."""

    words: str


def run_one(checkers: MakeCheckers, request: RunRequest) -> Report | NotDrawn:
    """Run the requested simulation, in this or a worker process, and return the report."""
    try:
        drawn = request.draw()
    except BadScenario as error:
        return NotDrawn(str(error))
    return simulate(drawn, checkers=checkers)


def soak(
    request: RunRequest, seeds: range, jobs: int, heard: Callable[[Soak], None], runner: Runner
) -> tuple[Soak, bool]:
    """Run all seeds. Return the sums, and whether all seeds were run (false if Ctrl-C came first). *heard* is called
    with the sums after each run.

    Raises:
        BadScenario: the scenario does not exist, or the draws of a seed do not make a valid scenario.
    """
    request.read()  # a scenario that is none is told once, not by every seed
    total = Soak()

    def done(item: RunRequest, report: Report | NotDrawn | TaskFailed) -> None:
        if isinstance(report, NotDrawn):
            raise BadScenario(f"{report.words} (seed {item.seed})")
        total.add(item, report, runner.program)
        heard(total)

    complete = map_in_order(partial(run_one, runner.checkers), (request.with_seed(seed) for seed in seeds), jobs, done)
    return total, complete
