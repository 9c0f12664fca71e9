"""What an operator asks of the session that a task is about to be given to: no work on the task, whoever holds it."""

from __future__ import annotations

from contextlib import suppress

import anyio
import msgspec
import pytest

from supervisor.embedding.runtime import Session
from supervisor.lifecycles.types import AbortScope
from supervisor.ports import JournalError
from supervisor.simulation.engine import Schedule
from supervisor.simulation.host import Host
from supervisor.simulation.scenario import parsed
from supervisor.simulation.world import World
from tests.verification.checkers import simulate

SCENARIO = """
name = "asked-beside"
[load]
customers = 1
works = 1.0
tasks = 1
[faults]
kinds = []
[world]
operators = 0
commit_s = {commit_s}
"""


class Asker:
    """Prompts the session of the task as soon as there is one, before it holds the task on record."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: list[str] = []
        self.held = False

    def __call__(self, number: int, world: World, host: Host) -> None:
        if not self.asked and "w0t0" in host.targets(AbortScope.SESSION):
            self.asked += world.board.waiting("OPEN", ("w0t0",))
            host._group.start_soon(self._ask, Session(host._sup, "w0t0"))

    async def _ask(self, session: Session) -> None:
        with suppress(JournalError):  # of a supervisor that was killed
            self.done.append((await session.run("what is this about?")).outcome)


class Killer(Asker):
    """The same; and the supervisor is killed when the prompt is durable, and the claim is not."""

    def __call__(self, number: int, world: World, host: Host) -> None:
        super().__call__(number, world, host)
        row = world.disk.entities.get("w0t0")
        asked = row is not None and b"what is this about?" in row.data
        if asked and world.lives == 1 and not world.killed.is_set():
            self.held = not world.board.waiting("OPEN", ("w0t0",))
            world.kill()


@pytest.mark.parametrize("schedule", ["fifo", "shuffle", "pct"])
@pytest.mark.parametrize("commit_s", [0.0005, 3.0])
def test_it_is_no_work_on_the_task(schedule: str, commit_s: float) -> None:
    """The operator is answered, by the record of its own prompt; the task is tried once it is held, and only then."""
    drawn = parsed("asked-beside", SCENARIO.format(commit_s=commit_s)).draw(2)
    asker = Asker()
    report = simulate(msgspec.structs.replace(drawn, schedule=Schedule(schedule)), intrude=asker)
    assert report.problems == ()
    assert (asker.asked, asker.done) == (["w0t0"], ["completed"])
    assert report.reached["turn: VERIFYING task_completed COMPLETING"] >= 2
    assert report.reached["task: DONE closed CLOSED"] >= 1


def test_it_is_none_when_nobody_comes_for_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the claim is on record: the next supervisor goes on with what the operator asked, and the task is
    nobody's until its plan is run again."""

    async def come_back(host: Host, load_generator: object) -> None:
        await anyio.sleep(120.0 * (host._world.lives > 1))

    monkeypatch.setattr(Host, "_come_back", come_back)
    killer = Killer()
    drawn = parsed("asked-beside", SCENARIO.format(commit_s=0.0005)).draw(2)
    report = simulate(msgspec.structs.replace(drawn, schedule=Schedule("fifo")), intrude=killer)
    assert report.problems == ()
    assert not killer.held
    assert report.lives > 2
    assert report.reached["task: DONE closed CLOSED"] == 1
