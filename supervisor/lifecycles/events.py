"""Events of sessions, turns and agents: in one file, because the three send each other events.

Names are past tense or the specification's spelling. Every event carries what its guards and actions need and nothing
else.
"""

from __future__ import annotations

from actors.machine import Event
from supervisor.lifecycles.types import DeliveryPoint, Exit, Survivors, ToolOutcome, Verdict


# ---------------------------------------------------------------------------------------------------- session (003)
class TurnRequested(Event, frozen=True, kw_only=True):
    """A prompt was given to the session.

    A request that is tried *once* is not retried when its turn fails after the agent was ready: the requester decides
    about another attempt. *timeout_s* is the time-out of its turns (``None``: the session's), and *hard_cap_s* the time
    up to which that is extended while progress is seen (``None``: not at all).
    """

    spelled = "TurnRequested"
    request_id: str
    prompt: str
    once: bool = False
    timeout_s: float | None = None
    hard_cap_s: float | None = None


class WorktreeReady(Event, frozen=True, kw_only=True):
    """The directory to work in is there."""

    spelled = "WorktreeReady"
    path: str = ""


class PromptReady(Event, frozen=True, kw_only=True):
    """The prompt is composed. It includes the oldest ``messages`` of the waiting ones (``None``: all of them)."""

    spelled = "PromptReady"
    prompt: str
    messages: int | None = None


class AgentLaunched(Event, frozen=True, kw_only=True):
    """The agent's process runs; it is not ready yet."""

    spelled = "AgentLaunched"
    incarnation: int
    agent_id: str


class SessionStarted(Event, frozen=True, kw_only=True):
    """The agent is ready for the prompt."""

    spelled = "SessionStarted"
    seq: int
    incarnation: int
    agent_id: str = ""


class SessionExited(Event, frozen=True, kw_only=True):
    """This incarnation has ended, with or without an error; the evidence is in the verdict. If its turn ended with its
    supervisor, *due_s* is when that turn would have timed out, and *most_s* until when it may be extended (the
    journal's seconds)."""

    spelled = "SessionExited"
    incarnation: int
    verdict: Verdict
    due_s: float | None = None
    most_s: float | None = None


class SessionStable(Event, frozen=True, kw_only=True):
    """The session has been Running for ``stable_after_s`` seconds."""

    spelled = "SessionStable"
    incarnation: int


class UrgentMessage(Event, frozen=True, kw_only=True):
    """A message that cannot wait for the next prompt; *point* says how long it can wait. *steer*: the agent can be sent
    the message within the running turn, and is interrupted only if it does not take it up."""

    spelled = "UrgentMessage"
    message_id: str
    sender: str
    text: str
    point: DeliveryPoint = DeliveryPoint.NOW
    steer: bool = False


class MessageTakenUp(Event, frozen=True, kw_only=True):
    """The agent has taken up a message within its turn: the message counts as delivered with the prompt."""

    spelled = "MessageHeard"
    incarnation: int
    message_id: str


class SteerElapsed(Event, frozen=True, kw_only=True):
    """The time to take up a message within the turn is over, or the agent cannot take it up (*reason*)."""

    spelled = "SteerElapsed"
    incarnation: int
    message_id: str
    reason: str = ""


class BoundaryReached(Event, frozen=True, kw_only=True):
    """No tool call of the turn is open: a message that waited for that may interrupt the turn."""

    spelled = "BoundaryReached"
    incarnation: int


class MessageReceived(Event, frozen=True, kw_only=True):
    """A message for the next prompt."""

    spelled = "MessageReceived"
    message_id: str
    sender: str
    text: str


class GraceExceeded(Event, frozen=True, kw_only=True):
    """The agent did not stop within the grace period."""

    spelled = "GraceExceeded"
    incarnation: int


class BackoffElapsed(Event, frozen=True, kw_only=True):
    """The backoff is over: the session may try again."""

    spelled = "BackoffElapsed"


class OperatorStop(Event, frozen=True, kw_only=True):
    """A stop of the session by an operator, an abort, or the owner that has no more work for it."""

    spelled = "OperatorStop"
    reason: str
    outcome: str = "aborted"
    abort_id: str | None = None
    abort_reason: str | None = None
    transition_reason: str | None = None
    now: bool = False


class FatalError(Event, frozen=True, kw_only=True):
    """An error after which the session cannot go on."""

    spelled = "FatalError"
    message: str


class TurnReaped(Event, frozen=True, kw_only=True):
    """A turn of this session has been cleaned up."""

    spelled = "TurnReaped"
    turn_id: str
    completed: bool
    error: str = ""
    how: Verdict | None = None


