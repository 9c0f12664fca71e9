"""Journals of simulated runs, for tests of code that reads journals; and an asyncio event loop in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from supervisor.simulation.checkers import Checker, Fact, WorldMade
from supervisor.simulation.journal import SimulatedDisk
from supervisor.simulation.oracle import Oracle
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import library, named

SCENARIOS = tuple(name for name in library() if name != "day")
"""Names of scenarios that take about half a second each; the scenario of a whole day, with a million records, is left
out."""


def simulated_journal(scenario: str, seed: int) -> SimulatedDisk:
    """Run a scenario with one seed, including all its supervisors, and return the journal of that run."""
    disks: list[SimulatedDisk] = []

    class DiskOfTheRun(Checker):
        def observe(self, fact: Fact) -> None:
            if isinstance(fact, WorldMade):
                disks.append(fact.disk)

    def checkers(oracle: Oracle) -> list[Checker]:
        return [DiskOfTheRun()]

    simulate(named(scenario).draw(seed), checkers=checkers)
    [disk] = disks
    return disk


class _JumpingSelector(selectors.DefaultSelector):
    """Selector that does not wait: instead its clock moves on by the time that it should wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("nothing can ever happen any more")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def leap(self, seconds: float) -> None:
        """Move the clock on by *seconds*, as after a suspension of the machine."""
        self._jumping.now += seconds
