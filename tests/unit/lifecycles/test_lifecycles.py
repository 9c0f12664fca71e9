"""The nine lifecycles: tables without faults, and the counters, limits and refusals that their rules decide."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec
import pytest

from actors.machine import Event, IllegalTransition, Machine, Step
from actors.machine_views import as_json, faults
from supervisor.lifecycles import MACHINES, job, session, task, task_run, turn, worker, workstream
from supervisor.lifecycles.effects import SendEvent
from supervisor.lifecycles.events import TaskCompleted, TaskFailed
from supervisor.lifecycles.types import Exit, TransitionReason, Verdict

INITIAL = {
    "task": "PLANNED OPEN",
    "agent": "starting",
    "turn": "IDLE",
    "session": "Initializing",
    "run": "PENDING",
    "job": "pending",
    "workstream": "planned",
    "worker": "initializing",
    "trigger": "waiting",
}
"""The states that an entity may begin in; the other columns of the specification are compared by
``test_specification_pages.py``."""

EVERY = [pytest.param(machine, id=name) for name, machine in MACHINES.items()]


@pytest.mark.parametrize("name", INITIAL)
def test_an_entity_begins_where_it_may(name: str) -> None:
    """Each machine has the initial states of its specification, and is registered under its own name."""
    assert as_json(MACHINES[name])["initial"] == INITIAL[name].split()
    assert MACHINES[name].name == name


@pytest.mark.parametrize("machine", EVERY)
def test_tables_have_no_faults(machine: Machine[Any, Any]) -> None:
    """No table has an unreachable state, a dead end, a hidden rule, or a specified transition out of a terminal
    state."""
    assert faults(machine) == []


@pytest.mark.parametrize("machine", EVERY)
def test_extensions_say_why(machine: Machine[Any, Any]) -> None:
    """Each extension of a table gives its reason in at least three words."""
    reasons = [one.extension for one in machine.rules if one.extension is not None]
    assert all(len(reason.split()) >= 3 for reason in reasons)


@pytest.mark.parametrize("machine", EVERY)
def test_event_names_are_unique(machine: Machine[Any, Any]) -> None:
    """Two event classes of one machine never share a name, or a journal could not be read back."""
    kinds = list(dict.fromkeys(one.on for one in machine.rules))
    assert len(machine.events) == len(kinds)


@pytest.mark.parametrize("machine", EVERY)
def test_illegal_events_change_nothing_and_name_what_is_allowed(machine: Machine[Any, Any]) -> None:
    """In every state an event without a rule raises IllegalTransition, which names the allowed events, without use of
    the data."""
    untouchable = object()
    refused = 0
    for state in machine.states:
        allowed = machine.allowed(state)
        for kind in machine.events.values():
            if kind not in allowed:
                refused += 1
                assert_refused(machine, state, untouchable, kind, allowed)
    assert refused > 0


def assert_refused(
    machine: Machine[Any, Any], state: Enum, data: object, kind: type[Event], allowed: Iterable[type[Event]]
) -> None:
    with pytest.raises(IllegalTransition) as caught:
        machine.step(state, data, blank(kind))
    names = ", ".join(one.name() for one in allowed) or "nothing"
    assert str(caught.value) == f"{machine.name}: {kind.name()} in {state.value}; allowed here: {names}"
    assert caught.value.allowed == tuple(allowed)


def blank(kind: type[Event]) -> Event:
    """Return an event of that class with empty required fields."""
    fields = msgspec.structs.fields(kind)
    return kind(**{one.name: None for one in fields if one.required})


# ------------------------------------------------------------------------------------------------------- task
def walk(machine: Machine[Any, Any], state: Any, data: Any, *events: Event) -> Step[Any, Any]:
    """Apply *events* one after the other, none of which may have effects, and return the last step."""
    for event in events:
        step = machine.step(state, data, event)
        state, data = step.state, step.data
        assert step.effects == ()
    return step


def test_task_runs_to_its_end() -> None:
    """A task that is claimed, started, completed and closed keeps the session that claimed it, and its summary."""
    step = walk(
        task.TASK,
        task.Task.OPEN,
        task.TaskData(),
        task.Claimed(by="s1"),
        task.Started(),
        task.Completed(summary="it works"),
        task.Closed(),
    )
    assert step.state is task.Task.CLOSED
    assert step.data == task.TaskData(claimed_by="s1", last_claimed_by="s1", claims=1, summary="it works")


def test_task_retries_are_bounded() -> None:
    """A failed task can be retried ``max_retries`` times, each time without its earlier claim, and then no more."""
    state, data = task.Task.OPEN, task.TaskData(max_retries=2)
    again = (task.Claimed(by="s1"), task.Failed(reason="no"))
    for retries in (1, 2):
        step = walk(task.TASK, state, data, *again, task.Retried())
        state, data = step.state, step.data
        assert (state, data.retries, data.claimed_by) == (task.Task.OPEN, retries, "")
    step = walk(task.TASK, state, data, *again)
    assert (step.state, step.data.last_failure) == (task.Task.FAILED, "no")
    with pytest.raises(IllegalTransition, match="task: retried in FAILED"):
        task.TASK.step(step.state, step.data, task.Retried())


def test_a_task_that_was_given_up_is_tried_again_by_a_person_only() -> None:
    """A failed task that was given up refuses another try, though retries are left; a person's reset removes the mark.
    A task that was not given up refuses the reset."""
    failed = walk(task.TASK, task.Task.OPEN, task.TaskData(), task.Claimed(by="s1"), task.Failed(reason="no"))
    given_up = task.TASK.step(failed.state, failed.data, task.DeadLettered(reason="no", attempts=1, claims=1))
    for step, event in ((failed, task.Reopened(by="ann")), (given_up, task.Retried())):
        with pytest.raises(IllegalTransition):
            task.TASK.step(step.state, step.data, event)
    assert task.TASK.step(given_up.state, given_up.data, task.Reopened(by="ann")).data.dead_letter == ""


def test_task_counts_its_claims() -> None:
    """Each claim of a task is counted, and a claim that was given back stays counted."""
    data = task.TaskData()
    for number in (1, 2, 3):
        step = walk(task.TASK, task.Task.OPEN, data, task.Claimed(by=f"a{number}"))
        assert (step.data.claims, step.data.claimed_by) == (number, f"a{number}")
        data = walk(task.TASK, step.state, step.data, task.Unclaimed()).data


def test_task_that_waits_for_its_subtasks_again_keeps_its_own_part() -> None:
    """A split task that was blocked on a subtask keeps its holder, whose work is a part of it; a task that was given
    back, or tried again after its work was rejected, has none when it is split."""
    T, split = task.Task, task.Split(subtasks=("b",))
    begun = walk(task.TASK, T.OPEN, task.TaskData(), task.Claimed(by="s"), task.Started())
    late = task.SubtaskTimedOut(subtask="b")
    again = walk(task.TASK, begun.state, begun.data, split, late, task.Unblocked(holder="s"), split)
    assert again.data.claimed_by == "s"
    for events in ([task.Blocked(on=("x",)), task.Unblocked()], [task.Failed(findings="no test"), task.Retried()]):
        assert walk(task.TASK, begun.state, begun.data, *events, split).data.claimed_by == ""


@pytest.mark.parametrize(("findings", "told"), [("", "lost"), ("no test", "no test")])
def test_task_tells_its_next_agent_of_the_loss(findings: str, told: str) -> None:
    """The loss of an agent is the failure that the next prompt tells, unless that prompt has findings to tell."""
    before = task.TaskData(failure=findings, has_findings=bool(findings))
    after = task.TASK.step(task.Task.IN_PROGRESS, before, task.Orphaned(reason="lost")).data
    assert (after.failure, after.has_findings) == (told, bool(findings))


def test_task_default_is_three_retries() -> None:
    """The default of a task's ``max_retries`` is 3, as in the specification."""
    assert task.TaskData().max_retries == 3


