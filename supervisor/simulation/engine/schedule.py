"""Schedules: the orders in which ready steps may run, each a pure function of seed, task and step.

The order in which steps were queued must not decide anything: it depends on the order of sets of tasks, and so on
addresses, which no seed fixes. Ranks are hashes of tuples of integers instead, which are the same in every process and
on every 64-bit CPython; ``PYTHONHASHSEED`` changes hashes of text only.

Example, seed key 5, ``window``: a step that becomes ready at loop step 100 gets the rank ``100 + hash((5, birth, step))
% 32``, so up to 31 later steps may overtake it, and none after step 131 can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b

WINDOW = 32
"""Steps by which a ready step may be overtaken, on ``window``."""
PCT_GAPS = (8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048)
"""Numbers of steps, drawn evenly, after which priorities change on ``pct``: powers of the root of 2, since races hide
on every scale. Written down, since the powers depend on the machine's mathematical library."""

FAR_S = 1e15
"""Seconds from which on floating point numbers are coarser than any grain."""

FIRST = -(1 << 64)
"""Rank before all others: hashes have 61 bits."""

_TASK, _GAP = 1, 2
"""Names of draws, so that no two draws are the same."""


class Schedule(StrEnum):
    """Schedule of a simulated run: the rule that chooses the next step.

    ``fifo``: the order of asyncio, ties by age. ``shuffle``: every pass over what is ready is shuffled; nobody is
    overtaken twice. ``window``: one step at a time, and each may be overtaken by up to 32 others. ``pct``: the task of
    the highest priority runs until it waits, priorities change at drawn moments (Burckhardt et al., ASPLOS 2010,
    simplified: all of them change). ``trio``: trio, seeded; a second semantics of the same program.
    """

    FIFO = "fifo"
    SHUFFLE = "shuffle"
    WINDOW = "window"
    PCT = "pct"
    TRIO = "trio"


Priority = Callable[[int, int, int], int]
"""Function that returns the rank of a step (the smallest rank runs first), given the birth number of the step's task,
the number of the step in that task, and the number of steps that the loop has run so far."""


def key_of(seed: int) -> int:
    """Return a key of 60 bits for *seed*; the keys of neighbouring seeds have nothing in common."""
    return int.from_bytes(blake2b(str(seed).encode(), digest_size=8).digest(), "big") >> 4


def on_grid(moment_s: float, grain_s: float) -> float:
    """Round *moment_s* up to a multiple of *grain_s*, never to an earlier time, not even by a rounding error: a sleeper
    that wakes early would sleep again, for ever."""
    if not moment_s < FAR_S:
        return moment_s
    due_s = math.ceil(moment_s / grain_s) * grain_s
    return due_s if due_s >= moment_s else due_s + grain_s


def priority_of(schedule: Schedule, seed: int) -> Priority:
    """Return the rank function of *schedule*, which must not be ``trio``; tasks without a positive birth number run
    first."""
    rank = _rank(schedule, key_of(seed))
    return lambda birth, step, now: rank(birth, step, now) if birth > 0 else FIRST


def _rank(schedule: Schedule, key: int) -> Priority:
    match schedule:
        case Schedule.FIFO:
            return lambda birth, step, now: birth
        case Schedule.SHUFFLE:
            return lambda birth, step, now: hash((key, birth, step))
        case Schedule.WINDOW:
            return lambda birth, step, now: now + hash((key, birth, step)) % WINDOW
        case Schedule.PCT:
            return _Changing(key).rank
        case Schedule.TRIO:
            raise ValueError("schedule: 'trio' has an engine of its own; a loop is fifo, shuffle, window or pct")


class _Changing:
    """Random priorities of tasks (schedule ``pct``), which are drawn anew after a drawn number of steps."""

    def __init__(self, key: int) -> None:
        self._key, self._epoch, self._until = key, 0, 0
        self._extend()

    def rank(self, birth: int, step: int, now: int) -> int:
        while now >= self._until:
            self._epoch += 1
            self._extend()
        return hash((self._key, birth, self._epoch, _TASK))

    def _extend(self) -> None:
        self._until += PCT_GAPS[hash((self._key, self._epoch, _GAP)) % len(PCT_GAPS)]
