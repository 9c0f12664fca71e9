"""Golden runs: simulated runs whose digests are stored with the code, so that every change of behaviour is noticed and
must be intended."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from supervisor.simulation.commands.run_request import RunRequest
from supervisor.simulation.engine import Schedule
from supervisor.simulation.scenario import library, named
from supervisor.simulation.search.many import TaskFailed, map_in_order
from tests.verification.checkers import simulate

GOLDEN_SEED = 1
LEFT_OUT = frozenset({"day", "swarm"})
"""Scenarios without golden runs: ``day`` is too long, and ``swarm`` is run by soaks."""
SCHEDULES = (Schedule.SHUFFLE, Schedule.TRIO)
HEADER = "# Digests by scenario and schedule, written by `python -m tests.verification prove --write-golden`.\n"


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing the golden runs with the stored digests. ``differing`` maps the command of a run to the
    digest or failure found and the digest that was expected."""

    scenarios: int
    runs: int
    differing: dict[str, str]


def golden() -> list[str]:
    """Return the names of the golden scenarios."""
    return [name for name in library() if name not in LEFT_OUT]


def runs() -> list[RunRequest]:
    """Return the runs of every golden scenario: on an asyncio schedule and on trio, as far as the scenario allows
    these."""
    return [
        RunRequest(scenario=name, seed=GOLDEN_SEED, schedule=schedule.value)
        for name in golden()
        for schedule in SCHEDULES
        if schedule in named(name).world.schedules
    ]


def kept() -> dict[str, dict[str, str]]:
    """Read the stored digests: a map from scenario to schedule to digest."""
    text = place().read_text(encoding="utf-8")
    return tomllib.loads(text)


def digest_of(wanted: RunRequest) -> str:
    """Simulate one run and return its digest; this can be called in any process.

    Raises:
        ValueError: the run has violations; then there is no digest to keep.
    """
    report = simulate(wanted.draw())
    if report.violations:
        raise ValueError(f"{len(report.violations)} violations: {report.violations[0]}")
    return report.digest


def digests(jobs: int, heard: Callable[[int], None]) -> tuple[dict[RunRequest, str | TaskFailed], bool]:
    """Run all golden runs; return the digests, and false if Ctrl-C interrupted the runs."""
    found: dict[RunRequest, str | TaskFailed] = {}

    def done(wanted: RunRequest, digest: str | TaskFailed) -> None:
        found[wanted] = digest
        heard(len(found))

    complete = map_in_order(digest_of, runs(), jobs, done)
    return found, complete


def compared(found: dict[RunRequest, str | TaskFailed]) -> Golden:
    """Compare digests with the stored ones."""
    was = kept()
    differing = {}
    for wanted, digest in found.items():
        expected = was.get(wanted.name, {}).get(str(wanted.schedule), "none is kept")
        if digest != expected:
            differing[wanted.line()] = f"{digest.words if isinstance(digest, TaskFailed) else digest}; kept: {expected}"
    return Golden(scenarios=len({one.name for one in found}), runs=len(found), differing=differing)


def write(found: dict[RunRequest, str | TaskFailed]) -> Path:
    """Write the digests to the file and return its path. A run that failed gets no digest."""
    lines = [HEADER]
    for name in golden():
        own = {one.schedule: digest for one, digest in found.items() if one.name == name and isinstance(digest, str)}
        lines += [f"[{name}]", *(f'{schedule} = "{digest}"' for schedule, digest in own.items()), ""]
    path = place()
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def place() -> Path:
    """Return the path of the file with the stored digests."""
    return Path(__file__).with_name("golden.toml")
