"""Cancel a plan run that is given up: end all of its work, and record the end of each of its entities.

The journal may be unwritable while that happens, and the time is limited (``limit_s``). So the ends of a task, its run
and its job are recorded together, after the last checkpoint, and written when the journal allows. Only an action that
must follow a record waits:

* a worker is shut down after the last records of its jobs are made;
* changes that a task made in the directory itself are rolled back after its cancellation is durable: else the next
  supervisor would go on with the attempt, on files that are not there any more.

A merge has ended before: the work is merged and the task closed, or it is not merged (``CompletionPipeline.merge``). If
the disk was down, a task whose work is merged is closed here, as unmerged: a run that resumes finds nothing to merge.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import anyio

from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import AbortScope, Kind, NoSuchEntity
from supervisor.lifecycles.workstream import WORKSTREAM
from supervisor.ports import JournalError
from supervisor.runtime.entity import Entity, Refused
from supervisor.sessions.shutdown import LAST_RECORDS_S
from supervisor.work.checkpoints import must_take_back, take_back, workspace_of
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.end_of_work import record_end_of_work
from supervisor.work.one_merge import leave_branch
from supervisor.work.plan_recovery import PlanRecovery
from supervisor.work.plan_run import PlanRun
from supervisor.work.task_execution import ACTOR, TaskExecution
from supervisor.work.workstream_export import export_workstream


class PlanCancellation:
    """Cancels one plan run after all of its asynchronous tasks have ended."""

    def __init__(self, plan_run: PlanRun, pipeline: CompletionPipeline, recovery: PlanRecovery) -> None:
        self._plan_run, self._pipeline, self._recovery = plan_run, pipeline, recovery
        self._sup = plan_run.sup
        self.untouched: list[Entity] = []
        """Entities that an earlier supervisor left, and that this run had not continued yet."""

    @property
    def limit_s(self) -> float:
        """Seconds that ``run`` may take: for the last records, and for the end of agents whose files are rolled back
        afterwards."""
        executions = self._plan_run.executions.values()
        begun = [one.session_id for one in executions if one.task.rollback and not one.is_rolled_back]
        sessions = (self._sup.registry.sessions.get(session_id) for session_id in begun)
        ends_s = max((session.policy.ladder.total_s for session in sessions if session is not None), default=0.0)
        return ends_s + LAST_RECORDS_S

    async def run(self) -> None:
        """Cancel everything in the plan run that is not settled."""
        plan_run = self._plan_run
        unsettled = [one for one in plan_run.executions.values() if one.result is None and one.is_opened]
        self.untouched = self._recovery.untouched(plan_run.executions.values())
        holders = [one.data.claimed_by for one in self.untouched if one.kind is Kind.TASK]  # a task that ends has none
        record_end_of_work(self._sup.registry, self.untouched)
        jobs = [execution.job_id for execution in unsettled if execution.job is not None]
        jobs += [one.id for one in self.untouched if one.kind is Kind.JOB]
        async with anyio.create_task_group() as group:
            group.start_soon(self._stop_workers, [self._end_of(job_id) for job_id in jobs])
            for execution in unsettled:
                group.start_soon(self._end_execution, execution)
            group.start_soon(plan_run.workstream.cancel, plan_run.workstream.cancel_reason)
            for session_id in holders:
                group.start_soon(self._end_session, session_id)
            group.start_soon(self._end_unclaimed)
        if plan_run.workstream.state in WORKSTREAM.terminal:
            await leave_branch(plan_run)
            await export_workstream(self._sup, plan_run.workstream.id, plan_run.workstream.born_seq)

    async def _end_execution(self, execution: TaskExecution) -> None:
        """Record the end of the task, save its work, end its session, and then roll back its changes in the directory
        itself, if the plan says so."""
        is_done = execution.state in (Task.DONE, Task.CLOSED)
        if must_take_back(self._sup, execution) and not is_done:
            with suppress(Refused):  # a disk that is down may be back when nobody waits for this any more
                words = f"take back what {execution.name} did"
                await self._sup.background.run_to_completion(lambda: self._take_back(execution), words)
            return
        await self._end_run_and_session(execution)
        if is_done:
            # Checkpoints go when the task is closed on record: else the next supervisor would find it at work, and
            # nothing to go on with. A disk that is down is not waited for.
            closed, journal_writer = OneShotEvent(), self._sup.journal_writer
            journal_writer.when_durable(closed.set)
            if await journal_writer.disk.wait_unless_down(closed) and journal_writer.error is None:
                await self._sup.verification.forget(workspace_of(self._sup, execution))

    async def _take_back(self, execution: TaskExecution) -> None:
        with self._sup.cleanup.clearing.one():  # nothing begins in the directory meanwhile
            await self._end_run_and_session(execution)
            if await self._sup.journal_writer.durable():
                await take_back(self._sup, execution)

    async def _end_run_and_session(self, execution: TaskExecution) -> None:
        if (request := self._plan_run.workstream.cancel_seq) is not None:
            execution.seq = request
        async with anyio.create_task_group() as group:
            group.start_soon(self._pipeline.record_given_up, execution, self._plan_run.workstream.cancel_reason)
            group.start_soon(self._end_session, execution.session_id)

    def _end_of(self, entity_id: str) -> OneShotEvent:
        """Return an asynchronous event that is set when the entity's last record is made (not yet durable, so that no
        disk is waited for)."""
        over, entity = OneShotEvent(), self._sup.registry.entities.get(entity_id)
        if entity is None or entity.ended:
            over.set()
        else:
            entity.on_ended = over.set
        return over

    async def _stop_workers(self, jobs: Iterable[OneShotEvent]) -> None:
        with suppress(NoSuchEntity, Refused, JournalError):
            try:
                for over in jobs:
                    await over.wait()
                await self._plan_run.worker_pool.stop()
            finally:  # a disk that is down is not waited for longer than the limit
                self._plan_run.worker_pool.stop_waiting()

    async def _end_session(self, session_id: str) -> None:
        if session_id in self._sup.registry.sessions:
            with suppress(NoSuchEntity, Refused, JournalError):
                workstream = self._plan_run.workstream
                await self._sup.aborts.abort(
                    session_id,
                    AbortScope.SESSION,
                    reason=workstream.cancel_reason,
                    actor=ACTOR,
                    because=workstream.cancel_seq,
                )

    async def _end_unclaimed(self) -> None:
        """End the sessions that an earlier supervisor started for tasks, and that hold no task."""
        with suppress(JournalError):
            for session_id in await self._recovery.unclaimed():
                await self._end_session(session_id)
