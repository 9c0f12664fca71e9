"""The commands about work: ``approve``, ``reject``, ``task``, ``dead-letters``. What can be typed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from supervisor.cli.options import PATH, TASK, json_option, say, state_dir_option, warn
from supervisor.control.error_messages import BadInput

__all__ = ["approve", "dead_letters", "reject", "task"]


def _by(command: Any) -> Any:
    return click.option("--by", metavar="NAME", help="Who says so, for the record; by default your user name.")(command)


def _id(command: Any) -> Any:
    told = "An id of your own: with it the command takes effect once, however often it is given."
    return click.option("--command-id", metavar="ID", help=told)(command)


def _reason(command: Any) -> Any:
    return click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")(command)


def _told(command: Any) -> Any:
    """The options of every command here."""
    return _by(_id(state_dir_option(json_option(command))))


_TASKS: Final = click.argument("tasks", nargs=-1, metavar="[TASK]...")
_ALL: Final = click.option("--all-planned", is_flag=True, help="All that wait to be approved before they begin.")


def _steer(verb: str, tasks: tuple[str, ...], **how: Any) -> int:
    from supervisor.cli import task_requests as steering_client

    return steering_client.steer(verb, tasks, say, warn, **how)


@click.command()
@_TASKS
@_ALL
@_reason
@_told
def approve(tasks: tuple[str, ...], all_planned: bool, **how: Any) -> int:
    """Approve planned tasks, or the results of tasks.

    A planned task is worked on from then on; the result of one that waits for approval is merged.
    """
    return _steer("approve", tasks, all_planned=all_planned, **how)


@click.command()
@_TASKS
@_ALL
@click.option("--reason", required=True, metavar="TEXT", help="Why not, for the record and for the next try.")
@_told
def reject(tasks: tuple[str, ...], all_planned: bool, **how: Any) -> int:
    """Reject planned tasks, or the results of tasks.

    A planned task is cancelled; one whose result is rejected has failed, and is tried again within its retries.
    """
    return _steer("reject", tasks, all_planned=all_planned, **how)


@click.group()
def task() -> None:
    """Reset, requeue, unclaim, cancel, block or split tasks."""


def _command(verb: str, words: str) -> Callable[..., Any]:
    @_TASKS
    @_reason
    @_told
    def command(tasks: tuple[str, ...], **how: Any) -> int:
        return _steer(verb, tasks, **how)

    return task.command(verb, help=words)(command)


_command("reset", "Let tasks that were given up be tried afresh: the circuit closes, attempts count from 0.")
_command("requeue", "Take tasks from whoever works on them, for somebody else.")
_command("unclaim", "Take tasks that were claimed and not begun from whoever claimed them.")
_command("cancel", "Let tasks be worked on no more.")
_command("unblock", "Let tasks that were blocked go on: what they waited for is there.")


@task.command("block")
@_TASKS
@click.option("--on", multiple=True, required=True, metavar="NAME", help="What they wait for; may be given repeatedly.")
@_reason
@_told
def block(tasks: tuple[str, ...], **how: Any) -> int:
    """Take tasks from whoever works on them, until what they wait for is there.

    One that waits for other tasks of the plan goes on by itself when these are closed; one that waits for anything else
    goes on with `supervisor task unblock`.
    """
    return _steer("block", tasks, **how)


@task.command("split")
@click.argument("task_id", metavar="[TASK]", required=False, envvar=TASK)
@click.option("--from", "file", type=PATH, metavar="FILE", help="Where the subtasks are; by default standard input.")
@_reason
@_told
def split(task_id: str | None, file: Path | None, **how: Any) -> int:
    """Split a task into subtasks.

    They are a list of tasks in YAML, with the keys that a task of a plan has; one that names no agent has the task's.
    The task is completed when they are. An agent that may split its own task need not name it.
    """
    from supervisor.cli import task_requests as steering_client

    if not task_id:
        raise BadInput(f"TASK: none is named; name the task to split (for an agent, {TASK} does)")
    return steering_client.split(task_id, file, say, warn, **how)


@click.command("dead-letters")
@state_dir_option
@json_option
def dead_letters(state_dir: Path, as_json: bool) -> None:
    """List the tasks that were given up, and how to try again.

    Each with its attempts in all its runs, and its last error.
    """
    from supervisor.cli.query import read_dead_letters

    read_dead_letters(state_dir, say, as_json=as_json)
