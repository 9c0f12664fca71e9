"""Table of what follows for the task, its task run and its job when one of the three moves.

A task has three logs: its own, that of its run and that of its job (spec 000, 002, 004). Almost every decision moves
more than one of them: a run that is COMPLETED has a job that is completed and a task that is DONE. This module is the
only place that knows which events follow from which.

Theory of operation
-------------------
The caller has one *leading event*. ``step`` takes the rows of that event, in order. A row whose conditions hold gives
the next event, which moves its table at once, so that the rows after it see the new states::

    row                          run         job        task
                                 VALIDATING  validating IN_PROGRESS
    leads: run TestsPassed       COMPLETED
    job VALIDATING   =>                      completed
    task IN_PROGRESS =>                                 DONE

The result is the list of all events in the order of their records. The caller records them in one append, so that a
crash leaves all of them or none. An event without rows leads alone.

* A row depends on states, data and events only. What these do not tell is given as ``Circumstances``: the findings of
  a review, the outcome of a turn.
* What comes from outside is a circumstance, too: a random number, whether a retry can be paid, a checkpoint that was
  saved. So ``step`` is one pass, and nothing can come between a decision and its records. Who saves a checkpoint that
  the plan wants does that before, and finds by a trial (with ``Circumstances.saved``) whether it would be recorded.
* A *decision* (``Decision``) is a leading event of no table: an end, a retry or a loss that means another event in
  each state. Only its rows are recorded.
* What is to be done next (an attempt, checks, a merge, a delay) is no event: ``pending_effect`` finds it in the states.
  What leads after it (``ExecutionFailed``, ``TestsPassed``, ``Merged``, ``DelayEnded`` and others) always leads to a
  state without that effect.
* A *birth* (``Birth``) begins the log of a new run or job, in its first state; the rows after it see that state.
* A leading event that its table refuses ends the list: the entity refuses and records it, and nothing moves.

The order of the rows is the order of the records. It differs between decisions (a cancellation begins with the task, a
failure with the run), since journals, ``why`` and the golden digests have it so.

Example::

    found = step(states, ExecutionFailed(error="exit status 1"))
    found.events                      run ExecutionFailed, run RetryDecided, job ExecutionFailed
    found.uses_retry                  true: the caller takes a retry from the budget

Pure: no clock, no file, no random number; of the product, the modules of this package only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from actors.machine import Effect, Event, IllegalTransition, Machine, S
from supervisor.lifecycles import job, task, task_run
from supervisor.lifecycles.job import JOB, Job, JobData
from supervisor.lifecycles.task import TASK, Task, TaskData, TaskEnd
from supervisor.lifecycles.task_run import RUN, ErrorCategory, SkipCause, TaskRun, TaskRunData, probes_left
from supervisor.lifecycles.types import Kind, TransitionReason, Verdict


class Birth(Event, frozen=True, kw_only=True):
    """Base class of events that begin the log of a new run or job, which takes the place of the one before it."""


class RunOpened(Birth, frozen=True, kw_only=True):
    """Event: the task has a new run, with these *limits*; the checkpoint from which the run begins is added as the
    event is recorded."""

    limits: TaskRunData = TaskRunData()


class JobOpened(Birth, frozen=True, kw_only=True):
    """Event: the run of the task has a new job."""


TABLES: Final[Mapping[str, Machine[Any, Any]]] = MappingProxyType({one.name: one for one in (TASK, RUN, JOB)})
TABLE_OF: Final[Mapping[type[Event], str]] = MappingProxyType(
    {
        **{event: one.name for one in TABLES.values() for event in one.events.values()},
        RunOpened: RUN.name,
        JobOpened: JOB.name,
    }
)
"""The table that each event moves: ``task``, ``run`` or ``job``."""


class Log(Protocol):
    """Log of a task, a run or a job: the name of its table, its state and its data."""

    @property
    def kind(self) -> str: ...

    @property
    def state(self) -> Any: ...

    @property
    def data(self) -> Any: ...


class TaskStates(NamedTuple):
    """States and data of a task, of its newest run and of its newest job; the state is ``None`` where there is none."""

    task: Task | None = None
    task_data: TaskData = TaskData()
    run: TaskRun | None = None
    run_data: TaskRunData = TaskRunData()
    job: Job | None = None
    job_data: JobData = JobData()

    @classmethod
    def of_logs(cls, logs: Iterable[Log]) -> TaskStates:
        """Return the states of the entities with these logs, at most one of each table."""
        fields: dict[str, Any] = {}
        for one in logs:
            fields[one.kind], fields[f"{one.kind}_data"] = one.state, one.data
        return cls(**fields)

    def after(self, event: Event) -> TaskStates:
        """Return the states after *event* has moved its table; unchanged if the entity does not exist.

        Raises:
            IllegalTransition: the table does not allow the event.
        """
        if isinstance(event, RunOpened):
            return self._replace(run=TaskRun.PENDING, run_data=event.limits)
        if isinstance(event, JobOpened):
            return self._replace(job=Job.PENDING, job_data=JobData(max_retries=self.run_data.max_attempts - 1))
        name = TABLE_OF[type(event)]
        if getattr(self, name) is None:
            return self
        found = TABLES[name].step(getattr(self, name), getattr(self, f"{name}_data"), event)
        return self._replace(**{name: found.state, f"{name}_data": found.data})


class Saved(NamedTuple):
    """Checkpoint of the work of a run, up to the end of its present attempt.

    Args:
        states: states of the run in which the plan wants a checkpoint.
        session: session that did the work.
        saved_as: commit or copy that holds the checkpoint.
    """

    states: Collection[TaskRun]
    session: str
    saved_as: str


class Circumstances(NamedTuple):
    """Circumstances of a decision that neither the states nor the leading event tell.

    Args:
        reason: text for the events that follow, where the leading event has none.
        findings: findings against the work, for the next claim.
        conflict: the commit of the work that is in conflict with the target.
        rules: names of the rules that the work has failed.
        verdict: outcome of the turn that ended the attempt.
        orphaned_by: why the session or worker of the task is gone; ``""`` if it is there.
        is_silent: whether the lost worker had sent no heartbeats.
        no_retry: why there is no other attempt, even if the table of the run allows one.
        completed_jobs: the jobs that completed the tasks which the task depends on, or which it was split into.
        limits: limits of a new run.
        can_probe: whether the budget has a retry left for a probe, and no stop is under way.
        draw: random number between -1 and 1, for the jitter of a delay.
        saved: the checkpoint of the attempt, if one was saved.
    """

    reason: str = ""
    findings: str = ""
    conflict: str = ""
    rules: tuple[str, ...] = ()
    verdict: Verdict | None = None
    orphaned_by: str = ""
    is_silent: bool = False
    no_retry: str = ""
    completed_jobs: tuple[str, ...] = ()
    limits: TaskRunData = TaskRunData()
    can_probe: bool = True
    draw: float = 0.0
    saved: Saved | None = None


USUAL: Final = Circumstances()
"""Circumstances of a decision about which states and leading event tell everything."""


# ------------------------------------------------------------------------------------------------------- decisions
class Decision(Event, frozen=True, kw_only=True):
    """Base class of leading events of no table: only the events of their rows are recorded."""


class Ready(Decision, frozen=True, kw_only=True):
    """Decision: whatever the task depends on is completed, and its job waits for a worker."""


class AttemptBegun(Decision, frozen=True, kw_only=True):
    """Decision: the session of the task gets its prompt: for the first attempt, for another one, or for a probe."""


class DelayEnded(Decision, frozen=True, kw_only=True):
    """Decision: the delay before the next attempt or claim is over, or the cool-down before the probe of an open
    circuit."""


class Lost(Decision, frozen=True, kw_only=True):
    """Decision: the worker or the session of the task is lost, and the task is given to others. (A person's decision is
    led by ``Unclaimed``, ``Requeued`` or ``Blocked``.)"""

    reason: str


class SessionGaveUp(Decision, frozen=True, kw_only=True):
    """Decision: the session of the task has ended with an error, and its supervisor died before that was recorded of
    the task. An open circuit stays open."""

    reason: str


class WorkersLost(Decision, frozen=True, kw_only=True):
    """Decision: too many workers were lost with the task; the task fails, whether or not an attempt is under way."""

    reason: str


class RetriesEnded(Decision, frozen=True, kw_only=True):
    """Decision: the probe that a task waits for will not be made; the task fails."""

    reason: str


class Merged(Decision, frozen=True, kw_only=True):
    """Decision: the work of the task is merged. *rest* is the branch with changes that were written after the work was
    judged."""

    reason: str
    rest: str = ""


class MergeRefused(Decision, frozen=True, kw_only=True):
    """Decision: the work of the task cannot be merged."""

    reason: str


class Ended(Decision, frozen=True, kw_only=True):
    """Decision: the task is ended on purpose; *outcome* is the word for its end."""

    reason: str
    outcome: TaskEnd


class PlanGivenUp(Decision, frozen=True, kw_only=True):
    """Decision: the plan of the task is given up. Work that has passed its checks is closed, and stays unmerged."""

    reason: str
    outcome: TaskEnd = TaskEnd.CANCELLED


class Abandoned(Decision, frozen=True, kw_only=True):
    """Decision: the supervisor of the task has died, and no plan continues the task."""

    reason: str


# ------------------------------------------------------------------------------------------------------------ rows
class Situation(NamedTuple):
    """The situation that a row sees: the states now, the leading event, and the events so far."""

    states: TaskStates
    lead: Any
    given: Circumstances
    events: tuple[Event, ...]

    @property
    def reason(self) -> str:
        """The reason or error of the decision, for the events that follow."""
        return self.given.reason or getattr(self.lead, "error", "") or getattr(self.lead, "reason", "")

    @property
    def circuit(self) -> str:
        """The reason that opened the circuit although the table of the run granted a retry; ``""`` if none did."""
        return next((one.reason for one in self.events if isinstance(one, task_run.CircuitOpened)), "")


Maker = Callable[[Situation], Event | None]
Guard = Callable[[Situation], bool]


class Row(NamedTuple):
    """Row of a cascade: in the given states (``None``: in any), and if the guard *when* holds, the next event is
    *then*, or is made by it."""

    then: Event | Maker
    task: Collection[Task | None] | None = None
    run: Collection[TaskRun | None] | None = None
    job: Collection[Job | None] | None = None
    when: Guard | None = None

    def applies(self, now: Situation) -> bool:
        return (
            (self.task is None or now.states.task in self.task)
            and (self.run is None or now.states.run in self.run)
            and (self.job is None or now.states.job in self.job)
            and (self.when is None or self.when(now))
        )

    def found(self, now: Situation) -> Event | None:
        """Return what follows in a situation to which the row applies; ``None`` if nothing does."""
        return self.then if isinstance(self.then, Event) else self.then(now)


T, R, J = Task, TaskRun, Job


def _allowing(machine: Machine[Any, Any], event: type[Event]) -> tuple[Any, ...]:
    return tuple(state for state in machine.states if event in machine.allowed(state))


def _without(states: Iterable[S], *others: S) -> tuple[S, ...]:
    return tuple(state for state in states if state not in others)


# Tuples, since `in` compares their few states by identity; hashing a member of an enum calls Python code.
CANCELLABLE: Final[tuple[Task, ...]] = _allowing(TASK, task.Cancelled)
LIVE_RUN: Final[tuple[TaskRun, ...]] = _allowing(RUN, task_run.Cancelled)
LIVE_JOB: Final[tuple[Job, ...]] = _allowing(JOB, job.UserCancelled)
HELD: Final = (T.CLAIMED, T.IN_PROGRESS)
UNSPLIT: Final = _without(T, T.WAITING_FOR_SUBTASKS)
WAITING_JOB: Final = _without(LIVE_JOB, J.RUNNING, J.VALIDATING)

LEAD: Final = Row(lambda now: now.lead)
"""The row of the leading event itself."""


# ---- guards
def charged(now: Situation) -> bool:
    """Whether the failure counts for the run: not if the provider of the model is to blame."""
    return getattr(now.lead, "charged", True)


def no_probe(now: Situation) -> bool:
    return not probes_left(now.states.run_data, now.lead)


def spent(now: Situation) -> bool:
    """Whether the run has no attempt and no probe left, or nothing can be launched for it."""
    probe = now.given.can_probe and probes_left(now.states.run_data, now.lead)
    return now.states.run is R.CIRCUIT_OPEN and not probe


def decided(now: Situation) -> bool:
    """Whether this cascade has decided about another attempt: a circuit that was open before is left alone."""
    return any(isinstance(one, task_run.RetryDecided) for one in now.events)


def undecided(now: Situation) -> bool:
    return not decided(now)


def is_unjudged(now: Situation) -> bool:
    """Whether the run is not over: the open circuit of a task that has failed stays open for good."""
    return not (now.states.run is R.CIRCUIT_OPEN and now.states.task is T.FAILED)


# ---- events of the run
def saved_in(state: TaskRun | None, now: Situation) -> Event | None:
    """Return the record of the checkpoint for *state*, if the plan wants one there, and none is on record."""
    saved, data = now.given.saved, now.states.run_data
    if saved is None or state is None or state not in saved.states or now.states.run is R.PENDING:
        return None
    if (data.saved_in, data.saved_attempt) == (state, data.attempts):
        return None
    return task_run.CheckpointSaved(state=state, attempt=data.attempts, session=saved.session, saved_as=saved.saved_as)


def save(now: Situation) -> Event | None:
    return saved_in(now.states.run, now)


def decide(now: Situation) -> Event:
    return task_run.RetryDecided(jitter=1.0 + now.given.draw * now.states.run_data.jitter)


def charge(now: Situation) -> Event | None:
    return task_run.CircuitOpened(reason=now.given.no_retry) if now.given.no_retry else None


def fail_run(now: Situation) -> Event:
    return task_run.ExecutionFailed(error=now.reason, category=ErrorCategory.PERMANENT)


def cancel_run(now: Situation) -> Event:
    return task_run.Cancelled(reason=now.reason)


SAVE_CANCELLED: Final = Row(lambda now: saved_in(R.CANCELLED, now), run=LIVE_RUN)

START: Final = (
    Row(task_run.ExecutorStarted(), run=[R.PENDING]),
    Row(task_run.BackoffCompleted(), run=[R.RETRYING]),
    Row(task_run.ProbeStarted(), run=[R.HALF_OPEN]),
)
BEGINNINGS: Final = tuple(type(row.then) for row in START)
DECIDE: Final = (Row(save, run=[R.FAILED]), Row(decide, run=[R.FAILED]))
"""The run leaves FAILED at once (rule 35), after its checkpoint."""
END_RUN: Final = (SAVE_CANCELLED, Row(cancel_run, run=LIVE_RUN))


# ---- events of the job
def fail_job(now: Situation) -> Event:
    return job.ExecutionFailed(error=now.reason, final=True)


def requeue_job(now: Situation) -> Event:
    """Return the failure after which the job waits for a worker. The job is not charged where it has no retry left, and
    the run may try all the same: with a probe, or after a person's retry."""
    data = now.states.job_data
    return job.ExecutionFailed(error=now.reason, charged=charged(now) and data.retry_count < data.max_retries)


