"""``supervisor stop``: the end of the supervisor, or of the work on one task, whose result is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import pause, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import operator, send_request, warn_of_outage
from supervisor.cli.tasks import keep_task
from supervisor.control.error_messages import DONE, BadInput, NotRunning
from supervisor.control.requests import Stop
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import Kind


@click.command("stop", epilog=examples("supervisor stop --wait", "supervisor stop --now", "supervisor stop fix --keep"))
@click.argument("task", metavar="[TASK]", required=False, shell_complete=complete_ids(Kind.TASK, living=True))
@click.option("--keep", is_flag=True, help="End only the work on TASK: what is done is checked and merged.")
@click.option("--now", is_flag=True, help="Abort everything instead of letting turns finish.")
@click.option("--wait", is_flag=True, help="Return when the supervisor has ended.")
@state_dir_option
@json_option
@run_option
def stop_command(
    task: str | None, keep: bool, now: bool, wait: bool, run: str | None, state_dir: Path, as_json: bool
) -> int:
    """Turns in progress may finish within drain_s; a second stop, or --now, ends everything.

    With TASK and --keep only the work on that task ends: its agent is interrupted, and what is done is checked and
    merged as if the agent had completed it. If a check fails, the task has failed, and is not tried again.
    """
    if task is not None or keep:
        _check_keep(task, keep=keep, other="--now" if now else "--wait" if wait else "")
        return keep_task(with_run(str(task), run), state_dir, as_json=as_json)
    if run is not None:
        raise BadInput(f"--run {run}: `stop` without TASK ends the supervisor; `supervisor cancel {run}` ends a run")
    _stop_supervisor(state_dir, now=now, wait=wait, as_json=as_json)
    return DONE


def _check_keep(task: str | None, *, keep: bool, other: str) -> None:
    """Check the options of a stop that is about a task.

    Raises:
        BadInput: they contradict each other.
    """
    if task is None:
        raise BadInput("--keep: names no task; give TASK, whose work is to be checked and merged")
    if not keep:
        fix = f"--keep checks and merges its work, `supervisor task cancel {task}` cancels it"
        raise BadInput(f"TASK: {task!r} alone does not say what becomes of its work; {fix}")
    if other:
        raise BadInput(f"{other}: is for the stop of the supervisor; `supervisor wait {task}` waits for the task")


def _stop_supervisor(state_dir: Path, *, now: bool, wait: bool, as_json: bool) -> None:
    state = StateDir.open(state_dir, create=False)
    try:
        answer = send_request(state_dir, Stop(now=now, by=operator()))
    except NotRunning:
        say(
            json_text({"stopping": None}) if as_json else f"no supervisor runs on {state_dir}: there is nothing to stop"
        )
        return
    ending = answer["stopping"] == "now"  # asked for, or because it was the second time
    if answer.get("suspends"):
        words = "the daemon ends" if ending else "draining: nothing new begins, turns under way may finish"
        words += "; what is open goes on at its next start"
    else:
        words = "everything is being aborted" if ending else "draining: nothing new begins, turns under way may finish"
    say(json_text(answer) if as_json else words)
    warn_of_outage(answer)
    if wait:
        sys.stdout.flush()
        while state.lock_holder() is not None:
            pause()
        if not as_json:
            say("the supervisor has ended")
