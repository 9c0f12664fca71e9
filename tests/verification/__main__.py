"""Command line of the verification, ``python -m tests.verification``: with ``prove --golden``, ``soak``, ``sweep`` and
others.

Runs of a seed, soaks and shrinking work as in ``supervisor simulate``; here all checkers check each run.
"""

from __future__ import annotations

import sys

from supervisor.cli.invocation import execute
from supervisor.simulation.commands import cli, shrink_cli, soak_cli
from supervisor.simulation.commands.options import ScenarioGroup
from supervisor.simulation.commands.run_request import Runner
from tests.verification.checkers import every_checker
from tests.verification.commands import claims, disk, prove, sweep, walks

group = ScenarioGroup(
    "verification",
    help="Run a seed, judged by all checkers, or check the supervisor against what must hold in every run.",
    params=cli.group.params,
    callback=cli.group.callback,
    invoke_without_command=True,
    commands=[one.command for one in (soak_cli, shrink_cli, claims, disk, prove, sweep, walks)],
    context_settings={"obj": Runner("python -m tests.verification", every_checker)},
)


if __name__ == "__main__":
    sys.exit(execute(group, sys.argv[1:]))
