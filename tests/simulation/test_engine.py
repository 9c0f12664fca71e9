"""Tests of the simulation engine: a seed determines the order of steps, time is exact, and a run that cannot end is
reported and leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from supervisor.simulation.engine import (
    Deadlock,
    EngineResult,
    HorizonReached,
    Livelock,
    Schedule,
    leap,
    run,
    trio_engine,
    uncollected,
)
from supervisor.simulation.engine.schedule import on_grid
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import named

LOOPS = [one for one in Schedule if one is not Schedule.TRIO]
DRAWN = [one for one in Schedule if one is not Schedule.FIFO]
every_schedule = pytest.mark.parametrize("schedule", Schedule)


def play(main: Callable[[], Awaitable[Any]], schedule: Schedule = Schedule.SHUFFLE, seed: int = 1, **given: Any) -> Any:
    """Run *main* on the engine; return its value, or raise its error."""
    ran = run(main, seed=seed, schedule=schedule, **{"horizon_s": 1000.0, **given})
    assert ran.unhandled == []
    if ran.error is not None:
        raise ran.error
    return ran.value


def fail(main: Callable[[], Awaitable[Any]], schedule: Schedule, **given: Any) -> EngineResult[Any]:
    """Run *main*, which is expected to fail, and return the result with its error."""
    return run(main, seed=1, schedule=schedule, **{"horizon_s": 1000.0, "livelock_steps": 1000, **given})


# ----------------------------------------------------------------------------------------------- one seed, one order
async def crowd() -> list[int]:
    """Return the order in which twenty tasks take their steps, between waits and timers that are due at the same
    time."""
    log: list[int] = []

    async def member(number: int) -> None:
        for _ in range(4):
            await checkpoint()
            log.append(number)
            await anyio.sleep(1)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(member, number)
    return log


async def cancelled_at_once() -> list[str]:
    """Return the order in which forty tasks, in as many scopes, notice one cancellation."""
    log: list[str] = []

    async def wait(number: int) -> None:
        with anyio.CancelScope():
            try:
                await anyio.sleep_forever()
            finally:
                log.append(f"inner {number}")
        try:
            await checkpoint()
        finally:
            log.append(f"outer {number}")

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(wait, number)
        await anyio.sleep(1)
        group.cancel_scope.cancel()
    return log


@every_schedule
@pytest.mark.parametrize("main", [crowd, cancelled_at_once])
def test_a_seed_is_an_order(main: Callable[[], Awaitable[list[Any]]], schedule: Schedule) -> None:
    """Two runs with the same seed have the same order of steps, wherever the tasks lie in memory."""
    first = play(main, schedule)
    heap = [bytearray(one) for one in range(1000)]
    assert play(main, schedule) == first
    assert len(heap) == 1000


@pytest.mark.parametrize("schedule", DRAWN)
@pytest.mark.parametrize("main", [crowd, cancelled_at_once])
def test_another_seed_is_another_order(main: Callable[[], Awaitable[list[Any]]], schedule: Schedule) -> None:
    """Runs with five different seeds have five different orders of steps."""
    assert len({tuple(play(main, schedule, seed)) for seed in range(5)}) == 5


def test_fifo_is_the_order_of_asyncio() -> None:
    """On the schedule ``fifo``, without random numbers, tasks take turns as on asyncio's own loop."""
    assert play(crowd, Schedule.FIFO) == [number for _ in range(4) for number in range(20)]


def digest(seed: int, schedule: Schedule) -> str:
    """Return the digest of a simulated run of the whole runtime."""
    return simulate(msgspec.structs.replace(named("quiet").draw(seed), schedule=schedule)).digest


@every_schedule
def test_the_runtime_has_one_journal_per_seed(schedule: Schedule) -> None:
    """Two runs of the whole runtime with the same seed have the same digest of steps and records; other seeds have
    other digests."""
    digests = [digest(seed, schedule) for seed in (0, 2, 3, 0, 2, 3)]
    assert digests[:3] == digests[3:]
    assert len(set(digests)) == 3


# ------------------------------------------------------------------------------------------------------ exploration
async def overtaken(by: int) -> bool:
    """Return whether a task with one step left, the reader, is overtaken by a task with *by* steps, the writer."""
    done = seen = False

    async def reader() -> None:
        nonlocal seen
        await checkpoint()
        seen = done

    async def writer() -> None:
        nonlocal done
        for _ in range(by):
            await checkpoint()
        done = True

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        group.start_soon(writer)
    return seen


