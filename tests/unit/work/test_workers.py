"""Tests of the pool of workers in virtual time: slots, heartbeats, loss, return and draining, with the records."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
import trio
from trio.testing import MockClock

from supervisor.diagnostics.event_replay import KINDS
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import LifecycleEvent, NoSuchEntity
from supervisor.lifecycles.worker import Worker
from supervisor.plans import WorkerConfig
from supervisor.runtime.journal_writer import Cause
from supervisor.work.workers import FreeWorker, WorkerPool
from tests.simulated import VirtualLoop
from tests.support import FrozenJournal, Run, states_of, supervising

STREAM = "workstream:w"
SAYS = Cause(actor="test")
A_DAY_S = 86_400.0
ONE = {"w": WorkerConfig()}

Play: TypeAlias = "Callable[[Run], Coroutine[Any, Any, None]]"


@pytest.fixture(params=["asyncio", "trio"])
def virtually(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Play], Run]:
    """Return a function that runs a test on a supervisor in virtual time, and returns the run for a check of its
    records."""

    def run(play: Play, journal: Callable[[MemoryStore], MemoryJournal] = MemoryJournal) -> Run:
        options: dict[str, Any] = {"loop_factory": VirtualLoop}
        if request.param == "trio":
            options = {"clock": MockClock(autojump_threshold=0)}

        async def main() -> Run:
            async with supervising(tmp_path, within_s=10 * A_DAY_S, journal=journal) as run:
                await play(run)
            return run

        return anyio.run(main, backend=request.param, backend_options=options)

    return run


async def pool_of(run: Run, workers: dict[str, WorkerConfig], slots: int = 6, **given: Any) -> WorkerPool:
    pool = WorkerPool(run.sup.core, workers, slots, **given)
    await pool.start(STREAM, SAYS)
    return pool


async def give(pool: WorkerPool, worker_id: str, name: str) -> None:
    pool.reserve(worker_id, name)
    pool.assign(worker_id, name, SAYS)


async def nobody(pool: WorkerPool, worker_id: str, heartbeat_s: float) -> None:
    """Send no heartbeat, in place of the usual heartbeat: a worker is silent unless the test calls ``beat``."""


def free(pool: WorkerPool) -> list[str]:
    return [slot.id for slot in pool.free()]


def taken(events: list[LifecycleEvent]) -> Counter[tuple[str, str, str]]:
    """Return how often each edge of the workers' table was taken, as (state, event, next state)."""
    moves = [one for one in events if one.entity_type == "worker" and one.outcome == "transition"]
    return Counter((one.from_status, one.event, one.to_status) for one in moves)


# ------------------------------------------------------------------------------------------------------------ slots
def test_a_plan_that_names_no_worker_has_the_local_one(virtually: Callable[[Play], Run]) -> None:
    """A plan without workers has the worker ``local``, with one slot for each session of the plan, offered while one is
    free."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, {}, slots=2)
        assert pool.free() == [FreeWorker("worker:local", None)]
        await give(pool, "worker:local", "a")
        await give(pool, "worker:local", "b")
        assert pool.free() == []
        await pool.done("worker:local", "a", SAYS)
        assert free(pool) == ["worker:local"]
        await pool.stop()

    run = virtually(play)
    assert states_of(run.events(), "worker:local") == ["initializing", "idle", "busy", "idle", "shutdown"]
    [registered] = run.transitions("registration_complete")
    assert registered.metadata | {"duration_seconds": 0} == {
        "capabilities": ["*"],
        "max_concurrent_tasks": 2,
        "last_heartbeat_at": None,
        "duration_seconds": 0,
    }
    assert [one.metadata["active_tasks"] for one in run.transitions("task_assigned")] == [1, 2]
    assert [one.metadata["active_tasks"] for one in run.transitions("task_completed")] == [1, 0]


def test_named_workers_have_what_the_plan_says(virtually: Callable[[Play], Run]) -> None:
    """Each worker has its slots and capabilities, roles included; the worker that received a task most recently is
    last."""

    async def play(run: Run) -> None:
        workers = {"a": WorkerConfig(slots=2, roles=("qa",)), "b": WorkerConfig(capabilities=("gpu",))}
        pool = await pool_of(run, workers)
        assert pool.free() == [
            FreeWorker("worker:a", frozenset({"role:qa"})),
            FreeWorker("worker:b", frozenset({"gpu"})),
        ]
        await give(pool, "worker:a", "1")
        assert free(pool) == ["worker:b", "worker:a"]
        await give(pool, "worker:b", "2")
        assert free(pool) == ["worker:a"]
        with pytest.raises(LookupError, match="worker 'worker:b' has no slot for '3'"):
            pool.reserve("worker:b", "3")
        await pool.stop()

    virtually(play)


def test_a_reserved_slot_that_was_never_used(virtually: Callable[[Play], Run]) -> None:
    """A task given up before it was assigned leaves no record, and its reserved slot is free again."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE)
        pool.reserve("worker:w", "a")
        await pool.done("worker:w", "a", SAYS)
        assert free(pool) == ["worker:w"]
        await pool.stop()

    assert states_of(virtually(play).events(), "worker:w") == ["initializing", "idle", "shutdown"]


