"""Options that many commands share (state directory, JSON, verbosity), and printing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from supervisor.control.error_messages import BadInput
from supervisor.policies.redaction import printable

PATH: Any = click.Path(path_type=Path)
STATE_DIR: Final = "SUPERVISOR_STATE_DIR"
TASK: Final = "SUPERVISOR_TASK"
"""Name of the environment variable with the task that an agent works on; it is set for agents that may split their
task."""
DEFAULT: Final = Path(".sdd")


class NonEmptyPath(click.Path):
    """Type of path options that rejects an empty path, which would unintentionally mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "" or (value == DEFAULT and _given_empty(param, ctx)):
            self.fail(f"it is empty; name a directory, or leave out it and {STATE_DIR} for {DEFAULT}", param, ctx)
        return super().convert(value, param, ctx)


def _given_empty(param: click.Parameter | None, ctx: click.Context | None) -> bool:
    """Return whether the environment variable is set but empty, which click treats as unset."""
    if param is None or ctx is None or os.environ.get(STATE_DIR) != "":
        return False
    return ctx.get_parameter_source(param.name or "") is not click.core.ParameterSource.COMMANDLINE


state_dir_option = click.option(
    "--state-dir",
    type=NonEmptyPath(path_type=Path),
    default=DEFAULT,
    envvar=STATE_DIR,
    show_default=True,
    show_envvar=True,
    help="Directory of the supervisor's journal.",
)


def state_dir_words(state_dir: Path) -> str:
    """Return the option that a printed command needs to find *state_dir*, with a space before it; ``""`` for the
    default directory."""
    return "" if state_dir == DEFAULT else f" --state-dir {shlex.quote(printable(str(state_dir)))}"


run_option = click.option(
    "--run", metavar="RUN", help="Run of the task, such as r1; in one word RUN#TASK. Needed if two runs have the task."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
verbose_option = click.option(
    "-v", "--verbose", count=True, help="Log each transition to standard error; -vv logs every record."
)


log_json_option = click.option(
    "--log-json", is_flag=True, help="Write the log as lines of JSON, with the ids of entities and traces as fields."
)


def _replacements(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> Mapping[str, str]:
    """Return the agents of the catalogue that replace agents of the plan.

    Raises:
        BadInput: one of *given* is not ``NAME=KNOWN``, or a name is given twice.
    """
    found: dict[str, str] = {}
    for one in given:
        name, _, known = one.partition("=")
        if not (name and known):
            raise BadInput(f"--agent {one}: give NAME=KNOWN, for example worker=codex")
        if name in found:
            raise BadInput(f"--agent {one}: {name} is {found[name]} already; give it once")
        found[name] = known
    return found


agent_option = click.option(
    "--agent",
    "instead",
    multiple=True,
    metavar="NAME=KNOWN",
    callback=_replacements,
    help="Replace an agent of the plan by a known one: worker=codex, or worker=gemini:jsonl to choose the adapter.",
)


env_option = click.option(
    "--env",
    "names",
    multiple=True,
    metavar="NAME",
    help="In a daemon: give the agents of the plan this variable of yours; repeatable.",
)


def check_workdir(workdir: Path) -> None:
    """Check that the value of ``--workdir`` is a directory.

    Raises:
        BadInput: there is no such directory.
    """
    if not workdir.is_dir():
        raise BadInput(f"--workdir: no directory {str(workdir)!r}; make it first")


def examples(*lines: str) -> str:
    """Return the end of a command's help: command lines that a user can type as they stand, or with other ids."""
    return "\n".join(["\b", "For example:", *(f"  {line}" for line in lines)])


def say(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print *text* on standard output or, with *err*, on standard error. All output of the program goes through this
    function, which escapes the characters that a terminal would interpret."""
    click.echo(printable(text, lines=True), err=err, nl=newline)


def warn(words: str) -> None:
    """Print *words* as a message of the supervisor on standard error."""
    say(f"supervisor: {words}", err=True)
