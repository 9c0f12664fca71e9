"""Lifecycle of a task run: execution of one claim of a task, with attempts, time-outs, tests and a circuit (spec 002).

``FAILED`` and ``TIMEOUT`` are decision states, left at once by ``retry_decided``: only the guards in this module decide
about another attempt. Randomness enters only as the ``jitter`` of an event, time only as limits in seconds, for which
the caller sets the timers. An uncharged failure (a lost worker) changes the state and no counter.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec
from msgspec.structs import replace

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.effects import SendEvent
from supervisor.lifecycles.events import TaskCompleted, TaskFailed
from supervisor.lifecycles.types import Exit, Severity, TransitionReason, Verdict


class TaskRun(Enum):
    """State of a task run, spelled as in the specification."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    VALIDATING = "VALIDATING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETRYING = "RETRYING"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    HALF_OPEN = "HALF_OPEN"
    TIMEOUT = "TIMEOUT"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class ErrorCategory(StrEnum):
    """Category of an error; only a permanent error rules out another attempt."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


class SkipCause(StrEnum):
    """Reason why a task run was never started."""

    DEPENDENCY_FAILED = "dependency_failed"
    OPTIONAL = "optional"
    CONDITION_NOT_MET = "condition_not_met"


class TaskRunData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a task run: limits first, then counters.

    ``attempts`` counts launches, ``failures`` charged failures, ``same_error`` how often in a row the last signature
    has been seen, ``probes`` the probes admitted since the circuit first opened, ``relaunches`` the launches that the
    session repeated by itself, since the agent was not ready. ``provider_errors`` counts the errors of the model's
    provider in a row, which are not charged, ``provider_since`` is the time of the first one since the last success
    (the journal's seconds), ``wait_s`` the wait that the last one announced. ``delay_s`` is the wait that the last
    decision imposed, ``timed_out`` tells whether the last charged failure was a time-out or a stall, ``permanent``
    rules out retries and probes, ``probe`` marks the attempt under way as a probe, ``skipped`` is the reason why the
    run was never started, ``task`` is the id of the task that the run executes. ``saved_in`` is the state for which the
    last checkpoint was saved, after ``saved_attempt`` attempts, ``saved_as`` the commit or copy that holds the
    checkpoint; ``""`` where the work stays in place. ``resumed_from`` is the run with whose checkpoint this run begins,
    ``resumed_at`` the commit or copy that holds it. ``waits_for`` names the processes of the turn that must end before
    the result is judged, ``until`` is the end of that wait (Unix time). ``judged`` is the commit that was tested.
    ``last_error`` is the error of the last attempt, ``charged_error`` that of the last attempt whose failure was
    charged to the run. ``turn`` is the turn whose work is checked while the run is VALIDATING; ``""`` if there is none.
    """

    max_attempts: int = 5
    base_delay_s: float = 2.0
    max_delay_s: float = 60.0
    jitter: float = 0.25
    max_error_repeats: int = 2
    probes_max: int = 1
    cooldown_s: float = 60.0
    provider_patience_s: float = 3600.0
    provider_wait_max_s: float = 86_400.0
    timeout_s: float = 300.0
    attempts: int = 0
    failures: int = 0
    same_error: int = 0
    probes: int = 0
    relaunches: int = 0
    provider_errors: int = 0
    provider_since: float | None = None
    wait_s: float = 0.0
    delay_s: float = 0.0
    timed_out: bool = False
    permanent: bool = False
    probe: bool = False
    last_error: str = ""
    charged_error: str = ""
    last_signature: str = ""
    skipped: SkipCause | None = None
    task: str = ""
    saved_in: TaskRun | None = None
    saved_attempt: int = 0
    saved_as: str = ""
    resumed_from: str = ""
    resumed_at: str = ""
    waits_for: str = ""
    until: float = 0.0
    judged: str = ""
    turn: str = ""


