"""Permissions of callers on the control socket: decided by descent, never by the name in the request.

The permissions apply to every request through the socket, from the command line and from the MCP server.

Every caller may read, and an operator may do everything. The agent of a session may send messages and abort within its
session and the sessions below it, and split its own task if the plan says ``may_split``; any other operation is allowed
only if the agent's entry in the plan lists it under ``operates``. No agent answers a permission request of its own
session. A caller that cannot be identified may only read: an agent could otherwise use a program that ends at once, or
kill the processes by which its own programs are recognised.

The decision is pure; :class:`CallerReach` holds the facts that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from supervisor.control.requests import Abort, Answer, Request, Send, Split
from supervisor.policies.abort_plan import AbortPlan
from supervisor.policies.caller_reach import CallerReach
from supervisor.ports import Caller, Origin

PlanOf = Callable[[Abort], AbortPlan]
"""Function that returns the plan of an abort, which names every session that would end."""

Rule = Callable[[Request, Caller, CallerReach, PlanOf], str]
"""Function that returns the reason why an agent may not send a request; ``""`` if it may."""


def for_operators(asked: Request, caller: Caller, reach: CallerReach, plan_of: PlanOf) -> str:
    return "that is for operators"


def _allows(asked: Request, caller: Caller, reach: CallerReach, plan_of: PlanOf) -> str:
    return ""


class Access(NamedTuple):
    """Rule for the agents that may call an operation: those that *within* allows, and those whose entry of the plan
    lists *right* under ``operates``; none of them if *never* has a reason."""

    right: str
    within: Rule = for_operators
    never: Rule = _allows


def refusal(access: Access, asked: Request, caller: Caller, reach: CallerReach, plan_of: PlanOf) -> str:
    """Return the reason why the request *asked* of *caller*, who is no operator, is refused; ``""`` if it is
    allowed."""
    if asked.only_reads:
        return ""
    if caller.origin is Origin.UNIDENTIFIED:
        why = f"process {caller.pid} has ended. A program must run until it is answered; ask again"
        return f"{asked.title} is refused: the caller cannot be identified, since {caller.why or why}"
    why = access.never(asked, caller, reach, plan_of)
    if not why and access.right not in reach.operates and (beyond := access.within(asked, caller, reach, plan_of)):
        why = f"{beyond}; operates: [{access.right}] in its agent's entry of the plan would allow it"
    if not why:
        return ""
    taken_for = f"process {caller.pid} is a program of this supervisor's"
    if caller.session:
        taken_for = f"process {caller.pid} is taken for the agent of {caller.session}, whose session started it"
    return f"{asked.title} is refused: {taken_for}; {why}"


def within_sessions(asked: Request, caller: Caller, reach: CallerReach, plan_of: PlanOf) -> str:
    """Rule: the agent's own session and the sessions below it; an abort may end nothing else."""
    assert isinstance(asked, Send | Abort), type(asked)
    inside = _session_of(asked.id) in reach.sessions
    if inside and isinstance(asked, Abort):
        inside = all(_session_of(node.id) in reach.sessions for node in plan_of(asked).nodes)
    if inside:
        return ""
    return f"only {caller.session} and the sessions below it are its own" if caller.session else "no session is its own"


def own_task(asked: Request, caller: Caller, reach: CallerReach, plan_of: PlanOf) -> str:
    """Rule: the agent's own task, if the plan says ``may_split``."""
    assert isinstance(asked, Split), type(asked)
    return "" if asked.task in reach.splits else "may_split of its own task would allow it"


def own_permission(asked: Request, caller: Caller, reach: CallerReach, plan_of: PlanOf) -> str:
    """Rule that no right lifts: no agent answers a permission request of its own session."""
    if isinstance(asked, Answer) and _session_of(asked.id) == caller.session:
        return "an agent may not answer its own permission request; an operator, or the host, does"
    return ""


def _session_of(entity_id: str) -> str:
    """Return the session id in the id of a turn, tool call or permission request: the part before the first colon."""
    return entity_id.partition(":")[0]
