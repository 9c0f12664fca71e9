"""Run a plan as a workstream of tasks, from its first task to the validation of the plan.

Theory of operation
-------------------
``plan_handle.run_plan`` is the entry point of a host. A run goes through these steps::

    earlier result   the last run of the same plan ended, and its host did not receive the result: return that, start
        nothing
    look back        go on with a run that an earlier supervisor left (PlanRecovery), or resume a run that ended
    begin            open the workstream and its tasks; merge tasks closed before their merge; start the workers
    dispatch         until every task is settled (TaskScheduler; ``plan_run`` lists the classes and their order)
    conclude         record the result, validate the plan, shut the workers down, export the workstream
    report           the host has received the result: ``note_reported``

A run that is cancelled, or whose journal is lost, ends with ``PlanCancellation`` instead of ``conclude``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import anyio

from actors.one_shot_event import OneShotEvent
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import RecordId
from supervisor.lifecycles.workstream import WORKSTREAM, TasksAdded, Workstream
from supervisor.plans.acceptance import Rejection
from supervisor.plans.checks import agent_problems, need_problems
from supervisor.plans.earlier_runs import tasks_digest
from supervisor.plans.plan import Plan
from supervisor.plans.source import BadPlan, spelled
from supervisor.plans.splitting import with_subtasks
from supervisor.plans.tasks import PlacedTask, every_task
from supervisor.policies.retry_reason import make_findings
from supervisor.ports import WorkspaceHeld
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.journal_state import entity_of
from supervisor.sessions.obstacles import outlast_obstacles
from supervisor.sessions.setup import Setup
from supervisor.work.attempt import Attempts
from supervisor.work.budgeting import close_scopes, recall_use
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_cancellation import PlanCancellation
from supervisor.work.plan_histories import recall_history
from supervisor.work.plan_recovery import PlanRecovery
from supervisor.work.plan_run import PlanRun
from supervisor.work.planned_stages import execution_plan_of
from supervisor.work.previous_run import find_previous_run
from supervisor.work.reporting import read_unreported_result
from supervisor.work.results import PlanResult, TaskResult, not_accepted
from supervisor.work.scheduler import TaskScheduler
from supervisor.work.task_commands import TaskCommands
from supervisor.work.task_execution import ACTOR, TaskExecution
from supervisor.work.workers import Heartbeat
from supervisor.work.workstream import WorkstreamEntity
from supervisor.work.workstream_export import export_workstream, record_usage


class Submission(NamedTuple):
    """Request for a run that continues no other run by itself (``plan_handle.submit``).

    *key* is its idempotency key, and *request* a digest of it. *resumes* is the id of the run to continue, or to
    resume; ``""`` for a new run. *is_recorded*: the plan is the one that was recorded with that run. *setup* are the
    agents, settings and working directory of the run, if they are not those of the supervisor, and *origin* is recorded
    with the run: where the plan came from. *hidden* are names of variables whose values are not recorded. *cause* is
    the record from which a new run follows, if there is one.
    """

    key: str = ""
    request: str = ""
    resumes: str = ""
    is_recorded: bool = False
    setup: Setup | None = None
    origin: Mapping[str, Any] | None = None
    hidden: Collection[str] = ()
    cause: RecordId | None = None


class PlanRunner:
    """Runs a plan; tasks can be added while it runs.

    Args:
        sup: the supervisor to run on.
        heartbeat: function that sends the heartbeats of the plan's workers, instead of the usual one.
    """

    def __init__(self, sup: SupervisorCore, *, heartbeat: Heartbeat | None = None) -> None:
        self._sup = sup
        self._heartbeat = heartbeat
        self.begun = anyio.Event()
        """Set when it is known which tasks of earlier runs this run continues."""
        self.submitted = OneShotEvent()
        """Set when the run is on the disk, so that the next supervisor finds it."""
        self.taken_over = ""
        """Text about the interrupted run that this run continues: its workstream, and the states of its tasks; ``""``
        if none."""
        self.anew = ""
        """Text about the earlier run that this run does not continue, with the reason; ``""`` if none."""
        self.rest = ""
        """The tasks that a run with *resume* would do, if the run that ``anew`` names has ended; ``""`` if none."""
        self.merged: tuple[str, ...] = ()
        """The tasks that were closed in an earlier run and are merged in this run, each with a sentence about the
        merge."""
        self.resumed = ""
        """Text about the run that this run resumes: the tasks that stay closed, and those that are done again, with
        their checkpoints; ``""`` if none."""
        self.unshown = ""
        """A sentence about an earlier run's result that was never reported and is not returned by this run either;
        ``""`` if none."""
        self.commands = TaskCommands(sup, self._add)
        """Commands of operators and agents about the tasks of the run."""
        self._scheduler: TaskScheduler | None = None
        self._hidden: Collection[str] = ()
        """Names of variables of agents whose values are not recorded."""
        self._superseded: WorkstreamEntity | None = None
        """The workstream with an unreported result that this run supersedes."""

    @property
    def scheduler(self) -> TaskScheduler:
        assert self._scheduler is not None, "it has begun"
        return self._scheduler

    @property
    def plan_run(self) -> PlanRun:
        """The state of the run; available once ``run`` was called."""
        return self.scheduler.plan_run

    @property
    def run_id(self) -> str:
        """The id of the run, which is that of its workstream; ``""`` before the run has one."""
        is_opened = self._scheduler is not None and self.plan_run.workstream.is_opened
        return self.plan_run.workstream.id if is_opened else ""

    @property
    def results(self) -> dict[str, TaskResult]:
        """The results of the tasks that are settled, by name."""
        results = self.plan_run.results if self._scheduler is not None else []
        return {one.id: one for one in results}

    def waiting(self) -> dict[str, str]:
        """Return the tasks that wait for a worker, by name, each with the reason."""
        return self.scheduler.waiting() if self._scheduler is not None else {}

    @property
    def task_ids(self) -> dict[str, str]:
        """The entity ids of the tasks of this run, by name."""
        executions = self.plan_run.executions if self._scheduler is not None else {}
        return {name: one.id for name, one in executions.items() if one.is_opened or one.earlier_id}

    # ------------------------------------------------------------------ the run
    async def run(
        self, plan: Plan, *, resume: bool = False, fresh: bool = False, submission: Submission | None = None
    ) -> PlanResult:
        """Run every task of *plan*, and of the plans that are added meanwhile. If an earlier supervisor was killed
        before the result of the last run was reported, return that result, and start nothing. With a *submission* no
        earlier run is looked for: it says which run is continued.

        After passing the result to a person or to the host, the caller calls ``note_reported``: until then the next run
        of the plan returns the result again.

        Raises:
            Refused: the last run of the plan has left nothing to *resume*.
        """
        plan_run = PlanRun(self._sup, plan, self.commands, heartbeat=self._heartbeat)
        pipeline = CompletionPipeline(plan_run)
        attempts = Attempts(plan_run, pipeline)
        recovery = PlanRecovery(plan_run, pipeline, attempts)
        self._scheduler = TaskScheduler(plan_run, pipeline, attempts, recovery)
        self._sup.aborts.task_enders.append(plan_run.end_task_of)
        try:
            cancellation = PlanCancellation(plan_run, pipeline, recovery)
            return await self._run(plan, recovery, cancellation, resume, fresh, submission)
        finally:
            plan_run.over.set()
            self._sup.aborts.task_enders.remove(plan_run.end_task_of)

    async def _run(
        self,
        plan: Plan,
        recovery: PlanRecovery,
        cancellation: PlanCancellation,
        resume: bool,
        fresh: bool,
        submission: Submission | None,
    ) -> PlanResult:
        looks_back = submission is None
        if looks_back and (earlier := await self._earlier_result(plan, anew=resume or fresh)) is not None:
            return earlier
        plan_run = self.plan_run
        self._sup.plan_commands.append(self.commands)
        try:
            if submission is None:
                continues = await self._look_back(plan, recovery, resume=resume, fresh=fresh)
            else:
                continues = await self._look_at(plan, recovery, submission)
            # Not before: a run that is refused must leave the earlier result to the next one.
            if self._superseded is not None:
                self._superseded.note_reported("another run of the plan was asked for")
                self._sup.recovered_work.earlier.forget(self._superseded.id)
            await self._carry_out(plan, recovery, continues, submission or Submission())
            result = await self._conclude()
        except BaseException:
            if plan_run.workstream.is_opened:
                with self._sup.timers.limit(cancellation.limit_s, shield=True):
                    await cancellation.run()
            raise
        finally:
            self.commands.end()
            self._sup.plan_commands.remove(self.commands)
            if plan_run.workstream.is_opened:
                plan_run.scheduler.leave(plan_run.workstream.id)
                close_scopes(plan_run)
                for execution in plan_run.executions.values():
                    execution.remove()
                for one in (*cancellation.untouched, *recovery.over):
                    self._sup.registry.remove(one.id)
                plan_run.workstream.remove()
                for run in (plan_run.workstream.id, plan_run.workstream.resumes):
                    self._sup.setups.of_runs.pop(run, None)
            if (
                plan_run.workstream.owes_result
            ):  # until note_reported: the host may be cancelled before it has the result
                known = self._sup.recovered_work.earlier.by_tasks
                known[tasks_digest(plan, self._sup.settings)] = plan_run.workstream.id
        return result

    def note_reported(self, how: str) -> None:
        """Record that the result was printed, or returned; *how* says which. This ends the run."""
        workstream = self.plan_run.workstream
        if workstream.owes_result:
            workstream.note_reported(how)
            self._sup.recovered_work.earlier.forget(workstream.id)

    async def _earlier_result(self, plan: Plan, *, anew: bool) -> PlanResult | None:
        """Return the result of the last run of *plan*, if the result was never reported. If the plan is to be run
        *anew*, or has other tasks now, only remember that there is such a result."""
        known = self._sup.recovered_work.earlier
        same = known.by_tasks.get(tasks_digest(plan, self._sup.settings), "")
        named = known.by_name.get(plan.workstream)
        last = same or (named.workstream if named is not None and named.is_over else "")
        if not last:
            return None
        await self._sup.journal_writer.durable()  # the last run may have been one of this supervisor, and cancelled
        left = await read_unreported_result(self._sup.journal, last)
        if left is None:
            if named is not None and not anew:
                self.anew, self.rest = f"{named.words} is over", named.rest
            known.forget(last)
            return None
        if not same:  # a plan with the tasks of that run still gets the result
            known.by_name.pop(plan.workstream, None)
            self.unshown = f"{left.words}; the tasks of this plan are not the same"
            return None
        workstream = WorkstreamEntity(self._sup)
        workstream.take_up_ended(entity_of(left.row, self._sup.journal_writer), left.last_seq)
        if anew:
            self.unshown, self._superseded = left.words, workstream
            return None
        self.plan_run.workstream = workstream
        await export_workstream(self.plan_run)  # its supervisor may have died before that
        self.commands.end()
        self.begun.set()
        return left.result

    async def _look_back(self, plan: Plan, recovery: PlanRecovery, *, resume: bool, fresh: bool) -> bool:
        """Find the earlier runs of *plan*. Return whether this run continues a run of an earlier supervisor.

        A run that was interrupted, and that *plan* cannot continue since the plan has changed, is resumed: its finished
        tasks are kept, unless the run is to start *fresh*.

        Raises:
            Refused: *resume* was requested, or the run is resumed, and every task of the plan is closed and merged.
        """
        continues = recovery.find(plan)
        resumes = self.plan_run.workstream.resumes if continues else ""
        known = self._sup.recovered_work.earlier
        earlier = known.by_name.get(plan.workstream)
        if continues:
            known.forget(self.plan_run.workstream.id)
        elif earlier is not None and not earlier.is_over:
            known.forget(earlier.workstream)
            why = "as requested" if fresh else earlier.why_not_continued(plan, self._sup.settings)
            self.anew = f"{earlier.words} is not continued: {why or 'its work is not available to this run'}"
            resumes = "" if fresh else earlier.workstream
        if resumes or (resume and not continues):
            await self._read_previous(plan, resumes)
        previous = self.plan_run.previous
        others = [one.words for one in known.by_name.values() if not one.is_over]
        if others and not (self.anew or continues):
            self.anew = f"not continued, since this is another plan: {', '.join(others)}"
        if self.anew and previous is None:
            self.anew = f"starting over: {self.anew}"
        if not continues:
            self._check_rest(plan, recovery)
        return continues

    async def _look_at(self, plan: Plan, recovery: PlanRecovery, submission: Submission) -> bool:
        """Find the run that the *submission* names. Return whether this run continues that run; else that run is over,
        and is resumed, or the submission names none.

        Raises:
            Refused: every task of the run is closed and merged.
        """
        if not submission.resumes:
            return False
        continues = recovery.find(plan, submission.resumes, is_recorded=submission.is_recorded)
        resumes = self.plan_run.workstream.resumes if continues else submission.resumes
        self._sup.recovered_work.earlier.forget(submission.resumes)
        if resumes:
            await self._read_previous(plan, resumes)
        if not continues:
            self._check_rest(plan, recovery)
        return continues

    def _check_rest(self, plan: Plan, recovery: PlanRecovery) -> None:
        """Check that the run that this run resumes, if any, has left work.

        Raises:
            Refused: every task of the plan is closed and merged.
        """
        previous = self.plan_run.previous
        names = {one.task.id for one in every_task(plan.tasks)}
        if previous is not None and previous.closed.keys() >= names and not self._unmerged(plan, recovery):
            why = "nothing of it was cancelled, given up or changed: every task is closed"
            raise Refused(f"plan {plan.workstream!r} is not resumed: {why}; start it fresh to do all of it again")

    async def _read_previous(self, plan: Plan, resumes: str, refused: Collection[str] = ()) -> None:
        # What this supervisor has just given up may still be on its way to the disk.
        await self._sup.journal_writer.durable()
        rows = await self._sup.journal.entities()
        self.plan_run.previous = find_previous_run(plan, self._sup.settings, rows, resumes, refused)

    async def _carry_out(self, plan: Plan, recovery: PlanRecovery, continues: bool, submission: Submission) -> None:
        """Run the tasks, from the first one to the last, or until the run is given up."""
        try:
            async with anyio.create_task_group() as group:
                self.plan_run.begin(group)
                await self._begin(plan, recovery, continues, submission)
                self.plan_run.worker_pool.end_left()
                group.start_soon(self.scheduler.watch_stop)
                group.start_soon(self._watch_journal)
                # Not before: a task that recovery has not come to yet would look like one that was interrupted.
                await self.plan_run.scheduler.join(self.plan_run.workstream.id, self.scheduler)
                await self.scheduler.dispatch()
                self.plan_run.concluded = True
                group.cancel_scope.cancel()  # what still waits for a task that was settled otherwise
        finally:
            self.plan_run.end()

    async def _watch_journal(self) -> None:
        """End the run if its journal is lost, whatever its tasks wait for: nothing about them can be recorded
        any more."""
        raise await self._sup.shutdown.wait_journal_lost()

    async def _begin(self, plan: Plan, recovery: PlanRecovery, continues: bool, submission: Submission) -> None:
        """Open the workstream and its tasks, or, if the run *continues* one of an earlier supervisor, restore them.

        The order matters: work that was closed and not merged is merged before a task begins that may depend on that
        work; commands are accepted when each task is in the state from which it continues; only then do tasks wait for
        workers.
        """
        plan_run, scheduler, workstream = self.plan_run, self.scheduler, self.plan_run.workstream
        unmerged = self._unmerged(plan, recovery)
        if not continues:
            closed = plan_run.previous.closed if plan_run.previous is not None else {}
            resumed = plan_run.previous.workstream if plan_run.previous is not None else ""
            count = sum(1 for one in every_task(plan.tasks) if one.task.id not in closed)
            key, request = submission.key, submission.request
            with plan_run.together():  # a run in the journal without its plan could not be continued
                cause = Cause(submission.cause, None, ACTOR)
                workstream.open(plan.workstream, count + len(unmerged), resumed, cause, key=key, request=request)
                self._configure(submission)  # first, since secrets of the agents must not be recorded
                workstream.note_plan(plan, self._hidden)
                if submission.origin is not None:
                    workstream.note_submitted(submission.origin)
        else:
            self._configure(submission)
            if submission.origin is not None:
                workstream.note_submitted(submission.origin)
        self._sup.journal_writer.when_durable(self.submitted.set)
        # Before anything begins that may depend on it.
        merged, refused = await self._merge_late(unmerged)
        recovery.do_again(refused)
        if refused and plan_run.previous is not None:
            await self._read_previous(plan, workstream.resumes, refused)
        await plan_run.worker_pool.start(workstream.id, Cause(workstream.seq, None, ACTOR))
        if continues:
            self.taken_over = f"{workstream.id}: {recovery.words}"
        if plan_run.previous is not None and not continues:
            self.resumed = plan_run.previous.words
        self.begun.set()
        new: list[TaskExecution] = []
        for one in recovery.grown(plan):
            plan_run.plan = one
            new += scheduler.open_tasks(one)
        if workstream.state is Workstream.PLANNED:
            workstream.note_stages(execution_plan_of(plan_run.plan, workstream.id))
        await workstream.record_opened()
        await recall_history(plan_run, continues=continues)
        born = sum(1 for execution in new if not execution.is_imported)
        if not continues:
            if merged or refused:
                await workstream.record_merged(merged, born)
            await self.commands.begin(scheduler, recovery.ids)
            plan_run.opened.set()
            scheduler.consider_all(new)
            return
        await recall_use(plan_run)
        fresh = [execution for execution in new if not (recovery.has(execution) or execution.is_imported)]
        await workstream.go_on(born - len(fresh), len(fresh))
        waiting = await recovery.go_on()
        await self.commands.begin(scheduler, recovery.ids)  # not before: commands find each task where it goes on
        plan_run.opened.set()
        scheduler.consider_all([*waiting, *fresh])
        for execution in [one for one in plan_run.executions.values() if one.result is not None and one.subtasks]:
            scheduler.drop_subtasks(execution)
        for execution in [one for one in plan_run.executions.values() if one.result is None]:
            if execution.state is Task.WAITING_FOR_SUBTASKS:
                scheduler.blocked_tasks.watch(execution)

    def _configure(self, submission: Submission) -> None:
        """Give the run, and the run that it resumes, whose tasks it may merge, the setup of the submission."""
        self._hidden = submission.hidden
        if submission.setup is not None:
            workstream = self.plan_run.workstream
            self._sup.setups.configure_run(workstream.id, submission.setup)
            if workstream.resumes:
                self._sup.setups.of_runs.setdefault(workstream.resumes, submission.setup)

    def _unmerged(self, plan: Plan, recovery: PlanRecovery) -> list[tuple[TaskExecution, str]]:
        """Return, in the order of the plan, the tasks that were closed as their run ended, while their work was not
        merged from its branch, each with the commit that was checked."""
        if self._sup.verification.in_place:
            return []
        resumed = self.plan_run.previous.unmerged if self.plan_run.previous is not None else {}
        known = recovery.ids
        left = {**{name: one for name, one in resumed.items() if name not in known}, **recovery.unmerged}
        *_, grown = recovery.grown(plan)
        executions = [TaskExecution(self._sup, one.task) for one in every_task(grown.tasks) if one.task.id in left]
        for one in executions:
            one.earlier_id, data = left[one.name].entity_id, left[one.name].data
            one.session_id = data.claimed_by
        return [(one, left[one.name].data.judged) for one in executions]

    async def _merge_late(self, unmerged: list[tuple[TaskExecution, str]]) -> tuple[list[str], list[str]]:
        """Merge the tasks *unmerged*. Return the ids of the tasks that were merged, and the names of the tasks that
        cannot be merged and are done again.

        Raises:
            Refused: the supervisor is ending, and something outside of the work holds a merge.
        """
        merged, refused = dict[str, str](), list[str]()
        for execution, judged in unmerged:
            try:
                is_merged, words = await self.scheduler.pipeline.merge_late(execution, judged)
            except WorkspaceHeld as held:  # the supervisor is ending
                raise Refused(f"{execution.name} is not merged yet: {held}; run the plan with --resume again") from held
            if is_merged:
                merged[execution.id] = f"{execution.name} ({words})"
            else:
                refused.append(execution.name)
        self.merged = tuple(merged.values())
        return list(merged), refused

    async def _conclude(self) -> PlanResult:
        """Record the result, validate the plan, and shut the workers down. Return the result."""
        plan_run, workstream = self.plan_run, self.plan_run.workstream
        workers = await record_usage(plan_run)
        workstream.note_result(plan_run.results)
        await workstream.record_settled(plan_run.executions.values())
        problem = output = ""
        if workstream.state is Workstream.VALIDATING:
            tests = [test.value(plan_run.plan.task_lifecycle.validation_timeout) for test in plan_run.plan.validation]
            where, until = str(plan_run.setup.workdir), self._sup.stop_now
            inspected = f"{workstream.id}.validation"
            inspect = partial(self._sup.verification.inspect, inspected, tests, where, until)
            clock, stopping = self._sup.journal_writer.clock.wall, self._sup.stopping
            try:
                rejection = await outlast_obstacles(inspect, workstream.note_obstacle, clock, stopping)
            except WorkspaceHeld as held:
                rejection = Rejection(f"the acceptance tests could not be run: {held}")
            problem = rejection.problem if rejection is not None else ""
            output = rejection.output if rejection is not None else ""
            await workstream.record_validated(problem)
        await plan_run.worker_pool.stop()
        await export_workstream(plan_run)
        redact = self._sup.journal_writer.redactor.text
        return PlanResult(
            self.results,
            redact(not_accepted(problem)),
            output=make_findings("", output, redact),
            run=workstream.id,
            workers=workers,
        )

    # ------------------------------------------------------------------ more tasks
    def check(self, plan: Plan) -> list[str]:
        """Return the names of the tasks of *plan* that are new.

        Raises:
            BadPlan: *plan* changes settings or tasks that are fixed while the run goes on, or takes the agent or
                the worker away from a task that goes on; or every task of the run has ended.
        """
        if plan.plugins != self._sup.settings.plugins:
            raise BadPlan("plugins: not as they were when the run began; start another run")
        if (plan.workspace, plan.merge_into) != (self._sup.settings.workspace, self._sup.settings.merge_into):
            raise BadPlan("workspace, merge_into: not as they were when the run began; start another run")
        if (plan.access is None) is not (self._sup.settings.access is None):
            raise BadPlan("access: not as it was when the run began; start another run")
        executions = self.plan_run.executions if self._scheduler is not None else {}
        known = [one.task for one in every_task(plan.tasks) if one.task.id in executions]
        changed = [one.id for one in known if one != executions[one.id].task]
        if changed:
            raise BadPlan(f"tasks: {', '.join(changed)}: not as they were when they were opened; use other ids")
        if self._scheduler is None or not self.plan_run.running or len(self.results) == len(executions):
            raise BadPlan("tasks: every task of this run has ended; start another run")
        if found := list(self._missed(self._split_as_before(plan))):
            raise BadPlan("\n".join(found))
        return [one.task.id for one in every_task(plan.tasks) if one.task.id not in executions]

    def _missed(self, plan: Plan) -> Iterator[str]:
        """Yield a sentence for each agent or capability that *plan* lacks, and that a running task which *plan* leaves
        out needs."""
        known = {one.task.id for one in every_task(plan.tasks)}
        for execution in self.plan_run.executions.values():
            if execution.result is None and execution.name not in known:
                alone = [PlacedTask((), execution.task, None)]
                for path, words in (*agent_problems(alone, plan.agents), *need_problems(alone, plan.workers)):
                    yield f"task {execution.name}, which is left out and goes on: {spelled(path)}: {words}"

    def _add(self, plan: Plan, cause: Cause) -> tuple[str, ...]:
        """Open the tasks of *plan* that are new, and return their ids; *cause* is the record of the command. Running
        tasks that *plan* leaves out go on.

        Raises:
            BadPlan: as for ``check``.
            Refused: the workstream takes no more tasks, since a critical task has failed.
        """
        plan_run, workstream = self.plan_run, self.plan_run.workstream
        if self.check(plan) and TasksAdded not in WORKSTREAM.allowed(workstream.state):
            raise Refused(f"run {workstream.id} is {workstream.state.value}, and takes no more tasks")
        plan_run.worker_pool.resize(plan.workers, plan.max_sessions)
        recorded = self._with_left_out(plan)
        plan_run.plan = self._split_as_before(plan)
        with plan_run.together():
            workstream.follow(cause)
            new = self.scheduler.open_tasks(plan_run.plan)
            ids = tuple(one.id for one in new)
            if new:
                workstream.add_tasks(len(new), ids)
                workstream.note_plan(recorded, self._hidden)
                workstream.note_stages(execution_plan_of(recorded, workstream.id))
        plan_run.start(self._consider, new)
        return ids

    def _with_left_out(self, plan: Plan) -> Plan:
        """Return *plan* with the tasks of the run that *plan* leaves out, and with their agents."""
        known = {one.id for one in plan.tasks}
        tops = [one.task for one in self.plan_run.executions.values() if one.parent is None]
        tasks = (*plan.tasks, *(one for one in tops if one.id not in known))
        return plan.model_copy(update={"tasks": tasks, "agents": {**self.plan_run.plan.agents, **plan.agents}})

    def _split_as_before(self, plan: Plan) -> Plan:
        """Return *plan* with the subtasks that the tasks of the run were split into meanwhile."""
        known = {one.task.id for one in every_task(plan.tasks)}
        for execution in [one for one in self.plan_run.executions.values() if one.subtasks]:
            if execution.name in known and not any(subtask.name in known for subtask in execution.subtasks):
                subtasks = [subtask.task for subtask in execution.subtasks]
                plan = with_subtasks(plan, {execution.name: subtasks})
                known.update(one.task.id for one in every_task(subtasks))
        return plan

    async def _consider(self, new: list[TaskExecution]) -> None:
        await self._sup.journal_writer.flush()
        await recall_history(self.plan_run)
        self.scheduler.consider_all(new)
