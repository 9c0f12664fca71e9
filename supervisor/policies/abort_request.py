"""What has been asked of something that is to end, all requests merged into one. Pure.

The first reason wins and later ones are appended; the severity only rises; the deadline only shrinks. So the order of
two requests changes who is named, never how soon or how hard it ends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from supervisor.lifecycles.types import TerminationStage

__all__ = ["CAUSES_MAX", "AbortState", "LaterCause", "MergeOutcome", "merge_request", "same_abort"]

CAUSES_MAX = 16
"""Later causes that are kept in memory; every one of them is a record."""

_RANKS = {rung: rank for rank, rung in enumerate(TerminationStage)}


class MergeOutcome(StrEnum):
    """What a request did to the end that it asked for: it began it, made it harder or sooner, or only joined it."""

    BEGAN = "began"
    RAISED = "raised"
    JOINED = "joined"


class LaterCause(msgspec.Struct, frozen=True, kw_only=True):
    """Who else wanted it to end, and why."""

    abort_id: str | None
    reason: str


class AbortState(msgspec.Struct, frozen=True, kw_only=True):
    """A request to end, or several merged. ``severity`` is the rung that the ladder starts at; ``deadline`` is
    monotonic time in seconds, by when it is to be over."""

    abort_id: str | None
    reason: str
    severity: TerminationStage
    deadline: float
    abort_reason: str | None = None
    later: tuple[LaterCause, ...] = ()


class _Merged(NamedTuple):
    state: AbortState
    joined: MergeOutcome


def merge_request(state: AbortState | None, asked: AbortState) -> _Merged:
    """One more request, and what it did."""
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


def same_abort(state: AbortState, abort_id: str | None) -> bool:
    """True if that abort has been heard of already; an end without an abort's id is none."""
    return abort_id is None or abort_id == state.abort_id or any(one.abort_id == abort_id for one in state.later)