def test_more_or_fewer_slots_while_it_runs(virtually: Callable[[Play], Run]) -> None:
    """More slots are added as a second worker; with fewer slots, running tasks finish, and only free slots are
    offered."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, {}, slots=1)
        await give(pool, "worker:local", "a")
        pool.resize({}, 3)
        await anyio.sleep(1.0)
        assert free(pool) == ["worker:local-2"]
        await give(pool, "worker:local-2", "b")
        pool.resize({}, 2)
        assert free(pool) == []
        await pool.done("worker:local", "a", SAYS)
        assert set(free(pool)) == {"worker:local", "worker:local-2"}
        await pool.stop()

    run = virtually(play)
    assert [one.metadata["max_concurrent_tasks"] for one in run.transitions("registration_complete")] == [1, 2]


def test_other_workers_while_it_runs(virtually: Callable[[Play], Run]) -> None:
    """On a change of workers, a new or changed worker is registered, and an unwanted worker ends when it has no
    task."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, {"a": WorkerConfig(), "b": WorkerConfig(), "c": WorkerConfig()})
        await give(pool, "worker:b", "1")
        pool.resize({"a": WorkerConfig(), "c": WorkerConfig(slots=2), "d": WorkerConfig()}, 6)
        await anyio.sleep(1.0)
        assert set(free(pool)) == {"worker:a", "worker:c-2", "worker:d"}
        await pool.done("worker:b", "1", SAYS)
        assert "worker:b" not in free(pool)
        pool.resize({}, 4)
        await anyio.sleep(1.0)
        assert free(pool) == ["worker:local"]
        await pool.stop()

    run = virtually(play)
    assert states_of(run.events(), "worker:b")[-2:] == ["busy", "shutdown"]
    assert states_of(run.events(), "worker:c") == ["initializing", "idle", "shutdown"]


# ------------------------------------------------------------------------------------------------------------ health
def test_workers_of_this_process_beat(virtually: Callable[[Play], Run]) -> None:
    """A worker of this process sends heartbeats, and is not lost however long its task takes."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, {"idle": WorkerConfig(), "busy": WorkerConfig()})
        await give(pool, "worker:busy", "a")
        await anyio.sleep(A_DAY_S)
        await pool.done("worker:busy", "a", SAYS)
        await pool.stop()

    assert virtually(play).transitions("health_check_timeout") == []


def test_a_stuck_heartbeat_is_found(virtually: Callable[[Play], Run]) -> None:
    """A worker without heartbeats is lost after three checks, one each half minute."""

    async def play(run: Run) -> None:
        lost: list[tuple[str, list[str]]] = []
        pool = await pool_of(run, ONE, on_lost=lambda worker_id, tasks: lost.append((worker_id, tasks)))
        await give(pool, "worker:w", "a")
        pool.beat = lambda worker_id: True  # type: ignore[method-assign]
        await anyio.sleep(89.0)
        assert lost == []
        await anyio.sleep(2.0)
        assert lost == [("worker:w", ["a"])]
        assert free(pool) == []
        await pool.stop()

    run = virtually(play)
    [missed] = run.transitions("health_check_timeout")
    assert missed.metadata["missed"] == 3


def test_a_beat_at_the_instant_of_a_look_counts(virtually: Callable[[Play], Run]) -> None:
    """A heartbeat just after a check resets the count: the worker is lost only three checks later."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE, heartbeat=nobody)
        looks, look = list[bool](), pool._look

        def look_and_hear(worker: Any) -> None:
            look(worker)
            looks.append(worker.is_lost)
            if len(looks) == 2:
                pool.beat(worker.id)

        pool._look = look_and_hear  # type: ignore[method-assign]
        await anyio.sleep(151.0)
        assert looks == [False, False, False, False, True]
        await pool.stop()

    [missed] = virtually(play).transitions("health_check_timeout")
    assert missed.metadata["missed"] == 3