def delay_job(now: Situation) -> Event:
    """Return the failure of a session that went on after a takeover, while its job waited for a worker."""
    return job.ExecutionFailed(error=now.reason, charged=False)


def reject_job(now: Situation) -> Event:
    return job.ValidationFailed(failed_rules=now.given.rules or (now.given.orphaned_by or now.reason,))


def cancel_job(now: Situation) -> Event:
    return job.UserCancelled(reason=now.reason)


def lose_worker(now: Situation) -> Event:
    return job.WorkerLost(error=now.reason, silent=now.given.is_silent)


END_JOB: Final = Row(cancel_job, job=LIVE_JOB)
OPEN_RUN: Final = Row(lambda now: RunOpened(limits=now.given.limits))
OPEN_JOB: Final = Row(JobOpened())
ASSIGN: Final = Row(lambda now: job.SchedulerAssigned(depends_on=now.given.completed_jobs), job=[J.PENDING])
LEFT_TO_SUBTASKS: Final = (  # a worker has a task whose rest is done by its subtasks: its own attempt counts as made
    *(row._replace(task=[T.WAITING_FOR_SUBTASKS], job=[J.RUNNING]) for row in START),
    Row(task_run.ExecutionCompleted(), when=lambda now: isinstance(now.events[-1], BEGINNINGS)),
    Row(job.ExecutionCompleted(), run=[R.VALIDATING], job=[J.RUNNING]),
)


