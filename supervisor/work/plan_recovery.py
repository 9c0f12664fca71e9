"""Continue a plan run that was interrupted by the death of its supervisor.

Theory of operation
-------------------
* A task that is settled stays so.
* A task whose session goes on is followed there (phase FOLLOWED): the session works on, and a worker joins it.
* A task whose session is lost is an orphan. ``recovery.orphans`` decides about it.
* The worker died with the supervisor: the job waits for another worker, and nobody is charged for that.
* A record that the supervisor was about to make when it died is made now. Task, run and job are three logs, and a kill
  may fall between their records: the log that got furthest leads, and the others follow.

Example: the supervisor was killed after the run became COMPLETED, and before its task became DONE. ``take_up`` finds
the task IN_PROGRESS without a run that is not over, and ``_take_further`` has the pipeline accept the work.

The order of ``go_on`` matters. Sessions without a task are told to end, beside the rest. Strays and the remains of
settled tasks end first; then the files of tasks that are over are taken back; then the tasks go on. A task that only
waits goes on at once; any other task under its lock, since commands may come as soon as all have begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec
from anyio.abc import TaskStatus

from supervisor.lifecycles import job, task, task_run
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.session import SessionData
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import ErrorCategory, SkipCause, TaskRun, TaskRunData, probes_left
from supervisor.lifecycles.types import Kind, TransitionReason
from supervisor.plans.plan import Plan
from supervisor.policies.retry_budget import retries_spent
from supervisor.ports import EntityRow, JournalError
from supervisor.recovery.journal_state import is_stalled
from supervisor.recovery.restore import WHY, end_work
from supervisor.recovery.resumable import InterruptedTask, continued, grown
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity, Outcome
from supervisor.work import authorization
from supervisor.work.attempt_runner import AttemptRunner, as_timed_out, is_delayed
from supervisor.work.checkpoints import take_back, workspace_of
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun, TaskReleased
from supervisor.work.results import TaskResult, unmerged_of
from supervisor.work.task_execution import ACTOR, Phase, TaskExecution, checkpoint_after

__all__ = ["PlanRecovery"]

ORPHANED = "the supervisor of its session ended"
WAITS_AGAIN = "what it was blocked on is there; it waits for its subtasks again"
BEFORE = "settled before the supervisor of this run ended"
FINAL = frozenset({Task.CLOSED, Task.CANCELLED})


class PlanRecovery:
    """Takes up the tasks that an earlier supervisor left of a plan."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline, attempt_runner: AttemptRunner) -> None:
        self._plan_run, self._pipeline, self._attempt_runner = plan_run, pipeline, attempt_runner
        self._sup = plan_run.sup
        self._left: Mapping[str, InterruptedTask] = {}
        self._taken: set[str] = set()
        self._executions: list[TaskExecution] = []
        self._living: dict[tuple[Kind, str], list[Entity]] = {}
        """The runs and jobs that are not over, by kind and task."""
        self._strays: list[Entity] = []
        """Subtasks, with their runs and jobs, of tasks whose split was not recorded any more."""
        self._remains: list[Entity] = []
        """The runs and jobs of settled tasks: the supervisor died before it ended them."""
        self._last: dict[tuple[str, str], EntityRow] = {}
        """The newest run and the newest job of each task, as the journal has them, by kind and task."""

    @property
    def words(self) -> tuple[str, ...]:
        """The tasks that were left, each with its state, in words."""
        return tuple(f"{name} ({left.state.value})" for name, left in self._left.items())

    @property
    def ids(self) -> Mapping[str, str]:
        """The entities of the tasks that were left, by name."""
        return {name: left.entity_id for name, left in self._left.items()}

    def find(self, plan: Plan) -> bool:
        """Return whether an interrupted run of *plan* was found. The first caller has it."""
        inherited = self._sup.recovered_work
        tasks = continued(plan, self._sup.settings, inherited.rows.values())
        if not tasks:
            return False
        workstream_id = next(iter(tasks.values())).data.workstream
        ids = {one.entity_id for one in tasks.values() if one.state not in FINAL}
        if not {workstream_id, *ids} <= inherited.work:
            return False
        known = {one.entity_id for one in tasks.values()}
        ids |= self._owned({*known, workstream_id})
        strays = {one for one in ids if inherited.rows[one].kind == Kind.TASK} - known
        strays |= self._owned(strays)
        self._strays = [self._sup.registry.entity(one) for one in sorted(strays)]
        ids |= strays
        inherited.work.difference_update(ids, (workstream_id,))
        self._taken = ids
        self._left = tasks
        self._read()
        self._plan_run.workstream.take_up(self._sup.registry.entity(workstream_id))
        return True

    def _owned(self, owners: Collection[str]) -> set[str]:
        """Return the ids of the entities that belong to *owners*, and that nobody has taken up."""
        work = self._sup.recovered_work.work
        return {row.id for row in self._sup.recovered_work.rows.values() if row.parent_id in owners and row.id in work}

    def untouched(self, executions: Iterable[TaskExecution]) -> list[Entity]:
        """Return the entities that were taken over and have not ended, except those of *executions* and the workers
        that were ended with the earlier supervisor."""
        known = {one for execution in executions for one in execution.entity_ids} | self._plan_run.worker_pool.left
        alive = (self._sup.registry.entities.get(one) for one in sorted(self._taken - known))
        return [one for one in alive if one is not None and not one.ended]

    @property
    def over(self) -> list[Entity]:
        """The entities that were taken over and have ended meanwhile."""
        known = (self._sup.registry.entities.get(one) for one in sorted(self._taken))
        return [one for one in known if one is not None and one.ended]

    def _read(self) -> None:
        """Collect the runs and jobs of all tasks, and count the retries that they have spent."""
        for one in self._sup.registry.entities.values():
            if one.kind in (Kind.RUN, Kind.JOB):
                self._living.setdefault((one.kind, one.parent_id or ""), []).append(one)
        rows = sorted(self._sup.recovered_work.rows.values(), key=lambda row: row.born_seq)
        for row in rows:
            self._last[row.kind, row.parent_id or ""] = row
        ids = set(self.ids.values())
        ours = [row for row in rows if row.kind == Kind.RUN and row.parent_id in ids]
        runs = [(TaskRun(row.state), _run_data(row)) for row in ours]
        spent = retries_spent((left.data for left in self._left.values()), runs)
        self._plan_run.budget = msgspec.structs.replace(self._plan_run.budget, spent=spent)

    @property
    def unmerged(self) -> Mapping[str, InterruptedTask]:
        """The tasks that were closed with their work on its branch, as the run was given up; by name."""
        return {name: left for name, left in self._left.items() if left.state is Task.CLOSED and left.is_unmerged}

    def do_again(self, names: Collection[str]) -> None:
        """Have the tasks with these names count as new ones."""
        self._left = {name: left for name, left in self._left.items() if name not in names}

    def grown(self, plan: Plan) -> Iterator[Plan]:
        """Yield *plan*, and then each plan that it grew to when its tasks were split."""
        return grown(plan, self._left)

    def has(self, execution: TaskExecution) -> bool:
        """Return whether the task was left."""
        return execution.name in self._left

    def take_up(self, execution: TaskExecution) -> bool:
        """Take over the entities, or the result, of a task that was left. Return whether it was."""
        left = self._left.get(execution.name)
        if left is None:
            return False
        execution.session_id = left.data.claimed_by
        if left.state in FINAL:
            self._remains += [one for kind in (Kind.RUN, Kind.JOB) if (one := self._alive(kind, left)) is not None]
            execution.earlier_job = self._last_job(left.entity_id)
            execution.earlier_id, execution.result = left.entity_id, self._settled_before(left)
            execution.phase = Phase.SETTLED
            self._plan_run.unsettled -= 1
        else:
            execution.take_up(
                self._sup.registry.entity(left.entity_id), self._alive(Kind.RUN, left), self._alive(Kind.JOB, left)
            )
            if (Kind.RUN, left.entity_id) not in self._last:  # the supervisor died before it opened one
                execution.open_run(self._plan_run.limits_of(execution))
            execution.agent = self._plan_run.agent_of(execution)
            row = None if execution.has_run else self._last.get((Kind.RUN, execution.id))
            if row is not None:
                rollback, state = execution.task.rollback, TaskRun(row.state)
                execution.checkpoint = checkpoint_after(row.id, state, _run_data(row), rollback=rollback)
            self._executions.append(execution)
        return True

    def _alive(self, kind: Kind, left: InterruptedTask) -> Entity | None:
        """Return the newest run or job of the task, unless it is over. Earlier runs, whose circuits are open, rest for
        good: they say nothing of the attempt that was under way."""
        row = self._last.get((kind, left.entity_id))
        newest = None
        for one in self._living.get((kind, left.entity_id), []):
            if row is not None and one.id == row.id:
                newest = one
            else:
                self._sup.registry.remove(one.id)
        return newest

    def _last_job(self, task_id: str) -> str:
        """Return the job that completed the task, or ``""``: a task that was recovered as done may have none."""
        row = self._last.get((Kind.JOB, task_id))
        return row.id if row is not None and row.state == Job.COMPLETED.value else ""

    def _is_rejected(self, execution: TaskExecution) -> bool:
        """Return whether the run was rejected by its tests, and its job or its task had no record of that yet."""
        if not execution.has_run or execution.run not in (TaskRun.FAILED, TaskRun.CIRCUIT_OPEN):
            return False
        if execution.state is not Task.WAITING_FOR_SUBTASKS:
            return execution.job is Job.VALIDATING
        row = self._last.get((Kind.JOB, execution.id))
        was_tested = row is not None and row.state in (Job.VALIDATING.value, Job.FAILED.value)
        # Without all its subtasks the task failed by itself, and was split then.
        return was_tested and all(subtask.is_met for subtask in execution.subtasks)

    def _is_completed(self, execution: TaskExecution) -> bool:
        """Return whether the run is completed, and the task had no record of that yet."""
        row = None if execution.has_run else self._last.get((Kind.RUN, execution.id))
        return row is not None and row.state == TaskRun.COMPLETED.value

    def _skipped(self, execution: TaskExecution) -> SkipCause | None:
        """Return why the run was skipped, if it was, and the task had no record of that yet."""
        return None if execution.has_run else _run_data(self._last.get((Kind.RUN, execution.id))).skipped

    def _settled_before(self, left: InterruptedTask) -> TaskResult:
        """Return the result of a task that was settled under an earlier supervisor."""
        name, by = left.data.name, left.data.claimed_by
        if left.state is Task.CLOSED:
            return TaskResult(name, by, "completed", "", 0.0, *unmerged_of(left.data.rest))
        skipped = _run_data(self._last.get((Kind.RUN, left.entity_id))).skipped
        outcome = "blocked" if skipped is SkipCause.DEPENDENCY_FAILED else "skipped"
        return TaskResult(name, by, outcome if skipped is not None else "aborted", BEFORE, 0.0)

    async def go_on(self) -> list[TaskExecution]:
        """Bring every task to where it goes on. Return the tasks that only wait for others."""
        for session_id in await self.unclaimed():
            self._plan_run.start(self._end_session, session_id)
        await end_work(self._sup.registry, self._strays, ())
        for entity in self._remains:
            cancelled = task_run.Cancelled if entity.kind is Kind.RUN else job.UserCancelled
            if cancelled in entity.lifecycle.machine.allowed(entity.state):
                cause = Cause(entity.born_seq, None, ACTOR)
                await self._sup.registry.post(entity.id, cancelled(reason=ORPHANED), cause=cause)
            self._sup.registry.remove(entity.id)
        for execution in [one for one in self._plan_run.executions.values() if one.result is not None]:
            self._plan_run.backlog.settle(execution.name, completed=execution.is_met)
            # The supervisor may have died before it took back, or dropped, what the settled task left in place.
            if not execution.is_imported and self._left[execution.name].state is not Task.CLOSED:
                await take_back(self._sup, execution)
            elif not execution.is_imported and execution.task.rollback:
                await self._sup.verification.forget(workspace_of(self._sup, execution))
        for execution in self._executions:
            if execution.is_rolled_back and execution.has_run:  # the supervisor may have died before that
                await take_back(self._sup, execution)
        waiting = []
        for execution in self._executions:
            was_split = execution.state is Task.OPEN and execution.data.parts
            if was_split and any(subtask.result is None for subtask in execution.subtasks):
                await execution.post(task.Split(subtasks=execution.subtask_ids, reason=WAITS_AGAIN))
            ends = self._is_completed(execution) or self._skipped(execution) or self._is_rejected(execution)
            waits = execution.state is Task.WAITING_FOR_SUBTASKS and not ends
            if waits:
                await self._let_wait(execution)
            if waits or execution.state is Task.PLANNED or self._is_untouched(execution):
                waiting.append(execution)
            else:
                await self._plan_run.started(self._go_on, execution)
        return waiting

    async def unclaimed(self) -> list[str]:
        """Return the sessions that were begun for a task and do not hold it: their claim is not on record, or the task
        is settled."""
        ids, rows = set(self.ids.values()), self._sup.recovered_work.rows
        if not ids:
            return []
        ours = ids | {row.id for row in rows.values() if row.parent_id in ids}
        held = {left.data.claimed_by for left in self._left.values() if left.state not in FINAL}
        idle = [one for one in self._sup.registry.sessions if one in rows and one not in held]
        return [one for one in idle if rows[one].parent_id is None and await self._begun_for(one) in ours]

    async def _begun_for(self, session_id: str) -> str:
        """Return the entity whose record caused the session."""
        journal = self._sup.journal
        [born] = await journal.events(entity_id=session_id, limit=1)
        if not born.cause_id:
            return ""
        [cause] = await journal.events(after_seq=born.cause_id - 1, limit=1)
        return cause.entity_id

    async def _end_session(self, session_id: str) -> None:
        with suppress(NoSuchEntity, Refused, JournalError):
            await self._sup.close_session(session_id, reason=ORPHANED, cause=Cause(actor=ACTOR))
        await self._sup.cleanup.clean_up(session_id, f"what {session_id} left")

    def _is_untouched(self, execution: TaskExecution) -> bool:
        """Return whether the run of the task was never begun. (A run that rests in its open circuit is of an earlier
        claim: another run is due.)"""
        fresh = execution.has_run and execution.run is TaskRun.PENDING and execution.job in (None, Job.PENDING)
        if execution.state is not Task.OPEN or not fresh:
            return False
        # A task that was tried or rejected, and whose subtasks, if it was split, are settled, is tried again as it is:
        # it is not split again, whatever became of its condition.
        tried = execution.data.claims or execution.data.retries or execution.data.last_failure
        settled = all(subtask.result is not None and not subtask.is_imported for subtask in execution.subtasks)
        return not (tried and settled)

    async def _go_on(self, execution: TaskExecution, *, task_status: TaskStatus[None]) -> None:
        async with self._plan_run.moving(execution):
            task_status.started()  # commands about the task wait for its lock from now on
            if not execution.is_over:
                await self._take_further(execution)

    async def _take_further(self, execution: TaskExecution) -> None:
        """Make the records that the state of the task lacks, and have it go on."""
        last = _run_data(self._last.get((Kind.RUN, execution.id)))
        match execution.state:
            case Task.OPEN | Task.WAITING_FOR_SUBTASKS if (skipped := self._skipped(execution)) is not None:
                await self._pipeline.skip(execution, skipped, BEFORE)
            case Task.OPEN:
                await self._queue(execution)
            case Task.CLAIMED | Task.IN_PROGRESS | Task.WAITING_FOR_SUBTASKS if self._is_completed(execution):
                if execution.job is Job.VALIDATING:
                    await execution.post_job(job.ValidationPassed())
                elif execution.job is None:
                    execution.earlier_job = self._last_job(execution.id)
                execution.judged = last.judged
                await self._pipeline.accept(execution)
            case Task.CLAIMED | Task.IN_PROGRESS if not execution.has_run:
                # The run was cancelled, and the task was about to fail.
                await self._pipeline.fail(execution, last.last_error or ORPHANED)
            case Task.CLAIMED | Task.IN_PROGRESS | Task.WAITING_FOR_SUBTASKS if self._is_rejected(execution):
                error = execution.run_data.last_error
                await self._plan_run.decide_retry(execution)
                if execution.job is Job.VALIDATING:
                    await execution.post_job(job.ValidationFailed(failed_rules=(error,)))
                is_split = execution.state is Task.WAITING_FOR_SUBTASKS
                await (self._pipeline.reject_whole if is_split else self._pipeline.fail)(execution, error)
            case Task.CLAIMED | Task.IN_PROGRESS if self._plan_run.lives(execution.session_id):
                await self._with_session(execution)
            case Task.CLAIMED | Task.IN_PROGRESS:
                await self._without_session(execution)
            case Task.ORPHANED:
                await self._adopt(execution)
            case Task.BLOCKED:
                await self._blocked(execution)
            case Task.DONE if execution.is_done:
                await self._pipeline.deliver(execution)
            case Task.DONE:  # what its subtasks made was rejected
                await self._pipeline.reject_done(execution, f"not accepted: {execution.run_data.last_error}")
            case Task.FAILED if execution.data.last_failure == ORPHANED:  # tried again only by a person
                await self._pipeline.cancel_records(execution, ORPHANED)
                await self._pipeline.settle_failed(execution, ORPHANED)
            case Task.FAILED:
                await self._pipeline.continue_failed(execution)

    async def _blocked(self, execution: TaskExecution) -> None:
        """Leave the task blocked, and end its session. A task whose subtask has failed was about to be cancelled:
        cancel it. (A subtask that did not end in time may still be tried again.)"""
        records = await self._sup.journal.events(entity_id=execution.id)
        last_event = next((one.event for one in reversed(records) if one.outcome == "transition"), "")
        awaited = [subtask.name for subtask in execution.subtasks if subtask.id in execution.data.waiting_for]
        if last_event == task.SubtaskFailed.spelled and awaited:
            await self._pipeline.cancel(execution, f"its subtask {awaited[0]} did not complete")
            return
        if execution.session_lives:
            await self._sup.close_session(execution.session_id, reason=ORPHANED, cause=execution.cause)
        await self._attempt_runner.put_back(execution, ORPHANED)
        self._plan_run.publish(TaskReleased(execution))

    # ------------------------------------------------------------------ it waits for a worker
    async def _queue(self, execution: TaskExecution) -> None:
        """Have run and job wait for another worker."""
        if execution.has_run and execution.run is TaskRun.PENDING and execution.job in (None, Job.PENDING):
            if execution.job is None:
                execution.open_job()
            await self._plan_run.queue(execution, execution.task.depends_on)
            self._plan_run.offer(execution)
        elif not execution.has_run or execution.job not in (Job.QUEUED, Job.RUNNING, Job.RETRYING):
            execution.bury_run()
            await self._plan_run.open_again(execution)
        elif execution.job is Job.RETRYING:
            self._plan_run.start(self._attempt_runner.wait, execution, self._delay_left_s(execution))
        else:  # also for a job that waits: its run may still be in progress, or undecided
            await self._attempt_runner.put_back(execution, ORPHANED)
            left_s = self._delay_left_s(execution)
            if execution.run is TaskRun.RETRYING and execution.job is Job.QUEUED and left_s > 0.0:
                execution.phase = Phase.DELAYED
            if is_delayed(execution):
                self._plan_run.start(self._attempt_runner.wait, execution, left_s)
            else:
                self._plan_run.offer(execution)

    def _delay_left_s(self, execution: TaskExecution) -> float:
        """Return the seconds that are left of the task's delay. It went on while there was no supervisor."""
        delay_s = execution.run_data.cooldown_s if execution.run is TaskRun.CIRCUIT_OPEN else execution.run_data.delay_s
        return max(0.0, delay_s - max(0.0, self._sup.journal_writer.clock.wall.time() - execution.run_changed_at))

    async def _let_wait(self, execution: TaskExecution) -> None:
        """Continue a task that was split: follow its own turn if that goes on, else leave the rest to its subtasks. If
        it was to be tried again, its delay goes on."""
        if execution.job is Job.RUNNING:
            await execution.post_job(job.WorkerLost(error=ORPHANED))
        await self._plan_run.decide_retry(execution, charged=False)
        if execution.job is None and execution.run is TaskRun.CIRCUIT_OPEN:  # another run was about to take its place
            await self._attempt_runner.renew(execution)
        elif is_delayed(execution) and execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):
            self._plan_run.start(self._attempt_runner.wait, execution, self._delay_left_s(execution))
        elif execution.job is Job.RETRYING:
            await execution.post_job(job.RetryDelayElapsed())
        is_queued = execution.run is TaskRun.IN_PROGRESS and execution.job is Job.QUEUED
        if is_queued and not execution.is_over and self._plan_run.lives(execution.session_id):
            execution.phase = Phase.FOLLOWED
            self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
            self._plan_run.offer(execution)

    # ------------------------------------------------------------------ its session goes on
    async def _with_session(self, execution: TaskExecution) -> None:
        """Continue a task whose session goes on."""
        self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
        match execution.run:
            case TaskRun.IN_PROGRESS:
                execution.phase = Phase.FOLLOWED
                await self._offer_again(execution)
            case TaskRun.VALIDATING:
                if execution.job is Job.RUNNING:
                    await execution.post_job(job.ExecutionCompleted())
                await self._pipeline.check(execution)
            case _:
                await self._try_again(execution)

    async def _try_again(self, execution: TaskExecution) -> None:
        """Let the run decide about another attempt, after its attempt was judged, or do what it had decided.

        A retry is charged once. If the dead supervisor had charged it, and had not recorded the decision of its job,
        the retry is given back first.
        """
        decides = execution.run in (TaskRun.FAILED, TaskRun.TIMEOUT)
        job_lacks = execution.job is Job.RUNNING and execution.job_changed_at <= execution.run_changed_at
        was_charged = execution.run is TaskRun.RETRYING and job_lacks
        if was_charged:
            self._plan_run.budget = self._plan_run.budget.given_back()
        await self._plan_run.decide_retry(execution, charged=decides or was_charged)
        error, data = execution.run_data.last_error, execution.run_data
        # The run has failed for good if its tests had, or no probe is left. (If its last probe was taken away, the task
        # is not claimed any more, and does not come here.)
        is_tested = execution.job in (None, Job.VALIDATING)
        if execution.run is TaskRun.CIRCUIT_OPEN and (is_tested or not probes_left(data, task_run.CooldownExpired())):
            if execution.job is Job.VALIDATING:
                await execution.post_job(job.ValidationFailed(failed_rules=(error,)))
            elif execution.job is Job.RUNNING:
                await execution.post_job(job.ExecutionFailed(error=error, final=True))
            await self._pipeline.end_records(execution, error)  # the job waits, if its worker was lost before
            await self._pipeline.fail(execution, error)
            return
        retries_left = execution.job is Job.RUNNING and execution.job_data.retry_count < execution.job_data.max_retries
        if (decides or was_charged) and retries_left:
            await execution.post_job(job.ExecutionFailed(error=error))
        await self._queue(execution)

    async def _offer_again(self, execution: TaskExecution) -> None:
        """Have the job wait for another worker at once, wherever the dead supervisor got on the way there."""
        if execution.job is Job.RUNNING:
            await execution.post_job(job.WorkerLost(error=ORPHANED))
        if execution.job is Job.RETRYING:
            await execution.post_job(job.RetryDelayElapsed())
        self._plan_run.offer(execution)

    # ------------------------------------------------------------------ it is lost
    async def _without_session(self, execution: TaskExecution) -> None:
        """Continue a task whose session is lost, by the end that the journal has of the session."""
        row = self._sup.recovered_work.rows.get(execution.session_id)
        data = msgspec.json.decode(row.data, type=SessionData) if row is not None else None
        how, error = ("", "") if data is None or data.last_error == WHY else (data.outcome, data.last_error)
        if how == "aborted" and await is_stalled(self._sup.journal, execution.session_id):
            how = "stalled"
        above = execution.parent
        match how:
            case "aborted":
                await self._pipeline.cancel(execution, error)
            case "failed":
                await self._fail(execution, error)
            case _ if above is not None and above.result is not None:  # the supervisor was about to cancel the task
                await self._pipeline.cancel(execution, f"{above.name} is {above.result.outcome}")
            case "stalled" if execution.run is not TaskRun.VALIDATING:
                if execution.run is TaskRun.IN_PROGRESS:  # else the attempt had been judged before the kill
                    await self._attempt_runner.charge(execution, as_timed_out(Outcome("aborted", error, "")))
                await self._try_again(execution)
            case _ if execution.state is Task.CLAIMED:
                recovered = TransitionReason.ORPHAN_RECOVERED
                await execution.post(task.Unclaimed(reason=ORPHANED, transition_reason=recovered))
                await self._queue(execution)
            case _:
                await execution.post(task.Orphaned(reason=ORPHANED))
                await self._adopt(execution)

    async def _adopt(self, execution: TaskExecution) -> None:
        """Decide about an orphan, by ``recovery.orphans`` and within the retries of the task."""
        match self._sup.settings.recovery.orphans:
            case "done" if self._is_at_work(execution) and authorization.allows(self._plan_run, execution, "recovered"):
                await self._finish(execution)
            case "open" | "done" if execution.data.claims <= execution.data.max_retries:
                await self._give_up_validation(execution)
                recovered = TransitionReason.ORPHAN_RECOVERED
                await execution.post(task.Requeued(reason=ORPHANED, transition_reason=recovered))
                await self._queue(execution)
            case _:
                await execution.post(task.RecoveryFailed(reason=ORPHANED))
                await self._pipeline.cancel_records(execution, ORPHANED)
                await self._pipeline.settle_failed(execution, ORPHANED)

    def _is_at_work(self, execution: TaskExecution) -> bool:
        """Return whether an attempt was under way, or counted as done. A failed attempt waits for another one: it left
        no work that the crash interrupted."""
        if not execution.has_run:
            return self._is_completed(execution)
        return execution.run in (TaskRun.IN_PROGRESS, TaskRun.VALIDATING)

    async def _finish(self, execution: TaskExecution) -> None:
        """Count the work of an orphan as the whole. An earlier supervisor may have recorded so for some of the
        entities."""
        if execution.has_run and execution.run is TaskRun.IN_PROGRESS:
            await execution.post_run(task_run.ExecutionCompleted())
        if execution.job is Job.RUNNING:
            await execution.post_job(job.ExecutionCompleted())
        if execution.has_run and execution.run is TaskRun.VALIDATING:
            await execution.post_run(task_run.TestsPassed())
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationPassed())
        elif execution.job in (Job.QUEUED, Job.RETRYING):  # the worker was lost under an earlier supervisor
            await execution.post_job(job.UserCancelled(reason="recovery.orphans is done"))
        await execution.post(task.Recovered(reason="recovery.orphans is done", summary=execution.data.summary))
        await self._pipeline.deliver(execution)

    async def _give_up_validation(self, execution: TaskExecution) -> None:
        """Fail the tests that were under way: what they tested is not there any more."""
        if execution.has_run and execution.run is TaskRun.VALIDATING:
            await execution.post_run(task_run.TestsFailed(error=ORPHANED))
            await self._plan_run.decide_retry(execution)
            if execution.job is Job.RUNNING:
                await execution.post_job(job.ExecutionCompleted())
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationFailed(failed_rules=(ORPHANED,)))

    async def _fail(self, execution: TaskExecution, error: str) -> None:
        """Fail a task whose session had given up, which the task had no record of yet."""
        if execution.run is TaskRun.IN_PROGRESS:
            failed = task_run.ExecutionFailed(error=error, category=ErrorCategory.PERMANENT)
            await execution.post_run(failed)
        if execution.run in (TaskRun.FAILED, TaskRun.CIRCUIT_OPEN):
            await self._plan_run.decide_retry(execution)
        if execution.run is TaskRun.RETRYING:  # a plug-in wanted another attempt
            if execution.job is Job.RUNNING:
                await execution.post_job(job.ExecutionFailed(error=error))
            await self._queue(execution)
            return
        await self._give_up_validation(execution)
        if execution.job is Job.RUNNING:
            await execution.post_job(job.ExecutionFailed(error=error, final=True))
        await self._pipeline.end_records(execution, error)
        await self._pipeline.fail(execution, error)


def _run_data(row: EntityRow | None) -> TaskRunData:
    """Return the data of a run as the journal has it; the defaults where there is no run."""
    return TaskRunData() if row is None else msgspec.json.decode(row.data, type=TaskRunData)
