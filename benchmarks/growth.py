"""Growth of costs from a hundred actors to a hundred thousand: a curve that bends upwards is a bug.

Each quantity is measured at each size, for the kernel on both backends and for bare tasks with a queue each, in turns.
``python -m benchmarks.growth`` writes one CSV, and one PNG if matplotlib is installed, to ``benchmarks/results``;
``--short`` writes them, of ten actors at most, to a temporary folder unless ``--out`` names one.
"""

from __future__ import annotations

import csv
import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from actors import ActorSystem, Ref, open_system
from benchmarks.harness import (
    BACKENDS,
    FULL,
    SHORT,
    Missing,
    Sizes,
    Stopwatch,
    options,
    per_us,
    percentile,
    round_trips_us,
    run,
)
from benchmarks.lives import actor_bytes, actor_lives, task_bytes, task_lives
from benchmarks.messages import TIMEOUT_S, Echo
from benchmarks.plots import Point, draw
from benchmarks.primitives import native, parked, settle

RESULTS = Path(__file__).parent / "results"
FAN = 100
"""Largest number of children of each node in the tree that is stopped."""
TASKS_MAX = 30_000
"""Largest number of bare tasks that are measured: each costs a hundred times an actor's time."""


# ---------------------------------------------------------------------- actors
def grow(system: ActorSystem, count: int) -> list[Ref]:
    """Make a tree of *count* actors with at most a hundred children for each node."""
    return [_spawn(system, n) for n in range(count)]