# ---- events of the task
def fail_task(now: Situation) -> Event:
    verdict = now.given.verdict
    return task.Failed(
        reason=with_end(now.reason, now.circuit),
        findings=now.given.findings,
        transition_reason=verdict.transition_reason if verdict is not None else None,
        abort_reason=verdict.abort_reason if verdict is not None else None,
    )


def reject_task(now: Situation) -> Event:
    return task.VerificationRejected(reason=now.reason, findings=now.given.findings, conflict=now.given.conflict)


def deny_task(now: Situation) -> Event:
    data = now.states.task_data
    reason, given = f"approved, but {now.reason}", now.given
    return task.ApprovalDenied(by=data.approved_by, reason=reason, findings=given.findings, conflict=given.conflict)


def close_task(now: Situation) -> Event:
    return task.Closed(reason=now.reason, unmerged=bool(now.lead.rest), rest=now.lead.rest)


def grant_task(now: Situation) -> Event:
    by, rest = now.states.task_data.approved_by, now.lead.rest
    return task.ApprovalGranted(by=by, reason=now.reason, unmerged=bool(rest), rest=rest)


def orphan_task(now: Situation) -> Event:
    return task.Orphaned(reason=now.given.orphaned_by or now.reason)


def unclaim_task(now: Situation) -> Event:
    return task.Unclaimed(reason=now.reason, transition_reason=TransitionReason.ORPHAN_RECOVERED)