class ExecutorStarted(Event, frozen=True, kw_only=True):
    """Event: an executor took the run; *waiting_for* names the dependencies that are not completed (must be empty)."""

    spelled = "executor_started"
    waiting_for: tuple[str, ...] = ()


class Skipped(Event, frozen=True, kw_only=True):
    """Event: the run will not be executed; *final* is false while the failed dependency may still succeed."""

    spelled = "skipped"
    cause: SkipCause = SkipCause.DEPENDENCY_FAILED
    dependency: str = ""
    final: bool = True


class Cancelled(Event, frozen=True, kw_only=True):
    """Event: the run was cancelled by a user, or with its workstream."""

    spelled = "cancelled"
    reason: str = ""


class ExecutionCompleted(Event, frozen=True, kw_only=True):
    """Event: the agent, or the tool, reports that its work is done. *turn* is the turn in which the work was done; it
    waits for the result of the tests."""

    spelled = "execution_completed"
    turn: str = ""


class ExecutionFailed(Event, frozen=True, kw_only=True):
    """Event: the attempt failed with *error*; equal *signature* means the same error. *charged* is false for a lost
    worker, and for trouble of the model's *provider*, which may have announced how long to wait (*wait_s*). *turn* is
    the turn that had succeeded, if its work is not complete; it waits for the verdict."""

    spelled = "execution_failed"
    error: str
    signature: str = ""
    category: ErrorCategory = ErrorCategory.UNKNOWN
    charged: bool = True
    provider: bool = False
    wait_s: float = 0.0
    turn: str = ""


class ExecutionTimedOut(Event, frozen=True, kw_only=True):
    """Event: the attempt exceeded its time-out and was terminated."""

    spelled = "execution_timed_out"
    error: str = "execution timed out"
    signature: str = "timeout"


class TestsPassed(Event, frozen=True, kw_only=True):
    """Event: every acceptance test passed; *judged* is the commit that was tested, if there is one."""

    spelled = "tests_passed"
    __test__ = False  # not a test class, whatever pytest thinks of the name
    judged: str = ""

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class TestsFailed(Event, frozen=True, kw_only=True):
    """Event: an acceptance test failed; the error is permanent, since validation is deterministic."""

    spelled = "tests_failed"
    __test__ = False
    error: str


class LaunchRetried(Event, frozen=True, kw_only=True):
    """Event: an agent was not ready, and its session launches another one within the attempt."""

    spelled = "launch_retried"
    error: str

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.RETRY


class RetryDecided(Event, frozen=True, kw_only=True):
    """Event: the decision about another attempt is made in a decision state; *jitter* is a factor drawn from the run's
    random stream (1 +- the jitter limit)."""

    spelled = "retry_decided"
    jitter: float = 1.0


class BackoffCompleted(Event, frozen=True, kw_only=True):
    """Event: the delay is over and an executor took the next attempt."""

    spelled = "backoff_completed"


class CircuitOpened(Event, frozen=True, kw_only=True):
    """Event: the circuit opened during the wait (for example because the workstream's retry budget is spent)."""

    spelled = "circuit_opened"
    reason: str = ""


class CooldownExpired(Event, frozen=True, kw_only=True):
    """Event: the circuit has been open for its cool-down; refused when no probe is left, or when the last failure was
    neither a time-out nor a stall."""

    spelled = "cooldown_expired"


class ProbeStarted(Event, frozen=True, kw_only=True):
    """Event: the one attempt of a half-open circuit was launched."""

    spelled = "probe_started"


class ProbeFailed(Event, frozen=True, kw_only=True):
    """Event: the probe could not start."""

    spelled = "probe_failed"
    error: str


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """Event: the work of *session* up to the end of its *attempt* is saved as *saved_as*; *state* is the state of the
    run, or the state that the run is about to enter if the attempt is its last."""

    spelled = "checkpoint_saved"
    state: TaskRun
    attempt: int
    session: str
    saved_as: str


