"""Error messages of the command line, and exit statuses.

0: done; 1: the work failed; 2: bad input, nothing was started. An expected error is one message without a traceback;
the message of an unexpected error names file and line.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final, NamedTuple

DONE: Final = 0
WORK_FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


class BadInput(Exception):
    """A command cannot be done as given; the message says what would be right."""


class UnknownId(BadInput):
    """An id is not in the journal."""

    def __init__(self, entity_id: str) -> None:
        super().__init__(f"nothing has the id {entity_id!r}; `supervisor ps --all` shows the ids")


class WorkFailed(Exception):
    """A command was begun and could not be finished."""


class NotRunning(Exception):
    """No supervisor answers on that socket."""

    def __init__(self, socket: Path) -> None:
        super().__init__(f"no supervisor runs on {socket.parent.parent}: start one with `supervisor run PLAN.yaml`")


class ControlError(Exception):
    """The supervisor answered with an error. ``kind``: ``unknown``, ``refused``, ``bad``, ``failed``, or, if a later
    try may succeed, ``degraded`` or ``busy``."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Failure(NamedTuple):
    """Exit status, kind and message of an error."""

    status: int
    kind: str
    message: str


def failure_of(error: BaseException) -> Failure:
    """Return how to report *error*; of a group, its first member."""
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
    if (known := _known(error)) is not None:
        return known
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure(WORK_FAILED, "failed", f"this is a bug of the supervisor, please report it: {message}{where}")


def cause_of(error: BaseException) -> BaseException:
    """Return the error itself; of a group, its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _known(error: BaseException) -> Failure | None:
    """Return how to report an error of a lower package. These are imported only if there is an error."""
    from supervisor.host.services import ServiceFailed
    from supervisor.journal.statedir import StateDirError
    from supervisor.ports import JournalDamaged, JournalError
    from supervisor.workspaces.git_command import WorkspaceError

    if isinstance(error, JournalDamaged):  # the result of an integrity check
        return Failure(WORK_FAILED, "failed", str(error))
    if isinstance(error, StateDirError | JournalError | WorkspaceError):
        return Failure(BAD_INPUT, "bad", str(error))
    return (
        Failure(WORK_FAILED, "failed", str(error)) if isinstance(error, WorkFailed | ServiceFailed | OSError) else None
    )
