"""A pool of workers that await, some of which crash: each job is tried again by whoever wants it done.

A crash is its worker's alone. The pool's end is told to all workers at once, and their clean-up runs side by side.
Run it with ``python examples/kernel/worker_pool.py [trio]``.
"""

from __future__ import annotations

import sys

import anyio

from actors import (
    ActorRestarting,
    ActorSystem,
    Backoff,
    Context,
    CountChildren,
    Intensity,
    Pool,
    Ref,
    StartChild,
    open_system,
)


class Worker:
    """Squares numbers; the first try at every third one fails."""

    def __init__(self, tried: set[int], cleaned: list[str]) -> None:
        self.tried, self.cleaned = tried, cleaned

    def started(self, ctx: Context) -> None:
        ctx.start_task(self.connection, ctx)

    async def connection(self, ctx: Context) -> None:
        """Opened and closed by one task, as often as the worker lives."""
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(budget_s=1):
                await anyio.lowlevel.checkpoint()
                self.cleaned.append(ctx.id)

    async def receive(self, ctx: Context, number: int) -> int:
        await anyio.lowlevel.checkpoint()
        if number % 3 == 0 and number not in self.tried:
            self.tried.add(number)
            raise OSError(f"no luck with {number}")
        return number * number


async def square(worker: Ref, number: int, results: dict[int, int]) -> None:
    while number not in results:
        try:
            results[number] = await worker.ask(number, timeout_s=5)
        except ActorRestarting:
            continue


async def work(system: ActorSystem, pool: Ref) -> dict[int, int]:
    workers = [await pool.ask(StartChild(), timeout_s=5) for _ in range(3)]
    print(f"workers: {', '.join(worker.id for worker in workers)}")
    results: dict[int, int] = {}
    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(square, workers[number % len(workers)], number, results)
    print(f"squares: {[results[number] for number in range(9)]}")
    print(f"crashes: {system.crashes}; incarnations: {[worker.incarnation for worker in workers]}")
    print(f"children: {await pool.ask(CountChildren(), timeout_s=5)}")
    return results


async def main() -> None:
    tried: set[int] = set()
    cleaned: list[str] = []
    async with open_system(seed=1) as system:
        pool = Pool(
            lambda: Worker(tried, cleaned),
            backoff=Backoff(base_s=0.001, cap_s=0.001),
            intensity=Intensity(restarts_max=20, period_s=60.0),
        )
        await work(system, system.spawn(pool, "pool"))
        cleaned.clear()
        system.stop("pool", grace_s=2)
        await system.join("pool")
    print(f"cleaned up: {', '.join(sorted(cleaned))}")


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1] if len(sys.argv) > 1 else "asyncio")
