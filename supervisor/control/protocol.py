"""Requests on the control socket, and the form of its error replies.

The field ``do`` names the request. An error has a kind, so that a program can distinguish a refusal, a mistake, and a
failure that may pass.
"""

from __future__ import annotations

from typing import Final

import msgspec

from supervisor.control.error_messages import cause_of
from supervisor.plans.task_control import Verb
from supervisor.ports import JournalError, Retention
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Degraded, Refused

_log = get_logger()
_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (Degraded, "degraded"),
    (Refused, "refused"),
    (ValueError, "bad"),
    (JournalError, "failed"),
)
"""Kinds of error replies by the type of the exception; the first match counts."""


class BaseRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", forbid_unknown_fields=True):
    """Base class of the requests; the tag is the value of ``do`` in the line that a client sends."""


class Ping(BaseRequest, frozen=True, kw_only=True, tag="ping"):
    pass


class Abort(BaseRequest, frozen=True, kw_only=True, tag="abort"):
    """Request to abort *target*; *plan* is the id of the abort plan to execute, if given."""

    target: str
    scope: str
    reason: str = "aborted through the control socket"
    actor: str = "control"
    dry_run: bool = False
    now: bool = False
    within_s: float | None = None
    plan: str | None = None


class Send(BaseRequest, frozen=True, kw_only=True, tag="send"):
    session: str
    text: str
    urgent: bool = False
    at: str | None = None
    sender: str = "control"


class Stop(BaseRequest, frozen=True, kw_only=True, tag="stop"):
    now: bool = False
    actor: str = "control"


class Inspect(BaseRequest, frozen=True, kw_only=True, tag="inspect"):
    """Request to inspect a live entity or tool call."""

    entity: str


class Permissions(BaseRequest, frozen=True, kw_only=True, tag="permissions"):
    """Request to list the permission requests that wait for a human."""


class Answer(BaseRequest, frozen=True, kw_only=True, tag="answer"):
    """Request to answer a permission request; with *always*, the answer applies each time that the agent repeats that
    request."""

    permission: str
    allow: bool
    always: bool = False
    because: str = ""
    by: str = "control"


class Follow(BaseRequest, frozen=True, kw_only=True, tag="follow"):
    """Request to send the client every event with a number above *after*, of *entity* only if that is given, until the
    supervisor ends."""

    after: int = 0
    entity: str | None = None


class Compact(BaseRequest, frozen=True, kw_only=True, tag="compact"):
    """Request to move the entities that *retention* does not keep to the archive; by default, the supervisor's own
    retention applies."""

    retention: Retention | None = None


class Steer(BaseRequest, frozen=True, kw_only=True, tag="steer"):
    """Request to apply the command *verb* to *tasks*, or to all planned tasks; a block waits for the tasks or things in
    *on*.

    A command with a *command_id* takes effect once. For several tasks, the id of each command is derived from
    *command_id*.
    """

    verb: Verb
    tasks: tuple[str, ...] = ()
    all_planned: bool = False
    on: tuple[str, ...] = ()
    by: str = "control"
    reason: str = ""
    command_id: str | None = None


class Split(BaseRequest, frozen=True, kw_only=True, tag="split"):
    """Request to split *task* into *subtasks*, a YAML text; *source* is the name of that text in error messages."""

    task: str
    subtasks: str
    source: str = "subtasks"
    by: str = "control"
    reason: str = ""
    command_id: str | None = None


Request = Ping | Abort | Send | Stop | Inspect | Permissions | Answer | Follow | Compact | Steer | Split


# ------------------------------------------------------------------------------------------------------- refusals
def explained(raised: Exception) -> dict[str, str]:
    """Return kind and message of an error for the client's error reply; log the error if it is a bug of the
    supervisor."""
    error = cause_of(raised)
    if (kind := _kind_of(error)) is not None:
        return {"kind": kind, "message": str(error)}
    _log.error("control_request_failed", exc_info=raised)
    return {"kind": "failed", "message": f"the supervisor failed: {type(error).__name__}: {error}"}


def _kind_of(error: BaseException) -> str | None:
    from supervisor.plans.source import BadPlan  # here, since clients of the socket need no plans

    if isinstance(error, LookupError) and not isinstance(error, KeyError | IndexError):
        return "unknown"
    if isinstance(error, BadPlan):
        return "bad"
    return next((kind for one, kind in _KINDS if isinstance(error, one)), None)