@pytest.mark.parametrize(
    ("state", "event", "target", "waiting_for"),
    [
        (task.Task.IN_PROGRESS, task.Blocked(on=("t2",)), task.Task.BLOCKED, ("t2",)),
        (task.Task.OPEN, task.Split(subtasks=("a", "b")), task.Task.WAITING_FOR_SUBTASKS, ("a", "b")),
        (task.Task.WAITING_FOR_SUBTASKS, task.SubtaskTimedOut(subtask="a"), task.Task.BLOCKED, ("a",)),
        (task.Task.WAITING_FOR_SUBTASKS, task.SubtaskFailed(subtask="a"), task.Task.BLOCKED, ("a",)),
        (task.Task.WAITING_FOR_SUBTASKS, task.SubtasksCompleted(), task.Task.DONE, ()),
        (task.Task.BLOCKED, task.Unblocked(), task.Task.OPEN, ()),
        (task.Task.ORPHANED, task.Requeued(), task.Task.OPEN, ()),
        (
            task.Task.CLAIMED,
            task.Unclaimed(transition_reason=TransitionReason.ORPHAN_RECOVERED),
            task.Task.OPEN,
            (),
        ),
    ],
)
def test_task_knows_what_it_waits_for(
    state: task.Task, event: Event, target: task.Task, waiting_for: tuple[str, ...]
) -> None:
    """``waiting_for`` of a blocked or split task names its blockers or subtasks, and is empty when the task
    continues."""
    step = task.TASK.step(state, task.TaskData(waiting_for=("before",)), event)
    assert (step.state, step.data.waiting_for) == (target, waiting_for)


def test_task_approval_gate() -> None:
    """Only a task with ``needs_approval`` can wait for approval, and is then closed, failed or cancelled."""
    asking = task.TaskData(needs_approval=True)
    with pytest.raises(IllegalTransition):
        task.TASK.step(task.Task.DONE, task.TaskData(), task.ApprovalRequested())
    step = task.TASK.step(task.Task.DONE, asking, task.ApprovalRequested())
    assert step.state is task.Task.PENDING_APPROVAL
    answers = [task.ApprovalGranted(by="ada"), task.ApprovalDenied(by="ada", reason="no"), task.Cancelled()]
    ends = [task.TASK.step(step.state, step.data, one).state for one in answers]
    assert ends == [task.Task.CLOSED, task.Task.FAILED, task.Task.CANCELLED]


# -------------------------------------------------------------------------------------------------------- run
R = task_run.TaskRun


def failed(error: str = "boom", **facts: Any) -> task_run.ExecutionFailed:
    return task_run.ExecutionFailed(error=error, **facts)