def requeue_task(now: Situation) -> Event:
    return task.Requeued(reason=now.reason, transition_reason=TransitionReason.ORPHAN_RECOVERED)


def outcome_of(lead: Any) -> TaskEnd:
    """Return the word for the end of a task that *lead* ends on purpose."""
    if isinstance(lead, task_run.Skipped):
        return TaskEnd.BLOCKED if lead.cause is SkipCause.DEPENDENCY_FAILED else TaskEnd.SKIPPED
    return getattr(lead, "outcome", TaskEnd.CANCELLED)


def cancel_task(now: Situation) -> Event:
    return task.Cancelled(reason=now.reason, outcome=outcome_of(now.lead))


def reject_plan(now: Situation) -> Event:
    return task.Rejected(reason=now.reason, outcome=outcome_of(now.lead))


END_TASK: Final = (Row(cancel_task, task=CANCELLABLE), Row(reject_plan, task=[T.PLANNED]))
ASK_APPROVAL: Final = Row(
    task.ApprovalRequested(reason="the plan wants it approved"),
    task=[T.DONE],
    when=lambda now: now.states.task_data.needs_approval,
)
"""A task that stays DONE is to be merged (``pending_effect``)."""
SUBTASKS_COMPLETED: Final = Row(task.SubtasksCompleted(reason="its subtasks are closed"), task=[T.WAITING_FOR_SUBTASKS])
VERIFIED: Final = "verified; nobody goes on with its plan: what a worktree held is on its branch"
CLOSE_VERIFIED: Final = (
    Row(task.Closed(reason=VERIFIED, unmerged=True), task=[T.DONE]),
    Row(
        lambda now: task.ApprovalGranted(by=now.states.task_data.approved_by, reason=VERIFIED, unmerged=True),
        task=[T.PENDING_APPROVAL],
        when=lambda now: bool(now.states.task_data.approved_by),
    ),
)
"""The task is closed unmerged; a plan that resumes the run merges its work."""
SESSION_ENDED: Final = "its session has ended"


