"""Carries out a claim: a session and a prompt, attempt after attempt, until the run of the task is over or waits.

Each failure is charged once: before its agent was ready to the session, which launches it again by itself; after that
to the run, whose table decides about another attempt. A session that gave up, or was lost, has had all its tries: the
rest is the task's, which may be claimed anew.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from supervisor.host.supervision import Session
from supervisor.lifecycles import job, task_run
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Blocked, Claimed, Orphaned, Requeued, Started, Task, Unclaimed
from supervisor.lifecycles.task_run import ErrorCategory, TaskRun, probes_left
from supervisor.lifecycles.types import AbortReason, Exit, TransitionReason, Verdict
from supervisor.plans.completion_checks import ask_again, missing
from supervisor.policies.error_classification import Failure, classify
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger
from supervisor.recovery.journal_state import is_stalled
from supervisor.runtime.entity import Degraded, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession, NoSuchEntity, Outcome
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.work import authorization, plugin_policies
from supervisor.work.budgeting import patience_of, scope_of
from supervisor.work.checkpoints import begin, left_at, place_of
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.leases import Claim
from supervisor.work.plan_run import PlanRun
from supervisor.work.settling import settle_turn
from supervisor.work.task_execution import ACTOR, TaskExecution

__all__ = ["LOST", "AttemptRunner", "as_timed_out", "is_delayed"]

_log = get_logger()

LOST = "its worker was lost"
WORKED_ON = frozenset({Job.QUEUED, Job.RUNNING, Job.RETRYING})
"""A job in one of these has a worker, or waits for one."""


class AttemptRunner:
    """Carries out claims, one task of the group each."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline) -> None:
        self._plan_run, self._pipeline = plan_run, pipeline
        self._sup = plan_run.sup

    async def carry_out(self, execution: TaskExecution, claim: Claim) -> None:
        """See a claim through, until the task is settled, waits, or is taken away."""
        async with execution.lock:  # whoever cancels it has done so before this, or finds who carries it out
            if not await self._is_to_begin(execution, claim):
                self._plan_run.withdrawn(execution)
                return
            execution.claim, execution.taken_from, execution.blocked_on = claim, "", ()
            execution.let_go, execution.put_down = OneShotEvent(), OneShotEvent()
            execution.scope = anyio.CancelScope()
        try:
            with execution.scope:
                await self._see_through(execution, claim)
            self._plan_run.withdrawn(execution)  # unless its attempt has ended, which says more
            async with execution.lock:
                execution.scope, execution.deciding = None, False
                await self._put_down(execution)
        finally:  # also where its plan is given up: who waits for that hears of it
            execution.deciding = False
            execution.let_go.set()
        self._plan_run.wake()
        if execution.state in (Task.WAITING_FOR_SUBTASKS, Task.BLOCKED):
            self._plan_run.on_let_go(execution)

    async def _see_through(self, execution: TaskExecution, claim: Claim) -> None:
        try:
            await self._take(execution, claim)
            await self._attempts(execution)
        except Refused as refusal:
            if not (execution.unwanted or execution.is_over):
                raise
            _log.info("a claim has come to its end", task=execution.name, why=str(refusal))

    async def _is_to_begin(self, execution: TaskExecution, claim: Claim) -> bool:
        holder = self._plan_run.backlog.holder(execution.name)
        if holder != claim:  # taken away, or its worker was lost, before this
            if holder is None or holder.worker_id != claim.worker_id:  # else its slot is that of the next claim
                await self._plan_run.worker_pool.done(claim.worker_id, execution.name, execution.cause)
                self._plan_run.wake()  # that has a slot again
            return False
        if (
            execution.unwanted or execution.is_over or execution.state is Task.BLOCKED
        ):  # a subtask did not answer just now
            execution.claim = claim
            await self._plan_run.give_back(execution)
            return False
        return True

    async def _put_down(self, execution: TaskExecution) -> None:
        """Nobody carries it out any more."""
        if execution.taken_from:
            await self.take_away(execution)
            execution.put_down.set()  # who took it away hears of that before it is cancelled
        if execution.unwanted:
            await self._pipeline.cancelled(execution, execution.unwanted)

    async def _attempts(self, execution: TaskExecution) -> None:
        while not execution.unwanted and await self._attempt(execution):
            pass

    # ------------------------------------------------------------------ a claim
    async def _take(self, execution: TaskExecution, claim: Claim) -> None:
        started = job.WorkerStarted(
            worker_id=claim.worker_id, capabilities=execution.job_data.capabilities, token=claim.token
        )
        await self._plan_run.worker_pool.assign(
            claim.worker_id, execution.name, execution.cause, execution.job_data.capabilities
        )
        await execution.post_job(started)  # not before: while a job runs, its worker is busy
        await self._plan_run.workstream.begun(execution)

    async def _attempt(self, execution: TaskExecution) -> bool:
        """One attempt; ``True`` if the next one is due, in the same slot."""
        if execution.state is Task.WAITING_FOR_SUBTASKS and not execution.followed:
            if all(part.is_met for part in execution.parts):
                await self._integrate(execution)
            else:  # it was split while it cooled down, or as it was to be tried again
                await self._pipeline.leave_to_parts(execution)
            return False
        if execution.followed:
            execution.followed = False
            return await self._end_attempt(execution, await self._answer(execution))
        try:
            begun = await self._begin(execution)
        except Refused as refusal:
            await self._pipeline.cancelled(execution, str(refusal))
            return False
        return not begun or await self._end_attempt(execution, await self._ask(execution))

    async def _integrate(self, execution: TaskExecution) -> None:
        """What its subtasks made is looked at; what follows is decided to its end, whoever takes the task away or has
        it tried otherwise meanwhile."""
        await self._decide_from_now(execution)
        with anyio.CancelScope(shield=True):
            await self._pipeline.integrate(execution)

    @staticmethod
    async def _decide_from_now(execution: TaskExecution) -> None:
        """Until it is let go of, or kept for another attempt here, who commands it waits; who splits it just now, or
        blocks it, has done so first."""
        async with execution.lock:
            execution.deciding, execution.kept = True, OneShotEvent()

    @staticmethod
    def _keep(execution: TaskExecution) -> None:
        """It is decided, and its worker keeps it: who commands it goes on."""
        execution.deciding = False
        execution.kept.set()

    async def _begin(self, execution: TaskExecution) -> bool:
        """There is a session, and it is on record that it works on this; ``False``: it was split before it had one.

        Raises:
            Refused: nothing is begun any more.
        """
        await self._begin_place(execution)
        if not self._plan_run.lives(execution.session_id):
            if execution.state is not Task.OPEN:
                await self._decide_from_now(execution)  # who splits it meanwhile would find nobody that holds it
            if execution.state is Task.WAITING_FOR_SUBTASKS:
                return False
            await self._begin_session(execution)
            self._keep(execution)
        await execution.begin_run()
        self._plan_run.launched(execution)
        return True

    async def _begin_place(self, execution: TaskExecution) -> None:
        """Where a worktree cannot be taken back, it is left, and the next session has another one."""
        try:
            await begin(self._sup, execution)
        except Refused as refusal:
            if self._sup.janitor.in_place:
                raise
            _log.warning("a worktree could not be taken back", task=execution.name, why=str(refusal))
            await self._pipeline.leave(execution)

    async def _begin_session(self, execution: TaskExecution) -> None:
        try:
            if execution.state is Task.OPEN:
                authorization.admit(self._plan_run, execution)
            session = await self._start(execution)
        except Refused as refusal:
            if execution.run is TaskRun.HALF_OPEN:
                await execution.post_run(task_run.ProbeFailed(error=str(refusal)))
            raise
        execution.session_id, execution.absent = session.id, ""
        self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
        await self._let_go(execution)
        if execution.state is Task.OPEN:
            await self._claim(execution)

    async def _let_go(self, execution: TaskExecution) -> None:
        """Whoever had it has ended between two attempts: it is held by nobody, until the next one claims it."""
        match execution.state:
            case Task.CLAIMED:
                await execution.post(Unclaimed(reason="its session has ended"))
            case Task.IN_PROGRESS:
                await execution.post(Requeued(reason="its session has ended"))

    async def _claim(self, execution: TaskExecution) -> None:
        """Raises:
        Refused: it was cancelled meanwhile; its session is ended.
        """
        try:
            await execution.post(Claimed(by=execution.session_id, reason=f"agent {execution.agent}"))
        except Refused as refusal:
            await self._sup.close_session(execution.session_id, reason=str(refusal), cause=execution.cause)
            raise

    async def _start(self, execution: TaskExecution) -> Session:
        """The task's session. A disk that is down is waited for: a plan loses nothing by it but time."""
        while True:
            await self._sup.recovered()
            with suppress(Degraded):  # it went down again in between
                within, patience = scope_of(self._plan_run, execution), patience_of(execution)
                place = place_of(self._sup, self._plan_run.plan.task_lifecycle, execution)
                if place.kept and execution.session_id:  # whose session has ended, and nobody cancelled
                    await self._sup.janitor.put_away(execution.session_id, left_at(execution))
                with anyio.CancelScope(shield=True):  # a session that is there is known here
                    return await self._sup.start_session(
                        execution.name,
                        agent=execution.agent,
                        cause=execution.cause,
                        within=within,
                        patience=patience,
                        place=place,
                    )

    # ------------------------------------------------------------------ an attempt
    async def _ask(self, execution: TaskExecution) -> Outcome:
        """Have the session work on the prompt."""
        async with anyio.create_task_group() as group:
            if execution.state is Task.CLAIMED:
                group.start_soon(self._note_start, execution)
            outcome = await self._turn(execution)
            group.cancel_scope.cancel()
        execution.seq = outcome.seq or execution.seq
        return outcome

    async def _turn(self, execution: TaskExecution) -> Outcome:
        asked, prompt = self._sup.outcome_of, ask_again(execution.task.prompt, execution.absent)
        limit, work = self._plan_run.time_limit(execution), self._sup.registry.sessions.get(execution.session_id)
        try:
            return _judged(await asked(execution.session_id, prompt, execution.cause, once=True, limit=limit), work)
        except (NoSuchEntity, Refused) as error:
            return Outcome("aborted", str(error), "")

    async def _answer(self, execution: TaskExecution) -> Outcome:
        """How the prompt ends that an earlier supervisor asked."""
        async with anyio.create_task_group() as group:
            if execution.state is Task.CLAIMED:
                group.start_soon(self._note_start, execution)
            work = self._sup.registry.sessions.get(execution.session_id)
            outcome = await self._sup.last_outcome(execution.session_id, once=True) or self._answered_before(execution)
            if outcome is not None and outcome.seq is not None and outcome.seq < await self._began_seq(execution):
                outcome = None  # that was its last attempt's, which has been judged
            # where the prompt had not reached the journal, it is asked now
            said = _judged(outcome, work) if outcome is not None else await self._turn(execution)
            group.cancel_scope.cancel()
        if work is None and said.outcome == "aborted" and await is_stalled(self._sup.journal, execution.session_id):
            said = as_timed_out(said)  # it was ended before anybody followed it
        execution.seq = said.seq or execution.seq
        return said

    async def _began_seq(self, execution: TaskExecution) -> int:
        """With which record the attempt that is under way began."""
        records = await self._sup.journal.events(entity_id=execution.run_id)
        return max(
            (one.seq for one in records if one.to_status == TaskRun.IN_PROGRESS.value != one.from_status), default=0
        )

    def _answered_before(self, execution: TaskExecution) -> Outcome | None:
        answered = self._sup.inherited.answers.get(execution.session_id)
        return None if answered is None else Outcome(answered.outcome, answered.error, "", answered.seq)

    async def _note_start(self, execution: TaskExecution) -> None:
        work = self._sup.registry.sessions.get(execution.session_id)
        if work is not None:
            await work.first_prompt_sent.wait()
            started = Started(reason="its agent is ready")
            with suppress(Refused):  # it was split just now
                await self._sup.registry.post(execution.id, started, cause=Cause(work.cause_seq, None, ACTOR))

    async def _end_attempt(self, execution: TaskExecution, outcome: Outcome) -> bool:
        """What follows is decided to its end, whoever takes the task away meanwhile; ``True`` for another attempt."""
        await self._decide_from_now(execution)
        execution.said = outcome.text
        with anyio.CancelScope(shield=True):
            cools_down = await self._judge(execution, outcome)
        if not cools_down:
            return False
        self._keep(execution)
        return await self._cool_down_here(execution)

    async def _judge(self, execution: TaskExecution, outcome: Outcome) -> bool:
        """``True`` if it waits in its slot, for another attempt."""
        if outcome.outcome == "completed":
            await settle_turn(self._sup, execution)
            outcome = self._ended_meanwhile(execution, outcome)
        if outcome.outcome == "completed" and (absent := await self._absent(execution, outcome)):
            outcome = outcome._replace(outcome="failed", error=f"not complete: {absent}")
        split = execution.state is Task.WAITING_FOR_SUBTASKS and outcome.outcome != "aborted"  # the rest is theirs
        if outcome.outcome == "completed" or split:
            self._plan_run.ended(execution, None)
            await self._pipeline.completed(execution)
            return False
        if outcome.outcome == "aborted":
            self._plan_run.withdrawn(execution)
            await self._pipeline.cancelled(execution, outcome.error)
            return False
        return await self._failed(execution, outcome)

    def _ended_meanwhile(self, execution: TaskExecution, outcome: Outcome) -> Outcome:
        """Return *outcome*, as aborted if a person has ended the task or its session while the turn settled."""
        work = self._sup.registry.sessions.get(execution.session_id)
        if not execution.unwanted and work is not None and not work.is_terminating:
            return outcome
        why = execution.unwanted or "its session was ended before its work was judged"
        return outcome._replace(outcome="aborted", error=why)

    async def _absent(self, execution: TaskExecution, outcome: Outcome) -> str:
        """The completion signals that are missing, in words."""
        work, wanted = (
            self._sup.registry.sessions.get(execution.session_id),
            [one.value() for one in execution.task.completion],
        )
        if not wanted or work is None:
            return ""
        execution.absent = await missing(wanted, work.directory, outcome.text)
        return execution.absent

    # ------------------------------------------------------------------ failures
    async def _failed(self, execution: TaskExecution, outcome: Outcome) -> bool:
        await self.charge(execution, outcome)
        return await self._decide(execution, outcome.error, _spent(outcome))

    async def charge(self, execution: TaskExecution, outcome: Outcome) -> None:
        """Its attempt has failed: so has its run, which decides what follows."""
        failure = await plugin_policies.reclassify_failure(
            self._plan_run, execution, self._classified(execution, outcome), outcome.error
        )
        self._plan_run.ended(execution, failure)
        if _is_late(outcome) and failure.category is not ErrorCategory.PERMANENT:
            await execution.post_run(task_run.ExecutionTimedOut(error=outcome.error, signature=failure.signature))
        else:
            failed = task_run.ExecutionFailed(
                error=outcome.error, signature=failure.signature, category=failure.category
            )
            await execution.post_run(failed)

    def _classified(self, execution: TaskExecution, outcome: Outcome) -> Failure:
        """A session that has given up has had all its tries; one whose agent hung is followed by another one."""
        how = outcome.how
        failure = classify(
            outcome.error,
            abort_reason=how.abort_reason if how is not None else None,
            transition_reason=how.transition_reason if how is not None else None,
            exit_status=how.status if how is not None else None,
            model=how.model if how is not None else None,
        )
        if self._plan_run.lives(execution.session_id) or _is_late(outcome):
            return failure
        return failure._replace(category=ErrorCategory.PERMANENT)

    async def _decide(self, execution: TaskExecution, error: str, spent: str) -> bool:
        """What the run's table says: another attempt, now or later, or none; what is *spent* leaves no other attempt.
        ``True``: after a wait here."""
        await self._plan_run.decide(execution, spent=spent)
        if execution.run is TaskRun.CIRCUIT_OPEN:
            _log.error(
                "a task's circuit is open", task=execution.name, reason=error, settled=self._is_settled(execution)
            )
        if self._is_settled(execution):
            await execution.post_job(job.ExecutionFailed(error=error, final=True))
            await self._pipeline.failed(execution, error)
            return False
        if execution.job_data.retry_count < execution.job_data.max_retries:
            await execution.post_job(job.ExecutionFailed(error=error))
            await self._plan_run.give_back(execution)
            self._plan_run.start(self.wait, execution, _delay_s(execution))
            return False
        return True

    def _is_settled(self, execution: TaskExecution) -> bool:
        """No attempt and no probe is left, or nothing is begun any more."""
        if execution.run is not TaskRun.CIRCUIT_OPEN:
            return False
        return self._sup.stopping.is_set() or not probes_left(execution.run_data, task_run.CooldownExpired())

    async def _cool_down_here(self, execution: TaskExecution) -> bool:
        """Its job has no retry left to wait in: it keeps its worker until the circuit lets a probe through; or, where
        its run was reset and counts anew, until that may try again."""
        await self._plan_run.sleep(_delay_s(execution))
        if self._sup.stopping.is_set() and execution.state is Task.WAITING_FOR_SUBTASKS:  # it was split meanwhile
            await self._pipeline.given_up(execution, "the supervisor is ending")
            return False
        if self._sup.stopping.is_set():
            await self._pipeline.open_circuit(execution, "the supervisor is ending")
            await execution.post_job(job.ExecutionFailed(error=execution.run_data.last_error, final=True))
            if execution.run is TaskRun.PENDING:  # somebody reset it, and nobody begins it any more
                await execution.post_run(task_run.Cancelled(reason="the supervisor is ending"))
            await self._pipeline.failed(execution, execution.run_data.last_error)
            return False
        if execution.run is TaskRun.CIRCUIT_OPEN:  # it was not reset meanwhile
            await execution.post_run(task_run.CooldownExpired())
        return True

    async def try_now(self, execution: TaskExecution) -> None:
        """Do not wait for the delay that it waits for."""
        if execution.job in (Job.RETRYING, Job.QUEUED) and execution.state is not Task.BLOCKED:
            await self._elapse(execution)
            self._plan_run.offer(execution)

    @staticmethod
    async def _elapse(execution: TaskExecution) -> None:
        """Its job waits for a worker from now on, unless it did, and its run for nothing else."""
        execution.delayed = False
        if execution.job is Job.RETRYING:
            await execution.post_job(job.RetryDelayElapsed())

    async def wait(self, execution: TaskExecution, delay_s: float) -> None:
        """Have it tried again after *delay_s*, unless nothing is begun any more then."""
        since = execution.job_id, execution.job_seq
        await self._plan_run.sleep(delay_s)
        async with execution.lock:
            waits = not execution.is_over and is_delayed(execution) and execution.state is not Task.BLOCKED
            if waits and since == (
                execution.job_id,
                execution.job_seq,
            ):  # not reset, cancelled, blocked or tried meanwhile
                await self._go_on(execution)

    async def _go_on(self, execution: TaskExecution) -> None:
        """Its delay is over."""
        if self._sup.stopping.is_set():
            await self._pipeline.given_up(execution, "the supervisor is ending")
            return
        if execution.run is TaskRun.CIRCUIT_OPEN and not probes_left(execution.run_data, task_run.CooldownExpired()):
            await self._begin_anew(execution)
            return
        if execution.run is TaskRun.CIRCUIT_OPEN:
            await execution.post_run(task_run.CooldownExpired())
        await self._elapse(execution)
        if execution.state is Task.WAITING_FOR_SUBTASKS:  # it was split meanwhile
            self._plan_run.on_let_go(execution)
        else:
            self._plan_run.offer(execution)

    async def _begin_anew(self, execution: TaskExecution) -> None:
        """Its last probe was taken away, charged with nothing: another run takes its place."""
        await execution.post_job(job.UserCancelled(reason="its last probe was taken away"))
        await self.renew(execution)
        if execution.state is Task.WAITING_FOR_SUBTASKS:  # it was split meanwhile
            self._plan_run.on_let_go(execution)

    async def renew(self, execution: TaskExecution) -> None:
        """Another run takes the place of one that rests; what was split waits for its subtasks still."""
        execution.bury_run()
        await self._plan_run.open_again(execution)
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            self._plan_run.backlog.hold(execution.name)

    # ------------------------------------------------------------------ taken away
    async def take(self, execution: TaskExecution, why: str, blocked_on: tuple[str, ...] = ()) -> bool:
        """Take it from whoever carries it out, for somebody else, or until what it is blocked on is there; whether
        somebody does, and is still to put it down (``put_down``), or to end it (``let_go``). The caller holds its
        lock."""
        execution.taken_from, execution.blocked_on = why, blocked_on
        if execution.scope is not None:
            execution.scope.cancel()
            return True
        if execution.claim is None:
            self._plan_run.backlog.revoke(execution.name)
        await self.take_away(execution)
        return False

    async def take_away(self, execution: TaskExecution) -> None:
        """Whoever carried it out does not any more: its session is ended, and another one may have it then."""
        execution.considered = True
        self._plan_run.backlog.hold(
            execution.name
        )  # nobody begins the next attempt meanwhile, also if its worker is lost now
        try:
            await self._take_away(execution)
        finally:
            execution.considered = False
            self._plan_run.wake()

    async def _take_away(self, execution: TaskExecution) -> None:
        why, lost = execution.taken_from, execution.taken_from == LOST
        self._plan_run.withdrawn(execution)
        with suppress(NoSuchEntity, Refused, JournalError):
            if execution.session_lives:
                await self._sup.close_session(execution.session_id, reason=why, cause=execution.cause)
        match execution.state:
            case Task.CLAIMED | Task.IN_PROGRESS if execution.blocked_on and not lost:
                await self._say_taken(execution, Blocked(on=execution.blocked_on, reason=why))
                await self.put_back(execution, why)
                return
            case Task.CLAIMED:
                recovered = TransitionReason.ORPHAN_RECOVERED if lost else None
                await self._say_taken(execution, Unclaimed(reason=why, transition_reason=recovered))
            case Task.IN_PROGRESS if lost:
                await execution.post(Orphaned(reason=why))
                recovered = TransitionReason.ORPHAN_RECOVERED
                await self._say_taken(execution, Requeued(reason=why, transition_reason=recovered))
            case Task.IN_PROGRESS:
                await self._say_taken(execution, Requeued(reason=why))
        if execution.job in WORKED_ON:
            await self.requeue(execution, why)
        else:  # what was being recorded just then has ended its part: it is checked, or its subtasks', or a person's
            await self._plan_run.give_back(execution)

    @staticmethod
    async def _say_taken(execution: TaskExecution, event: Blocked | Unclaimed | Requeued) -> None:
        await execution.post(event)
        execution.taken = event

    async def requeue(self, execution: TaskExecution, why: str) -> None:
        """Its run and job wait for another worker, charged with nothing."""
        await self.put_back(execution, why)
        self.try_again(execution)

    async def put_back(self, execution: TaskExecution, why: str) -> None:
        """Nobody carries it out: its run and job wait, charged with nothing."""
        execution.followed = False  # what an earlier supervisor began is over
        if execution.run is TaskRun.IN_PROGRESS:
            await execution.post_run(task_run.ExecutionFailed(error=why, charged=False))
        decides = execution.run in (TaskRun.FAILED, TaskRun.TIMEOUT)  # or was left there by a supervisor that died
        if decides:
            await self._plan_run.decide(execution, charged=False)
        execution.delayed |= decides and execution.run is TaskRun.RETRYING
        if execution.job is Job.RUNNING:
            await execution.post_job(job.WorkerLost(error=why))
        await self._plan_run.give_back(execution)

    def try_again(self, execution: TaskExecution) -> None:
        """Have it claimed: now, or after its delay."""
        if not self.wait_again(execution):
            self._plan_run.offer(execution)

    def wait_again(self, execution: TaskExecution) -> bool:
        """Wait for its delay, if there is one: while it was blocked nobody did; whether there is."""
        if delayed := is_delayed(execution):
            self._plan_run.start(self.wait, execution, _delay_s(execution))
        return delayed


