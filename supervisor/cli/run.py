"""``supervisor run``: lock the state directory, and then import the runtime and run the plan.

The lock comes first. From its begin on, ``supervisor wait`` in another process knows that a run is starting, and does
not answer about an earlier run; the runtime takes a second to import. So this module imports nothing but options and
the state directory. A start that is refused, for example for an invalid plan, leaves no state directory behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from supervisor.cli.options import (
    PATH,
    agent_option,
    check_workdir,
    env_option,
    examples,
    json_option,
    log_json_option,
    state_dir_option,
    verbose_option,
)
from supervisor.control.error_messages import BadInput
from supervisor.journal.statedir import StateDir


@click.command(
    "run",
    epilog=examples(
        "supervisor run plan.yaml",
        "supervisor run plan.yaml --agent worker=codex --workdir project",
        "supervisor run - < plan.yaml",
    ),
)
@click.argument("plan", type=PATH, metavar="PLAN")
@state_dir_option
@json_option
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Directory in which the agents work.")
@click.option("--fresh", is_flag=True, help="Start over: end what an interrupted run left, and continue none of it.")
@click.option(
    "--resume",
    is_flag=True,
    help="Run the tasks that the last run did not close; cancelled and given-up tasks start from their checkpoints.",
)
@click.option("--detach", is_flag=True, help="Give the plan to the daemon, print the id of the run, and return.")
@env_option
@click.option("--fail-fast", is_flag=True, help="End the run at the first task that has failed for good.")
@click.option("--no-plugins", is_flag=True, help="Use no installed plug-in.")
@agent_option
@click.option("--http", "serves_http", is_flag=True, help="Serve the HTTP API on the socket runtime/http.sock.")
@click.option("--listen", metavar="HOST:PORT", help="Serve the HTTP API over TCP, too; needs --token-file.")
@click.option("--token-file", metavar="FILE", help="File with the tokens for TCP; made if it does not exist.")
@verbose_option
@log_json_option
def run_command(
    workdir: Path,
    detach: bool,
    names: tuple[str, ...],
    serves_http: bool,
    listen: str | None,
    token_file: str | None,
    **given: Any,
) -> int:
    """PLAN is a YAML file, or - for standard input. Tasks run in the order of their dependencies. The first Ctrl-C
    drains: no task starts, tasks in progress may finish. The second stops everything. If an earlier run of this plan
    was interrupted, this run continues it.

    Where a daemon holds the state directory (`supervisor serve`), the plan is submitted to it, and this command follows
    the run: Ctrl-C asks whether to detach or to cancel the run."""
    check_workdir(workdir)
    if given["fresh"] and given["resume"]:
        raise BadInput("--fresh, --resume: one starts over, the other continues; give one of them")
    http = None
    if serves_http or listen or token_file:
        from supervisor.control.http.options import HttpOptions

        http = HttpOptions(listen=listen, token_file=token_file)
    given |= {"workdir": workdir.resolve(), "http": http}
    if detach or names or StateDir(given["state_dir"]).lock_holder() is not None:
        from supervisor.cli.follow import has_daemon, run_on_daemon

        if detach or has_daemon(given["state_dir"]):
            return run_on_daemon(given, detach=detach, names=names)
        if names:
            fix = "agents of a run of your own take what inherit_env of their entries names; leave the option out"
            raise BadInput(f"--env: no daemon holds {given['state_dir']}; {fix}")
    if os.getpid() == 1:  # of a container without an init
        from supervisor.daemon.first_process import leave_first_process

        leave_first_process()
    state = StateDir.open(given["state_dir"])
    with state.lock(starting=True):
        try:
            from supervisor.cli.run_execution import RunRequest, execute_run  # here, since the lock comes first

            return execute_run(RunRequest(**given), state)
        finally:
            state.discard()
