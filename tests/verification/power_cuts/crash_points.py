"""Run of the power-loss experiment: write a journal, cut the power of its disk at many points, and open the journal
after each cut.

A run has a kind: the production journal on an honest disk, which may fail and then reports the failure; the journal on
a lying disk, whose syncs report success and do nothing; or a control, with a planted mistake that must be caught. A
run is a function of its kind and its seed.
"""

from __future__ import annotations

from bisect import bisect_right
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

import apsw
import msgspec

from supervisor.journal.jsonl import transition_line
from supervisor.simulation.keyed_random import KeyedRandom
from tests.verification.power_cuts.durable_pages import DurablePages, Survivors
from tests.verification.power_cuts.journal_run import Comparison, Plan, Writer, compare_with_plan, found
from tests.verification.power_cuts.simulated_disk import DiskFaults, SimulatedDisk

_LIVES: Final = 2
"""Number of writers in a run: the second continues from the last power cut of the first."""
_CUTS_PER_LIFE: Final = 128
"""Number of power cuts in the life of a writer: cutting the same work again is cheap, and new work reaches new
states."""
CUTS_PER_RUN: Final = _LIVES * _CUTS_PER_LIFE
_BATCHES_PER_LIFE: Final = 6


# ----------------------------------------------------------------------------------------------------- configurations
class _Normal(apsw.Connection):
    """Connection for a control: commits do not wait for the disk."""

    def pragma(self, name: str, *value: Any, **more: Any) -> Any:
        return super().pragma(name, *(("normal",) if name == "synchronous" else value), **more)


class _Off(apsw.Connection):
    """Connection for a control: nothing waits for the disk."""

    def pragma(self, name: str, *value: Any, **more: Any) -> Any:
        return super().pragma(name, *(("off",) if name == "synchronous" else value), **more)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    connection: type[apsw.Connection] = apsw.Connection
    faults: DiskFaults = DiskFaults()
    hasty: bool = False


_FAILING: Final = Setup(
    faults=DiskFaults(full=0.01, read_error=0.002, write_error=0.005, sync_error=0.02),
)
_LYING: Final = Setup(faults=DiskFaults(lie=0.2))
CONTROLS: Final = {
    "acknowledged before the commit": Setup(hasty=True),
    "synchronous=NORMAL": Setup(connection=_Normal),
    "synchronous=OFF": Setup(connection=_Off),
    "no sync reaches the disk": Setup(faults=DiskFaults(lie=1.0)),
}
_SOUND: Final = (Setup(), Setup(), _FAILING)
"""Settings of the disks of the runs that count: two in three never fail, and one fails and reports the failures."""


