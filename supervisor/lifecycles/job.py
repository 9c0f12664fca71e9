"""Lifecycle of a job: the scheduler's view of a task run, with its dependencies, queue, worker and requeue (spec 004).

A job repeats the retry decision of its run: ``retry_count`` is the run's failure count, ``max_retries`` is the run's
``max_attempts`` less one, and ``final`` says that the run makes no further attempt although the count would allow one.
Only a running job has a worker. Times are ``event.at``.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace

from actors.machine import Effect, Event, Machine, rule
from supervisor.lifecycles.types import Severity, TransitionReason


class Job(Enum):
    """The eight states, spelled as in the specification."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    VALIDATING = "validating"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRYING = "retrying"
    CANCELLED = "cancelled"


class JobData(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a job; ``max_retries`` is the run's ``max_attempts`` minus 1, times are monotonic seconds.

    ``losses`` counts the workers that were lost while they had the job, without those that ended with their supervisor.
    ``started_at`` is the first start, ``attempt_started_at`` the latest. ``run`` is the id of the job's task run,
    ``task`` the task that the run executes, ``workstream_id`` the workstream of the task; the failure of a ``critical``
    job fails the workstream.
    """

    max_retries: int = 4
    capabilities: tuple[str, ...] = ()
    run: str = ""
    task: str = ""
    workstream_id: str = ""
    critical: bool = False
    retry_count: int = 0
    losses: int = 0
    worker_id: str | None = None
    token: int = 0
    created_at: float | None = None
    started_at: float | None = None
    attempt_started_at: float | None = None
    completed_at: float | None = None
    last_error: str = ""


class SchedulerAssigned(Event, frozen=True, kw_only=True):
    """Event: the scheduler queued the job; *waiting_for* names the dependencies that are not completed (must be empty),
    *depends_on* the jobs that had to be completed first."""

    spelled = "scheduler_assigned"
    waiting_for: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()


class WorkerStarted(Event, frozen=True, kw_only=True):
    """Event: a worker took the job; the worker's *capabilities* must include everything that the job needs. *token* is
    the fencing token by which the worker that held the job before can write nothing more."""

    spelled = "worker_started"
    worker_id: str
    capabilities: tuple[str, ...] = ()
    token: int = 0


class ExecutionCompleted(Event, frozen=True, kw_only=True):
    """Event: the worker reports the end of the execution; only exit code 0 can be validated."""

    spelled = "execution_completed"
    exit_code: int = 0


class ExecutionFailed(Event, frozen=True, kw_only=True):
    """Event: the execution failed or timed out; *final*: the task run makes no further attempt. *charged* is false if
    the model's provider is to blame."""

    spelled = "execution_failed"
    error: str
    final: bool = False
    charged: bool = True


class WorkerLost(Event, frozen=True, kw_only=True):
    """Event: the worker is gone; the loss does not count as a failure of the job. *silent*: the worker sent no
    heartbeats; such losses are counted, since they may come again and again."""

    spelled = "worker_lost"
    error: str = "worker lost"
    silent: bool = False


class UserCancelled(Event, frozen=True, kw_only=True):
    """Event: a user cancelled the job."""

    spelled = "user_cancelled"
    reason: str = ""


class RetryDelayElapsed(Event, frozen=True, kw_only=True):
    """Event: the wait before the next attempt is over."""

    spelled = "retry_delay_elapsed"


class ValidationPassed(Event, frozen=True, kw_only=True):
    """Event: every validation rule passed; *failed_rules* must be empty."""

    spelled = "validation_passed"
    failed_rules: tuple[str, ...] = ()

    @property
    def transition_reason(self) -> TransitionReason:
        return TransitionReason.COMPLETED


class ValidationFailed(Event, frozen=True, kw_only=True):
    """Event: at least one validation rule failed; *failed_rules* names the rules."""

    spelled = "validation_failed"
    failed_rules: tuple[str, ...]


Out = tuple[JobData, tuple[Effect, ...]]


def dependencies_satisfied(data: JobData, event: SchedulerAssigned) -> bool:
    return not event.waiting_for


def worker_capable(data: JobData, event: WorkerStarted) -> bool:
    return all(one in event.capabilities for one in data.capabilities)


def exit_code_zero(data: JobData, event: ExecutionCompleted) -> bool:
    return event.exit_code == 0


def retries_left(data: JobData, event: ExecutionFailed) -> bool:
    return data.retry_count < data.max_retries and not event.final


def uncharged(data: JobData, event: ExecutionFailed) -> bool:
    return not event.charged


def all_rules_pass(data: JobData, event: ValidationPassed) -> bool:
    return not event.failed_rules


def some_rule_fails(data: JobData, event: ValidationFailed) -> bool:
    return bool(event.failed_rules)


def note_creation(data: JobData, event: Event) -> Out:
    return replace(data, created_at=event.at), ()


def assign_worker(data: JobData, event: WorkerStarted) -> Out:
    started_at = event.at if data.started_at is None else data.started_at
    taken = replace(data, worker_id=event.worker_id, token=event.token)
    return replace(taken, started_at=started_at, attempt_started_at=event.at), ()


def release_worker(data: JobData, event: Event) -> Out:
    return replace(data, worker_id=None), ()


def count_retry(data: JobData, event: Event) -> Out:
    return replace(data, retry_count=data.retry_count + 1), ()


def keep_error(data: JobData, event: ExecutionFailed | WorkerLost) -> Out:
    return replace(data, last_error=event.error), ()


def count_loss(data: JobData, event: WorkerLost) -> Out:
    return replace(data, losses=data.losses + event.silent), ()


def keep_findings(data: JobData, event: ValidationFailed) -> Out:
    return replace(data, last_error=f"validation failed: {', '.join(event.failed_rules)}"), ()


def note_completion(data: JobData, event: Event) -> Out:
    return replace(data, completed_at=event.at), ()


CANCEL = "a cancel must find every state that has not ended"
UNCHARGED = "trouble of the model's provider is charged to nobody; the job waits without a worker"
FOLLOWED = (
    "after a takeover a session may work while its job waits for a worker; if it fails, the job waits for the delay"
)
LOST = "a lost worker requeues its job, uncharged; the specification would leave it running without one"

J = Job
JOB: Machine[Job, JobData] = Machine(
    "job",
    source="004",
    initial=[J.PENDING],
    terminal=[J.COMPLETED, J.FAILED, J.CANCELLED],
    severities={J.RETRYING: Severity.WARNING, J.FAILED: Severity.ERROR},
    rules=[
        rule(SchedulerAssigned, J.PENDING, J.QUEUED, when=dependencies_satisfied, do=[note_creation]),
        rule(WorkerStarted, J.QUEUED, J.RUNNING, when=worker_capable, do=[assign_worker]),
        rule(ExecutionCompleted, J.RUNNING, J.VALIDATING, when=exit_code_zero, do=[release_worker]),
        rule(
            ExecutionFailed,
            J.RUNNING,
            J.RETRYING,
            when=uncharged,
            do=[keep_error, release_worker],
            extension=UNCHARGED,
        ),
        rule(
            ExecutionFailed,
            J.RUNNING,
            J.RETRYING,
            when=retries_left,
            do=[count_retry, keep_error, release_worker],
            trigger="retry_count < max_retries",
        ),
        rule(
            ExecutionFailed, J.RUNNING, J.FAILED, do=[keep_error, release_worker], trigger="retry_count >= max_retries"
        ),
        rule(ExecutionFailed, J.QUEUED, J.RETRYING, when=uncharged, do=[keep_error], extension=FOLLOWED),
        rule(UserCancelled, J.RUNNING, J.CANCELLED, do=[release_worker]),
        rule(RetryDelayElapsed, J.RETRYING, J.QUEUED),
        rule(ValidationPassed, J.VALIDATING, J.COMPLETED, when=all_rules_pass, do=[note_completion]),
        rule(ValidationFailed, J.VALIDATING, J.FAILED, when=some_rule_fails, do=[keep_findings]),
        rule(WorkerLost, J.RUNNING, J.RETRYING, do=[keep_error, count_loss, release_worker], extension=LOST),
        rule(UserCancelled, [J.PENDING, J.QUEUED, J.RETRYING, J.VALIDATING], J.CANCELLED, extension=CANCEL),
    ],
)
