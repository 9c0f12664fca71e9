"""The cascade of task, task run and job: the events of each decision in order, and states that fit after every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from actors.machine import Event, IllegalTransition
from supervisor.lifecycles import job, task, task_cascade, task_run
from supervisor.lifecycles.command_checks import refusal
from supervisor.lifecycles.job import Job, JobData
from supervisor.lifecycles.task import Task, TaskData, TaskEnd
from supervisor.lifecycles.task_cascade import (
    BEGUN,
    CASCADES,
    USUAL,
    Abandoned,
    AttemptBegun,
    CascadeStep,
    Circumstances,
    Delay,
    DelayEnded,
    Ended,
    JobOpened,
    Lost,
    MakeAttempt,
    Merge,
    Merged,
    MergeRefused,
    PlanGivenUp,
    PutAway,
    Ready,
    RetriesEnded,
    Row,
    RunChecks,
    Saved,
    SessionGaveUp,
    Situation,
    StartAttempt,
    TaskEffect,
    TaskResources,
    TaskStates,
    WorkersLost,
    pending_effect,
    step,
    with_end,
)
from supervisor.lifecycles.task_run import ErrorCategory, SkipCause, TaskRun, TaskRunData, probes_left
from supervisor.lifecycles.types import AbortReason, Exit, Kind, TransitionReason, Verdict
from tests.task_fit import misfits

T, R, J = Task, TaskRun, Job
OPENED = task_run.CircuitOpened(reason="no retry is left")


def at(text: str, *, retries: int = 4, **data: Any) -> TaskStates:
    """Return states given as text, ``IN_PROGRESS RETRYING queued`` (``-``: no job), with the *data* of the run, and a
    job with that many *retries*."""
    of_task, of_run, of_job = text.split()
    run_data, job_data = TaskRunData(**data), JobData(max_retries=retries)
    job = J(of_job) if of_job != "-" else None
    return TaskStates(task=T(of_task), run=R(of_run), run_data=run_data, job=job, job_data=job_data)


SAVED = Saved(frozenset({R.COMPLETED, R.FAILED, R.TIMEOUT, R.CIRCUIT_OPEN, R.CANCELLED}), "t", "c0ffee")


def every_course(before: TaskStates, *leads: Event, given: Circumstances = USUAL) -> Iterator[CascadeStep]:
    """Yield the step with a retry left; if that uses a retry, also the step without; each with checkpoints."""
    found = step(before, *leads, given=given)
    yield found
    yield step(before, *leads, given=given._replace(saved=SAVED))
    if found.uses_retry:
        unpaid = given._replace(no_retry=OPENED.reason)
        yield step(before, *leads, given=unpaid)
        yield step(before, *leads, given=unpaid._replace(saved=SAVED))


def carried_out(before: TaskStates, *leads: Event, given: Circumstances = USUAL) -> CascadeStep:
    """Return the step with a retry left, and without checkpoints."""
    return step(before, *leads, given=given)


def named(events: tuple[Event, ...]) -> str:
    """Return the events as text: ``run:tests_passed job:validation_passed``."""
    return " ".join(f"{task_cascade.TABLE_OF[type(one)]}:{one.name()}" for one in events)


# ------------------------------------------------------------------------------------------------- order of records
AT_WORK, CHECKED = at("IN_PROGRESS IN_PROGRESS running"), at("IN_PROGRESS VALIDATING validating")
ONE_TRY = at("CLAIMED IN_PROGRESS running", max_attempts=1)
LAST_TRY = at("CLAIMED IN_PROGRESS running", retries=0, max_attempts=1)
APPROVED_RESULT = at("PENDING_APPROVAL COMPLETED completed")._replace(task_data=TaskData(approved_by="ann"))
COOLING = at("IN_PROGRESS CIRCUIT_OPEN retrying", timed_out=True)
GIVEN_UP = at("FAILED CIRCUIT_OPEN failed")._replace(task_data=TaskData(dead_letter="no"))
NO_PROBE = at("OPEN CIRCUIT_OPEN retrying", timed_out=True, probes=1, probes_max=1)
APPROVABLE = TaskData(needs_approval=True)
CLAIMED, TIMED_OUT = task.Claimed(by="t"), task_run.ExecutionTimedOut()
FAILED = task_run.ExecutionFailed(error="no")
FAILED_FOR_GOOD = task_run.ExecutionFailed(error="no", category=ErrorCategory.PERMANENT)
WORKERS_LOST, GAVE_UP = WorkersLost(reason="no"), SessionGaveUp(reason="no")
PROVIDER = task_run.ExecutionFailed(error="no", charged=False, provider=True)
REJECTED = task_run.TestsFailed(error="no")
ORPHANED = "its supervisor died"
LOST = Lost(reason="lost")
ABORTED = Ended(reason="no", outcome=TaskEnd.ABORTED)
GONE, REFUSED = "run:execution_failed run:retry_decided", "run:tests_failed run:retry_decided job:validation_failed"
NEW_JOB = "job:JobOpened job:scheduler_assigned"
BORN = f"run:RunOpened {NEW_JOB}"
OWN_PART = "run:execution_completed job:execution_completed"
RESET = task_run.ManualReset(by="ann")
WORKER, SPLIT = job.WorkerStarted(worker_id="w"), task.Split(subtasks=("b",))
PASSED = "job:validation_passed task:recovered"

DECISIONS: list[tuple[str | TaskStates, Event, str]] = [
    # ---- an attempt begins, ends, and is checked
    ("OPEN PENDING running", CLAIMED, "task:claimed run:executor_started"),
    ("CLAIMED RETRYING running", CLAIMED, "task:unclaimed task:claimed run:backoff_completed"),
    ("IN_PROGRESS HALF_OPEN running", CLAIMED, "task:requeued task:claimed run:probe_started"),
    ("IN_PROGRESS RETRYING running", AttemptBegun(), "run:backoff_completed"),
    (AT_WORK, AttemptBegun(), ""),
    (AT_WORK, task_run.TurnSettling(), "run:turn_settling"),
    (AT_WORK, task_run.ExecutionCompleted(), "run:execution_completed job:execution_completed"),
    ("OPEN PENDING queued", WORKER, "job:worker_started"),
    ("WAITING_FOR_SUBTASKS IN_PROGRESS queued", WORKER, "job:worker_started"),
    ("WAITING_FOR_SUBTASKS RETRYING queued", WORKER, f"job:worker_started run:backoff_completed {OWN_PART}"),
    ("WAITING_FOR_SUBTASKS PENDING queued", WORKER, f"job:worker_started run:executor_started {OWN_PART}"),
    (AT_WORK, SPLIT, "task:split"),
    ("IN_PROGRESS RETRYING running", SPLIT, f"task:split run:backoff_completed {OWN_PART}"),
    ("IN_PROGRESS RETRYING queued", SPLIT, "task:split"),
    (CHECKED, task_run.TestsPassed(), "run:tests_passed job:validation_passed task:completed"),
    (
        "WAITING_FOR_SUBTASKS VALIDATING validating",
        task_run.TestsPassed(),
        "run:tests_passed job:validation_passed task:subtasks_completed",
    ),
    (
        CHECKED._replace(task_data=APPROVABLE),
        task_run.TestsPassed(),
        "run:tests_passed job:validation_passed task:completed task:approval_requested",
    ),
    (CHECKED, REJECTED, f"{REFUSED} task:failed"),
    (
        "WAITING_FOR_SUBTASKS VALIDATING validating",
        REJECTED,
        f"{REFUSED} task:subtasks_completed task:verification_rejected",
    ),
    # ---- it is merged
    ("DONE COMPLETED completed", Merged(reason="m"), "task:closed"),
    ("DONE COMPLETED completed", MergeRefused(reason="m"), "task:verification_rejected"),
    ("PENDING_APPROVAL COMPLETED completed", Merged(reason="m"), "task:approval_granted"),
    ("PENDING_APPROVAL COMPLETED completed", MergeRefused(reason="m"), "task:approval_denied"),
    # ---- it fails
    (AT_WORK, FAILED, f"{GONE} job:execution_failed"),
    (AT_WORK, FAILED_FOR_GOOD, f"{GONE} job:execution_failed task:failed"),
    ("CLAIMED IN_PROGRESS queued", FAILED_FOR_GOOD, f"{GONE} job:user_cancelled task:failed"),
    (LAST_TRY, TIMED_OUT, "run:execution_timed_out run:retry_decided run:retry_decided job:execution_failed"),
    (LAST_TRY, PROVIDER, f"{GONE} job:execution_failed"),
    (AT_WORK, WORKERS_LOST, f"{GONE} job:execution_failed task:failed"),
    ("CLAIMED RETRYING running", WORKERS_LOST, "run:cancelled job:execution_failed task:failed"),
    (AT_WORK, GAVE_UP, f"{GONE} job:execution_failed task:failed"),
    (CHECKED, GAVE_UP, f"{REFUSED} task:failed"),
    ("CLAIMED HALF_OPEN queued", GAVE_UP, "run:cancelled job:user_cancelled task:failed"),
    ("CLAIMED CIRCUIT_OPEN running", GAVE_UP, "job:execution_failed task:failed"),
    ("CLAIMED CIRCUIT_OPEN retrying", RetriesEnded(reason="no"), "job:user_cancelled task:failed"),
    # ---- it is tried again
    (COOLING, DelayEnded(), "run:cooldown_expired job:retry_delay_elapsed"),
    ("CLAIMED RETRYING queued", DelayEnded(), ""),
    ("OPEN PENDING pending", DelayEnded(), "job:scheduler_assigned"),
    (NO_PROBE, DelayEnded(), f"job:user_cancelled {BORN}"),
    ("OPEN PENDING -", Ready(), "job:JobOpened job:scheduler_assigned"),
    ("OPEN PENDING pending", Ready(), "job:scheduler_assigned"),
    (COOLING, task_run.ManualReset(by="ann"), "run:manual_reset job:retry_delay_elapsed"),
    ("BLOCKED CIRCUIT_OPEN retrying", task_run.ManualReset(by="ann"), "run:manual_reset"),
    (GIVEN_UP, task.Reopened(by="ann"), f"task:reopened run:manual_reset {NEW_JOB}"),
    (GIVEN_UP._replace(run=R.CANCELLED), task.Reopened(by="ann"), f"task:reopened {BORN}"),
    ("FAILED CIRCUIT_OPEN failed", task.Retried(), f"task:retried {BORN}"),
    ("FAILED CIRCUIT_OPEN failed", task.Retried(delay_s=1.0), "task:retried run:RunOpened job:JobOpened"),
    # ---- it is taken away, or its session was lost
    (AT_WORK, task.Blocked(on=("b",)), f"task:blocked {GONE} job:worker_lost"),
    (AT_WORK, task.Requeued(), f"task:requeued {GONE} job:worker_lost"),
    (AT_WORK, LOST, f"task:orphaned task:requeued {GONE} job:worker_lost"),
    (CHECKED, LOST, f"{REFUSED} task:orphaned task:requeued {BORN}"),
    (CHECKED._replace(task=T.CLAIMED), LOST, f"{REFUSED} task:unclaimed {BORN}"),
    ("CLAIMED RETRYING running", task.Unclaimed(), "task:unclaimed job:worker_lost"),
    ("OPEN PENDING queued", LOST, ""),
    (AT_WORK, job.WorkerLost(), "job:worker_lost job:retry_delay_elapsed"),
    ("WAITING_FOR_SUBTASKS RETRYING running", job.WorkerLost(), "job:worker_lost"),
    (
        AT_WORK,
        task.Recovered(),
        f"task:orphaned run:execution_completed run:tests_passed job:execution_completed {PASSED}",
    ),
    (
        "IN_PROGRESS IN_PROGRESS queued",
        task.Recovered(),
        "task:orphaned run:execution_completed run:tests_passed job:user_cancelled task:recovered",
    ),
    (CHECKED, task.Recovered(), f"task:orphaned run:tests_passed {PASSED}"),
    (AT_WORK, task.RecoveryFailed(), "task:orphaned task:recovery_failed run:cancelled job:user_cancelled"),
    # ---- it is ended on purpose
    (AT_WORK, ABORTED, "task:cancelled run:cancelled job:user_cancelled"),
    ("PLANNED PENDING -", ABORTED, "task:rejected run:cancelled"),
    ("DONE COMPLETED completed", ABORTED, "task:cancelled"),
    ("FAILED CIRCUIT_OPEN failed", ABORTED, "run:cancelled"),
    ("OPEN PENDING pending", task_run.Skipped(), "run:skipped job:user_cancelled task:cancelled"),
    ("PLANNED PENDING -", task_run.Skipped(), "run:skipped task:rejected"),
    ("DONE COMPLETED completed", PlanGivenUp(reason="no"), "task:closed"),
    (APPROVED_RESULT, PlanGivenUp(reason="no"), "task:approval_granted"),
    ("PENDING_APPROVAL COMPLETED completed", PlanGivenUp(reason="no"), "task:cancelled"),
    (COOLING, PlanGivenUp(reason="no"), "task:cancelled run:cancelled job:user_cancelled"),
    (AT_WORK, Abandoned(reason="no"), "job:user_cancelled run:cancelled task:orphaned task:recovery_failed"),
    (
        "CLAIMED IN_PROGRESS queued",
        Abandoned(reason="no"),
        "job:user_cancelled run:cancelled task:unclaimed task:cancelled",
    ),
    ("PLANNED PENDING -", Abandoned(reason="no"), "run:cancelled task:rejected"),
    ("DONE COMPLETED completed", Abandoned(reason="no"), "task:closed"),
    ("FAILED CIRCUIT_OPEN failed", Abandoned(reason="no"), ""),
]


@pytest.mark.parametrize(
    ("before", "lead", "expected"), DECISIONS, ids=[f"{lead.name()}-{at}" for at, (_, lead, _) in enumerate(DECISIONS)]
)
def test_a_decision_moves_its_logs_in_this_order(before: str | TaskStates, lead: Event, expected: str) -> None:
    """The events of each decision are these, in the order of their records."""
    assert named(carried_out(at(before) if isinstance(before, str) else before, lead).events) == expected


def test_the_last_retry_fails_the_task_with_the_reason() -> None:
    """A retry that the run may make and the budget has not fails job and task, and the task says why."""
    assert carried_out(AT_WORK, FAILED).uses_retry
    found = carried_out(AT_WORK, FAILED, given=Circumstances(no_retry=OPENED.reason))

    assert not found.uses_retry
    assert named(found.events) == f"{GONE} run:circuit_opened job:execution_failed task:failed"
    assert found.states.task_data.last_failure == with_end("no", OPENED.reason)
    assert found.states.job_data.last_error == "no"


def test_an_agent_that_may_not_try_again_costs_no_retry() -> None:
    """If the agent has had its tries, the circuit opens for that reason, and no retry of the budget is asked for."""
    found = carried_out(AT_WORK, FAILED, given=Circumstances(no_retry="it has had its tries"))

    assert not found.uses_retry
    assert named(found.events) == f"{GONE} run:circuit_opened job:execution_failed task:failed"
    assert found.states.task_data.last_failure == with_end("no", "it has had its tries")


def test_a_probe_that_cannot_be_paid_fails_the_task() -> None:
    """A time-out that opens the circuit waits for a probe only if the probe can be paid."""
    assert named(carried_out(ONE_TRY, TIMED_OUT).events).endswith("job:execution_failed")
    unpaid = carried_out(ONE_TRY, TIMED_OUT, given=Circumstances(can_probe=False))
    assert named(unpaid.events).endswith("job:execution_failed task:failed")


def test_a_job_without_retries_waits_for_the_probe_without_a_worker() -> None:
    """The run of a job that has no retry left may be probed: the job is requeued, and charged nothing."""
    found = carried_out(LAST_TRY, TIMED_OUT).states
    assert (found.job, found.job_data.worker_id, found.job_data.retry_count) == (J.RETRYING, None, 0)
    assert carried_out(AT_WORK, FAILED).states.job_data.retry_count == 1


def test_the_followers_tell_what_only_the_circumstances_know() -> None:
    """Findings, rules, verdict and losses reach the events that follow; the leading event has no field for them."""
    given = Circumstances(findings="line 3", rules=("lint",))
    *_, rejected, failed = carried_out(CHECKED, REJECTED, given=given).events
    assert rejected == job.ValidationFailed(failed_rules=("lint",))
    assert failed == task.Failed(reason="no", findings="line 3")

    codes = {"transition_reason": TransitionReason.MAX_TURNS, "abort_reason": AbortReason.LOOP}
    given = Circumstances(verdict=Verdict(exit=Exit.ERROR, **codes))
    assert carried_out(AT_WORK, FAILED_FOR_GOOD, given=given).events[-1] == task.Failed(reason="no", **codes)

    *_, rejected, failed = carried_out(CHECKED, GAVE_UP, given=Circumstances(orphaned_by="it died")).events
    assert (rejected, failed) == (job.ValidationFailed(failed_rules=("it died",)), task.Failed(reason="no"))

    lost = carried_out(AT_WORK, LOST, given=Circumstances(is_silent=True)).events[-1]
    assert lost == job.WorkerLost(error="lost", silent=True)


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (SkipCause.DEPENDENCY_FAILED, TaskEnd.BLOCKED),
        (SkipCause.OPTIONAL, TaskEnd.SKIPPED),
        (SkipCause.CONDITION_NOT_MET, TaskEnd.SKIPPED),
    ],
)
def test_a_skipped_task_ends_by_its_cause(cause: SkipCause, outcome: TaskEnd) -> None:
    """A task whose dependency failed ends as blocked; any other skipped task ends as skipped."""
    found = carried_out(at("OPEN PENDING -"), task_run.Skipped(cause=cause), given=Circumstances(reason="why"))
    assert found.events[-1] == task.Cancelled(reason="why", outcome=outcome)


DONE, APPROVED = at("DONE COMPLETED completed"), Merge(judged="c0", by="ann")
OPEN_AGAIN = at("OPEN PENDING pending")._replace(task_data=TaskData(delay_s=4.0))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (at("IN_PROGRESS CIRCUIT_OPEN retrying"), Delay(delay_s=TaskRunData().cooldown_s, since=Kind.RUN)),
        (at("OPEN CIRCUIT_OPEN queued"), Delay(delay_s=TaskRunData().cooldown_s, since=Kind.RUN)),
        (at("IN_PROGRESS RETRYING retrying", delay_s=3.0), Delay(delay_s=3.0, since=Kind.RUN)),
        (at("WAITING_FOR_SUBTASKS RETRYING retrying", delay_s=3.0), Delay(delay_s=3.0, since=Kind.RUN)),
        (at("OPEN PENDING retrying"), Delay(delay_s=0.0, since=Kind.RUN)),
        (OPEN_AGAIN, Delay(delay_s=4.0, since=Kind.TASK)),
        (OPEN_AGAIN._replace(job=J.QUEUED), None),
        (at("OPEN PENDING pending"), None),
        (at("IN_PROGRESS RETRYING queued", delay_s=3.0), None),
        (at("BLOCKED RETRYING retrying", delay_s=3.0), None),
        (at("FAILED CIRCUIT_OPEN failed"), PutAway()),
        (at("OPEN PENDING running"), StartAttempt()),
        (at("CLAIMED HALF_OPEN running"), StartAttempt()),
        (AT_WORK, MakeAttempt()),
        (AT_WORK._replace(task=T.WAITING_FOR_SUBTASKS), MakeAttempt()),
        (AT_WORK._replace(job=J.QUEUED), None),
        (CHECKED, RunChecks()),
        (CHECKED._replace(task=T.WAITING_FOR_SUBTASKS), None),
        (DONE._replace(task_data=TaskData(judged="c0")), Merge(judged="c0")),
        (DONE._replace(task=T.PENDING_APPROVAL, task_data=TaskData(judged="c0", approved_by="ann")), APPROVED),
        (DONE._replace(task=T.PENDING_APPROVAL), None),
        (DONE._replace(task=T.CLOSED, task_data=TaskData(approved_by="ann")), PutAway()),
        (at("CANCELLED CANCELLED cancelled"), PutAway()),
    ],
)
def test_a_state_owes_its_effect(states: TaskStates, expected: TaskEffect | None) -> None:
    """The attempt, the delay before the next probe, attempt or claim, the checks, and the merge of work that is done,
    or approved, follow from the states alone; there is none before or after it, nor while the task is blocked."""
    assert pending_effect(states) == expected


SLOT, SESSION, MET = TaskResources(has_slot=True), TaskResources(has_session=True), TaskResources(parts_met=True)


@pytest.mark.parametrize(
    ("states", "around", "expected"),
    [
        (at("IN_PROGRESS RETRYING retrying", delay_s=3.0), SLOT, PutAway()),
        (at("IN_PROGRESS RETRYING retrying", delay_s=3.0), SESSION, Delay(delay_s=3.0, since=Kind.RUN)),
        (at("OPEN RETRYING retrying"), SESSION, PutAway()),
        (at("BLOCKED RETRYING retrying"), SESSION, PutAway()),
        (at("BLOCKED RETRYING retrying"), SLOT, PutAway()),
        (DONE._replace(task=T.PENDING_APPROVAL), SLOT, PutAway()),
        (DONE, SLOT, Merge(judged="")),
        (CHECKED, SLOT, RunChecks()),
        (AT_WORK, SLOT, MakeAttempt()),
        (CHECKED._replace(task=T.WAITING_FOR_SUBTASKS), SLOT, PutAway()),
        (CHECKED._replace(task=T.WAITING_FOR_SUBTASKS), MET, RunChecks()),
        (at("FAILED CIRCUIT_OPEN failed"), TaskResources(is_settled=True), None),
    ],
)
def test_what_is_left_of_a_task_is_put_away(
    states: TaskStates, around: TaskResources, expected: TaskEffect | None
) -> None:
    """A slot or a session that a task does not need in its state is put away before anything else is done; a task that
    was split is checked when its parts are met."""
    assert pending_effect(states, around) == expected


# ------------------------------------------------------------------------------------------ checkpoints and refusals
def test_checkpoints_are_recorded_where_they_belong() -> None:
    """A saved checkpoint stands before the decision that it belongs to, once for each state that the plan names."""
    before, given = (
        at("CLAIMED IN_PROGRESS running", max_attempts=1, probes_max=0, attempts=1),
        Circumstances(saved=SAVED),
    )
    found = carried_out(before, TIMED_OUT, given=given)
    run = "timed_out checkpoint_saved retry_decided checkpoint_saved retry_decided checkpoint_saved"
    assert named(found.events) == f"run:execution_{' run:'.join(run.split())} job:execution_failed task:failed"

    found = carried_out(AT_WORK, ABORTED, given=given)
    assert named(found.events) == "task:cancelled run:checkpoint_saved run:cancelled job:user_cancelled"

    found = carried_out(AT_WORK, ABORTED, given=Circumstances(saved=SAVED._replace(states=[R.FAILED])))
    assert named(found.events) == "task:cancelled run:cancelled job:user_cancelled"


def test_a_refused_leading_event_leads_nothing() -> None:
    """A leading event that its table does not allow is the last of the list: its entity refuses and records it."""
    found = step(at("CANCELLED CANCELLED cancelled"), CLAIMED)
    assert (named(found.events), found.states.task) == ("task:claimed", T.CANCELLED)


def test_two_leading_events_are_one_decision() -> None:
    """A second leading event sees the states after the first and everything that followed from it."""
    waits = at("WAITING_FOR_SUBTASKS VALIDATING validating")
    found = carried_out(waits, task.SubtaskFailed(subtask="b"), Ended(reason="b", outcome=TaskEnd.BLOCKED))
    assert named(found.events) == "task:subtask_failed task:cancelled run:cancelled job:user_cancelled"


# ------------------------------------------------------------------------------------------------ every reachable state
class Move(NamedTuple):
    """A leading event that the product gives in the states for which *when* holds."""

    lead: Event
    when: Callable[[TaskStates], bool]


HELD = frozenset({T.CLAIMED, T.IN_PROGRESS})
GOES_ON = frozenset({T.OPEN, *HELD, T.WAITING_FOR_SUBTASKS})


def is_at(task: Any = None, run: Any = None, job: Any = None) -> Callable[[TaskStates], bool]:
    """Return a test for states: each argument is the allowed state, or a collection of them; ``None`` allows any."""

    def fits(value: object, wanted: Any) -> bool:
        return wanted is None or (value in wanted if isinstance(wanted, tuple | frozenset) else value is wanted)

    return lambda s: fits(s.task, task) and fits(s.run, run) and fits(s.job, job)


def is_given_up(s: TaskStates) -> bool:
    return bool(s.task_data.dead_letter)


def commanded(lead: Event) -> Move:
    """Return the move of a command, which is given in every state that does not refuse the command."""
    return Move(lead, lambda states: not refusal(states, lead))


RESTS = (R.PENDING, R.RETRYING, R.CIRCUIT_OPEN, R.HALF_OPEN)
WAITS = (J.QUEUED, J.RETRYING)
MOVES = [
    commanded(task.Approved()),
    Move(JobOpened(), is_at(T.OPEN, R.PENDING, (None,))),
    Move(Ready(), is_at((T.OPEN, T.WAITING_FOR_SUBTASKS), R.PENDING, (None, J.PENDING))),
    Move(WORKER, is_at(GOES_ON, (*RESTS[:2], *RESTS[3:], R.IN_PROGRESS), J.QUEUED)),
    Move(CLAIMED, is_at((T.OPEN, *HELD), (R.PENDING, R.RETRYING, R.HALF_OPEN), J.RUNNING)),
    Move(AttemptBegun(), is_at(HELD, (R.PENDING, R.RETRYING, R.HALF_OPEN), J.RUNNING)),
    Move(task.Started(), is_at(T.CLAIMED, R.IN_PROGRESS, J.RUNNING)),
    Move(task_run.ExecutionCompleted(), is_at((*HELD, T.WAITING_FOR_SUBTASKS), R.IN_PROGRESS, J.RUNNING)),
    Move(task_run.TestsPassed(), is_at((*HELD, T.WAITING_FOR_SUBTASKS), R.VALIDATING)),
    Move(REJECTED, is_at((*HELD, T.WAITING_FOR_SUBTASKS), R.VALIDATING)),
    Move(FAILED, is_at(HELD, R.IN_PROGRESS)),
    Move(FAILED_FOR_GOOD, is_at(HELD, R.IN_PROGRESS)),
    Move(PROVIDER, is_at(HELD, R.IN_PROGRESS, J.RUNNING)),
    Move(TIMED_OUT, is_at(HELD, R.IN_PROGRESS)),
    Move(WORKERS_LOST, is_at(HELD, (*RESTS, R.IN_PROGRESS), J.RUNNING)),
    Move(GAVE_UP, is_at(HELD, (R.PENDING, R.CIRCUIT_OPEN, R.HALF_OPEN, R.IN_PROGRESS, R.VALIDATING))),
    Move(RetriesEnded(reason="no"), is_at(HELD, R.CIRCUIT_OPEN, WAITS)),
    Move(DelayEnded(), lambda s: isinstance(pending_effect(s), Delay)),
    Move(RESET, lambda s: s.task is not T.FAILED and not refusal(s, RESET)),
    Move(task.DeadLettered(reason="no", attempts=1, claims=1), lambda s: s.task is T.FAILED and not is_given_up(s)),
    commanded(task.Reopened(by="ann")),
    Move(task.Retried(), lambda s: s.task is T.FAILED and task.retries_left(s.task_data, DelayEnded())),
    Move(task.Retried(delay_s=1.0), lambda s: s.task is T.FAILED and task.retries_left(s.task_data, DelayEnded())),
    commanded(task.Unclaimed()),
    commanded(task.Requeued()),
    commanded(task.Blocked(on=("b",))),
    Move(LOST, is_at(GOES_ON, (*RESTS, R.IN_PROGRESS, R.VALIDATING), (J.RUNNING, J.VALIDATING, *WAITS))),
    commanded(task.Unblocked()),
    commanded(SPLIT),
    Move(
        task.SubtaskTimedOut(subtask="b"),
        is_at(T.WAITING_FOR_SUBTASKS, (*RESTS, R.VALIDATING), (J.PENDING, J.VALIDATING, *WAITS)),
    ),
    Move(job.WorkerLost(), is_at((*HELD, T.WAITING_FOR_SUBTASKS), R.IN_PROGRESS, J.RUNNING)),
    Move(job.WorkerLost(), is_at(T.WAITING_FOR_SUBTASKS, RESTS, J.RUNNING)),
    Move(task.Recovered(summary=ORPHANED), is_at(T.IN_PROGRESS, (R.IN_PROGRESS, R.VALIDATING))),
    Move(task.RecoveryFailed(), is_at(T.IN_PROGRESS)),
    Move(ABORTED, is_at((T.PLANNED, *GOES_ON, T.BLOCKED, T.DONE, T.PENDING_APPROVAL))),
    Move(task_run.Skipped(), is_at((T.PLANNED, T.OPEN), R.PENDING, (None, J.PENDING))),
    Move(PlanGivenUp(reason="no"), is_at()),
    Move(Abandoned(reason="no"), is_at()),
    commanded(task.ApprovalGiven(by="ann")),
    Move(Merged(reason="m"), lambda s: isinstance(pending_effect(s), Merge)),
    Move(MergeRefused(reason="m"), lambda s: isinstance(pending_effect(s), Merge)),
    commanded(task.ApprovalDenied(by="ann")),
]
LIMITS = TaskRunData(max_attempts=2)
CIRCUMSTANCES = [Circumstances(can_probe=paid, limits=LIMITS) for paid in (True, False)]


def after(before: TaskStates, move: Move) -> Iterator[CascadeStep]:
    """Yield the step of *move* for every combination of circumstances."""
    failing = isinstance(move.lead, task_run.ExecutionFailed | task_run.ExecutionTimedOut)
    for given in CIRCUMSTANCES if failing else CIRCUMSTANCES[:1]:
        yield from every_course(before, move.lead, given=given)


def key_of(one: TaskStates) -> object:
    """Return what tells states apart for the guards of tables and rows."""
    run = one.run_data
    may_try = task_run.retry_allowed(run, DelayEnded()), probes_left(run, DelayEnded()), run.probe, min(run.failures, 2)
    may_requeue = one.job_data.retry_count < one.job_data.max_retries
    again = task.retries_left(one.task_data, DelayEnded()), bool(one.task_data.delay_s)
    approval = one.task_data.needs_approval, bool(one.task_data.approved_by)
    return one.task, one.run, one.job, may_try, may_requeue, again, approval, is_given_up(one)


def explored() -> int:
    """Return the number of reachable combinations of states; assert that each fits."""
    data, job_data = [TaskData(max_retries=1, needs_approval=one) for one in (True, False)], JobData(max_retries=1)
    births = [
        TaskStates(task=one, task_data=of_task, run=R.PENDING, run_data=LIMITS, job=of_job, job_data=job_data)
        for one, of_task, of_job in product((T.PLANNED, T.OPEN), data, (None, J.PENDING))
    ]
    known, queue = set(map(key_of, births)), births
    for before in queue:
        for move in [one for one in MOVES if one.when(before)]:
            for now, events, _ in after(before, move):
                check(before, move, now, events)
                if (key := key_of(now)) not in known:
                    known.add(key)
                    queue.append(now)
    return len(known)


def check(before: TaskStates, move: Move, now: TaskStates, events: tuple[Event, ...]) -> None:
    text = f"{before[::2]} -- {move.lead.name()}: {named(events)} -- {now[::2]}"
    replayed = before
    try:
        for event in events:
            replayed = replayed.after(event)
    except IllegalTransition as refusal:
        pytest.fail(f"{text}: {refusal}")
    found = [*misfits(now.task.value, now.run.value, now.job.value if now.job else "")]  # type: ignore[union-attr]
    if now.task_data.summary == ORPHANED:  # its worker was lost before: the job was never completed
        found = [one for one in found if one != "the run is COMPLETED, and its job cancelled"]
    assert found == [], text
    assert (pending_effect(now) is None) is waits_for_others(now), f"nobody brings it forward: {text}"
    assert (now.job is J.RUNNING) is (now.job_data.worker_id is not None), text
    assert now.job_data.retry_count <= now.job_data.max_retries, text


def waits_for_others(now: TaskStates) -> bool:
    """Return whether a task in these states waits for a person, another task or a worker, and for nothing that the
    supervisor does."""
    if now.task in (T.PLANNED, T.BLOCKED) or (now.task is T.PENDING_APPROVAL and not now.task_data.approved_by):
        return True
    if now.task is T.WAITING_FOR_SUBTASKS and now.run is R.VALIDATING:
        return True
    if now.job in (None, J.PENDING):
        return now.task in BEGUN and not (now.task is T.OPEN and now.job and now.task_data.delay_s)
    return now.task in BEGUN and now.job is J.QUEUED and now.run is not R.CIRCUIT_OPEN


def test_every_reachable_state_fits_and_every_row_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the births on, whatever leads: no follower is refused, the three states fit each other, the invariants of a
    job hold; and no row of the table is there for nothing."""
    used, applies = set[tuple[type, int]](), Row.applies

    def watched(one: Row, now: Situation) -> bool:
        found = applies(one, now)
        if found:
            used.add((type(now.lead), id(one)))
        return found

    monkeypatch.setattr(Row, "applies", watched)
    assert explored() > 1_000
    unused = [
        f"{lead.__name__}, row {number}"
        for lead, rows in CASCADES.items()
        for number, one in enumerate(rows)
        if (lead, id(one)) not in used
    ]
    assert unused == []


