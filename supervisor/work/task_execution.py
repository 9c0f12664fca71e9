"""The execution of one plan task in this process: its task, task run and job, and what is known of it beside them.

The states of the three entities (``lifecycles``) are recorded, and known to everybody, also after a crash; what is done
for the task follows from them (``work.task_entity``). While the plan runs, the transitions of the three entities are
recorded here, each caused by the one before it, so that the log of a task is a chain from the plan to the task's end.
(``work.end_of_work`` records the ends of entities that no plan continues.) A caller has the one event that leads; which
events of the other two follow is decided by ``lifecycles.task_cascade``. Records of one decision are written in one
append of the journal (several decisions in one block of ``PlanRun.together``): so task, run and job agree after a crash
at any time. This module makes no decisions.

Example: ``plan_run.record(execution, TestsPassed())`` moves the run, the job and the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import anyio
from msgspec.structs import replace

from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.entity_types import TASK_KIND
from supervisor.lifecycles.job import Job, JobData
from supervisor.lifecycles.run_ids import id_of_task
from supervisor.lifecycles.task import Task, TaskData, TaskEnd
from supervisor.lifecycles.task_cascade import Birth, RunOpened, TaskResources, TaskStates
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.types import BEGINNING, RecordId
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.retry_reason import join_reasons
from supervisor.runtime.entity import Entity
from supervisor.runtime.journal_writer import Cause
from supervisor.work.backlog import BacklogItem
from supervisor.work.leases import Claim
from supervisor.work.results import TaskResult, unmerged_of
from supervisor.work.task_entity import Perform, TaskEntity

ACTOR = "plan"

MEETS: Final = frozenset({TaskEnd.COMPLETED, TaskEnd.SKIPPED})
"""Ends of a task after which the tasks that depend on it can begin."""


class CancelReason(NamedTuple):
    """Reason of a cancellation: a text, and the word for the end of the task. ``actor`` is the person who requested
    it, as the abort of the task's session is recorded; else the plan."""

    text: str
    outcome: TaskEnd = TaskEnd.ABORTED
    because: RecordId | None = None
    """Number of the record that the cancellation follows from, if the plan decided it: the end of another task."""
    actor: str = ACTOR


class Checkpoint(NamedTuple):
    """Saved work from which a run begins: the run that saved the work, and the commit; ``""`` if the files stayed in
    the directory itself."""

    run: str
    saved_as: str


def checkpoint_after(run_id: str, state: TaskRun, data: TaskRunData, *, rollback: bool = False) -> Checkpoint | None:
    """Return the checkpoint from which the next run begins: the last checkpoint of the given run, or, if *rollback*
    undoes the work of that run, the checkpoint from which that run began. After a completed run there is none."""
    if state is TaskRun.COMPLETED:
        return None
    if data.saved_in is not None and not rollback:
        return Checkpoint(run_id, data.saved_as)
    return Checkpoint(data.resumed_from, data.resumed_at) if data.resumed_from else None


