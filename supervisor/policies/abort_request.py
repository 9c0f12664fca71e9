"""Abort request: all requests to end one session, merged into one value; and the deadlines of the stages. Pure.

The first reason wins, and later ones are appended; the severity only rises; the deadline only shrinks. So the order of
two requests decides whose reason is named, but not how soon or how hard the session ends.

The deadline of an abort plan is the end of its last kill stage. With the default ``StageBudgets`` (a budget each for
request, cancel, terminate and kill) the kill is over 18 s after the abort. The abort of a tool call that the agent runs
by itself passes through fewer stages; ``sessions.tool_calls.CallTermination`` has their deadlines.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.types import StageBudgets, TerminationStage

CAUSES_MAX = 16
"""Number of later causes that are kept in memory; every cause is in the journal."""


_RANKS = {stage: rank for rank, stage in enumerate(TerminationStage)}


class StageDeadlines(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Seconds from the abort at which each termination stage of a node is over: sums of the ``StageBudgets``, whose
    fields have the same names."""

    request_s: float
    cancel_s: float
    terminate_s: float
    kill_s: float


CALL_ASKED_S: Final = 1.0
"""Time budget of the request stage of one tool call, in seconds. Measured: an agent ends a call in 5 ms."""

EXITING_S: Final = 60.0
"""Time budget of the stage exiting, in seconds: how long the end of processes is waited for that run no code any more,
since the kernel is ending them. Measured: 48 GiB of pinned memory take 3 to 8 s. The deadline of an abort does not
count this time."""


def call_deadlines(budgets: StageBudgets, *, now: bool = False) -> StageDeadlines:
    """Return when each stage of one tool call is over, in seconds from now. The agent is requested to end the call for
    ``CALL_ASKED_S``; then the call's processes are killed for ``request_s``, or, with *now*, for ``kill_s``. After that
    the turn of the call is interrupted. A call has no stages cancel and terminate.
    """
    request_s = 0.0 if now else min(CALL_ASKED_S, budgets.request_s)
    kill_s = min(request_s + (budgets.kill_s if now else budgets.request_s), budgets.total_s)
    return StageDeadlines(request_s=request_s, cancel_s=request_s, terminate_s=request_s, kill_s=kill_s)


def stage_deadlines(budgets: StageBudgets, within_s: float | None = None, *, now: bool = False) -> StageDeadlines:
    """Return when each stage is over, in seconds from now.

    *within_s* bounds the whole termination; if the budgets sum up to more, the gentlest stages are shortened first.
    *now* skips all stages before kill.
    """
    request_s = 0.0 if now else budgets.request_s
    cancel_s = request_s + (0.0 if now else budgets.cancel_s)
    terminate_s = cancel_s + (0.0 if now else budgets.terminate_s)
    kill_s = terminate_s + budgets.kill_s
    if within_s is not None and within_s < kill_s:
        kill_s = max(within_s, 0.0)
        terminate_s = min(terminate_s, max(kill_s - budgets.kill_s, 0.0))
        cancel_s = min(cancel_s, max(terminate_s - budgets.terminate_s, 0.0))
        request_s = min(request_s, max(cancel_s - budgets.cancel_s, 0.0))
    return StageDeadlines(request_s=request_s, cancel_s=cancel_s, terminate_s=terminate_s, kill_s=kill_s)


def program_end_s(budgets: StageBudgets) -> float:
    """Return the longest time, in seconds, that the end of a program takes after its scope was cancelled."""
    return budgets.terminate_s + budgets.kill_s + EXITING_S


class MergeOutcome(StrEnum):
    """Effect of a request on the session's end: the request began the end, made the end harder or sooner, or changed
    nothing."""

    BEGAN = "began"
    RAISED = "raised"
    JOINED = "joined"


class LaterCause(msgspec.Struct, frozen=True, kw_only=True):
    """A later request to end the same session: the id of its abort, and its reason."""

    abort_id: str | None
    reason: str


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to end a session, or several such requests merged. ``severity`` is the termination stage at which to
    start; ``deadline`` is monotonic time in seconds."""

    abort_id: str | None
    reason: str
    severity: TerminationStage
    deadline: float
    abort_reason: str | None = None
    later: tuple[LaterCause, ...] = ()


class _Merged(NamedTuple):
    state: AbortRequest
    joined: MergeOutcome


def merge_request(state: AbortRequest | None, asked: AbortRequest) -> _Merged:
    """Merge the request *asked* into *state* (the requests so far); return the merged request and the effect of
    *asked*."""
    if state is None:
        return _Merged(asked, MergeOutcome.BEGAN)
    later = state.later
    if not same_abort(state, asked.abort_id) and len(later) < CAUSES_MAX:
        later = (*later, LaterCause(abort_id=asked.abort_id, reason=asked.reason))
    severity = max(state.severity, asked.severity, key=_RANKS.__getitem__)
    deadline = min(state.deadline, asked.deadline)
    raised = severity is not state.severity or deadline < state.deadline
    changed = msgspec.structs.replace(state, severity=severity, deadline=deadline, later=later)
    return _Merged(changed, MergeOutcome.RAISED if raised else MergeOutcome.JOINED)


def same_abort(state: AbortRequest, abort_id: str | None) -> bool:
    """Return whether the abort *abort_id* was merged into *state* already, or is ``None`` (an end without an abort)."""
    return abort_id is None or abort_id == state.abort_id or any(one.abort_id == abort_id for one in state.later)
