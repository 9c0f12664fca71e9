"""Table of the commands of ``supervisor``. Each command is implemented in a module of its own.

A module is imported only when its command is run, so that other commands and ``supervisor --help`` start fast.
"""

from __future__ import annotations

from copy import copy
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import click

from supervisor.cli.options import examples, say, state_dir_option
from supervisor.control.error_messages import BadInput


class _LazyCommand(click.Command):
    """Command whose module is imported when the command is run, not when the commands are listed.

    *short_help* is the summary of the command: its line in the list of commands, and the first line of its help.
    """

    def __init__(self, name: str, where: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._where = where

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        command = copy(self._load())
        command.help = "\n\n".join(text for text in (self.short_help, cleandoc(command.help or "")) if text)
        return command.make_context(*args, **options)

    def _load(self) -> click.Command:
        module, _, attribute = self._where.partition(":")
        command: click.Command = getattr(import_module(f"supervisor.cli.{module}"), attribute)
        return command


class _EntryPointCommand(_LazyCommand):
    """Command that a package above this one registers as an entry point."""

    def _load(self) -> click.Command:
        from importlib.metadata import entry_points  # here, since it imports much

        found = list(entry_points(group="supervisor.commands", name=self._where))
        if not found:
            raise BadInput(
                f"{self._where}: this command is not registered; install the package again (pip install -e .)"
            )
        command: click.Command = found[0].load()
        return command


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from supervisor import __version__  # here, since it reads the metadata of the installed package

        say(f"supervisor {__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def supervisor() -> None:
    """Run AI agents under supervision.

    Exit status: 0 done (every task is completed, skipped or rejected), 1 the work is not done, 2 bad input.
    """


@supervisor.command(epilog=examples("supervisor machines session", "supervisor machines --format mermaid"))
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


@supervisor.command(epilog=examples("claude mcp add supervisor -- supervisor mcp --state-dir $PWD/.sdd"))
@state_dir_option
def mcp(state_dir: Path) -> None:
    """Serve MCP on standard input and output.

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
    ("agents", "agents:agents_group", "List the known agents, show or probe one, or list trust levels."),
    ("answer", "permissions:answer", "Answer the permission request ID of an agent."),
    ("approve", "tasks:approve", "Approve planned tasks, or the results of tasks."),
    ("attach", "session_commands:attach_command", "Follow a session, and type messages to it."),
    ("cancel", "submit:cancel_command", "Give up the run of a plan in a daemon."),
    ("dead-letters", "query:dead_letters_command", "List the tasks that were given up, and how to retry them."),
    ("demo", "demo:demo", "Demonstrate supervision with real processes."),
    ("doctor", "doctor:doctor", "Report which process guarantees this machine can give."),
    ("events", "events:events", "Print all records, or the records of ID."),
    ("fleet", "fleet:fleet_group", "Show the fleet of this daemon, and its hosts."),
    ("inspect", "sessions:inspect", "Show the current activity of ID."),
    ("journal", "journal:journal", "Check, compact or export the journal of a state directory."),
    ("logs", "logs:logs_command", "Print what the agents of a task or session wrote."),
    ("merge", "merge:merge_command", "Merge the branch of a run, after showing its merge plan."),
    ("metrics", "metrics:metrics_group", "Figures from the journal: how long states last, and what follows."),
    ("permissions", "permissions:permissions", "List the permission requests that wait for an answer."),
    ("plan", "plan:plan_group", "Check or show a plan, or print the JSON Schema of plans."),
    ("plugins", "plugins:plugins", "List the installed plug-ins, and what they add."),
    ("ps", "query:ps_command", "List the sessions, and their agents and turns."),
    ("reject", "tasks:reject", "Reject planned tasks, or the results of tasks."),
    ("reload", "serve:reload_command", "Have the daemon read its configuration again."),
    ("replay", "replay:replay", "Replay a journal, and compare the results."),
    ("report", "run_report:report_command", "Print the result of a run: its tasks, cost, merges, and what waits."),
    ("retry", "tasks:retry", "Try tasks again that were given up, or that wait for their next attempt."),
    ("run", "run:run_command", "Run the tasks of a plan (a YAML file)."),
    ("runs", "runs:runs_command", "List the runs of plans, the newest first."),
    ("send", "sessions:send", "Send a message to session ID."),
    ("session", "session_commands:session_group", "Start a session without a plan, or close one."),
    ("serve", "serve:serve_command", "Run a daemon, which takes plans from `submit`."),
    ("stop", "stop:stop_command", "Stop the supervisor in order, or keep what a task has done."),
    ("stub-model", "stub_model:command", "Serve a scripted model on loopback, for agents under test."),
    ("submit", "submit:submit_command", "Give a plan to the daemon, and print the id of its run."),
    ("task", "tasks:task", "Add, requeue, unclaim, cancel, block or split tasks."),
    ("tree", "query:tree_command", "Show the sessions as a tree, with their open tool calls."),
    ("triggers", "triggers:triggers_group", "List and try triggers, and show what they have started."),
    ("ui", "ui:ui_command", "Open the page: see the sessions live, and steer them."),
    ("validate", "validate:validate", "Check a transition log, or a journal."),
    ("wait", "wait:wait_command", "Wait until a task, a session or the run has ended."),
    ("why", "why:why_command", "Explain the last change of ID by its causes."),
)
"""Commands of ``supervisor``: name, module and attribute below ``supervisor.cli``, and summary of each."""

for _name, _where, _short_help in _COMMANDS:
    supervisor.add_command(_LazyCommand(_name, _where, _short_help))
supervisor.add_command(
    _EntryPointCommand("simulate", "simulate", "Run the supervisor in a simulated world, in virtual time.")
)
