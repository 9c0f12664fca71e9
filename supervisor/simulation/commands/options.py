"""Common parts of the simulator's commands: options, progress, and exit status.

Progress is shown only on a terminal, on standard error. The JSON of one run, and of a benchmark, contains only values
that the seeds determine; in other JSON, measurements of the machine (seconds, memory) are under ``measured``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic  # by name: `time` refuses it while a run goes on
from typing import Any

import click

from supervisor.cli.options import say
from supervisor.control.error_messages import DONE, INTERRUPTED, WORK_FAILED, BadInput
from supervisor.simulation.commands.run_request import Runner
from supervisor.simulation.engine import Schedule
from supervisor.simulation.scenario import BadScenario

BETWEEN_S = 0.2
"""Real seconds between two updates of the progress."""
BLANK = "\r\x1b[K"

runner = click.make_pass_decorator(Runner, ensure=True)
"""Decorator that passes the runner, which is the object of the command group, to a command as the first argument."""
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
scenario = click.option(
    "--scenario", metavar="NAME|FILE.toml", help="Scenario of the library, or file with a scenario."
)
schedule = click.option(
    "--schedule",
    type=click.Choice([one.value for one in Schedule]),
    help="Order of the steps; by default the seed draws one.",
)
first_seed = click.option(
    "--first-seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="S", help="First seed."
)
jobs = click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    default=lambda: os.cpu_count() or 1,
    show_default="one per processor",
    metavar="J",
    help="Number of processes.",
)


class ScenarioGroup(click.Group):
    """Group of commands that read scenarios. A scenario that cannot be read or drawn is bad input (exit status 2)."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BadScenario as error:
            raise BadInput(str(error)) from None


def seeds(default: int) -> Callable[[Any], Any]:
    """Return the command line option ``--seeds`` for the number of seeds."""
    return click.option(
        "--seeds",
        type=click.IntRange(1, 10**9),
        default=default,
        show_default=True,
        metavar="N",
        help="Number of seeds.",
    )


class Progress:
    """Line on a terminal that shows the progress; without a terminal nothing is shown. ``took_s`` is the real time so
    far, in seconds."""

    def __init__(self) -> None:
        self._begun = monotonic()
        self._shown = 0.0
        self._on = sys.stderr.isatty()

    @property
    def took_s(self) -> float:
        return monotonic() - self._begun

    def show(self, words: Callable[[], str]) -> None:
        """Show the text that *words* returns, unless another text was shown a moment ago."""
        if self._on and self.took_s - self._shown >= BETWEEN_S:
            self._shown = self.took_s
            click.echo(f"{BLANK}{words()}", nl=False, err=True)

    def end(self) -> None:
        """Clear the progress line."""
        if self._shown:
            click.echo(BLANK, nl=False, err=True)


class StepWatch:
    """Function object that, called with the number of steps of the run of *seed*, shows the number as progress."""

    def __init__(self, seed: int) -> None:
        self.progress = Progress()
        self._seed = seed
        self._steps = 0

    def __call__(self, steps: int) -> None:
        self._steps = steps
        self.progress.show(lambda: f"{steps} steps")

    def interrupted(self, *, as_json: bool) -> int:
        """Print the number of steps of an interrupted run; return the exit status."""
        answer = {"seed": self._seed, "steps": self._steps}
        return finish(answer, f"{self._steps} steps", as_json=as_json, good=True, complete=False)


def refuse_unwritable(option: str, path: Path, fix: str) -> None:
    """Check that a file can be written, before work whose results would be lost otherwise. The check leaves no file
    behind.

    Raises:
        BadInput: the file cannot be written.
    """
    file = Path(os.path.realpath(path))  # of a link, what it leads to
    try:
        try:
            file.open("xb").close()
        except FileExistsError:
            file.open("ab").close()
        else:
            file.unlink()
    except (OSError, ValueError) as error:
        raise unwritable(option, path, error, fix) from None


def unwritable(option: str, path: Path, error: OSError | ValueError, fix: str) -> BadInput:
    """Return the error for a file that cannot be written."""
    why = error.strerror if isinstance(error, OSError) else error
    return BadInput(f"{option}: {str(path)!r} cannot be written: {why}; {fix}")


def finish(answer: dict[str, Any], text: str, *, as_json: bool, good: bool, complete: bool = True) -> int:
    """Print the result of a command, as JSON (*answer*) or as *text*; return the exit status."""
    if not complete:
        answer = {**answer, "interrupted": True}
        text = f"interrupted; what was reached until then:\n{text}"
    say(json.dumps(answer, ensure_ascii=False) if as_json else text)
    if not good:
        return WORK_FAILED
    return DONE if complete else INTERRUPTED
