"""Events of sessions, turns and agents: in one file, because the three send each other events.

Names are past tense or the specification's spelling. Every event carries the facts that its guards and actions need and
nothing else.
"""

from __future__ import annotations

from typing import Final

from actors.machine import Event
from supervisor.lifecycles.types import (
    PROVIDER_TROUBLE,
    AbortReason,
    DeliveryPoint,
    Exit,
    Survivors,
    TerminationStage,
    ToolOutcome,
    TransitionReason,
    Verdict,
)


# ---------------------------------------------------------------------------------------------------- session (003)
class TurnRequested(Event, frozen=True, kw_only=True):
    """Event: a prompt was given to the session; *reason* tells why it is given again (``""``: it is the first time).

    A request with *once* is not retried when its turn fails after the agent was ready: the requester decides about
    another attempt. *timeout_s* is the time-out of its turns (``None``: the session's default), and *hard_cap_s* the
    time up to which the time-out is extended while progress is seen (``None``: no extension); *timeout_source* names
    the setting or the measurement that the time-out comes from.
    """

    spelled = "TurnRequested"
    request_id: str
    prompt: str
    reason: str = ""
    once: bool = False
    timeout_s: float | None = None
    hard_cap_s: float | None = None
    timeout_source: str = ""


class WorktreeReady(Event, frozen=True, kw_only=True):
    """Event: the directory to work in is ready."""

    spelled = "WorktreeReady"
    path: str = ""


class PromptReady(Event, frozen=True, kw_only=True):
    """Event: the prompt is composed. The prompt includes the oldest ``messages`` of the waiting messages (``None``: all
    of them)."""

    spelled = "PromptReady"
    prompt: str
    messages: int | None = None


class AgentLaunched(Event, frozen=True, kw_only=True):
    """Event: the agent's process runs, but is not ready yet."""

    spelled = "AgentLaunched"
    incarnation: int
    agent_id: str


class SessionStarted(Event, frozen=True, kw_only=True):
    """Event: the agent is ready for the prompt."""

    spelled = "SessionStarted"
    seq: int
    incarnation: int
    agent_id: str = ""


class SessionExited(Event, frozen=True, kw_only=True):
    """Event: this incarnation of the session has ended, with or without an error; the evidence is in the verdict. If
    the next turn may continue the attempt of its turn, *due_s* is the time at which that turn would have timed out, and
    *most_s* the time until which it may be extended (the journal's seconds)."""

    spelled = "SessionExited"
    incarnation: int
    verdict: Verdict
    due_s: float | None = None
    most_s: float | None = None

    @property
    def charged(self) -> bool:
        """Whether the end is a failure of the session, unless the model's provider is to blame and may work again."""
        return self.verdict.model is None or self.verdict.model.problem not in PROVIDER_TROUBLE


class SessionStable(Event, frozen=True, kw_only=True):
    """Event: the session has been Running for ``stable_after_s`` seconds."""

    spelled = "SessionStable"
    incarnation: int


class UrgentMessage(Event, frozen=True, kw_only=True):
    """Event: a message came that may not wait for the next prompt; *point* is the point at which it interrupts.
    *steer*: the agent can be sent the message within the running turn, and is interrupted only if it does not take the
    message up. *grace_s*: seconds that an interrupted agent has to stop; ``None``: those of the session's limits.
    *blamed* is the abort reason of a turn that is interrupted for the message."""

    spelled = "UrgentMessage"
    message_id: str
    sender: str
    text: str
    point: DeliveryPoint = DeliveryPoint.NOW
    steer: bool = False
    grace_s: float | None = None
    blamed: AbortReason = AbortReason.USER_INTERRUPT


class MessageTakenUp(Event, frozen=True, kw_only=True):
    """Event: the agent has taken up a message within its turn: the message counts as delivered with the prompt."""

    spelled = "MessageHeard"
    incarnation: int
    message_id: str


class SteerElapsed(Event, frozen=True, kw_only=True):
    """Event: the time to take up a message within the turn is over, or the agent cannot take the message up
    (*reason*)."""

    spelled = "SteerElapsed"
    incarnation: int
    message_id: str
    reason: str = ""


