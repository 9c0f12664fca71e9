"""Deadlines of the termination stages of sessions, turns and tool calls. Pure.

An abort needs the deadlines three times: for its plan, which may be a dry run; for its record; and for its execution.
All three are computed here, so that an abort does what its plan and its record say:

* ``session_deadlines`` and ``call_deadlines`` return the deadlines of all stages of one node, counted from the abort:
  for plan and record.
* ``SessionSchedule``, ``CallSchedule`` and ``TurnSchedule`` return the time at which a stage that was entered ends: for
  the execution, which may be later than planned (the machine is slow), or earlier (another abort shortens it).

Example, with the default ``StageBudgets`` (10 s request, 5 s cancel, 2 s terminate, 1 s kill):

    session                      request 10 s   cancel 15 s   terminate 17 s   kill 18 s
    session, within 5 s          request  0 s   cancel  2 s   terminate  4 s   kill  5 s
    call that the agent runs     request  1 s                                  kill 11 s   then its turn is interrupted
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple, Protocol

import msgspec

from supervisor.lifecycles.types import StageBudgets, TerminationStage

CALL_ASKED_S: Final = 1.0
"""Time budget of the request stage of one tool call, in seconds. Measured: an agent ends a call in 5 ms."""

CALL_KILL_S: Final = 1.0
"""Seconds for which the kill of a call's processes is repeated while they start other processes. A bound on the
termination of a call leaves that time for the kill."""

EXITING_S: Final = 60.0
"""Time budget of the stage exiting, in seconds: how long the end of processes is waited for that run no code any more,
since the kernel is ending them. Measured: 48 GiB of pinned memory take 3 to 8 s. The deadline of an abort does not
count this time."""

SLACK_S: Final = 5.0
"""Default, in seconds, of the time that a slow, loaded machine may add to the stages terminate and kill of a session
before its scope is abandoned."""

ROUNDING_S: Final = 1e-6
"""Largest difference, in seconds, of two deadlines that count as equal: a deadline is converted to a difference and
back."""


class StageDeadlines(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Seconds from the abort at which each termination stage of a node is over: sums of the ``StageBudgets``, whose
    fields have the same names."""

    request_s: float
    cancel_s: float
    terminate_s: float
    kill_s: float


def session_deadlines(budgets: StageBudgets, within_s: float | None = None, *, now: bool = False) -> StageDeadlines:
    """Return when each stage of a session is over, in seconds from now.

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


def call_deadlines(budgets: StageBudgets, within_s: float | None = None, *, now: bool = False) -> StageDeadlines:
    """Return when each stage of one tool call is over, in seconds from now. The agent is requested to end the call for
    ``CALL_ASKED_S``; then the call's processes are killed for ``request_s``, or, with *now*, for ``kill_s``. After that
    the turn of the call is interrupted. A call has no stages cancel and terminate. *within_s* bounds the whole
    termination; the request stage is shortened first.
    """
    asked_s = 0.0 if now else min(CALL_ASKED_S, budgets.request_s)
    kill_s = min(asked_s + (budgets.kill_s if now else budgets.request_s), budgets.total_s)
    kill_s = kill_s if within_s is None else min(kill_s, max(within_s, 0.0))
    ends_s = CallSchedule(budgets, kill_s).ends_at(TerminationStage.REQUEST, 0.0)
    assert ends_s is not None, "the request stage has an end"
    request_s = min(asked_s, max(ends_s, 0.0))
    return StageDeadlines(request_s=request_s, cancel_s=request_s, terminate_s=request_s, kill_s=kill_s)


def program_end_s(budgets: StageBudgets) -> float:
    """Return the longest time, in seconds, that the end of a program takes after its scope was cancelled."""
    return budgets.terminate_s + budgets.kill_s + EXITING_S


# ------------------------------------------------------------------------------------------------------ execution
class Schedule(Protocol):
    """Times at which the stages of one termination end. All times are seconds of one monotonic clock."""

    def ends_at(self, stage: TerminationStage, entered: float) -> float | None:
        """Return the time at which *stage*, which was entered at the time *entered*, ends; ``None``: it is the last
        stage."""
        ...


class SessionSchedule(NamedTuple):
    """Schedule of the termination of a session, which *began* and is to be over at *deadline*.

    The stages terminate and kill are carried out by the process contexts of the session; the session waits *slack_s*
    longer than they may take, since a slow machine may delay them.
    """

    budgets: StageBudgets
    began: float
    deadline: float
    slack_s: float

    @property
    def due(self) -> StageDeadlines:
        """Deadlines of all stages, in seconds after ``began``."""
        return session_deadlines(self.budgets, self.deadline - self.began)

    def ends_at(self, stage: TerminationStage, entered: float) -> float | None:
        match stage:
            case TerminationStage.REQUEST:
                return self.began + self.due.request_s
            case TerminationStage.CANCEL if self.due.kill_s < self.budgets.total_s - ROUNDING_S:
                return self.began + self.due.terminate_s  # no time for the process contexts to terminate first
            case TerminationStage.CANCEL:
                return self.began + self.due.kill_s + self.slack_s
            case TerminationStage.KILL:
                return entered + self.budgets.kill_s + self.slack_s
            case TerminationStage.EXITING:
                return entered + EXITING_S + self.slack_s
            case _:
                return None


class CallSchedule(NamedTuple):
    """Schedule of the termination of a tool call that its agent runs by itself. *deadline* is the time at which the
    kill is over at the latest."""

    budgets: StageBudgets
    deadline: float = inf

    def ends_at(self, stage: TerminationStage, entered: float) -> float | None:
        budget_s = self.budgets.request_s
        match stage:
            case TerminationStage.REQUEST:  # what remains of a shortened termination is for its kill
                asked_s, kill_s = min(CALL_ASKED_S, budget_s), min(CALL_KILL_S, budget_s)
                return min(entered + asked_s, self.deadline - kill_s)
            case TerminationStage.KILL:
                return min(entered + budget_s, self.deadline)
            case TerminationStage.EXITING:
                return entered + EXITING_S
            case _:
                return None


class TurnSchedule(NamedTuple):
    """Schedule of the termination of a turn, whose agent has *grace_s* seconds to interrupt it."""

    grace_s: float

    def ends_at(self, stage: TerminationStage, entered: float) -> float | None:
        match stage:
            case TerminationStage.REQUEST:
                return entered + self.grace_s
            case TerminationStage.EXITING:
                return entered + EXITING_S
            case _:
                return None
