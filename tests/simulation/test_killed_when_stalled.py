"""The agent of a task is ended since nothing was heard of it, and its supervisor is killed before another one tries:
the task is tried again all the same, and not cancelled by how its session has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from supervisor.adapters.inprocess import AgentTurn
from supervisor.ledger import Cause
from supervisor.lifecycles.session import OperatorStop
from supervisor.ports import Append
from supervisor.simulation import claims
from supervisor.simulation.claims import Claims, simulate_claims
from supervisor.simulation.world import World
from supervisor.supervision import Supervisor


class Host(claims._Host):
    """Kills the first supervisor when the event *at* is on record."""

    at: str
    wanted_too: bool
    """Somebody else wants the session ended as well, while it ends."""
    tries: list[str]
    """How its runs went."""

    def __init__(self, world: World, *given: Any) -> None:
        super().__init__(world, *given)
        world.on_durable = self._look

    async def play(self, sup: Supervisor) -> None:
        self._sup = sup
        await super().play(sup)

    def _look(self, batch: Sequence[Append]) -> None:
        self.holders.wrote(batch)
        for record in (one.record for one in batch):
            if record.entity_type == "run" and record.from_status != record.to_status is not None:
                self.tries.append(str(record.to_status))
            if record.event == "OperatorStop" and self.wanted_too:
                stop = OperatorStop(reason="nobody wants it", abort_id="theirs")
                self._sup.tree.end(record.entity_id, stop, cause=Cause(None, None, "operator"))
            if record.event == self.at and self._world.lives == 1:
                self._world.kill()


async def work(bench: Any, turn: AgentTurn) -> str:
    """The first session never says anything; every later one is done at once."""
    if turn.session_id == "t0":
        await anyio.sleep_forever()
    bench.finished.add("t0")
    return "done"


def killed(monkeypatch: pytest.MonkeyPatch, at: str, *, wanted_too: bool = False) -> tuple[Claims, list[str]]:
    """A run of one task, and how its runs went."""
    tries: list[str] = []
    dying = type("Dying", (Host,), {"at": at, "wanted_too": wanted_too, "tries": tries})
    monkeypatch.setattr(claims, "_Host", dying)
    monkeypatch.setattr(claims._Bench, "work", work)
    found = simulate_claims(1, workers=1, tasks=1, kills=0)
    assert found.killed == 1
    return found, tries


@pytest.mark.parametrize(
    "at", ["Ended", "execution_timed_out", "retry_decided", "execution_failed", "retry_delay_elapsed"]
)
def test_it_is_tried_again(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of that was on record: the try is judged once, and another session has the next one."""
    found, tries = killed(monkeypatch, at)

    assert found.report.problems == ()
    assert found.closed == 1
    assert tries == ["PENDING", "IN_PROGRESS", "TIMEOUT", "RETRYING", "IN_PROGRESS", "VALIDATING", "COMPLETED"]


def test_it_is_cancelled_if_somebody_else_wanted_that(monkeypatch: pytest.MonkeyPatch) -> None:
    found, tries = killed(monkeypatch, "Ended", wanted_too=True)

    assert found.closed == 0
    assert tries == ["PENDING", "IN_PROGRESS", "CANCELLED"]
