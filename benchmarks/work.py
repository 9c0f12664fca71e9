"""Cost of the work of plans through the journal: claims, ``supervisor run``, and the memory of queued tasks.

- *claims*: tasks whose agent is an async function that returns at once. Their claim and their end are durable records,
  as in every run; ``benchmarks.scheduler`` measures the scheduler's decision alone, without a journal.
- *run*: the command ``supervisor run`` with a plan whose agent is the program ``true``, from its start to its end; one
  task after another, and six at once, which is the default.
- *queued*: tasks that wait for the only worker, resident in memory and as Python counts its allocations.

Figures are for each task: milliseconds by the wall clock, and of processor time of all processes; commits of the
journal; bytes. Each measurement is made in a process of its own, and takes turns with a comparison from the same run:
two bare durable commits (and for ``run`` a bare process), or the plan's tasks as plain data. A busy machine shifts
both sides, and wall time more than processor time.

Two checkouts are compared with ``python -m benchmarks.work --against CHECKOUT``, where CHECKOUT is the directory of
the other, older one (``git worktree add CHECKOUT COMMIT``). Each round measures both, now one first and now the other;
the ratio is the median of the ratios of five rounds. The measuring code is this checkout's for both sides, and uses
only the public API, so that CHECKOUT need not have it; both use the packages that are installed here.

Run: ``python -m benchmarks.work [--against CHECKOUT] [--only TEXT] [--rounds N] [--folder DIR] [--short]``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Aim, Case, Figures, Line, Measure, at_most, at_most_times
from benchmarks.table import show_beside_checkout

ROOT = Path(__file__).parents[1]
CALL = "import runpy, sys; runpy.run_path(sys.argv[1])['main'](*sys.argv[2:])"
"""Program that calls ``main`` of the file in its first argument with the others."""


class Effort(NamedTuple):
    """Numbers of tasks of each measurement, and of rounds."""

    claims: int
    run: int
    queued: int
    rounds: int


FULL = Effort(claims=1_000, run=200, queued=10_000, rounds=5)
SHORT = Effort(claims=4, run=2, queued=20, rounds=1)
BARE_COMMITS = 2
"""Bare commits that a task is compared with: the least for a claim and an end that are both durable."""
WORKERS = 16
"""Sessions at once of the measurement of claims: as many as ``benchmarks.scheduler`` has workers."""


def figures_of(checkout: Path, disk: Path | None, name: str, *numbers: int) -> dict[str, float]:
    """Make one measurement with the supervisor of *checkout*, in a process and a folder of its own; return its figures.

    Raises:
        RuntimeError: the measurement failed; the message ends with the output of its process.
    """
    probes = Path(__file__).with_name("work_probes.py")
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        # -P, and a path of one entry: nothing of this checkout, or of the working directory, is imported by mistake.
        command = [sys.executable, "-P", "-c", CALL, str(probes), name, folder, *map(str, numbers)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once, not for each run
        ran = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"{name} of {checkout}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
        found: dict[str, float] = json.loads((Path(folder) / "figures").read_text())
        return found


class Subject(NamedTuple):
    """Subject of a measurement: its lines, the functions that measure it and its bare counterpart in a checkout, and a
    name for the counterpart."""

    lines: tuple[Line, ...]
    measure: Callable[[Path], Figures]
    bare: Callable[[Path], Figures]
    beside: str


def subjects(effort: Effort, disk: Path | None, times: Callable[[float], Aim | None]) -> list[Subject]:
    """Return all subjects. *times* makes the aim of a figure that is a ratio of two checkouts."""

    def spent(name: str, *numbers: int) -> Callable[[Path], Figures]:
        def measure(checkout: Path) -> Figures:
            found = figures_of(checkout, disk, name, *numbers)
            return found["wall_ms"], found["cpu_ms"], found["commits"]

        return measure

    def held(*names: str) -> Callable[[Path], Figures]:
        return lambda checkout: tuple(figures_of(checkout, disk, name, effort.queued)["bytes"] for name in names)

    def spent_lines(what: str, limit: float, commits: Aim | None = None) -> tuple[Line, ...]:
        both = [Line(f"{what}: {name}", "ms", times(limit)) for name in ("time", "processor time")]
        return (*both, Line(f"{what}: commits", "", commits))

    bare = f"{BARE_COMMITS} bare commits"
    runs = [
        Subject(
            spent_lines(f"supervisor run, {sessions} at once", 0.8, at_most(7)),
            spent("run", effort.run, sessions),
            spent("commits and processes", effort.run, BARE_COMMITS),
            f"{bare}, a process",
        )
        for sessions in (1, 6)
    ]
    return [
        Subject(
            spent_lines(f"claim and end, {WORKERS} at once", 1 / 0.95),
            spent("claims", effort.claims, WORKERS),
            spent("commits", effort.claims, BARE_COMMITS),
            bare,
        ),
        *runs,
        Subject(
            tuple(Line(f"queued task: {name}", "bytes", times(1.0)) for name in ("resident", "allocated")),
            held("queued, resident", "queued, allocated"),
            held("data, allocated"),
            "the plan as data",
        ),
    ]


def cases(effort: Effort, disk: Path | None = None, against: Path | None = None) -> list[Case]:
    """Return the measurements, beside their bare counterparts, or beside those of the checkout *against*."""

    def within(checkout: Path, measure: Callable[[Path], Figures]) -> Measure:
        return lambda backend, sizes: measure(checkout)

    if against is None:
        found = subjects(effort, disk, lambda limit: None)
        sides = [(one, one.beside, within(ROOT, one.bare)) for one in found]
    else:
        found = subjects(effort, disk, at_most_times)
        sides = [(one, against.name, within(against, one.measure)) for one in found]
    return [
        Case(one.lines, within(ROOT, one.measure), beside, theirs, backends=("asyncio",))
        for one, beside, theirs in sides
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    show_beside_checkout(__doc__, cases, FULL, SHORT, arguments)


if __name__ == "__main__":
    main()