class TurnSettling(Event, frozen=True, kw_only=True):
    """Event: the agent reported the end of its turn while processes of the turn still run: the run waits for these
    processes *until* a time (Unix time), and ends them after that. Empty *waits_for*: the wait is over."""

    spelled = "turn_settling"
    waits_for: str = ""
    until: float = 0.0


class ManualReset(Event, frozen=True, kw_only=True):
    """Event: the person *by* reviewed the run and lets it start afresh; the record is the audit trail."""

    spelled = "manual_reset"
    by: str


Out = tuple[TaskRunData, tuple[Effect, ...]]


def retry_delay_s(data: TaskRunData, jitter: float) -> float:
    """Return the seconds before the next attempt: doubling from the base, times *jitter*, capped before and after.

    Without a charged failure the delay is 0. The exponent is bounded, far beyond the cap, so that it cannot overflow.
    """
    if data.failures == 0:
        return 0.0
    factor = min(max(jitter, 1.0 - data.jitter), 1.0 + data.jitter)
    delay_s = min(data.max_delay_s, data.base_delay_s * 2.0 ** min(data.failures - 1, 64))
    return min(data.max_delay_s, delay_s * factor)


def dependencies_completed(data: TaskRunData, event: ExecutorStarted) -> bool:
    return not event.waiting_for


def ended_for_good(data: TaskRunData, event: Skipped) -> bool:
    return event.final


def retry_allowed(data: TaskRunData, event: Event) -> bool:
    """Whether another attempt may be made: attempts are left, nothing is permanent, no probe runs, and the last error
    came at most ``max_error_repeats`` times in a row.

    With the defaults the third identical error in a row, or the fifth failure, opens the circuit. An attempt that
    failed because of the provider is made again in any case, a probe as a probe.
    """
    exhausted = data.failures >= data.max_attempts or data.same_error > data.max_error_repeats
    return not data.permanent and (data.provider_errors > 0 or not (exhausted or data.probe))


def probes_left(data: TaskRunData, event: Event) -> bool:
    """Whether the open circuit is to be probed: only a time-out or a stall may pass by itself."""
    return data.timed_out and not data.permanent and data.probes < data.probes_max


def begin_attempt(data: TaskRunData, event: Event) -> Out:
    return replace(data, attempts=data.attempts + 1, delay_s=0.0, waits_for=""), ()


def begin_probe(data: TaskRunData, event: ProbeStarted) -> Out:
    return replace(data, attempts=data.attempts + 1, delay_s=0.0, probe=True, waits_for=""), ()


def keep_cause(data: TaskRunData, event: Skipped) -> Out:
    return replace(data, skipped=event.cause), ()


def admit_probe(data: TaskRunData, event: CooldownExpired) -> Out:
    return replace(data, probes=data.probes + 1), ()


def end_probe(data: TaskRunData, event: Event) -> Out:
    return replace(data, probe=False), ()


def charge(data: TaskRunData, event: ExecutionFailed | ExecutionTimedOut) -> Out:
    """Count a failure, and the number of times in a row that the same error has been seen."""
    if isinstance(event, ExecutionFailed) and not event.charged:
        return _note_uncharged(data, event), ()
    permanent = isinstance(event, ExecutionFailed) and event.category is ErrorCategory.PERMANENT
    signature = event.signature or event.error
    repeated = data.failures > 0 and signature == data.last_signature
    return replace(
        data,
        failures=data.failures + 1,
        provider_errors=0,
        same_error=data.same_error + 1 if repeated else 1,
        timed_out=isinstance(event, ExecutionTimedOut),
        permanent=data.permanent or permanent,
        last_error=event.error,
        charged_error=event.error,
        last_signature=signature,
    ), ()