def is_delayed(execution: TaskExecution) -> bool:
    """It is not to be tried yet: its job says so, or its run waits although that waits for a worker already (what an
    earlier supervisor had begun was followed, and taken away before a worker had it)."""
    waits = execution.run is TaskRun.CIRCUIT_OPEN or (execution.run is TaskRun.RETRYING and execution.delayed)
    return execution.job is Job.RETRYING or (execution.job is Job.QUEUED and waits)


def _delay_s(execution: TaskExecution) -> float:
    """Until it may be tried again: as its run has decided, or when the circuit of that has cooled down (a probe may
    have been lost)."""
    return execution.run_data.cooldown_s if execution.run is TaskRun.CIRCUIT_OPEN else execution.run_data.delay_s


def _judged(outcome: Outcome, work: LiveSession | None) -> Outcome:
    """A session that was ended since nothing was heard of its agent took too long: nobody wanted the task ended."""
    asked = work.stop_request if work is not None else None
    if outcome.outcome != "aborted" or asked is None or asked.abort_reason != AbortReason.TIMEOUT or asked.later:
        return outcome
    return as_timed_out(outcome)


def as_timed_out(outcome: Outcome) -> Outcome:
    """The same of an attempt that took too long."""
    how = Verdict(exit=Exit.TIMEOUT, error=outcome.error, abort_reason=AbortReason.TIMEOUT)
    return outcome._replace(outcome="failed", how=how)


def _spent(outcome: Outcome) -> str:
    """Why its agent's tries leave none to us; nothing, where they do."""
    model = outcome.how.model if outcome.how is not None else None
    return f"the model of its agent has had its tries ({model.problem})" if model is not None and model.final else ""


def _is_late(outcome: Outcome) -> bool:
    return outcome.how is not None and outcome.how.exit is Exit.TIMEOUT