class Ended(Event, frozen=True, kw_only=True):
    """Everything below this session has ended: the session's last record."""

    spelled = "Ended"
    rung: str
    took_s: float
    survivors: Survivors = 0


# ------------------------------------------------------------------------------------------------------- turn (000)
class TaskClaimed(Event, frozen=True, kw_only=True):
    """A prompt was reserved for this turn."""

    spelled = "task_claimed"
    request_id: str = ""


class AgentSpawned(Event, frozen=True, kw_only=True):
    """The agent's process was ``launched``, or is ``ready``: the event occurs twice."""

    spelled = "agent_spawned"
    incarnation: int
    phase: str


class ToolStarted(Event, frozen=True, kw_only=True):
    """A call began; ``within`` is the number of the open call that contains it, 0 for none."""

    spelled = "tool_started"
    number: int
    call_id: str
    title: str
    tool_kind: str = "other"
    within: int = 0


class ToolCompleted(Event, frozen=True, kw_only=True):
    """The one result of a call. ``over`` says that its work has ended already, so that nothing is left to cancel."""

    spelled = "tool_completed"
    call_id: str
    outcome: ToolOutcome
    reason: str = ""
    abort_id: str | None = None
    over: bool = False


class CompactNeeded(Event, frozen=True, kw_only=True):
    spelled = "compact_needed"


class CompactionCompleted(Event, frozen=True, kw_only=True):
    spelled = "compaction_completed"


class VerifyRequested(Event, frozen=True, kw_only=True):
    """The agent declared the work finished, so that it can be verified."""

    spelled = "verify_requested"
    verdict: Verdict = Verdict(exit=Exit.SUCCESS)


class TaskCompleted(Event, frozen=True, kw_only=True):
    spelled = "task_completed"


class TaskFailed(Event, frozen=True, kw_only=True):
    """The turn cannot succeed any more; the verdict says why, and an abort names itself. ``stopped`` names the open
    calls whose work is known to have ended; of the others it is unknown.

    ``stopped`` names the open calls whose work is known to be ended with it; of the others it is not known.
    """

    spelled = "task_failed"
    verdict: Verdict
    abort_id: str | None = None
    stopped: tuple[str, ...] = ()


class ProgressSeen(Event, frozen=True, kw_only=True):
    """The agent made progress; the time of the turn ends in *left_s* seconds during which a supervisor runs."""

    spelled = "ProgressSeen"
    left_s: float


class BoundaryAwaited(Event, frozen=True, kw_only=True):
    """The session waits for the moment when no call of this turn is open."""

    spelled = "BoundaryAwaited"


class PermissionRequested(Event, frozen=True, kw_only=True):
    """The agent requests a permission. *option* answers it at once, as *decision* says; for a request that a human is
    *asked* about, ``within_s`` is the time to answer."""

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
    """The one answer to a permission: ``allow``, ``deny``, or ``withdrawn`` with the turn that asked. *option* is the
    agent's option that is sent, *kind* the kind of that option; ``None``: the agent gets the reply that none was
    chosen."""

    spelled = "PermissionAnswered"
    number: int
    decision: str
    option: str | None = None
    kind: str | None = None
    by: str = ""
    why: str = ""
    always: bool = False


class AgentReaped(Event, frozen=True, kw_only=True):
    """Everything of this turn is cleaned up; ``degraded`` if something could not be."""

    spelled = "agent_reaped"
    degraded: bool = False
    note: str = ""


# ------------------------------------------------------------------------------------------------------ agent (000)
class AgentStarted(Event, frozen=True, kw_only=True):
    """The agent's process runs."""

    spelled = "process_started"
    pid: int


class AgentReady(Event, frozen=True, kw_only=True):
    """The agent can take a prompt. ``resume_id`` is its own name for the conversation."""

    spelled = "agent_ready"
    resume_id: str | None = None
    info: str = ""


class AgentNamed(Event, frozen=True, kw_only=True):
    """The agent named its conversation after that had begun."""

    spelled = "agent_named"
    resume_id: str


class TaskFinished(Event, frozen=True, kw_only=True):
    """The agent's turn is over; the agent is idle."""

    spelled = "task_finished"


class TaskAssigned(Event, frozen=True, kw_only=True):
    """The agent got another turn."""

    spelled = "task_assigned"
    turn_id: str = ""


class AgentExited(Event, frozen=True, kw_only=True):
    """The agent has ended, with everything it started. ``status`` is the raw exit status in Python's form."""

    spelled = "agent_exited"
    status: int | None = None
    ended_by: str = ""
    killed: int = 0
    survivors: int = 0
    reason: str = ""
    abort_reason: str | None = None
    abort_id: str | None = None
