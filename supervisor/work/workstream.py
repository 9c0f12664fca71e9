"""The workstream of a plan run: its entity and log, moved by the results of the tasks.

A terminal state is final. A critical task that failed ends the workstream at once; otherwise the workstream stays
EXECUTING until all its tasks are settled. Then the plan's validation runs, if no task failed and no task was cancelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from actors.machine import Event
from supervisor.diagnostics.execution_plan import PLANNED, ExecutionPlan
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles import workstream
from supervisor.lifecycles.entity_types import WORKSTREAM_KIND
from supervisor.lifecycles.run_ids import RUN_PREFIX
from supervisor.lifecycles.types import HeldBy, RecordId
from supervisor.lifecycles.workstream import Workstream, WorkstreamData
from supervisor.plans.plan import Plan
from supervisor.plans.recorded import plain_plan, without_values
from supervisor.policies.budgets import Amounts
from supervisor.ports import JournalError
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Entity, NoSuchEntity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.work.reporting import PLAN, REPORTED, RESULT, SUBMITTED
from supervisor.work.results import TaskResult
from supervisor.work.task_execution import ACTOR, TaskExecution

_log = get_logger()

GIVEN_UP: Final = "the plan was given up"
CANCEL_REQUESTED: Final = "CancelRequested"
"""Name of the fact that somebody has requested to give the run up."""
HELD: Final = "Held"
"""Name of the fact about an obstacle outside of the work that holds a step of the workstream."""


class WorkstreamEntity:
    """The workstream of one plan run."""

    def __init__(self, sup: SupervisorCore) -> None:
        self._sup = sup
        self._entity: Entity | None = None
        self._seq: RecordId | None = None
        self.cancel_seq: RecordId | None = None
        """The request to give the run up, if somebody has made one."""
        self.cancel_reason = GIVEN_UP
        """Reason of the ends that follow when the run is given up."""
        self._withdrawn = 0
        """Number of counted tasks that have no entity in this run: their split was not recorded or was refused, or they
        were only merged."""
        self._merged = ""
        """Id of a task that was only merged in this run, since it was done before; ``""`` if there is none."""
        self.owes_result = False
        """Whether the result of the workstream is recorded, but was not reported yet."""

    @property
    def is_opened(self) -> bool:
        """Whether the log of the workstream was begun or taken over. False if the plan is given up before."""
        return self._entity is not None

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._the().id

    @property
    def state(self) -> Workstream:
        return Workstream(self._the().state)

    @property
    def tasks(self) -> int:
        """Number of the workstream's tasks."""
        tasks: int = self._the().data.tasks
        return tasks

    @property
    def born_seq(self) -> RecordId:
        """Number of the workstream's first record."""
        born_seq: RecordId = self._the().born_seq
        return born_seq

    @property
    def seq(self) -> RecordId | None:
        """Number of the record that the records of its tasks follow from."""
        return self._seq

    def _the(self) -> Entity:
        assert self._entity is not None, "it was opened"
        return self._entity

    @property
    def resumes(self) -> str:
        """Id of the workstream that this workstream resumes, or ``""``."""
        resumes: str = self._the().data.resumes
        return resumes

    def open(self, name: str, tasks: int, resumes: str, cause: Cause, *, key: str = "", request: str = "") -> None:
        """Create the workstream's entity, which begins its log with a record that follows from *cause*; *name* is the
        name of the plan, and *key* and *request* are those of the data."""
        self._entity = self._sup.registry.create_entity(
            WORKSTREAM_KIND,
            self._sup.registry.names.number(RUN_PREFIX),
            parent_id=None,
            state=Workstream.PLANNED,
            data=WorkstreamData(name=name, tasks=tasks, resumes=resumes, key=key, request=request),
            cause=cause,
        )
        self._seq = self._entity.born_seq

    def take_up(self, entity: Entity) -> None:
        """Continue the log of a workstream that an earlier supervisor began."""
        self._entity = entity

    def take_up_ended(self, entity: Entity, last_seq: RecordId) -> None:
        """Take over a workstream that has ended, and whose result was never reported; *last_seq* is the number of its
        last record."""
        self._entity, self._seq, self.owes_result = entity, last_seq, True

    async def go_on(self, known: int, fresh: int) -> None:
        """Continue with *known* tasks, and *fresh* (new) ones. An earlier supervisor may have created more tasks than
        it had counted, or counted more than it had created."""
        missing = max(0, self.tasks - known)
        counted = min(missing, fresh)  # it was killed before it had created them
        self._withdrawn = missing - counted
        if more := fresh - counted + max(0, known - self.tasks):
            self.add_tasks(more)

    async def record_merged(self, tasks: Sequence[str], born: int) -> None:
        """Count *tasks* as only merged, since they were done before; *born* is the number of tasks created. There may
        be more than were counted: a task that cannot be merged is created again, with its subtasks."""
        self._withdrawn, self._merged = len(tasks), tasks[0] if tasks else ""
        if more := born + len(tasks) - self.tasks:
            self.add_tasks(more)

    def _cause(self, seq: RecordId | None = None) -> Cause:
        """Return the record *seq* as a cause; by default the workstream's last record."""
        return Cause(self._seq if seq is None else seq, None, ACTOR)

    def _record(self, event: Event, seq: RecordId | None = None) -> None:
        self._seq = self._sup.registry.apply((self.id, event), cause=self._cause(seq)).seq

    async def _post(self, event: Event, seq: RecordId | None = None) -> None:
        self._record(event, seq)
        await self._sup.journal_writer.flush()

    async def record_opened(self) -> None:
        """Record that all tasks of the workstream are created."""
        if self.state is Workstream.PLANNED:
            await self._post(workstream.AllTasksCreated(count=self.tasks))

    def add_tasks(self, count: int, tasks: tuple[str, ...] = ()) -> None:
        """Record that the workstream has *count* more tasks, without waiting for the journal; *tasks* are the ids of
        those that a command has added.

        Raises:
            Refused: the workstream has ended.
        """
        self._record(workstream.TasksAdded(count=count, tasks=tasks))

    def follow(self, cause: Cause) -> None:
        """Make *cause*, the record of a command, the cause of the next record, and of the tasks that are opened."""
        self._seq = cause.seq

    def record_begun(self, execution: TaskExecution) -> None:
        """Record that the workstream's first job runs, without waiting for the journal."""
        if self.state is Workstream.READY:
            self._record(workstream.FirstTaskStarted(task_id=execution.id), execution.seq)

    async def record_failed(self, execution: TaskExecution, error: str, settled: Sequence[TaskResult]) -> None:
        """End the workstream, since a critical task has failed. The results of the tasks in *settled* and of the failed
        task are recorded first."""
        if self.state is Workstream.EXECUTING:
            self.note_result([*settled, execution.result_of("failed", error)])
            await self._post(workstream.CriticalTaskFailed(task_id=execution.id, error=error), execution.seq)

    def record_usage(self, used: Amounts) -> None:
        """Record the total amounts that the agents of the workstream's tasks have used, as the agents reported them."""
        told = {"used": used.as_record}
        self._sup.registry.record_fact(self.id, "Used", self._cause(), told, reason=used.words)

    def note_plan(self, plan: Plan, hidden: Collection[str] = ()) -> None:
        """Record the plan, so that the run can be continued without its file. Of the variables *hidden* of its agents,
        only the names are recorded."""
        self._the().record_fact(PLAN, self._cause(), {"plan": without_values(plain_plan(plan), hidden)})

    def note_stages(self, found: ExecutionPlan) -> None:
        """Record in which order the tasks of the workstream may begin."""
        self._the().record_fact(PLANNED, self._cause(), found.as_record)

    def note_submitted(self, origin: Mapping[str, Any]) -> None:
        """Record where the plan of the run came from."""
        self._the().record_fact(SUBMITTED, self._cause(), dict(origin), reason=f"submitted by {origin['by']}")

    def note_result(self, results: Iterable[TaskResult]) -> None:
        """Record the results of the workstream's tasks. The workstream's end is recorded afterwards, so that no end is
        in the journal without a result."""
        told = {"tasks": [one._asdict() for one in results]}
        self._the().record_fact(RESULT, self._cause(), told)
        self.owes_result = True

    def note_obstacle(self, held_by: HeldBy | None, *, task: str = "") -> None:
        """Record that *held_by* holds a step of the workstream, or the late merge of *task*; ``None``: not any more."""
        metadata = {"task": task, "held_by": None if held_by is None else msgspec.to_builtins(held_by)}
        reason = "the obstacle is gone" if held_by is None else f"held by {held_by.what}; {held_by.fix}"
        self._the().record_fact(HELD, self._cause(), metadata, reason=reason)
        if held_by is not None:
            _log.warning("a plan is held", task=task, by=held_by.what, fix=held_by.fix)

    def note_reported(self, how: str) -> None:
        """Record that the result was reported, or is not wanted; *how* says which. Without an await: the record is on
        its way to the journal when this returns, and no other task has run in between."""
        if self.owes_result:
            self._the().record_fact(REPORTED, self._cause(), {}, reason=how)
            self.owes_result = False

    async def record_settled(self, executions: Iterable[TaskExecution]) -> None:
        """Record that all tasks of the workstream are settled: the workstream is validated next, or has ended."""
        if self.state not in (Workstream.READY, Workstream.EXECUTING):
            return
        count = Counter(_how(execution) for execution in executions if not execution.is_imported)
        completed, failed, cancelled = count["completed"] + self._withdrawn, count["failed"], count["cancelled"]
        if self.state is Workstream.READY and self._merged and not (failed or cancelled):
            await self._post(workstream.FirstTaskStarted(task_id=self._merged))
        if self.state is Workstream.READY:
            await self._post(workstream.UserCancelled(reason="none of its tasks was begun"))
        elif failed:
            await self._post(workstream.SettledWithFailures(completed=completed, failed=failed, cancelled=cancelled))
        elif cancelled:
            await self._post(workstream.SettledWithCancellations(completed=completed, cancelled=cancelled))
        else:
            await self._post(workstream.AllTasksCompleted(completed=completed))

    async def record_validated(self, problem: str) -> None:
        """Record the outcome of the plan's validation: *problem* describes the failure, ``""`` stands for success."""
        passed = workstream.ValidationPassed()
        await self._post(passed if not problem else workstream.ValidationFailed(error=problem))

    def record_cancel_request(self, by: str, reason: str) -> None:
        """Record that *by* has requested the end of the run; all that is ended for it has this record as its cause."""
        fact = self._the().record_fact(CANCEL_REQUESTED, Cause(self._seq, None, by), {}, reason=reason)
        self._seq = self.cancel_seq = fact.seq
        self.cancel_reason = f"cancelled by {by}: {reason}" if reason else f"cancelled by {by}"

    async def cancel(self, reason: str) -> None:
        """Cancel the workstream, unless it has ended."""
        if self._entity is None or self._entity.ended:
            return
        with suppress(NoSuchEntity, Refused, JournalError):
            if self.state is Workstream.VALIDATING:
                await self.record_validated(reason)
            elif workstream.UserCancelled in workstream.WORKSTREAM.allowed(self.state):
                await self._post(workstream.UserCancelled(reason=reason))
            self.note_reported(reason)  # the caller has given the plan up, and needs no result

    def remove(self) -> None:
        """Remove the workstream from memory, if it has ended."""
        if self._entity is not None and self._entity.ended:
            self._sup.registry.remove(self.id)
            self._sup.registry.names.drop_below(self.id)


def _how(execution: TaskExecution) -> str:
    assert execution.result is not None, "it is settled"
    match execution.result.outcome:
        case "completed" | "skipped":
            return "completed"
        case "failed":
            return "failed"
        case _:
            return "cancelled"
