"""Power-loss experiment: the production journal's own code on a simulated disk whose power fails at any step.

Every run writes batches on a simulated disk, twice in a row, and each time the power is cut at many points of the same
work; after each cut the journal is opened as in production and must have all acknowledged batches, and at most one
more. In addition to honest disks, which may fail and report that, there are runs with lying disks, whose syncs do
nothing, and control runs with a planted mistake: an experiment that does not catch these would prove nothing. A report
is a function of its seeds alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from supervisor.simulation.search.many import TaskFailed, map_in_order
from tests.verification.power_cuts.crash_points import CONTROLS, CUTS_PER_RUN, LIES, CutCounts, Run
from tests.verification.power_cuts.journal_run import Comparison

_CHUNK: Final = 2
"""Number of runs that a process is given at a time."""
_LYING_EVERY: Final = 25
_CONTROL_EVERY: Final = 100
_EXTRA_LEAST: Final = 2
"""Least number of runs on a lying disk, and of runs of each control; there is one of the former for every 25 runs that
count, and one of the latter for every 100."""


# --------------------------------------------------------------------------------------------------------- the report
class Lying(msgspec.Struct, frozen=True, kw_only=True):
    """Results on lying disks, whose syncs report success and do nothing.

    ``detected_by_opening``: the opening of the journal reports the damage, also by comparison with
    ``transitions.jsonl``. ``detected_by_record``: the opening accepts a shorter journal; only a comparison with the
    number of acknowledged batches shows the loss. ``undetected``: the opening accepts a journal with content that was
    never written.
    """

    runs: int = 0
    cuts: int = 0
    harmless: int = 0
    detected_by_opening: int = 0
    detected_by_record: int = 0
    undetected: int = 0


class Control(msgspec.Struct, frozen=True):
    """Result of a control, a planted mistake: the runs with the mistake, and those in which it was caught."""

    runs: int = 0
    caught: int = 0


class DiskReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report on a number of power cuts: the same bytes for the same seeds, on every machine."""

    first_seed: int
    cuts: int
    openings: int
    """Number of different disk contents after the cuts; a journal was opened on each of these once."""
    acknowledged: int
    """Number of acknowledged batches."""
    lost_acknowledgements: int
    """Number of power cuts, and of restarts without a cut, after which an acknowledged batch was missing."""
    corrupt: int
    """Number of power cuts after which the journal was refused, or accepted with wrong content."""
    first_failure: str | None
    """First of these failures as text: ``seed 12, cut 40: ...``."""
    sectors_lost: int
    sectors_torn: int
    errors_injected: int
    lying: Lying
    controls: dict[str, Control]
    digest: str
    """Digest over all cuts: the point of each cut, the lost and torn sectors, and the result of the comparison."""

    @property
    def passed(self) -> bool:
        """Whether nothing was lost and every control was caught at least once."""
        return self.blameless and all(one.caught for one in self.controls.values())

    @property
    def blameless(self) -> bool:
        """Whether nothing was lost, corrupt or undetected; unlike ``passed``, this can be decided from a part of the
        runs."""
        return not (self.lost_acknowledgements or self.corrupt or self.lying.undetected)


# ---------------------------------------------------------------------------------------------------------- many runs
class _Task(msgspec.Struct, frozen=True):
    """Task of a worker process: runs of one kind, with ``cuts`` in all. The kind is the production journal (``""``), a
    lying disk, or a control by its name."""

    kind: str
    first_seed: int
    cuts: int