def test_a_lost_worker_comes_back_with_nothing(virtually: Callable[[Play], Run]) -> None:
    """A lost worker whose heartbeat comes again returns with all slots free, after all of its tasks were released."""

    async def play(run: Run) -> None:
        freed: list[int] = []
        workers = {"w": WorkerConfig(slots=2)}
        pool = await pool_of(run, workers, heartbeat=nobody, on_free=lambda: freed.append(1))
        await give(pool, "worker:w", "a")
        pool.reserve("worker:w", "b")
        await anyio.sleep(91.0)
        pool.assign("worker:w", "b", SAYS)  # too late: nobody hears of it
        assert pool.beat("worker:w")
        await pool.done("worker:w", "b", SAYS)
        assert free(pool) == []
        await pool.done("worker:w", "a", SAYS)
        freed.clear()
        await anyio.sleep(1.0)
        assert free(pool) == ["worker:w"]
        assert freed == [1]
        await give(pool, "worker:w", "c")
        await pool.stop()

    run = virtually(play)
    path = ["initializing", "idle", "busy", "unresponsive", "idle", "busy", "idle", "shutdown"]
    assert states_of(run.events(), "worker:w") == path
    assert [one.metadata["task_id"] for one in run.transitions("task_assigned")] == ["a", "c"]


def test_a_beat_before_the_loss_does_not_bring_a_worker_back(virtually: Callable[[Play], Run]) -> None:
    """A worker that is still silent when its last task is released stays lost."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE, heartbeat=nobody)
        await give(pool, "worker:w", "a")
        await anyio.sleep(91.0)
        await pool.done("worker:w", "a", SAYS)
        assert free(pool) == []
        await pool.stop()

    assert virtually(play).transitions("health_check_recovered") == []


def test_a_worker_that_stays_silent_is_replaced(virtually: Callable[[Play], Run]) -> None:
    """After three minutes of silence a worker is replaced, and a late ``beat`` returns false."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE, heartbeat=nobody)
        await anyio.sleep(179.0)
        assert pool.beat("nobody") is False
        assert free(pool) == []
        await anyio.sleep(2.0)
        assert free(pool) == ["worker:w-2"]
        await anyio.sleep(1.0)
        assert pool.beat("worker:w") is False
        await pool.stop()

    run = virtually(play)
    assert states_of(run.events(), "worker:w") == ["initializing", "idle", "unresponsive", "shutdown"]
    [given_up] = run.transitions("max_timeout_exceeded")
    assert given_up.metadata["silent_s"] == 180.0


def test_a_lost_worker_stays_while_its_task_is_worked_on(virtually: Callable[[Play], Run]) -> None:
    """A lost worker is not shut down while one of its tasks is not released."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE, heartbeat=nobody)
        await give(pool, "worker:w", "a")
        await anyio.sleep(1_000.0)
        assert run.transitions("max_timeout_exceeded") == []
        await pool.done("worker:w", "a", SAYS)
        await anyio.sleep(31.0)
        assert free(pool) == ["worker:w-2"]
        await pool.stop()

    virtually(play)


def test_a_pause_is_nobodys_silence(virtually: Callable[[Play], Run]) -> None:
    """No worker is lost because the process was suspended for hours."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE)
        await anyio.sleep(15.0)
        leap(7_200.0)
        await anyio.sleep(600.0)
        assert free(pool) == ["worker:w"]
        await pool.stop()

    assert virtually(play).transitions("health_check_timeout") == []


def leap(seconds: float) -> None:
    """Simulate that the process is suspended for so many seconds."""
    if trio.lowlevel.in_trio_run():
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(seconds)
    else:
        import asyncio

        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.leap(seconds)


# ------------------------------------------------------------------------------------------------------------ draining
def test_an_idle_worker_is_drained_at_once(virtually: Callable[[Play], Run]) -> None:
    """A drained worker without tasks is shut down at once, and its id is unknown afterwards."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE)
        pool.drain("worker:w")
        assert free(pool) == []
        await anyio.sleep(1.0)
        with pytest.raises(NoSuchEntity):
            pool.drain("worker:w")
        await pool.stop()

    assert states_of(virtually(play).events(), "worker:w") == ["initializing", "idle", "shutdown"]


def test_a_busy_worker_finishes_first(virtually: Callable[[Play], Run]) -> None:
    """A drained worker takes no new task, finishes its tasks, reserved ones included, and is shut down after
    the last."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, {"w": WorkerConfig(slots=3)})
        await give(pool, "worker:w", "a")
        pool.reserve("worker:w", "b")
        pool.drain("worker:w")
        assert free(pool) == []
        pool.assign("worker:w", "b", SAYS)
        await pool.done("worker:w", "a", SAYS)
        assert run.row("worker:w").state == "busy"
        await pool.done("worker:w", "b", SAYS)
        await pool.stop()

    run = virtually(play)
    assert states_of(run.events(), "worker:w") == ["initializing", "idle", "busy", "shutdown"]
    assert [one.reason for one in run.transitions("shutdown_requested")] == ["told to drain", "drained"]


