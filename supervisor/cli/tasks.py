"""Commands about tasks: ``approve``, ``reject``, ``retry`` and ``task``; sent over the control socket.

A refused task does not stop the others: each task has a reply of its own. The exit status is that of the worst reply.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import near_tasks, with_run
from supervisor.cli.options import PATH, TASK, examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import explained, operator, send_request
from supervisor.control.client import answers_to
from supervisor.control.error_messages import BAD_INPUT, DONE, WORK_FAILED, BadInput, NotRunning, advised
from supervisor.control.requests import AddTasks, Split, Steer
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import Kind, Verb
from supervisor.policies.redaction import printable

_DONE: Final[Mapping[str, str]] = {
    "approve": "approved",
    "reject": "rejected",
    "retry": "is tried again",
    "requeue": "taken from its session",
    "unclaim": "taken from its session",
    "cancel": "cancelled",
    "block": "blocked",
    "unblock": "unblocked",
    "keep": "its agent is told to stop; what is done is checked and merged",
    "split": "split",
}
_SUBTASKS_BYTES_MAX: Final = 512 * 1024
"""Largest size of the text of subtasks in bytes; a request to the supervisor may be twice as large."""


_by = click.option("--by", metavar="NAME", help="Name to record; by default your user name.")
_id = click.option(
    "--command-id",
    metavar="ID",
    help="Id of your own: a command with this id takes effect once, however often it is given.",
)
_reason = click.option("--reason", default="", metavar="TEXT", help="Reason to record.")
_tasks = click.argument("tasks", nargs=-1, metavar="[TASK]...", shell_complete=complete_ids(Kind.TASK, living=True))
_all = click.option("--all-planned", is_flag=True, help="All tasks that wait for approval before they begin.")


def _common_options(command: Any) -> Any:
    """Add to *command* the options that all commands of this module have."""
    return _by(_id(run_option(state_dir_option(json_option(command)))))


@click.command(epilog=examples("supervisor approve fix", "supervisor approve --all-planned"))
@_tasks
@_all
@_reason
@_common_options
def approve(tasks: tuple[str, ...], all_planned: bool, **options: Any) -> int:
    """A planned task is worked on from then on; the result of a task that waits for approval is merged."""
    return _send_command("approve", tasks, all_planned=all_planned, **options)


@click.command(epilog=examples('supervisor reject fix --reason "the tests are gone"'))
@_tasks
@_all
@click.option("--reason", required=True, metavar="TEXT", help="Reason to record, and to tell the next attempt.")
@_common_options
def reject(tasks: tuple[str, ...], all_planned: bool, **options: Any) -> int:
    """A planned task is cancelled; a task whose result is rejected has failed, and is tried again within its
    retries."""
    return _send_command("reject", tasks, all_planned=all_planned, **options)


@click.command(epilog=examples("supervisor retry fix", "supervisor retry r1#fix --reason 'the server is up again'"))
@_tasks
@_reason
@_common_options
def retry(tasks: tuple[str, ...], **options: Any) -> int:
    """A task that was given up, as long as its run lasts, has all its attempts again. A task that waits for its next
    attempt is tried at once. What was cancelled stays so: a run that resumes the run does it again."""
    return _send_command("retry", tasks, **options)


def keep_task(task: str, state_dir: Path, *, as_json: bool) -> int:
    """Send the command ``keep`` about one task, print the reply, and return the exit status."""
    return _send(Steer, verb=Verb.KEEP, tasks=(task,), state_dir=state_dir, as_json=as_json, by=None)


@click.group(epilog=examples("supervisor task requeue fix", "supervisor task cancel fix docs"))
def task() -> None:
    pass


def _command(verb: str, words: str) -> Callable[..., Any]:
    @_tasks
    @_reason
    @_common_options
    def command(tasks: tuple[str, ...], **options: Any) -> int:
        return _send_command(verb, tasks, **options)

    return task.command(verb, help=words, epilog=examples(f"supervisor task {verb} fix"))(command)


_command("requeue", "Take tasks in progress from their sessions, and let other sessions take them.")
_command("unclaim", "Take tasks that were claimed but not begun from their sessions.")
_command("cancel", "Cancel tasks for good.")
_command("unblock", "Release blocked tasks: what they waited for is there.")


@task.command("block", epilog=examples("supervisor task block deploy --on build"))
@_tasks
@click.option("--on", multiple=True, required=True, metavar="NAME", help="What they wait for; repeatable.")
@_reason
@_common_options
def block(tasks: tuple[str, ...], **options: Any) -> int:
    """Take tasks from their sessions until what they wait for is there.

    A task that waits for other tasks of the plan continues by itself when these are closed; a task that waits for
    anything else continues with `supervisor task unblock`.
    """
    return _send_command("block", tasks, **options)


@task.command(
    "add",
    epilog=examples("supervisor task add --run r7 --from more.yaml", "supervisor task add --command-id nightly-17"),
)
@click.option("--from", "file", type=PATH, metavar="FILE", help="File with the tasks; by default standard input.")
@_reason
@_common_options
def add(file: Path | None, run: str | None, state_dir: Path, as_json: bool, by: str | None, **options: Any) -> None:
    """Add tasks to a run that goes on.

    The tasks are a list in YAML, with the keys of a plan's tasks; they use the agents of the run's plan. --run may be
    left out where only one run goes on. Prints the ids of the tasks.
    """
    source, text = _read(file)
    actor = operator() if by is None else f"operator:{by}"
    request = AddTasks(run=run or "", tasks=text, source=source, by=actor, **options)
    answer = send_request(state_dir, request)["added"]
    if as_json:
        say(json_text(answer))
        return
    for one in answer["subtasks"]:
        say(printable(one))
    if answer["repeated"]:
        warn("this command was given before, nothing was done now")


@task.command("split", epilog=examples("supervisor task split fix --from parts.yaml"))
@click.argument(
    "task_id", metavar="[TASK]", required=False, envvar=TASK, shell_complete=complete_ids(Kind.TASK, living=True)
)
@click.option("--from", "file", type=PATH, metavar="FILE", help="File with the subtasks; by default standard input.")
@_reason
@_common_options
def split(task_id: str | None, file: Path | None, **options: Any) -> int:
    """Split a task into subtasks.

    The subtasks are a list of tasks in YAML, with the keys of a plan's tasks; a subtask without an agent gets the
    task's. The task is completed when its subtasks are. An agent that may split its own task need not name it.
    """
    if not task_id:
        raise BadInput(f"TASK: missing; name the task to split (an agent may set {TASK} instead)")
    task_id, (source, text) = with_run(task_id, options.pop("run")), _read(file)
    return _send(Split, task=task_id, subtasks=text, source=source, **options)


# ------------------------------------------------------------------------------------------------------- requests
def _send_command(
    verb: str,
    tasks: tuple[str, ...],
    *,
    run: str | None,
    all_planned: bool = False,
    on: tuple[str, ...] = (),
    **options: Any,
) -> int:
    """Send the command *verb* about *tasks*; return the exit status.

    Raises:
        BadInput: no task is named, or the options contradict each other.
    """
    if all_planned and (tasks or options["command_id"] is not None):
        raise BadInput(
            "--all-planned: it stands for other tasks each time; leave out either it, or TASK and --command-id"
        )
    if not all_planned and not tasks:
        raise BadInput(f"TASK: missing; name the tasks to {verb} (`supervisor tree` shows them)")
    tasks = tuple(with_run(task, run) for task in tasks)
    whose = run if all_planned and run is not None else ""
    return _send(Steer, verb=Verb(verb), tasks=tasks, all_planned=all_planned, on=on, run=whose, **options)


def _read(file: Path | None) -> tuple[str, str]:
    name = "standard input" if file is None else str(file)
    try:
        data = sys.stdin.buffer.read(_SUBTASKS_BYTES_MAX + 1) if file is None else file.read_bytes()
        if len(data) > _SUBTASKS_BYTES_MAX:
            raise BadInput(f"{name}: is larger than {_SUBTASKS_BYTES_MAX} bytes, the maximum for subtasks")
        return name, data.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{name}: cannot be read: {error.strerror}; give a file that lists the subtasks") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8 at position {error.start}; save it as UTF-8") from None


def _send(kind: type[Steer | Split], *, state_dir: Path, as_json: bool, by: str | None, **fields: Any) -> int:
    """Send a request and print the replies; return the exit status."""
    asked = kind(**fields, by=operator() if by is None else f"operator:{by}")
    try:
        replies = anyio.run(answers_to, StateDir(state_dir).control_socket, asked)
    except NotRunning as error:
        named = next(iter(fields.get("tasks") or [fields.get("task")]))
        raise explained(state_dir, named, "task", error) if named else error from None
    if as_json:
        say(json_text(replies))
    elif not replies:
        say("no planned task waits for approval")
    for one in [] if as_json else replies:
        _print_reply(one, state_dir)
    return max((_status(one) for one in replies), default=DONE)


def _print_reply(one: Mapping[str, Any], state_dir: Path) -> None:
    if "refused" in one and one["refused"]["kind"] == "unknown" and (near := near_tasks(state_dir, one["task"])):
        words = one["refused"]["message"] if "#" in one["task"] else f"no running plan has a task {one['task']!r}"
        warn(f"{words}; did you mean {' or '.join(near)}?")
        return
    if "refused" in one:
        warn(f"{printable(one['task'])}: {advised(**one['refused'])}")
        return
    answer = one["answer"]
    subtasks = f" into {', '.join(map(printable, answer['subtasks']))}" if answer["subtasks"] else ""
    again = " (this command was given before, nothing was done now)" if answer["repeated"] else ""
    say(f"{printable(one['task'])}: {_DONE[answer['verb']]}{subtasks}, now {answer['state']}{again}")


def _status(one: Mapping[str, Any]) -> int:
    """Return the exit status for one reply: a refusal that a later try may lift counts as failed work."""
    if "refused" not in one:
        return DONE
    return WORK_FAILED if one["refused"]["kind"] in ("degraded", "failed") else BAD_INPUT
