"""What an operator says to the session of a task that is done: it may open a turn, but none once the task is closed."""

from __future__ import annotations

from contextlib import suppress

import pytest

from supervisor.embedding.runtime import Session
from supervisor.lifecycles.task import Task
from supervisor.ports import JournalError
from supervisor.runtime.entity import Refused
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "said-late"
[load]
customers = 1
works = 1.0
tasks = [1, 3]
[faults]
kinds = ["disk.slow"]
[world]
operators = 0
commit_s = [0.01, 0.5]
"""


class Operator:
    """Says something to the session of every task that is done, as soon as it is."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._said: set[str] = set()
        self.heard = 0

    def __call__(self, number: int, world: World, host: Host) -> None:
        for name in world.board.waiting(Task.DONE.value, ("w0t0", "w0t1", "w0t2")):
            if name not in self._said and not world.killed.is_set():
                self._said.add(name)
                host._group.start_soon(self._say, Session(host._sup, name))

    async def _say(self, session: Session) -> None:
        with suppress(NoSuchEntity, Refused, JournalError):
            await session.send("one more thing", urgent=True, at=self._at, sender="operator")
            self.heard += 1


@pytest.mark.parametrize("at", ["now", "turn_end"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_nobody_begins_to_work_on_what_is_closed(seed: int, at: str) -> None:
    operator = Operator(at)
    report = simulate(parsed("said-late", SCENARIO).draw(seed), intrude=operator)
    assert report.problems == ()
    assert operator.heard