# -------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("states", "lead", "text"),
    [
        (CHECKED, task.Requeued(), "is done, and its work is being checked"),
        (CHECKED, RESET, "is done, and its work is being checked"),
        (CHECKED, task.Cancelled(), ""),
        (AT_WORK, task.Requeued(), ""),
        (
            AT_WORK,
            task.Unclaimed(),
            "is IN_PROGRESS: unclaim is not possible now, only block, cancel, keep, requeue, split",
        ),
        (AT_WORK, RESET, "needs no retry: its run is IN_PROGRESS, not given up"),
        (at("OPEN PENDING running"), SPLIT, "is OPEN, and is about to go on by itself"),
        (at("OPEN PENDING queued"), SPLIT, ""),
        (APPROVED_RESULT, task.ApprovalGiven(by="bob"), "is PENDING_APPROVAL, and is about to go on by itself"),
        (APPROVED_RESULT, task.ApprovalDenied(by="bob"), "is PENDING_APPROVAL, and is about to go on by itself"),
        (at("FAILED CIRCUIT_OPEN failed"), task.Reopened(by="ann"), "is FAILED, and is about to go on by itself"),
        (GIVEN_UP, task.Cancelled(), "has ended (FAILED): no command changes it"),
    ],
)
def test_a_command_is_refused_by_the_states_of_its_task(states: TaskStates, lead: Event, text: str) -> None:
    """The states of a task decide whether a command is possible; the refusal names the possible commands. (The product
    of states above gives every command that is not refused.)"""
    found = refusal(states, lead)
    assert found.startswith(text)
    assert bool(found) is bool(text)