def test_run_spends_its_attempts_then_opens_its_circuit() -> None:
    """Five different errors of a task run: four retries with doubled delays, then the circuit opens."""
    state, data = R.PENDING, task_run.TaskRunData()
    start: Event = task_run.ExecutorStarted()
    delays = []
    for number in range(1, 5):
        step = walk(task_run.RUN, state, data, start, failed(f"error {number}"), task_run.RetryDecided())
        state, data, start = step.state, step.data, task_run.BackoffCompleted()
        assert (state, data.attempts, data.failures) == (R.RETRYING, number, number)
        delays.append(data.delay_s)
    assert delays == [2, 4, 8, 16]
    step = walk(task_run.RUN, state, data, start, failed("error 5"), task_run.RetryDecided())
    assert (step.state, step.data.attempts, step.data.failures) == (R.CIRCUIT_OPEN, 5, 5)
    assert step.data.delay_s == 0


def test_run_third_identical_error_in_a_row_opens_the_circuit() -> None:
    """With ``max_error_repeats`` 2 the third identical error in a row opens the circuit; another error in between
    resets the count."""

    def decide(*errors: str) -> R:
        state, data = R.IN_PROGRESS, task_run.TaskRunData(max_attempts=100)
        for error in errors[:-1]:
            step = walk(task_run.RUN, state, data, failed(error), task_run.RetryDecided(), task_run.BackoffCompleted())
            state, data = step.state, step.data
        state = walk(task_run.RUN, state, data, failed(errors[-1]), task_run.RetryDecided()).state
        assert isinstance(state, R)
        return state

    assert decide("a", "a") is R.RETRYING
    assert decide("a", "a", "a") is R.CIRCUIT_OPEN
    assert decide("a", "a", "b", "a", "a") is R.RETRYING


def test_run_time_outs_are_decided_twice_and_charged_once() -> None:
    """A time-out of a task run is retried while attempts are left; else the task run fails, and then its circuit opens.
    Each time-out is counted once."""
    step = walk(
        task_run.RUN, R.IN_PROGRESS, task_run.TaskRunData(), task_run.ExecutionTimedOut(), task_run.RetryDecided()
    )
    assert (step.state, step.data.failures) == (R.RETRYING, 1)
    step = walk(
        task_run.RUN,
        R.IN_PROGRESS,
        task_run.TaskRunData(max_attempts=1),
        task_run.ExecutionTimedOut(),
        task_run.RetryDecided(),
    )
    assert (step.state, step.data.failures) == (R.FAILED, 1)
    step = walk(task_run.RUN, step.state, step.data, task_run.RetryDecided())
    assert (step.state, step.data.failures) == (R.CIRCUIT_OPEN, 1)


def test_run_uncharged_failure_counts_nothing() -> None:
    """The loss of a worker changes no counter of the task run, and the next attempt follows without a delay."""
    data = task_run.TaskRunData(attempts=1)
    step = walk(task_run.RUN, R.IN_PROGRESS, data, failed("worker lost", charged=False), task_run.RetryDecided())
    assert step.state is R.RETRYING
    assert step.data == msgspec.structs.replace(data, last_error="worker lost")


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (R.IN_PROGRESS, failed("syntax error", category=task_run.ErrorCategory.PERMANENT)),
        (R.VALIDATING, task_run.TestsFailed(error="2 tests failed")),
    ],
)
def test_run_permanent_error_settles_at_once(state: R, event: Event) -> None:
    """A permanent error, also a failed validation, opens the circuit at the first failure, and no probe follows."""
    step = walk(task_run.RUN, state, task_run.TaskRunData(), event, task_run.RetryDecided())
    assert (step.state, step.data.failures) == (R.CIRCUIT_OPEN, 1)
    with pytest.raises(IllegalTransition, match="run: cooldown_expired in CIRCUIT_OPEN"):
        task_run.RUN.step(step.state, step.data, task_run.CooldownExpired())


def test_run_probes_are_bounded() -> None:
    """Each cool-down of an open circuit allows one probe, also one that does not start; after ``probes_max`` no more
    are allowed."""
    state, data = R.CIRCUIT_OPEN, task_run.TaskRunData(failures=5, timed_out=True, probes_max=3)
    endings: list[tuple[Event, ...]] = [
        (task_run.ProbeFailed(error="no worker"),),
        (task_run.ProbeStarted(), task_run.ExecutionTimedOut(), task_run.RetryDecided(), task_run.RetryDecided()),
        (task_run.ProbeStarted(), task_run.ExecutionTimedOut(), task_run.RetryDecided(), task_run.RetryDecided()),
    ]
    for ending in endings:
        step = walk(task_run.RUN, state, data, task_run.CooldownExpired(), *ending)
        state, data = step.state, step.data
        assert (state, data.probe) == (R.CIRCUIT_OPEN, False)
    assert data.probes == 3
    with pytest.raises(IllegalTransition):
        task_run.RUN.step(state, data, task_run.CooldownExpired())


def test_run_failed_probe_opens_the_circuit_whatever_the_budget() -> None:
    """A failed probe opens the circuit again, even if attempts are left."""
    events = [task_run.CooldownExpired(), task_run.ProbeStarted(), failed(), task_run.RetryDecided()]
    step = walk(task_run.RUN, R.CIRCUIT_OPEN, task_run.TaskRunData(max_attempts=100, timed_out=True), *events)
    assert step.state is R.CIRCUIT_OPEN


