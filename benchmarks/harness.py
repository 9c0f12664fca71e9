"""Measurements and their ratios, and the option that every benchmark has.

Both sides of a ratio take turns, round by round, so that a busy machine shifts both; a figure is the median of its
rounds, and a ratio the median of the rounds' ratios. Work of this process alone is measured in processor time; single
round trips, and work of other processes, by the wall clock. Every measurement is a function without state between
calls, that returns its figures in the units its lines name.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import anyio

BACKENDS = ("asyncio", "trio")

Figures: TypeAlias = tuple[float, ...]
"""Figures of a measurement, one for each line of its case."""

Measure: TypeAlias = "Callable[[str, Sizes], Figures]"
"""Function that measures once, on the backend of that name, at those sizes, and returns the figures."""


class Sizes(NamedTuple):
    """Sizes of all measurements; larger sizes are steadier and slower."""

    rounds: int = 3
    burst: int = 200
    """Number of messages sent before the actor may run; its mailbox holds that many."""
    bursts: int = 250
    asks: int = 4_000
    control_asks: int = 1_000
    actors: int = 10_000
    wide: int = 100
    """Number of children of each node of the wide tree, which is two levels deep."""
    chain: int = 2_000
    steps: int = 100_000
    tool_aborts: int = 500
    sessions: int = 8
    session_probes: int = 40
    growth: tuple[int, ...] = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)


FULL = Sizes()
SHORT = Sizes(
    rounds=1,
    burst=4,
    bursts=2,
    asks=10,
    control_asks=5,
    actors=20,
    wide=3,
    chain=20,
    steps=20,
    tool_aborts=5,
    sessions=2,
    session_probes=2,
    growth=(3, 10),
)
"""Sizes just large enough to show that everything still runs."""


class Missing(Exception):
    """Error: a program or library to compare with is not installed; the message names the way to get it."""


def options(about: str | None, *, folder: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line: ``--short`` for each benchmark, ``--folder`` for those that
    measure a disk."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--short", action="store_true", help="only show that it runs: smallest sizes, once, no aims")
    if folder:
        parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    return parser


# ---------------------------------------------------------------------- aims
class Aim(NamedTuple):
    """Aim of a figure: ``kind`` is the way of comparison, *source* the origin of the aim."""

    kind: str
    limit: float
    source: str = ""

    def excess(self, value: float, ratio: float | None) -> float | None:
        """Return the factor by which *value* exceeds the aim: 1.0 and less meets the aim. ``None`` if the other side is
        needed for that and missing."""
        if self.kind == "value":
            return value / self.limit
        if ratio is None:
            return None
        return ratio / self.limit if self.kind == "times" else ratio * self.limit


def at_most(limit: float, source: str = "") -> Aim:
    """Return an aim: at most this figure, in the unit of its line."""
    return Aim("value", limit, source)


def at_most_times(limit: float, source: str = "") -> Aim:
    """Return an aim: at most *limit* times the cost of the other side."""
    return Aim("times", limit, source)


def faster_by(limit: float, source: str = "") -> Aim:
    """Return an aim: the other side costs at least *limit* times as much."""
    return Aim("faster", limit, source)


# ---------------------------------------------------------------------- cases
class Line(NamedTuple):
    """Line of the table: a name, a unit, and an aim."""

    what: str
    unit: str
    aim: Aim | None = None


class Case(NamedTuple):
    """Two measurements that belong together; less is better in every figure.

    ``theirs`` may give one figure for all lines of ``ours``, or none at all.
    """

    lines: tuple[Line, ...]
    ours: Measure
    against: str = ""
    theirs: Measure | None = None
    backends: tuple[str, ...] = BACKENDS
    rounds: int | None = None

    def without_aims(self) -> Case:
        """The same case, without the aims of its lines."""
        return self._replace(lines=tuple(line._replace(aim=None) for line in self.lines))


class Found(NamedTuple):
    """Result of a line on one backend: the figure, the figure of the other side, and their ratio."""

    value: float
    other: float | None
    ratio: float | None


def measure(case: Case, sizes: Sizes) -> tuple[dict[str, list[Found]], str]:
    """Run a case, its sides in turns, now one first and now the other.

    Returns:
        The results by backend and line; and a text about the peer that is missing to compare with, or ``""``.
    """
    rounds: dict[str, list[tuple[Figures, Figures]]] = {backend: [] for backend in case.backends}
    missing = ""
    for number in range(min(case.rounds or sizes.rounds, sizes.rounds)):
        for backend in case.backends:
            ours = case.ours(backend, sizes) if number % 2 else ()
            theirs: Figures = ()
            if case.theirs is not None and not missing:
                try:
                    theirs = case.theirs(backend, sizes)
                except Missing as why:
                    missing = str(why)
            rounds[backend].append((ours or case.ours(backend, sizes), theirs))
    found = {backend: [_found(rounds[backend], n) for n in range(len(case.lines))] for backend in case.backends}
    return found, missing


def _found(rounds: Sequence[tuple[Figures, Figures]], line: int) -> Found:
    value = statistics.median(ours[line] for ours, _ in rounds)
    pairs = [(ours[line], theirs[min(line, len(theirs) - 1)]) for ours, theirs in rounds if theirs]
    if not pairs:
        return Found(value, None, None)
    ratio = statistics.median(ours / theirs if theirs else float("inf") for ours, theirs in pairs)
    return Found(value, statistics.median(theirs for _, theirs in pairs), ratio)


# ---------------------------------------------------------------------- ways to measure
def run(fn: Callable[..., Awaitable[Any]], *args: Any, backend: str) -> Any:
    """Run *fn* with ``anyio.run``, without further options."""
    return anyio.run(fn, *args, backend=backend)


def asynchronous(fn: Callable[[str, Sizes], Awaitable[float | Figures]]) -> Measure:
    """Make a measurement of a coroutine function, which runs in an event loop of its own."""

    def once(backend: str, sizes: Sizes) -> Figures:
        found = run(fn, backend, sizes, backend=backend)
        return found if isinstance(found, tuple) else (found,)

    return once


def on_both(fn: Callable[[Sizes], float]) -> Measure:
    """Make a measurement of a function that needs no event loop and is the same on both backends."""
    return lambda backend, sizes: (fn(sizes),)


class Stopwatch:
    """Context manager that measures the processor time of its block, in seconds, after the garbage of earlier rounds
    was collected."""

    spent_s = 0.0

    def __enter__(self) -> Stopwatch:
        gc.collect()
        self._since = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.spent_s = time.process_time() - self._since


def per_us(spent_s: float, count: int) -> float:
    """Return the microseconds for each of *count* operations that took *spent_s* seconds together."""
    return spent_s / count * 1e6


def percentile(samples: Sequence[float], percent: int) -> float:
    """Return the sample that *percent* percent of the samples do not exceed."""
    return sorted(samples)[min(len(samples) * percent // 100, len(samples) - 1)]


async def round_trips_us(ask: Callable[[int], Awaitable[Any]], count: int) -> list[float]:
    """Return the time of each of *count* round trips, in microseconds, by the wall clock."""
    times = []
    for n in range(count):
        since = time.perf_counter()
        await ask(n)
        times.append(time.perf_counter() - since)
    return [one * 1e6 for one in times]


class traced_bytes:
    """Context manager that counts the bytes that its block allocated and that are still in use at its end."""

    held = 0.0

    def __enter__(self) -> traced_bytes:
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *exc: object) -> None:
        gc.collect()
        self.held = float(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
