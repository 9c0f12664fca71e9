"""Carry out claims of tasks: a session, a prompt, an attempt, and the decision about what follows.

Theory of operation
-------------------
A claim is a worker's slot for one task. ``carry_out`` runs as a task of its own, and passes through these steps::

    lock         enter ATTEMPT, unless the claim is stale or the task was cancelled or is over
    take         record that the worker works on the task and that the job runs
    attempt      workspace, session, claim of the task, prompt, outcome        <- may be interrupted
    decide       wait for processes of the turn; completion checks; charge the failure, or complete the work
    lock         leave ATTEMPT; carry out an interruption requested meanwhile; start the delay

While an attempt is under way, ``ActiveClaim.interrupt`` cancels it. After the turn has ended, the decision is shielded
from interruptions (``decided`` is not set) until it is finished: a decision takes time (for a checkpoint, for the reply
of a plug-in), and is recorded of run, job and task together. Commands about the task wait for ``decided``, except a
cancel; while the work is being checked, such commands are refused.

Each failure is charged once: a failure before the agent was ready to the session, which launches the agent again by
itself; a later failure to the run, whose table decides about another attempt (``PlanRun.decide``). A session that
has given up, or was lost, makes no further attempt; the task itself may be claimed anew.

Example: the agent of ``a`` fails, and the run may retry in 10 s. The run goes FAILED, RETRYING; the job RETRYING; the
claim is released, and the entity of the task starts its timer. After 10 s ``end_delay`` records that the job is QUEUED
again, and offers the task to any worker.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles import job, task_run
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Blocked, Claimed, Requeued, Started, Task, TaskEvent, Unclaimed
from supervisor.lifecycles.task_cascade import AttemptBegun, Circumstances, DelayEnded, TakenAway, WorkersLost
from supervisor.lifecycles.task_run import ErrorCategory, TaskRun, probes_left
from supervisor.lifecycles.types import OWN_ABORTS, AbortReason, Exit, TransitionReason, Verdict
from supervisor.plans.completion_checks import missing
from supervisor.policies.error_classification import classify
from supervisor.ports import JournalError, Outcome
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Degraded, NoSuchEntity, Refused
from supervisor.sessions.handle import Session
from supervisor.sessions.journal_state import own_abort_of
from supervisor.sessions.live_session import LiveSession
from supervisor.work import authorization, plugin_policies
from supervisor.work.budgeting import patience_of, scope_of
from supervisor.work.checkpoints import left_at, next_workspace, prepare_workspace
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.empty_attempt import find_empty
from supervisor.work.leases import Claim
from supervisor.work.plan_run import STOPPING, PlanRun, TaskReleased
from supervisor.work.settling import settle_turn
from supervisor.work.task_execution import ActiveClaim, CancelReason, Interruption, Phase, TaskExecution

_log = get_logger()

DELAY_ENDED: Final = DelayEnded()

LOSSES_MAX: Final = 3
"""Number of workers that may be lost while they have the same job; with the last one its task has failed. (A worker
that is lost again and again would start a healthy task anew without end.)"""

WORKED_ON = frozenset({Job.QUEUED, Job.RUNNING, Job.RETRYING})
"""States of a job that a worker works on, or that waits for a worker."""


class AttemptRunner:
    """Carries out claims, each in an asynchronous task of the plan run's task group."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline) -> None:
        self._plan_run, self._pipeline = plan_run, pipeline
        self._sup = plan_run.sup

    async def carry_out(self, execution: TaskExecution, claim: Claim) -> None:
        """Carry out a claim until the task is settled, waits, or is taken away from the worker."""
        async with self._plan_run.moving(execution):  # a cancel either came first, or finds the claim active
            if not await self._may_begin(execution, claim):
                self._plan_run.note_withdrawn(execution)
                return
            follows = execution.phase is Phase.FOLLOWED
            active = execution.begin_claim(claim)
        try:
            with active.scope:
                await self._make_attempts(execution, claim, active, follows)
            self._plan_run.note_withdrawn(execution)  # without effect where an attempt has ended: that says more
            async with self._plan_run.moving(execution):
                execution.end_claim()
                if active.interruption is not None:
                    await self.take_away(execution, active.interruption)
                    active.interruption.done.set()  # whoever asked is answered before the task is cancelled
                if execution.cancel_reason:
                    await self._pipeline.cancel(execution, execution.cancel_reason)
        finally:  # also where the plan is given up
            active.release()
        self._plan_run.wake()
        if execution.state in (Task.WAITING_FOR_SUBTASKS, Task.BLOCKED):
            self._plan_run.publish(TaskReleased(execution))

    async def _may_begin(self, execution: TaskExecution, claim: Claim) -> bool:
        """Return whether the claim is to be carried out; if not, release its slot."""
        holder = self._plan_run.backlog.holder(execution.id)
        if holder != claim:  # taken away, or its worker was lost, before this
            # If the same worker holds the task by another claim, the slot is that of the other claim.
            if holder is None or holder.worker_id != claim.worker_id:
                await self._plan_run.worker_pool.done(claim.worker_id, execution.name, execution.cause)
                self._plan_run.wake()
            return False
        # The task is BLOCKED here if one of its subtasks did not end in time just now.
        if execution.cancel_reason or execution.is_over or execution.state is Task.BLOCKED:
            execution.claim = claim
            await self._plan_run.give_back(execution)
            return False
        return True

    async def _make_attempts(self, execution: TaskExecution, claim: Claim, active: ActiveClaim, follows: bool) -> None:
        try:
            needs = execution.job_data.capabilities
            started = job.WorkerStarted(worker_id=claim.worker_id, capabilities=needs, token=claim.token)
            with self._plan_run.together():
                # First the worker, then the job: while a job runs, its worker is busy.
                self._plan_run.worker_pool.assign(claim.worker_id, execution.name, execution.cause, needs)
                execution.record(started)
                self._plan_run.workstream.record_begun(execution)
            await execution.recorded()
            if not execution.cancel_reason:
                await self._attempt(execution, active, follows)
        except Refused as refusal:
            if not (execution.cancel_reason or execution.is_over):
                raise
            _log.info("a claim has come to its end", task=execution.name, why=str(refusal))

    async def _attempt(self, execution: TaskExecution, active: ActiveClaim, follows: bool) -> None:
        """Make one attempt, or follow the attempt that an earlier supervisor began."""
        if follows:
            await self._decide(execution, active, await self._follow(execution))
        elif execution.state is not Task.WAITING_FOR_SUBTASKS:
            try:
                begun = await self._begin(execution, active)
            except Refused as refusal:
                with anyio.CancelScope(shield=True):  # an interruption would leave the task cancelled and unsettled
                    await self._pipeline.cancel(execution, CancelReason(str(refusal)))
                return
            if begun:
                await self._decide(execution, active, await self._ask(execution))
            else:
                await self._pipeline.leave_to_subtasks(execution)
        elif all(subtask.is_met for subtask in execution.subtasks):
            await self._begin_decision(execution, active)
            with anyio.CancelScope(shield=True):
                await self._pipeline.integrate(execution)
        else:  # it was split while it cooled down, or as it was to be tried again
            await self._pipeline.leave_to_subtasks(execution)

    async def _begin_decision(self, execution: TaskExecution, active: ActiveClaim) -> None:
        """Make commands about the task wait from now on. A split or block that holds the lock now is finished first."""
        async with self._plan_run.moving(execution):
            active.decided = OneShotEvent()

    # ------------------------------------------------------------------ an attempt
    async def _begin(self, execution: TaskExecution, active: ActiveClaim) -> bool:
        """Start a session for the task unless one lives, and record that the run is in progress. Return false if the
        task was split before a session was started.

        Raises:
            Refused: the supervisor begins no work any more.
        """
        try:
            await prepare_workspace(self._sup, execution)
        except Refused as refusal:
            if self._sup.verification.in_place:
                raise
            _log.warning("a worktree could not be taken back", task=execution.name, why=str(refusal))
            await self._pipeline.leave_workspace(execution)  # the next session has another worktree
        if not self._plan_run.lives(execution.session_id):
            if execution.state is not Task.OPEN:
                # A split would find no session that holds the task.
                await self._begin_decision(execution, active)
            if execution.state is Task.WAITING_FOR_SUBTASKS:
                return False
            await self._begin_session(execution)
            active.decided.set()
        else:
            await self._plan_run.advance(execution, AttemptBegun())
        self._plan_run.note_launched(execution)
        return True

    async def _begin_session(self, execution: TaskExecution) -> None:
        """Start a session, and record that it claims the task, and that the run is in progress."""
        try:
            if execution.state is Task.OPEN:
                authorization.admit(self._plan_run, execution)
            session = await self._start_session(execution)
        except Refused as refusal:
            if execution.run is TaskRun.HALF_OPEN:
                await self._plan_run.advance(execution, task_run.ProbeFailed(error=str(refusal)))
            raise
        execution.session_id = session.id
        self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
        claimed = Claimed(by=execution.session_id, reason=f"agent {execution.agent}")
        try:
            await self._plan_run.advance(execution, claimed)
        except Refused as refusal:  # it was cancelled meanwhile
            await self._sup.close_session(execution.session_id, reason=str(refusal), cause=execution.cause)
            raise

    async def _start_session(self, execution: TaskExecution) -> Session:
        """Start the task's session. While the disk is down, wait for the disk: the plan loses only time."""
        while True:
            await self._sup.recovered()
            with suppress(Degraded):  # the disk went down again in between
                within, patience = scope_of(self._plan_run, execution), patience_of(execution.task)
                place = next_workspace(self._sup, self._plan_run.plan.task_lifecycle, execution)
                if place.kept and execution.session_id:  # the former session has ended, and nobody cancelled it
                    await self._sup.cleanup.clean_up(execution.session_id, left_at(execution))
                with anyio.CancelScope(shield=True):  # a session that exists must be known here
                    return await self._sup.start_session(
                        execution.name,
                        agent=execution.agent,
                        cause=execution.cause,
                        within=within,
                        patience=patience,
                        workspace_spec=place,
                        plan_run=self._plan_run.workstream.id,
                    )

    async def _ask(self, execution: TaskExecution) -> Outcome:
        """Prompt the session of the task, and return the outcome of the turn."""
        async with anyio.create_task_group() as group:
            if execution.state is Task.CLAIMED:
                group.start_soon(self._note_start, execution)
            outcome = await self._prompt(execution)
            group.cancel_scope.cancel()
        execution.seq = outcome.seq or execution.seq
        return outcome

    async def _prompt(self, execution: TaskExecution) -> Outcome:
        prompt, reason = execution.task.prompt, execution.retry_reason
        limit, session = self._plan_run.time_limit(execution), self._sup.registry.sessions.get(execution.session_id)
        try:
            outcome = await self._sup.outcome_of(
                execution.session_id, prompt, execution.cause, once=True, limit=limit, reason=reason
            )
            return _with_own_abort(outcome, session)
        except (NoSuchEntity, Refused) as error:
            return Outcome("aborted", str(error), "")

    async def _follow(self, execution: TaskExecution) -> Outcome:
        """Return the outcome of the turn that was begun under an earlier supervisor. If the prompt of that turn is not
        in the journal, prompt now."""
        async with anyio.create_task_group() as group:
            if execution.state is Task.CLAIMED:
                group.start_soon(self._note_start, execution)
            session = self._sup.registry.sessions.get(execution.session_id)
            found = await self._sup.last_outcome(execution.session_id, once=True)
            if found is None and (told := self._sup.recovered_work.answers.get(execution.session_id)) is not None:
                found = Outcome(told.outcome, told.error, "", told.seq)
            if found is not None and found.seq is not None and found.seq < await execution.began_seq():
                found = None  # the outcome of the attempt before, which has been judged
            outcome = _with_own_abort(found, session) if found is not None else await self._prompt(execution)
            group.cancel_scope.cancel()
        ended_before = session is None and outcome.outcome == "aborted"
        if ended_before and (reason := await own_abort_of(self._sup.journal, execution.session_id)):
            outcome = as_failed(outcome, reason)
        execution.seq = outcome.seq or execution.seq
        return outcome

    async def _note_start(self, execution: TaskExecution) -> None:
        """Record that the task is in progress, once its agent has received the first prompt."""
        session = self._sup.registry.sessions.get(execution.session_id)
        if session is not None:
            await session.first_prompt_sent.wait()
            execution.seq = session.cause_seq
            with suppress(Refused):  # it was split just now
                execution.record(Started(reason="its agent is ready"))

    # ------------------------------------------------------------------ the decision
    async def _decide(self, execution: TaskExecution, active: ActiveClaim, outcome: Outcome) -> None:
        """Decide, shielded from interruptions, what follows an attempt."""
        await self._begin_decision(execution, active)
        execution.output = outcome.text
        with anyio.CancelScope(shield=True):
            await self._judge(execution, outcome)

    async def _judge(self, execution: TaskExecution, outcome: Outcome) -> None:
        """Complete the work, or charge the failure."""
        if outcome.outcome == "completed":
            await settle_turn(self._sup, execution)
            session = self._sup.registry.sessions.get(execution.session_id)
            if (
                execution.cancel_reason or session is None or session.is_terminating
            ):  # a person ended it while it settled
                why = execution.cancel_reason or CancelReason("its session was ended before its work was judged")
                outcome = outcome._replace(outcome="aborted", error=why.text)
        if outcome.outcome == "completed" and (absent := await self._find_missing(execution, outcome)):
            outcome = outcome._replace(outcome="failed", error=f"not complete: {absent}")
        if outcome.outcome == "completed" and (empty := await find_empty(self._sup, execution, outcome)):
            outcome = outcome._replace(outcome="failed", error=empty)
        # A task that was split meanwhile leaves the rest to its subtasks, however its own turn ended.
        split = execution.state is Task.WAITING_FOR_SUBTASKS and outcome.outcome != "aborted"
        if outcome.outcome == "completed" or split:
            self._plan_run.note_ended(execution, None)
            await self._pipeline.complete(execution)
        elif outcome.outcome == "aborted":
            self._plan_run.note_withdrawn(execution)
            why = execution.cancel_reason or CancelReason(outcome.error)  # somebody has ended its session
            await self._pipeline.cancel(execution, why._replace(text=outcome.error))
        else:
            await self._plan_next(execution, outcome, await self.failure_of(execution, outcome))

    async def _find_missing(self, execution: TaskExecution, outcome: Outcome) -> str:
        """Return a text with the completion signals that are absent; ``""`` if none is."""
        session = self._sup.registry.sessions.get(execution.session_id)
        wanted = [one.value() for one in execution.task.completion]
        if wanted and session is not None:
            return await missing(wanted, session.directory, outcome.text)
        return ""

    async def failure_of(
        self, execution: TaskExecution, outcome: Outcome
    ) -> task_run.ExecutionFailed | task_run.ExecutionTimedOut:
        """Return the event of the run that describes the failure of the attempt, classified with the help of
        plug-ins."""
        how = outcome.how
        failure = classify(
            outcome.error,
            abort_reason=how.abort_reason if how is not None else None,
            transition_reason=how.transition_reason if how is not None else None,
            exit_status=how.status if how is not None else None,
            model=how.model if how is not None else None,
        )
        if how is None or how.model is None:  # a text alone may be a test's output about statuses and limits
            failure = failure._replace(provider=False)
        # A session that has given up has had all its tries. One whose agent hung, or repeated itself, is followed by
        # another one.
        is_ended = how is not None and how.abort_reason in OWN_ABORTS
        if not (self._plan_run.lives(execution.session_id) or is_ended or failure.passes):
            failure = failure._replace(category=ErrorCategory.PERMANENT)
        failure = await plugin_policies.reclassify_failure(self._plan_run, execution, failure, outcome.error)
        self._plan_run.note_ended(execution, failure)
        if _is_timed_out(outcome) and failure.category is not ErrorCategory.PERMANENT:
            return task_run.ExecutionTimedOut(error=outcome.error, signature=failure.signature)
        error, signature, data = outcome.error, failure.signature, execution.run_data
        if not failure.passes:
            return task_run.ExecutionFailed(error=error, signature=signature, category=failure.category)
        waited_s = 0.0 if data.provider_since is None else self._plan_run.now() - data.provider_since
        if waited_s < data.provider_patience_s:
            return task_run.ExecutionFailed(
                error=error,
                signature=signature,
                category=failure.category,
                charged=False,
                provider=True,
                wait_s=failure.wait_s,
            )
        error = f"{error} (the provider has failed for {waited_s:.0f} s; provider_patience_s is over)"
        return task_run.ExecutionFailed(error=error, signature=signature, category=ErrorCategory.PERMANENT)

    async def _plan_next(
        self, execution: TaskExecution, outcome: Outcome, failed: task_run.ExecutionFailed | task_run.ExecutionTimedOut
    ) -> None:
        """Decide about the run that ends with the event *failed*: another attempt after a delay, or none."""
        model = outcome.how.model if outcome.how is not None else None
        no_retry = f"the model of its agent has had its tries ({model.problem})" if model and model.final else ""
        given = Circumstances(verdict=outcome.how, no_retry=no_retry)
        await self._plan_run.advance(execution, failed, given=given)
        if execution.state is Task.FAILED:
            await self._pipeline.continue_failed(execution)
            return
        if execution.run is TaskRun.CIRCUIT_OPEN:
            probe_in_s, why = execution.run_data.cooldown_s, failed.error
            _log.warning("a task waits for its last try", task=execution.name, reason=why, probe_in_s=probe_in_s)
        await self._plan_run.take_back_failed(execution)
        await self._plan_run.give_back(execution)

    # ------------------------------------------------------------------ delays
    async def end_delay(self, execution: TaskExecution) -> None:
        """Offer the task to the workers, since its delay is over; or end the task, if the supervisor is ending, or if
        the probe that the task waited for cannot be paid."""
        async with self._plan_run.moving(execution):
            if execution.is_over or execution.cancel_reason or not execution.entity.is_due:
                return  # it was reset, cancelled or blocked meanwhile
            if self._sup.stopping.is_set():
                await self._pipeline.cancel(execution, CancelReason(STOPPING))
            elif execution.run is not TaskRun.CIRCUIT_OPEN:
                await self.try_now(execution)
            elif not probes_left(execution.run_data, task_run.CooldownExpired()):
                # The last probe was taken away, and is charged to nobody: another run takes its place.
                taken = job.UserCancelled(reason="its last probe was taken away")
                await self._plan_run.open_again(execution, taken)
                self._release(execution)
            elif why := self._plan_run.spend_retry():
                await self._pipeline.give_up(execution, why)
            else:
                await self.try_now(execution)

    async def try_now(self, execution: TaskExecution, lead: Event = DELAY_ENDED) -> None:
        """Record *lead*, with which the task need not wait any more, and offer the task to the workers unless the task
        is blocked. The caller holds the lock of the task."""
        given = Circumstances(completed_jobs=self._plan_run.completed_jobs(execution.task.depends_on))
        await self._plan_run.advance(execution, lead, given=given)
        if execution.state is not Task.BLOCKED:
            self._release(execution)

    def _release(self, execution: TaskExecution) -> None:
        """Offer a task whose delay is over to the workers; a task that was split meanwhile goes on waiting for its
        subtasks."""
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            self._plan_run.publish(TaskReleased(execution))
        else:
            self._plan_run.offer(execution)

    # ------------------------------------------------------------------ taken away
    async def take(self, execution: TaskExecution, why: str, blocked_on: tuple[str, ...] = ()) -> Interruption:
        """Take the task away from its worker: for another worker, or until everything that it is *blocked_on* is
        available. The caller holds the lock of the task, and waits for ``done`` of the result after it has released the
        lock."""
        if execution.active is not None:
            return execution.active.interrupt(why, blocked_on)
        if execution.claim is None:
            self._plan_run.backlog.revoke(execution.id)
        interruption = Interruption(why, blocked_on)
        await self.take_away(execution, interruption)
        interruption.done.set()
        return interruption

    async def take_away(self, execution: TaskExecution, interruption: Interruption) -> None:
        """End the session of the task, and make the task wait for another worker or for the things that it is blocked
        on. The caller holds the lock of the task, and no attempt runner works on the task any more."""
        why, lost = interruption.why, interruption.lost
        if execution.is_checked or execution.is_done:
            return  # the attempt had ended before that
        self._plan_run.hold(execution)  # nobody claims it meanwhile, also if its worker is lost just now
        self._plan_run.note_withdrawn(execution)
        with suppress(NoSuchEntity, Refused, JournalError):
            if execution.session_lives:
                await self._sup.close_session(execution.session_id, reason=why, cause=execution.cause)
        held = execution.state in (Task.CLAIMED, Task.IN_PROGRESS) and execution.job is Job.RUNNING
        if lost and held and execution.job_data.losses + 1 >= LOSSES_MAX:
            await self._fail_lost(execution)
            return
        recovered = TransitionReason.ORPHAN_RECOVERED if lost else None
        event: TaskEvent | None = None
        match execution.state:
            case Task.CLAIMED | Task.IN_PROGRESS if interruption.blocked_on and not lost:
                event = Blocked(on=interruption.blocked_on, reason=why)
            case Task.CLAIMED:
                event = Unclaimed(reason=why, transition_reason=recovered)
            case Task.IN_PROGRESS:
                event = Requeued(reason=why, transition_reason=recovered)
        if event is not None or execution.job in WORKED_ON:
            await self.put_back(execution, event or TakenAway(reason=why), lost=lost)
            interruption.event = event
            if execution.job in WORKED_ON and not isinstance(interruption.event, Blocked):
                self._plan_run.offer(execution)
        else:  # it is being checked, or its subtasks or a person have it: a record was just made that says so
            await self._plan_run.give_back(execution)
        self._plan_run.wake()

    async def _fail_lost(self, execution: TaskExecution) -> None:
        """Fail a task of which too many workers were lost."""
        error = f"its worker was lost {LOSSES_MAX} times, each time without heartbeats (workers.*.heartbeat_s, check_s)"
        await self._pipeline.fail(execution, WorkersLost(reason=error))
        self._plan_run.wake()

    async def put_back(self, execution: TaskExecution, lead: TaskEvent | TakenAway, *, lost: bool = False) -> None:
        """Record *lead*: nobody carries the task out, and run and job wait, without being charged a failure. *lost*:
        its worker sent no heartbeats."""
        if execution.phase is Phase.FOLLOWED:
            execution.phase = Phase.IDLE
        works = execution.run is TaskRun.IN_PROGRESS
        await self._plan_run.advance(execution, lead, given=Circumstances(is_silent=lost))
        if works:
            await self._plan_run.take_back_failed(execution)
        await self._plan_run.give_back(execution)


def _with_own_abort(outcome: Outcome, session: LiveSession | None) -> Outcome:
    """Return *outcome*, changed to failed if the monitor ended the session by a limit: the agent was silent, went round
    in a circle, or used up a budget. Nobody requested the end of the task."""
    asked = session.stop_request if session is not None else None
    if outcome.outcome != "aborted" or asked is None or asked.abort_reason not in OWN_ABORTS or asked.later:
        return outcome
    return as_failed(outcome, AbortReason(asked.abort_reason))


def as_failed(outcome: Outcome, reason: AbortReason) -> Outcome:
    """Return *outcome*, changed to an attempt that failed because the runtime ended its session for *reason*."""
    exit_ = Exit.TIMEOUT if reason is AbortReason.TIMEOUT else Exit.ERROR
    return outcome._replace(outcome="failed", how=Verdict(exit=exit_, error=outcome.error, abort_reason=reason))


def _is_timed_out(outcome: Outcome) -> bool:
    return outcome.how is not None and outcome.how.exit is Exit.TIMEOUT