def _spawn(system: ActorSystem, number: int) -> Ref:
    if number < FAN:
        return system.spawn(Echo(), str(number))
    return system.spawn(Echo(), str(number), parent=str(number // FAN - 1))


async def actor_tells(backend: str, sizes: Sizes) -> float:
    """Measure sending a message to each actor in turn, until all are handled; per message."""
    async with open_system() as system:
        refs, times = grow(system, sizes.actors), max(1, sizes.burst * sizes.bursts // sizes.actors)
        with Stopwatch() as watch:
            for n in range(times):
                for ref in refs:
                    ref.tell(n)
                await system.idle()
    return per_us(watch.spent_s, sizes.actors * times)


async def actor_asks(backend: str, sizes: Sizes) -> float:
    """Measure asks of idle actors, each of another actor; p50."""
    async with open_system() as system:
        refs = grow(system, sizes.actors)
        step = max(1, sizes.actors // sizes.asks)

        async def ask(n: int) -> None:
            await refs[n * step % len(refs)].ask(n, timeout_s=TIMEOUT_S)

        return percentile(await round_trips_us(ask, sizes.asks), 50)


async def actor_stop(backend: str, sizes: Sizes) -> float:
    """Measure the orderly stop of the tree from the top; per actor."""
    async with open_system() as system:
        grow(system, sizes.actors)
        await system.idle()
        with Stopwatch() as watch:
            await system.shut_down()
    return per_us(watch.spent_s, sizes.actors)


# ---------------------------------------------------------------------- bare tasks
async def task_tells(backend: str, sizes: Sizes) -> float:
    """Measure sending a message to each of many tasks with a queue each; per message."""
    pipes = [native(backend)(16) for _ in range(sizes.actors)]
    times = min(max(1, sizes.burst * sizes.bursts // sizes.actors), 10)
    left, done = sizes.actors * times, anyio.Event()

    async def consume(pipe: Any) -> None:
        nonlocal left
        while True:
            await pipe.get()
            left -= 1
            if not left:
                done.set()

    async with anyio.create_task_group() as group:
        for pipe in pipes:
            group.start_soon(consume, pipe)
        await settle()
        with Stopwatch() as watch:
            for n in range(times):
                for pipe in pipes:
                    pipe.put(n)
                await anyio.lowlevel.checkpoint()
            await done.wait()
        group.cancel_scope.cancel()
    return per_us(watch.spent_s, sizes.actors * times)


async def task_asks(backend: str, sizes: Sizes) -> float:
    """Measure asks of tasks with a pair of queues each; p50."""
    pipes = [(native(backend)(1), native(backend)(1)) for _ in range(sizes.actors)]
    step = max(1, sizes.actors // sizes.asks)

    async def answer(questions: Any, answers: Any) -> None:
        while True:
            answers.put(await questions.get())

    async def ask(n: int) -> None:
        questions, answers = pipes[n * step % len(pipes)]
        questions.put(n)
        await answers.get()

    async with anyio.create_task_group() as group:
        for pair in pipes:
            group.start_soon(answer, *pair)
        await settle()
        p50 = percentile(await round_trips_us(ask, sizes.asks), 50)
        group.cancel_scope.cancel()
    return p50


async def task_stop(backend: str, sizes: Sizes) -> float:
    """Measure the cancel from the top of tasks in task groups of a hundred; per task."""

    async def some(count: int) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(parked)

    async with anyio.create_task_group() as top:
        for first in range(0, sizes.actors, FAN):
            top.start_soon(some, min(FAN, sizes.actors - first))
        await settle()
        gc.collect()
        since = time.process_time()
        top.cancel_scope.cancel()
    return per_us(time.process_time() - since, sizes.actors)


# ---------------------------------------------------------------------- curves
Curve = Callable[[str, Sizes], Awaitable[float]]
QUANTITIES: dict[str, tuple[str, Curve, Curve]] = {
    "start + stop": ("us per actor", actor_lives, task_lives),
    "idle": ("bytes per actor", actor_bytes, task_bytes),
    "tell, one each": ("us per message", actor_tells, task_tells),
    "ask, idle actor, p50": ("us", actor_asks, task_asks),
    "stop of the tree": ("us per actor", actor_stop, task_stop),
}
"""Quantities that are measured: the unit, the measurement of actors, and the measurement of bare tasks."""


def measure_growth(sizes: Sizes) -> Iterator[Point]:
    """Measure every point of every curve, smallest first."""
    for count in sizes.growth:
        now = sizes._replace(actors=count)
        for quantity, (unit, of_actors, of_tasks) in QUANTITIES.items():
            curves = {f"actors, {backend}": (of_actors, backend) for backend in BACKENDS}
            if count <= TASKS_MAX:
                curves |= {f"bare tasks, {backend}": (of_tasks, backend) for backend in BACKENDS}
            found: dict[str, list[float]] = {who: [] for who in curves}
            for _ in range(_rounds(quantity, now)):
                for who, (curve, backend) in curves.items():
                    found[who].append(run(curve, backend, now, backend=backend))
            for who, values in found.items():
                yield Point(quantity, unit, who, count, statistics.median(values))


def _rounds(quantity: str, sizes: Sizes) -> int:
    """Return the number of rounds for a size: one for bytes, which do not vary, and for large sizes, which are
    steady."""
    return 1 if quantity == "idle" or sizes.actors > 10_000 else sizes.rounds


def write_csv(points: Sequence[Point], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Point._fields)
        writer.writerows(points)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print each figure when it is measured, and write the files."""
    parser = options(__doc__)
    parser.add_argument("--most", type=int, default=FULL.growth[-1], help="the largest number of actors")
    parser.add_argument("--out", type=Path, help="the folder to write to")
    args = parser.parse_args(arguments)
    full = FULL._replace(asks=500, growth=tuple(n for n in FULL.growth if n <= args.most))
    with tempfile.TemporaryDirectory(prefix="growth-") as scratch:
        out = args.out or Path(scratch if args.short else RESULTS)
        _measure_and_write(SHORT if args.short else full, out)
        if out != Path(scratch):
            print(f"written to {out}")


def _measure_and_write(sizes: Sizes, out: Path) -> None:
    points = []
    for point in measure_growth(sizes):
        points.append(point)
        print(f"{point.actors:>8,}  {point.quantity:<22}{point.who:<22}{point.value:>10.2f} {point.unit}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(points, out / "growth.csv")
    try:
        draw(points, out / "growth.png")
    except Missing as why:
        print(f"no plot: {why}")


if __name__ == "__main__":
    main()
