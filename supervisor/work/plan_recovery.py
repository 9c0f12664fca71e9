"""Continue a plan run that was interrupted by the death of its supervisor.

Theory of operation
-------------------
* A task that is settled stays settled.
* A task whose session goes on is followed: the session works on, and a worker is assigned to it.
* A task whose session is lost is an orphan. The setting ``recovery.orphans`` decides about the orphan.
* The worker died with the supervisor: the job waits for another worker, and nobody is charged for that.
* Task, run and job have three logs, which always agree: the records of one decision are one append of the journal. So
  the states of the task determine the next step, which is an effect as in any other run (``work.task_entity``).

Example: the supervisor was killed after the work of a task had passed its checks (run COMPLETED, job COMPLETED, task
DONE, in one append), and before it was merged. The merge is the pending effect of a task that is DONE: ``look`` begins
it.

The order of ``go_on`` matters. Sessions without a task are closed, concurrently with the rest. The files of tasks that
are over are rolled back first; then the tasks go on. Commands are accepted when all of them do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import anyio
import msgspec

from supervisor.lifecycles import job, task
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.record_ids import id_before
from supervisor.lifecycles.task import Task, TaskData, TaskEnd
from supervisor.lifecycles.task_cascade import Circumstances, Lost, SessionGaveUp
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.types import SUPERVISOR_ENDED, AbortReason, Kind, NoSuchEntity
from supervisor.plans.earlier_runs import InterruptedTask, continued, counted_ends, grown
from supervisor.plans.plan import Plan
from supervisor.policies.retry_budget import retries_spent
from supervisor.ports import EntityRow, JournalError, Outcome
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.journal_state import own_abort_of
from supervisor.work import authorization
from supervisor.work.attempt import Attempts, aborted_for, as_failed, last_data_of
from supervisor.work.checkpoints import take_back, workspace_of
from supervisor.work.completion_pipeline import ORPHANED, CompletionPipeline
from supervisor.work.plan_run import PlanRun, TaskReleased
from supervisor.work.results import TaskResult, unmerged_of
from supervisor.work.task_execution import ACTOR, CancelReason, TaskExecution, checkpoint_after

COUNTS_AS_DONE = "recovery.orphans is done"
BEFORE = "settled before the supervisor of this run ended"
HELD = (Task.CLAIMED, Task.IN_PROGRESS, Task.WAITING_FOR_SUBTASKS, Task.DONE)
"""States of a task that has a session, as far as the session has not ended."""
FINAL = frozenset({Task.CLOSED, Task.CANCELLED})
_OVER = FINAL | {Task.FAILED}
_WAITING = (Task.PLANNED, Task.WAITING_FOR_SUBTASKS)


class PlanRecovery:
    """Continues the tasks of a plan that an earlier supervisor left unfinished or settled."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline, attempts: Attempts) -> None:
        self._plan_run, self._pipeline, self._attempts = plan_run, pipeline, attempts
        self._sup = plan_run.sup
        self._left: Mapping[str, InterruptedTask] = {}
        self._taken: set[str] = set()
        self._executions: list[TaskExecution] = []
        self._living: dict[tuple[Kind, str], list[Entity]] = {}
        """The runs and jobs that are not over, by kind and task."""
        self._last: dict[tuple[str, str], EntityRow] = {}
        """The newest run and the newest job of each task, as the journal has them, by kind and task."""

    @property
    def words(self) -> str:
        """Text about the tasks that an earlier supervisor left: how many have ended, and which go on."""
        ends = [task.task_end(left.state.value, left.data.ended_as) for left in self._left.values()]
        over = counted_ends(end for end in ends if end)
        open_tasks = [f"{name} ({left.state.value})" for name, left in self._left.items() if left.state not in _OVER]
        goes_on = f"{len(open_tasks)} going on: {', '.join(open_tasks)}" if open_tasks else "none going on"
        return "; ".join(part for part in (over, goes_on) if part)

    @property
    def ids(self) -> Mapping[str, str]:
        """The entity ids of the tasks that an earlier supervisor left, by task name."""
        return {name: left.entity_id for name, left in self._left.items()}

    def find(self, plan: Plan, run: str = "", *, is_recorded: bool = False) -> bool:
        """Return whether an interrupted run of *plan* was found. The first caller takes that run over; a later caller
        finds none. *run* and *is_recorded* are those of ``earlier_runs.continued``."""
        inherited = self._sup.recovered_work
        rows = inherited.rows.values()
        tasks = continued(plan, self._sup.settings, rows, run, is_recorded=is_recorded)
        if not tasks and not self._is_without_tasks(run):
            return False
        workstream_id = next((one.data.workstream for one in tasks.values()), run)
        ids = {one.entity_id for one in tasks.values() if one.state not in FINAL}
        if not {workstream_id, *ids} <= inherited.work:
            return False
        owners = {workstream_id, *(one.entity_id for one in tasks.values())}
        ids |= {row.id for row in inherited.rows.values() if row.parent_id in owners and row.id in inherited.work}
        inherited.work.difference_update(ids, (workstream_id,))
        self._taken = ids
        self._left = tasks
        self._read()
        self._plan_run.workstream.take_up(self._sup.registry.entity(workstream_id))
        return True

    def _is_without_tasks(self, run: str) -> bool:
        """Return whether the supervisor of *run* was killed before it had created a task."""
        rows = self._sup.recovered_work.rows.values()
        return run in self._sup.recovered_work.work and not any(
            row.kind == Kind.TASK and msgspec.json.decode(row.data, type=TaskData).workstream == run for row in rows
        )

    def untouched(self, executions: Iterable[TaskExecution]) -> list[Entity]:
        """Return the entities that were taken over and have not ended, except the entities of *executions* and the
        workers that ended with the earlier supervisor."""
        known = {one for execution in executions for one in execution.entity_ids} | self._plan_run.worker_pool.left
        alive = (self._sup.registry.entities.get(one) for one in sorted(self._taken - known))
        return [one for one in alive if one is not None and not one.ended]

    @property
    def over(self) -> list[Entity]:
        """The entities that this run took over from an earlier supervisor, and that have ended meanwhile."""
        known = (self._sup.registry.entities.get(one) for one in sorted(self._taken))
        return [one for one in known if one is not None and one.ended]

    def _read(self) -> None:
        """Collect the runs and jobs of all tasks that were left, and count the retries that these tasks have used."""
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
        """The tasks, by name, that were closed when the run was given up, while their work was not merged from its
        branch."""
        return {name: left for name, left in self._left.items() if left.state is Task.CLOSED and left.is_unmerged}

    def do_again(self, names: Collection[str]) -> None:
        """Treat the tasks with these names as new tasks, as if no earlier supervisor had left them."""
        self._left = {name: left for name, left in self._left.items() if name not in names}

    def grown(self, plan: Plan) -> Iterator[Plan]:
        """Yield *plan*, and then each larger plan that resulted when its tasks were split."""
        return grown(plan, self._left)

    def has(self, execution: TaskExecution) -> bool:
        """Return whether an earlier supervisor left the task."""
        return execution.name in self._left

    def take_up(self, execution: TaskExecution) -> bool:
        """Take over the entities, or the result, of a task that an earlier supervisor left. Return false if the task
        was not left by one."""
        left = self._left.get(execution.name)
        if left is None:
            return False
        execution.session_id = left.data.claimed_by
        run, job = self._alive(Kind.RUN, left), self._alive(Kind.JOB, left)
        if left.state in FINAL:
            execution.earlier_job = self._last_job(left.entity_id)
            execution.earlier_id, execution.result = left.entity_id, self._settled_before(left)
            self._plan_run.unsettled -= 1
        else:
            execution.take_up(self._sup.registry.entity(left.entity_id), run, job)
            execution.agent = self._plan_run.agent_of(execution, left.data.retries)
            row = None if execution.has_run else self._last.get((Kind.RUN, execution.id))
            if row is not None:
                rollback, state = execution.task.rollback, TaskRun(row.state)
                execution.checkpoint = checkpoint_after(row.id, state, _run_data(row), rollback=rollback)
            self._executions.append(execution)
        return True

    def _alive(self, kind: Kind, left: InterruptedTask) -> Entity | None:
        """Return the newest run or job of the task, unless it is over. Earlier runs, whose circuits stay open for good,
        are removed from memory: they are irrelevant to the attempt that was under way."""
        row = self._last.get((kind, left.entity_id))
        newest = None
        for one in self._living.get((kind, left.entity_id), []):
            if row is not None and one.id == row.id:
                newest = one
            else:
                self._sup.registry.remove(one.id)
        return newest

    def _last_job(self, task_id: str) -> str:
        """Return the id of the job that completed the task, or ``""``: a task that was recovered as done may have no
        such job."""
        row = self._last.get((Kind.JOB, task_id))
        return row.id if row is not None and row.state == Job.COMPLETED.value else ""

    def _settled_before(self, left: InterruptedTask) -> TaskResult:
        """Return the result of a task that was settled under an earlier supervisor."""
        name, by = left.data.name, left.data.claimed_by
        row = self._sup.recovered_work.rows[left.entity_id]
        if left.state is Task.CLOSED:
            return TaskResult(name, by, TaskEnd.COMPLETED, "", row.lasted_s, *unmerged_of(left.data.rest))
        error = f"{left.data.ended_for} ({BEFORE})" if left.data.ended_for else BEFORE
        return TaskResult(name, by, task.task_end(left.state.value, left.data.ended_as), error, row.lasted_s)

    async def go_on(self) -> list[TaskExecution]:
        """Continue every task from its recorded state. Return the tasks that only wait for other tasks."""
        for execution in self._executions:
            if execution.works and self._plan_run.lives(execution.session_id):
                self._plan_run.backlog.note_at_work(execution.id)  # before any other task can be claimed
        for session_id in await self.unclaimed():
            self._plan_run.start(self._end_session, session_id)
        for execution in [one for one in self._plan_run.executions.values() if one.result is not None]:
            if not execution.is_imported:
                self._plan_run.backlog.settle(execution.id, completed=execution.is_met)
            # The supervisor may have died before it took back, or dropped, what the settled task left in place.
            if not execution.is_imported and self._left[execution.name].state is not Task.CLOSED:
                await take_back(self._sup, execution)
            elif not execution.is_imported and execution.task.rollback:
                await self._sup.verification.forget(workspace_of(self._sup, execution))
        for execution in self._executions:
            if execution.is_rolled_back and execution.has_run:  # the supervisor may have died before that
                await take_back(self._sup, execution)
        waiting = []
        async with anyio.create_task_group() as group:
            for execution in self._executions:
                states = execution.states
                is_fresh = states.run is TaskRun.PENDING and states.job in (None, Job.PENDING)
                if states.task in _WAITING or (states.task is Task.OPEN and is_fresh):
                    waiting.append(execution)
                group.start_soon(self._go_on, execution)
        return waiting

    async def unclaimed(self) -> list[str]:
        """Return the ids of the sessions that were started for a task and do not hold the task: their claim was not
        recorded, or the task is settled."""
        ids, rows = set(self.ids.values()), self._sup.recovered_work.rows
        if not ids:
            return []
        ours = ids | {row.id for row in rows.values() if row.parent_id in ids}
        held = {left.data.claimed_by for left in self._left.values() if left.state not in FINAL}
        idle = [one for one in self._sup.registry.sessions if one in rows and one not in held]
        return [one for one in idle if rows[one].parent_id is None and await self._begun_for(one) in ours]

    async def _begun_for(self, session_id: str) -> str:
        """Return the id of the entity whose record is the cause of the session."""
        journal = self._sup.journal
        [born] = await journal.events(entity_id=session_id, limit=1)
        if not born.cause_id:
            return ""
        [cause] = await journal.events(after_seq=id_before(born.cause_id), limit=1)
        return cause.entity_id

    async def _end_session(self, session_id: str) -> None:
        with suppress(NoSuchEntity, Refused, JournalError):
            await self._sup.aborts.close_session(session_id, reason=ORPHANED, cause=Cause(actor=ACTOR))
        await self._sup.cleanup.clean_up(session_id, f"Uncommitted changes of session {session_id}")

    async def _go_on(self, execution: TaskExecution) -> None:
        """Continue the task, depending on its state."""
        if execution.state in HELD:
            if self._plan_run.lives(execution.session_id):
                may_split = authorization.may_split(self._plan_run, execution)
                self._plan_run.attach_session(execution, may_split=may_split)
            elif (why := await aborted_for(self._sup, execution.session_id)) is not None:
                await self._pipeline.cancel(execution, CancelReason(why))
        elif execution.state in (Task.OPEN, Task.BLOCKED) and execution.session_id and execution.has_run:
            await self._pipeline.put_away(execution)  # the supervisor may have died before that
        elif execution.state is Task.FAILED and execution.data.dead_letter:
            await self._pipeline.put_away(execution)  # it is settled before a command comes
        is_at_work = execution.state in (Task.CLAIMED, Task.IN_PROGRESS)
        if is_at_work and not self._plan_run.lives(execution.session_id):
            await self._without_session(execution)
        if execution.job is Job.RUNNING:  # its worker died with the supervisor, and another one takes the job
            self._plan_run.record(execution, job.WorkerLost(error=ORPHANED))
        self._plan_run.look(execution)
        if execution.state is Task.BLOCKED:
            self._plan_run.publish(TaskReleased(execution))

    # ------------------------------------------------------------------ it is lost
    async def _without_session(self, execution: TaskExecution) -> None:
        """Continue a task whose session is lost; the recorded end of the session decides how."""
        data = await last_data_of(self._sup, execution.session_id)
        how, error = (
            ("", "") if data is None or data.last_error == SUPERVISOR_ENDED else (data.outcome, data.last_error)
        )
        limit = await own_abort_of(self._sup.journal, execution.session_id) if how == "aborted" else None
        how = "limited" if limit is not None else how
        above = execution.parent
        match how:
            case "failed" if execution.run is TaskRun.RETRYING:  # a plug-in wanted another attempt
                pass
            case "failed":  # its session had given up before the task had a record of that
                given = Circumstances(orphaned_by=ORPHANED)  # what was tested is not there any more
                await self._plan_run.advance(execution, SessionGaveUp(reason=error), given=given)
            case _ if above is not None and above.result is not None:  # the supervisor was about to cancel the task
                why = CancelReason(f"{above.name} is {above.result.outcome}", TaskEnd.CANCELLED, above.seq)
                await self._pipeline.cancel(execution, why)
            case "limited" if limit is not None and execution.run is TaskRun.IN_PROGRESS:
                await self._charge(execution, error, limit)
            case "limited" if execution.run is not TaskRun.VALIDATING:  # the attempt had been judged before the kill
                pass
            case _ if execution.state is Task.CLAIMED:
                await self._take_away(execution)
            case _:
                await self._adopt(execution)

    async def _charge(self, execution: TaskExecution, error: str, limit: AbortReason) -> None:
        """Charge the attempt of a session that the runtime ended by a *limit*; then try the task again, if its limits
        allow, or fail the task."""
        outcome = as_failed(Outcome("aborted", error, ""), limit)
        failed = await self._attempts.failure_of(execution, outcome)
        await self._plan_run.advance(execution, failed, given=Circumstances(verdict=outcome.how))
        if execution.state is not Task.FAILED:
            await self._take_back(execution)

    async def _take_away(self, execution: TaskExecution) -> None:
        """Let a task whose session is lost wait for another worker; its work is saved before, and then rolled back, if
        the plan says so."""
        await self._plan_run.advance(execution, Lost(reason=ORPHANED))
        await self._take_back(execution)

    async def _take_back(self, execution: TaskExecution) -> None:
        if not execution.is_rolled_back and execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):
            await take_back(self._sup, execution)

    async def _adopt(self, execution: TaskExecution) -> None:
        """Decide about a task in progress whose session is lost, by the setting ``recovery.orphans`` and within the
        task's retries."""
        is_at_work = execution.run in (TaskRun.IN_PROGRESS, TaskRun.VALIDATING)
        match self._sup.settings.recovery.orphans:
            case "done" if is_at_work and authorization.allows(self._plan_run, execution, "recovered"):
                # The work of the dead agent counts as complete.
                done = task.Recovered(reason=COUNTS_AS_DONE, summary=execution.data.summary)
                await self._plan_run.advance(execution, done, given=Circumstances(orphaned_by=ORPHANED))
            case "open" | "done" if execution.data.claims <= execution.data.max_retries:
                await self._take_away(execution)
            case _:
                await self._plan_run.advance(execution, task.RecoveryFailed(reason=ORPHANED))


def _run_data(row: EntityRow | None) -> TaskRunData:
    """Return the recorded data of a run; the defaults if there is no run."""
    return TaskRunData() if row is None else msgspec.json.decode(row.data, type=TaskRunData)
