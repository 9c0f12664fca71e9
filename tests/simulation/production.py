"""The production runtime on the engine: digests of its journal, for tests that hold two runs against each other.

As a program it prints them: ``python production.py 0 1 2``, on every schedule.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))

import simulated

from actors import open_system
from supervisor.embedding import runtime
from supervisor.host import factories
from supervisor.simulation.engine import EngineResult, Schedule, run

HORIZON_S = 200_000.0


class _VirtualWall:
    """Wall clock in virtual time, in place of the system's."""

    def time(self) -> float:
        return 1e9 + anyio.current_time()


async def _main(seed: int) -> simulated.Ran:
    with (
        patch.object(runtime, "open_system", lambda **_: open_system(seed=seed)),
        patch.object(factories, "WALL", _VirtualWall()),
        patch.object(runtime, "WALL", _VirtualWall()),
    ):
        return await simulated._run(seed)


def play(seed: int, schedule: Schedule) -> EngineResult[simulated.Ran]:
    """Run a host, its agents and its disturbances, for one seed of both."""
    return run(partial(_main, seed), seed=seed, schedule=schedule, horizon_s=HORIZON_S)


def digest(ran: EngineResult[simulated.Ran]) -> str:
    """Digest of steps, time, and every byte of the journal."""
    if ran.value is None:
        return f"failed: {ran.error}"
    summed = hashlib.blake2b(repr((ran.steps, ran.time_jumps, ran.simulated_s)).encode(), digest_size=8)
    for record in ran.value.store.log.records:
        summed.update(record)
    return summed.hexdigest()


def lines(seeds: Iterable[int]) -> list[str]:
    """Lines that the program prints."""
    return [f"{schedule} {seed} {digest(play(seed, schedule))}" for schedule in Schedule for seed in seeds]


if __name__ == "__main__":
    print(*lines([int(one) for one in sys.argv[1:]]), sep="\n")