class BoundaryReached(Event, frozen=True, kw_only=True):
    """Event: no tool call of the turn is open, so that a message that waited for this moment may interrupt the turn."""

    spelled = "BoundaryReached"
    incarnation: int


class MessageReceived(Event, frozen=True, kw_only=True):
    """Event: a message for the next prompt came."""

    spelled = "MessageReceived"
    message_id: str
    sender: str
    text: str


class GraceExceeded(Event, frozen=True, kw_only=True):
    """Event: the agent did not stop within the grace period."""

    spelled = "GraceExceeded"
    incarnation: int


class BackoffElapsed(Event, frozen=True, kw_only=True):
    """Event: the backoff is over: the session may try again."""

    spelled = "BackoffElapsed"


class OperatorStop(Event, frozen=True, kw_only=True):
    """Event: an operator, an abort, or an owner without more work for the session stops the session. *until* is the
    Unix time at which the first stage of its termination is over."""

    spelled = "OperatorStop"
    reason: str
    outcome: str = "aborted"
    abort_id: str | None = None
    abort_reason: str | None = None
    transition_reason: str | None = None
    now: bool = False
    until: float | None = None


class FatalError(Event, frozen=True, kw_only=True):
    """Event: an error occurred after which the session cannot go on. *incarnation* is the launch that failed; ``None``
    if the error is not one of a launch."""

    spelled = "FatalError"
    message: str
    incarnation: int | None = None


class TurnReaped(Event, frozen=True, kw_only=True):
    """Event: a turn of this session has been cleaned up."""

    spelled = "TurnReaped"
    turn_id: str
    completed: bool
    error: str = ""
    how: Verdict | None = None


class StageBegan(Event, frozen=True, kw_only=True):
    """Event: the termination of this session is in *stage*, which is over at the Unix time *until* (``None``: the stage
    has no deadline). It is sent when a stage after the first begins, and when the deadline of a stage becomes
    earlier."""

    spelled = "StageBegan"
    stage: TerminationStage
    until: float | None = None


class Ended(Event, frozen=True, kw_only=True):
    """Event: everything below this session has ended; the event is the session's last record."""

    spelled = "Ended"
    rung: str
    took_s: float
    survivors: Survivors = 0


# ------------------------------------------------------------------------------------------------------- turn (000)
class TaskClaimed(Event, frozen=True, kw_only=True):
    """Event: a prompt was reserved for this turn."""

    spelled = "task_claimed"
    request_id: str = ""


class AgentSpawned(Event, frozen=True, kw_only=True):
    """Event: the agent's process was launched, or is ready (*phase*: ``launched`` or ``ready``); a turn receives the
    event twice."""

    spelled = "agent_spawned"
    incarnation: int
    phase: str


class ToolStarted(Event, frozen=True, kw_only=True):
    """Event: a tool call began; ``within`` is the number of the open call that contains it, 0 for none."""

    spelled = "tool_started"
    number: int
    call_id: str
    title: str
    tool_kind: str = "other"
    within: int = 0


class ToolCompleted(Event, frozen=True, kw_only=True):
    """Event: a tool call has its one result. ``over``: the call's work has ended already, so that nothing is left to
    cancel. ``abort_reason``: ``bash_error`` for a command of a shell that failed."""

    spelled = "tool_completed"
    call_id: str
    outcome: ToolOutcome
    reason: str = ""
    abort_id: str | None = None
    over: bool = False
    abort_reason: AbortReason | None = None

    @property
    def transition_reason(self) -> TransitionReason | None:
        """Return ``completed`` or ``aborted``; ``None`` for a call that failed, or whose result is unknown."""
        return _TOOL_REASONS.get(self.outcome)


_TOOL_REASONS: Final = {
    ToolOutcome.COMPLETED: TransitionReason.COMPLETED,
    ToolOutcome.ABORTED: TransitionReason.ABORTED,
}


class CompactNeeded(Event, frozen=True, kw_only=True):
    spelled = "compact_needed"


class CompactionCompleted(Event, frozen=True, kw_only=True):
    """Event: the agent reported that its context is compacted."""

    spelled = "compaction_completed"


