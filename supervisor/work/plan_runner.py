"""Runs a plan: a workstream of tasks, each claimed by a worker's slot when all that it waits for is there.

``run_plan`` is the way in. What a task goes through stands in ``execution`` and ``closing``; here is who is next: what
became ready is queued, what was queued is claimed, what was settled makes others ready, or ends the whole.
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
from supervisor.work.attempt_runner import LOST, Execution, is_delayed
from supervisor.work.backlog import Gate
from supervisor.work.blocking import PARENTS, Blocking
from supervisor.work.budgeting import close_scopes, recall_use
from supervisor.work.checkpoints import is_taken_back, owned, take_back
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_recovery import PlanRecovery
from supervisor.work.plan_run import PlanRun
from supervisor.work.previous_run import PreviousRun, before
from supervisor.work.reporting import unreported
from supervisor.work.results import PlanResult, TaskResult, not_accepted
from supervisor.work.task_commands import Scheduler, TaskCommands
from supervisor.work.task_execution import ACTOR, TaskExecution
from supervisor.work.workers import Heart, Pool
from supervisor.work.workstream import WorkstreamEntity
from supervisor.work.workstream_export import keep_dossier, note_use

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
    """Runs a plan on *sup*; tasks can be added while it runs. *heart* beats for its workers: by default their own."""

    def __init__(self, sup: Supervisor, *, heart: Heart | None = None) -> None:
        self._sup = sup
        self._heart = heart
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
        self.operating = TaskCommands(sup)
        """What can be asked of the work while it is under way."""
        self._load: PlanRun | None = None
        self._before: PreviousRun | None = None
        """The run of the plan that this one resumes."""
        self._superseded: WorkstreamEntity | None = None
        """The workstream whose result nobody was given, and that this run takes the place of."""
        self._untouched: list[Entity] = []
        """What an earlier supervisor left, and this run had not come to when it was given up."""

    @property
    def load(self) -> PlanRun:
        assert self._load is not None, "it has begun"
        return self._load

    @property
    def results(self) -> dict[str, TaskResult]:
        """Of the tasks that are settled."""
        cases = self._load.cases.values() if self._load is not None else ()
        return {case.name: case.result for case in cases if case.result is not None}

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
            if self.load.stream.is_opened:
                with self._sup.registry.system.timers.limit(self._end_s, shield=True):
                    await self._give_up()
            if self.load.stream.owes_result:  # whoever was to have it was cancelled
                known = self._sup.inherited.finished.by_tasks
                known[tasks_digest(plan, self._sup.settings)] = self.load.stream.id
            raise
        finally:
            self.operating.end()
            if self.load.stream.is_opened:
                self._bury()
        return PlanResult({case.name: self._result(case) for case in self.load.cases.values()}, error)

    def note_reported(self, how: str) -> None:
        """The result was printed, or returned: *how* says so, and is on record from now on. The run is over."""
        stream = self.load.stream
        if stream.owes_result:
            stream.note_reported(how)
            self._sup.inherited.finished.forget(stream.id)

    async def _earlier_result(self, plan: Plan, *, anew: bool) -> PlanResult | None:
        """The result of the last run of *plan*, if nobody was given it. Where the plan is run *anew*, or is not the
        same any more, it is only said that there is one."""
        known = self._sup.inherited.finished
        same = known.by_tasks.get(tasks_digest(plan, self._sup.settings), "")
        last = same or known.by_name.get(plan.workstream, "")
        if not last:
            return None
        await self._sup.journal_writer.durable()  # the run may have been one of this supervisor, that was cancelled
        left = await unreported(self._sup.journal, last)
        if left is None or not same:
            known.forget(last)
            self.unshown = f"{left.words}; the tasks of this plan are not the same" if left is not None else ""
            return None
        stream = WorkstreamEntity(self._sup)
        stream.take_up_ended(entity_of(left.row, self._sup.journal_writer), left.last_seq)
        if anew:
            self.unshown, self._superseded = left.words, stream
            return None
        self.load.stream = stream
        await keep_dossier(self.load)  # its supervisor may not have lived to write it
        self.operating.end()
        self.begun.set()
        return left.result

    def _supersede(self) -> None:
        """Note that nobody waits for the earlier result any more. A run that is refused, since there is nothing to
        resume, must leave that result to the next one: so this is noted when it is certain that the run begins."""
        if (stream := self._superseded) is not None:
            stream.note_reported("another run of the plan was asked for")
            self._sup.inherited.finished.forget(stream.id)

    async def _look_back(self, plan: Plan, resume: bool) -> bool:
        """See what earlier runs have done of it; whether one is under way that an earlier supervisor began."""
        left = self._continuing.find(plan)
        resumes = self.load.stream.resumes if left else ""
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
        self._before = before(plan, self._sup.settings, rows, resumes, refused)

    async def _carry_out(self, plan: Plan, left: bool) -> None:
        """From its first task to its last, or until it is given up."""
        try:
            async with anyio.create_task_group() as group:
                self.load.have(group)
                await self._begin(plan, left)
                group.start_soon(self._watch_stop)
                group.start_soon(self._watch_journal)
                await self._dispatch()
                self.load.concluded = True
                group.cancel_scope.cancel()  # who waits for what was settled otherwise
        finally:
            self.load.have(None)

    def _prepare(self, plan: Plan) -> None:
        pool, stream = Pool(self._sup, plan.workers, plan.max_sessions, heart=self._heart), WorkstreamEntity(self._sup)
        self._load = load = PlanRun(self._sup, plan, pool, stream)
        self._closing = CompletionPipeline(load)
        self._execution = Execution(load, self._closing)
        self._continuing = PlanRecovery(load, self._closing, self._execution)
        self._blocking = Blocking(load, self._closing, self._execution, self.consider)
        load.on_settled = self._settled
        pool.on_lost, pool.on_free = self._lost, load.wake
        load.split, load.block = self.operating.split, self.operating.block_own
        load.on_let_go = self._let_go

    async def _begin(self, plan: Plan, left: bool) -> None:
        unmerged = self._unmerged(plan)
        if not left:
            self._open_stream(plan, len(unmerged))
        merged, refused = await self._merge_late(unmerged)
        self._continuing.do_again(refused)
        if refused and self._before is not None:
            await self._read_before(plan, self.load.stream.resumes, refused)
        await self.load.pool.start(self.load.stream.id, Cause(self.load.stream.seq, None, ACTOR))
        self.taken_over = self._continuing.words
        if self._before is not None and not left:
            self.resumed = self._before.words
        self.begun.set()
        new = self._open_all(plan)
        await self.load.stream.opened()
        if not left:
            if merged or refused:
                await self.load.stream.merged(merged, sum(1 for case in new if not case.brought))
            await self._let_operate()
            self._consider_all(new)
            return
        await recall_use(self.load)
        fresh = [case for case in new if not (self._continuing.has(case) or case.brought)]
        counted = sum(1 for case in new if not case.brought)
        await self.load.stream.go_on(counted - len(fresh), len(fresh))
        waiting = await self._continuing.go_on()
        await self._let_operate()  # not before: what a command finds of a task is where it goes on
        self._consider_all([*waiting, *fresh])
        for case in [one for one in self.load.cases.values() if one.result is not None and one.parts]:
            self._drop_parts(case)
        for case in [one for one in self.load.cases.values() if one.result is None]:
            if case.state is Task.WAITING_FOR_SUBTASKS:
                self._blocking.watch(case)

    def _unmerged(self, plan: Plan) -> list[TaskExecution]:
        """What was done, and closed with its work on its branch since its run ended, in the order of the plan."""
        if self._sup.janitor.in_place:
            return []
        resumed = self._before.unmerged if self._before is not None else {}
        known = self._continuing.ids
        left = {**{name: one for name, one in resumed.items() if name not in known}, **self._continuing.unmerged}
        *_, grown = self._continuing.grown(plan)
        cases = [TaskExecution(self._sup, one.task) for one in every_task(grown.tasks) if one.task.id in left]
        for case in cases:
            data = left[case.name].data
            case.settled_id, case.session_id, case.judged = left[case.name].entity_id, data.claimed_by, data.judged
        return cases

    async def _merge_late(self, unmerged: Iterable[TaskExecution]) -> tuple[list[str], list[str]]:
        """Merge them, before anything begins that may depend on them. Those that are merged, by their ids; and by name
        those that cannot be: they are done again."""
        merged, refused = dict[str, str](), list[str]()
        for case in unmerged:
            is_merged, words = await self._closing.merge_late(case)
            if is_merged:
                merged[case.id] = f"{case.name} ({words})"
            else:
                refused.append(case.name)
        self.merged = tuple(merged.values())
        return list(merged), refused

    def _open_all(self, plan: Plan) -> list[TaskExecution]:
        """The tasks of *plan*, and those that it had grown by under an earlier supervisor."""
        new: list[TaskExecution] = []
        for one in self._continuing.grown(plan):
            self.load.plan = one
            new += self._open(one)
        return new

    async def _let_operate(self) -> None:
        at = Scheduler(
            load=self.load,
            closing=self._closing,
            execution=self._execution,
            blocking=self._blocking,
            consider=self.consider,
            cancel=self.cancel,
            open_more=self._open_more,
        )
        await self.operating.begin(at, self._continuing.ids)

    def _open_more(self) -> list[TaskExecution]:
        """A task is to be split: the subtasks that the plan has by now."""
        return self._open(self.load.plan)

    async def _dispatch(self) -> None:
        """Have claimed what can be, until every task is settled."""
        while self.load.unsettled:
            self._claim()
            self._blocking.end_dead_ends()
            await self.load.woken()

    async def _watch_stop(self) -> None:
        """Who waits for a person, or for a worker, does not keep a supervisor that ends. Those of a long queue end side
        by side: through a few slots, one after another, that would take as long as there are tasks."""
        await self._sup.stopping.wait()
        self.load.wake()  # nothing that is claimed asks a provider any more
        cases = [case for case in self.load.cases.values() if case.result is None]
        self._cancel_all([case for case in cases if self._is_queued(case)], ENDING)
        for case in cases:
            if case.state in WAITING:
                self.load.start(self._end_waiting, case)

    def _is_queued(self, case: TaskExecution) -> bool:
        """Nobody has it, and any worker may; whose delay a stop cuts short is offered to one by whoever waits for its
        end."""
        if case.unwanted or case.scope is not None or self.load.backlog.holder(case.name) is not None:
            return False
        return case.state is Task.OPEN and case.job is job.Job.QUEUED and not is_delayed(case)

    async def _end_waiting(self, case: TaskExecution) -> None:
        async with case.lock:  # somebody may be answering for it just now
            if case.state in WAITING:
                await self._closing.cancelled(case, ENDING)

    async def _watch_journal(self) -> None:
        """A run whose journal is lost is over, whatever its tasks wait for: nobody can move them on any more."""
        raise await self._sup.journal_lost()

    def _claim(self) -> None:
        """Every slot gets the best that it can have. Await-free: one winner."""
        load = self.load
        for slot in load.pool.free():
            now_s = load.now()
            claim = load.backlog.claim(slot.id, slot.capabilities, now_s=now_s, lease_s=inf, gate=self._gate(now_s))
            if claim is None:
                continue
            load.pool.reserve(claim.worker_id, claim.item_id)
            load.claimed(load.cases[claim.item_id])
            load.wake()  # it may have another slot
            load.start(self._execution.carry_out, load.cases[claim.item_id], claim)

    def _gate(self, now_s: float) -> Gate:
        """Whose provider may be asked. While the supervisor ends none is: who is claimed hears that nothing begins any
        more, or is only looked at."""
        return (lambda provider: True) if self._sup.stopping.is_set() else self.load.providers.gate(now_s)

    async def _conclude(self) -> str:
        """Every task is settled: what is to be said of the whole."""
        load = self.load
        await note_use(load)
        load.stream.note_result(load.results)
        await load.stream.settled(load.cases.values())
        problem = ""
        if load.stream.state is Workstream.VALIDATING:
            tests = [test.value(load.plan.task_lifecycle.validation_timeout) for test in load.plan.validation]
            problem = await self._sup.janitor.inspect("validation", tests, str(load.sup.workdir), load.sup.stop_now)
            await load.stream.validated(problem)
        await load.pool.stop()
        await keep_dossier(load)
        return not_accepted(problem)

    @property
    def _end_s(self) -> float:
        """What it may take to give it up: the last records, what is being merged before them, and before what is to be
        taken back the ends of those who are at work there."""
        merging_s = LAST_RECORDS_S if self._approving else 0.0
        begun = (case for case in self.load.cases.values() if case.task.rollback and not case.taken_back)
        works = (self._sup.registry.works.get(case.session_id) for case in begun)
        ends_s = max((work.policy.ladder.total_s for work in works if work is not None), default=0.0)
        return merging_s + ends_s + LAST_RECORDS_S

    async def _give_up(self) -> None:
        """A plan that is given up leaves nobody at work, and nothing looking alive."""
        load = self.load
        for case in self._unsettled:
            await self._all_heard(case)
        approving = self._approving
        unsettled = [case for case in self._unsettled if case not in approving]
        done = [case for case in unsettled if case.is_done]
        for case in unsettled:
            self._closing.tell_cancelled(case, GIVEN_UP)
        self._untouched = self._continuing.untouched(load.cases.values())
        tell_end_of_work(self._sup.registry, self._untouched, turned_down(list(self._sup.inherited.rows.values())))
        jobs = [case.job_id for case in unsettled if case.job is not None]
        jobs += [one.id for one in self._untouched if one.kind is Kind.JOB]
        async with anyio.create_task_group() as group:  # what is said once is recorded when it can be
            group.start_soon(self._end_pool, [self._end_of(job_id) for job_id in jobs])
            group.start_soon(self._end_stream, approving)
            for case in unsettled:
                group.start_soon(self._leave, case, case in done)
            for one in [one for one in self._untouched if one.kind is Kind.TASK]:
                group.start_soon(self._end_session, one.data.claimed_by)
            group.start_soon(self._end_unclaimed)
        if load.stream.state in (Workstream.COMPLETED, Workstream.FAILED):
            await keep_dossier(load)

    @property
    def _unsettled(self) -> list[TaskExecution]:
        return [case for case in self.load.cases.values() if case.result is None and case.is_opened]

    @property
    def _approving(self) -> list[TaskExecution]:
        """Who waits to be approved, and is being merged, or denied, for somebody just now."""
        return [case for case in self._unsettled if case.state is Task.PENDING_APPROVAL and case.lock.locked()]

    async def _end_stream(self, approving: Sequence[TaskExecution]) -> None:
        """What is being merged for whoever approved it is closed as well: both or neither. Not for ever."""
        with self._sup.registry.system.timers.limit(LAST_RECORDS_S, shield=True):
            for case in approving:
                async with case.lock:
                    pass
        async with anyio.create_task_group() as group:
            for case in [one for one in approving if one.result is None]:
                self._closing.tell_cancelled(case, GIVEN_UP)
                group.start_soon(self._leave, case, False)
            await self.load.stream.cancel(GIVEN_UP)

    async def _all_heard(self, case: TaskExecution) -> None:
        """What a command has told it just now may be in its mailbox still: it hears that before its end."""
        with suppress(NoSuchEntity):  # its actor was lost
            while any(self._sup.inspect(case.id).queued.values()):
                await checkpoint()

    async def _leave(self, case: TaskExecution, is_done: bool) -> None:
        """What it has is kept, and who works on it is ended; then nothing is in the way of taking that back."""
        if is_taken_back(self._sup, case) and not is_done:
            with suppress(Refused):  # a disk that is down may be back when nobody waits for this any more
                await self._sup.see_through(lambda: self._leave_nothing(case), f"take back what {case.name} did")
            return
        await self._end_both(case)
        if is_done:
            await self._forget(case)

    async def _leave_nothing(self, case: TaskExecution) -> None:
        """What it did in place is taken back when its end is on record: else whoever comes next goes on with its
        attempt, and takes that back. Nothing begins there meanwhile."""
        with self._sup.janitor.clearing.one():
            await self._end_both(case)
            if await self._sup.journal_writer.durable():
                await take_back(self._sup, case)

    async def _end_both(self, case: TaskExecution) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_run, case)
            group.start_soon(self._end_session, case.session_id)

    async def _forget(self, case: TaskExecution) -> None:
        """What was saved on its way goes when it is closed on record: else whoever comes next finds it at work, and
        nothing to go on with. A disk that is down is not waited for."""
        closed, journal_writer = OneShotEvent(), self._sup.journal_writer
        await self._end_of(case.id).wait()
        journal_writer.when_durable(closed.set)
        if await journal_writer.disk.unless_down(closed) and journal_writer.error is None:
            await self._sup.janitor.forget(owned(self._sup, case))

    async def _cancel_run(self, case: TaskExecution) -> None:
        """What it has is kept, and its last record is made: it is not buried before that."""
        over = self._end_of(case.run_id) if case.has_run else None
        with anyio.CancelScope(shield=True):  # a checkpoint that was begun is made, or given up by itself
            await self._closing.tell_run_cancelled(case, GIVEN_UP)
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
                await self.load.pool.stop()
            finally:  # a disk that is down is not waited for, for long
                self.load.pool.stop_waiting()

    async def _end_session(self, session_id: str) -> None:
        if session_id in self._sup.registry.works:
            with suppress(NoSuchEntity, Refused, JournalError):
                await self._sup.abort(session_id, AbortScope.SESSION, reason=GIVEN_UP)

    async def _end_unclaimed(self) -> None:
        """Those that were begun for its tasks, under an earlier supervisor, and hold none: nobody else ends them."""
        with suppress(JournalError):
            for session_id in await self._continuing.unclaimed():
                await self._end_session(session_id)

    def _bury(self) -> None:
        close_scopes(self.load)
        for case in self.load.cases.values():
            case.bury()
        for one in (*self._untouched, *self._continuing.over):
            self._sup.registry.bury(one.id)
        self.load.stream.bury()

    def _result(self, case: TaskExecution) -> TaskResult:
        assert case.result is not None, "it is settled"
        return case.result

    # ------------------------------------------------------------------ tasks
    def _open(self, plan: Plan) -> list[TaskExecution]:
        """The logs of the tasks that are new begin."""
        load = self.load
        placed = [one for one in every_task(plan.tasks) if one.task.id not in load.cases]
        load.budget = load.budget.grown(len(placed))
        load.unsettled += len(placed)
        new = [self._open_task(one, plan) for one in placed]
        for case in new:
            load.backlog.add(case.item(load.provider_of(case.agent)), on_hold=True)
        for case in new:
            if case.brought:
                load.backlog.settle(case.name, completed=case.is_met)
        return new

    def _open_task(self, placed: PlacedTask, plan: Plan) -> TaskExecution:
        load = self.load
        above = load.cases[placed.parent.task.id] if placed.parent is not None else None
        case = load.cases[placed.task.id] = TaskExecution(self._sup, placed.task, above)
        if above is not None:
            above.parts.append(case)
        if self._continuing.take_up(case) or self._bring(case):
            return case
        planned = plan.approve_plan or placed.task.approval == "before"
        digest = digest_of(placed.task, self._sup.settings)
        case.open(load.stream.id, digest, planned=planned, cause=load.stream.seq)
        case.checkpoint = self._before.again.get(case.name) if self._before is not None else None
        case.open_run(load.limits_of(case))
        if placed.task.when is None and not placed.task.optional:
            case.open_job()
        return case

    def _open_stream(self, plan: Plan, unmerged: int) -> None:
        brought = self._before.closed if self._before is not None else {}
        count = sum(1 for one in every_task(plan.tasks) if one.task.id not in brought)
        self.load.stream.open(
            plan.workstream, count + unmerged, self._before.workstream if self._before is not None else ""
        )

    def _bring(self, case: TaskExecution) -> bool:
        """Have it count as done, if it was closed in the run that this one resumes."""
        if self._before is None or (row := self._before.closed.get(case.name)) is None:
            return False
        outcome = "completed" if row.state == Task.CLOSED.value else "aborted"
        data = msgspec.json.decode(row.data, type=task.TaskData)
        case.bring(row.id, data.claimed_by, self._before.jobs.get(case.name, ""), outcome, data.rest)
        self.load.unsettled -= 1
        return True

    def _consider_all(self, cases: Iterable[TaskExecution]) -> None:
        for case in cases:
            self.load.start(self.consider, case)

    async def consider(self, case: TaskExecution) -> None:
        """Begin what can be begun of it, or say that it never will be: once, whoever else asks meanwhile. Whom nobody
        wants any more is about to be cancelled."""
        if case.considered:
            return
        case.considered = True
        try:
            async with case.lock:
                if not (case.is_over or case.unwanted) and self._is_due(case):
                    await self._begin_or_block(case)
        finally:
            case.considered = False
            self.load.wake()

    async def _begin_or_block(self, case: TaskExecution) -> None:
        if (doomed := self._doomed_by(case)) is not None:
            await self._block(case, doomed)
        elif case.state is Task.PLANNED:
            if self._sup.stopping.is_set():  # it came after all others that wait for a person were cancelled
                await self._closing.cancelled(case, ENDING)
        elif not self._waits_again(case):
            await self._queue(case)

    def _waits_again(self, case: TaskExecution) -> bool:
        """What it waits for was settled, and is about to be done again."""
        needed = (*case.task.depends_on, *((case.task.when.task,) if case.task.when and case.task.when.task else ()))
        return any(self.load.cases[name].result is None for name in needed)

    def _is_due(self, case: TaskExecution) -> bool:
        """Nothing that it waits for is still open, or something has ended for good; and it is not begun yet."""
        if case.state is Task.WAITING_FOR_SUBTASKS:
            return case.scope is None and all(part.result is not None for part in case.parts)
        above = case.part_of
        if above is not None and (above.result is not None or above.state not in PARENTS):
            return False  # what its parent waits for, it waits for too, and goes with it
        refusal = self.load.backlog.refusal(case.name)
        unbegun = case.state in (Task.PLANNED, Task.OPEN) and case.job in (None, job.Job.PENDING)
        return unbegun and (refusal is None or refusal.why in ("on_hold", "doomed"))

    def _doomed_by(self, case: TaskExecution) -> TaskExecution | None:
        needed = (self.load.cases[name] for name in case.task.depends_on)
        return next((one for one in needed if one.result is not None and not one.is_met), None)

    async def _block(self, case: TaskExecution, by: TaskExecution) -> None:
        failed = [name for name in case.task.depends_on if (one := self.load.cases[name]).result and not one.is_met]
        words = f"it depends on {', '.join(failed)}, which did not complete"
        cause = SkipCause.OPTIONAL if case.task.optional else SkipCause.DEPENDENCY_FAILED
        await self._closing.skip(case, cause, words, dependency=by)

    async def _queue(self, case: TaskExecution) -> None:
        """What it waited for is there: it is wanted or not, split or queued."""
        if case.state is Task.WAITING_FOR_SUBTASKS:
            await self._join(case)
            return
        if case.task.when is not None and (why := self._unmet(case, case.task.when)):
            await self._closing.skip(case, SkipCause.CONDITION_NOT_MET, why)
            return
        if case.job is None:
            case.open_job()
        if case.parts:
            await case.post(task.Split(subtasks=tuple(part.id for part in case.parts), reason="as the plan says"))
            self._blocking.watch(case)
            self._consider_all((*case.parts, case))  # its parts may all have been cancelled before
        elif self._sup.stopping.is_set():  # it came after all others that wait for a worker were cancelled
            await self._closing.cancelled(case, ENDING)
        else:
            await self._assign(case, case.task.depends_on)

    async def _assign(self, case: TaskExecution, needed: Iterable[str]) -> None:
        jobs = (self.load.cases[name].completed_job for name in needed)
        depends_on = tuple(one for one in jobs if one)
        await case.post_job(job.SchedulerAssigned(depends_on=depends_on))
        await plugin_policies.rank(self.load, case)
        self.load.offer(case)

    async def _join(self, case: TaskExecution) -> None:
        """Every subtask is settled."""
        for part in case.parts:
            if part.result is not None and not part.is_met:
                await case.post(task.SubtaskFailed(subtask=part.id, reason=part.result.error))
                await self._closing.cancelled(case, f"its subtask {part.name} did not complete")
                return
        if case.job is None:  # it was split before it was known whether it is wanted
            case.open_job()
        if case.job is job.Job.PENDING:
            await self._assign(case, (part.name for part in case.parts))
        elif is_delayed(case):
            return  # whoever waits for the end of its delay asks again
        elif case.job is job.Job.QUEUED:
            self.load.offer(case)
        else:
            await self._closing.integrate(case)

    def _unmet(self, case: TaskExecution, when: ConditionConfig) -> str:
        if when.task is not None:
            result = self.load.cases[when.task].result
            outcome = result.outcome if result is not None else "open"
            met = outcome == when.outcome
            return "" if met else f"its condition is not met: {when.task} is {outcome}, not {when.outcome}"
        missing = absent(
            self.load.directory_of(case), str(when.file_exists)
        )  # what it says names a directory of this machine
        return f"its condition is not met: there is no {when.file_exists}" if missing else ""

    # ------------------------------------------------------------------ what follows
    def _settled(self, case: TaskExecution) -> None:
        """A task is settled: others may begin, or never will."""
        load = self.load
        follows = load.backlog.settle(case.name, completed=case.is_met)
        load.wake()
        if load.running:
            self._blocking.settled(case)
            self._consider_all(load.cases[name] for name in dict.fromkeys((*follows.ready, *follows.doomed)))
            if case.part_of is not None:
                self._consider_all([case.part_of])
            if case.parts:
                self._drop_parts(case)
            if case.task.critical and case.result is not None and case.result.outcome == "failed":
                rest = [one for one in load.cases.values() if one.result is None]
                self._cancel_all(rest, f"the critical task {case.name} failed")

    def _let_go(self, case: TaskExecution) -> None:
        """Nobody carries it out any more: it waits for its subtasks, or is blocked."""
        self._blocking.look_at(case)
        self._consider_all([case])

    def _drop_parts(self, case: TaskExecution) -> None:
        """A task that is settled needs nothing of its subtasks any more."""
        outcome = case.result.outcome if case.result is not None else ""
        left = [part for part in case.parts if part.result is None]
        if outcome != "skipped":
            self._cancel_all(left, f"{case.name} is {outcome}")
            return
        for part in left:
            self.load.start(self._skip, part, f"{case.name} was skipped")

    async def _skip(self, case: TaskExecution, why: str) -> None:
        async with case.lock:
            await self._closing.skip(case, SkipCause.CONDITION_NOT_MET, why)

    def _cancel_all(self, cases: Collection[TaskExecution], why: str) -> None:
        """Nobody wants them any more. They are ended side by side: each agent may take its time."""
        self._hold(cases, why)
        for case in cases:
            self.load.start(self.cancel, case, why)

    def _hold(self, cases: Iterable[TaskExecution], why: str) -> None:
        """None of them begins any more while an agent of another one takes its time to end."""
        for case in cases:
            case.unwanted = case.unwanted or why
            self.load.backlog.hold(case.name)

    async def cancel(self, case: TaskExecution, why: str, begins: Callable[[], None] = lambda: None) -> None:
        """Nobody wants it any more: whoever works on it is ended, which *begins* then; what is checked and merged is
        not interrupted. Why, is what was said first."""
        self._hold([case], why)
        why = case.unwanted
        if case.scope is None:
            async with case.lock:
                begins()
                await self._closing.cancelled(case, why)
        elif case.works:
            begins()
            with suppress(NoSuchEntity, Refused):
                await self._sup.abort(case.session_id, AbortScope.SESSION, reason=why)  # its answer cancels the task
        elif case.job in (job.Job.QUEUED, job.Job.RUNNING):
            begins()
            case.scope.cancel()

    def _lost(self, worker_id: str, tasks: list[str]) -> None:
        """A worker is gone: what it held is taken from it."""
        for claim in self.load.backlog.fence(worker_id):
            case = self.load.cases[claim.item_id]
            if case.scope is None:
                continue  # nobody has begun: it can be claimed at once
            self.load.backlog.hold(case.name)  # whoever carries it out has to let go of it first
            if case.job in (job.Job.QUEUED, job.Job.RUNNING):  # what is checked and merged needs no worker any more
                case.taken_from = LOST
                case.scope.cancel()

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
        cases = self._load.cases if self._load is not None else {}
        known = [one.task for one in every_task(plan.tasks) if one.task.id in cases]
        changed = [one.id for one in known if one != cases[one.id].task]
        if changed:
            raise BadPlan(f"tasks: {', '.join(changed)}: not as they were when they were opened; use other ids")
        if self._load is None or not self._load.running or len(self.results) == len(cases):
            raise BadPlan("tasks: every task of this run has ended; start another run")
        if found := list(self._missed(self._split_as_before(plan))):
            raise BadPlan("\n".join(found))
        return [one.task.id for one in every_task(plan.tasks) if one.task.id not in cases]

    def _missed(self, plan: Plan) -> Iterator[str]:
        """What *plan* has not any more, and tasks need that it has not any more either, and that go on."""
        known = {one.task.id for one in every_task(plan.tasks)}
        for case in self.load.cases.values():
            if case.result is None and case.name not in known:
                alone = [PlacedTask((), case.task, None)]
                for path, words in (*agent_problems(alone, plan.agents), *need_problems(alone, plan.workers)):
                    yield f"task {case.name}, which is left out and goes on: {spelled(path)}: {words}"

    def add(self, plan: Plan) -> None:
        """Open the tasks that are new. Those that *plan* does not have any more go on."""
        self.load.pool.resize(plan.workers, plan.max_sessions)
        self.load.plan = self._split_as_before(plan)
        new = self._open(self.load.plan)
        self.load.start(self._add, new)

    def _split_as_before(self, plan: Plan) -> Plan:
        """*plan* with the subtasks that somebody split its tasks into meanwhile."""
        known = {one.task.id for one in every_task(plan.tasks)}
        for case in [one for one in self.load.cases.values() if one.parts]:
            if case.name in known and not any(part.name in known for part in case.parts):
                plan = with_subtasks(plan, {case.name: [part.task for part in case.parts]})
                known.update(one.task.id for one in every_task([part.task for part in case.parts]))
        return plan

    async def _add(self, new: list[TaskExecution]) -> None:
        try:
            if new:
                await self.load.stream.added(len(new))
        except Refused as refusal:  # a critical task has failed meanwhile
            for case in new:
                await self.cancel(case, f"it came too late: {refusal}")
            return
        self._consider_all(new)