def test_run_waits_for_a_provider_uncharged() -> None:
    """Errors of the provider change no counter of failures; the delay doubles with each of them, and an announced wait
    is waited out, and counts as time in which the provider fails. A charged failure begins with the first delay
    again."""
    state, data, delays = R.IN_PROGRESS, task_run.TaskRunData(attempts=1), list[float]()
    for at, wait_s in ((10.0, 0.0), (20.0, 0.0), (30.0, 900.0), (40.0, 0.0)):
        trouble = task_run.ExecutionFailed(at=at, error="429", charged=False, provider=True, wait_s=wait_s)
        step = walk(task_run.RUN, state, data, trouble, task_run.RetryDecided(), task_run.BackoffCompleted())
        waited = walk(task_run.RUN, state, data, trouble, task_run.RetryDecided())
        delays.append(waited.data.delay_s)
        state, data = step.state, step.data
    assert delays == [2.0, 4.0, 900.0, 16.0]
    assert (data.failures, data.provider_errors, data.provider_since) == (0, 4, 10.0)
    charged = walk(task_run.RUN, state, data, failed("exit status 3"), task_run.RetryDecided())
    assert (charged.data.failures, charged.data.provider_errors, charged.data.delay_s) == (1, 0, 2.0)


def test_run_probes_again_after_trouble_of_the_provider() -> None:
    """A probe that fails because of the provider is made again, after a delay; the probe's own failure opens the
    circuit."""
    limits = task_run.TaskRunData(max_attempts=1, failures=1, timed_out=True)
    trouble = task_run.ExecutionFailed(error="429", charged=False, provider=True)
    probing = (task_run.CooldownExpired(), task_run.ProbeStarted(), trouble, task_run.RetryDecided())
    waits = walk(task_run.RUN, R.CIRCUIT_OPEN, limits, *probing)
    assert (waits.state, waits.data.probe, waits.data.probes, waits.data.delay_s) == (R.RETRYING, True, 1, 2.0)
    again = (task_run.BackoffCompleted(), failed(), task_run.RetryDecided())
    step = walk(task_run.RUN, waits.state, waits.data, *again)
    assert (step.state, step.data.probe, step.data.failures) == (R.CIRCUIT_OPEN, False, 2)


def test_job_waits_for_a_provider_without_a_retry() -> None:
    """An execution that failed because of the provider leaves the retries of the job as they are."""
    uncharged = job.ExecutionFailed(error="429", charged=False)
    step = job.JOB.step(J.RUNNING, job.JobData(max_retries=0, worker_id="w1"), uncharged)
    assert (step.state, step.data.retry_count, step.data.worker_id) == (J.RETRYING, 0, None)


def test_run_only_a_time_out_is_probed() -> None:
    """The circuit is probed where the last charged failure was a time-out; after an error, the run is settled."""
    timed_out, limits = task_run.ExecutionTimedOut(), task_run.TaskRunData(max_attempts=1)
    late = walk(task_run.RUN, R.IN_PROGRESS, limits, timed_out, task_run.RetryDecided(), task_run.RetryDecided())
    assert task_run.RUN.step(late.state, late.data, task_run.CooldownExpired()).state is R.HALF_OPEN
    wrong = walk(task_run.RUN, R.IN_PROGRESS, limits, failed("exit status 3"), task_run.RetryDecided())
    assert wrong.state is R.CIRCUIT_OPEN
    with pytest.raises(IllegalTransition):
        task_run.RUN.step(wrong.state, wrong.data, task_run.CooldownExpired())


def test_run_successful_probe_closes_the_circuit() -> None:
    """A probe that passes its tests completes the task run."""
    events = [
        task_run.CooldownExpired(),
        task_run.ProbeStarted(),
        task_run.ExecutionCompleted(),
        task_run.TestsPassed(),
    ]
    step = walk(task_run.RUN, R.CIRCUIT_OPEN, task_run.TaskRunData(failures=5, timed_out=True), *events)
    assert (step.state, step.data.probe) == (R.COMPLETED, False)


def test_run_tells_the_turn_its_verdict() -> None:
    """The result of the tests, or a failure before them, is sent to the turn whose work it is about, once."""
    error = Verdict(exit=Exit.ERROR, error="no")
    done = task_run.RUN.step(R.IN_PROGRESS, task_run.TaskRunData(), task_run.ExecutionCompleted(turn="s:t1"))
    passed = task_run.RUN.step(done.state, done.data, task_run.TestsPassed())
    assert passed.effects == (SendEvent(to="s:t1", event=TaskCompleted()),)
    failed = task_run.RUN.step(done.state, done.data, task_run.TestsFailed(error="no"))
    assert failed.effects == (SendEvent(to="s:t1", event=TaskFailed(verdict=error)),)
    undone = task_run.ExecutionFailed(error="no", turn="s:t1")
    assert task_run.RUN.step(R.IN_PROGRESS, task_run.TaskRunData(), undone).effects == failed.effects
    assert (passed.data.turn, failed.data.turn) == ("", "")


def test_run_manual_reset_starts_afresh() -> None:
    """A manual reset sets the counters of a task run to zero; the limits and the last error stay."""
    worn = task_run.TaskRunData(
        max_attempts=7,
        attempts=9,
        failures=8,
        same_error=3,
        probes=3,
        permanent=True,
        last_error="boom",
        last_signature="boom",
    )
    step = task_run.RUN.step(R.CIRCUIT_OPEN, worn, task_run.ManualReset(by="ada"))
    assert (step.state, step.data) == (R.PENDING, task_run.TaskRunData(max_attempts=7, last_error="boom"))