@pytest.mark.parametrize(("schedule", "found"), [("shuffle", False), ("trio", False), ("pct", True)])
def test_pct_reaches_what_passes_cannot(schedule: str, found: bool) -> None:
    """Only the schedule ``pct`` finds a race in which one task is overtaken by 16 steps of another; ``shuffle`` and
    trio, which order the steps within a pass, never do."""
    assert any(play(partial(overtaken, 16), Schedule(schedule), seed) for seed in range(30)) is found


@pytest.mark.parametrize(("by", "found"), [(8, True), (40, False)])
def test_a_window_overtakes_within_bounds(by: int, found: bool) -> None:
    """On the schedule ``window``, a step can be overtaken by 8 other steps, and not by 40: the bound is 32."""
    assert any(play(partial(overtaken, by), Schedule.WINDOW, seed) for seed in range(60)) is found


# ------------------------------------------------------------------------------------------------------------- time
@every_schedule
def test_time_outs_are_exact(schedule: Schedule) -> None:
    """A deadline is met at its exact virtual time, and takes no real time."""

    async def main() -> float:
        with anyio.move_on_after(86_400.1):
            await anyio.sleep_forever()
        return anyio.current_time()

    ran = run(main, seed=1, schedule=schedule, horizon_s=1e6)
    assert (ran.value, ran.simulated_s, ran.time_jumps) == (86_400.1, 86_400.1, 1)


@every_schedule
def test_sleeping_for_ever_is_no_timer(schedule: Schedule) -> None:
    """While some tasks wait for ever, virtual time moves on to the next timer."""

    async def main() -> float:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            await anyio.sleep(2)
            group.cancel_scope.cancel()
        return anyio.current_time()

    assert play(main, schedule) == 2.0


@every_schedule
def test_a_grain_makes_things_happen_at_once(schedule: Schedule) -> None:
    """With a grain, timers that are due at near times fire together, and none fires early."""

    async def main() -> set[float]:
        woken: set[float] = set()

        async def sleep(delay_s: float) -> None:
            await anyio.sleep(delay_s)
            assert anyio.current_time() >= delay_s
            woken.add(anyio.current_time())

        async with anyio.create_task_group() as group:
            for number in range(1, 50):
                group.start_soon(sleep, number / 49)
        return woken

    assert len(play(main, schedule)) == 49
    assert len(play(main, schedule, grain_s=0.25)) == 4


@pytest.mark.parametrize("grain_s", [0.1, 0.3, 1 / 3, 0.007, 2.0])
def test_the_grid_is_never_early(grain_s: float) -> None:
    """A time that is rounded to the grain is never early, including rounding errors; infinity stays infinity."""
    moments = [number * step for number in range(500) for step in (0.1, 0.7, 1 / 7)]
    assert all(moment <= on_grid(moment, grain_s) <= moment + grain_s * 1.000001 for moment in moments)
    assert on_grid(math.inf, grain_s) == math.inf


def test_many_cancelled_timers_are_swept() -> None:
    """Cancelled deadlines do not accumulate, and do not hide one that is still needed."""

    async def main() -> int:
        with anyio.move_on_after(50):
            for _ in range(1000):
                with anyio.fail_after(900):
                    await anyio.sleep(0.01)
            await anyio.sleep_forever()
        return asyncio.get_running_loop().timers  # type: ignore[attr-defined,no-any-return]

    assert play(main) < 600


# ---------------------------------------------------------------------------------------------- what does not end
async def hold(event: anyio.Event) -> None:
    await event.wait()


async def deadlocked() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(hold, anyio.Event(), name="holder")


async def shielded() -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


async def deaf() -> None:
    """Wait for ever, and ignore every cancellation."""
    while True:
        with suppress(BaseException):
            await anyio.sleep_forever()


async def deaf_behind_shields() -> None:
    while True:
        with suppress(BaseException):
            await shielded()


async def deaf_children() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(deaf)
        group.start_soon(deaf_behind_shields)


@every_schedule
@pytest.mark.parametrize("main", [deadlocked, shielded, deaf, deaf_behind_shields, deaf_children])
def test_a_deadlock_is_an_error(main: Callable[[], Awaitable[None]], schedule: Schedule) -> None:
    """A run in which nothing can happen any more fails with Deadlock and ends without other errors, also if its tasks
    ignore cancellation."""
    with uncollected():  # what its garbage has to complain of is heard here
        ran = fail(main, schedule)
        assert type(ran.error) is Deadlock
        assert f"{main.__name__} in " in str(ran.error)
        del ran


