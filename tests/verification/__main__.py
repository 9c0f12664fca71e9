"""Command line of the verification: ``python -m tests.verification prove --golden``, ``... sweep``, ``... disk``."""

from __future__ import annotations

import sys

from supervisor.cli.invocation import execute
from supervisor.simulation.commands.options import ScenarioGroup
from tests.verification.commands import claims, disk, prove, sweep

__all__ = ["group"]

group = ScenarioGroup(
    "verification",
    help="Check the supervisor against what must hold in every run.",
    commands=[one.command for one in (claims, disk, prove, sweep)],
)


if __name__ == "__main__":
    sys.exit(execute(group, sys.argv[1:]))
