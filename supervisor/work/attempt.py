"""Make one attempt at a task: a session, a prompt, and the outcome as an event.

Theory of operation
-------------------
An attempt is two effects, which follow from the states of the task (``task_cascade.pending_effect``)::

    start   a worker has the task:    workspace, session, claim of the task     task CLAIMED, run IN_PROGRESS
    make    the run is IN_PROGRESS:   prompt, outcome of the turn, processes    run VALIDATING, or RETRYING, or
                                      of the turn, completion signals,          CIRCUIT_OPEN, with job and task
                                      classification of a failure

Each ends with one event, in one append. Whoever moves the task meanwhile (a command, the loss of the worker, the end of
the session by a person) does so at once: the effect is stopped, and its outcome comes too late (``PlanRun.report``). So
no command waits for an attempt, and nothing is decided twice. The slot and the session are put away afterwards
(``CompletionPipeline.put_away``).

Each failure is charged once: a failure before the agent was ready to the session, which launches the agent again by
itself; a later failure to the run, whose table decides about another attempt (``PlanRun.record``). A session that has
given up, or was lost, makes no further attempt; the task itself may be claimed anew.

After a takeover the session may be at work: its job waits for a worker, and ``make`` then follows the turn that an
earlier supervisor began.

Example: the agent of ``a`` fails, and the run may retry in 10 s. The run goes FAILED, RETRYING; the job RETRYING; the
slot is free, and the entity of the task starts its timer. After 10 s the job is QUEUED again, for any worker.
"""

from __future__ import annotations

from contextlib import suppress

import anyio
import msgspec

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles import task_run
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.task import Claimed, Started, Task
from supervisor.lifecycles.task_cascade import AttemptBegun, Circumstances
from supervisor.lifecycles.task_run import ErrorCategory, TaskRun
from supervisor.lifecycles.types import OWN_ABORTS, SUPERVISOR_ENDED, AbortReason, Exit, NoSuchEntity, Verdict
from supervisor.plans.completion_checks import missing
from supervisor.policies.error_classification import classify
from supervisor.ports import Outcome
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Degraded, Refused
from supervisor.sessions.journal_state import own_abort_of
from supervisor.sessions.live_session import LiveSession
from supervisor.work import authorization, plugin_policies
from supervisor.work.budgeting import patience_of, scope_of
from supervisor.work.checkpoints import left_at, next_workspace, prepare_workspace
from supervisor.work.completion_pipeline import ENDED_BY, CompletionPipeline
from supervisor.work.empty_attempt import find_empty
from supervisor.work.plan_run import PlanRun
from supervisor.work.settling import note_outside_changes, settle_turn
from supervisor.work.task_execution import CancelReason, TaskExecution

_log = get_logger()


