"""Peer xoscar, in one process: asyncio actors behind an address. Run as ``python -m benchmarks.peers.xoscar ask
1000``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import xoscar  # type: ignore[import-untyped]

from benchmarks.harness import Stopwatch, per_us, percentile, round_trips_us
from benchmarks.peers import main
from benchmarks.peers.clocks import resident_bytes


class Counter(xoscar.Actor):  # type: ignore[misc]
    def __init__(self) -> None:
        self.count = 0

    async def add(self, number: int) -> None:
        self.count += number

    async def seen(self) -> int:
        return self.count

    async def echo(self, message: Any) -> Any:
        return message


def in_pool(measure: Callable[[str, int], Awaitable[float]]) -> Callable[[int], float]:
    """Run a measurement in an actor pool of one process."""

    async def pooled(count: int) -> float:
        pool = await xoscar.create_actor_pool("127.0.0.1", n_process=0)
        try:
            return await measure(pool.external_address, count)
        finally:
            await pool.stop()

    return lambda count: asyncio.run(pooled(count))


async def tell_us(address: str, count: int) -> float:
    ref = await xoscar.create_actor(Counter, address=address, uid="counter")
    with Stopwatch() as watch:
        for _ in range(count):
            await ref.add.tell(1)
        while await ref.seen() < count:
            pass
    return per_us(watch.spent_s, count)


async def ask_us(address: str, count: int) -> float:
    ref = await xoscar.create_actor(Counter, address=address, uid="counter")
    return percentile(await round_trips_us(ref.echo, count), 50)


async def life_us(address: str, count: int) -> float:
    with Stopwatch() as watch:
        refs = [await xoscar.create_actor(Counter, address=address, uid=str(n)) for n in range(count)]
        for ref in refs:
            await xoscar.destroy_actor(ref)
    return per_us(watch.spent_s, count)


async def idle_bytes(address: str, count: int) -> float:
    before = resident_bytes()
    refs = [await xoscar.create_actor(Counter, address=address, uid=str(n)) for n in range(count)]
    return (resident_bytes() - before) / len(refs)


if __name__ == "__main__":
    measures = {"tell": tell_us, "ask": ask_us, "life": life_us, "bytes": idle_bytes}
    main({name: in_pool(measure) for name, measure in measures.items()})
