"""Cost of a shim: from spawn to the first output, from a kill to an empty tree, and its memory.

Run it with ``python -m benchmarks.processes [--short]``. Wall time on this machine; compare rows of one run, not runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio

from benchmarks.harness import BACKENDS, options
from supervisor.ports import Launch
from supervisor.processes.host import ShimHost, ShimProcess

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
TREE = "for i in 1 2 3 4 5; do setsid sleep 60 & done; (setsid sh -c 'sleep 60 & sleep 60' &); echo up; exec sleep 60"


class Effort(NamedTuple):
    """Sizes: processes that are started one after another; process trees at once, and rounds of them."""

    spawns: int
    trees: int
    rounds: int


FULL = Effort(40, 10, 5)
SHORT = Effort(2, 2, 1)


def launch(script: str) -> Launch:
    return Launch(argv=("sh", "-c", script), cwd="/", env=PATH)


def ms(since_s: float) -> float:
    return (time.perf_counter() - since_s) * 1000


async def first_output(effort: Effort) -> list[float]:
    """spawn to first output, one after another"""
    taken = []
    for _ in range(effort.spawns):
        start_s = time.perf_counter()
        async with ShimHost().spawn(launch("echo up")) as process:
            await process.receive()
            taken.append(ms(start_s))
            await process.wait_ended()
    return taken


async def without_shim(effort: Effort) -> list[float]:
    """the same with anyio.open_process"""
    taken = []
    for _ in range(effort.spawns):
        start_s = time.perf_counter()
        async with await anyio.open_process(["sh", "-c", "echo up"]) as process:
            assert process.stdout is not None
            await process.stdout.receive()
            taken.append(ms(start_s))
    return taken


async def with_trees(effort: Effort, act: Callable[[list[ShimProcess], list[float]], Awaitable[None]]) -> list[float]:
    """Start the trees together, and call *act* with them once all are running; return the times that *act* recorded."""
    taken: list[float] = []
    for _ in range(effort.rounds):
        trees: list[ShimProcess] = []
        all_up, done = anyio.Event(), anyio.Event()

        async def tree(trees: list[ShimProcess], all_up: anyio.Event, done: anyio.Event) -> None:
            async with ShimHost().spawn(launch(TREE)) as process:
                await process.receive()
                trees.append(process)
                if len(trees) == effort.trees:
                    all_up.set()
                await done.wait()

        async with anyio.create_task_group() as nursery:
            for _ in range(effort.trees):
                nursery.start_soon(tree, trees, all_up, done)
            await all_up.wait()
            await act(trees, taken)
            done.set()
    return taken


async def kill_together(effort: Effort) -> list[float]:
    """kill of all trees of 8 at once, until all are gone"""

    async def act(trees: list[ShimProcess], taken: list[float]) -> None:
        start_s = time.perf_counter()
        for tree in trees:
            tree.kill()
        for tree in trees:
            assert (await tree.wait_ended()).survivors == 0
        taken.append(ms(start_s))

    return await with_trees(effort, act)


async def kill_one_by_one(effort: Effort) -> list[float]:
    """kill of one tree of 8, until it is gone"""

    async def act(trees: list[ShimProcess], taken: list[float]) -> None:
        for tree in trees:
            start_s = time.perf_counter()
            tree.kill()
            await tree.wait_ended()
            taken.append(ms(start_s))

    return await with_trees(effort, act)


async def memory_kb() -> dict[str, int]:
    """Return the resident and proportional memory of one shim."""
    async with ShimHost().spawn(launch("echo up; exec sleep 60")) as process:
        await process.receive()
        lines = Path(f"/proc/{process.shim_client.pid}/smaps_rollup").read_text().splitlines()  # noqa: ASYNC240
        return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:3])}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases and print the table."""
    effort = SHORT if options(__doc__).parse_args(arguments).short else FULL
    print(f"{effort.spawns} processes one after another; {effort.trees} trees at once, {effort.rounds} times")
    for backend in BACKENDS:
        for case in (without_shim, first_output, kill_one_by_one, kill_together):
            taken = sorted(anyio.run(case, effort, backend=backend))
            median, most = statistics.median(taken), taken[-1]
            print(f"{backend:8} {(case.__doc__ or '').strip():55} median {median:6.1f} ms, max {most:6.1f} ms")
    print("one shim, kB:", anyio.run(memory_kb))


if __name__ == "__main__":
    main()