def test_run_waits_for_its_dependencies() -> None:
    """A task run starts only without open dependencies, and is skipped only if a dependency has ended for good."""
    with pytest.raises(IllegalTransition):
        task_run.RUN.step(R.PENDING, task_run.TaskRunData(), task_run.ExecutorStarted(waiting_for=("t1",)))
    with pytest.raises(IllegalTransition):
        task_run.RUN.step(R.PENDING, task_run.TaskRunData(), task_run.Skipped(dependency="t1", final=False))
    assert task_run.RUN.step(R.PENDING, task_run.TaskRunData(), task_run.Skipped(dependency="t1")).state is R.SKIPPED


def test_run_can_be_cancelled_until_it_ends() -> None:
    """Every state in which a run can be at rest accepts a cancel. FAILED and TIMEOUT are left, by the decision about a
    retry, in the append of the journal that enters them."""
    accepting = [state for state in R if task_run.Cancelled in task_run.RUN.allowed(state)]
    passed = {R.FAILED, R.TIMEOUT}
    assert accepting == [state for state in R if state not in task_run.RUN.terminal | passed]


@pytest.mark.parametrize(
    ("failures", "jitter", "delay_s"),
    [
        (0, 1.0, 0.0),
        (1, 1.0, 2.0),
        (2, 1.0, 4.0),
        (5, 1.0, 32.0),
        (6, 1.0, 60.0),
        (100_000, 1.25, 60.0),
        (1, 0.75, 1.5),
        (1, 1.25, 2.5),
        (1, 0.0, 1.5),
        (1, 9.0, 2.5),
        (6, 0.75, 45.0),
        (5, 1.25, 40.0),
    ],
)
def test_run_delay(failures: int, jitter: float, delay_s: float) -> None:
    """The delay of a retry doubles from 2 s and is at most 60 s, before and after a jitter of at most 25 %."""
    assert task_run.retry_delay_s(task_run.TaskRunData(failures=failures), jitter) == delay_s


def test_run_delay_stops_doubling() -> None:
    """From the 65th failure on the delay of a retry no longer doubles, so that no exponent overflows."""
    delays = [
        task_run.retry_delay_s(task_run.TaskRunData(failures=failures, max_delay_s=float("inf"), base_delay_s=1.0), 1.0)
        for failures in (64, 65, 66, 100_000)
    ]
    assert delays == [2.0**63, 2.0**64, 2.0**64, 2.0**64]


@pytest.mark.parametrize(
    "data",
    [
        task_run.TaskRunData(failures=7, max_attempts=5),
        task_run.TaskRunData(failures=1, same_error=5),
        task_run.TaskRunData(probe=True),
    ],
)
def test_run_beyond_its_limits_is_not_retried(data: task_run.TaskRunData) -> None:
    """A task run beyond its limits, also a limit lowered since, and a task run in a probe, is not retried."""
    assert task_run.RUN.step(R.FAILED, data, task_run.RetryDecided()).state is R.CIRCUIT_OPEN


def test_run_tests_that_fail_are_charged() -> None:
    """Failed tests add one failure to the task run and make it permanent."""
    step = task_run.RUN.step(
        R.VALIDATING, task_run.TaskRunData(failures=1), task_run.TestsFailed(error="2 tests failed")
    )
    assert step.data == task_run.TaskRunData(
        failures=2, permanent=True, last_error="2 tests failed", charged_error="2 tests failed"
    )


def test_run_probe_is_an_attempt_at_once() -> None:
    """A probe counts as an attempt when it starts, and resets the delay."""
    data = task_run.TaskRunData(attempts=5, delay_s=16.0)
    step = task_run.RUN.step(R.HALF_OPEN, data, task_run.ProbeStarted())
    assert (step.state, step.data) == (R.IN_PROGRESS, task_run.TaskRunData(attempts=6, delay_s=0.0, probe=True))


def test_run_beyond_its_probes_stays_open() -> None:
    """A circuit with more probes than its limit, which was lowered since, allows no further probe."""
    with pytest.raises(IllegalTransition):
        task_run.RUN.step(R.CIRCUIT_OPEN, task_run.TaskRunData(probes=5, probes_max=3), task_run.CooldownExpired())


# -------------------------------------------------------------------------------------------------------- job
J = job.Job


def test_job_runs_to_its_end() -> None:
    """A job has the times of its events, and a worker only while it runs."""
    step = walk(
        job.JOB,
        J.PENDING,
        job.JobData(capabilities=("gpu",)),
        job.SchedulerAssigned(at=1.0),
        job.WorkerStarted(at=2.0, worker_id="w1", capabilities=("cpu", "gpu")),
    )
    assert (step.state, step.data.worker_id, step.data.created_at, step.data.started_at) == (J.RUNNING, "w1", 1.0, 2.0)
    step = walk(job.JOB, step.state, step.data, job.ExecutionCompleted(at=3.0), job.ValidationPassed(at=4.0))
    assert (step.state, step.data.worker_id, step.data.completed_at) == (J.COMPLETED, None, 4.0)


def test_job_retries_are_bounded() -> None:
    """A job is retried ``max_retries`` times and then fails; its start is the start of its first attempt."""
    state, data = J.QUEUED, job.JobData(max_retries=2)
    for retries in (1, 2):
        events = [job.WorkerStarted(at=retries, worker_id="w1"), job.ExecutionFailed(error="no")]
        step = walk(job.JOB, state, data, *events, job.RetryDelayElapsed())
        state, data = step.state, step.data
        assert (data.retry_count, data.worker_id) == (retries, None)
    step = walk(job.JOB, state, data, job.WorkerStarted(at=3, worker_id="w1"), job.ExecutionFailed(error="never"))
    assert (step.state, step.data.retry_count, step.data.last_error) == (J.FAILED, 2, "never")
    assert (step.data.started_at, step.data.attempt_started_at) == (1, 3)


