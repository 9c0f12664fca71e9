"""Shared enums and values of all layers: scopes, reasons, outcomes, and the record of a lifecycle event.

Nothing here decides anything. Enum values keep the spelling of the specification.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, NewType, TypeVar

import msgspec

INTEGER_MAX: Final = 2**63 - 1
"""Largest integer that a journal can store, such as the number of a record (SQLite)."""
ABORT_RECORD: Final = "AbortRecord"
"""Name of the fact that says what an abort ends and why, and of the fact for each policy edge that the abort crosses.
The journal has an index of these records."""
ACTOR_LOST: Final = "ActorLost"
"""Name of the fact that a session's actor crashed. The requests of that session received this as their reply; the
session is never continued."""


class Kind(StrEnum):
    """Kinds of entities that have a log of their own."""

    SESSION = "session"
    AGENT = "agent"
    TURN = "turn"
    TASK = "task"
    RUN = "run"
    JOB = "job"
    WORKSTREAM = "workstream"
    WORKER = "worker"
    TRIGGER = "trigger"


class AbortScope(StrEnum):
    """Reach of an abort: one call, the siblings of the target, or the target with all its descendants."""

    TOOL = "tool"
    SIBLING = "sibling"
    SESSION = "session"


class Verb(StrEnum):
    """Command about a task of a running plan, or with ``add`` about its run, as typed and recorded."""

    APPROVE = "approve"
    REJECT = "reject"
    RETRY = "retry"
    REQUEUE = "requeue"
    UNCLAIM = "unclaim"
    CANCEL = "cancel"
    SPLIT = "split"
    BLOCK = "block"
    UNBLOCK = "unblock"
    KEEP = "keep"
    ADD = "add"


class CancelMode(StrEnum):
    """Effect of a parent's end on a child session, from the strictest to the loosest (Temporal's four).

    ``wait_completed``: the child is stopped, and the parent ends after it. ``wait_requested``: the child is stopped,
    and the parent waits until the child has received the stop. ``try``: the child is stopped, and the parent does not
    wait. ``abandon``: the child lives on.
    """

    WAIT_COMPLETED = "wait_completed"
    WAIT_REQUESTED = "wait_requested"
    TRY = "try"
    ABANDON = "abandon"


class ToolOutcome(StrEnum):
    """Result of a tool call. A call given up by a termination is ``aborted``, or ``unknown`` if it is not known whether
    its effect happened."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


Survivors = int | Literal["unknown"]
"""Number of processes that are still alive; ``unknown`` (neither 0 nor another number) if the number is not known."""


class InvalidArgument(ValueError):
    """Error: an argument of the embedding API has a value that it does not allow; the message names the argument, the
    value and the fix."""


class UnknownValue(InvalidArgument):
    """Error: a field has a value that is none of those that it allows."""

    def __init__(self, field: str, given: object, expected: type[StrEnum]) -> None:
        words = [one.value for one in expected]
        super().__init__(f"{field}: {given!r} is unknown; expected {', '.join(words[:-1])} or {words[-1]}")


def check_duration(field: str, given: object) -> None:
    """Check that *given* is a number of seconds, 0 or more.

    Raises:
        InvalidArgument: *given* is negative, infinite or no number (``nan``); the error names *field*.
        TypeError: *given* has another type.
    """
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{field}: {given!r} is of type {type(given).__name__}; give seconds, an int or a float")
    if not (isfinite(given) and given >= 0):
        raise InvalidArgument(f"{field}: {given!r} is no duration; give seconds, 0 or more")


Choice = TypeVar("Choice", bound=StrEnum)


def choice_of(expected: type[Choice], field: str, given: str) -> Choice:
    """Return the value of *expected* that is spelled *given*.

    Raises:
        UnknownValue: there is no such value; the error names *field* and the values.
    """
    try:
        return expected(given)
    except ValueError:
        raise UnknownValue(field, given, expected) from None


class DeliveryPoint(StrEnum):
    """Point at which an urgent message interrupts: at once, when no tool call is open, or never (the message waits for
    the end of the turn)."""

    NOW = "now"
    TOOL_BOUNDARY = "tool_boundary"
    TURN_END = "turn_end"


