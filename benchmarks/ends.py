"""Cost of ending a tree: wide, deep, without tasks and with a live task in every tenth actor; and of one tool call.

The bare figures are for a cancel of task groups of the same shape; on asyncio task groups may not nest as deep, so a
chain is compared per node. The figure of Erlang is for a supervisor tree of the same shape, stopped from the top.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable

import anyio

from actors import ActorSystem, open_system
from benchmarks.harness import (
    Case,
    Figures,
    Line,
    Sizes,
    Stopwatch,
    asynchronous,
    at_most,
    at_most_times,
    per_us,
    percentile,
)
from benchmarks.lives import context_of
from benchmarks.messages import Sink
from benchmarks.peers import peer
from benchmarks.primitives import parked, settle

NESTED = {"asyncio": 200, "trio": 1000}
"""Depth of nested bare task groups: on asyncio, a cancellation hangs at some depth above 300."""

Grow = Callable[[ActorSystem, Sizes], None]


# ---------------------------------------------------------------------- trees
def grow_wide(system: ActorSystem, sizes: Sizes) -> None:
    for i in range(sizes.wide):
        system.spawn(Sink(), f"{i}")
        for j in range(sizes.wide):
            system.spawn(Sink(), f"{i}.{j}", parent=f"{i}")


def grow_chain(system: ActorSystem, sizes: Sizes) -> None:
    system.spawn(Sink(), "0")
    for n in range(1, sizes.chain):
        system.spawn(Sink(), str(n), parent=str(n - 1), home="0")


def task_in_every_tenth(system: ActorSystem, sizes: Sizes) -> None:
    names = [name for top in system.children() for name in _below(system, top)]
    for name in names[::10]:
        context_of(system, name).start_task(parked)


def _below(system: ActorSystem, actor_id: str) -> list[str]:
    found, frontier = [], [actor_id]
    while frontier:
        found.append(frontier.pop())
        frontier.extend(system.children(found[-1]))
    return found


async def stop_s(sizes: Sizes, *grow: Grow) -> float:
    """Return the seconds that an orderly stop of the actors takes."""
    async with open_system() as system:
        for one in grow:
            one(system, sizes)
        await settle()
        await system.idle()
        with Stopwatch() as watch:
            await system.shut_down()
    return watch.spent_s


def tree_stop(*grow: Grow) -> Callable[[str, Sizes], Awaitable[float]]:
    """Make a measurement of the stop of a tree, in milliseconds for the whole tree."""

    async def once(backend: str, sizes: Sizes) -> float:
        return await stop_s(sizes, *grow) * 1e3

    return once


def chain_stop(*grow: Grow) -> Callable[[str, Sizes], Awaitable[float]]:
    """Make a measurement of the stop of a chain, in microseconds for each actor."""

    async def once(backend: str, sizes: Sizes) -> float:
        return per_us(await stop_s(sizes, grow_chain, *grow), sizes.chain)

    return once


def shorter(measure: Callable[[str, Sizes], Awaitable[float]]) -> Callable[[str, Sizes], Awaitable[float]]:
    """Make the measurement *measure* with chains a tenth as long."""

    async def once(backend: str, sizes: Sizes) -> float:
        short = sizes._replace(chain=max(2, sizes.chain // 10))
        times = [await measure(backend, short) for _ in range(3)]
        return percentile(times, 50)

    return once


# ---------------------------------------------------------------------- bare task groups
async def nested(width: int, depth: int, up: Callable[[], None]) -> None:
    """Open nested task groups with *width* children each, *depth* levels deep, and a waiting task at the bottom."""
    async with anyio.create_task_group() as group:
        up()
        for _ in range(width if depth else 0):
            group.start_soon(nested, width, depth - 1, up)
        await anyio.sleep_forever()


async def bare_cancel_s(width: int, depth: int) -> float:
    """Return the seconds that a cancel of nested task groups takes, from the top."""
    expected = sum(width**level for level in range(depth + 1))
    count, ready = 0, anyio.Event()

    def up() -> None:
        nonlocal count
        count += 1
        if count == expected:
            ready.set()

    async with anyio.create_task_group() as group:
        group.start_soon(nested, width, depth, up)
        await ready.wait()
        gc.collect()
        since = time.process_time()
        group.cancel_scope.cancel()
    return time.process_time() - since


async def bare_wide(backend: str, sizes: Sizes) -> float:
    return await bare_cancel_s(sizes.wide, 2) * 1e3


async def bare_chain(backend: str, sizes: Sizes) -> float:
    depth = min(NESTED[backend], sizes.chain)
    return per_us(await bare_cancel_s(1, depth), depth)


# ---------------------------------------------------------------------- one call among many
async def tool_aborts(backend: str, sizes: Sizes) -> Figures:
    """Measure the stop of one actor with a live task among idle actors, until it has ended: p50, p99; p99 in processor
    time."""
    wall, busy = [], []
    async with open_system() as system:
        for n in range(sizes.actors):
            system.spawn(Sink(), str(n))
        for _ in range(sizes.tool_aborts):
            system.spawn(Sink(), "tool")
            context_of(system, "tool").start_task(parked)
            await settle()
            await system.idle()
            since, used = time.perf_counter(), time.process_time()
            system.stop("tool")
            await system.join("tool")
            busy.append((time.process_time() - used) * 1e6)
            wall.append((time.perf_counter() - since) * 1e6)
    return percentile(wall, 50), percentile(wall, 99), percentile(busy, 99)


async def bare_tool_aborts(backend: str, sizes: Sizes) -> Figures:
    """Measure the cancel of the scope of one task among as many other tasks, until the task reports its end."""
    wall, busy = [], []

    async def tool(scope: anyio.CancelScope, gone: anyio.Event) -> None:
        with scope:
            await anyio.sleep_forever()
        gone.set()

    async with anyio.create_task_group() as group:
        for _ in range(sizes.actors):
            group.start_soon(parked)
        for _ in range(sizes.tool_aborts):
            scope, gone = anyio.CancelScope(), anyio.Event()
            group.start_soon(tool, scope, gone)
            await settle()
            since, used = time.perf_counter(), time.process_time()
            scope.cancel()
            await gone.wait()
            busy.append((time.process_time() - used) * 1e6)
            wall.append((time.perf_counter() - since) * 1e6)
        group.cancel_scope.cancel()
    return percentile(wall, 50), percentile(wall, 99), percentile(busy, 99)


GROUPS = "cancel task groups 100x100"
ERLANG = "Erlang supervisors 100x100"
CASES = (
    Case(
        (Line("stop 100x100 actors", "ms", at_most_times(0.5, "prototype")),),
        asynchronous(tree_stop(grow_wide)),
        ERLANG,
        peer("erlang", "tree"),
    ),
    Case(
        (Line("stop 100x100 actors", "ms"),),
        asynchronous(tree_stop(grow_wide)),
        GROUPS,
        asynchronous(bare_wide),
        rounds=2,
    ),
    Case(
        (Line("stop 100x100, a task in every tenth", "ms", at_most_times(1.25, "prototype")),),
        asynchronous(tree_stop(grow_wide, task_in_every_tenth)),
        ERLANG,
        peer("erlang", "tree"),
    ),
    Case(
        (Line("stop 100x100, a task in every tenth", "ms"),),
        asynchronous(tree_stop(grow_wide, task_in_every_tenth)),
        GROUPS,
        asynchronous(bare_wide),
        rounds=2,
    ),
    Case(
        (Line("stop a chain of 2,000, per actor", "us", at_most_times(1.5)),),
        asynchronous(chain_stop()),
        "a chain of 200",
        asynchronous(shorter(chain_stop())),
    ),
    Case(
        (Line("the same, a task in every tenth", "us", at_most_times(1.5)),),
        asynchronous(chain_stop(task_in_every_tenth)),
        "a chain of 200",
        asynchronous(shorter(chain_stop(task_in_every_tenth))),
    ),
    Case(
        (Line("stop a chain of 2,000, per actor", "us"),),
        asynchronous(chain_stop()),
        "task groups nested 200 / 1,000 deep",
        asynchronous(bare_chain),
    ),
    Case(
        (
            Line("tool abort among 10,000, p50", "us"),
            Line("tool abort among 10,000, p99", "us", at_most(100)),
            Line("the same, processor time, p99", "us", at_most(100)),
        ),
        asynchronous(tool_aborts),
        "cancel one bare task's scope",
        asynchronous(bare_tool_aborts),
    ),
)
