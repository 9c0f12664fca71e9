"""One task of a plan, with its run and its job: what it is, what it did last, and who holds it.

Every record of the three is made here, each caused by the one before: so a task's log is a chain from the plan to its
end. Nothing is decided here.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import anyio
from msgspec.structs import replace

from actors.machine import Event
from supervisor.host.supervision import Supervisor
from supervisor.lifecycles.job import Job, JobData
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.task_run import BackoffCompleted, ExecutorStarted, ProbeStarted, TaskRun, TaskRunData
from supervisor.plans.tasks import TaskConfig
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_types import JOB_KIND, RUN_KIND, TASK_KIND
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.work.backlog import BacklogItem
from supervisor.work.leases import Claim
from supervisor.work.results import WELL, TaskResult, unmerged_of

__all__ = ["ACTOR", "Checkpoint", "TaskExecution", "checkpoint_after"]

ACTOR = "plan"


class Checkpoint(NamedTuple):
    """What a run begins with: the run that had it, and what holds it; ``""`` where that stays in place."""

    run: str
    saved_as: str


def checkpoint_after(run_id: str, state: TaskRun, data: TaskRunData, *, rollback: bool = False) -> Checkpoint | None:
    """What is gone on with after a run: its last checkpoint, unless its work is taken back by *rollback*, else what it
    began with itself; nothing after one that was completed."""
    if state is TaskRun.COMPLETED:
        return None
    if data.saved_in is not None and not rollback:
        return Checkpoint(run_id, data.saved_as)
    return Checkpoint(data.resumed_from, data.resumed_at) if data.resumed_from else None


class TaskExecution:
    """One task of a plan.

    Args:
        sup: whose journal its records go to.
        task: what the plan says of it.
        part_of: the case that was split into it and others.
    """

    def __init__(self, sup: Supervisor, task: TaskConfig, part_of: TaskExecution | None = None) -> None:
        self._sup = sup
        self.task = task
        self.part_of = part_of
        self.parts: list[TaskExecution] = []
        self.seq: int | None = None
        """The record that the next one follows from."""
        self.claim: Claim | None = None
        self.scope: anyio.CancelScope | None = None
        """Of whoever carries it out now."""
        self.let_go = OneShotEvent()
        """When that one has come to an end with it."""
        self.put_down = OneShotEvent()
        """When it was taken from that one; what becomes of it then may take that one longer."""
        self.taken_from: str = ""
        """Why it was taken from whoever carried it out; ``""`` while nobody did that."""
        self.taken: Event | None = None
        """The word with which it was taken from somebody last; the next one may have it already."""
        self.blocked_on: tuple[str, ...] = ()
        """What it waits for, if it was taken away to wait."""
        self.considered = False
        """Somebody is about to begin it, or to say that it never will be."""
        self.settled_id = ""
        """Its entity's id, if it was settled under an earlier supervisor."""
        self.ending = False
        """Somebody cancels it, or skips it."""
        self.unwanted = ""
        """Why nobody wants it any more; ``""`` while it is wanted. Who carries it out ends it."""
        self.lock = anyio.Lock()
        """Held by whoever moves it on while nobody carries it out: one at a time."""
        self.deciding = False
        """Its attempt is over, and what follows is being decided; or the next one is to have another session."""
        self.kept = OneShotEvent()
        """When that was decided, and its worker keeps it for the next attempt."""
        self.delayed = False
        """Its run was left to wait when it was taken away: whoever waits for that offers it."""
        self.followed = False
        """Its session works on it already: an earlier supervisor began that."""
        self.done_job = ""
        """The job that completed it under an earlier supervisor."""
        self.agent = task.agent
        """Who tries next."""
        self.session_id = ""
        """Who has it, or had it last."""
        self.absent = ""
        """What its last attempt should have left, and did not."""
        self.judged = ""
        """The commit that its last attempt was judged at."""
        self.remarks: list[str] = []
        """What a person is to know of how it ended, beside its outcome."""
        self.rest = ""
        """The branch that holds what was written after it was judged."""
        self.said = ""
        """What its agent said in its last attempt."""
        self.taken_back = True
        """There is nothing of an attempt where it works that was to be taken back."""
        self.checkpoint: Checkpoint | None = None
        """What its next run begins with."""
        self.is_imported = False
        """It was closed in the run of the plan that this one resumes."""
        self.born_s = anyio.current_time()
        self.began_s: float | None = None
        """When its last attempt began; ``None`` while nobody here knows: an earlier supervisor began it, or none."""
        self.asks = ""
        """The provider that its attempt asks; ``""`` while it asks none."""
        self.result: TaskResult | None = None
        self.settled = OneShotEvent()
        self._entity: Entity | None = None
        self._run: Entity | None = None
        self._job: Entity | None = None

    # ------------------------------------------------------------------ what it is
    @property
    def name(self) -> str:
        return self.task.id

    @property
    def id(self) -> str:
        return self.settled_id or self._the(self._entity).id

    @property
    def state(self) -> Task:
        return Task(self._the(self._entity).state)

    @property
    def data(self) -> TaskData:
        data: TaskData = self._the(self._entity).data
        return data

    @property
    def run(self) -> TaskRun:
        return TaskRun(self._the(self._run).state)

    @property
    def run_data(self) -> TaskRunData:
        data: TaskRunData = self._the(self._run).data
        return data

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """What is gone on with after its last run."""
        if self._run is None:
            return None
        return checkpoint_after(self.run_id, self.run, self.run_data, rollback=self.task.rollback)

    @property
    def job(self) -> Job | None:
        """``None`` while it is not known whether there will be anything to do."""
        return None if self._job is None else Job(self._job.state)

    @property
    def job_seq(self) -> int:
        """Its last record."""
        return self._the(self._job).entity_seq

    @property
    def entity_ids(self) -> tuple[str, ...]:
        """Of the task, and of the run and the job that it has."""
        return tuple(one.id for one in (self._entity, self._run, self._job) if one is not None)

    @property
    def job_id(self) -> str:
        return self._the(self._job).id

    @property
    def run_id(self) -> str:
        return self._the(self._run).id

    @property
    def job_data(self) -> JobData:
        data: JobData = self._the(self._job).data
        return data

    @property
    def has_run(self) -> bool:
        """Whether there is a run that is not over."""
        return self._run is not None and not self._run.ended

    @property
    def knows_run(self) -> bool:
        """Whether it has a run, over or not. (What was over under an earlier supervisor is only in the journal.)"""
        return self._run is not None

    @property
    def changed_at(self) -> float:
        """When it changed last (Unix time)."""
        return self._the(self._entity).changed_at

    @property
    def run_changed_at(self) -> float:
        """When its run changed last (Unix time)."""
        return self._the(self._run).changed_at

    @property
    def job_changed_at(self) -> float:
        """When its job changed last (Unix time)."""
        return self._the(self._job).changed_at

    @property
    def completed_job(self) -> str:
        """The job that completed it, if one did."""
        return self.job_id if self.job is Job.COMPLETED else self.done_job

    @property
    def is_opened(self) -> bool:
        return self._entity is not None

    @property
    def is_over(self) -> bool:
        """It is settled, or about to be: it is not to be begun."""
        return self.result is not None or self.ending

    @property
    def is_done(self) -> bool:
        """It only has to be merged. (Its run is over then; that of a whole that was turned down is not.)"""
        return self.state is Task.DONE and not self.has_run

    @property
    def is_met(self) -> bool:
        """Whether those that wait for it can go on."""
        return self.result is not None and self.result.outcome in WELL

    @property
    def session_lives(self) -> bool:
        return bool(self.session_id) and self.session_id in self._sup.registry.sessions

    @property
    def works(self) -> bool:
        """Its session is on an attempt."""
        return self.session_lives and self.has_run and self.run is TaskRun.IN_PROGRESS

    def item(self, provider: str) -> BacklogItem:
        """What the backlog is to know of it."""
        when = self.task.when.task if self.task.when is not None else None
        return BacklogItem(
            id=self.name,
            priority=self.task.priority,
            needs=self.task.needs,
            files=self.task.files,
            provider=provider,
            depends_on=self.task.depends_on,
            after=(when,) if when is not None else (),
        )

    def _the(self, entity: Entity | None) -> Entity:
        assert entity is not None, "it was opened"
        return entity

    # ------------------------------------------------------------------ births
    def ended(self, outcome: str, error: str) -> TaskResult:
        """The result, if it ends now."""
        took_s = round(anyio.current_time() - self.born_s, 6)
        remarks = tuple(dict.fromkeys(self.remarks))
        return TaskResult(self.name, self.session_id, outcome, error, took_s, self.rest, remarks)

    def open(self, workstream_id: str, digest: str, *, planned: bool, cause: int | None) -> None:
        """Its log begins."""
        data = TaskData(
            max_retries=self.task.max_retries,
            needs_approval=self.task.approval == "after",
            waiting_for=self.task.depends_on,
            workstream=workstream_id,
            name=self.name,
            digest=digest,
            part_of=self.part_of.id if self.part_of is not None else "",
        )
        wanted = self._sup.new_id(f"task:{self.name}")
        state = Task.PLANNED if planned else Task.OPEN
        self._entity = self._born(TASK_KIND, wanted, workstream_id, state, data, cause)
        self.seq = self._entity.born_seq

    def open_run(self, limits: TaskRunData) -> None:
        """The run of the next claim."""
        wanted = self._sup.new_id(f"run:{self.name}")
        self._run = self._born(RUN_KIND, wanted, self.id, TaskRun.PENDING, replace(limits, task=self.id), self.seq)

    def open_job(self) -> None:
        """The scheduler's view of that run; of an earlier job of it nothing more is said."""
        if self._job is not None:
            self._sup.registry.remove(self._job.id)
        limits = self.run_data
        data = JobData(
            max_retries=limits.max_attempts - 1,
            capabilities=tuple(sorted(self.task.needs)),
            run=self.run_id,
            task=self.id,
            workstream_id=self.data.workstream,
            critical=self.task.critical,
        )
        wanted = self._sup.new_id(f"job:{self.name}")
        self._job = self._born(JOB_KIND, wanted, self.id, Job.PENDING, data, self.seq)

    def import_closed(self, task_id: str, by: str, job_id: str, outcome: str, rest: str) -> None:
        """It is not opened: it was settled in the run that this one resumes."""
        self.is_imported, self.settled_id, self.session_id, self.done_job = True, task_id, by, job_id
        self.result = TaskResult(self.name, by, outcome, "", 0.0, *unmerged_of(rest))

    def take_up(self, task: Entity, run: Entity | None, job: Entity | None) -> None:
        """Its log goes on: an earlier supervisor began it."""
        self._entity, self._run, self._job = task, run, job
        self.taken_back = run is None or TaskRun(run.state) not in (TaskRun.IN_PROGRESS, TaskRun.VALIDATING)
        self.session_id = task.data.claimed_by

    def _born(self, kind: Any, entity_id: str, parent_id: str, state: Enum, data: Any, cause: int | None) -> Entity:
        return self._sup.registry.create_entity(
            kind,
            entity_id,
            parent_id=parent_id,
            state=state,
            data=data,
            cause=Cause(cause, None, ACTOR),
            contained=False,
        )

    # ------------------------------------------------------------------ records
    async def post(self, event: Event) -> None:
        """The task's next record."""
        await self._post(self.id, event)

    async def post_run(self, event: Event) -> None:
        """The run's next record."""
        await self._post(self.run_id, event)

    async def begin_run(self) -> None:
        """Its run is under way from now on, unless it was: at its first try, at another one, or as a probe."""
        match self.run:
            case TaskRun.PENDING:
                await self.post_run(ExecutorStarted())
            case TaskRun.RETRYING:
                await self.post_run(BackoffCompleted())
            case TaskRun.HALF_OPEN:
                await self.post_run(ProbeStarted())

    async def post_job(self, event: Event) -> None:
        """The job's next record."""
        await self._post(self.job_id, event)

    async def _post(self, entity_id: str, event: Event) -> None:
        """What was said is on record before whoever said it can be stopped: others look at its state next."""
        with anyio.CancelScope(shield=True):
            self.seq = (await self._sup.registry.post(entity_id, event, cause=self.cause)).seq

    def note_run(self, name: str, told: dict[str, Any], reason: str) -> None:
        """A fact about its run."""
        self._sup.registry.record_fact(self.run_id, name, self.cause, told, reason=reason)

    def note(self, name: str, told: dict[str, Any], reason: str) -> None:
        """A fact about the task."""
        self._sup.registry.record_fact(self.id, name, self.cause, told, reason=reason)

    @property
    def cause(self) -> Cause:
        """What it did last, or what settled its turn."""
        return Cause(self.seq, None, ACTOR)

    def bury_run(self) -> None:
        """The run is over, and its job: they leave memory. One whose circuit is open rests in the journal."""
        for entity in (self._run, self._job):
            if entity is not None:
                self._sup.registry.remove(entity.id)

    def bury(self) -> None:
        """Nothing more will be said of it here: it leaves memory. One that has failed rests in the journal."""
        for entity in (self._run, self._job, self._entity):
            if entity is not None:
                self._sup.registry.remove(entity.id)