def _note_uncharged(data: TaskRunData, event: ExecutionFailed) -> TaskRunData:
    """Keep the error. For trouble of the provider also count it, and keep the announced wait, and the time since which
    the provider has failed. Announced waits lie within that time, so that their sum is bounded."""
    if not event.provider:
        return replace(data, last_error=event.error, provider_errors=0)
    return replace(
        data,
        last_error=event.error,
        provider_errors=data.provider_errors + 1,
        provider_since=event.at if data.provider_since is None else data.provider_since,
        wait_s=min(event.wait_s, data.provider_wait_max_s),
    )


def charge_for_good(data: TaskRunData, event: TestsFailed) -> Out:
    error = event.error
    return replace(data, failures=data.failures + 1, permanent=True, last_error=error, charged_error=error), ()


def count_relaunch(data: TaskRunData, event: LaunchRetried) -> Out:
    return replace(data, relaunches=data.relaunches + 1), ()


def keep_error(data: TaskRunData, event: ProbeFailed) -> Out:
    return replace(data, last_error=event.error, probe=False), ()


def set_delay(data: TaskRunData, event: RetryDecided) -> Out:
    """Set the delay before the next attempt. While the provider fails, the provider's errors count instead of the
    failures of the run, and an announced wait is waited out."""
    if not data.provider_errors:
        return replace(data, delay_s=retry_delay_s(data, event.jitter)), ()
    backoff_s = retry_delay_s(replace(data, failures=data.provider_errors), event.jitter)
    return replace(data, delay_s=max(data.wait_s, backoff_s)), ()


def keep_checkpoint(data: TaskRunData, event: CheckpointSaved) -> Out:
    return replace(data, saved_in=event.state, saved_attempt=event.attempt, saved_as=event.saved_as), ()


def keep_judged(data: TaskRunData, event: TestsPassed) -> Out:
    return replace(data, judged=event.judged), ()


def keep_turn(data: TaskRunData, event: ExecutionCompleted) -> Out:
    return replace(data, turn=event.turn), ()


def complete_turn(data: TaskRunData, event: TestsPassed) -> Out:
    """Tell the turn, if there is one, that its work is verified. The effect is durable with the result of the tests, so
    that the turn is told once, also after a takeover."""
    return replace(data, turn=""), (SendEvent(to=data.turn, event=TaskCompleted()),) if data.turn else ()


def fail_turn(data: TaskRunData, event: TestsFailed | ExecutionFailed) -> Out:
    """Tell the turn, if there is one, that its work is rejected."""
    turn = event.turn if isinstance(event, ExecutionFailed) else data.turn
    failed = TaskFailed(verdict=Verdict(exit=Exit.ERROR, error=event.error))
    return replace(data, turn=""), (SendEvent(to=turn, event=failed),) if turn else ()


def keep_wait(data: TaskRunData, event: TurnSettling) -> Out:
    return replace(data, waits_for=event.waits_for, until=event.until), ()


def start_afresh(data: TaskRunData, event: ManualReset) -> Out:
    """Set the counters of earlier attempts to 0; the limits and the last error stay as they are."""
    counters = TaskRunData()
    return replace(
        data,
        attempts=counters.attempts,
        failures=counters.failures,
        same_error=counters.same_error,
        probes=counters.probes,
        relaunches=counters.relaunches,
        provider_errors=counters.provider_errors,
        provider_since=counters.provider_since,
        delay_s=counters.delay_s,
        timed_out=counters.timed_out,
        permanent=counters.permanent,
        probe=counters.probe,
        last_signature=counters.last_signature,
        saved_attempt=counters.saved_attempt,
    ), ()