# ---- what follows in more than one cascade
ATTEMPT_FAILED: Final = (
    *DECIDE,
    Row(charge, run=[R.RETRYING], when=charged),
    Row(save, run=[R.CIRCUIT_OPEN]),
    Row(fail_job, job=[J.RUNNING], when=spent),
    Row(cancel_job, job=WAITING_JOB, when=spent),  # its worker was lost before
    Row(fail_task, when=spent),
    Row(requeue_job, run=[R.RETRYING, R.CIRCUIT_OPEN], job=[J.RUNNING]),
    Row(delay_job, run=[R.RETRYING], job=[J.QUEUED]),
)
AWAY: Final = (  # nobody is charged for that
    Row(lambda now: task_run.ExecutionFailed(error=now.reason, charged=False), run=[R.IN_PROGRESS]),
    *DECIDE,
    Row(save, run=[R.CIRCUIT_OPEN], when=decided),
    Row(lose_worker, job=[J.RUNNING]),
)

CASCADES: Final[Mapping[type[Event], tuple[Row, ...]]] = MappingProxyType(
    {
        # --------------------------------------------------------------------- it is ready, and an attempt begins
        Ready: (OPEN_JOB._replace(job=[None]), ASSIGN),
        task.Claimed: (
            # The session before this one ended between two attempts.
            Row(task.Unclaimed(reason=SESSION_ENDED), task=[T.CLAIMED]),
            Row(task.Requeued(reason=SESSION_ENDED), task=[T.IN_PROGRESS]),
            LEAD,
            *START,
        ),
        AttemptBegun: START,
        # ------------------------------------------------------------------------ it ends, and is checked
        task_run.ExecutionCompleted: (LEAD, Row(job.ExecutionCompleted())),
        job.WorkerStarted: (LEAD, *LEFT_TO_SUBTASKS),
        task.Split: (LEAD, *LEFT_TO_SUBTASKS),
        task_run.TestsPassed: (
            Row(lambda now: saved_in(R.COMPLETED, now)),
            LEAD,
            Row(job.ValidationPassed()),
            Row(lambda now: task.Completed(reason="the turn was verified", judged=now.lead.judged), task=UNSPLIT),
            SUBTASKS_COMPLETED,
            ASK_APPROVAL,
        ),
        task_run.TestsFailed: (
            LEAD,
            *DECIDE,
            Row(save, run=[R.CIRCUIT_OPEN]),
            Row(reject_job),
            Row(fail_task, task=UNSPLIT),
            SUBTASKS_COMPLETED,
            Row(reject_task, task=[T.DONE]),
        ),
        # ------------------------------------------------------------------------------------ it is merged
        Merged: (Row(close_task, task=[T.DONE]), Row(grant_task, task=[T.PENDING_APPROVAL])),
        MergeRefused: (Row(reject_task, task=[T.DONE]), Row(deny_task, task=[T.PENDING_APPROVAL])),
        # ------------------------------------------------------------------------------------- it fails
        task_run.ExecutionFailed: (LEAD, *ATTEMPT_FAILED),
        task_run.ExecutionTimedOut: (  # without a retry left, TIMEOUT leads to FAILED first
            LEAD,
            Row(save, run=[R.TIMEOUT]),
            Row(decide, run=[R.TIMEOUT]),
            *ATTEMPT_FAILED,
        ),
        SessionGaveUp: (
            Row(fail_run, run=[R.IN_PROGRESS]),
            Row(lambda now: task_run.TestsFailed(error=now.given.orphaned_by), run=[R.VALIDATING]),
            *DECIDE,
            Row(save, run=[R.CIRCUIT_OPEN], when=decided),
            Row(lambda now: saved_in(R.CANCELLED, now), run=[R.HALF_OPEN]),
            Row(cancel_run, run=[R.PENDING, R.HALF_OPEN]),
            Row(fail_job, job=[J.RUNNING]),
            Row(reject_job, job=[J.VALIDATING]),
            Row(cancel_job, job=WAITING_JOB),  # its worker was lost before
            Row(fail_task),
        ),
        WorkersLost: (
            Row(fail_run, run=[R.IN_PROGRESS]),
            *DECIDE,
            Row(save, run=[R.CIRCUIT_OPEN], when=decided),
            SAVE_CANCELLED._replace(when=undecided),
            Row(cancel_run, run=LIVE_RUN, when=undecided),
            Row(fail_job),
            Row(fail_task),
        ),
        RetriesEnded: (
            Row(save, run=[R.CIRCUIT_OPEN]),
            END_JOB,
            Row(lambda now: task.Failed(reason=with_end(now.states.run_data.last_error, now.lead.reason))),
        ),
        # ------------------------------------------------------------------------------- it is tried again
        DelayEnded: (
            # The last probe was taken away, and is charged to nobody: another run takes its place.
            Row(job.UserCancelled(reason="its last probe was taken away"), run=[R.CIRCUIT_OPEN], when=no_probe),
            OPEN_RUN._replace(job=[J.CANCELLED]),
            OPEN_JOB._replace(job=[J.CANCELLED]),
            Row(task_run.CooldownExpired(), run=[R.CIRCUIT_OPEN]),
            Row(job.RetryDelayElapsed(), job=[J.RETRYING]),
            ASSIGN,
        ),
        task_run.ManualReset: (LEAD, Row(job.RetryDelayElapsed(), task=_without(T, T.BLOCKED), job=[J.RETRYING])),
        task.Retried: (LEAD, OPEN_RUN, OPEN_JOB, ASSIGN._replace(when=lambda now: not now.lead.delay_s)),
        task.Reopened: (
            LEAD,
            Row(lambda now: task_run.ManualReset(by=now.lead.by), run=[R.CIRCUIT_OPEN]),
            OPEN_RUN._replace(run=_without((None, *R), R.PENDING)),
            OPEN_JOB,
            ASSIGN,
        ),
        # -------------------------------------------------------------------------------- it is taken away
        task.Unclaimed: (LEAD, *AWAY),
        task.Blocked: (LEAD, *AWAY),
        task.Requeued: (LEAD, *AWAY),
        Lost: (
            # The tests that were under way fail: what they tested is not there any more. Then there is a new run.
            Row(lambda now: task_run.TestsFailed(error=now.reason), task=HELD, run=[R.VALIDATING]),
            *DECIDE,
            Row(save, run=[R.CIRCUIT_OPEN], when=decided),
            Row(reject_job, task=HELD, job=[J.VALIDATING]),
            Row(unclaim_task, task=[T.CLAIMED]),
            Row(orphan_task, task=[T.IN_PROGRESS]),
            Row(requeue_task, task=[T.ORPHANED]),
            *AWAY,
            OPEN_RUN._replace(job=[J.FAILED]),
            OPEN_JOB._replace(job=[J.FAILED]),
            ASSIGN,
        ),
        job.WorkerLost: (  # its session goes on, and gets another worker; a delay of the run goes on too
            LEAD,
            Row(job.RetryDelayElapsed(), run=[R.IN_PROGRESS]),
        ),
        # ------------------------------------------------------------------------- its session was lost
        task.Recovered: (
            Row(orphan_task),
            Row(task_run.ExecutionCompleted(), run=[R.IN_PROGRESS]),
            Row(task_run.TestsPassed()),
            Row(job.ExecutionCompleted(), job=[J.RUNNING]),
            Row(job.ValidationPassed(), job=[J.VALIDATING]),
            Row(cancel_job, job=WAITING_JOB),  # its worker was lost under an earlier supervisor
            LEAD,
            ASK_APPROVAL,
        ),
        task.RecoveryFailed: (Row(orphan_task), LEAD, *END_RUN, END_JOB),
        # -------------------------------------------------------------------------- it is ended on purpose
        Ended: (*END_TASK, *END_RUN, END_JOB),
        task_run.Skipped: (LEAD, END_JOB, *END_TASK),
        PlanGivenUp: (*CLOSE_VERIFIED, *END_TASK, *END_RUN, END_JOB),
        Abandoned: (
            END_JOB,
            Row(cancel_run, run=LIVE_RUN, when=is_unjudged),
            Row(unclaim_task, task=[T.CLAIMED]),
            Row(orphan_task, task=[T.IN_PROGRESS]),
            Row(lambda now: task.RecoveryFailed(reason=now.reason), task=[T.ORPHANED]),
            *CLOSE_VERIFIED,
            *END_TASK,
        ),
    }
)
"""The rows of each leading event; an event that is not here leads alone."""