class CutCounts(msgspec.Struct):
    """Counts of one run or of many runs."""

    runs: int = 0
    failed_runs: int = 0
    cuts: int = 0
    openings: int = 0
    acknowledged: int = 0
    lost_alive: int = 0
    errors: int = 0
    sectors_lost: int = 0
    sectors_torn: int = 0
    verdicts: dict[str, int] = {}
    first_failure: str | None = None
    digest: bytes = b""

    def count(self, verdict: Comparison) -> int:
        return self.verdicts.get(verdict.name, 0)

    def add(self, other: CutCounts) -> None:
        """Add the counts of another object: of a cut or a run."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for verdict, times in other.verdicts.items():
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + times
        self.first_failure = self.first_failure or other.first_failure
        self.digest = blake2b(self.digest + other.digest, digest_size=16).digest()


_SUMS: Final = (
    "runs",
    "failed_runs",
    "cuts",
    "openings",
    "acknowledged",
    "lost_alive",
    "errors",
    "sectors_lost",
    "sectors_torn",
)
LIES: Final = "a lying disk"


# ------------------------------------------------------------------------------------------------------------ one run
class Run:
    """Run of one seed: a plan, a disk to write on, and a second disk on which the remaining files are read."""

    def __init__(self, kind: str, seed: int, witness: Path | None) -> None:
        random = KeyedRandom(seed, kind)
        self._setup = _setup(kind, random)
        self._random = random
        self._witness = witness
        self._seed = seed
        self._kind = kind
        self._plan = Plan(random, _LIVES * _BATCHES_PER_LIFE)
        self._disk = SimulatedDisk("written", random.below("disk"), self._setup.connection)
        self._machine = SimulatedDisk("found")
        self._left: dict[str, bytearray] = {}
        self._there = 0
        self._known: dict[tuple[int, ...], int | Comparison] = {}
        self._digest = blake2b(digest_size=16)
        self.tally = CutCounts(runs=1)

    def run(self, cuts: int) -> CutCounts:
        try:
            for life in range(_LIVES):
                if not self._lives(life, min(_CUTS_PER_LIFE, cuts - self.tally.cuts)):
                    break
        finally:
            self._disk.unregister()
            self._machine.unregister()
        self.tally.errors = self._disk.errors
        self.tally.failed_runs = int(self.tally.first_failure is not None)
        self.tally.digest = self._digest.digest()
        return self.tally

    def _lives(self, life: int, cuts: int) -> bool:
        """Write batches, and cut the power at *cuts* points; return whether the chosen cut left a journal to continue
        from."""
        if cuts <= 0:
            return False
        random = self._random.below("life", life)
        pages = DurablePages(self._left)
        self._known.clear()
        acknowledged = self._written(random)
        steps, done, goes_on = self._disk.steps, 0, random.integer(0, cuts - 1, "goes on")
        draws = random.stream("cuts")
        there: int | Comparison = 0
        for number, point in enumerate(_points(random, cuts, acknowledged[1][0], len(steps))):
            pages.make(steps[done:point])
            done = point
            survivors, opened = self._cut(pages, draws, point, _promised(acknowledged, point))
            if number == goes_on:
                self._left, there = survivors.files, opened
            if self._caught:
                return False
        self._there = there if isinstance(there, int) else 0
        return isinstance(there, int)

    @property
    def _caught(self) -> bool:
        """Whether this run is a control and its mistake was caught."""
        return self._kind in CONTROLS and self.tally.first_failure is not None

    def _written(self, random: KeyedRandom) -> list[tuple[int, int]]:
        disk = self._disk
        disk.mount(self._left)
        disk.faults = self._setup.faults
        disk.checkpoint_pages = random.integer(4, 60, "checkpoint")
        writer = Writer(self._plan, disk, random.below("writer"), hasty=self._setup.hasty, there=self._there)
        writer.write(min(self._there + _BATCHES_PER_LIFE, len(self._plan.batches)))
        self.tally.acknowledged += writer.acknowledged[-1][1] - self._there
        self.tally.lost_alive += writer.lost_alive
        if writer.lost_alive:
            self._failed("an acknowledged batch was missing although the power never went")
        return writer.acknowledged

    def _cut(self, pages: DurablePages, draws: Random, point: int, promised: int) -> tuple[Survivors, int | Comparison]:
        survivors = pages.cut(draws)
        there = self._opened(survivors, self._lines(promised, draws))
        verdict = compare_with_plan(there, promised)
        self._digest.update(f"{point} {survivors.lost} {survivors.torn} {there} {verdict.name}\n".encode())
        self._count(verdict, survivors.lost, survivors.torn)
        return survivors, there

    def _opened(self, survivors: Survivors, lines: Path | None) -> int | Comparison:
        """Open the journal that a power cut left, and return the result. The result for equal files is stored and
        returned again, unless ``transitions.jsonl`` is read, too."""
        key = survivors.key if lines is None else None
        if key is not None and key in self._known:
            return self._known[key]
        self._machine.mount(survivors.files)
        there = found(self._plan, self._machine, lines)
        self.tally.openings += 1
        if key is not None:
            self._known[key] = there
        return there

    def _lines(self, promised: int, draws: Random) -> Path | None:
        """Draw the remaining part of ``transitions.jsonl``, which is never synced: nothing half of the time, otherwise
        a part of the file."""
        if self._witness is None:
            return None
        share = max(0.0, 2 * draws.random() - 1)
        records = [one.record for batch in self._plan.batches[:promised] for one in batch]
        text = b"".join([_encode(transition_line(record)) + b"\n" for record in records])
        self._witness.write_bytes(text[: int(len(text) * share)])
        return self._witness

    def _count(self, verdict: Comparison, lost: int, torn: int) -> None:
        tally = self.tally
        tally.cuts += 1
        tally.sectors_lost += lost
        tally.sectors_torn += torn
        tally.verdicts[verdict.name] = tally.verdicts.get(verdict.name, 0) + 1
        if verdict is not Comparison.WHOLE:
            self._failed(verdict.value)

    def _failed(self, why: str) -> None:
        if self.tally.first_failure is None:
            self.tally.first_failure = f"seed {self._seed}, cut {self.tally.cuts}: {why}"


def _points(random: KeyedRandom, cuts: int, opened: int, steps: int) -> list[int]:
    """Draw the points at which the power is cut: three in four lie after the opening, which takes up to half of the
    steps."""
    first = [1 if random.happens(0.25, "early", number) else opened for number in range(cuts)]
    return sorted(random.integer(low, steps, "point", number) for number, low in enumerate(first))


def _promised(acknowledged: list[tuple[int, int]], point: int) -> int:
    """Return the number of batches that were acknowledged when the disk had made *point* steps."""
    return acknowledged[bisect_right(acknowledged, point, key=lambda one: one[0]) - 1][1]


_encode = msgspec.json.Encoder().encode


def _setup(kind: str, random: KeyedRandom) -> Setup:
    if kind == LIES:
        return _LYING
    return CONTROLS[kind] if kind else random.choice(_SOUND, "setup")