class Attempts:
    """Makes the attempts at the tasks of a plan run."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline) -> None:
        self._plan_run, self._pipeline = plan_run, pipeline
        self._sup = plan_run.sup

    # ------------------------------------------------------------------ start
    async def start(self, execution: TaskExecution) -> None:
        """Perform the effect ``StartAttempt``: start a session for the task unless one lives, and record that the run
        is in progress; cancel the task if the supervisor begins no work any more."""
        try:
            await self._prepare(execution)
            if self._plan_run.lives(execution.session_id):
                await self._plan_run.report(execution, AttemptBegun())
            else:
                await self._claim(execution)
        except Refused as refusal:
            probe = [task_run.ProbeFailed(error=str(refusal))] if execution.run is TaskRun.HALF_OPEN else []
            await self._pipeline.cancel(execution, CancelReason(str(refusal)), *probe, effect=execution.entity.running)
            return
        self._plan_run.note_launched(execution)

    async def _prepare(self, execution: TaskExecution) -> None:
        try:
            await prepare_workspace(self._sup, execution)
        except Refused as refusal:
            if self._sup.verification.in_place:
                raise
            _log.warning("a worktree could not be taken back", task=execution.name, why=str(refusal))
            await self._pipeline.leave_workspace(execution)  # the next session has another worktree

    async def _claim(self, execution: TaskExecution) -> None:
        """Start a session, and record that the session claims the task, and that the run is in progress."""
        if execution.state is Task.OPEN:
            authorization.admit(self._plan_run, execution)
        session_id = await self._start_session(execution)
        if execution.is_stopped:
            await self._sup.aborts.close_session(
                session_id, reason="its task goes on without it", cause=execution.cause
            )
            return
        execution.session_id = session_id
        if (why := await aborted_for(self._sup, session_id)) is not None:  # before it could hold the task
            await self._pipeline.cancel(execution, CancelReason(why), effect=execution.entity.running)
            return
        self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
        await self._plan_run.report(execution, Claimed(by=session_id, reason=f"agent {execution.agent}"))

    async def _start_session(self, execution: TaskExecution) -> str:
        """Start the task's session, and return its id. While the disk is down, wait for the disk: the plan loses only
        time."""
        while True:
            await self._sup.shutdown.wait_writable()
            with suppress(Degraded):  # the disk went down again in between
                within, patience = scope_of(self._plan_run, execution), patience_of(execution.task)
                place = next_workspace(self._sup, self._plan_run.plan.task_lifecycle, execution)
                if place.kept and execution.session_id:  # the former session has ended, and nobody cancelled it
                    await self._sup.cleanup.clean_up(execution.session_id, left_at(execution))
                with anyio.CancelScope(shield=True):  # a session that exists must be known here
                    return await self._sup.session_factory.start(
                        execution.name,
                        agent=execution.agent,
                        cause=execution.cause,
                        within=within,
                        patience=patience,
                        workspace_spec=place,
                        plan_run=self._plan_run.workstream.id,
                    )

    # ------------------------------------------------------------------ make
    async def make(self, execution: TaskExecution) -> None:
        """Perform the effect ``MakeAttempt``: prompt the session of the task, or follow the turn that was begun under
        an earlier supervisor, and record the outcome."""
        if execution.state is Task.WAITING_FOR_SUBTASKS and not execution.session_lives:
            # Its own turn was lost with its supervisor: the rest of the work is done by its subtasks.
            await self._plan_run.report(execution, task_run.ExecutionCompleted())
            return
        outcome = await self._outcome(execution)
        kept_by, execution.output = execution.data.kept_by, outcome.text
        if not kept_by:  # else what follows has the command as its cause
            execution.seq = outcome.seq or execution.seq
        elif outcome.outcome == "failed" and self._plan_run.lives(execution.session_id):
            outcome = outcome._replace(outcome="completed")  # what is done is to be checked, however the turn ended
        if outcome.outcome == "completed":
            await settle_turn(self._sup, execution)
            session = self._sup.registry.sessions.get(execution.session_id)
            if session is None or session.is_terminating:
                outcome = outcome._replace(outcome="aborted", error="its session was ended before its work was judged")
            elif not kept_by and (error := await self._find_undone(execution, outcome)):
                outcome = outcome._replace(outcome="failed", error=error)
        await note_outside_changes(self._sup, execution)
        # A task that was split meanwhile leaves the rest to its subtasks, however its own turn ended.
        is_split = execution.state is Task.WAITING_FOR_SUBTASKS and outcome.outcome != "aborted"
        if outcome.outcome == "completed" or is_split:
            self._plan_run.note_ended(execution, None)
            await self._plan_run.report(execution, task_run.ExecutionCompleted(turn=self._turn_of(execution)))
        elif outcome.outcome == "aborted":
            why = CancelReason(outcome.error)  # somebody has ended its session
            await self._pipeline.cancel(execution, why, effect=execution.entity.running)
        else:
            failed = await self.failure_of(execution, outcome)
            if isinstance(failed, task_run.ExecutionFailed):
                failed = msgspec.structs.replace(failed, turn=self._turn_of(execution))
            model = outcome.how.model if outcome.how is not None else None
            no_retry = f"the model of its agent has had its tries ({model.problem})" if model and model.final else ""
            no_retry = ENDED_BY.format(kept_by) if kept_by else no_retry
            given = Circumstances(verdict=outcome.how, no_retry=no_retry)
            await self._plan_run.report(execution, failed, given=given)

    def _turn_of(self, execution: TaskExecution) -> str:
        """Return the turn that waits for the verdict on its work; ``""`` if there is none."""
        session = self._sup.registry.sessions.get(execution.session_id)
        return session.data.verifying if session is not None else ""

    async def _outcome(self, execution: TaskExecution) -> Outcome:
        """Return the outcome of the attempt, and meanwhile record that the task is in progress once its agent has
        received the first prompt."""
        async with anyio.create_task_group() as group:
            if execution.state is Task.CLAIMED:
                group.start_soon(self._note_start, execution)
            outcome = await (self._follow if execution.is_followed else self._prompt)(execution)
            group.cancel_scope.cancel()
        return outcome

    async def _note_start(self, execution: TaskExecution) -> None:
        session = self._sup.registry.sessions.get(execution.session_id)
        if session is not None:
            await session.first_prompt_sent.wait()
            if execution.state is Task.CLAIMED:  # it was not split just now
                execution.seq = session.cause_seq
                self._plan_run.record(execution, Started(reason="its agent is ready"))

    async def _prompt(self, execution: TaskExecution) -> Outcome:
        prompt, reason = execution.task.prompt, execution.retry_reason
        limit, session = self._plan_run.time_limit(execution), self._sup.registry.sessions.get(execution.session_id)
        try:
            outcome = await self._sup.requests.outcome_of(
                execution.session_id, prompt, execution.cause, once=True, limit=limit, reason=reason
            )
            return _with_own_abort(outcome, session)
        except (NoSuchEntity, Refused) as error:
            return Outcome("aborted", str(error), "")

    async def _follow(self, execution: TaskExecution) -> Outcome:
        """Return the outcome of the turn that was begun under an earlier supervisor. If the prompt of that turn is not
        in the journal, prompt now."""
        session = self._sup.registry.sessions.get(execution.session_id)
        found = await self._sup.requests.last_outcome(execution.session_id, once=True)
        if found is None and (told := self._sup.recovered_work.answers.get(execution.session_id)) is not None:
            found = Outcome(told.outcome, told.error, "", told.seq)
        if found is not None and found.seq is not None and found.seq < await execution.began_seq():
            found = None  # the outcome of the attempt before, which has been judged
        outcome = _with_own_abort(found, session) if found is not None else await self._prompt(execution)
        ended_before = session is None and outcome.outcome == "aborted"
        if ended_before and (reason := await own_abort_of(self._sup.journal, execution.session_id)):
            outcome = as_failed(outcome, reason)
        return outcome

    async def _find_undone(self, execution: TaskExecution, outcome: Outcome) -> str:
        """Return the reason why an attempt that has ended well counts as failed: completion signals are absent, or
        nothing was done; ``""`` if it does not."""
        session = self._sup.registry.sessions.get(execution.session_id)
        wanted = [one.value() for one in execution.task.completion]
        if wanted and session is not None and (absent := await missing(wanted, session.directory, outcome.text)):
            return f"not complete: {absent}"
        return await find_empty(self._sup, execution, outcome)

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
        if how is not None and how.exit is Exit.TIMEOUT and failure.category is not ErrorCategory.PERMANENT:
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


async def aborted_for(sup: SupervisorCore, session_id: str) -> str | None:
    """Return the reason for which a person or the host has ended a session on purpose, while no task was attached to
    the session; ``None`` if nobody has."""
    session = sup.registry.sessions.get(session_id)
    asked = session.stop_request if session is not None else None
    if asked is not None and asked.abort_id is not None and asked.abort_reason not in OWN_ABORTS:
        return asked.reason
    if session is not None and asked is None:
        return None
    data = await last_data_of(sup, session_id)
    if data is None or data.outcome != "aborted" or data.last_error == SUPERVISOR_ENDED:
        return None
    return None if await own_abort_of(sup.journal, session_id) is not None else data.last_error


async def last_data_of(sup: SupervisorCore, session_id: str) -> SessionData | None:
    """Return the data of a session as the journal has them now; ``None`` if it is not there. The session may have ended
    under this supervisor, or under an earlier one."""
    await sup.journal_writer.flush()
    rows = await sup.journal.entities(ids=[session_id]) if session_id else []
    row = rows[0] if rows else sup.recovered_work.rows.get(session_id)
    return msgspec.json.decode(row.data, type=SessionData) if row is not None else None
