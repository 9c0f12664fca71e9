"""``supervisor submit`` and ``cancel``: give a plan to the daemon of the state directory, and give up a run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.options import (
    PATH,
    agent_option,
    check_workdir,
    env_option,
    examples,
    json_option,
    say,
    state_dir_option,
    warn,
)
from supervisor.cli.plan_input import STANDARD_INPUT
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import operator, send_request
from supervisor.control.error_messages import BadInput, ControlError, NotRunning
from supervisor.control.ping import Unreachable
from supervisor.control.requests import CancelRun, Request, Submit
from supervisor.journal.statedir import LockHolder, StateDir
from supervisor.lifecycles.types import Kind
from supervisor.plans.source import BYTES_MAX

START_S: Final = 120.0
"""Seconds for which a daemon that has no control socket yet is waited for: it may open a large journal."""
LOOK_AGAIN_S: Final = 0.1


@click.command(
    "submit",
    epilog=examples(
        "supervisor submit plan.yaml",
        "supervisor submit plan.yaml --key nightly-17 --env OPENAI_API_KEY",
        "supervisor submit --resume r7",
    ),
)
@click.argument("plan", type=PATH, metavar="[PLAN]", required=False)
@state_dir_option
@json_option
@click.option("--key", metavar="KEY", help="Idempotency key: a second submit with it returns the run of the first.")
@click.option("--resume", metavar="RUN", help="Do what that run left undone; its recorded plan is used without PLAN.")
@env_option
@click.option("--run-name", metavar="NAME", help="Name of the run, instead of the plan's key workstream.")
@click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Directory in which the agents work.")
@click.option("--fail-fast", is_flag=True, help="End the run at the first task that has failed for good.")
@click.option("--no-plugins", is_flag=True, help="Use no installed plug-in.")
@agent_option
def submit_command(
    plan: Path | None,
    state_dir: Path,
    as_json: bool,
    key: str | None,
    resume: str | None,
    names: tuple[str, ...],
    run_name: str | None,
    workdir: Path,
    fail_fast: bool,
    no_plugins: bool,
    instead: Mapping[str, str],
) -> None:
    """PLAN is a YAML file, or - for standard input. Prints the id of the run; the run goes on without this terminal,
    and after a restart of the daemon. `supervisor wait RUN` waits for it."""
    if plan is None and resume is None:
        raise BadInput("PLAN: missing; name the file of a plan, or give --resume RUN")
    check_workdir(workdir)
    request = submission(
        plan,
        workdir,
        names,
        key=key,
        resume=resume,
        name=run_name,
        fail_fast=fail_fast,
        plugins=not no_plugins,
        instead=dict(instead),
    )
    print_submitted(send_to_daemon(state_dir, request), as_json=as_json)


def print_submitted(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the reply to a submission: the id of the run, and the notes."""
    say(json_text(answer) if as_json else answer["run"])
    for note in answer["notes"]:
        warn(note)


def submission(plan: Path | None, workdir: Path, names: Sequence[str], **given: Any) -> Submit:
    """Return the request to run the plan at that path in *workdir*, with the variables *names* of this process.

    Raises:
        BadInput: the plan cannot be read, or a variable is not set.
    """
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise BadInput(f"--env {missing[0]}: the variable is not set here; set it, or leave the option out")
    return Submit(
        plan=_text(plan),
        path=str(plan.absolute()) if plan is not None and plan != STANDARD_INPUT else None,
        directory=str(workdir.resolve()),
        environment={name: os.environ[name] for name in names},
        by=operator(),
        **given,
    )


def send_to_daemon(
    state_dir: Path, request: Submit | CancelRun, waiting: str = "the daemon has not answered yet; it may be busy"
) -> dict[str, Any]:
    """Send a request that only a daemon takes; wait for a daemon that is starting.

    Raises:
        BadInput: no supervisor runs on the state directory, or there is no such run.
        ControlError: the daemon refuses, or cannot be reached.
    """
    try:
        return send_when_started(state_dir, request, waiting, is_awaited=lambda holder: holder.is_daemon)
    except NotRunning:
        raise BadInput(f"no daemon runs on {state_dir}: start one with `supervisor serve`") from None
    except ControlError as error:
        if error.kind != "unknown":
            raise
        run = request.run if isinstance(request, CancelRun) else request.resume
        raise BadInput(f"run {run!r} is not in the journal; `supervisor runs` lists the runs") from None


def send_when_started(
    state_dir: Path, request: Request, waiting: str = "", *, is_awaited: Callable[[LockHolder], bool]
) -> dict[str, Any]:
    """Send a request; wait for a supervisor that has no control socket yet, if *is_awaited* says so of the process that
    holds the state directory.

    Raises:
        NotRunning: no supervisor runs on the state directory.
        ControlError: the supervisor refuses, or cannot be reached.
    """
    until_s, is_told = time.monotonic() + START_S, False
    while True:
        try:
            return send_request(state_dir, request, waiting)
        except Unreachable:
            holder = StateDir(state_dir).lock_holder()
            if (holder is not None and not is_awaited(holder)) or time.monotonic() > until_s:
                raise
            if not is_told:
                is_told = True
                what = "daemon" if holder is None or holder.is_daemon else "supervisor"
                warn(f"the {what} on {state_dir} is starting or ending: waiting for it")
            time.sleep(LOOK_AGAIN_S)


def _text(plan: Path | None) -> str | None:
    if plan is None:
        return None
    try:
        if plan == STANDARD_INPUT:
            data = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with plan.open("rb") as file:
                data = file.read(BYTES_MAX + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{plan}: is not UTF-8; save the plan as UTF-8") from None
    except OSError as error:
        raise BadInput(f"{plan}: cannot be read: {error.strerror}; give the path of a plan, a YAML file") from None
    if len(data) > BYTES_MAX:
        raise BadInput(f"{plan}: is larger than {BYTES_MAX} bytes, the maximum; split it")
    if not text.strip():
        raise BadInput(f"{plan}: is empty; a plan needs agents and tasks")
    return text


@click.command("cancel", epilog=examples("supervisor cancel r7"))
@click.argument("run", metavar="RUN", shell_complete=complete_ids(Kind.WORKSTREAM, living=True))
@click.option("--reason", default="cancelled from the command line", show_default=True)
@state_dir_option
@json_option
def cancel_command(run: str, reason: str, state_dir: Path, as_json: bool) -> None:
    """The sessions of the run are aborted, and its open tasks are cancelled. A run that has ended is no error."""
    request = CancelRun(run=run, reason=reason, by=operator())
    answer = send_to_daemon(state_dir, request, f"the cancellation of {run} goes on")
    if as_json:
        say(json_text(answer))
    else:
        say(f"{run} had ended already" if answer["already_ended"] else f"{run} is cancelled")