class CascadeStep(NamedTuple):
    """Result of ``step``: the states after *events*, which are in the order of their records; *uses_retry*: the run is
    tried again after a failure that counts, which uses one retry of the budget."""

    states: TaskStates
    events: tuple[Event, ...]
    uses_retry: bool = False


_ALONE: Final = (LEAD,)
CHARGING: Final = (task_run.ExecutionFailed, task_run.ExecutionTimedOut)


def step(states: TaskStates, *leads: Event, given: Circumstances = USUAL) -> CascadeStep:
    """Return the events that follow from the leading events *leads*, in this order, with these events included.

    Args:
        states: states of the task, its run and its job now.
        given: what neither the states nor the leading events tell.
    """
    events: tuple[Event, ...] = ()
    uses_retry = False
    for lead in leads:
        now = Situation(states, lead, given, events)
        for one in CASCADES.get(type(lead), _ALONE):
            found = one.found(now) if one.applies(now) else None
            if found is None:
                continue
            events += (found,)
            try:
                states = states.after(found)
            except IllegalTransition:
                return CascadeStep(states, events)
            now = Situation(states, lead, given, events)
        uses_retry |= isinstance(lead, CHARGING) and charged(now) and states.run is R.RETRYING
    return CascadeStep(states, events, uses_retry)