class TransitionReason(StrEnum):
    """Reason of a lifecycle transition (spec 000). Two are extensions. ``shortage``: the machine lacked what a program
    needs to start. ``permanent_error``: another attempt fails in the same way until somebody corrects the agent."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    RETRY = "retry"
    PROMPT_TOO_LONG = "prompt_too_long"
    MAX_OUTPUT_TOKENS = "max_output_tokens"
    MAX_TURNS = "max_turns"
    PROVIDER_413 = "provider_413"
    PROVIDER_529 = "provider_529"
    COMPACTION_FAILED = "compaction_failed"
    STOP_HOOK_BLOCKED = "stop_hook_blocked"
    PERMISSION_DENIED = "permission_denied"
    SIBLING_ABORTED = "sibling_aborted"
    ORPHAN_RECOVERED = "orphan_recovered"
    SHORTAGE = "shortage"
    PERMANENT_ERROR = "permanent_error"


class AbortReason(StrEnum):
    """Cause of an agent's abnormal end (spec 000). Two are extensions, of ends by the runtime's own limits.
    ``budget_spent``: a budget was used up. ``loop``: the agent repeated the same calls without progress."""

    USER_INTERRUPT = "user_interrupt"
    SHUTDOWN_SIGNAL = "shutdown_signal"
    TIMEOUT = "timeout"
    OOM = "oom"
    PERMISSION_DENIED = "permission_denied"
    PROVIDER_ERROR = "provider_error"
    BASH_ERROR = "bash_error"
    SIBLING_ABORTED = "sibling_aborted"
    PARENT_ABORTED = "parent_aborted"
    COMPACT_FAILURE = "compact_failure"
    BUDGET_SPENT = "budget_spent"
    LOOP = "loop"
    UNKNOWN = "unknown"


OWN_ABORTS: Final = frozenset({AbortReason.TIMEOUT, AbortReason.BUDGET_SPENT, AbortReason.LOOP})
"""Reasons of the aborts that the runtime decides by its own limits: nobody requested the end of the task, so such an
abort ends the attempt, which has failed for that reason (rule 51)."""


class Exit(Enum):
    """Outcome of a backend session (spec 003, ExitOutcome)."""

    SUCCESS = "Success"
    ERROR = "Error"
    TIMEOUT = "Timeout"


class ModelProblem(StrEnum):
    """Problem of an agent's model, or of the model's provider.

    ``auth``: the credentials were refused. ``quota``: the account is empty. ``not_found``: there is no such model.
    ``context_length``: the request does not fit. ``refused``: the model declined. The other problems may pass:
    ``rate_limit``, ``overloaded``, ``server`` (the provider failed), ``connection`` (the provider was not reached, or
    the connection was cut), ``unknown``.
    """

    AUTH = "auth"
    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER = "server"
    CONTEXT_LENGTH = "context_length"
    QUOTA = "quota"
    NOT_FOUND = "not_found"
    CONNECTION = "connection"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """Severity of a record (spec 004)."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class TerminationStage(StrEnum):
    """Stages of a termination, gentlest first. In the stage ``exiting`` nothing of what is ended runs any more, and the
    kernel still releases what its processes hold."""

    REQUEST = "request"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    KILL = "kill"
    EXITING = "exiting"
    ABANDON = "abandon"