def power_loss(
    cuts: int, *, first_seed: int = 1, jobs: int = 1, progress: Callable[[int], None] | None = None
) -> DiskReport:
    """Cut the power *cuts* times under the production journal, and examine the disk each time.

    A run is one seed and 256 cuts; the lying disks and the controls come first and are not counted in *cuts*.
    ``KeyboardInterrupt`` ends the work early: the report then covers the cuts made so far.

    Args:
        cuts: number of power cuts, at least 1.
        first_seed: seed of the first run; each further run has the next seed.
        jobs: number of worker processes; the report does not depend on it.
        progress: called with the number of cuts done so far.

    Raises:
        ValueError: *cuts* or *jobs* is less than 1.
        RuntimeError: the experiment itself broke.
    """
    for name, value in (("cuts", cuts), ("jobs", jobs)):
        if value < 1:
            raise ValueError(f"{name}: {value} is too few; give at least 1")
    summary = _Summary(first_seed)

    def done(task: _Task, tally: CutCounts | TaskFailed) -> None:
        if isinstance(tally, TaskFailed):
            raise RuntimeError(f"the runs from seed {task.first_seed} on: {tally.words}")
        summary.add(task, tally)
        if progress is not None and not task.kind:
            progress(summary.sound.cuts)

    map_in_order(_done, _tasks(cuts, first_seed), jobs, done)
    return summary.report()


def _tasks(cuts: int, first_seed: int) -> list[_Task]:
    runs = -(-cuts // CUTS_PER_RUN)
    tasks: list[_Task] = []
    for kind in (LIES, *CONTROLS):
        extra = max(_EXTRA_LEAST, runs // (_LYING_EVERY if kind == LIES else _CONTROL_EVERY))
        tasks += _chunks(kind, first_seed, extra * CUTS_PER_RUN)
    return tasks + _chunks("", first_seed, cuts)


def _chunks(kind: str, first_seed: int, cuts: int) -> list[_Task]:
    step = _CHUNK * CUTS_PER_RUN
    starts = range(0, cuts, step)
    return [_Task(kind, first_seed + start // CUTS_PER_RUN, min(step, cuts - start)) for start in starts]


def _done(task: _Task) -> CutCounts:
    """Perform the runs of a task, and return the sum of their counts."""
    total = CutCounts()
    with tempfile.TemporaryDirectory() as folder:
        witness = Path(folder) / "transitions.jsonl" if task.kind == LIES else None
        for number, start in enumerate(range(0, task.cuts, CUTS_PER_RUN)):
            run = Run(task.kind, task.first_seed + number, witness)
            total.add(run.run(min(CUTS_PER_RUN, task.cuts - start)))
    return total


class _Summary:
    """Results by kind, summed in the order of the tasks."""

    def __init__(self, first_seed: int) -> None:
        self._first_seed = first_seed
        self._totals = {kind: CutCounts() for kind in ("", LIES, *CONTROLS)}

    @property
    def sound(self) -> CutCounts:
        """Results of the production journal on honest disks."""
        return self._totals[""]

    def add(self, task: _Task, tally: CutCounts) -> None:
        self._totals[task.kind].add(tally)

    def report(self) -> DiskReport:
        sound = self.sound
        return DiskReport(
            first_seed=self._first_seed,
            cuts=sound.cuts,
            openings=sound.openings,
            acknowledged=sound.acknowledged,
            lost_acknowledgements=sound.count(Comparison.LOST) + sound.lost_alive,
            corrupt=sound.count(Comparison.REFUSED) + sound.count(Comparison.WRONG),
            first_failure=sound.first_failure,
            sectors_lost=sound.sectors_lost,
            sectors_torn=sound.sectors_torn,
            errors_injected=sound.errors,
            lying=self._lying(),
            controls={name: self._control(self._totals[name]) for name in CONTROLS},
            digest=blake2b(b"".join(one.digest for one in self._totals.values()), digest_size=16).hexdigest(),
        )

    def _lying(self) -> Lying:
        total = self._totals[LIES]
        return Lying(
            runs=total.runs,
            cuts=total.cuts,
            harmless=total.count(Comparison.WHOLE),
            detected_by_opening=total.count(Comparison.REFUSED),
            detected_by_record=total.count(Comparison.LOST),
            undetected=total.count(Comparison.WRONG),
        )

    def _control(self, total: CutCounts) -> Control:
        return Control(total.runs, total.failed_runs)
