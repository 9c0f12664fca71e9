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
from supervisor.work.settling import settle
from supervisor.work.task_execution import ACTOR, TaskExecution

__all__ = ["LOST", "Execution", "is_delayed", "late"]

_log = get_logger()

LOST = "its worker was lost"
WORKED_ON = frozenset({Job.QUEUED, Job.RUNNING, Job.RETRYING})
"""A job in one of these has a worker, or waits for one."""


class Execution:
    """Carries out claims, one task of the group each."""

    def __init__(self, load: PlanRun, closing: CompletionPipeline) -> None:
        self._load, self._closing = load, closing
        self._sup = load.sup

    async def carry_out(self, case: TaskExecution, claim: Claim) -> None:
        """See a claim through, until the task is settled, waits, or is taken away."""
        async with case.lock:  # whoever cancels it has done so before this, or finds who carries it out
            if not await self._is_to_begin(case, claim):
                self._load.withdrawn(case)
                return
            case.claim, case.taken_from, case.blocked_on = claim, "", ()
            case.let_go, case.put_down = OneShotEvent(), OneShotEvent()
            case.scope = anyio.CancelScope()
        try:
            with case.scope:
                await self._see_through(case, claim)
            self._load.withdrawn(case)  # unless its attempt has ended, which says more
            async with case.lock:
                case.scope, case.deciding = None, False
                await self._put_down(case)
        finally:  # also where its plan is given up: who waits for that hears of it
            case.deciding = False
            case.let_go.set()
        self._load.wake()
        if case.state in (Task.WAITING_FOR_SUBTASKS, Task.BLOCKED):
            self._load.on_let_go(case)

    async def _see_through(self, case: TaskExecution, claim: Claim) -> None:
        try:
            await self._take(case, claim)
            await self._attempts(case)
        except Refused as refusal:
            if not (case.unwanted or case.is_over):
                raise
            _log.info("a claim has come to its end", task=case.name, why=str(refusal))

    async def _is_to_begin(self, case: TaskExecution, claim: Claim) -> bool:
        holder = self._load.backlog.holder(case.name)
        if holder != claim:  # taken away, or its worker was lost, before this
            if holder is None or holder.worker_id != claim.worker_id:  # else its slot is that of the next claim
                await self._load.pool.done(claim.worker_id, case.name, case.cause)
                self._load.wake()  # that has a slot again
            return False
        if case.unwanted or case.is_over or case.state is Task.BLOCKED:  # a subtask did not answer just now
            case.claim = claim
            await self._load.give_back(case)
            return False
        return True

    async def _put_down(self, case: TaskExecution) -> None:
        """Nobody carries it out any more."""
        if case.taken_from:
            await self.take_away(case)
            case.put_down.set()  # who took it away hears of that before it is cancelled
        if case.unwanted:
            await self._closing.cancelled(case, case.unwanted)

    async def _attempts(self, case: TaskExecution) -> None:
        while not case.unwanted and await self._attempt(case):
            pass

    # ------------------------------------------------------------------ a claim
    async def _take(self, case: TaskExecution, claim: Claim) -> None:
        started = job.WorkerStarted(
            worker_id=claim.worker_id, capabilities=case.job_data.capabilities, token=claim.token
        )
        await self._load.pool.assign(claim.worker_id, case.name, case.cause, case.job_data.capabilities)
        await case.post_job(started)  # not before: while a job runs, its worker is busy
        await self._load.stream.begun(case)

    async def _attempt(self, case: TaskExecution) -> bool:
        """One attempt; ``True`` if the next one is due, in the same slot."""
        if case.state is Task.WAITING_FOR_SUBTASKS and not case.followed:
            if all(part.is_met for part in case.parts):
                await self._integrate(case)
            else:  # it was split while it cooled down, or as it was to be tried again
                await self._closing.leave_to_parts(case)
            return False
        if case.followed:
            case.followed = False
            return await self._end_attempt(case, await self._answer(case))
        try:
            begun = await self._begin(case)
        except Refused as refusal:
            await self._closing.cancelled(case, str(refusal))
            return False
        return not begun or await self._end_attempt(case, await self._ask(case))

    async def _integrate(self, case: TaskExecution) -> None:
        """What its subtasks made is looked at; what follows is decided to its end, whoever takes the task away or has
        it tried otherwise meanwhile."""
        await self._decide_from_now(case)
        with anyio.CancelScope(shield=True):
            await self._closing.integrate(case)

    @staticmethod
    async def _decide_from_now(case: TaskExecution) -> None:
        """Until it is let go of, or kept for another attempt here, who commands it waits; who splits it just now, or
        blocks it, has done so first."""
        async with case.lock:
            case.deciding, case.kept = True, OneShotEvent()

    @staticmethod
    def _keep(case: TaskExecution) -> None:
        """It is decided, and its worker keeps it: who commands it goes on."""
        case.deciding = False
        case.kept.set()

    async def _begin(self, case: TaskExecution) -> bool:
        """There is a session, and it is on record that it works on this; ``False``: it was split before it had one.

        Raises:
            Refused: nothing is begun any more.
        """
        await self._begin_place(case)
        if not self._load.lives(case.session_id):
            if case.state is not Task.OPEN:
                await self._decide_from_now(case)  # who splits it meanwhile would find nobody that holds it
            if case.state is Task.WAITING_FOR_SUBTASKS:
                return False
            await self._begin_session(case)
            self._keep(case)
        await case.begin_run()
        self._load.launched(case)
        return True

    async def _begin_place(self, case: TaskExecution) -> None:
        """Where a worktree cannot be taken back, it is left, and the next session has another one."""
        try:
            await begin(self._sup, case)
        except Refused as refusal:
            if self._sup.janitor.in_place:
                raise
            _log.warning("a worktree could not be taken back", task=case.name, why=str(refusal))
            await self._closing.leave(case)

    async def _begin_session(self, case: TaskExecution) -> None:
        try:
            if case.state is Task.OPEN:
                authorization.admit(self._load, case)
            session = await self._start(case)
        except Refused as refusal:
            if case.run is TaskRun.HALF_OPEN:
                await case.post_run(task_run.ProbeFailed(error=str(refusal)))
            raise
        case.session_id, case.absent = session.id, ""
        self._load.equip(case, may_split=authorization.may_split(self._load, case))
        await self._let_go(case)
        if case.state is Task.OPEN:
            await self._claim(case)

    async def _let_go(self, case: TaskExecution) -> None:
        """Whoever had it has ended between two attempts: it is held by nobody, until the next one claims it."""
        match case.state:
            case Task.CLAIMED:
                await case.post(Unclaimed(reason="its session has ended"))
            case Task.IN_PROGRESS:
                await case.post(Requeued(reason="its session has ended"))

    async def _claim(self, case: TaskExecution) -> None:
        """Raises:
        Refused: it was cancelled meanwhile; its session is ended.
        """
        try:
            await case.post(Claimed(by=case.session_id, reason=f"agent {case.agent}"))
        except Refused as refusal:
            await self._sup.close_session(case.session_id, reason=str(refusal), cause=case.cause)
            raise

    async def _start(self, case: TaskExecution) -> Session:
        """The task's session. A disk that is down is waited for: a plan loses nothing by it but time."""
        while True:
            await self._sup.recovered()
            with suppress(Degraded):  # it went down again in between
                within, patience = scope_of(self._load, case), patience_of(case)
                spec = place_of(self._sup, self._load.plan.task_lifecycle, case)
                if spec.kept and case.session_id:  # whose session has ended, and nobody cancelled
                    await self._sup.janitor.clean_up(case.session_id, left_at(case))
                with anyio.CancelScope(shield=True):  # a session that is there is known here
                    return await self._sup.start_session(
                        case.name,
                        agent=case.agent,
                        cause=case.cause,
                        within=within,
                        patience=patience,
                        workspace_spec=spec,
                    )

    # ------------------------------------------------------------------ an attempt
    async def _ask(self, case: TaskExecution) -> Outcome:
        """Have the session work on the prompt."""
        async with anyio.create_task_group() as group:
            if case.state is Task.CLAIMED:
                group.start_soon(self._note_start, case)
            outcome = await self._turn(case)
            group.cancel_scope.cancel()
        case.seq = outcome.seq or case.seq
        return outcome

    async def _turn(self, case: TaskExecution) -> Outcome:
        asked, prompt = self._sup.outcome_of, ask_again(case.task.prompt, case.absent)
        limit, work = self._load.time_limit(case), self._sup.registry.works.get(case.session_id)
        try:
            return _judged(await asked(case.session_id, prompt, case.cause, once=True, limit=limit), work)
        except (NoSuchEntity, Refused) as error:
            return Outcome("aborted", str(error), "")

    async def _answer(self, case: TaskExecution) -> Outcome:
        """How the prompt ends that an earlier supervisor asked."""
        async with anyio.create_task_group() as group:
            if case.state is Task.CLAIMED:
                group.start_soon(self._note_start, case)
            work = self._sup.registry.works.get(case.session_id)
            outcome = await self._sup.last_outcome(case.session_id, once=True) or self._answered_before(case)
            if outcome is not None and outcome.seq is not None and outcome.seq < await self._began_seq(case):
                outcome = None  # that was its last attempt's, which has been judged
            # where the prompt had not reached the journal, it is asked now
            said = _judged(outcome, work) if outcome is not None else await self._turn(case)
            group.cancel_scope.cancel()
        if work is None and said.outcome == "aborted" and await is_stalled(self._sup.journal, case.session_id):
            said = late(said)  # it was ended before anybody followed it
        case.seq = said.seq or case.seq
        return said

    async def _began_seq(self, case: TaskExecution) -> int:
        """With which record the attempt that is under way began."""
        records = await self._sup.journal.events(entity_id=case.run_id)
        return max(
            (one.seq for one in records if one.to_status == TaskRun.IN_PROGRESS.value != one.from_status), default=0
        )

    def _answered_before(self, case: TaskExecution) -> Outcome | None:
        answered = self._sup.inherited.answers.get(case.session_id)
        return None if answered is None else Outcome(answered.outcome, answered.error, "", answered.seq)

    async def _note_start(self, case: TaskExecution) -> None:
        work = self._sup.registry.works.get(case.session_id)
        if work is not None:
            await work.running.wait()
            started = Started(reason="its agent is ready")
            with suppress(Refused):  # it was split just now
                await self._sup.registry.post(case.id, started, cause=Cause(work.because, None, ACTOR))

    async def _end_attempt(self, case: TaskExecution, outcome: Outcome) -> bool:
        """What follows is decided to its end, whoever takes the task away meanwhile; ``True`` for another attempt."""
        await self._decide_from_now(case)
        case.said = outcome.text
        with anyio.CancelScope(shield=True):
            cools_down = await self._judge(case, outcome)
        if not cools_down:
            return False
        self._keep(case)
        return await self._cool_down_here(case)

    async def _judge(self, case: TaskExecution, outcome: Outcome) -> bool:
        """``True`` if it waits in its slot, for another attempt."""
        if outcome.outcome == "completed":
            await settle(self._sup, case)
            outcome = self._ended_meanwhile(case, outcome)
        if outcome.outcome == "completed" and (absent := await self._absent(case, outcome)):
            outcome = outcome._replace(outcome="failed", error=f"not complete: {absent}")
        split = case.state is Task.WAITING_FOR_SUBTASKS and outcome.outcome != "aborted"  # the rest is theirs
        if outcome.outcome == "completed" or split:
            self._load.ended(case, None)
            await self._closing.completed(case)
            return False
        if outcome.outcome == "aborted":
            self._load.withdrawn(case)
            await self._closing.cancelled(case, outcome.error)
            return False
        return await self._failed(case, outcome)

    def _ended_meanwhile(self, case: TaskExecution, outcome: Outcome) -> Outcome:
        """Return *outcome*, as aborted if a person has ended the task or its session while the turn settled."""
        work = self._sup.registry.works.get(case.session_id)
        if not case.unwanted and work is not None and not work.heard.is_set():
            return outcome
        why = case.unwanted or "its session was ended before its work was judged"
        return outcome._replace(outcome="aborted", error=why)

    async def _absent(self, case: TaskExecution, outcome: Outcome) -> str:
        """The completion signals that are missing, in words."""
        work, wanted = self._sup.registry.works.get(case.session_id), [one.value() for one in case.task.completion]
        if not wanted or work is None:
            return ""
        case.absent = await missing(wanted, work.directory, outcome.text)
        return case.absent

    # ------------------------------------------------------------------ failures
    async def _failed(self, case: TaskExecution, outcome: Outcome) -> bool:
        await self.charge(case, outcome)
        return await self._decide(case, outcome.error, _spent(outcome))

    async def charge(self, case: TaskExecution, outcome: Outcome) -> None:
        """Its attempt has failed: so has its run, which decides what follows."""
        failure = await plugin_policies.judge(self._load, case, self._classified(case, outcome), outcome.error)
        self._load.ended(case, failure)
        if _is_late(outcome) and failure.category is not ErrorCategory.PERMANENT:
            await case.post_run(task_run.ExecutionTimedOut(error=outcome.error, signature=failure.signature))
        else:
            failed = task_run.ExecutionFailed(
                error=outcome.error, signature=failure.signature, category=failure.category
            )
            await case.post_run(failed)

    def _classified(self, case: TaskExecution, outcome: Outcome) -> Failure:
        """A session that has given up has had all its tries; one whose agent hung is followed by another one."""
        how = outcome.how
        failure = classify(
            outcome.error,
            abort_reason=how.abort_reason if how is not None else None,
            transition_reason=how.transition_reason if how is not None else None,
            exit_status=how.status if how is not None else None,
            model=how.model if how is not None else None,
        )
        if self._load.lives(case.session_id) or _is_late(outcome):
            return failure
        return failure._replace(category=ErrorCategory.PERMANENT)

    async def _decide(self, case: TaskExecution, error: str, spent: str) -> bool:
        """What the run's table says: another attempt, now or later, or none; what is *spent* leaves no other attempt.
        ``True``: after a wait here."""
        await self._load.decide(case, spent=spent)
        if case.run is TaskRun.CIRCUIT_OPEN:
            _log.error("a task's circuit is open", task=case.name, reason=error, settled=self._is_settled(case))
        if self._is_settled(case):
            await case.post_job(job.ExecutionFailed(error=error, final=True))
            await self._closing.failed(case, error)
            return False
        if case.job_data.retry_count < case.job_data.max_retries:
            await case.post_job(job.ExecutionFailed(error=error))
            await self._load.give_back(case)
            self._load.start(self.wait, case, _delay_s(case))
            return False
        return True

    def _is_settled(self, case: TaskExecution) -> bool:
        """No attempt and no probe is left, or nothing is begun any more."""
        if case.run is not TaskRun.CIRCUIT_OPEN:
            return False
        return self._sup.stopping.is_set() or not probes_left(case.run_data, task_run.CooldownExpired())

    async def _cool_down_here(self, case: TaskExecution) -> bool:
        """Its job has no retry left to wait in: it keeps its worker until the circuit lets a probe through; or, where
        its run was reset and counts anew, until that may try again."""
        await self._load.sleep(_delay_s(case))
        if self._sup.stopping.is_set() and case.state is Task.WAITING_FOR_SUBTASKS:  # it was split meanwhile
            await self._closing.given_up(case, "the supervisor is ending")
            return False
        if self._sup.stopping.is_set():
            await self._closing.open_circuit(case, "the supervisor is ending")
            await case.post_job(job.ExecutionFailed(error=case.run_data.last_error, final=True))
            if case.run is TaskRun.PENDING:  # somebody reset it, and nobody begins it any more
                await case.post_run(task_run.Cancelled(reason="the supervisor is ending"))
            await self._closing.failed(case, case.run_data.last_error)
            return False
        if case.run is TaskRun.CIRCUIT_OPEN:  # it was not reset meanwhile
            await case.post_run(task_run.CooldownExpired())
        return True

    async def try_now(self, case: TaskExecution) -> None:
        """Do not wait for the delay that it waits for."""
        if case.job in (Job.RETRYING, Job.QUEUED) and case.state is not Task.BLOCKED:
            await self._elapse(case)
            self._load.offer(case)

    @staticmethod
    async def _elapse(case: TaskExecution) -> None:
        """Its job waits for a worker from now on, unless it did, and its run for nothing else."""
        case.delayed = False
        if case.job is Job.RETRYING:
            await case.post_job(job.RetryDelayElapsed())

    async def wait(self, case: TaskExecution, delay_s: float) -> None:
        """Have it tried again after *delay_s*, unless nothing is begun any more then."""
        since = case.job_id, case.job_seq
        await self._load.sleep(delay_s)
        async with case.lock:
            waits = not case.is_over and is_delayed(case) and case.state is not Task.BLOCKED
            if waits and since == (case.job_id, case.job_seq):  # not reset, cancelled, blocked or tried meanwhile
                await self._go_on(case)

    async def _go_on(self, case: TaskExecution) -> None:
        """Its delay is over."""
        if self._sup.stopping.is_set():
            await self._closing.given_up(case, "the supervisor is ending")
            return
        if case.run is TaskRun.CIRCUIT_OPEN and not probes_left(case.run_data, task_run.CooldownExpired()):
            await self._begin_anew(case)
            return
        if case.run is TaskRun.CIRCUIT_OPEN:
            await case.post_run(task_run.CooldownExpired())
        await self._elapse(case)
        if case.state is Task.WAITING_FOR_SUBTASKS:  # it was split meanwhile
            self._load.on_let_go(case)
        else:
            self._load.offer(case)

    async def _begin_anew(self, case: TaskExecution) -> None:
        """Its last probe was taken away, charged with nothing: another run takes its place."""
        await case.post_job(job.UserCancelled(reason="its last probe was taken away"))
        await self.renew(case)
        if case.state is Task.WAITING_FOR_SUBTASKS:  # it was split meanwhile
            self._load.on_let_go(case)

    async def renew(self, case: TaskExecution) -> None:
        """Another run takes the place of one that rests; what was split waits for its subtasks still."""
        case.bury_run()
        await self._load.open_again(case)
        if case.state is Task.WAITING_FOR_SUBTASKS:
            self._load.backlog.hold(case.name)

    # ------------------------------------------------------------------ taken away
    async def take(self, case: TaskExecution, why: str, blocked_on: tuple[str, ...] = ()) -> bool:
        """Take it from whoever carries it out, for somebody else, or until what it is blocked on is there; whether
        somebody does, and is still to put it down (``put_down``), or to end it (``let_go``). The caller holds its
        lock."""
        case.taken_from, case.blocked_on = why, blocked_on
        if case.scope is not None:
            case.scope.cancel()
            return True
        if case.claim is None:
            self._load.backlog.revoke(case.name)
        await self.take_away(case)
        return False

    async def take_away(self, case: TaskExecution) -> None:
        """Whoever carried it out does not any more: its session is ended, and another one may have it then."""
        case.considered = True
        self._load.backlog.hold(case.name)  # nobody begins the next attempt meanwhile, also if its worker is lost now
        try:
            await self._take_away(case)
        finally:
            case.considered = False
            self._load.wake()

    async def _take_away(self, case: TaskExecution) -> None:
        why, lost = case.taken_from, case.taken_from == LOST
        self._load.withdrawn(case)
        with suppress(NoSuchEntity, Refused, JournalError):
            if case.session_lives:
                await self._sup.close_session(case.session_id, reason=why, cause=case.cause)
        match case.state:
            case Task.CLAIMED | Task.IN_PROGRESS if case.blocked_on and not lost:
                await self._say_taken(case, Blocked(on=case.blocked_on, reason=why))
                await self.put_back(case, why)
                return
            case Task.CLAIMED:
                recovered = TransitionReason.ORPHAN_RECOVERED if lost else None
                await self._say_taken(case, Unclaimed(reason=why, transition_reason=recovered))
            case Task.IN_PROGRESS if lost:
                await case.post(Orphaned(reason=why))
                recovered = TransitionReason.ORPHAN_RECOVERED
                await self._say_taken(case, Requeued(reason=why, transition_reason=recovered))
            case Task.IN_PROGRESS:
                await self._say_taken(case, Requeued(reason=why))
        if case.job in WORKED_ON:
            await self.requeue(case, why)
        else:  # what was being recorded just then has ended its part: it is checked, or its subtasks', or a person's
            await self._load.give_back(case)

    @staticmethod
    async def _say_taken(case: TaskExecution, event: Blocked | Unclaimed | Requeued) -> None:
        await case.post(event)
        case.taken = event

    async def requeue(self, case: TaskExecution, why: str) -> None:
        """Its run and job wait for another worker, charged with nothing."""
        await self.put_back(case, why)
        self.try_again(case)

    async def put_back(self, case: TaskExecution, why: str) -> None:
        """Nobody carries it out: its run and job wait, charged with nothing."""
        case.followed = False  # what an earlier supervisor began is over
        if case.run is TaskRun.IN_PROGRESS:
            await case.post_run(task_run.ExecutionFailed(error=why, charged=False))
        decides = case.run in (TaskRun.FAILED, TaskRun.TIMEOUT)  # or was left there by a supervisor that died
        if decides:
            await self._load.decide(case, charged=False)
        case.delayed |= decides and case.run is TaskRun.RETRYING
        if case.job is Job.RUNNING:
            await case.post_job(job.WorkerLost(error=why))
        await self._load.give_back(case)

    def try_again(self, case: TaskExecution) -> None:
        """Have it claimed: now, or after its delay."""
        if not self.wait_again(case):
            self._load.offer(case)

    def wait_again(self, case: TaskExecution) -> bool:
        """Wait for its delay, if there is one: while it was blocked nobody did; whether there is."""
        if delayed := is_delayed(case):
            self._load.start(self.wait, case, _delay_s(case))
        return delayed


