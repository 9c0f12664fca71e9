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
"""Scenario for runs with a given load: its bounds are made for many sessions and long hours."""


class Runner(NamedTuple):
    """Runner of scenarios: the program, as the command line begins that repeats a run, and the checkers of its runs."""

    program: str = PROGRAM
    checkers: MakeCheckers = no_checkers


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run to make.

    Args:
        scenario: a name of the library, or a file; the library's ``swarm``, or ``day`` where a load is given.
        seed: the run; the scenario's own if it has one.
        sessions: customers, each of whom wants a session of its own.
        hours: virtual hours over which their turns are spread.
        schedule: who decides the order of steps; drawn, if it is left out.
    """

    scenario: str | None = None
    seed: int | None = None
    sessions: int | None = None
    hours: float | None = None
    schedule: str | None = None

    @property
    def name(self) -> str:
        """Name of the scenario."""
        if self.scenario is not None:
            return self.scenario
        return SCENARIO if self.sessions is None and self.hours is None else LOADED_SCENARIO

    def with_seed(self, seed: int) -> RunRequest:
        """The same request with that seed."""
        return msgspec.structs.replace(self, seed=seed)

    def read(self) -> Scenario:
        """Read the scenario, with the requested load.

        Raises:
            BadScenario: there is no such scenario, or nan hours are wanted, which click lets pass.
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
            BadScenario: there is no such scenario, or it needs a seed.
        """
        scenario = self.read()
        seed = scenario.world.seed if self.seed is None else self.seed
        if seed is None:
            raise BadScenario(f"--seed: is missing, and {self.name} has none of its own; name a run, e.g. --seed 1")
        drawn = scenario.draw(seed)
        return drawn if self.schedule is None else msgspec.structs.replace(drawn, schedule=Schedule(self.schedule))

    def line(self, program: str = PROGRAM) -> str:
        """Command line of that program that repeats exactly this run."""
        words = program.split()
        for field in ("scenario", "seed", "sessions", "hours", "schedule"):
            value = getattr(self, field)
            if value is not None:
                words += [f"--{field}", str(value)]  # of a float, every digit
        return shlex.join(words)
