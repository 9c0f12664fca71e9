"""The words that every layer of the supervisor uses: scopes, reasons, outcomes, and the record of a lifecycle event.

Nothing here decides anything. Enum values keep the spelling of the specification.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any, Final, Literal, NamedTuple

import msgspec

__all__ = [
    "USUAL_TIME",
    "AbortPolicy",
    "AbortReason",
    "AbortScope",
    "CancelMode",
    "DeliveryPoint",
    "Exit",
    "Kind",
    "LifecycleEvent",
    "ModelFailure",
    "ModelProblem",
    "Severity",
    "StageBudgets",
    "Survivors",
    "TerminationStage",
    "TimeLimit",
    "ToolOutcome",
    "TransitionReason",
    "UnknownValue",
    "Verdict",
]


class Kind(StrEnum):
    """The kinds of entity that have a log of their own."""

    SESSION = "session"
    AGENT = "agent"
    TURN = "turn"
    TASK = "task"
    RUN = "run"
    JOB = "job"
    WORKSTREAM = "workstream"
    WORKER = "worker"


class AbortScope(StrEnum):
    """How far an abort reaches: one call, the siblings of the target, or the target with all its descendants."""

    TOOL = "tool"
    SIBLING = "sibling"
    SESSION = "session"


class CancelMode(StrEnum):
    """What the end of a parent means to a child session, from the strictest to the loosest (Temporal's four).

    ``wait_completed``: it is told to end, and the parent ends after it. ``wait_requested``: it is told, and the parent
    waits until it has heard. ``try``: it is told, and nobody waits. ``abandon``: it is not told, and lives on.
    """

    WAIT_COMPLETED = "wait_completed"
    WAIT_REQUESTED = "wait_requested"
    TRY = "try"
    ABANDON = "abandon"

    @classmethod
    def named(cls, word: CancelMode | str) -> CancelMode:
        """The mode of that name.

        Raises:
            UnknownWord: there is none.
        """
        try:
            return cls(word)
        except ValueError:
            raise UnknownValue("cancel_mode", word, cls) from None


class ToolOutcome(StrEnum):
    """The one result of a tool call. An abandoned call is ``aborted``, or, where nobody can tell whether its effect
    happened, ``unknown``."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


Survivors = int | Literal["unknown"]
"""How many processes are still alive. ``unknown`` where nobody can tell: neither 0 nor any other number."""


class UnknownValue(ValueError):
    """A word that is none of those that can stand there."""

    def __init__(self, field: str, given: object, expected: type[StrEnum]) -> None:
        self.field = field
        self.given = given
        words = [one.value for one in expected]
        super().__init__(f"{field}: {given!r} is unknown; expected {', '.join(words[:-1])} or {words[-1]}")


class DeliveryPoint(StrEnum):
    """When an urgent message interrupts: at once, when no tool call is open, or never, but heard when the turn ends."""

    NOW = "now"
    TOOL_BOUNDARY = "tool_boundary"
    TURN_END = "turn_end"


class TransitionReason(StrEnum):
    """Why a lifecycle transition occurred (spec 000). ``shortage`` is an extension: the machine lacked what a program
    needs to start."""

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


class AbortReason(StrEnum):
    """What ended an agent abnormally (spec 000)."""

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
    UNKNOWN = "unknown"


class Exit(Enum):
    """How a backend session ended (spec 003, ExitOutcome)."""

    SUCCESS = "Success"
    ERROR = "Error"
    TIMEOUT = "Timeout"


class ModelProblem(StrEnum):
    """What is the matter with an agent's model, or with whoever serves it.

    ``auth``: it does not know, or does not let in, who asks. ``quota``: the account is empty. ``not_found``: there is
    no such model. ``context_length``: what is asked does not fit. ``refused``: the model does not want to. The rest
    passes: ``rate_limit``, ``overloaded``, ``server`` (it failed), ``connection`` (not reached, or cut), ``unknown``.
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
    """How loud a record is (spec 004)."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class TerminationStage(StrEnum):
    """The steps of the ladder that an abort climbs, gentlest first."""

    REQUEST = "request"
    CANCEL = "cancel"
    TERMINATE = "terminate"
    KILL = "kill"
    ABANDON = "abandon"


class StageBudgets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each rung of an abort may take, in seconds."""

    request_s: float = 10.0
    cancel_s: float = 5.0
    terminate_s: float = 2.0
    kill_s: float = 1.0

    @property
    def total_s(self) -> float:
        """The bound on the whole abort."""
        return self.request_s + self.cancel_s + self.terminate_s + self.kill_s


class TimeLimit(NamedTuple):
    """What a turn may take, in seconds: *timeout_s* (``None``: what its session says), and up to *hard_cap_s* while
    progress is seen (``None``: no more than that)."""

    timeout_s: float | None = None
    hard_cap_s: float | None = None


USUAL_TIME: Final = TimeLimit()


class AbortPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which levels an abort may cross. By default it crosses none."""

    tool_to_sibling: bool = False
    sibling_to_session: bool = False
    ladder: StageBudgets = StageBudgets()


class ModelFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That the model made a turn fail: why, the HTTP status where one is known, and how often the agent had tried again
    by itself in that turn (as far as it tells). ``final``: another try of the same request is not worth it."""

    problem: ModelProblem
    status: int | None = None
    attempts: int = 0
    final: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One outcome of a turn or a process, with the evidence kept.

    ``status`` is the raw exit status in Python's form (negative: the signal that ended it), where a process ended;
    ``model`` is what the model had to do with a failure.
    """

    exit: Exit
    error: str = ""
    transition_reason: TransitionReason | None = None
    abort_reason: AbortReason | None = None
    status: int | None = None
    model: ModelFailure | None = None


class LifecycleEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of an entity's log: a transition, or a fact or refusal that changed no state.

    ``seq`` numbers the records of a supervisor, ``entity_seq`` those of one entity, both from 1.
    ``timestamp`` is Unix time for people; ``monotonic_s`` never goes back and is what decisions were made with.
    ``cause_id`` is the ``seq`` of the record that led to this one; ``None`` marks a root event.
    ``outcome`` is ``transition``, ``born`` (first record), ``refused`` (illegal here), ``stale`` (came too late)
    or ``fact`` (an abort record, a process's fate).
    """

    seq: int
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
    cause_id: int | None = None
    severity: str = "info"
    metadata: dict[str, Any] = {}