@every_schedule
def test_a_deadlock_says_who_waits_where(schedule: Schedule) -> None:
    """The error of a deadlock names each task with the line of its own code, not the library's, at which the task
    waits."""
    ran = fail(deadlocked, schedule)
    line = hold.__code__.co_firstlineno + 1
    assert str(ran.error).startswith("at 0 s: nothing can ever happen any more:")
    assert f"\n  holder in hold (test_engine.py:{line})" in str(ran.error)


async def spin() -> None:
    while True:
        await checkpoint()


@every_schedule
def test_a_livelock_is_an_error(schedule: Schedule) -> None:
    """A task that loops without waiting is stopped after so many steps, and the error names the task."""
    ran = fail(spin, schedule)
    assert type(ran.error) is Livelock
    assert "spin in spin (test_engine.py:" in str(ran.error)
    assert ran.steps == 1000


@every_schedule
def test_time_that_passes_is_no_livelock(schedule: Schedule) -> None:
    """A run of many steps in which time passes is not stopped as a livelock."""

    async def main() -> None:
        for _ in range(2000):
            await anyio.sleep(0.001)

    assert fail(main, schedule).error is None


async def tick() -> None:
    while True:  # noqa: ASYNC110
        await anyio.sleep(3)


@every_schedule
def test_the_horizon_is_an_error(schedule: Schedule) -> None:
    """A run that goes on after its horizon is stopped, and the error names where its tasks wait."""
    ran = fail(tick, schedule, horizon_s=10.0)
    assert type(ran.error) is HorizonReached
    assert (ran.simulated_s, ran.time_jumps) == (10.0, 3)
    assert "tick in tick (test_engine.py:" in str(ran.error)


@every_schedule
def test_a_leap_takes_nothing_of_the_horizon(schedule: Schedule) -> None:
    """After a leap of the clock the remaining time of the run is the same, and time never goes back."""

    async def main() -> None:
        await anyio.sleep(4)
        leap(100.0)
        await tick()

    ran = fail(main, schedule, horizon_s=10.0)
    assert type(ran.error) is HorizonReached
    assert (ran.simulated_s, ran.time_jumps) == (110.0, 3)


@every_schedule
def test_a_failed_run_says_so_before_it_unwinds(schedule: Schedule) -> None:
    """The callback ``on_failed`` is called once, before the run unwinds, for each kind of failure, and not for a run
    that ends well."""
    log: list[str] = []

    async def main() -> None:
        try:
            await tick()
        finally:
            log.append("unwound")

    def interrupt(number: int) -> None:
        if number == 10:
            raise LookupError

    fail(main, schedule, horizon_s=10.0, on_failed=lambda: log.append("failed"))
    fail(main, schedule, before_step=interrupt, on_failed=lambda: log.append("failed"))
    assert log == ["failed", "unwound"] * 2
    fail(checkpoint, schedule, on_failed=lambda: log.append("failed"))
    assert log == ["failed", "unwound"] * 2


@every_schedule
def test_what_unwinds_has_time(schedule: Schedule) -> None:
    """After a deadlock, shielded scopes work and ``finally`` clauses may wait."""
    log: list[float] = []

    async def main() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            log.append(anyio.current_time())

    assert type(fail(main, schedule).error) is Deadlock
    assert log == [5.0]