class CompactionFailed(Event, frozen=True, kw_only=True):
    """Event: the agent could not compact its context, and works on without that."""

    spelled = "compaction_failed"

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPACTION_FAILED


class VerifyRequested(Event, frozen=True, kw_only=True):
    """Event: the agent reported that the work is finished, so that the work can be verified."""

    spelled = "verify_requested"
    verdict: Verdict = Verdict(exit=Exit.SUCCESS)


class TaskCompleted(Event, frozen=True, kw_only=True):
    spelled = "task_completed"

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class TaskFailed(Event, frozen=True, kw_only=True):
    """Event: the turn cannot succeed any more; the verdict holds the reason, and *abort_id* the abort, if one ended the
    turn. ``stopped`` names the open calls whose work is known to have ended with the turn; of the other open calls that
    is unknown."""

    spelled = "task_failed"
    verdict: Verdict
    abort_id: str | None = None
    stopped: tuple[str, ...] = ()


class ProgressSeen(Event, frozen=True, kw_only=True):
    """Event: the agent made progress; *left_s* is the time left until the turn times out, in seconds during which a
    supervisor runs."""

    spelled = "ProgressSeen"
    left_s: float


class BoundaryAwaited(Event, frozen=True, kw_only=True):
    """Event: the session waits for the moment when no tool call of this turn is open."""

    spelled = "BoundaryAwaited"


class PermissionRequested(Event, frozen=True, kw_only=True):
    """Event: the agent requests a permission. *option* answers the request at once, according to *decision*; for a
    request that is put to a human (*asked*), ``within_s`` is the time to answer."""

    spelled = "PermissionRequested"
    number: int
    request_id: str
    title: str
    tool_kind: str = "other"
    tool: str = ""
    detail: str = ""
    paths: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    asked: bool = False
    within_s: float = 0.0
    decision: str = "deny"
    option: str | None = None
    kind: str | None = None
    why: str = ""


class PermissionAnswered(Event, frozen=True, kw_only=True):
    """Event: a permission request has its one answer: ``allow``, ``deny``, or ``withdrawn`` since its turn ended.
    *option* is the agent's option that is sent, *kind* the kind of that option; ``None``: the reply to the agent is
    that no option was chosen."""

    spelled = "PermissionAnswered"
    number: int
    decision: str
    option: str | None = None
    kind: str | None = None
    by: str = ""
    why: str = ""
    always: bool = False

    @property
    def transition_reason(self) -> TransitionReason | None:
        return TransitionReason.PERMISSION_DENIED if self.decision == "deny" else None


class AgentReaped(Event, frozen=True, kw_only=True):
    """Event: everything of this turn is cleaned up; ``degraded`` if a part could not be cleaned up."""

    spelled = "agent_reaped"
    degraded: bool = False
    note: str = ""


# ------------------------------------------------------------------------------------------------------ agent (000)
class AgentStarted(Event, frozen=True, kw_only=True):
    """Event: the agent's process runs."""

    spelled = "process_started"
    pid: int


class AgentReady(Event, frozen=True, kw_only=True):
    """Event: the agent can take a prompt. ``resume_id`` is the agent's own name for the conversation."""

    spelled = "agent_ready"
    resume_id: str | None = None
    info: str = ""


class AgentNamed(Event, frozen=True, kw_only=True):
    """Event: the agent named its conversation after the conversation had begun."""

    spelled = "agent_named"
    resume_id: str


class TaskFinished(Event, frozen=True, kw_only=True):
    """Event: the agent's turn is over; the agent is idle."""

    spelled = "task_finished"


class TaskAssigned(Event, frozen=True, kw_only=True):
    """Event: another turn was assigned to the agent."""

    spelled = "task_assigned"
    turn_id: str = ""


class AgentExited(Event, frozen=True, kw_only=True):
    """Event: the agent has ended, with everything it started. ``status`` is the raw exit status in Python's form."""

    spelled = "agent_exited"
    status: int | None = None
    ended_by: str = ""
    killed: int = 0
    survivors: int = 0
    reason: str = ""
    abort_reason: str | None = None
    abort_id: str | None = None
