"""Deadlines of an abort: when each stage of the escalation is over, from the request to the kill.

The deadline of an abort plan is the end of its last kill stage. With the default ``StageBudgets`` (a budget each for
request, cancel, terminate and kill) the kill is over 18 s after the abort.
"""

from __future__ import annotations

import msgspec

from supervisor.lifecycles.types import StageBudgets

__all__ = ["StageDeadlines", "stage_deadlines"]


class StageDeadlines(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When each rung of a node's ladder is over, in seconds from the abort."""

    request_s: float
    cancel_s: float
    terminate_s: float
    kill_s: float


def stage_deadlines(ladder: StageBudgets, within_s: float | None = None, *, now: bool = False) -> StageDeadlines:
    """When each rung is over, in seconds from now. Within less time than the ladder takes, the gentlest rungs give
    way first."""
    request_s = 0.0 if now else ladder.request_s
    cancel_s = request_s + (0.0 if now else ladder.cancel_s)
    terminate_s = cancel_s + (0.0 if now else ladder.terminate_s)
    kill_s = terminate_s + ladder.kill_s
    if within_s is not None and within_s < kill_s:
        kill_s = max(within_s, 0.0)
        terminate_s = min(terminate_s, max(kill_s - ladder.kill_s, 0.0))
        cancel_s = min(cancel_s, max(terminate_s - ladder.terminate_s, 0.0))
        request_s = min(request_s, max(cancel_s - ladder.cancel_s, 0.0))
    return StageDeadlines(request_s=request_s, cancel_s=cancel_s, terminate_s=terminate_s, kill_s=kill_s)
