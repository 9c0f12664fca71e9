"""Permissions of callers on the control socket: decided by descent, never by the name in the request.

The permissions apply to every request through the socket, from the command line and from the MCP server.

Every caller may read, and an operator may do everything. The agent of a session may send messages and abort within its
session and the sessions below it, and split its own task if the plan says ``may_split``; any other operation is allowed
only if the agent's entry in the plan lists it under ``operates``. No agent answers a permission request of its own
session. A caller that cannot be identified may only read: an agent could otherwise use a program that ends at once.

The decision is pure; :class:`CallerReach` holds the facts that it needs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from supervisor.control.protocol import (
    Abort,
    Answer,
    Compact,
    Follow,
    Inspect,
    Permissions,
    Ping,
    Request,
    Send,
    Split,
    Steer,
    Stop,
)
from supervisor.plans.task_control import Verb
from supervisor.policies.abort_plan import AbortPlan
from supervisor.policies.caller_reach import CallerReach
from supervisor.ports import Caller, Origin


def refusal(caller: Caller, asked: Request, reach: CallerReach, plan_of: Callable[[Abort], AbortPlan]) -> str:
    """Return the reason why the request *asked* of *caller* is refused; ``""`` if it is allowed. *plan_of* is a
    function that returns the plan of an abort."""
    if caller.origin is Origin.OPERATOR or _only_reads(asked):
        return ""
    right, what = _wanted(asked)
    if caller.origin is Origin.UNIDENTIFIED:
        return (
            f"{what} is refused: the caller cannot be identified, since process {caller.pid} has ended. A program must "
            "run until it is answered; ask again"
        )
    why = _beyond(caller, asked, reach, plan_of)
    if not why or (right in reach.operates and not _is_own_permission(caller, asked)):
        return ""
    taken_for = f"process {caller.pid} is a program of this supervisor's"
    if caller.session:
        taken_for = f"process {caller.pid} is taken for the agent of {caller.session}, whose session started it"
    return f"{what} is refused: {taken_for}; {why}"


def _only_reads(asked: Request) -> bool:
    return isinstance(asked, Ping | Inspect | Permissions | Follow) or (isinstance(asked, Abort) and asked.dry_run)


def _wanted(asked: Request) -> tuple[str, str]:
    """Return the right that a request needs, as listed in ``operates``, and a text that describes the request."""
    match asked:
        case Abort():
            return "abort", f"abort {asked.target}"
        case Send():
            return "send", f"send to {asked.session}"
        case Answer():
            return "answer", f"an answer to {asked.permission}"
        case Steer():
            return "tasks", f"{asked.verb} {' '.join(asked.tasks)}".rstrip()
        case Split():
            return "tasks", f"{Verb.SPLIT} {asked.task}"
        case Stop():
            return "stop", "stop"
        case Compact():
            return "compact", "compact"
        case _:
            raise AssertionError(f"reading needs no right: {type(asked).__name__}")


def _beyond(caller: Caller, asked: Request, reach: CallerReach, plan_of: Callable[[Abort], AbortPlan]) -> str:
    """Return the reason why a request is beyond the *reach* of an agent; ``""`` if it is not."""
    own = f"only {caller.session} and the sessions below it are its own" if caller.session else "no session is its own"
    right, _ = _wanted(asked)
    lets = f"operates: [{right}] in its agent's entry of the plan would allow it"
    match asked:
        case Send():
            return "" if asked.session in reach.sessions else f"{own}; {lets}"
        case Abort():
            inside = _session_of(asked.target) in reach.sessions
            inside = inside and all(_session_of(node.id) in reach.sessions for node in plan_of(asked).nodes)
            return "" if inside else f"{own}; {lets}"
        case Split():
            return "" if asked.task in reach.splits else f"may_split of its own task would allow it, or {lets}"
        case Answer() if _is_own_permission(caller, asked):
            return "an agent may not answer its own permission request; an operator, or the host, does"
        case _:
            return f"that is for operators; {lets}"


def _is_own_permission(caller: Caller, asked: Request) -> bool:
    return isinstance(asked, Answer) and _session_of(asked.permission) == caller.session


def _session_of(entity_id: str) -> str:
    """Return the session id in the id of a turn, tool call or permission request: the part before the first colon."""
    return entity_id.partition(":")[0]


def as_asked_by(caller: Caller, asked: Request) -> Request:
    """Return the request with the name of its sender replaced by the caller's name, in the form that records have."""
    match asked:
        case Abort() | Stop():
            return msgspec.structs.replace(asked, actor=caller.named(asked.actor))
        case Send():
            return msgspec.structs.replace(asked, sender=caller.named(asked.sender))
        case Answer() | Steer() | Split():
            return msgspec.structs.replace(asked, by=caller.named(asked.by))
        case _:
            return asked