def test_the_rest_is_counted() -> None:
    """The error of a deadlock names twenty tasks, and gives the number of the others."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(29):
                group.start_soon(anyio.sleep_forever)

    assert str(fail(main, Schedule.FIFO).error).endswith("\n  and 10 more")


# ------------------------------------------------------------------------------------------------- what comes back
class Oops(Exception):
    """Exception that stands for an error of the simulated program."""


@every_schedule
def test_an_error_of_the_program_comes_back(schedule: Schedule) -> None:
    """An exception group with one error is unwrapped, at any depth, into the error of the run."""

    async def child() -> None:
        raise Oops

    async def main() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep_forever)
            inner.start_soon(child)

    assert type(fail(main, schedule).error) is Oops


@every_schedule
def test_an_interrupt_is_not_kept(schedule: Schedule) -> None:
    """A KeyboardInterrupt of the program is raised out of the simulation, and not stored as the error of the run."""

    async def main() -> None:
        await checkpoint()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(main, schedule)


@every_schedule
def test_ctrl_c_ends_a_run_and_nobody_in_it_hears_of_that(schedule: Schedule) -> None:
    """Ctrl-C ends a run between two steps, and no task notices it: a cancellation would cause output that no run
    without Ctrl-C has."""
    heard: list[object] = []

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            heard.append(error)
            raise

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            await checkpoint()
            signal.raise_signal(signal.SIGINT)
            heard.append("the step goes on to its end")
            await checkpoint()
            heard.append("another one")

    with pytest.raises(KeyboardInterrupt):
        fail(main, schedule)
    assert heard == ["the step goes on to its end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@every_schedule
def test_a_step_that_does_not_end_is_left_with_the_second_ctrl_c(schedule: Schedule) -> None:
    """The first Ctrl-C waits for the end of the current step; the second one ends the step at once."""
    pressed = 0

    async def main() -> None:
        nonlocal pressed
        while pressed < 3:
            pressed += 1
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fail(main, schedule)
    assert pressed == 2


@pytest.mark.parametrize("schedule", LOOPS)
def test_what_nobody_handles_is_kept(schedule: Schedule) -> None:
    """The errors of a callback that raises, and of a task whose error is never read, are in ``unhandled``, without
    memory addresses."""

    async def child() -> None:
        raise Oops("alone")

    def callback() -> None:
        raise Oops("called")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(callback)
        task = asyncio.ensure_future(child())
        await anyio.sleep(1)
        del task

    ran = run(main, seed=1, schedule=schedule, horizon_s=10)
    assert ran.error is None
    assert sorted(one.rpartition(": ")[2] for one in ran.unhandled) == ["alone", "called"]
    assert " at 0x" not in "".join(ran.unhandled)


@every_schedule
def test_every_step_is_announced(schedule: Schedule) -> None:
    """``before_step`` is called with every step number from 1 to the last, and its actions take place between two
    steps."""
    numbers: list[int] = []
    scope: list[anyio.CancelScope] = []

    async def main() -> str:
        with anyio.CancelScope() as whole:
            scope.append(whole)
            await anyio.sleep(50)
            return "slept"
        return "cancelled"

    ran = run(main, seed=1, schedule=schedule, horizon_s=100, before_step=numbers.append)
    assert ran.value == "slept"
    assert numbers == list(range(1, ran.steps + 1))

    def cancelled_before(step: int) -> Any:
        def cancel(number: int) -> None:
            if number == step and scope:
                scope[-1].cancel()

        scope.clear()
        return run(main, seed=1, schedule=schedule, horizon_s=100, before_step=cancel).value

    assert "cancelled" in [cancelled_before(step) for step in range(1, ran.steps)]


@every_schedule
def test_an_error_of_before_step_ends_the_run(schedule: Schedule) -> None:
    """An exception of ``before_step`` is the error of the run."""

    def before_step(number: int) -> None:
        if number == 7:
            raise Oops

    ran = fail(tick, schedule, before_step=before_step)
    assert (type(ran.error), ran.steps) == (Oops, 7)


@pytest.mark.parametrize("schedule", LOOPS)
def test_abandoned_generators_are_closed(schedule: Schedule) -> None:
    """The ``finally`` clause of an asynchronous generator runs, also if nobody finishes the generator."""
    log: list[float] = []

    async def numbers() -> Any:
        try:
            for number in range(10):
                yield number
        finally:
            await anyio.sleep(1)
            log.append(anyio.current_time())

    async def main() -> None:
        async for _ in numbers():
            break
        await anyio.sleep(3)
        kept.append(numbers())
        await anext(kept[0])

    kept: list[Any] = []
    play(main, schedule)
    assert log == [1.0, 4.0]


@pytest.mark.anyio
async def test_not_within_a_loop(anyio_backend: str) -> None:
    """Starting an engine inside of an event loop raises RuntimeError."""
    with pytest.raises(RuntimeError, match="outside of every event loop"):
        fail(tick, Schedule.FIFO)


def test_trio_can_still_be_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed trio has the private names that the trio schedule needs; without them, the error says to install an
    older trio."""
    with trio_engine.seeded(1):
        pass
    assert hasattr(trio_engine.trio.lowlevel.Task, "_cancel_status"), "trio has renamed what _unshield() reads"
    monkeypatch.delattr(trio_engine.trio_run, "_r")
    with pytest.raises(RuntimeError, match=r"trio .* has no _r in trio\._core\._run .*: install an older trio"):
        with trio_engine.seeded(1):
            pass