SETTLE = "what still runs of a turn is waited for before the result is judged: people see what, and until when"
RELAUNCH = "a launch that a session repeats by itself draws on the retry budget, so the run counts it"
SAVE = "a checkpoint is a fact of the run: it moves nothing"
CANCEL = "a cancel must find every state in which a run can be at rest"
R = TaskRun
RUN: Machine[TaskRun, TaskRunData] = Machine(
    "run",
    source="002",
    initial=[R.PENDING],
    terminal=[R.COMPLETED, R.SKIPPED, R.CANCELLED],
    severities={
        R.FAILED: Severity.WARNING,
        R.TIMEOUT: Severity.WARNING,
        R.RETRYING: Severity.WARNING,
        R.CIRCUIT_OPEN: Severity.ERROR,
    },
    rules=[
        rule(
            ExecutorStarted,
            R.PENDING,
            R.IN_PROGRESS,
            when=dependencies_completed,
            do=[begin_attempt],
            trigger="Executor Starts",
        ),
        rule(Skipped, R.PENDING, R.SKIPPED, when=ended_for_good, do=[keep_cause], trigger="Dependency Failed"),
        rule(Cancelled, R.PENDING, R.CANCELLED, trigger="User Cancels"),
        rule(ExecutionCompleted, R.IN_PROGRESS, R.VALIDATING, do=[keep_turn], trigger="Tool Execution Complete"),
        rule(ExecutionFailed, R.IN_PROGRESS, R.FAILED, do=[charge, fail_turn], trigger="Tool Execution Error"),
        rule(ExecutionTimedOut, R.IN_PROGRESS, R.TIMEOUT, do=[charge], trigger="Execution Timeout"),
        rule(Cancelled, R.IN_PROGRESS, R.CANCELLED, trigger="User Interrupt"),
        rule(TestsPassed, R.VALIDATING, R.COMPLETED, do=[end_probe, keep_judged, complete_turn], trigger="Tests Pass"),
        rule(TestsFailed, R.VALIDATING, R.FAILED, do=[charge_for_good, fail_turn], trigger="Tests Fail"),
        rule(RetryDecided, R.FAILED, R.RETRYING, when=retry_allowed, do=[set_delay], trigger="Retry Available"),
        rule(RetryDecided, R.FAILED, R.CIRCUIT_OPEN, do=[end_probe], trigger="Max Retries Reached"),
        rule(BackoffCompleted, R.RETRYING, R.IN_PROGRESS, do=[begin_attempt], trigger="Backoff Complete"),
        rule(CircuitOpened, R.RETRYING, R.CIRCUIT_OPEN, do=[end_probe], trigger="Circuit Opens"),
        rule(
            CooldownExpired, R.CIRCUIT_OPEN, R.HALF_OPEN, when=probes_left, do=[admit_probe], trigger="Cooldown Expires"
        ),
        rule(ProbeStarted, R.HALF_OPEN, R.IN_PROGRESS, do=[begin_probe], trigger="Test Retry"),
        rule(ProbeFailed, R.HALF_OPEN, R.CIRCUIT_OPEN, do=[keep_error], trigger="Test Fails"),
        rule(RetryDecided, R.TIMEOUT, R.RETRYING, when=retry_allowed, do=[set_delay], trigger="Retry Available"),
        rule(RetryDecided, R.TIMEOUT, R.FAILED, trigger="No Retries Left"),
        rule(ManualReset, R.CIRCUIT_OPEN, R.PENDING, do=[start_afresh], trigger="Manual intervention/reset"),
        rule(Cancelled, R.CIRCUIT_OPEN, R.CANCELLED, trigger="Workstream cancelled"),
        rule(
            Cancelled,
            [R.VALIDATING, R.RETRYING, R.HALF_OPEN],
            R.CANCELLED,
            extension=CANCEL,
        ),
        rule(
            CheckpointSaved,
            [R.IN_PROGRESS, R.VALIDATING, R.FAILED, R.TIMEOUT, R.RETRYING, R.CIRCUIT_OPEN, R.HALF_OPEN],
            None,
            do=[keep_checkpoint],
            extension=SAVE,
        ),
        rule(TurnSettling, R.IN_PROGRESS, None, do=[keep_wait], extension=SETTLE),
        rule(LaunchRetried, R.IN_PROGRESS, None, do=[count_relaunch], extension=RELAUNCH),
    ],
)
