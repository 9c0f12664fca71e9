"""Abort request: all requests to end one session, merged into one value. Pure.

The first reason wins, and later ones are appended; the severity only rises; the deadline only shrinks. So the order of
two requests decides whose reason is named, but not how soon or how hard the session ends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from supervisor.lifecycles.types import TerminationStage

CAUSES_MAX = 16
"""Number of later causes that are kept in memory; every cause is in the journal."""


_RANKS = {stage: rank for rank, stage in enumerate(TerminationStage)}


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
