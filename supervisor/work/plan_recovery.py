"""Goes on with a run of a plan that its supervisor's death interrupted.

What is settled stays so. A task whose session goes on is followed there; one whose session is lost is an orphan, which
``recovery.orphans`` decides about. Its worker died with the supervisor: so its job waits for another one, charged with
nothing. A record that was about to be made when the supervisor died is made now: the task leads, run and job follow.
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
from supervisor.work.checkpoints import owned, take_back
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_run import PlanRun
from supervisor.work.results import TaskResult, unmerged_of
from supervisor.work.task_execution import ACTOR, Checkpoint, TaskExecution, checkpoint_after

__all__ = ["PlanRecovery"]

ORPHANED = "the supervisor of its session ended"
WAITS_AGAIN = "what it was blocked on is there; it waits for its subtasks again"
BEFORE = "settled before the supervisor of this run ended"
FINAL = frozenset({Task.CLOSED, Task.CANCELLED})


class PlanRecovery:
    """Takes up what an earlier supervisor left of a plan."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline, attempt_runner: AttemptRunner) -> None:
        self._plan_run, self._pipeline, self._attempt_runner = plan_run, pipeline, attempt_runner
        self._sup = plan_run.sup
        self._left: Mapping[str, InterruptedTask] = {}
        self._taken: set[str] = set()
        self._executions: list[TaskExecution] = []
        self._living: dict[tuple[Kind, str], list[Entity]] = {}
        """The runs, and the jobs, that go on, by task."""
        self._strays: list[Entity] = []
        """Subtasks, with their runs and jobs, of tasks that their supervisor did not live to split into them."""
        self._remains: list[Entity] = []
        """The runs, and the jobs, of tasks that are settled: their supervisor did not live to say so."""
        self._last: dict[tuple[str, str], EntityRow] = {}
        """The newest run, and the newest job, of each task, as the journal had them."""

    @property
    def words(self) -> tuple[str, ...]:
        """What is gone on with: a task and its state."""
        return tuple(f"{name} ({left.state.value})" for name, left in self._left.items())

    @property
    def ids(self) -> Mapping[str, str]:
        """The tasks that were left, and their entities."""
        return {name: left.entity_id for name, left in self._left.items()}

    def find(self, plan: Plan) -> bool:
        """Whether there is a run to go on with; whoever comes first has it."""
        inherited = self._sup.inherited
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
        """What belongs to them, and nobody has taken up."""
        work = self._sup.inherited.work
        return {row.id for row in self._sup.inherited.rows.values() if row.parent_id in owners and row.id in work}

    def untouched(self, executions: Iterable[TaskExecution]) -> list[Entity]:
        """Return the entities that were taken over and have not ended, except those of *executions* and the workers
        that were ended with the earlier supervisor."""
        known = {one for execution in executions for one in execution.entity_ids} | self._plan_run.worker_pool.left
        alive = (self._sup.registry.entities.get(one) for one in sorted(self._taken - known))
        return [one for one in alive if one is not None and not one.ended]

    @property
    def over(self) -> list[Entity]:
        """What was taken over, and is over by now, though nobody lived to see that."""
        known = (self._sup.registry.entities.get(one) for one in sorted(self._taken))
        return [one for one in known if one is not None and one.ended]

    def _read(self) -> None:
        """Whose every run and job is, once for all tasks; and what they have spent."""
        for one in self._sup.registry.entities.values():
            if one.kind in (Kind.RUN, Kind.JOB):
                self._living.setdefault((one.kind, one.parent_id or ""), []).append(one)
        rows = sorted(self._sup.inherited.rows.values(), key=lambda row: row.born_seq)
        for row in rows:
            self._last[row.kind, row.parent_id or ""] = row
        ids = set(self.ids.values())
        runs = [
            (TaskRun(row.state), msgspec.json.decode(row.data, type=TaskRunData))
            for row in rows
            if row.kind == Kind.RUN and row.parent_id in ids
        ]
        spent = retries_spent((left.data for left in self._left.values()), runs)
        self._plan_run.budget = msgspec.structs.replace(self._plan_run.budget, spent=spent)

    @property
    def unmerged(self) -> Mapping[str, InterruptedTask]:
        """What was closed with its work on its branch, as the whole was given up: nobody lived to end that."""
        return {name: left for name, left in self._left.items() if left.state is Task.CLOSED and left.is_unmerged}

    def do_again(self, names: Collection[str]) -> None:
        """Have these tasks count as new ones."""
        self._left = {name: left for name, left in self._left.items() if name not in names}

    def grown(self, plan: Plan) -> Iterator[Plan]:
        """*plan*, and what it had grown to when its tasks were split."""
        return grown(plan, self._left)

    def has(self, execution: TaskExecution) -> bool:
        """Whether that task was left."""
        return execution.name in self._left

    def take_up(self, execution: TaskExecution) -> bool:
        """Have that task go on, if it was left."""
        left = self._left.get(execution.name)
        if left is None:
            return False
        execution.session_id = left.data.claimed_by
        if left.state in FINAL:
            self._remains += [one for kind in (Kind.RUN, Kind.JOB) if (one := self._alive(kind, left)) is not None]
            execution.done_job = self._last_job(left.entity_id)
            execution.settled_id, execution.result = left.entity_id, self._settled_before(left)
            self._plan_run.unsettled -= 1
        else:
            execution.take_up(
                self._sup.registry.entity(left.entity_id), self._alive(Kind.RUN, left), self._alive(Kind.JOB, left)
            )
            if (Kind.RUN, left.entity_id) not in self._last:  # its supervisor did not live to open one
                execution.open_run(self._plan_run.limits_of(execution))
            execution.agent = self._plan_run.agent_of(execution)
            execution.checkpoint = None if execution.has_run else self._last_checkpoint(execution)
            self._executions.append(execution)
        return True

    def _alive(self, kind: Kind, left: InterruptedTask) -> Entity | None:
        """The newest of that kind that belongs to the task, unless that is over. Earlier runs, whose circuits are open,
        rest for good: they say nothing of the try that was under way."""
        row = self._last.get((kind, left.entity_id))
        newest = None
        for one in self._living.get((kind, left.entity_id), []):
            if row is not None and one.id == row.id:
                newest = one
            else:
                self._sup.registry.remove(one.id)
        return newest

    def _last_checkpoint(self, execution: TaskExecution) -> Checkpoint | None:
        """What is gone on with after its last run, which is over."""
        row = self._last.get((Kind.RUN, execution.id))
        if row is None:
            return None
        data = msgspec.json.decode(row.data, type=TaskRunData)
        return checkpoint_after(row.id, TaskRun(row.state), data, rollback=execution.task.rollback)

    def _last_error(self, execution: TaskExecution) -> str:
        """What its last run, which is over, had failed with; else why that was not gone on with."""
        row = self._last.get((Kind.RUN, execution.id))
        return (msgspec.json.decode(row.data, type=TaskRunData).last_error if row is not None else "") or ORPHANED

    def _last_job(self, task_id: str) -> str:
        """The job that completed a task, if one did: what was recovered as done may have none."""
        row = self._last.get((Kind.JOB, task_id))
        return row.id if row is not None and row.state == Job.COMPLETED.value else ""

    def _is_rejected(self, execution: TaskExecution) -> bool:
        """Its run is, by its tests, and its job or itself had not heard of that."""
        if not execution.has_run or execution.run not in (TaskRun.FAILED, TaskRun.CIRCUIT_OPEN):
            return False
        if execution.state is not Task.WAITING_FOR_SUBTASKS:
            return execution.job is Job.VALIDATING
        row = self._last.get((Kind.JOB, execution.id))
        was_tested = row is not None and row.state in (Job.VALIDATING.value, Job.FAILED.value)
        return was_tested and all(part.is_met for part in execution.parts)  # else it failed itself, and was split then

    def _is_completed(self, execution: TaskExecution) -> bool:
        """Its run is, and it had not heard of that."""
        row = None if execution.has_run else self._last.get((Kind.RUN, execution.id))
        return row is not None and row.state == TaskRun.COMPLETED.value

    def _skipped(self, execution: TaskExecution) -> SkipCause | None:
        """Why its run was skipped, if it was, and it had not heard of that."""
        row = None if execution.has_run else self._last.get((Kind.RUN, execution.id))
        return msgspec.json.decode(row.data, type=TaskRunData).skipped if row is not None else None

    async def _accept(self, execution: TaskExecution) -> None:
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationPassed())
        elif execution.job is None:
            execution.done_job = self._last_job(execution.id)
        if (row := self._last.get((Kind.RUN, execution.id))) is not None:
            execution.judged = msgspec.json.decode(row.data, type=TaskRunData).judged
        await self._pipeline.accept(execution)

    def _settled_before(self, left: InterruptedTask) -> TaskResult:
        """What became of a task that was settled under an earlier supervisor."""
        name, by = left.data.name, left.data.claimed_by
        if left.state is Task.CLOSED:
            return TaskResult(name, by, "completed", "", 0.0, *unmerged_of(left.data.rest))
        row = self._last.get((Kind.RUN, left.entity_id))
        match msgspec.json.decode(row.data, type=TaskRunData).skipped if row is not None else None:
            case None:
                return TaskResult(name, by, "aborted", BEFORE, 0.0)
            case SkipCause.DEPENDENCY_FAILED:
                return TaskResult(name, by, "blocked", BEFORE, 0.0)
            case _:
                return TaskResult(name, by, "skipped", BEFORE, 0.0)

    async def go_on(self) -> list[TaskExecution]:
        """Bring everything to where it goes on; those that only wait for others."""
        for session_id in await self.unclaimed():
            self._plan_run.start(self._end_session, session_id)
        await end_work(self._sup.registry, self._strays, ())
        for remains in self._remains:
            await self._end_remains(remains)
        for execution in self._plan_run.executions.values():
            if execution.result is not None:
                self._plan_run.backlog.settle(execution.name, completed=execution.is_met)
            if execution.result is not None and not execution.is_imported:
                await self._end_place(execution)
        for execution in self._executions:
            if execution.taken_back and execution.has_run:  # its supervisor may not have lived to do so
                await take_back(self._sup, execution)
        waiting = []
        for execution in self._executions:
            if (
                execution.state is Task.OPEN
                and execution.data.parts
                and any(part.result is None for part in execution.parts)
            ):
                await execution.post(
                    task.Split(subtasks=tuple(part.id for part in execution.parts), reason=WAITS_AGAIN)
                )
            told = self._is_completed(execution) or self._skipped(execution) or self._is_rejected(execution)
            waits = execution.state is Task.WAITING_FOR_SUBTASKS and not told
            if waits:
                await self._let_wait(execution)
            if waits or execution.state is Task.PLANNED or self._is_untouched(execution):
                waiting.append(execution)
            else:
                await self._plan_run.started(self._go_on, execution)
        return waiting

    async def _end_place(self, execution: TaskExecution) -> None:
        """What was to be taken back, or dropped, when it was settled: its supervisor may not have lived to do it."""
        if self._left[execution.name].state is not Task.CLOSED:
            await take_back(self._sup, execution)
        elif execution.task.rollback:
            await self._sup.janitor.forget(owned(self._sup, execution))

    async def unclaimed(self) -> list[str]:
        """The sessions that were begun for a task, and do not hold it: their claim is not on record, or the task is
        settled. They have nothing to do."""
        ids, rows = set(self.ids.values()), self._sup.inherited.rows
        if not ids:
            return []
        ours = ids | {row.id for row in rows.values() if row.parent_id in ids}
        held = {left.data.claimed_by for left in self._left.values() if left.state not in FINAL}
        idle = [one for one in self._sup.registry.sessions if one in rows and one not in held]
        return [one for one in idle if rows[one].parent_id is None and await self._begun_for(one) in ours]

    async def _end_remains(self, entity: Entity) -> None:
        cancelled = task_run.Cancelled if entity.kind is Kind.RUN else job.UserCancelled
        if cancelled in entity.lifecycle.machine.allowed(entity.state):
            cause = Cause(entity.born_seq, None, ACTOR)
            await self._sup.registry.post(entity.id, cancelled(reason=ORPHANED), cause=cause)
        self._sup.registry.remove(entity.id)

    async def _begun_for(self, session_id: str) -> str:
        """Whose record a session was begun for."""
        journal = self._sup.journal
        [born] = await journal.events(entity_id=session_id, limit=1)
        if not born.cause_id:
            return ""
        [cause] = await journal.events(after_seq=born.cause_id - 1, limit=1)
        return cause.entity_id

    async def _end_session(self, session_id: str) -> None:
        with suppress(NoSuchEntity, Refused, JournalError):
            await self._sup.close_session(session_id, reason=ORPHANED, cause=Cause(actor=ACTOR))
        await self._sup.janitor.put_away(session_id, f"what {session_id} left")

    def _is_untouched(self, execution: TaskExecution) -> bool:
        """Its run was never begun. (One that rests in its open circuit is of an earlier try: another one is due.)"""
        fresh = execution.has_run and execution.run is TaskRun.PENDING
        return (
            execution.state is Task.OPEN
            and execution.job in (None, Job.PENDING)
            and fresh
            and not self._is_tried(execution)
        )

    @staticmethod
    def _is_tried(execution: TaskExecution) -> bool:
        """It was tried or turned down, and its subtasks, if it was split, are settled: it is tried as it is, and not
        split again, whatever became of its condition. (Of one that was neither the subtasks were settled before it
        came to them.)"""
        data = execution.data
        if not (data.claims or data.retries or data.last_failure):
            return False
        return all(part.result is not None and not part.is_imported for part in execution.parts)

    async def _go_on(self, execution: TaskExecution, *, task_status: TaskStatus[None]) -> None:
        async with execution.lock:
            task_status.started()  # whoever commands it from now on waits for its lock
            if not execution.is_over:
                await self._take_further(execution)

    async def _take_further(self, execution: TaskExecution) -> None:
        match execution.state:
            case Task.OPEN | Task.WAITING_FOR_SUBTASKS if (skipped := self._skipped(execution)) is not None:
                await self._pipeline.skip(execution, skipped, BEFORE)
            case Task.OPEN:
                await self._queue(execution)
            case Task.CLAIMED | Task.IN_PROGRESS | Task.WAITING_FOR_SUBTASKS if self._is_completed(execution):
                await self._accept(execution)
            case Task.CLAIMED | Task.IN_PROGRESS if not execution.has_run:  # that was cancelled, and itself was to fail
                await self._pipeline.failed(execution, self._last_error(execution))
            case Task.CLAIMED | Task.IN_PROGRESS | Task.WAITING_FOR_SUBTASKS if self._is_rejected(execution):
                await self._reject(execution)
            case Task.CLAIMED | Task.IN_PROGRESS:
                await (self._with_session if self._plan_run.lives(execution.session_id) else self._without_session)(
                    execution
                )
            case Task.ORPHANED:
                await self._adopt(execution)
            case Task.BLOCKED:
                await self._blocked(execution)
            case Task.DONE if execution.is_done:
                await self._pipeline.deliver(execution)
            case Task.DONE:  # as a whole it was turned down
                await self._pipeline.turn_down(execution, execution.run_data.last_error)
            case Task.FAILED if execution.data.last_failure == ORPHANED:  # nobody tries it again by himself
                await self._pipeline.cancel_records(execution, ORPHANED)
                await self._pipeline.rest(execution, ORPHANED)
            case Task.FAILED:
                await self._pipeline.failed_before(execution)

    async def _reject(self, execution: TaskExecution) -> None:
        error = execution.run_data.last_error
        await self._plan_run.decide(execution)
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationFailed(failed_rules=(error,)))
        is_split = execution.state is Task.WAITING_FOR_SUBTASKS
        await (self._pipeline.reject_whole if is_split else self._pipeline.failed)(execution, error)

    async def _blocked(self, execution: TaskExecution) -> None:
        """It stays so; nobody works on it meanwhile. One whose subtask has failed was about to be cancelled."""
        if (part := await self._failed_part(execution)) is not None:
            await self._pipeline.cancelled(execution, f"its subtask {part.name} did not complete")
            return
        if execution.session_lives:
            await self._sup.close_session(execution.session_id, reason=ORPHANED, cause=execution.cause)
        await self._attempt_runner.put_back(execution, ORPHANED)
        self._plan_run.on_let_go(execution)

    async def _failed_part(self, execution: TaskExecution) -> TaskExecution | None:
        """The subtask that it is blocked on for good: one that did not answer may still be tried anew."""
        records = await self._sup.journal.events(entity_id=execution.id)
        moved = next((one.event for one in reversed(records) if one.outcome == "transition"), "")
        if moved != task.SubtaskFailed.spelled:
            return None
        return next((part for part in execution.parts if part.id in execution.data.waiting_for), None)

    # ------------------------------------------------------------------ it waits for a worker
    async def _queue(self, execution: TaskExecution) -> None:
        """Have its run and job wait for another worker."""
        if execution.has_run and execution.run is TaskRun.PENDING and execution.job in (None, Job.PENDING):
            if execution.job is None:
                execution.open_job()
            await self._plan_run.queue(execution)
        elif not execution.has_run or execution.job not in (Job.QUEUED, Job.RUNNING, Job.RETRYING):
            execution.bury_run()
            await self._plan_run.open_again(execution)
        elif execution.job is Job.RETRYING:
            self._plan_run.start(self._attempt_runner.wait, execution, self._delay_left_s(execution))
        else:  # also where its job waits: its run may be left as it was under way, or where it decides
            await self._attempt_runner.put_back(execution, ORPHANED)
            left_s = self._delay_left_s(execution)
            execution.delayed |= execution.run is TaskRun.RETRYING and execution.job is Job.QUEUED and left_s > 0.0
            if is_delayed(execution):
                self._plan_run.start(self._attempt_runner.wait, execution, left_s)
            else:
                self._plan_run.offer(execution)

    def _delay_left_s(self, execution: TaskExecution) -> float:
        """What is left of its delay, which is all of it at most: while nobody was there it went on, too."""
        delay_s = execution.run_data.cooldown_s if execution.run is TaskRun.CIRCUIT_OPEN else execution.run_data.delay_s
        return max(0.0, delay_s - max(0.0, self._sup.journal_writer.clock.wall.time() - execution.run_changed_at))

    async def _let_wait(self, execution: TaskExecution) -> None:
        """It was split: the turn that was under way then is followed, if it goes on; else the rest is its subtasks'. If
        it was to be tried again, its delay goes on."""
        if execution.job is Job.RUNNING:
            await execution.post_job(job.WorkerLost(error=ORPHANED))
        await self._plan_run.decide(execution, charged=False)
        if execution.job is None and execution.run is TaskRun.CIRCUIT_OPEN:  # another run was about to take its place
            await self._attempt_runner.renew(execution)
        elif is_delayed(execution) and execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):
            self._plan_run.start(self._attempt_runner.wait, execution, self._delay_left_s(execution))
        elif execution.job is Job.RETRYING:
            await execution.post_job(job.RetryDelayElapsed())
        execution.followed = (
            execution.run is TaskRun.IN_PROGRESS
            and execution.job is Job.QUEUED
            and self._plan_run.lives(execution.session_id)
        )
        if execution.followed:
            self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
            self._plan_run.offer(execution)

    # ------------------------------------------------------------------ its session goes on
    async def _with_session(self, execution: TaskExecution) -> None:
        self._plan_run.attach_session(execution, may_split=authorization.may_split(self._plan_run, execution))
        match execution.run:
            case TaskRun.IN_PROGRESS:
                execution.followed = True
                await self._offer_again(execution)
            case TaskRun.VALIDATING:
                if execution.job is Job.RUNNING:
                    await execution.post_job(job.ExecutionCompleted())
                await self._pipeline.judge(execution)
            case _:
                await self._try_again(execution)

    async def _try_again(self, execution: TaskExecution) -> None:
        """Its attempt has been judged: what its run decides about another one, or had decided. That is charged once:
        what its supervisor had charged, and did not live to say of its job, is given back first."""
        decides = execution.run in (TaskRun.FAILED, TaskRun.TIMEOUT)
        unheard = (
            execution.run is TaskRun.RETRYING
            and execution.job is Job.RUNNING
            and execution.job_changed_at <= execution.run_changed_at
        )
        if unheard:
            self._plan_run.budget = self._plan_run.budget.given_back()
        await self._plan_run.decide(execution, charged=decides or unheard)
        if self._is_settled(execution):
            await self._end_failed(execution)
            return
        tells = execution.job is Job.RUNNING and (decides or unheard)
        if tells and execution.job_data.retry_count < execution.job_data.max_retries:
            await execution.post_job(job.ExecutionFailed(error=execution.run_data.last_error))
        await self._queue(execution)

    @staticmethod
    def _is_settled(execution: TaskExecution) -> bool:
        """Its run had failed for good: its tests had, or no probe is left. (Whose last probe was taken away is not
        claimed any more.)"""
        if execution.run is not TaskRun.CIRCUIT_OPEN:
            return False
        return not probes_left(execution.run_data, task_run.CooldownExpired()) or execution.job in (
            None,
            Job.VALIDATING,
        )

    async def _offer_again(self, execution: TaskExecution) -> None:
        """Have its job wait for another worker, at once; its supervisor may have got anywhere on the way there."""
        if execution.job is Job.RUNNING:
            await execution.post_job(job.WorkerLost(error=ORPHANED))
        if execution.job is Job.RETRYING:
            await execution.post_job(job.RetryDelayElapsed())
        self._plan_run.offer(execution)

    async def _end_failed(self, execution: TaskExecution) -> None:
        """Its run had failed for good, and it had not heard of that."""
        error = execution.run_data.last_error
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationFailed(failed_rules=(error,)))
        elif execution.job is Job.RUNNING:
            await execution.post_job(job.ExecutionFailed(error=error, final=True))
        await self._pipeline.end_records(execution, error)  # whose worker was lost before has a job that waits
        await self._pipeline.failed(execution, error)

    # ------------------------------------------------------------------ it is lost
    async def _without_session(self, execution: TaskExecution) -> None:
        row = self._sup.inherited.rows.get(execution.session_id)
        data = msgspec.json.decode(row.data, type=SessionData) if row is not None else None
        how, error = ("", "") if data is None or data.last_error == WHY else (data.outcome, data.last_error)
        if how == "aborted" and await is_stalled(self._sup.journal, execution.session_id):
            how = "stalled"
        above = execution.part_of
        match how:
            case "aborted":
                await self._pipeline.cancelled(execution, error)
            case "failed":
                await self._fail(execution, error)
            case _ if above is not None and above.result is not None:  # its supervisor was to cancel it
                await self._pipeline.cancelled(execution, f"{above.name} is {above.result.outcome}")
            case "stalled" if execution.run is not TaskRun.VALIDATING:
                if execution.run is TaskRun.IN_PROGRESS:  # else it had been judged before the kill
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
        """An orphan: what the policy says, within its retries."""
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
                await self._pipeline.rest(execution, ORPHANED)

    def _is_at_work(self, execution: TaskExecution) -> bool:
        """An attempt was under way, or had been counted as done already. One that had failed waits for another: what it
        has left is no work that a crash interrupted."""
        if not execution.has_run:
            return self._is_completed(execution)
        return execution.run in (TaskRun.IN_PROGRESS, TaskRun.VALIDATING)

    async def _finish(self, execution: TaskExecution) -> None:
        """What it had done counts as the whole; an earlier supervisor may have said so of its run, and not of it."""
        if execution.has_run and execution.run is TaskRun.IN_PROGRESS:
            await execution.post_run(task_run.ExecutionCompleted())
        if execution.job is Job.RUNNING:
            await execution.post_job(job.ExecutionCompleted())
        if execution.has_run and execution.run is TaskRun.VALIDATING:
            await execution.post_run(task_run.TestsPassed())
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationPassed())
        elif execution.job in (Job.QUEUED, Job.RETRYING):  # its worker was lost to a supervisor before
            await execution.post_job(job.UserCancelled(reason="recovery.orphans is done"))
        await execution.post(task.Recovered(reason="recovery.orphans is done", summary=execution.data.summary))
        await self._pipeline.deliver(execution)

    async def _give_up_validation(self, execution: TaskExecution) -> None:
        """What was being tested is not there any more."""
        if execution.has_run and execution.run is TaskRun.VALIDATING:
            await execution.post_run(task_run.TestsFailed(error=ORPHANED))
            await self._plan_run.decide(execution)
            if execution.job is Job.RUNNING:
                await execution.post_job(job.ExecutionCompleted())
        if execution.job is Job.VALIDATING:
            await execution.post_job(job.ValidationFailed(failed_rules=(ORPHANED,)))

    async def _fail(self, execution: TaskExecution, error: str) -> None:
        """Its session had given up, and the task had not heard of that."""
        if execution.run is TaskRun.IN_PROGRESS:
            failed = task_run.ExecutionFailed(error=error, category=ErrorCategory.PERMANENT)
            await execution.post_run(failed)
        if execution.run in (TaskRun.FAILED, TaskRun.CIRCUIT_OPEN):
            await self._plan_run.decide(execution)
        if execution.run is TaskRun.RETRYING:  # a plug-in wanted another try
            if execution.job is Job.RUNNING:
                await execution.post_job(job.ExecutionFailed(error=error))
            await self._queue(execution)
            return
        await self._give_up_validation(execution)
        if execution.job is Job.RUNNING:
            await execution.post_job(job.ExecutionFailed(error=error, final=True))
        await self._pipeline.end_records(execution, error)
        await self._pipeline.failed(execution, error)