def test_job_agrees_with_its_run_about_the_last_attempt() -> None:
    """With default limits the failure that opens the circuit of a task run is the same one that fails its job."""
    run_state, run_data, job_state, job_data = R.IN_PROGRESS, task_run.TaskRunData(), J.RUNNING, job.JobData()
    for number in range(1, 6):
        ran = walk(task_run.RUN, run_state, run_data, failed(f"error {number}"), task_run.RetryDecided())
        worked = walk(job.JOB, job_state, job_data, job.ExecutionFailed(error=f"error {number}"))
        assert (ran.state is R.RETRYING) == (worked.state is J.RETRYING) == (number < 5)
        run_data, job_data = ran.data, worked.data


def test_job_whose_run_gave_up_fails_with_retries_left() -> None:
    """A final failure fails a job with retries left; the loss of a worker does not count as a retry."""
    held = job.JobData(worker_id="w1")
    assert job.JOB.step(J.RUNNING, held, job.ExecutionFailed(error="x", final=True)).state is J.FAILED
    step = job.JOB.step(J.RUNNING, held, job.WorkerLost())
    assert (step.state, step.data) == (J.RETRYING, job.JobData(last_error="worker lost"))


def test_job_beyond_its_limit_is_not_retried() -> None:
    """A job with more retries than its limit, which was lowered since, is not retried."""
    step = job.JOB.step(J.RUNNING, job.JobData(retry_count=3, max_retries=2), job.ExecutionFailed(error="x"))
    assert (step.state, step.data.retry_count) == (J.FAILED, 3)


def test_job_is_created_once() -> None:
    """No rule leads a job back to pending, so that a job is created once."""
    assert not [one for one in job.JOB.rules if one.target is J.PENDING]


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (J.PENDING, job.SchedulerAssigned(waiting_for=("j0",))),
        (J.QUEUED, job.WorkerStarted(worker_id="w1", capabilities=("cpu",))),
        (J.RUNNING, job.ExecutionCompleted(exit_code=1)),
        (J.RUNNING, job.ExecutionCompleted(exit_code=-9)),
        (J.VALIDATING, job.ValidationPassed(failed_rules=("lint",))),
        (J.VALIDATING, job.ValidationFailed(failed_rules=())),
    ],
)
def test_job_guards_refuse(state: J, event: Event) -> None:
    """A job refuses to be queued with open dependencies, to start on an unfit worker, to complete with a bad exit code,
    and a contradictory verdict."""
    with pytest.raises(IllegalTransition):
        job.JOB.step(state, job.JobData(capabilities=("gpu",)), event)


def test_job_validation_failure_names_the_rules() -> None:
    """A failed validation records the failed rules as the last error."""
    step = job.JOB.step(J.VALIDATING, job.JobData(), job.ValidationFailed(failed_rules=("lint", "types")))
    assert (step.state, step.data.last_error) == (J.FAILED, "validation failed: lint, types")


def test_job_can_be_cancelled_until_it_ends() -> None:
    """A job can be cancelled in every state that is not terminal, and then has no worker."""
    accepting = [state for state in J if job.UserCancelled in job.JOB.allowed(state)]
    assert accepting == [state for state in J if state not in job.JOB.terminal]
    assert job.JOB.step(J.RUNNING, job.JobData(worker_id="w1"), job.UserCancelled()).data.worker_id is None


# ------------------------------------------------------------------------------------------- workstream, worker
W = workstream.Workstream


@pytest.mark.parametrize("more", [(), (3,), (1, 2)])
def test_workstream_runs_to_its_end(more: tuple[int, ...]) -> None:
    """A workstream passes through all its states to completed; tasks that are added meanwhile must be completed too."""
    step = walk(
        workstream.WORKSTREAM,
        W.PLANNED,
        workstream.WorkstreamData(tasks=2),
        workstream.AllTasksCreated(count=2),
        workstream.FirstTaskStarted(at=5.0),
        *(workstream.TasksAdded(count=one) for one in more),
        workstream.AllTasksCompleted(completed=2 + sum(more)),
        workstream.ValidationPassed(),
    )
    assert (step.state, step.data.started_at) == (W.COMPLETED, 5.0)


@pytest.mark.parametrize(
    ("state", "tasks", "event"),
    [
        (W.PLANNED, 2, workstream.AllTasksCreated(count=1)),
        (W.PLANNED, 0, workstream.AllTasksCreated(count=0)),
        (W.EXECUTING, 2, workstream.AllTasksCompleted(completed=1)),
        (W.EXECUTING, 2, workstream.SettledWithFailures(completed=1, failed=0, cancelled=1)),
        (W.EXECUTING, 2, workstream.SettledWithFailures(completed=0, failed=1)),
        (W.EXECUTING, 2, workstream.SettledWithCancellations(completed=2, cancelled=0)),
        (W.EXECUTING, 2, workstream.SettledWithCancellations(completed=0, cancelled=1)),
        (W.PLANNED, 2, workstream.AllTasksCreated(count=3)),
        (W.PLANNED, -1, workstream.AllTasksCreated(count=-1)),
        (W.EXECUTING, 2, workstream.AllTasksCompleted(completed=3)),
        (W.EXECUTING, 2, workstream.SettledWithFailures(completed=2, failed=1)),
        (W.EXECUTING, 2, workstream.SettledWithFailures(completed=3, failed=-1)),
        (W.EXECUTING, 2, workstream.SettledWithCancellations(completed=2, cancelled=1)),
        (W.EXECUTING, 2, workstream.SettledWithCancellations(completed=3, cancelled=-1)),
    ],
)
def test_workstream_counts_must_match(state: W, tasks: int, event: Event) -> None:
    """A workstream refuses an event whose counts do not add up to its tasks."""
    with pytest.raises(IllegalTransition):
        workstream.WORKSTREAM.step(state, workstream.WorkstreamData(tasks=tasks), event)


