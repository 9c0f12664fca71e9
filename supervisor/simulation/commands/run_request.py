"""Requests for runs: a scenario by name, a seed, and changes from the command line; and the command that repeats a run.

A request is small and made of plain values, so that it can be sent to other processes.
"""

from __future__ import annotations

import shlex
from math import isnan
from typing import NamedTuple

import msgspec

from supervisor.simulation.engine import Schedule
from supervisor.simulation.oracle import MakeCheckers, no_checkers
from supervisor.simulation.scenario import BadScenario, DrawnScenario, LoadConfig, Scenario, named

PROGRAM = "supervisor simulate"

SCENARIO = "swarm"
LOADED_SCENARIO = "day"
"""Name of the scenario for runs with a load from the command line: its limits suit many sessions and long hours."""


class Runner(NamedTuple):
    """Runner of scenarios: the program (the beginning of the command line that repeats a run), and the function that
    returns the checkers of the program's runs."""

    program: str = PROGRAM
    checkers: MakeCheckers = no_checkers


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a simulated run.

    Args:
        scenario: name of a scenario of the library, or a file; by default ``swarm`` of the library, or ``day`` if a
            load (*sessions* or *hours*) is given.
        seed: the seed of the run; by default the scenario's seed, if the scenario has one.
        sessions: number of customers, each of whom wants a separate session.
        hours: virtual hours over which the customers' turns are spread.
        schedule: name of the schedule, which decides the order of steps; by default drawn from the seed.
    """

    scenario: str | None = None
    seed: int | None = None
    sessions: int | None = None
    hours: float | None = None
    schedule: str | None = None

    @property
    def name(self) -> str:
        """Name of the requested scenario, or of the default scenario."""
        if self.scenario is not None:
            return self.scenario
        return SCENARIO if self.sessions is None and self.hours is None else LOADED_SCENARIO

    def with_seed(self, seed: int) -> RunRequest:
        """Return the same request with another seed."""
        return msgspec.structs.replace(self, seed=seed)

    def read(self) -> Scenario:
        """Read the scenario, with the requested load.

        Raises:
            BadScenario: the scenario does not exist, or the number of hours is nan, which click accepts.
        """
        if self.hours is not None and isnan(self.hours):
            raise BadScenario(f"--hours: {self.hours} is not a time; give hours, 0 to 10000")
        scenario = named(self.name)
        load = {"customers": self.sessions, "hours": self.hours}
        changed = {field: value for field, value in load.items() if value is not None}
        return scenario.model_copy(
            update={"load": LoadConfig.model_validate({**scenario.load.model_dump(), **changed})}
        )

    def draw(self) -> DrawnScenario:
        """Draw the scenario of the seed.

        Raises:
            BadScenario: the scenario does not exist, or neither the request nor the scenario has a seed.
        """
        scenario = self.read()
        seed = scenario.world.seed if self.seed is None else self.seed
        if seed is None:
            raise BadScenario(f"--seed: is missing, and {self.name} has none of its own; name a run, e.g. --seed 1")
        drawn = scenario.draw(seed)
        return drawn if self.schedule is None else msgspec.structs.replace(drawn, schedule=Schedule(self.schedule))

    def line(self, program: str = PROGRAM) -> str:
        """Return the command line of *program* that repeats exactly this run."""
        words = program.split()
        for field in ("scenario", "seed", "sessions", "hours", "schedule"):
            value = getattr(self, field)
            if value is not None:
                words += [f"--{field}", str(value)]  # of a float, every digit
        return shlex.join(words)