class Ending(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Termination of a session that is under way: the present stage, and the Unix time at which the stage is over
    (``None``: no deadline is known)."""

    stage: TerminationStage
    deadline: float | None = None


class StageBudgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that each termination stage may take. ``request_s`` is also the time in which an agent must report the
    end of a tool call whose processes were killed.

    Raises:
        InvalidArgument: a budget is negative, infinite or no number.
        TypeError: a budget has a wrong type.
    """

    request_s: float = 10.0
    cancel_s: float = 5.0
    terminate_s: float = 2.0
    kill_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_duration(f"StageBudgets: {name}", getattr(self, name))

    @property
    def total_s(self) -> float:
        """The bound on the whole abort, in seconds."""
        return self.request_s + self.cancel_s + self.terminate_s + self.kill_s


class TimeLimit(NamedTuple):
    """Time limit of a turn: *timeout_s* (``None``: the session's default), extended up to *hard_cap_s* while progress
    is seen (``None``: no extension). *timeout_source* names the setting or the measurement that *timeout_s* comes
    from."""

    timeout_s: float | None = None
    hard_cap_s: float | None = None
    timeout_source: str = ""


USUAL_TIME: Final = TimeLimit()


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one session. Thresholds and backoff are the specification's; the other bounds are the runtime's own.

    Spec 003 resets ``consecutive_errors`` at every start, so an agent that starts and then fails would be tried again
    every 2 s: after more than ``restarts_max`` such failures within ``restarts_within_s`` seconds the session fails.
    ``steer_grace_s`` is the time in which an agent must take up a message within its turn, before the agent is
    interrupted. ``settle_s`` is how long the processes of a turn may go on after the turn before they are ended and the
    turn is verified. ``waiting_max`` bounds the waiting messages, and the waiting prompts: all of them are written with
    every record. ``stall_threshold_s`` and ``merging_stall_s`` are the seconds of silence after which a working or
    merging agent is shown as stalled; they end nothing.
    """

    max_consecutive_errors: int = 5
    max_total_errors: int = 20
    backoff_base_ms: int = 2_000
    backoff_cap_ms: int = 60_000
    grace_s: float = 10.0
    steer_grace_s: float = 2.0
    spawn_deadline_s: float = 60.0
    turn_timeout_s: float = 300.0
    settle_s: float = 10.0
    stable_after_s: float = 0.0
    restarts_max: int = 3
    restarts_within_s: float = 60.0
    waiting_max: int = 100
    stall_threshold_s: float = 300.0
    merging_stall_s: float = 600.0


class AbortPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Levels to which an abort may spread (none by default), and the budgets of its stages."""

    tool_to_sibling: bool = False
    sibling_to_session: bool = False
    ladder: StageBudgets = StageBudgets()


PROVIDER_TROUBLE: Final = frozenset(
    {
        ModelProblem.RATE_LIMIT,
        ModelProblem.OVERLOADED,
        ModelProblem.SERVER,
        ModelProblem.CONNECTION,
        ModelProblem.UNKNOWN,
    }
)
"""Model problems for which the provider is to blame, and which may pass by themselves: no task run and no session is
charged for them."""


class ModelFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's part in the failure of a turn: problem, HTTP status if known, and the agent's own retries in that
    turn, as far as the agent reports them. ``final``: another attempt at the same request would fail too."""

    problem: ModelProblem
    status: int | None = None
    attempts: int = 0
    final: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a turn or a process, with the evidence.

    ``status`` is the raw exit status in Python's form (negative: the signal that ended the process), where a process
    ended; ``model`` is the model's part in a failure.
    """

    exit: Exit
    error: str = ""
    transition_reason: TransitionReason | None = None
    abort_reason: AbortReason | None = None
    status: int | None = None
    model: ModelFailure | None = None

    @property
    def permanent(self) -> bool:
        """Whether another attempt at the same request would fail too."""
        final = self.model is not None and self.model.final
        return final or self.transition_reason is TransitionReason.PERMANENT_ERROR


class HeldBy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Obstacle outside of the work, such as a lock of another git, that holds a step of a task (rule 48).

    ``what`` names the obstacle in the words after "held by"; ``fix`` is the command, or the act, that removes it.
    ``path`` is the lock, the checkout or the directory; ``files`` are the files that differ there, as far as they are
    listed. ``pid`` and ``program`` are the process that holds it, if that is known. ``since`` is the time since when it
    holds the step (Unix time in seconds; 0: since the step was tried first). The step is tried again every ``pause_s``
    seconds at most.
    """

    what: str
    fix: str
    path: str = ""
    files: tuple[str, ...] = ()
    pid: int = 0
    program: str = ""
    since: float = 0.0
    pause_s: float = 0.0


RecordId = NewType("RecordId", int)
"""Id of a record. Ids are ordered as the records of their journal, and opaque otherwise: only the journals, and
``supervisor.lifecycles.record_ids``, compute with them."""
BEGINNING: Final = RecordId(0)
"""Id before those of all records: after it come all."""


class LifecycleEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A line of an entity's log: a transition, or a fact or refusal that changed no state.

    ``seq`` numbers the records of a supervisor, ``entity_seq`` those of one entity, both from 1. ``timestamp`` is Unix
    time for people; ``monotonic_s`` is the time that decisions used and never goes back. ``cause_id`` is the ``seq`` of
    the record that led to this one; ``None`` marks a root event. ``outcome`` is ``transition``, ``born`` (first
    record), ``refused`` (illegal here), ``stale`` (came too late) or ``fact`` (an abort record, a process's fate).
    """

    seq: RecordId
    timestamp: float
    monotonic_s: float
    entity_type: str
    entity_id: str
    entity_seq: int
    event: str
    from_status: str = ""
    to_status: str = ""
    outcome: str = "transition"
    actor: str = ""
    reason: str = ""
    transition_reason: str | None = None
    abort_reason: str | None = None
    abort_id: str | None = None
    cause_id: RecordId | None = None
    severity: str = "info"
    metadata: dict[str, Any] = {}