def test_workstream_may_be_of_one_task() -> None:
    """A workstream may have a single task."""
    step = workstream.WORKSTREAM.step(
        W.PLANNED, workstream.WorkstreamData(tasks=1), workstream.AllTasksCreated(count=1)
    )
    assert step.state is W.READY


@pytest.mark.parametrize(
    ("event", "target", "error"),
    [
        (
            workstream.CriticalTaskFailed(task_id="t1", error="boom"),
            W.FAILED,
            "the task t1 failed, which ends the run: boom",
        ),
        (workstream.SettledWithFailures(completed=1, failed=1, cancelled=1), W.FAILED, "1 of 3 tasks failed"),
        (workstream.SettledWithFailures(completed=3, failed=3, cancelled=3), W.FAILED, "3 of 9 tasks failed"),
        (workstream.SettledWithCancellations(completed=3, cancelled=1), W.CANCELLED, ""),
        (workstream.SettledWithFailures(completed=0, failed=3), W.FAILED, "3 of 3 tasks failed"),
        (workstream.SettledWithCancellations(completed=2, cancelled=1), W.CANCELLED, ""),
        (workstream.SettledWithCancellations(completed=0, cancelled=3), W.CANCELLED, ""),
        (workstream.UserCancelled(), W.CANCELLED, ""),
    ],
)
def test_workstream_ends_badly(event: Event, target: W, error: str) -> None:
    """A critical failure ends a workstream at once, other failures when all tasks have ended; failed takes precedence
    over cancelled."""
    counts = [getattr(event, name, 0) for name in ("completed", "failed", "cancelled")]
    step = workstream.WORKSTREAM.step(W.EXECUTING, workstream.WorkstreamData(tasks=sum(counts) or 3), event)
    assert (step.state, step.data.last_error) == (target, error)


K = worker.Worker


def test_worker_fills_and_frees_its_slots() -> None:
    """A worker is busy while a slot is taken, refuses a task without a free slot, and is idle when all slots are
    free."""
    step = walk(
        worker.WORKER,
        K.INITIALIZING,
        worker.WorkerData(max_concurrent_tasks=2),
        worker.RegistrationComplete(capabilities=("gpu",)),
        worker.TaskAssigned(task_id="j1", capabilities=("gpu",)),
        worker.TaskAssigned(task_id="j2"),
    )
    assert (step.state, step.data.active_tasks) == (K.BUSY, 2)
    with pytest.raises(IllegalTransition):
        worker.WORKER.step(step.state, step.data, worker.TaskAssigned(task_id="j3"))
    step = walk(worker.WORKER, step.state, step.data, worker.TaskCompleted())
    assert (step.state, step.data.active_tasks) == (K.BUSY, 1)
    step = walk(worker.WORKER, step.state, step.data, worker.TaskCompleted())
    assert (step.state, step.data.active_tasks) == (K.IDLE, 0)


def test_worker_refuses_what_it_cannot_do() -> None:
    """A worker refuses a task that needs a capability which the worker does not have."""
    with pytest.raises(IllegalTransition):
        worker.WORKER.step(K.IDLE, worker.WorkerData(), worker.TaskAssigned(capabilities=("gpu",)))


def test_worker_drains_before_it_shuts_down() -> None:
    """A busy worker that is to shut down refuses new tasks, stays busy until its last task ends, and then shuts
    down."""
    busy = worker.WorkerData(max_concurrent_tasks=3, active_tasks=2)
    step = walk(worker.WORKER, K.BUSY, busy, worker.ShutdownRequested(), worker.TaskCompleted())
    assert (step.state, step.data.draining, step.data.active_tasks) == (K.BUSY, True, 1)
    with pytest.raises(IllegalTransition):
        worker.WORKER.step(step.state, step.data, worker.TaskAssigned())
    step = walk(worker.WORKER, step.state, step.data, worker.TaskCompleted())
    assert (step.state, step.data.active_tasks) == (K.BUSY, 0)
    assert walk(worker.WORKER, step.state, step.data, worker.ShutdownRequested()).state is K.SHUTDOWN


def test_worker_is_lost_after_enough_misses() -> None:
    """A worker is unresponsive after three missed checks, not after two, and is shut down after 180 s of silence."""
    busy = worker.WorkerData(active_tasks=1)
    with pytest.raises(IllegalTransition):
        worker.WORKER.step(K.BUSY, busy, worker.HealthCheckTimeout(missed=2))
    step = worker.WORKER.step(K.BUSY, busy, worker.HealthCheckTimeout(missed=3))
    assert (step.state, step.data.active_tasks) == (K.UNRESPONSIVE, 0)
    assert worker.WORKER.step(step.state, step.data, worker.HealthCheckRecovered()).state is K.IDLE
    with pytest.raises(IllegalTransition):
        worker.WORKER.step(step.state, step.data, worker.MaxTimeoutExceeded(silent_s=179.9))
    assert worker.WORKER.step(step.state, step.data, worker.MaxTimeoutExceeded(silent_s=180)).state is K.SHUTDOWN
    assert worker.WORKER.step(K.IDLE, worker.WorkerData(), worker.HealthCheckTimeout(missed=3)).state is K.UNRESPONSIVE


