"""Runs a plan: each task is one prompt of one session, after the tasks it depends on, some at once.

A task is an entity with a log like any other: claimed by its session, started when its agent is, completed and closed
when the turn was verified. What depends on a task that did not close is never started.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from supervisor.config import BadPlan, Plan, TaskConfig
from supervisor.entity import Refused
from supervisor.kinds import TASK_KIND
from supervisor.ledger import Cause
from supervisor.lifecycles.task import (
    TASK,
    Cancelled,
    Claimed,
    Closed,
    Completed,
    Failed,
    Started,
    Task,
    TaskData,
    TaskEvent,
)
from supervisor.ports import JournalError
from supervisor.runtime import Session, Supervisor
from supervisor.work import NoSuchEntity

__all__ = ["PlanResult", "PlanRunner", "TaskResult", "run_plan"]

ACTOR = "plan"


class TaskResult(NamedTuple):
    """How a task ended: ``completed``, ``failed``, ``aborted``, or ``blocked`` by one that it depends on."""

    id: str
    session_id: str
    outcome: str
    error: str
    took_s: float


class PlanResult(NamedTuple):
    """How every task of a plan ended."""

    tasks: Mapping[str, TaskResult]

    @property
    def ok(self) -> bool:
        return all(task.outcome == "completed" for task in self.tasks.values())


async def run_plan(sup: Supervisor, plan: Plan) -> PlanResult:
    """Run every task of *plan* on *sup*, in dependency order, up to ``max_sessions`` at once."""
    return await PlanRunner(sup).run(plan)


class PlanRunner:
    """Runs the tasks of a plan on *sup*, in dependency order, up to ``max_sessions`` at once; more can be added."""

    def __init__(self, sup: Supervisor) -> None:
        self._sup = sup
        self._slots = anyio.CapacityLimiter(1)
        self._group: TaskGroup | None = None
        self._tasks: dict[str, TaskConfig] = {}
        self._done: dict[str, anyio.Event] = {}
        self._entities: dict[str, str] = {}
        self._causes: dict[str, int | None] = {}
        self.results: dict[str, TaskResult] = {}

    async def run(self, plan: Plan) -> PlanResult:
        """Run every task of *plan*, and of the plans that are added meanwhile."""
        async with anyio.create_task_group() as self._group:
            self.add(plan)
        self._group = None
        return PlanResult({task_id: self.results[task_id] for task_id in self._tasks})

    def check(self, plan: Plan) -> list[str]:
        """Which tasks of *plan* are new.

        Raises:
            BadPlan: a task is not as it was when it was opened; or every task of the run has ended.
        """
        known = [task for task in plan.tasks if task.id in self._tasks]
        changed = [task.id for task in known if task != self._tasks[task.id]]
        if changed:
            raise BadPlan(f"tasks: {', '.join(changed)}: not as they were when they were opened; use other ids")
        if self._group is None or len(self.results) == len(self._tasks):
            raise BadPlan("tasks: every task of this run has ended; start another run")
        return [task.id for task in plan.tasks if task.id not in self._tasks]

    def add(self, plan: Plan) -> None:
        """Open the tasks that are new. Those that *plan* does not have any more go on."""
        assert self._group is not None, "it runs"
        self._slots.total_tokens = plan.max_sessions
        new = [task for task in plan.tasks if task.id not in self._tasks]
        for task in new:
            self._open(task)
        for task in new:
            self._group.start_soon(self._see_through, task)

    def _open(self, task: TaskConfig) -> None:
        """The task's log begins."""
        entity_id = self._sup.new_id(f"task:{task.id}")
        self._tasks[task.id], self._done[task.id] = task, anyio.Event()
        self._entities[task.id] = entity_id
        data = TaskData(waiting_for=task.depends_on)
        born = self._sup.tree.birth(
            TASK_KIND, entity_id, parent_id=None, state=Task.OPEN, data=data, cause=Cause(actor=ACTOR)
        )
        self._causes[task.id] = born.born_seq

    async def _see_through(self, task: TaskConfig) -> None:
        """See one task through. A plan that is given up leaves no task looking alive."""
        try:
            await self._run(task)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(NoSuchEntity, Refused, JournalError):
                await self._give_up(task)
            raise

    async def _give_up(self, task: TaskConfig) -> None:
        """Cancel the task, unless it is settled already and only its session was still ending."""
        state = Task(self._sup.tree.entity(self._entities[task.id]).state)
        if Cancelled in TASK.allowed(state):
            await self._post(task, Cancelled(reason="the plan was given up"))

    async def _run(self, task: TaskConfig) -> None:
        began = anyio.current_time()
        for needed in task.depends_on:
            await self._done[needed].wait()
        failed = [needed for needed in task.depends_on if self.results[needed].outcome != "completed"]
        if failed:
            session_id, outcome, error = "", "blocked", f"it depends on {', '.join(failed)}, which did not complete"
            self._causes[task.id] = self._causes[failed[0]]
            await self._post(task, Cancelled(reason=error))
        else:
            async with self._slots:
                began = anyio.current_time()
                session_id, outcome, error = await self._work(task)
        took_s = round(anyio.current_time() - began, 6)
        self.results[task.id] = TaskResult(task.id, session_id, outcome, error, took_s)
        self._sup.tree.bury(self._entities[task.id])
        self._done[task.id].set()

    async def _work(self, task: TaskConfig) -> tuple[str, str, str]:
        try:
            session = await self._sup.start_session(task.id, agent=task.agent)
        except Refused as refusal:
            await self._post(task, Cancelled(reason=str(refusal)))
            return "", "aborted", str(refusal)
        await self._post(task, Claimed(by=session.id, reason=f"agent {task.agent}"))
        async with anyio.create_task_group() as group:
            group.start_soon(self._note_start, task, session)
            outcome, error = await self._turn(task, session)
            group.cancel_scope.cancel()
        await self._settle(task, outcome, error)
        await self._sup.close_session(session.id, reason="its task is settled", cause=self._cause(task))
        return session.id, outcome, error

    async def _turn(self, task: TaskConfig, session: Session) -> tuple[str, str]:
        try:
            result = await self._sup.outcome_of(session.id, task.prompt, self._cause(task))
        except (NoSuchEntity, Refused) as error:
            return "aborted", str(error)
        self._causes[task.id] = result.seq
        return result.outcome, result.error

    async def _note_start(self, task: TaskConfig, session: Session) -> None:
        work = self._sup.tree.works.get(session.id)
        if work is not None:
            await work.running.wait()
            started = Started(reason="its agent is ready")
            await self._sup.tree.post(self._entities[task.id], started, cause=Cause(work.because, None, ACTOR))

    async def _settle(self, task: TaskConfig, outcome: str, error: str) -> None:
        match outcome:
            case "completed":
                await self._post(task, Completed(reason="the turn was verified"))
                await self._post(task, Closed(reason="nothing to merge: the session worked in place"))
            case "aborted":
                await self._post(task, Cancelled(reason=error))
            case _:
                await self._post(task, Failed(reason=error))

    async def _post(self, task: TaskConfig, event: TaskEvent) -> None:
        record = await self._sup.tree.post(self._entities[task.id], event, cause=self._cause(task))
        self._causes[task.id] = record.seq

    def _cause(self, task: TaskConfig) -> Cause:
        """What the task did last, or what settled its turn."""
        return Cause(self._causes[task.id], None, ACTOR)
