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
from supervisor.recovery.resumable import Interrupted, continued, grown
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity, Outcome
from supervisor.work import authorization
from supervisor.work.attempt_runner import Execution, is_delayed, late
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

    def __init__(self, load: PlanRun, closing: CompletionPipeline, execution: Execution) -> None:
        self._load, self._closing, self._execution = load, closing, execution
        self._sup = load.sup
        self._left: Mapping[str, Interrupted] = {}
        self._taken: set[str] = set()
        self._cases: list[TaskExecution] = []
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
        self._load.stream.take_up(self._sup.registry.entity(workstream_id))
        return True

    def _owned(self, owners: Collection[str]) -> set[str]:
        """What belongs to them, and nobody has taken up."""
        work = self._sup.inherited.work
        return {row.id for row in self._sup.inherited.rows.values() if row.parent_id in owners and row.id in work}

    def untouched(self, cases: Iterable[TaskExecution]) -> list[Entity]:
        """What was taken over and is not over, but for what belongs to *cases*, and for the workers that have been told
        that they died."""
        known = {one for case in cases for one in case.entity_ids} | self._load.pool.left
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
        self._load.budget = msgspec.structs.replace(self._load.budget, spent=spent)

    @property
    def unmerged(self) -> Mapping[str, Interrupted]:
        """What was closed with its work on its branch, as the whole was given up: nobody lived to end that."""
        return {name: left for name, left in self._left.items() if left.state is Task.CLOSED and left.is_unmerged}

    def do_again(self, names: Collection[str]) -> None:
        """Have these tasks count as new ones."""
        self._left = {name: left for name, left in self._left.items() if name not in names}

    def grown(self, plan: Plan) -> Iterator[Plan]:
        """*plan*, and what it had grown to when its tasks were split."""
        return grown(plan, self._left)

    def has(self, case: TaskExecution) -> bool:
        """Whether that task was left."""
        return case.name in self._left

    def take_up(self, case: TaskExecution) -> bool:
        """Have that task go on, if it was left."""
        left = self._left.get(case.name)
        if left is None:
            return False
        case.session_id = left.data.claimed_by
        if left.state in FINAL:
            self._remains += [one for kind in (Kind.RUN, Kind.JOB) if (one := self._alive(kind, left)) is not None]
            case.done_job = self._last_job(left.entity_id)
            case.settled_id, case.result = left.entity_id, self._settled_before(left)
            self._load.unsettled -= 1
        else:
            case.take_up(
                self._sup.registry.entity(left.entity_id), self._alive(Kind.RUN, left), self._alive(Kind.JOB, left)
            )
            if (Kind.RUN, left.entity_id) not in self._last:  # its supervisor did not live to open one
                case.open_run(self._load.limits_of(case))
            case.agent = self._load.agent_of(case)
            case.checkpoint = None if case.has_run else self._last_checkpoint(case)
            self._cases.append(case)
        return True

    def _alive(self, kind: Kind, left: Interrupted) -> Entity | None:
        """The newest of that kind that belongs to the task, unless that is over. Earlier runs, whose circuits are open,
        rest for good: they say nothing of the try that was under way."""
        row = self._last.get((kind, left.entity_id))
        newest = None
        for one in self._living.get((kind, left.entity_id), []):
            if row is not None and one.id == row.id:
                newest = one
            else:
                self._sup.registry.bury(one.id)
        return newest

    def _last_checkpoint(self, case: TaskExecution) -> Checkpoint | None:
        """What is gone on with after its last run, which is over."""
        row = self._last.get((Kind.RUN, case.id))
        if row is None:
            return None
        data = msgspec.json.decode(row.data, type=TaskRunData)
        return checkpoint_after(row.id, TaskRun(row.state), data, rollback=case.task.rollback)

    def _last_error(self, case: TaskExecution) -> str:
        """What its last run, which is over, had failed with; else why that was not gone on with."""
        row = self._last.get((Kind.RUN, case.id))
        return (msgspec.json.decode(row.data, type=TaskRunData).last_error if row is not None else "") or ORPHANED

    def _last_job(self, task_id: str) -> str:
        """The job that completed a task, if one did: what was recovered as done may have none."""
        row = self._last.get((Kind.JOB, task_id))
        return row.id if row is not None and row.state == Job.COMPLETED.value else ""

    def _is_rejected(self, case: TaskExecution) -> bool:
        """Its run is, by its tests, and its job or itself had not heard of that."""
        if not case.has_run or case.run not in (TaskRun.FAILED, TaskRun.CIRCUIT_OPEN):
            return False
        if case.state is not Task.WAITING_FOR_SUBTASKS:
            return case.job is Job.VALIDATING
        row = self._last.get((Kind.JOB, case.id))
        was_tested = row is not None and row.state in (Job.VALIDATING.value, Job.FAILED.value)
        return was_tested and all(part.is_met for part in case.parts)  # else it failed itself, and was split then

    def _is_completed(self, case: TaskExecution) -> bool:
        """Its run is, and it had not heard of that."""
        row = None if case.has_run else self._last.get((Kind.RUN, case.id))
        return row is not None and row.state == TaskRun.COMPLETED.value

    def _skipped(self, case: TaskExecution) -> SkipCause | None:
        """Why its run was skipped, if it was, and it had not heard of that."""
        row = None if case.has_run else self._last.get((Kind.RUN, case.id))
        return msgspec.json.decode(row.data, type=TaskRunData).skipped if row is not None else None

    async def _accept(self, case: TaskExecution) -> None:
        if case.job is Job.VALIDATING:
            await case.post_job(job.ValidationPassed())
        elif case.job is None:
            case.done_job = self._last_job(case.id)
        if (row := self._last.get((Kind.RUN, case.id))) is not None:
            case.judged = msgspec.json.decode(row.data, type=TaskRunData).judged
        await self._closing.accept(case)

    def _settled_before(self, left: Interrupted) -> TaskResult:
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
            self._load.start(self._end_session, session_id)
        await end_work(self._sup.registry, self._strays, ())
        for remains in self._remains:
            await self._end_remains(remains)
        for case in self._load.cases.values():
            if case.result is not None:
                self._load.backlog.settle(case.name, completed=case.is_met)
            if case.result is not None and not case.brought:
                await self._end_place(case)
        for case in self._cases:
            if case.taken_back and case.has_run:  # its supervisor may not have lived to do so
                await take_back(self._sup, case)
        waiting = []
        for case in self._cases:
            if case.state is Task.OPEN and case.data.parts and any(part.result is None for part in case.parts):
                await case.post(task.Split(subtasks=tuple(part.id for part in case.parts), reason=WAITS_AGAIN))
            told = self._is_completed(case) or self._skipped(case) or self._is_rejected(case)
            waits = case.state is Task.WAITING_FOR_SUBTASKS and not told
            if waits:
                await self._let_wait(case)
            if waits or case.state is Task.PLANNED or self._is_untouched(case):
                waiting.append(case)
            else:
                await self._load.started(self._go_on, case)
        return waiting

    async def _end_place(self, case: TaskExecution) -> None:
        """What was to be taken back, or dropped, when it was settled: its supervisor may not have lived to do it."""
        if self._left[case.name].state is not Task.CLOSED:
            await take_back(self._sup, case)
        elif case.task.rollback:
            await self._sup.janitor.forget(owned(self._sup, case))

    async def unclaimed(self) -> list[str]:
        """The sessions that were begun for a task, and do not hold it: their claim is not on record, or the task is
        settled. They have nothing to do."""
        ids, rows = set(self.ids.values()), self._sup.inherited.rows
        if not ids:
            return []
        ours = ids | {row.id for row in rows.values() if row.parent_id in ids}
        held = {left.data.claimed_by for left in self._left.values() if left.state not in FINAL}
        idle = [one for one in self._sup.registry.works if one in rows and one not in held]
        return [one for one in idle if rows[one].parent_id is None and await self._begun_for(one) in ours]

    async def _end_remains(self, entity: Entity) -> None:
        cancelled = task_run.Cancelled if entity.kind is Kind.RUN else job.UserCancelled
        if cancelled in entity.lifecycle.machine.allowed(entity.state):
            cause = Cause(entity.born_seq, None, ACTOR)
            await self._sup.registry.post(entity.id, cancelled(reason=ORPHANED), cause=cause)
        self._sup.registry.bury(entity.id)

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
        await self._sup.janitor.clean_up(session_id, f"what {session_id} left")

    def _is_untouched(self, case: TaskExecution) -> bool:
        """Its run was never begun. (One that rests in its open circuit is of an earlier try: another one is due.)"""
        fresh = case.has_run and case.run is TaskRun.PENDING
        return case.state is Task.OPEN and case.job in (None, Job.PENDING) and fresh and not self._is_tried(case)

    @staticmethod
    def _is_tried(case: TaskExecution) -> bool:
        """It was tried or turned down, and its subtasks, if it was split, are settled: it is tried as it is, and not
        split again, whatever became of its condition. (Of one that was neither the subtasks were settled before it
        came to them.)"""
        data = case.data
        if not (data.claims or data.retries or data.last_failure):
            return False
        return all(part.result is not None and not part.brought for part in case.parts)

    async def _go_on(self, case: TaskExecution, *, task_status: TaskStatus[None]) -> None:
        async with case.lock:
            task_status.started()  # whoever commands it from now on waits for its lock
            if not case.is_over:
                await self._take_further(case)

    async def _take_further(self, case: TaskExecution) -> None:
        match case.state:
            case Task.OPEN | Task.WAITING_FOR_SUBTASKS if (skipped := self._skipped(case)) is not None:
                await self._closing.skip(case, skipped, BEFORE)
            case Task.OPEN:
                await self._queue(case)
            case Task.CLAIMED | Task.IN_PROGRESS | Task.WAITING_FOR_SUBTASKS if self._is_completed(case):
                await self._accept(case)
            case Task.CLAIMED | Task.IN_PROGRESS if not case.has_run:  # that was cancelled, and itself was to fail
                await self._closing.failed(case, self._last_error(case))
            case Task.CLAIMED | Task.IN_PROGRESS | Task.WAITING_FOR_SUBTASKS if self._is_rejected(case):
                await self._reject(case)
            case Task.CLAIMED | Task.IN_PROGRESS:
                await (self._with_session if self._load.lives(case.session_id) else self._without_session)(case)
            case Task.ORPHANED:
                await self._adopt(case)
            case Task.BLOCKED:
                await self._blocked(case)
            case Task.DONE if case.is_done:
                await self._closing.deliver(case)
            case Task.DONE:  # as a whole it was turned down
                await self._closing.turn_down(case, case.run_data.last_error)
            case Task.FAILED if case.data.last_failure == ORPHANED:  # nobody tries it again by himself
                await self._closing.cancel_records(case, ORPHANED)
                await self._closing.rest(case, ORPHANED)
            case Task.FAILED:
                await self._closing.failed_before(case)

    async def _reject(self, case: TaskExecution) -> None:
        error = case.run_data.last_error
        await self._load.decide(case)
        if case.job is Job.VALIDATING:
            await case.post_job(job.ValidationFailed(failed_rules=(error,)))
        is_split = case.state is Task.WAITING_FOR_SUBTASKS
        await (self._closing.reject_whole if is_split else self._closing.failed)(case, error)

    async def _blocked(self, case: TaskExecution) -> None:
        """It stays so; nobody works on it meanwhile. One whose subtask has failed was about to be cancelled."""
        if (part := await self._failed_part(case)) is not None:
            await self._closing.cancelled(case, f"its subtask {part.name} did not complete")
            return
        if case.session_lives:
            await self._sup.close_session(case.session_id, reason=ORPHANED, cause=case.cause)
        await self._execution.put_back(case, ORPHANED)
        self._load.on_let_go(case)

    async def _failed_part(self, case: TaskExecution) -> TaskExecution | None:
        """The subtask that it is blocked on for good: one that did not answer may still be tried anew."""
        records = await self._sup.journal.events(entity_id=case.id)
        moved = next((one.event for one in reversed(records) if one.outcome == "transition"), "")
        if moved != task.SubtaskFailed.spelled:
            return None
        return next((part for part in case.parts if part.id in case.data.waiting_for), None)

    # ------------------------------------------------------------------ it waits for a worker
    async def _queue(self, case: TaskExecution) -> None:
        """Have its run and job wait for another worker."""
        if case.has_run and case.run is TaskRun.PENDING and case.job in (None, Job.PENDING):
            if case.job is None:
                case.open_job()
            await self._load.queue(case)
        elif not case.has_run or case.job not in (Job.QUEUED, Job.RUNNING, Job.RETRYING):
            case.bury_run()
            await self._load.open_again(case)
        elif case.job is Job.RETRYING:
            self._load.start(self._execution.wait, case, self._delay_left_s(case))
        else:  # also where its job waits: its run may be left as it was under way, or where it decides
            await self._execution.put_back(case, ORPHANED)
            left_s = self._delay_left_s(case)
            case.delayed |= case.run is TaskRun.RETRYING and case.job is Job.QUEUED and left_s > 0.0
            if is_delayed(case):
                self._load.start(self._execution.wait, case, left_s)
            else:
                self._load.offer(case)

    def _delay_left_s(self, case: TaskExecution) -> float:
        """What is left of its delay, which is all of it at most: while nobody was there it went on, too."""
        delay_s = case.run_data.cooldown_s if case.run is TaskRun.CIRCUIT_OPEN else case.run_data.delay_s
        return max(0.0, delay_s - max(0.0, self._sup.journal_writer.clock.wall.time() - case.run_changed_at))

    async def _let_wait(self, case: TaskExecution) -> None:
        """It was split: the turn that was under way then is followed, if it goes on; else the rest is its subtasks'. If
        it was to be tried again, its delay goes on."""
        if case.job is Job.RUNNING:
            await case.post_job(job.WorkerLost(error=ORPHANED))
        await self._load.decide(case, charged=False)
        if case.job is None and case.run is TaskRun.CIRCUIT_OPEN:  # another run was about to take its place
            await self._execution.renew(case)
        elif is_delayed(case) and case.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):
            self._load.start(self._execution.wait, case, self._delay_left_s(case))
        elif case.job is Job.RETRYING:
            await case.post_job(job.RetryDelayElapsed())
        case.followed = case.run is TaskRun.IN_PROGRESS and case.job is Job.QUEUED and self._load.lives(case.session_id)
        if case.followed:
            self._load.equip(case, may_split=authorization.may_split(self._load, case))
            self._load.offer(case)

    # ------------------------------------------------------------------ its session goes on
    async def _with_session(self, case: TaskExecution) -> None:
        self._load.equip(case, may_split=authorization.may_split(self._load, case))
        match case.run:
            case TaskRun.IN_PROGRESS:
                case.followed = True
                await self._offer_again(case)
            case TaskRun.VALIDATING:
                if case.job is Job.RUNNING:
                    await case.post_job(job.ExecutionCompleted())
                await self._closing.judge(case)
            case _:
                await self._try_again(case)

    async def _try_again(self, case: TaskExecution) -> None:
        """Its attempt has been judged: what its run decides about another one, or had decided. That is charged once:
        what its supervisor had charged, and did not live to say of its job, is given back first."""
        decides = case.run in (TaskRun.FAILED, TaskRun.TIMEOUT)
        unheard = (
            case.run is TaskRun.RETRYING and case.job is Job.RUNNING and case.job_changed_at <= case.run_changed_at
        )
        if unheard:
            self._load.budget = self._load.budget.given_back()
        await self._load.decide(case, charged=decides or unheard)
        if self._is_settled(case):
            await self._end_failed(case)
            return
        tells = case.job is Job.RUNNING and (decides or unheard)
        if tells and case.job_data.retry_count < case.job_data.max_retries:
            await case.post_job(job.ExecutionFailed(error=case.run_data.last_error))
        await self._queue(case)

    @staticmethod
    def _is_settled(case: TaskExecution) -> bool:
        """Its run had failed for good: its tests had, or no probe is left. (Whose last probe was taken away is not
        claimed any more.)"""
        if case.run is not TaskRun.CIRCUIT_OPEN:
            return False
        return not probes_left(case.run_data, task_run.CooldownExpired()) or case.job in (None, Job.VALIDATING)

    async def _offer_again(self, case: TaskExecution) -> None:
        """Have its job wait for another worker, at once; its supervisor may have got anywhere on the way there."""
        if case.job is Job.RUNNING:
            await case.post_job(job.WorkerLost(error=ORPHANED))
        if case.job is Job.RETRYING:
            await case.post_job(job.RetryDelayElapsed())
        self._load.offer(case)

    async def _end_failed(self, case: TaskExecution) -> None:
        """Its run had failed for good, and it had not heard of that."""
        error = case.run_data.last_error
        if case.job is Job.VALIDATING:
            await case.post_job(job.ValidationFailed(failed_rules=(error,)))
        elif case.job is Job.RUNNING:
            await case.post_job(job.ExecutionFailed(error=error, final=True))
        await self._closing.end_records(case, error)  # whose worker was lost before has a job that waits
        await self._closing.failed(case, error)

    # ------------------------------------------------------------------ it is lost
    async def _without_session(self, case: TaskExecution) -> None:
        row = self._sup.inherited.rows.get(case.session_id)
        data = msgspec.json.decode(row.data, type=SessionData) if row is not None else None
        how, error = ("", "") if data is None or data.last_error == WHY else (data.outcome, data.last_error)
        if how == "aborted" and await is_stalled(self._sup.journal, case.session_id):
            how = "stalled"
        above = case.part_of
        match how:
            case "aborted":
                await self._closing.cancelled(case, error)
            case "failed":
                await self._fail(case, error)
            case _ if above is not None and above.result is not None:  # its supervisor was to cancel it
                await self._closing.cancelled(case, f"{above.name} is {above.result.outcome}")
            case "stalled" if case.run is not TaskRun.VALIDATING:
                if case.run is TaskRun.IN_PROGRESS:  # else it had been judged before the kill
                    await self._execution.charge(case, late(Outcome("aborted", error, "")))
                await self._try_again(case)
            case _ if case.state is Task.CLAIMED:
                recovered = TransitionReason.ORPHAN_RECOVERED
                await case.post(task.Unclaimed(reason=ORPHANED, transition_reason=recovered))
                await self._queue(case)
            case _:
                await case.post(task.Orphaned(reason=ORPHANED))
                await self._adopt(case)

    async def _adopt(self, case: TaskExecution) -> None:
        """An orphan: what the policy says, within its retries."""
        match self._sup.settings.recovery.orphans:
            case "done" if self._is_at_work(case) and authorization.allows(self._load, case, "recovered"):
                await self._finish(case)
            case "open" | "done" if case.data.claims <= case.data.max_retries:
                await self._give_up_validation(case)
                recovered = TransitionReason.ORPHAN_RECOVERED
                await case.post(task.Requeued(reason=ORPHANED, transition_reason=recovered))
                await self._queue(case)
            case _:
                await case.post(task.RecoveryFailed(reason=ORPHANED))
                await self._closing.cancel_records(case, ORPHANED)
                await self._closing.rest(case, ORPHANED)

    def _is_at_work(self, case: TaskExecution) -> bool:
        """An attempt was under way, or had been counted as done already. One that had failed waits for another: what it
        has left is no work that a crash interrupted."""
        if not case.has_run:
            return self._is_completed(case)
        return case.run in (TaskRun.IN_PROGRESS, TaskRun.VALIDATING)

    async def _finish(self, case: TaskExecution) -> None:
        """What it had done counts as the whole; an earlier supervisor may have said so of its run, and not of it."""
        if case.has_run and case.run is TaskRun.IN_PROGRESS:
            await case.post_run(task_run.ExecutionCompleted())
        if case.job is Job.RUNNING:
            await case.post_job(job.ExecutionCompleted())
        if case.has_run and case.run is TaskRun.VALIDATING:
            await case.post_run(task_run.TestsPassed())
        if case.job is Job.VALIDATING:
            await case.post_job(job.ValidationPassed())
        elif case.job in (Job.QUEUED, Job.RETRYING):  # its worker was lost to a supervisor before
            await case.post_job(job.UserCancelled(reason="recovery.orphans is done"))
        await case.post(task.Recovered(reason="recovery.orphans is done", summary=case.data.summary))
        await self._closing.deliver(case)

    async def _give_up_validation(self, case: TaskExecution) -> None:
        """What was being tested is not there any more."""
        if case.has_run and case.run is TaskRun.VALIDATING:
            await case.post_run(task_run.TestsFailed(error=ORPHANED))
            await self._load.decide(case)
            if case.job is Job.RUNNING:
                await case.post_job(job.ExecutionCompleted())
        if case.job is Job.VALIDATING:
            await case.post_job(job.ValidationFailed(failed_rules=(ORPHANED,)))

    async def _fail(self, case: TaskExecution, error: str) -> None:
        """Its session had given up, and the task had not heard of that."""
        if case.run is TaskRun.IN_PROGRESS:
            failed = task_run.ExecutionFailed(error=error, category=ErrorCategory.PERMANENT)
            await case.post_run(failed)
        if case.run in (TaskRun.FAILED, TaskRun.CIRCUIT_OPEN):
            await self._load.decide(case)
        if case.run is TaskRun.RETRYING:  # a plug-in wanted another try
            if case.job is Job.RUNNING:
                await case.post_job(job.ExecutionFailed(error=error))
            await self._queue(case)
            return
        await self._give_up_validation(case)
        if case.job is Job.RUNNING:
            await case.post_job(job.ExecutionFailed(error=error, final=True))
        await self._closing.end_records(case, error)
        await self._closing.failed(case, error)