@pytest.mark.parametrize("missed", [3, 4, 9])
def test_worker_may_have_missed_more_than_enough(missed: int) -> None:
    """A worker that missed more checks than the limit, or was silent for longer, is unresponsive or shut down as
    well."""
    step = worker.WORKER.step(K.BUSY, worker.WorkerData(active_tasks=2), worker.HealthCheckTimeout(missed=missed))
    assert (step.state, step.data.active_tasks) == (K.UNRESPONSIVE, 0)
    assert worker.WORKER.step(step.state, step.data, worker.MaxTimeoutExceeded(silent_s=999)).state is K.SHUTDOWN


def test_worker_holds_no_less_than_nothing() -> None:
    """The number of a worker's active tasks never falls below 0; a draining worker without a task stays busy."""
    step = worker.WORKER.step(K.BUSY, worker.WorkerData(active_tasks=0), worker.TaskCompleted())
    assert (step.state, step.data.active_tasks) == (K.IDLE, 0)
    step = worker.WORKER.step(K.BUSY, worker.WorkerData(active_tasks=0, draining=True), worker.TaskCompleted())
    assert (step.state, step.data.active_tasks) == (K.BUSY, 0)


@pytest.mark.parametrize("state", [K.IDLE, K.BUSY])
def test_worker_beyond_its_slots_takes_nothing(state: K) -> None:
    """A worker with more tasks than slots, whose number was lowered since, refuses a task."""
    with pytest.raises(IllegalTransition):
        worker.WORKER.step(state, worker.WorkerData(active_tasks=3, max_concurrent_tasks=2), worker.TaskAssigned())


def test_worker_drains_what_it_holds() -> None:
    """A busy worker that is asked to shut down stays busy and drains."""
    step = worker.WORKER.step(K.BUSY, worker.WorkerData(active_tasks=1), worker.ShutdownRequested())
    assert (step.state, step.data.draining, step.data.active_tasks) == (K.BUSY, True, 1)


# ------------------------------------------------------------------------------------------------------- defaults
@pytest.mark.parametrize(
    ("data", "limits"),
    [
        (
            task.TaskData(),
            {
                "max_retries": 3,
                "needs_approval": False,
                "claims": 0,
                "retries": 0,
                "unmerged": False,
                "has_findings": False,
                "delay_s": 0,
            },
        ),
        (
            task_run.TaskRunData(),
            {
                "max_attempts": 5,
                "base_delay_s": 2,
                "max_delay_s": 60,
                "jitter": 0.25,
                "max_error_repeats": 2,
                "probes_max": 1,
                "cooldown_s": 60,
                "provider_patience_s": 3600,
                "provider_wait_max_s": 86_400,
                "provider_errors": 0,
                "wait_s": 0,
                "until": 0,
                "timeout_s": 300,
                "attempts": 0,
                "failures": 0,
                "same_error": 0,
                "probes": 0,
                "relaunches": 0,
                "delay_s": 0,
                "timed_out": False,
                "permanent": False,
                "probe": False,
                "saved_attempt": 0,
            },
        ),
        (job.JobData(), {"max_retries": 4, "critical": False, "retry_count": 0, "token": 0, "losses": 0}),
        (
            worker.WorkerData(),
            {"max_concurrent_tasks": 1, "misses_max": 3, "shutdown_s": 180, "active_tasks": 0, "draining": False},
        ),
        (
            session.SessionLimits(),
            {
                "max_consecutive_errors": 5,
                "max_total_errors": 20,
                "backoff_base_ms": 2000,
                "backoff_cap_ms": 60000,
                "grace_s": 10,
                "spawn_deadline_s": 60,
                "turn_timeout_s": 300,
                "stable_after_s": 0,
                "restarts_max": 3,
                "restarts_within_s": 60,
                "waiting_max": 100,
                "settle_s": 10,
                "steer_grace_s": 2.0,
                "stall_threshold_s": 300,
                "merging_stall_s": 600,
            },
        ),
        (
            session.SessionData(id="s", agent="a"),
            {
                "one_shot": False,
                "incarnation": 0,
                "concluded": 0,
                "session_seq": 1,
                "turn_seq": 0,
                "consecutive_errors": 0,
                "total_errors": 0,
                "offered": 0,
                "urgent_latched": False,
                "ended": False,
                "spent": False,
                "cooled": False,
            },
        ),
        (
            turn.TurnData(id="t", session_id="s"),
            {
                "timeout_s": 300,
                "incarnation": 0,
                "calls": 0,
                "boundary_awaited": False,
                "permissions": 0,
                "is_verified": False,
            },
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_limits_are_the_specified_ones(data: msgspec.Struct, limits: dict[str, Any]) -> None:
    """The default limits are the specification's, and nothing has been counted yet."""
    facts = {name: one for name, one in msgspec.structs.asdict(data).items() if isinstance(one, int | float)}
    assert facts == limits
