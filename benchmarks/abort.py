"""How long an abort of many sessions takes, receipts and records included, against bare cancel scopes in the same run.

A parent session with CHILDREN in-process child sessions, each in the middle of a turn, is aborted at scope SESSION; the
receipt is waited for. The bare figure cancels as many tasks, each in a scope and task group of its own, and joins them.
Medians of ROUNDS, in milliseconds; the ratio is what counts. Run it with ``python benchmarks/abort.py``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from supervisor import AbortScope, AgentTurn, open_supervisor

CHILDREN = 200
ROUNDS = 5


async def hang(turn: AgentTurn) -> None:
    await turn.call("hang", anyio.sleep_forever)


async def bare() -> float:
    """Milliseconds from the cancel of the outermost scope to the end of every task."""

    async def one(started: list[anyio.Event], index: int) -> None:
        async with anyio.create_task_group():
            started[index].set()
            await anyio.sleep_forever()

    started = [anyio.Event() for _ in range(CHILDREN)]
    async with anyio.create_task_group() as group:
        for index in range(CHILDREN):
            group.start_soon(one, started, index)
        for event in started:
            await event.wait()
        began = time.perf_counter()
        group.cancel_scope.cancel()
    return (time.perf_counter() - began) * 1000


async def supervised(state_dir: Path | None) -> float:
    """Milliseconds from the abort of the parent to its receipt."""
    async with open_supervisor(state_dir) as sup, anyio.create_task_group() as group:
        parent = await sup.start_session("parent", agent=hang)
        children = [await parent.start_child(f"c{index}") for index in range(CHILDREN)]
        async with sup.subscribe(after_seq=0) as events:
            for session in (parent, *children):
                group.start_soon(session.run, "hang")
            running = 0
            async for event in events:
                running += event.event == "tool_started"
                if running == CHILDREN + 1:
                    break
        began = time.perf_counter()
        receipt = await sup.abort("parent", AbortScope.SESSION, reason="benchmark")
        took_ms = (time.perf_counter() - began) * 1000
        assert len(receipt.nodes) == CHILDREN + 1
        assert receipt.survivors == 0
    return took_ms


async def in_memory() -> float:
    return await supervised(None)


async def on_disk() -> float:
    with tempfile.TemporaryDirectory() as directory:
        return await supervised(Path(directory) / ".sdd")


def median_ms(measure: Callable[[], Awaitable[float]], backend: str) -> float:
    return statistics.median(anyio.run(measure, backend=backend) for _ in range(ROUNDS))


def main() -> None:
    print(f"abort of {CHILDREN + 1} sessions, each with a turn and a tool call; medians of {ROUNDS}")
    print(f"{'what':<46} {'asyncio':>10} {'trio':>10} {'ratio':>14}")
    base = {backend: median_ms(bare, backend) for backend in ("asyncio", "trio")}
    rows = {"bare cancel scopes, no records": bare, "journal in memory": in_memory, "journal on disk, durable": on_disk}
    for name, measure in rows.items():
        found = base if measure is bare else {backend: median_ms(measure, backend) for backend in base}
        ratio = " / ".join(f"{found[backend] / base[backend]:.1f}x" for backend in base)
        print(f"{name:<46} {found['asyncio']:>7.1f} ms {found['trio']:>7.1f} ms {ratio:>14}")


if __name__ == "__main__":
    main()
