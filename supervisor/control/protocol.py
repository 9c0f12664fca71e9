"""What can be asked over the control socket, and how a wish that cannot be granted is answered.

A request is a value with nothing but its fields; ``do`` names which. What cannot be granted has a kind, so that a
program can tell a refusal from a mistake and from a failure that may pass.
"""

from __future__ import annotations

from typing import Final

import msgspec

from supervisor.control.error_messages import cause_of
from supervisor.plans.task_control import Verb
from supervisor.ports import JournalError, Retention
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Degraded, Refused

__all__ = [
    "Abort",
    "Answer",
    "Asked",
    "Compact",
    "Follow",
    "Inspect",
    "Permissions",
    "Ping",
    "Request",
    "Send",
    "Split",
    "Steer",
    "Stop",
    "explained",
]

_log = get_logger()
_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (Degraded, "degraded"),
    (Refused, "refused"),
    (ValueError, "bad"),
    (JournalError, "failed"),
)
"""The first that fits, counts."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", forbid_unknown_fields=True):
    """A request; its tag is the ``do`` of the line that a client sends."""


class Ping(Asked, frozen=True, kw_only=True, tag="ping"):
    pass


class Abort(Asked, frozen=True, kw_only=True, tag="abort"):
    """*scope* is looked at by the supervisor, which says what it expected; *plan* is the id of the plan to execute."""

    target: str
    scope: str
    reason: str = "aborted through the control socket"
    actor: str = "control"
    dry_run: bool = False
    now: bool = False
    within_s: float | None = None
    plan: str | None = None


class Send(Asked, frozen=True, kw_only=True, tag="send"):
    session: str
    text: str
    urgent: bool = False
    at: str | None = None
    sender: str = "control"


class Stop(Asked, frozen=True, kw_only=True, tag="stop"):
    now: bool = False
    actor: str = "control"


class Inspect(Asked, frozen=True, kw_only=True, tag="inspect"):
    """What goes on in one living entity, or tool call."""

    entity: str


class Permissions(Asked, frozen=True, kw_only=True, tag="permissions"):
    """The permissions that wait for a human."""


class Answer(Asked, frozen=True, kw_only=True, tag="answer"):
    """Answer one of them; *always*: as often as the agent asks for the same."""

    permission: str
    allow: bool
    always: bool = False
    because: str = ""
    by: str = "control"


class Follow(Asked, frozen=True, kw_only=True, tag="follow"):
    """Events with a number above *after*, those of *entity* only if it is given, until the supervisor ends."""

    after: int = 0
    entity: str | None = None


class Compact(Asked, frozen=True, kw_only=True, tag="compact"):
    """Move what ended long ago to the archive: what *retention*, or else the supervisor's own, does not keep."""

    retention: Retention | None = None


class Steer(Asked, frozen=True, kw_only=True, tag="steer"):
    """A command about *tasks*, or about all that are planned; *on* is what they are to be blocked on.

    What is asked with a *command_id* takes effect once; of several tasks, each has its own, made of it.
    """

    verb: Verb
    tasks: tuple[str, ...] = ()
    all_planned: bool = False
    on: tuple[str, ...] = ()
    by: str = "control"
    reason: str = ""
    command_id: str | None = None


class Split(Asked, frozen=True, kw_only=True, tag="split"):
    """Split *task* into the *subtasks*, which are YAML, and come from *source*."""

    task: str
    subtasks: str
    source: str = "subtasks"
    by: str = "control"
    reason: str = ""
    command_id: str | None = None


Request = Ping | Abort | Send | Stop | Inspect | Permissions | Answer | Follow | Compact | Steer | Split


# ------------------------------------------------------------------------------------------------------- refusals
def explained(raised: Exception) -> dict[str, str]:
    """An error as a client is told it, with its kind; one of ours is logged too."""
    error = cause_of(raised)
    if (kind := _kind_of(error)) is not None:
        return {"kind": kind, "message": str(error)}
    _log.error("control_request_failed", exc_info=raised)
    return {"kind": "failed", "message": f"the supervisor failed: {type(error).__name__}: {error}"}


def _kind_of(error: BaseException) -> str | None:
    from supervisor.plans.source import BadPlan  # where one is, it is there; a client does without

    if isinstance(error, LookupError) and not isinstance(error, KeyError | IndexError):
        return "unknown"
    if isinstance(error, BadPlan):
        return "bad"
    return next((kind for one, kind in _KINDS if isinstance(error, one)), None)