# ------------------------------------------------------------------------------------------------ pending effects
class Delay(Effect, frozen=True, kw_only=True):
    """Effect: wait *delay_s* seconds, counted from the record with which the task or its run (*since*) entered its
    state; ``DelayEnded`` follows."""

    delay_s: float
    since: Kind


class StartAttempt(Effect, frozen=True, kw_only=True):
    """Effect: prepare the workspace, and start a session for the task unless one lives. ``Claimed`` or
    ``AttemptBegun`` follows."""


class MakeAttempt(Effect, frozen=True, kw_only=True):
    """Effect: prompt the session of the task, or follow its turn after a takeover. ``ExecutionCompleted``,
    ``ExecutionFailed`` or ``ExecutionTimedOut`` of the run follows."""


class RunChecks(Effect, frozen=True, kw_only=True):
    """Effect: commit the work of the task's session, run the acceptance tests on that commit, and have it reviewed; of
    a task that was split, test the joint work of its subtasks. ``TestsPassed`` or ``TestsFailed`` follows."""


class Merge(Effect, frozen=True, kw_only=True):
    """Effect: merge the commit *judged* of a task, whose result the person *by* has approved, if the plan wants that.
    ``Merged`` or ``MergeRefused`` follows."""

    judged: str
    by: str = ""


