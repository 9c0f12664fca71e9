"""Runs a plan: a workstream of tasks, each claimed by a worker's slot when all that it waits for is there.

``run_plan`` is the way in. What a task goes through stands in ``attempt_runner`` and ``completion_pipeline``; here is
who is next: what became ready is queued, what was queued is claimed, what was settled makes others ready, or ends all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from supervisor.host.shutdown import LAST_RECORDS_S
from supervisor.host.supervision import Supervisor
from supervisor.lifecycles import job, task
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import SkipCause
from supervisor.lifecycles.types import AbortScope, Kind
from supervisor.lifecycles.workstream import Workstream
from supervisor.plans.checks import agent_problems, need_problems
from supervisor.plans.plan import Plan
from supervisor.plans.source import BadPlan, spelled
from supervisor.plans.splitting import with_subtasks
from supervisor.plans.tasks import ConditionConfig, PlacedTask, every_task
from supervisor.ports import JournalError
from supervisor.ports.path_safety import absent
from supervisor.recovery.journal_state import entity_of, turned_down
from supervisor.recovery.restore import tell_end_of_work
from supervisor.recovery.resumable import digest_of, tasks_digest
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.work import plugin_policies
from supervisor.work.attempt_runner import LOST, AttemptRunner, is_delayed
from supervisor.work.backlog import Gate
from supervisor.work.blocking import PARENTS, BlockedTasks
from supervisor.work.budgeting import close_scopes, recall_use
from supervisor.work.checkpoints import is_taken_back, owned, take_back
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_recovery import PlanRecovery
from supervisor.work.plan_run import PlanRun
from supervisor.work.previous_run import PreviousRun, find_previous_run
from supervisor.work.reporting import read_unreported_result
from supervisor.work.results import PlanResult, TaskResult, not_accepted
from supervisor.work.task_commands import Scheduler, TaskCommands
from supervisor.work.task_execution import ACTOR, TaskExecution
from supervisor.work.workers import Heartbeat, WorkerPool
from supervisor.work.workstream import WorkstreamEntity
from supervisor.work.workstream_export import export_workstream, record_usage

__all__ = ["PlanRunner", "run_plan"]

GIVEN_UP = "the plan was given up"
ENDING = "the supervisor is ending"
WAITING = frozenset({Task.PLANNED, Task.BLOCKED, Task.PENDING_APPROVAL})
"""States that somebody else moves a task out of."""


async def run_plan(sup: Supervisor, plan: Plan, *, resume: bool = False, fresh: bool = False) -> PlanResult:
    """Run every task of *plan* on *sup*: a workstream, from its first task to its validation. With *resume* only what
    the last run of *plan* did not close, each task from its checkpoint.

    Where an earlier supervisor was killed when the last run of *plan* had ended, before its host had the result, that
    result is returned (``earlier`` names its workstream), and nothing is started. With *fresh* the plan is run anew.
    """
    runner = PlanRunner(sup)
    result = await runner.run(plan, resume=resume, fresh=fresh)
    # Nothing is awaited from here on: the record becomes durable when this task waits next, and the host has it then.
    runner.note_reported("returned to the host")
    return result


class PlanRunner:
    """Runs a plan on *sup*; tasks can be added while it runs. *heartbeat* replaces the heartbeats of its workers."""

    def __init__(self, sup: Supervisor, *, heartbeat: Heartbeat | None = None) -> None:
        self._sup = sup
        self._heartbeat = heartbeat
        self.begun = anyio.Event()
        """It is known what this run goes on with."""
        self.taken_over: tuple[str, ...] = ()
        """What this run went on with: a task and its state, in words."""
        self.merged: tuple[str, ...] = ()
        """What was done before, and is merged now: a task and what became of it, in words."""
        self.resumed: tuple[str, ...] = ()
        """What this run does again of the one that it resumes: a task and its checkpoint, in words."""
        self.unshown = ""
        """The result of an earlier run that nobody was given, and that this run does not return either, in words."""
        self.commands = TaskCommands(sup)
        """What can be asked of the work while it is under way."""
        self._plan_run: PlanRun | None = None
        self._before: PreviousRun | None = None
        """The run of the plan that this one resumes."""
        self._superseded: WorkstreamEntity | None = None
        """The workstream whose result nobody was given, and that this run takes the place of."""
        self._untouched: list[Entity] = []
        """What an earlier supervisor left, and this run had not come to when it was given up."""

    @property
    def plan_run(self) -> PlanRun:
        assert self._plan_run is not None, "it has begun"
        return self._plan_run

    @property
    def results(self) -> dict[str, TaskResult]:
        """Of the tasks that are settled."""
        executions = self._plan_run.executions.values() if self._plan_run is not None else ()
        return {execution.name: execution.result for execution in executions if execution.result is not None}

    # ------------------------------------------------------------------ the run
    async def run(self, plan: Plan, *, resume: bool = False, fresh: bool = False) -> PlanResult:
        """Run every task of *plan*, and of the plans that are added meanwhile; with *resume* only what the last run of
        the plan did not close, each task from its checkpoint. Whoever has given the result to somebody says so
        (``note_reported``): until then the next run of the plan returns it again, unless that is to begin *fresh*.

        Raises:
            Refused: the last run of the plan has left nothing to *resume*.
        """
        self._prepare(plan)
        if (earlier := await self._earlier_result(plan, anew=resume or fresh)) is not None:
            return earlier
        error = ""
        try:
            left = await self._look_back(plan, resume)
            self._supersede()
            await self._carry_out(plan, left)
            error = await self._conclude()
        except BaseException:
            if self.plan_run.workstream.is_opened:
                with self._sup.registry.system.timers.limit(self._end_s, shield=True):
                    await self._give_up()
            if self.plan_run.workstream.owes_result:  # whoever was to have it was cancelled
                known = self._sup.inherited.finished.by_tasks
                known[tasks_digest(plan, self._sup.settings)] = self.plan_run.workstream.id
            raise
        finally:
            self.commands.end()
            if self.plan_run.workstream.is_opened:
                self._bury()
        return PlanResult(
            {execution.name: self._result(execution) for execution in self.plan_run.executions.values()}, error
        )

    def note_reported(self, how: str) -> None:
        """The result was printed, or returned: *how* says so, and is on record from now on. The run is over."""
        workstream = self.plan_run.workstream
        if workstream.owes_result:
            workstream.note_reported(how)
            self._sup.inherited.finished.forget(workstream.id)

    async def _earlier_result(self, plan: Plan, *, anew: bool) -> PlanResult | None:
        """The result of the last run of *plan*, if nobody was given it. Where the plan is run *anew*, or is not the
        same any more, it is only said that there is one."""
        known = self._sup.inherited.finished
        same = known.by_tasks.get(tasks_digest(plan, self._sup.settings), "")
        last = same or known.by_name.get(plan.workstream, "")
        if not last:
            return None
        await self._sup.journal_writer.durable()  # the run may have been one of this supervisor, that was cancelled
        left = await read_unreported_result(self._sup.journal, last)
        if left is None or not same:
            known.forget(last)
            self.unshown = f"{left.words}; the tasks of this plan are not the same" if left is not None else ""
            return None
        workstream = WorkstreamEntity(self._sup)
        workstream.take_up_ended(entity_of(left.row, self._sup.journal_writer), left.last_seq)
        if anew:
            self.unshown, self._superseded = left.words, workstream
            return None
        self.plan_run.workstream = workstream
        await export_workstream(self.plan_run)  # its supervisor may not have lived to write it
        self.commands.end()
        self.begun.set()
        return left.result

    def _supersede(self) -> None:
        """Note that nobody waits for the earlier result any more. A run that is refused, since there is nothing to
        resume, must leave that result to the next one: so this is noted when it is certain that the run begins."""
        if (workstream := self._superseded) is not None:
            workstream.note_reported("another run of the plan was asked for")
            self._sup.inherited.finished.forget(workstream.id)

    async def _look_back(self, plan: Plan, resume: bool) -> bool:
        """See what earlier runs have done of it; whether one is under way that an earlier supervisor began."""
        left = self._recovery.find(plan)
        resumes = self.plan_run.workstream.resumes if left else ""
        if resumes or (resume and not left):
            await (
                self._sup.journal_writer.durable()
            )  # what this supervisor has just given up is still on its way to the disk
            await self._read_before(plan, resumes)
        if not left and self._before is not None:
            done = self._before.closed.keys() >= {one.task.id for one in every_task(plan.tasks)}
            if done and not self._unmerged(plan):
                raise Refused(f"plan {plan.workstream!r} is not resumed: nothing of it was cancelled, or given up")
        return left

    async def _read_before(self, plan: Plan, resumes: str, refused: Collection[str] = ()) -> None:
        rows = await self._sup.journal.entities()
        self._before = find_previous_run(plan, self._sup.settings, rows, resumes, refused)

    async def _carry_out(self, plan: Plan, left: bool) -> None:
        """From its first task to its last, or until it is given up."""
        try:
            async with anyio.create_task_group() as group:
                self.plan_run.have(group)
                await self._begin(plan, left)
                group.start_soon(self._watch_stop)
                group.start_soon(self._watch_journal)
                await self._dispatch()
                self.plan_run.concluded = True
                group.cancel_scope.cancel()  # who waits for what was settled otherwise
        finally:
            self.plan_run.have(None)

    def _prepare(self, plan: Plan) -> None:
        worker_pool, workstream = (
            WorkerPool(self._sup, plan.workers, plan.max_sessions, heartbeat=self._heartbeat),
            WorkstreamEntity(self._sup),
        )
        self._plan_run = plan_run = PlanRun(self._sup, plan, worker_pool, workstream)
        self._pipeline = CompletionPipeline(plan_run)
        self._attempt_runner = AttemptRunner(plan_run, self._pipeline)
        self._recovery = PlanRecovery(plan_run, self._pipeline, self._attempt_runner)
        self._blocked_tasks = BlockedTasks(plan_run, self._pipeline, self._attempt_runner, self.consider)
        plan_run.on_settled = self._settled
        worker_pool.on_lost, worker_pool.on_free = self._lost, plan_run.wake
        plan_run.split, plan_run.block = self.commands.split, self.commands.block_own
        plan_run.on_let_go = self._let_go

    async def _begin(self, plan: Plan, left: bool) -> None:
        unmerged = self._unmerged(plan)
        if not left:
            self._open_workstream(plan, len(unmerged))
        merged, refused = await self._merge_late(unmerged)
        self._recovery.do_again(refused)
        if refused and self._before is not None:
            await self._read_before(plan, self.plan_run.workstream.resumes, refused)
        await self.plan_run.worker_pool.start(
            self.plan_run.workstream.id, Cause(self.plan_run.workstream.seq, None, ACTOR)
        )
        self.taken_over = self._recovery.words
        if self._before is not None and not left:
            self.resumed = self._before.words
        self.begun.set()
        new = self._open_all(plan)
        await self.plan_run.workstream.opened()
        if not left:
            if merged or refused:
                await self.plan_run.workstream.merged(merged, sum(1 for execution in new if not execution.is_imported))
            await self._let_operate()
            self._consider_all(new)
            return
        await recall_use(self.plan_run)
        fresh = [execution for execution in new if not (self._recovery.has(execution) or execution.is_imported)]
        counted = sum(1 for execution in new if not execution.is_imported)
        await self.plan_run.workstream.go_on(counted - len(fresh), len(fresh))
        waiting = await self._recovery.go_on()
        await self._let_operate()  # not before: what a command finds of a task is where it goes on
        self._consider_all([*waiting, *fresh])
        for execution in [one for one in self.plan_run.executions.values() if one.result is not None and one.parts]:
            self._drop_parts(execution)
        for execution in [one for one in self.plan_run.executions.values() if one.result is None]:
            if execution.state is Task.WAITING_FOR_SUBTASKS:
                self._blocked_tasks.watch(execution)

    def _unmerged(self, plan: Plan) -> list[TaskExecution]:
        """What was done, and closed with its work on its branch since its run ended, in the order of the plan."""
        if self._sup.janitor.in_place:
            return []
        resumed = self._before.unmerged if self._before is not None else {}
        known = self._recovery.ids
        left = {**{name: one for name, one in resumed.items() if name not in known}, **self._recovery.unmerged}
        *_, grown = self._recovery.grown(plan)
        executions = [TaskExecution(self._sup, one.task) for one in every_task(grown.tasks) if one.task.id in left]
        for execution in executions:
            data = left[execution.name].data
            execution.settled_id, execution.session_id, execution.judged = (
                left[execution.name].entity_id,
                data.claimed_by,
                data.judged,
            )
        return executions

    async def _merge_late(self, unmerged: Iterable[TaskExecution]) -> tuple[list[str], list[str]]:
        """Merge them, before anything begins that may depend on them. Those that are merged, by their ids; and by name
        those that cannot be: they are done again."""
        merged, refused = dict[str, str](), list[str]()
        for execution in unmerged:
            is_merged, words = await self._pipeline.merge_late(execution)
            if is_merged:
                merged[execution.id] = f"{execution.name} ({words})"
            else:
                refused.append(execution.name)
        self.merged = tuple(merged.values())
        return list(merged), refused

    def _open_all(self, plan: Plan) -> list[TaskExecution]:
        """The tasks of *plan*, and those that it had grown by under an earlier supervisor."""
        new: list[TaskExecution] = []
        for one in self._recovery.grown(plan):
            self.plan_run.plan = one
            new += self._open(one)
        return new

    async def _let_operate(self) -> None:
        at = Scheduler(
            plan_run=self.plan_run,
            pipeline=self._pipeline,
            attempt_runner=self._attempt_runner,
            blocked_tasks=self._blocked_tasks,
            consider=self.consider,
            cancel=self.cancel,
            open_more=self._open_more,
        )
        await self.commands.begin(at, self._recovery.ids)

    def _open_more(self) -> list[TaskExecution]:
        """A task is to be split: the subtasks that the plan has by now."""
        return self._open(self.plan_run.plan)

    async def _dispatch(self) -> None:
        """Have claimed what can be, until every task is settled."""
        while self.plan_run.unsettled:
            self._claim()
            self._blocked_tasks.end_dead_ends()
            await self.plan_run.woken()

    async def _watch_stop(self) -> None:
        """Who waits for a person, or for a worker, does not keep a supervisor that ends. Those of a long queue end side
        by side: through a few slots, one after another, that would take as long as there are tasks."""
        await self._sup.stopping.wait()
        self.plan_run.wake()  # nothing that is claimed asks a provider any more
        executions = [execution for execution in self.plan_run.executions.values() if execution.result is None]
        self._cancel_all([execution for execution in executions if self._is_queued(execution)], ENDING)
        for execution in executions:
            if execution.state in WAITING:
                self.plan_run.start(self._end_waiting, execution)

    def _is_queued(self, execution: TaskExecution) -> bool:
        """Nobody has it, and any worker may; whose delay a stop cuts short is offered to one by whoever waits for its
        end."""
        if (
            execution.unwanted
            or execution.scope is not None
            or self.plan_run.backlog.holder(execution.name) is not None
        ):
            return False
        return execution.state is Task.OPEN and execution.job is job.Job.QUEUED and not is_delayed(execution)

    async def _end_waiting(self, execution: TaskExecution) -> None:
        async with execution.lock:  # somebody may be answering for it just now
            if execution.state in WAITING:
                await self._pipeline.cancelled(execution, ENDING)

    async def _watch_journal(self) -> None:
        """A run whose journal is lost is over, whatever its tasks wait for: nobody can move them on any more."""
        raise await self._sup.journal_lost()

    def _claim(self) -> None:
        """Every slot gets the best that it can have. Await-free: one winner."""
        plan_run = self.plan_run
        for slot in plan_run.worker_pool.free():
            now_s = plan_run.now()
            claim = plan_run.backlog.claim(slot.id, slot.capabilities, now_s=now_s, lease_s=inf, gate=self._gate(now_s))
            if claim is None:
                continue
            plan_run.worker_pool.reserve(claim.worker_id, claim.item_id)
            plan_run.claimed(plan_run.executions[claim.item_id])
            plan_run.wake()  # it may have another slot
            plan_run.start(self._attempt_runner.carry_out, plan_run.executions[claim.item_id], claim)

    def _gate(self, now_s: float) -> Gate:
        """Whose provider may be asked. While the supervisor ends none is: who is claimed hears that nothing begins any
        more, or is only looked at."""
        return (lambda provider: True) if self._sup.stopping.is_set() else self.plan_run.providers.gate(now_s)

    async def _conclude(self) -> str:
        """Every task is settled: what is to be said of the whole."""
        plan_run = self.plan_run
        await record_usage(plan_run)
        plan_run.workstream.note_result(plan_run.results)
        await plan_run.workstream.settled(plan_run.executions.values())
        problem = ""
        if plan_run.workstream.state is Workstream.VALIDATING:
            tests = [test.value(plan_run.plan.task_lifecycle.validation_timeout) for test in plan_run.plan.validation]
            problem = await self._sup.janitor.inspect(
                "validation", tests, str(plan_run.sup.workdir), plan_run.sup.stop_now
            )
            await plan_run.workstream.validated(problem)
        await plan_run.worker_pool.stop()
        await export_workstream(plan_run)
        return not_accepted(problem)

    @property
    def _end_s(self) -> float:
        """What it may take to give it up: the last records, what is being merged before them, and before what is to be
        taken back the ends of those who are at work there."""
        merging_s = LAST_RECORDS_S if self._approving else 0.0
        begun = (
            execution
            for execution in self.plan_run.executions.values()
            if execution.task.rollback and not execution.taken_back
        )
        works = (self._sup.registry.sessions.get(execution.session_id) for execution in begun)
        ends_s = max((work.policy.ladder.total_s for work in works if work is not None), default=0.0)
        return merging_s + ends_s + LAST_RECORDS_S

    async def _give_up(self) -> None:
        """A plan that is given up leaves nobody at work, and nothing looking alive."""
        plan_run = self.plan_run
        for execution in self._unsettled:
            await self._all_heard(execution)
        approving = self._approving
        unsettled = [execution for execution in self._unsettled if execution not in approving]
        done = [execution for execution in unsettled if execution.is_done]
        for execution in unsettled:
            self._pipeline.tell_cancelled(execution, GIVEN_UP)
        self._untouched = self._recovery.untouched(plan_run.executions.values())
        tell_end_of_work(self._sup.registry, self._untouched, turned_down(list(self._sup.inherited.rows.values())))
        jobs = [execution.job_id for execution in unsettled if execution.job is not None]
        jobs += [one.id for one in self._untouched if one.kind is Kind.JOB]
        async with anyio.create_task_group() as group:  # what is said once is recorded when it can be
            group.start_soon(self._end_pool, [self._end_of(job_id) for job_id in jobs])
            group.start_soon(self._end_workstream, approving)
            for execution in unsettled:
                group.start_soon(self._leave, execution, execution in done)
            for one in [one for one in self._untouched if one.kind is Kind.TASK]:
                group.start_soon(self._end_session, one.data.claimed_by)
            group.start_soon(self._end_unclaimed)
        if plan_run.workstream.state in (Workstream.COMPLETED, Workstream.FAILED):
            await export_workstream(plan_run)

    @property
    def _unsettled(self) -> list[TaskExecution]:
        return [
            execution
            for execution in self.plan_run.executions.values()
            if execution.result is None and execution.is_opened
        ]

    @property
    def _approving(self) -> list[TaskExecution]:
        """Who waits to be approved, and is being merged, or denied, for somebody just now."""
        return [
            execution
            for execution in self._unsettled
            if execution.state is Task.PENDING_APPROVAL and execution.lock.locked()
        ]

    async def _end_workstream(self, approving: Sequence[TaskExecution]) -> None:
        """What is being merged for whoever approved it is closed as well: both or neither. Not for ever."""
        with self._sup.registry.system.timers.limit(LAST_RECORDS_S, shield=True):
            for execution in approving:
                async with execution.lock:
                    pass
        async with anyio.create_task_group() as group:
            for execution in [one for one in approving if one.result is None]:
                self._pipeline.tell_cancelled(execution, GIVEN_UP)
                group.start_soon(self._leave, execution, False)
            await self.plan_run.workstream.cancel(GIVEN_UP)

    async def _all_heard(self, execution: TaskExecution) -> None:
        """What a command has told it just now may be in its mailbox still: it hears that before its end."""
        with suppress(NoSuchEntity):  # its actor was lost
            while any(self._sup.inspect(execution.id).queued.values()):
                await checkpoint()

    async def _leave(self, execution: TaskExecution, is_done: bool) -> None:
        """What it has is kept, and who works on it is ended; then nothing is in the way of taking that back."""
        if is_taken_back(self._sup, execution) and not is_done:
            with suppress(Refused):  # a disk that is down may be back when nobody waits for this any more
                await self._sup.see_through(
                    lambda: self._leave_nothing(execution), f"take back what {execution.name} did"
                )
            return
        await self._end_both(execution)
        if is_done:
            await self._forget(execution)

    async def _leave_nothing(self, execution: TaskExecution) -> None:
        """What it did in place is taken back when its end is on record: else whoever comes next goes on with its
        attempt, and takes that back. Nothing begins there meanwhile."""
        with self._sup.janitor.clearing.one():
            await self._end_both(execution)
            if await self._sup.journal_writer.durable():
                await take_back(self._sup, execution)

    async def _end_both(self, execution: TaskExecution) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_run, execution)
            group.start_soon(self._end_session, execution.session_id)

    async def _forget(self, execution: TaskExecution) -> None:
        """What was saved on its way goes when it is closed on record: else whoever comes next finds it at work, and
        nothing to go on with. A disk that is down is not waited for."""
        closed, journal_writer = OneShotEvent(), self._sup.journal_writer
        await self._end_of(execution.id).wait()
        journal_writer.when_durable(closed.set)
        if await journal_writer.disk.wait_unless_down(closed) and journal_writer.error is None:
            await self._sup.janitor.forget(owned(self._sup, execution))

    async def _cancel_run(self, execution: TaskExecution) -> None:
        """What it has is kept, and its last record is made: it is not buried before that."""
        over = self._end_of(execution.run_id) if execution.has_run else None
        with anyio.CancelScope(shield=True):  # a checkpoint that was begun is made, or given up by itself
            await self._pipeline.tell_run_cancelled(execution, GIVEN_UP)
        if over is not None:
            with self._sup.registry.system.timers.limit(LAST_RECORDS_S, shield=True):
                await over.wait()

    def _end_of(self, entity_id: str) -> OneShotEvent:
        """When its last record is written: in memory, so that no disk is waited for."""
        over, entity = OneShotEvent(), self._sup.registry.entities.get(entity_id)
        if entity is None or entity.ended:
            over.set()
        else:
            entity.on_ended = over.set
        return over

    async def _end_pool(self, jobs: Iterable[OneShotEvent]) -> None:
        """A worker lets go of its *jobs*, and is shut down, when they are over on record, and not before."""
        with suppress(NoSuchEntity, Refused, JournalError):
            try:
                for over in jobs:
                    await over.wait()
                await self.plan_run.worker_pool.stop()
            finally:  # a disk that is down is not waited for, for long
                self.plan_run.worker_pool.stop_waiting()

    async def _end_session(self, session_id: str) -> None:
        if session_id in self._sup.registry.sessions:
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.abort(session_id, AbortScope.SESSION, reason=GIVEN_UP)

    async def _end_unclaimed(self) -> None:
        """Those that were begun for its tasks, under an earlier supervisor, and hold none: nobody else ends them."""
        with suppress(JournalError):
            for session_id in await self._recovery.unclaimed():
                await self._end_session(session_id)

    def _bury(self) -> None:
        close_scopes(self.plan_run)
        for execution in self.plan_run.executions.values():
            execution.bury()
        for one in (*self._untouched, *self._recovery.over):
            self._sup.registry.remove(one.id)
        self.plan_run.workstream.bury()

    def _result(self, execution: TaskExecution) -> TaskResult:
        assert execution.result is not None, "it is settled"
        return execution.result

    # ------------------------------------------------------------------ tasks
    def _open(self, plan: Plan) -> list[TaskExecution]:
        """The logs of the tasks that are new begin."""
        plan_run = self.plan_run
        placed = [one for one in every_task(plan.tasks) if one.task.id not in plan_run.executions]
        plan_run.budget = plan_run.budget.grown(len(placed))
        plan_run.unsettled += len(placed)
        new = [self._open_task(one, plan) for one in placed]
        for execution in new:
            plan_run.backlog.add(execution.item(plan_run.provider_of(execution.agent)), on_hold=True)
        for execution in new:
            if execution.is_imported:
                plan_run.backlog.settle(execution.name, completed=execution.is_met)
        return new

    def _open_task(self, placed: PlacedTask, plan: Plan) -> TaskExecution:
        plan_run = self.plan_run
        above = plan_run.executions[placed.parent.task.id] if placed.parent is not None else None
        execution = plan_run.executions[placed.task.id] = TaskExecution(self._sup, placed.task, above)
        if above is not None:
            above.parts.append(execution)
        if self._recovery.take_up(execution) or self._import_closed(execution):
            return execution
        planned = plan.approve_plan or placed.task.approval == "before"
        digest = digest_of(placed.task, self._sup.settings)
        execution.open(plan_run.workstream.id, digest, planned=planned, cause=plan_run.workstream.seq)
        execution.checkpoint = self._before.again.get(execution.name) if self._before is not None else None
        execution.open_run(plan_run.limits_of(execution))
        if placed.task.when is None and not placed.task.optional:
            execution.open_job()
        return execution

    def _open_workstream(self, plan: Plan, unmerged: int) -> None:
        is_imported = self._before.closed if self._before is not None else {}
        count = sum(1 for one in every_task(plan.tasks) if one.task.id not in is_imported)
        self.plan_run.workstream.open(
            plan.workstream, count + unmerged, self._before.workstream if self._before is not None else ""
        )

    def _import_closed(self, execution: TaskExecution) -> bool:
        """Have it count as done, if it was closed in the run that this one resumes."""
        if self._before is None or (row := self._before.closed.get(execution.name)) is None:
            return False
        outcome = "completed" if row.state == Task.CLOSED.value else "aborted"
        data = msgspec.json.decode(row.data, type=task.TaskData)
        execution.import_closed(row.id, data.claimed_by, self._before.jobs.get(execution.name, ""), outcome, data.rest)
        self.plan_run.unsettled -= 1
        return True

    def _consider_all(self, executions: Iterable[TaskExecution]) -> None:
        for execution in executions:
            self.plan_run.start(self.consider, execution)

    async def consider(self, execution: TaskExecution) -> None:
        """Begin what can be begun of it, or say that it never will be: once, whoever else asks meanwhile. Whom nobody
        wants any more is about to be cancelled."""
        if execution.considered:
            return
        execution.considered = True
        try:
            async with execution.lock:
                if not (execution.is_over or execution.unwanted) and self._is_due(execution):
                    await self._begin_or_block(execution)
        finally:
            execution.considered = False
            self.plan_run.wake()

    async def _begin_or_block(self, execution: TaskExecution) -> None:
        if (dependency_failed := self._failed_dependency(execution)) is not None:
            await self._block(execution, dependency_failed)
        elif execution.state is Task.PLANNED:
            if self._sup.stopping.is_set():  # it came after all others that wait for a person were cancelled
                await self._pipeline.cancelled(execution, ENDING)
        elif not self._waits_again(execution):
            await self._queue(execution)

    def _waits_again(self, execution: TaskExecution) -> bool:
        """What it waits for was settled, and is about to be done again."""
        needed = (
            *execution.task.depends_on,
            *((execution.task.when.task,) if execution.task.when and execution.task.when.task else ()),
        )
        return any(self.plan_run.executions[name].result is None for name in needed)

    def _is_due(self, execution: TaskExecution) -> bool:
        """Nothing that it waits for is still open, or something has ended for good; and it is not begun yet."""
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            return execution.scope is None and all(part.result is not None for part in execution.parts)
        above = execution.part_of
        if above is not None and (above.result is not None or above.state not in PARENTS):
            return False  # what its parent waits for, it waits for too, and goes with it
        refusal = self.plan_run.backlog.refusal(execution.name)
        unbegun = execution.state in (Task.PLANNED, Task.OPEN) and execution.job in (None, job.Job.PENDING)
        return unbegun and (refusal is None or refusal.why in ("on_hold", "dependency_failed"))

    def _failed_dependency(self, execution: TaskExecution) -> TaskExecution | None:
        needed = (self.plan_run.executions[name] for name in execution.task.depends_on)
        return next((one for one in needed if one.result is not None and not one.is_met), None)

    async def _block(self, execution: TaskExecution, by: TaskExecution) -> None:
        failed = [
            name
            for name in execution.task.depends_on
            if (one := self.plan_run.executions[name]).result and not one.is_met
        ]
        words = f"it depends on {', '.join(failed)}, which did not complete"
        cause = SkipCause.OPTIONAL if execution.task.optional else SkipCause.DEPENDENCY_FAILED
        await self._pipeline.skip(execution, cause, words, dependency=by)

    async def _queue(self, execution: TaskExecution) -> None:
        """What it waited for is there: it is wanted or not, split or queued."""
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            await self._join(execution)
            return
        if execution.task.when is not None and (why := self._unmet(execution, execution.task.when)):
            await self._pipeline.skip(execution, SkipCause.CONDITION_NOT_MET, why)
            return
        if execution.job is None:
            execution.open_job()
        if execution.parts:
            await execution.post(
                task.Split(subtasks=tuple(part.id for part in execution.parts), reason="as the plan says")
            )
            self._blocked_tasks.watch(execution)
            self._consider_all((*execution.parts, execution))  # its parts may all have been cancelled before
        elif self._sup.stopping.is_set():  # it came after all others that wait for a worker were cancelled
            await self._pipeline.cancelled(execution, ENDING)
        else:
            await self._assign(execution, execution.task.depends_on)

    async def _assign(self, execution: TaskExecution, needed: Iterable[str]) -> None:
        jobs = (self.plan_run.executions[name].completed_job for name in needed)
        depends_on = tuple(one for one in jobs if one)
        await execution.post_job(job.SchedulerAssigned(depends_on=depends_on))
        await plugin_policies.rank(self.plan_run, execution)
        self.plan_run.offer(execution)

    async def _join(self, execution: TaskExecution) -> None:
        """Every subtask is settled."""
        for part in execution.parts:
            if part.result is not None and not part.is_met:
                await execution.post(task.SubtaskFailed(subtask=part.id, reason=part.result.error))
                await self._pipeline.cancelled(execution, f"its subtask {part.name} did not complete")
                return
        if execution.job is None:  # it was split before it was known whether it is wanted
            execution.open_job()
        if execution.job is job.Job.PENDING:
            await self._assign(execution, (part.name for part in execution.parts))
        elif is_delayed(execution):
            return  # whoever waits for the end of its delay asks again
        elif execution.job is job.Job.QUEUED:
            self.plan_run.offer(execution)
        else:
            await self._pipeline.integrate(execution)

    def _unmet(self, execution: TaskExecution, when: ConditionConfig) -> str:
        if when.task is not None:
            result = self.plan_run.executions[when.task].result
            outcome = result.outcome if result is not None else "open"
            met = outcome == when.outcome
            return "" if met else f"its condition is not met: {when.task} is {outcome}, not {when.outcome}"
        missing = absent(
            self.plan_run.directory_of(execution), str(when.file_exists)
        )  # what it says names a directory of this machine
        return f"its condition is not met: there is no {when.file_exists}" if missing else ""

    # ------------------------------------------------------------------ what follows
    def _settled(self, execution: TaskExecution) -> None:
        """A task is settled: others may begin, or never will."""
        plan_run = self.plan_run
        follows = plan_run.backlog.settle(execution.name, completed=execution.is_met)
        plan_run.wake()
        if plan_run.running:
            self._blocked_tasks.settled(execution)
            self._consider_all(
                plan_run.executions[name] for name in dict.fromkeys((*follows.ready, *follows.dependency_failed))
            )
            if execution.part_of is not None:
                self._consider_all([execution.part_of])
            if execution.parts:
                self._drop_parts(execution)
            if execution.task.critical and execution.result is not None and execution.result.outcome == "failed":
                rest = [one for one in plan_run.executions.values() if one.result is None]
                self._cancel_all(rest, f"the critical task {execution.name} failed")

    def _let_go(self, execution: TaskExecution) -> None:
        """Nobody carries it out any more: it waits for its subtasks, or is blocked."""
        self._blocked_tasks.look_at(execution)
        self._consider_all([execution])

    def _drop_parts(self, execution: TaskExecution) -> None:
        """A task that is settled needs nothing of its subtasks any more."""
        outcome = execution.result.outcome if execution.result is not None else ""
        left = [part for part in execution.parts if part.result is None]
        if outcome != "skipped":
            self._cancel_all(left, f"{execution.name} is {outcome}")
            return
        for part in left:
            self.plan_run.start(self._skip, part, f"{execution.name} was skipped")

    async def _skip(self, execution: TaskExecution, why: str) -> None:
        async with execution.lock:
            await self._pipeline.skip(execution, SkipCause.CONDITION_NOT_MET, why)

    def _cancel_all(self, executions: Collection[TaskExecution], why: str) -> None:
        """Nobody wants them any more. They are ended side by side: each agent may take its time."""
        self._hold(executions, why)
        for execution in executions:
            self.plan_run.start(self.cancel, execution, why)

    def _hold(self, executions: Iterable[TaskExecution], why: str) -> None:
        """None of them begins any more while an agent of another one takes its time to end."""
        for execution in executions:
            execution.unwanted = execution.unwanted or why
            self.plan_run.backlog.hold(execution.name)

    async def cancel(self, execution: TaskExecution, why: str, begins: Callable[[], None] = lambda: None) -> None:
        """Nobody wants it any more: whoever works on it is ended, which *begins* then; what is checked and merged is
        not interrupted. Why, is what was said first."""
        self._hold([execution], why)
        why = execution.unwanted
        if execution.scope is None:
            async with execution.lock:
                begins()
                await self._pipeline.cancelled(execution, why)
        elif execution.works:
            begins()
            with suppress(NoSuchEntity, Refused):
                await self._sup.abort(
                    execution.session_id, AbortScope.SESSION, reason=why
                )  # its answer cancels the task
        elif execution.job in (job.Job.QUEUED, job.Job.RUNNING):
            begins()
            execution.scope.cancel()

    def _lost(self, worker_id: str, tasks: list[str]) -> None:
        """A worker is gone: what it held is taken from it."""
        for claim in self.plan_run.backlog.fence(worker_id):
            execution = self.plan_run.executions[claim.item_id]
            if execution.scope is None:
                continue  # nobody has begun: it can be claimed at once
            self.plan_run.backlog.hold(execution.name)  # whoever carries it out has to let go of it first
            if execution.job in (
                job.Job.QUEUED,
                job.Job.RUNNING,
            ):  # what is checked and merged needs no worker any more
                execution.taken_from = LOST
                execution.scope.cancel()

    # ------------------------------------------------------------------ more tasks
    def check(self, plan: Plan) -> list[str]:
        """Which tasks of *plan* are new.

        Raises:
            BadPlan: a task is not as it was when it was opened; or one that goes on would have no agent any more, or no
                worker; or every task of the run has ended.
        """
        if plan.plugins != self._sup.settings.plugins:
            raise BadPlan("plugins: not as they were when the run began; start another run")
        if (plan.workspace, plan.merge_into) != (self._sup.settings.workspace, self._sup.settings.merge_into):
            raise BadPlan("workspace, merge_into: not as they were when the run began; start another run")
        if (plan.access is None) is not (self._sup.settings.access is None):
            raise BadPlan("access: not as it was when the run began; start another run")
        executions = self._plan_run.executions if self._plan_run is not None else {}
        known = [one.task for one in every_task(plan.tasks) if one.task.id in executions]
        changed = [one.id for one in known if one != executions[one.id].task]
        if changed:
            raise BadPlan(f"tasks: {', '.join(changed)}: not as they were when they were opened; use other ids")
        if self._plan_run is None or not self._plan_run.running or len(self.results) == len(executions):
            raise BadPlan("tasks: every task of this run has ended; start another run")
        if found := list(self._missed(self._split_as_before(plan))):
            raise BadPlan("\n".join(found))
        return [one.task.id for one in every_task(plan.tasks) if one.task.id not in executions]

    def _missed(self, plan: Plan) -> Iterator[str]:
        """What *plan* has not any more, and tasks need that it has not any more either, and that go on."""
        known = {one.task.id for one in every_task(plan.tasks)}
        for execution in self.plan_run.executions.values():
            if execution.result is None and execution.name not in known:
                alone = [PlacedTask((), execution.task, None)]
                for path, words in (*agent_problems(alone, plan.agents), *need_problems(alone, plan.workers)):
                    yield f"task {execution.name}, which is left out and goes on: {spelled(path)}: {words}"

    def add(self, plan: Plan) -> None:
        """Open the tasks that are new. Those that *plan* does not have any more go on."""
        self.plan_run.worker_pool.resize(plan.workers, plan.max_sessions)
        self.plan_run.plan = self._split_as_before(plan)
        new = self._open(self.plan_run.plan)
        self.plan_run.start(self._add, new)

    def _split_as_before(self, plan: Plan) -> Plan:
        """*plan* with the subtasks that somebody split its tasks into meanwhile."""
        known = {one.task.id for one in every_task(plan.tasks)}
        for execution in [one for one in self.plan_run.executions.values() if one.parts]:
            if execution.name in known and not any(part.name in known for part in execution.parts):
                plan = with_subtasks(plan, {execution.name: [part.task for part in execution.parts]})
                known.update(one.task.id for one in every_task([part.task for part in execution.parts]))
        return plan

    async def _add(self, new: list[TaskExecution]) -> None:
        try:
            if new:
                await self.plan_run.workstream.added(len(new))
        except Refused as refusal:  # a critical task has failed meanwhile
            for execution in new:
                await self.cancel(execution, f"it came too late: {refusal}")
            return
        self._consider_all(new)