def is_delayed(case: TaskExecution) -> bool:
    """It is not to be tried yet: its job says so, or its run waits although that waits for a worker already (what an
    earlier supervisor had begun was followed, and taken away before a worker had it)."""
    waits = case.run is TaskRun.CIRCUIT_OPEN or (case.run is TaskRun.RETRYING and case.delayed)
    return case.job is Job.RETRYING or (case.job is Job.QUEUED and waits)


def _delay_s(case: TaskExecution) -> float:
    """Until it may be tried again: as its run has decided, or when the circuit of that has cooled down (a probe may
    have been lost)."""
    return case.run_data.cooldown_s if case.run is TaskRun.CIRCUIT_OPEN else case.run_data.delay_s


def _judged(outcome: Outcome, work: LiveSession | None) -> Outcome:
    """A session that was ended since nothing was heard of its agent took too long: nobody wanted the task ended."""
    asked = work.asked if work is not None else None
    if outcome.outcome != "aborted" or asked is None or asked.abort_reason != AbortReason.TIMEOUT or asked.later:
        return outcome
    return late(outcome)


def late(outcome: Outcome) -> Outcome:
    """The same of an attempt that took too long."""
    how = Verdict(exit=Exit.TIMEOUT, error=outcome.error, abort_reason=AbortReason.TIMEOUT)
    return outcome._replace(outcome="failed", how=how)


def _spent(outcome: Outcome) -> str:
    """Why its agent's tries leave none to us; nothing, where they do."""
    model = outcome.how.model if outcome.how is not None else None
    return f"the model of its agent has had its tries ({model.problem})" if model is not None and model.final else ""


def _is_late(outcome: Outcome) -> bool:
    return outcome.how is not None and outcome.how.exit is Exit.TIMEOUT
