"""The pytest plugin: the fixture ``simulated_supervisor``, and the seeds on the command line.

Every run of pytest on a machine with this distribution imports this file, so this file imports only pytest: no runtime,
no event loop. Everything else is imported when a test uses the fixture.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.simulation.testing import Simulate

SEEDS = 10
SCHEDULES = ("fifo", "shuffle", "window", "pct", "trio")
"""Names of the engine's schedules, written down here because an import of the engine would slow every pytest run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of simulated tests to pytest's command line."""
    group = parser.getgroup("simulation", "supervisors in virtual time")
    group.addoption(
        "--simulation-seeds",
        type=int,
        default=SEEDS,
        metavar="N",
        help=f"Run each simulated test with the seeds 1 to N ({SEEDS}).",
    )
    group.addoption("--simulation-seed", type=int, metavar="S", help="Run simulated tests with this seed only.")
    group.addoption("--simulation-schedule", choices=SCHEDULES, help="Run them in this order of steps only.")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse option values with which no test would run."""
    for name, least in (("--simulation-seeds", 1), ("--simulation-seed", 0)):
        value = config.getoption(name)
        if value is not None and value < least:
            raise pytest.UsageError(f"{name}: {value} is too small; give {least} or more")


def _named_from_here(test: pytest.Item, here: Path) -> str:
    """Node id of a test relative to the directory in which pytest was called; ids are relative to the root
    directory."""
    _, *names = test.nodeid.split("::")
    return "::".join([os.path.relpath(test.path, here), *names])


@pytest.fixture
def simulated_supervisor(request: pytest.FixtureRequest) -> Simulate:
    """Run ``async def main(sup)`` against a production supervisor in virtual time, once for each seed."""
    from supervisor.simulation.testing import Simulate

    seed = request.config.getoption("--simulation-seed")
    seeds = range(1, request.config.getoption("--simulation-seeds") + 1) if seed is None else (seed,)
    schedule = request.config.getoption("--simulation-schedule")
    more = f" --simulation-schedule {schedule}" if schedule else ""
    test = shlex.quote(_named_from_here(request.node, request.config.invocation_params.dir))
    return Simulate(seeds, lambda one: f"pytest {test} --simulation-seed {one}{more}", schedule)
