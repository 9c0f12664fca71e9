"""What the command line says when something cannot be done, and the exit status that goes with it.

0: done; 1: the work failed; 2: bad input, nothing was started. Every expected error is one message without a
traceback; an unexpected one is a message too, and says where it came from.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final, NamedTuple

__all__ = [
    "BAD_INPUT",
    "DONE",
    "INTERRUPTED",
    "WORK_FAILED",
    "BadInput",
    "Failure",
    "UnknownId",
    "WorkFailed",
    "cause_of",
    "failure_of",
]

DONE: Final = 0
WORK_FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


class BadInput(Exception):
    """What was asked for cannot be done as it was asked; the message says what would be right."""


class UnknownId(BadInput):
    """The journal knows nothing of that id."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"nothing has the id {entity_id!r}; `supervisor ps --all` shows the ids")


class WorkFailed(Exception):
    """It was begun and could not be finished."""


class NotRunning(Exception):
    """No supervisor answers on that socket."""

    def __init__(self, socket: Path) -> None:
        super().__init__(f"no supervisor runs on {socket.parent.parent}: start one with `supervisor run PLAN.yaml`")


class ControlError(Exception):
    """The supervisor's answer was no. ``kind``: ``unknown``, ``refused``, ``bad``, or, where the same may be granted
    later, ``degraded`` or ``busy``, or ``failed``."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Failure(NamedTuple):
    """An error as the command line tells it."""

    status: int
    kind: str
    message: str


def failure_of(error: BaseException) -> Failure:
    """What to say about *error*; of a group, about its first member."""
    error = cause_of(error)
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted", "interrupted")
    if isinstance(error, BadInput):
        return Failure(BAD_INPUT, "bad", str(error))
    if isinstance(error, NotRunning):
        return Failure(BAD_INPUT, "not_running", str(error))
    if isinstance(error, ControlError):
        status = WORK_FAILED if error.kind in ("degraded", "busy", "failed") else BAD_INPUT
        return Failure(status, error.kind, str(error))
    return _known(error) or Failure(WORK_FAILED, "failed", _unexpected(error))


def cause_of(error: BaseException) -> BaseException:
    """The error itself; of a group, its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _known(error: BaseException) -> Failure | None:
    """Errors of the rooms below, which are imported only when something went wrong anyway."""
    from supervisor.host.services import ServiceFailed
    from supervisor.journal.statedir import StateDirError
    from supervisor.ports import JournalDamaged, JournalError
    from supervisor.workspaces.git_command import WorkspaceError

    if isinstance(error, JournalDamaged):  # it was looked into, and that is the answer
        return Failure(WORK_FAILED, "failed", str(error))
    if isinstance(error, StateDirError | JournalError | WorkspaceError):
        return Failure(BAD_INPUT, "bad", str(error))
    return (
        Failure(WORK_FAILED, "failed", str(error)) if isinstance(error, WorkFailed | ServiceFailed | OSError) else None
    )


def _unexpected(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return f"this is a bug of the supervisor, please report it: {words}{where}"
