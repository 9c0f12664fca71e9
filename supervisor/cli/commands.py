"""The command line: the list of its commands. Each has a module, with what can be typed and what that does.

A module is imported only when its command is given, so that the others, and ``supervisor --help``, start at once.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, Final

import click

from supervisor.cli.options import say, state_dir_option
from supervisor.control.error_messages import BadInput

__all__ = ["supervisor"]


class _LazyCommand(click.Command):
    """A command that is imported when it is given, and not when it is listed."""

    def __init__(self, name: str, where: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._where = where

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        return self._command().make_context(*args, **options)

    def _command(self) -> click.Command:
        module, _, attribute = self._where.partition(":")
        command: click.Command = getattr(import_module(f"supervisor.cli.{module}"), attribute)
        return command


class _EntryPointCommand(_LazyCommand):
    """A command of a package above this one, which registers it."""

    def _command(self) -> click.Command:
        found = list(entry_points(group="supervisor.commands", name=self._where))
        if not found:
            raise BadInput(
                f"{self._where}: this command is not registered; install the package again (pip install -e .)"
            )
        command: click.Command = found[0].load()
        return command


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        say(f"supervisor {_version()}")
        context.exit()


def _version() -> str:
    try:
        return version("supervisor-runtime")
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def supervisor() -> None:
    """Run AI agents under supervision.

    Exit status: 0 done, 1 the work failed, 2 bad input.
    """


@supervisor.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--format", type=click.Choice(["table", "mermaid", "markdown", "json"]), default="table")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def machines(names: tuple[str, ...], format: str, as_json: bool) -> None:
    """Show the lifecycles: every state and every transition."""
    from supervisor.cli.machines import render

    try:
        say(render(names, "json" if as_json else format), newline=False)
    except ValueError as error:
        raise BadInput(str(error)) from None


@supervisor.command()
@state_dir_option
def mcp(state_dir: Path) -> None:
    """Be an MCP server on standard input and output.

    Its tools do what the commands list, inspect, why, send, abort, permissions and answer do, with the supervisor that
    runs on the state directory.
    """
    try:
        from supervisor.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise BadInput("mcp: its library is not installed; pip install 'supervisor-runtime[mcp]'") from None
    serve(state_dir)


_COMMANDS: Final = (
    ("abort", "sessions:abort", "End a tool call, a session or its siblings."),
    ("agents", "agents:agents_group", "List the known agents, and try what one does."),
    ("answer", "permissions:answer", "Answer the permission ID that an agent waits for."),
    ("approve", "tasks:approve", "Approve planned tasks, or the results of tasks."),
    ("dead-letters", "query:dead_letters_command", "List the tasks that were given up, and how to try again."),
    ("demo", "demo:demo", "Show what supervision is, with real processes."),
    ("doctor", "doctor:doctor", "Say which promises about processes this machine can keep."),
    ("events", "events:events", "Print the records of everything, or of ID."),
    ("inspect", "sessions:inspect", "Show what goes on in ID right now."),
    ("journal", "journal:journal", "Check, compact or export the journal of a state directory."),
    ("logs", "query:logs_command", "Print what the agents of the session ID said."),
    ("permissions", "permissions:permissions", "List what agents ask for and wait for."),
    ("plan", "plan:plan_group", "Check a plan, or say what one may hold."),
    ("plugins", "plugins:plugins", "List the installed plug-ins, and what they add."),
    ("ps", "query:ps_command", "List the sessions, and their agents and turns."),
    ("reject", "tasks:reject", "Reject planned tasks, or the results of tasks."),
    ("replay", "replay:replay", "Run what a journal tells again."),
    ("run", "run:run_command", "Run the tasks of a plan (a YAML file)."),
    ("send", "sessions:send", "Give the session ID a message."),
    ("stop", "sessions:stop", "End the supervisor in good order."),
    ("stub-model", "stub_model:command", "Serve a scripted model on loopback, for agents under test."),
    ("task", "tasks:task", "Reset, requeue, unclaim, cancel, block or split tasks."),
    ("tree", "query:tree_command", "Show the sessions as a tree, with their open tool calls."),
    ("validate", "validate:validate", "Check what a run has written."),
    ("why", "why:why_command", "Explain how ID came to be as it is."),
)
"""Name, module and attribute below ``supervisor.cli``, and the line in the list of commands."""

for _name, _where, _short_help in _COMMANDS:
    supervisor.add_command(_LazyCommand(_name, _where, _short_help))
supervisor.add_command(
    _EntryPointCommand("simulate", "simulate", "Run the supervisor in a simulated world, in virtual time.")
)
