"""Commands about work, as a second terminal gives them: asked over the control socket, and what came of each printed.

What is refused does not keep the rest: each task has an answer of its own. The exit status is that of the worst one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import anyio

from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import operator
from supervisor.control.client import request
from supervisor.control.error_messages import BAD_INPUT, DONE, WORK_FAILED, BadInput
from supervisor.journal.statedir import StateDir
from supervisor.policies.redaction import printable

__all__ = ["split", "steer"]

Say = Callable[[str], None]

_DONE: Final[Mapping[str, str]] = {
    "approve": "approved",
    "reject": "rejected",
    "reset": "reset",
    "requeue": "taken from its session",
    "unclaim": "taken from its session",
    "cancel": "cancelled",
    "block": "blocked",
    "unblock": "unblocked",
    "split": "split",
}
_SUBTASKS_BYTES_MAX: Final = 512 * 1024
"""A request has at most twice as much."""


def steer(
    verb: str,
    tasks: tuple[str, ...],
    say: Say,
    warn: Say,
    *,
    all_planned: bool = False,
    on: tuple[str, ...] = (),
    state_dir: Path,
    **how: Any,
) -> int:
    """Give the command *verb* about *tasks*; the exit status.

    Raises:
        BadInput: no task is named, or none is meant.
    """
    if all_planned and (tasks or how["command_id"] is not None):
        raise BadInput("--all-planned: these are other tasks each time; leave it out, or the tasks and --command-id")
    if not all_planned and not tasks:
        raise BadInput(f"TASK: none is named; name the tasks to {verb} (`supervisor tree` shows them)")
    asked = {"do": "steer", "verb": verb, "tasks": tasks, "all_planned": all_planned, "on": on}
    return _asked(asked, state_dir, say, warn, how)


def split(task: str, file: Path | None, say: Say, warn: Say, *, state_dir: Path, **how: Any) -> int:
    """Split *task* into the subtasks that *file*, or standard input, lists; the exit status.

    Raises:
        BadInput: the file cannot be read.
    """
    source, text = _read(file)
    return _asked({"do": "split", "task": task, "subtasks": text, "source": source}, state_dir, say, warn, how)


def _read(file: Path | None) -> tuple[str, str]:
    name = "standard input" if file is None else str(file)
    try:
        data = sys.stdin.buffer.read(_SUBTASKS_BYTES_MAX + 1) if file is None else file.read_bytes()
        if len(data) > _SUBTASKS_BYTES_MAX:
            raise BadInput(f"{name}: is larger than {_SUBTASKS_BYTES_MAX} bytes, the most that subtasks may have")
        return name, data.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{name}: cannot be read: {error.strerror}; give a file that lists the subtasks") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8 at position {error.start}; save it as UTF-8") from None


def _asked(message: Mapping[str, Any], state_dir: Path, say: Say, warn: Say, how: Mapping[str, Any]) -> int:
    """Ask, and print what came of it."""
    as_json = how["as_json"]
    asked = {name: how[name] for name in ("reason", "command_id")}
    by = operator() if how["by"] is None else f"operator:{how['by']}"
    told = anyio.run(_all, StateDir(state_dir).control_socket, {**message, **asked, "by": by})
    if as_json:
        say(json_text(told))
    elif not told:
        say("no task is planned and waits for approval")
    for one in [] if as_json else told:
        _tell(one, say, warn)
    return max((_status(one) for one in told), default=DONE)


async def _all(path: Path, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    async with aclosing(request(path, message)) as answers:
        return [answer async for answer in answers]


def _tell(one: Mapping[str, Any], say: Say, warn: Say) -> None:
    if "refused" in one:
        warn(f"{printable(one['task'])}: {one['refused']['message']}")
        return
    answer = one["answer"]
    subtasks = f" into {', '.join(map(printable, answer['subtasks']))}" if answer["subtasks"] else ""
    again = " (this command was given before, nothing was done now)" if answer["repeated"] else ""
    say(f"{printable(one['task'])}: {_DONE[answer['verb']]}{subtasks}, now {answer['state']}{again}")


def _status(one: Mapping[str, Any]) -> int:
    """What cannot be as it was asked is bad input; what may be granted later is work that failed."""
    if "refused" not in one:
        return DONE
    return WORK_FAILED if one["refused"]["kind"] in ("degraded", "failed") else BAD_INPUT