def test_a_worker_drained_as_its_last_task_ends_is_shut_down(virtually: Callable[..., Run]) -> None:
    """A drained worker is shut down even if the end of its last task is not durable yet."""
    disks: list[FrozenJournal] = []

    def disk(store: MemoryStore) -> MemoryJournal:
        disks.append(FrozenJournal(store, freeze_at="task_completed"))
        return disks[-1]

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE)
        await give(pool, "worker:w", "a")
        await run.sup.core.journal_writer.flush()  # otherwise the assignment may be in the frozen batch as well
        async with anyio.create_task_group() as group:
            group.start_soon(pool.done, "worker:w", "a", SAYS)
            await disks[0].frozen.wait()
            states = (run.sup.core.registry.entity("worker:w").state, run.row("worker:w").state)
            pool.drain("worker:w")
            disks[0].thaw.set()
        assert states == (Worker.IDLE, "busy")
        await pool.stop()

    run = virtually(play, disk)
    assert states_of(run.events(), "worker:w") == ["initializing", "idle", "busy", "idle", "shutdown"]
    assert [one.reason for one in run.transitions("shutdown_requested")] == ["drained"]


def test_a_draining_worker_that_was_lost_ends_when_it_comes_back(virtually: Callable[[Play], Run]) -> None:
    """A draining worker that was lost receives no task after its return, and is shut down."""

    async def play(run: Run) -> None:
        pool = await pool_of(run, ONE, heartbeat=nobody)
        await give(pool, "worker:w", "a")
        pool.drain("worker:w")
        await anyio.sleep(91.0)
        await pool.done("worker:w", "a", SAYS)
        pool.beat("worker:w")
        await anyio.sleep(1.0)
        assert free(pool) == []
        await pool.stop()

    path = ["initializing", "idle", "busy", "unresponsive", "idle", "shutdown"]
    assert states_of(virtually(play).events(), "worker:w") == path


# ------------------------------------------------------------------------------------------------------------ the whole
def test_every_edge_is_taken(virtually: Callable[[Play], Run]) -> None:
    """The pool takes every edge of the workers' table, but for the end of a worker with its supervisor."""

    async def play(run: Run) -> None:
        workers = {name: WorkerConfig(slots=2) for name in ("lost", "back", "drained", "idle", "unused")}
        pool = await pool_of(run, workers, heartbeat=nobody)
        pool.drain("worker:unused")
        for name in ("a", "b"):
            await give(pool, "worker:drained", name)
        pool.drain("worker:drained")
        for name in ("a", "b"):
            await pool.done("worker:drained", name, SAYS)
        await give(pool, "worker:back", "c")
        await give(pool, "worker:idle", "d")
        await give(pool, "worker:idle", "e")
        for name in ("d", "e"):
            await pool.done("worker:idle", name, SAYS)
        await anyio.sleep(91.0)
        await pool.done("worker:back", "c", SAYS)
        for name in ("worker:back", "worker:idle"):
            pool.beat(name)
        await anyio.sleep(90.5)
        await give(pool, "worker:lost-2", "f")
        await anyio.sleep(91.0)
        await pool.stop()

    edges = {edge for edge in KINDS["worker"].edges if "supervisor_lost" not in edge}
    assert set(taken(virtually(play).events())) == edges


def test_workers_of_a_dead_supervisor(virtually: Callable[[Play], Run], tmp_path: Path) -> None:
    """Workers of a dead supervisor hold no tasks, take none, and are shut down with the next pool."""
    left = MemoryStore()

    async def play(run: Run) -> None:
        nonlocal left
        pool = await pool_of(run, {"busy": WorkerConfig(), "idle": WorkerConfig()})
        await give(pool, "worker:busy", "a")
        await run.sup.core.journal_writer.flush()
        left = copy.deepcopy(run.store)
        await pool.stop()

    virtually(play)

    async def after() -> None:
        async with supervising(tmp_path, journal=lambda store: MemoryJournal(left)) as run:
            pool = await pool_of(run, {"busy": WorkerConfig()})
            assert free(pool) == ["worker:busy-2"]
            pool.end_left()
            await pool.stop()

    anyio.run(after)
    assert {row.id: row.state for row in left.entities.values()} == {
        "worker:busy": "shutdown",
        "worker:idle": "shutdown",
        "worker:busy-2": "shutdown",
    }
