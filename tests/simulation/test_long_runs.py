"""Tests of long simulated runs: ended entities leave memory at times that the run itself determines, and fault kinds
that are off use no random draw."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from actors import failpoint
from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append
from supervisor.simulation import journal
from supervisor.simulation.engine import Livelock, Schedule, loop, run
from supervisor.simulation.faults import FAULTS, FaultPlan
from supervisor.simulation.journal import SimulatedDisk
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.running import simulate, simulate_main
from supervisor.simulation.scenario import FaultsConfig, WorldConfig, named


def append(seq: int, entity_id: str, entity_seq: int, *, ended: bool = False) -> Append:
    """Make the append of a record with an effect to be performed."""
    record = LifecycleEvent(
        seq=seq,
        timestamp=float(seq),
        monotonic_s=float(seq),
        entity_type="turn",
        entity_id=entity_id,
        entity_seq=entity_seq,
        event="Happened",
        outcome="born" if entity_seq == 1 else "transition",
    )
    owed = ((f"{seq}.0", b"{}"),)
    return Append(record=record, parent_id=None, state="RUNNING", data=b"{}", owed=owed, ended=ended)


def test_a_run_that_is_stuck_decides_nothing_in_later_ones() -> None:
    """A task that swallows every cancellation outlives its simulated run; failpoints that the task passes later do not
    affect later runs."""

    async def stuck(_: Supervisor) -> None:
        while True:
            with suppress(anyio.get_cancelled_exc_class()):
                await checkpoint()

    world, faults = WorldConfig(schedules=(Schedule.FIFO,)), FaultsConfig(only=("point@nobody#0",))
    scenario = named("quiet").model_copy(update={"world": world, "faults": faults})
    played = simulate_main(stuck, scenario.draw(1))
    assert isinstance(played.error, Livelock)
    assert not failpoint.deciders


def test_old_records_of_who_has_ended_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated disk holds the whole log of a live entity in memory; of ended entities, and of all records in
    order, the disk holds only the newest ones."""
    monkeypatch.setattr(journal, "RECORDS_KEPT", 10)
    heard: list[int] = []
    disk = SimulatedDisk(lambda batch, encoded: heard.extend(one.record.seq for one in batch))
    disk.write([append(1, "lives", 1)])
    for number in range(1, 20):
        disk.write([append(number + 1, f"t{number}", 1, ended=True)])
    assert heard == list(range(1, 21))
    assert disk.last_seq == 20
    assert disk.log.seqs == list(range(11, 21))
    assert list(disk.logs) == ["lives", *(f"t{number}" for number in range(10, 20))]
    assert [one.seq for one in disk.logs["lives"].after(0, 10)] == [1]
    assert disk.effects == {f"{seq}.0" for seq in range(11, 21)}
    assert len(disk.owed) == 20, "what is owed is owed, however old"
    assert len(disk.entities) == 20, "what became of them is still known"


class Cycle:
    """Object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.me: Any = self


def test_garbage_is_collected_during_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a run the automatic garbage collector is off; the loop collects after so many steps, and not before."""
    monkeypatch.setattr(loop, "COLLECT_STEPS", 50)

    async def main() -> tuple[bool, bool]:
        garbage = weakref.ref(Cycle())
        assert not gc.isenabled()
        for _ in range(10):
            await anyio.sleep(1)
        early = garbage() is None
        for _ in range(50):
            await anyio.sleep(1)
        return early, garbage() is None

    ran = run(main, seed=1, schedule=Schedule.FIFO, horizon_s=1000.0)
    assert ran.error is None
    assert ran.value == (False, True)


@pytest.mark.parametrize("only", [None, ["disk.slow@1"]])
def test_a_kind_that_may_not_strike_never_does(only: list[str] | None) -> None:
    """A fault kind for which ``may_strike`` is false never strikes, with rates and with a list of strikes."""
    plan = FaultPlan(KeyedRandom(4), only=only)
    off = [kind for kind in FAULTS if not plan.may_strike(kind)]
    on = [kind for kind in FAULTS if plan.may_strike(kind)]
    assert on
    assert off
    assert not [kind for kind in off for place in range(200) if plan.strikes(kind, place)]
    assert only is not None or {kind for kind in on for place in range(5000) if plan.strikes(kind, place)} == set(on)
    plan.heal()
    assert not [kind for kind in FAULTS if plan.may_strike(kind)]


def test_a_run_leaves_nothing_in_memory() -> None:
    """The world of a run is freed after the run, so that thousands of runs in one process need no more memory than
    one."""
    worlds: list[weakref.ref[Any]] = []

    def intrude(number: int, world: Any, host: Any) -> None:
        if not worlds:
            worlds.append(weakref.ref(world))

    simulate(named("calm").draw(1), intrude=intrude)
    assert [one() for one in worlds] == [None]
