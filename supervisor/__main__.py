"""``supervisor`` and ``python -m supervisor``: the command line with the runtime behind it.

The runtime is imported when a command needs it, and not before: ``supervisor --help`` starts at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from supervisor.cli.commands import RunRequest, commands
from supervisor.cli.invocation import execute

if TYPE_CHECKING:
    import click

__all__ = ["main"]


def _run(request: RunRequest) -> int:
    from supervisor.cli.run import run

    return run(request)


def _demo(as_json: bool, verbose: bool) -> int:
    from supervisor.cli.demo import run_demo
    from supervisor.cli.run import configure_logging

    configure_logging(verbose=verbose)
    return run_demo(as_json=as_json)


def _simulate() -> click.Group:
    from importlib.metadata import entry_points

    (simulate,) = entry_points(group="supervisor.commands", name="simulate")
    group: click.Group = simulate.load()
    return group


def _plan() -> click.Group:
    from supervisor.cli.plan import plan_group

    return plan_group


def main() -> None:
    """Run the command line of this process."""
    sys.exit(execute(commands(_run, _demo, _plan, _simulate), sys.argv[1:]))


if __name__ == "__main__":
    main()