class TaskExecution:
    """The execution of one task of a plan.

    Args:
        sup: the supervisor whose journal receives the records.
        task: the task, as configured in the plan.
        parent: the task that was split into this task and others, if any.
    """

    def __init__(self, sup: SupervisorCore, task: TaskConfig, parent: TaskExecution | None = None) -> None:
        self._sup = sup
        self.task = task
        self.parent = parent
        self.subtasks: list[TaskExecution] = []
        self.claim: Claim | None = None
        """The claim whose worker has a slot reserved for the task."""
        self.ending: CancelReason | None = None
        """Reason for which the task was cancelled or skipped, for its result; ``None`` if it was not."""
        self.result: TaskResult | None = None
        self.settled = OneShotEvent()
        self.seq: RecordId | None = None
        """Number of the record that is the cause of the task's next record."""
        self.earlier_id = ""
        """Id of the task's entity, if the task was settled under an earlier supervisor, or in the run that this run
        resumes."""
        self.earlier_job = ""
        """The job that completed the task under an earlier supervisor."""
        self.is_imported = False
        """Whether the task was closed in the run that this run resumes."""
        self.merges_into = ""
        """Id of the workstream whose branch the work is merged into; ``""``: into the target."""
        self.agent = task.agent
        """The agent of the next attempt."""
        self.session_id = ""
        """The session that works on the task, or worked on it last."""
        self.output = ""
        """The text of the agent in its last attempt."""
        self.remarks: list[str] = []
        """Sentences for people, reported beside the outcome of the task."""
        self.is_rolled_back = True
        """Whether the workspace has no changes of an attempt that would have to be rolled back."""
        self.checkpoint: Checkpoint | None = None
        """The saved work from which the next run begins."""
        self._claimed_s: float | None = None
        """Time of the first claim of this run, on the clock of the event loop; ``None`` before."""
        self._entity: TaskEntity | None = None
        self.perform: Perform = lambda running: False
        """Function that starts the performance of an effect of the task."""
        self.end_delay: Callable[[], None] = lambda: None
        """Function that is called when a delay of the task is over."""

    # ------------------------------------------------------------------ state
    @property
    def name(self) -> str:
        """The id of the task in its plan."""
        return self.task.id

    @property
    def entity(self) -> TaskEntity:
        assert self._entity is not None, "it was opened"
        return self._entity

    @property
    def _run(self) -> Entity | None:
        return None if self._entity is None else self._entity.run

    @property
    def _job(self) -> Entity | None:
        return None if self._entity is None else self._entity.job

    @property
    def id(self) -> str:
        """The id of the task's entity."""
        return self.earlier_id or self.entity.task.id

    @property
    def is_opened(self) -> bool:
        """Whether the task has an entity in this process."""
        return self._entity is not None

    @property
    def state(self) -> Task:
        return Task(self.entity.task.state)

    @property
    def data(self) -> TaskData:
        data: TaskData = self.entity.task.data
        return data

    @property
    def changed_at(self) -> float:
        """Time of the task's last change (Unix time, seconds)."""
        return self.entity.task.changed_at

    @property
    def run(self) -> TaskRun:
        return TaskRun(self._opened(self._run).state)

    @property
    def run_id(self) -> str:
        return self._opened(self._run).id

    async def began_seq(self) -> RecordId:
        """Return the number of the record with which the attempt under way began: the run entered IN_PROGRESS."""
        records = await self._sup.journal.events(entity_id=self.run_id)
        return max(
            (one.seq for one in records if one.to_status == TaskRun.IN_PROGRESS.value != one.from_status),
            default=BEGINNING,
        )

    @property
    def run_data(self) -> TaskRunData:
        data: TaskRunData = self._opened(self._run).data
        return data

    @property
    def run_changed_at(self) -> float:
        """Time of the run's last change (Unix time, seconds)."""
        return self._opened(self._run).changed_at

    @property
    def knows_run(self) -> bool:
        """Whether the run is in the memory of this process, over or not. (Runs that ended under an earlier supervisor
        are only in the journal.)"""
        return self._run is not None

    @property
    def has_run(self) -> bool:
        """Whether there is a run that has not ended."""
        return self._run is not None and not self._run.ended

    @property
    def job(self) -> Job | None:
        """The state of the job; ``None`` while the task has no job, since it is not certain that the task will
        be done."""
        return None if self._job is None else Job(self._job.state)

    @property
    def job_id(self) -> str:
        return self._opened(self._job).id

    @property
    def job_data(self) -> JobData:
        data: JobData = self._opened(self._job).data
        return data

    @property
    def job_seq(self) -> int:
        """Number of the job's last record in the log of the job."""
        return self._opened(self._job).entity_seq

    @property
    def completed_job(self) -> str:
        """The id of the job that completed the task; ``""`` if none did."""
        return self.job_id if self.job is Job.COMPLETED else self.earlier_job

    @property
    def entity_ids(self) -> tuple[str, ...]:
        """The ids of the entities of the task, its run and its job, as far as they exist."""
        return () if self._entity is None else tuple(one.id for one in self._entity.logs)

    @property
    def subtask_ids(self) -> tuple[str, ...]:
        return tuple(subtask.id for subtask in self.subtasks)

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the last run leaves for the next run."""
        if self._run is None:
            return None
        return checkpoint_after(self.run_id, self.run, self.run_data, rollback=self.task.rollback)

    @property
    def retry_reason(self) -> str:
        """Why the next attempt is made, for its prompt: the failure of the last claim, and of the last attempt at the
        present claim; ``""`` for the first attempt. From durable data, so that a takeover does not change it."""
        run = self.run_data
        return join_reasons(self.data.failure, run.charged_error, run.last_error)

    @property
    def is_met(self) -> bool:
        """Whether the task was completed or skipped, so that the tasks that depend on it can begin."""
        return self.result is not None and self.result.outcome in MEETS

    @property
    def session_lives(self) -> bool:
        return bool(self.session_id) and self.session_id in self._sup.registry.sessions

    @property
    def is_delayed(self) -> bool:
        """Whether the task waits for the end of the delay before its next attempt, probe or claim."""
        return self.is_opened and self.entity.is_delayed

    @property
    def is_stopped(self) -> bool:
        """Whether the effect under way was stopped, so that its outcome comes too late."""
        return self.entity.running is not None and self.entity.running.is_stopped

    @property
    def resources(self) -> TaskResources:
        """The slot, session and result that the task has in this process."""
        return TaskResources(
            has_slot=self.claim is not None,
            has_session=self.session_lives,
            is_settled=self.result is not None,
            parts_met=all(one.is_met for one in self.subtasks),
        )

    @property
    def is_followed(self) -> bool:
        """Whether the attempt under way was begun under an earlier supervisor."""
        return self.has_run and self.run is TaskRun.IN_PROGRESS and self._opened(self._run).epoch == 0

    @property
    def is_claimable(self) -> bool:
        """Whether the task waits for a worker, and for nothing else."""
        if self.job is not Job.QUEUED or self.entity.running is not None or self.entity.pending is not None:
            return False
        match self.state:
            case Task.OPEN | Task.CLAIMED | Task.IN_PROGRESS:
                return True
            case Task.WAITING_FOR_SUBTASKS:  # its own turn goes on, or the whole is to be checked
                return all(one.is_met for one in self.subtasks) or self.works
        return False

    @property
    def works(self) -> bool:
        """Whether the task's session is working on an attempt."""
        return self.session_lives and self.has_run and self.run is TaskRun.IN_PROGRESS

    @property
    def holds_work(self) -> bool:
        """Whether the work of ``session_id`` is part of the task's result, and is to be merged. The branch of a claim
        that is over (failed, rejected, taken away) is not, even if the task was split afterwards."""
        return bool(self.data.claimed_by if self.is_opened else self.session_id)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the tasks that must be settled before the task can begin."""
        when = self.task.when.task if self.task.when is not None else None
        return (*self.task.depends_on, *((when,) if when is not None else ()))

    def backlog_item(
        self, plan: str, files_root: str, provider: str, tasks: Mapping[str, TaskExecution]
    ) -> BacklogItem:
        """Return the backlog item for the task.

        Args:
            plan: the id of the plan's run.
            files_root: the directory that the files of the task are relative to, for the comparison with those of other
                runs; ``""`` if all runs work in the same one.
            provider: the provider of the task's agent.
            tasks: the tasks of the plan by name. Tasks that are imported were settled before, and nothing waits for
                them.
        """
        needed = [(name, tasks[name].id) for name in self.needed if not tasks[name].is_imported]
        return BacklogItem(
            id=self.id,
            plan=plan,
            priority=self.task.priority,
            needs=self.task.needs,
            files=tuple(f"{files_root.lstrip('/')}/{one}" if files_root else one for one in self.task.files),
            agent=self.agent,
            provider=provider,
            depends_on=tuple(entity_id for name, entity_id in needed if name in self.task.depends_on),
            after=tuple(entity_id for name, entity_id in needed if name not in self.task.depends_on),
        )

    def result_of(self, outcome: str, error: str) -> TaskResult:
        """Return the result that the task has if it ends now, without secrets."""
        redact = self._sup.journal_writer.redactor.text
        took_s = 0.0 if self._claimed_s is None else round(anyio.current_time() - self._claimed_s, 6)
        remarks = tuple(map(redact, dict.fromkeys(self.remarks)))
        has_findings = outcome == "failed" and self.is_opened and self.data.has_findings
        findings = self.data.failure if has_findings else ""
        rest = self.data.rest if self.is_opened else ""
        # A session that was ended before its claim was on record is not the task's.
        by = (self.data.last_claimed_by if self.is_opened else "") or self.session_id
        return TaskResult(self.name, by, outcome, redact(error), took_s, rest, remarks, findings=findings)

    @staticmethod
    def _opened(entity: Entity | None) -> Entity:
        assert entity is not None, "it was opened"
        return entity

    # ------------------------------------------------------------------ births
    def open(
        self, workstream_id: str, digest: str, *, planned: bool, cause: RecordId | None, before: TaskData | None = None
    ) -> None:
        """Create the task's entity and begin its log, in state PLANNED if a person must approve the task first. If the
        task was tried in the run that this run resumes, *before* is its data from there: its next prompt tells why."""
        data = TaskData(
            max_retries=self.task.max_retries,
            needs_approval=self.task.approval == "after",
            waiting_for=tuple(self.task.depends_on),
            workstream=workstream_id,
            name=self.name,
            digest=digest,
            depends_on=tuple(dict.fromkeys(self.needed)),
            part_of=self.parent.id if self.parent is not None else "",
            failure=before.failure if before is not None else "",
            has_findings=before is not None and before.has_findings,
        )
        wanted = self._sup.registry.names.new(id_of_task(workstream_id, self.name), below=workstream_id)
        state = Task.PLANNED if planned else Task.OPEN
        task = self._sup.registry.create_entity(
            TASK_KIND,
            wanted,
            parent_id=workstream_id,
            state=state,
            data=data,
            cause=Cause(cause, None, ACTOR),
            contained=False,
        )
        self._entity, self.seq = self._entity_of(task, None, None), task.born_seq

    def _entity_of(self, task: Entity, run: Entity | None, job: Entity | None) -> TaskEntity:
        registry = self._sup.registry
        return TaskEntity(registry, task, run, job, lambda: self.resources, self.perform, self.end_delay)

    def _open_run(self, limits: TaskRunData) -> None:
        """Create the run for the next claim; it begins from the checkpoint that the run before it leaves."""
        found, self.checkpoint = self.checkpoint or self.last_checkpoint, None
        if found is not None:
            limits = replace(limits, resumed_from=found.run, resumed_at=found.saved_as)
        wanted = self._sup.registry.names.new(f"{self.id}:run", below=self.data.workstream)
        self.entity.open_run(wanted, TaskRun.PENDING, replace(limits, task=self.id), self.cause)

    def _open_job(self) -> None:
        """Create the job of the run."""
        limits = self.run_data
        data = JobData(
            max_retries=limits.max_attempts - 1,
            capabilities=tuple(sorted(self.task.needs)),
            run=self.run_id,
            task=self.id,
            workstream_id=self.data.workstream,
            critical=self.task.critical,
        )
        wanted = self._sup.registry.names.new(f"{self.id}:job", below=self.data.workstream)
        self.entity.open_job(wanted, Job.PENDING, data, self.cause)

    def import_closed(self, task_id: str, by: str, job_id: str, outcome: str, rest: str) -> None:
        """Take over the result of the task from the run that this run resumes. No entity is created."""
        self.is_imported = True
        self.earlier_id, self.session_id, self.earlier_job = task_id, by, job_id
        self.result = TaskResult(self.name, by, outcome, "", 0.0, *unmerged_of(rest))

    def take_up(self, task: Entity, run: Entity | None, job: Entity | None) -> None:
        """Continue the entities that an earlier supervisor created."""
        self._entity = self._entity_of(task, run, job)
        self.is_rolled_back = run is None or TaskRun(run.state) not in (TaskRun.IN_PROGRESS, TaskRun.VALIDATING)
        data: TaskData = task.data
        self.session_id = data.last_claimed_by if Task(task.state) is Task.OPEN else data.claimed_by

    # ------------------------------------------------------------------ claims
    def begin_claim(self, claim: Claim) -> None:
        """Note that a worker has a slot reserved for the task, by that *claim*."""
        self.claim = claim
        if self._claimed_s is None:
            self._claimed_s = anyio.current_time()

    # ------------------------------------------------------------------ records
    @property
    def states(self) -> TaskStates:
        """The present states of task, run and job."""
        return self.entity.states

    def apply(self, events: Sequence[Event]) -> None:
        """Append the records of the *events* of one decision: each moves the task, its run or its job, or begins a new
        run or job.

        Raises:
            Refused: a table does not allow an event; no entity has moved.
        """
        with self._sup.journal_writer.together():
            for is_birth, group in groupby(events, lambda one: isinstance(one, Birth)):
                if not is_birth:
                    self.seq = self.entity.move([*group], self.cause) or self.seq
                    continue
                for birth in group:
                    if isinstance(birth, RunOpened):
                        self._open_run(birth.limits)
                    else:
                        self._open_job()

    async def recorded(self) -> None:
        """Wait until the records are durable, even if the caller is cancelled: a command that received its reply is on
        the disk."""
        with anyio.CancelScope(shield=True):
            await self._sup.journal_writer.flush()

    def note(self, name: str, told: dict[str, Any], reason: str) -> None:
        """Append a fact about the task."""
        self._sup.registry.record_fact(self.id, name, self.cause, told, reason=reason)

    def note_run(self, name: str, told: dict[str, Any], reason: str) -> None:
        """Append a fact about the run."""
        self._sup.registry.record_fact(self.run_id, name, self.cause, told, reason=reason)

    @property
    def cause(self) -> Cause:
        """The record that the task's next record follows from, as a ``Cause``."""
        return Cause(self.seq, None, ACTOR)

    def remove(self) -> None:
        """Remove the task, its run and its job from memory. A failed task keeps its state in the journal."""
        if self._entity is not None:
            self._entity.remove()