class PutAway(Effect, frozen=True, kw_only=True):
    """Effect: end the session of a task that nobody carries out any more, clear its workspace, and free the slot of its
    worker. A failed task is then claimed again (``Retried``), or, as any task that has ended, settled."""


TaskEffect: TypeAlias = Delay | StartAttempt | MakeAttempt | RunChecks | Merge | PutAway


class TaskResources(NamedTuple):
    """Slot, session and result of a task in this process, on which its effects depend beside its states.

    Args:
        has_slot: whether a worker keeps a slot for the task.
        has_session: whether the last session of the task lives.
        is_settled: whether the task, which has ended, has its result.
        parts_met: whether every task that it was split into is completed or skipped.
    """

    has_slot: bool = False
    has_session: bool = False
    is_settled: bool = False
    parts_met: bool = False


NOTHING: Final = TaskResources()
"""Resources of a task that was just taken over, or that only waits."""

BEGUN: Final = (T.OPEN, T.CLAIMED, T.IN_PROGRESS, T.WAITING_FOR_SUBTASKS)


def pending_effect(states: TaskStates, resources: TaskResources = NOTHING) -> TaskEffect | None:
    """Return the effect that must be performed while a task is in these states; ``None`` if the task waits for
    something else: for its dependencies, a worker, a person, or the tasks that it was split into.

    The states alone decide, not the way that led to them, and the *resources* that the task has in this process. So the
    effect is the same after a takeover, and is neither lost nor doubled.
    """
    data = states.task_data
    is_left = resources.has_slot or resources.has_session
    match states.task:
        case T.DONE:
            return Merge(judged=data.judged)
        case T.CLOSED | T.CANCELLED | T.FAILED:
            return None if resources.is_settled else PutAway()
        case T.PENDING_APPROVAL | T.BLOCKED if is_left:
            return PutAway()
        case T.PENDING_APPROVAL if data.approved_by:
            return Merge(judged=data.judged, by=data.approved_by)
        case T.PENDING_APPROVAL | T.BLOCKED:
            return None
        case T.PLANNED | T.ORPHANED | None:
            return None
    is_split = states.task is T.WAITING_FOR_SUBTASKS
    match states.run, states.job:
        case R.VALIDATING, _ if not is_split or resources.parts_met:
            return RunChecks()
        case ((R.PENDING | R.RETRYING | R.HALF_OPEN), J.RUNNING):
            return StartAttempt()
        case R.IN_PROGRESS, J.RUNNING:
            return MakeAttempt()
    if resources.has_slot or (states.task is T.OPEN and resources.has_session):
        return PutAway()
    return _delay_of(states)


def _delay_of(states: TaskStates) -> Delay | None:
    """Return the delay before the next probe, attempt or claim, if the task waits for one."""
    match states.run, states.job:
        case R.CIRCUIT_OPEN, J.QUEUED | J.RETRYING:
            return Delay(delay_s=states.run_data.cooldown_s, since=Kind.RUN)
        case R.RETRYING, J.RETRYING:  # a job that is queued has waited
            return Delay(delay_s=states.run_data.delay_s, since=Kind.RUN)
        case _, J.RETRYING:  # its worker was lost, and no attempt was under way
            return Delay(delay_s=0.0, since=Kind.RUN)
        case R.PENDING, J.PENDING if states.task is T.OPEN and states.task_data.delay_s:
            return Delay(delay_s=states.task_data.delay_s, since=Kind.TASK)
    return None


def with_end(error: str, why: str) -> str:
    """Return *error*, with the reason *why* there is no further try, unless *error* gives the reason already."""
    end = f"(no further try: {why})"
    return error if not why or error.endswith(end) else f"{error} {end}"
