"""The foremen of a simulated run, for those who have them do something at a moment of their own."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.simulation import host as hosts
from supervisor.simulation.host import Host
from supervisor.simulation.running import Report
from supervisor.simulation.scenario import Drawn, Scenario, parsed
from supervisor.simulation.works.operator_bot import OperatorBot
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

__all__ = ["Foremen", "lone_plan"]

LONE = """
name = "{name}"
[load]
customers = 1
works = 1.0
tasks = {tasks}
[faults]
kinds = []
[world]
operators = 0
{more}
"""


def lone_plan(name: str, *more: str, tasks: int = 1) -> Scenario:
    """One plan, where nothing goes wrong by itself; *more* are lines of its world, and of tables after that."""
    return parsed(name, LONE.format(name=name, tasks=tasks, more="\n".join(more)))


class Foremen:
    """Whoever intrudes on a run and knows its foremen: the last one belongs to the plan that was begun last."""

    def __init__(self) -> None:
        self.foremen: list[OperatorBot] = []

    def listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hear of every foreman from now on."""
        monkeypatch.setattr(hosts, "OperatorBot", self._appoint)

    def _appoint(self, *given: Any) -> OperatorBot:
        self.foremen.append(OperatorBot(*given))
        return self.foremen[-1]

    def __call__(self, number: int, world: World, host: Host) -> None:
        raise NotImplementedError("whoever intrudes says how")

    def intrude(self, drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> Report:
        """A run that it intrudes on."""
        with monkeypatch.context() as patched:
            self.listen(patched)
            return simulate(drawn, intrude=self)
