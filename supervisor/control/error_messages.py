"""Error messages of the command line, and exit statuses.

Exit status 0: done; 1: the work failed; 2: bad input, nothing was started. An expected error is reported as one message
without a traceback; the message of an unexpected error names file and line.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

DONE: Final = 0
WORK_FAILED: Final = 1
BAD_INPUT: Final = 2
TIMED_OUT: Final = 124
"""Exit status of a wait whose time is over, as of timeout(1)."""
INTERRUPTED: Final = 130


class BadInput(Exception):
    """Raised when a command cannot be carried out as given; the message says which input would be right."""


class UnknownId(BadInput):
    """Raised when no record of the journal is about the given id. ``near`` are existing ids with a similar spelling."""

    def __init__(self, entity_id: str, near: Sequence[str] = ()) -> None:
        self.near = tuple(near)
        guess = f"did you mean {' or '.join(self.near)}? " if near else ""
        super().__init__(f"nothing has the id {entity_id!r}; {guess}`supervisor ps --all` shows the ids")


class WorkFailed(Exception):
    """Raised when a command was begun and could not be finished."""


class TimedOut(Exception):
    """Raised when a command has waited as long as it was allowed to."""


class NotRunning(Exception):
    """Raised when no supervisor runs for the socket."""

    def __init__(self, socket: Path) -> None:
        super().__init__(f"no supervisor runs on {socket.parent.parent}: start one with `supervisor run PLAN.yaml`")


class ControlError(Exception):
    """Raised when the supervisor replies with an error. ``kind`` is ``unknown``, ``refused``, ``bad``, ``failed``, or,
    if a later try may succeed, ``degraded`` or ``busy``."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Failure(NamedTuple):
    """Exit status, kind and message with which the command line reports an error."""

    status: int
    kind: str
    message: str


def failure_of(error: BaseException) -> Failure:
    """Return exit status, kind and message for *error*; of an exception group, for its first member."""
    error = cause_of(error)
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted", "interrupted")
    if isinstance(error, BadInput):
        return Failure(BAD_INPUT, "bad", str(error))
    if isinstance(error, TimedOut):
        return Failure(TIMED_OUT, "timeout", str(error))
    if isinstance(error, NotRunning):
        return Failure(BAD_INPUT, "not_running", str(error))
    if isinstance(error, ControlError):
        status = WORK_FAILED if error.kind in ("degraded", "busy", "failed") else BAD_INPUT
        return Failure(status, error.kind, advised(error.kind, str(error)))
    if (known := _known(error)) is not None:
        return known
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure(WORK_FAILED, "failed", f"this is a bug of the supervisor, please report it: {message}{where}")


def advised(kind: str, message: str) -> str:
    """Return the message of an error with the command that helps, if there is one for its *kind*. The message itself is
    for embedding programs, too, and names no command."""
    advice = {"unknown": "`supervisor tree` shows the ids", "runs": "`supervisor stop` ends that supervisor"}
    return f"{message}; {advice[kind]}" if kind in advice else message


def cause_of(error: BaseException) -> BaseException:
    """Return *error* itself, or, of an exception group, its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _known(error: BaseException) -> Failure | None:
    """Return exit status, kind and message for an error of a lower package, or ``None``. These packages are imported
    only if there is an error."""
    from supervisor.journal.statedir import StateDirBusy, StateDirError
    from supervisor.ports import JournalDamaged, JournalError
    from supervisor.sessions.shutdown import ServiceFailed
    from supervisor.workspaces.git_command import WorkspaceError

    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return Failure(BAD_INPUT, "bad", "the working directory has been deleted: change to another one (`cd`)")
    if isinstance(error, JournalDamaged):  # the result of an integrity check
        return Failure(WORK_FAILED, "failed", str(error))
    if isinstance(error, StateDirBusy):
        return Failure(BAD_INPUT, "bad", advised("runs", str(error)))
    if isinstance(error, StateDirError | JournalError | WorkspaceError):
        return Failure(BAD_INPUT, "bad", str(error))
    return (
        Failure(WORK_FAILED, "failed", str(error)) if isinstance(error, WorkFailed | ServiceFailed | OSError) else None
    )


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:  # it was deleted; it can be entered no more, but looked at
        return False
    return True
