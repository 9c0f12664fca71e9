"""Runs a plan: each task is one prompt of one session, after the tasks it depends on, some at once.

A task is an entity with a log like any other: claimed by its session, started when its agent is, completed and closed
when the turn was verified. What depends on a task that did not close is never started. While the journal's disk is
down the next tasks wait for it.

A run that was interrupted by its supervisor's death is gone on with: what is settled stays so, a task whose session
goes on is followed there, one whose session is lost is an orphan, which ``recovery.orphans`` decides about.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.config import BadPlan, Plan, TaskConfig
from supervisor.entity import Degraded, Refused
from supervisor.interrupted import Interrupted, continued, digest_of
from supervisor.kinds import TASK_KIND
from supervisor.ledger import Cause
from supervisor.lifecycles.session import SessionData
from supervisor.lifecycles.task import (
    TASK,
    Cancelled,
    Claimed,
    Closed,
    Completed,
    Failed,
    Orphaned,
    Recovered,
    RecoveryFailed,
    Requeued,
    Started,
    Task,
    TaskData,
    TaskEvent,
    Unclaimed,
    VerificationRejected,
)
from supervisor.ports import JournalError
from supervisor.recovery import WHY
from supervisor.runtime import Session, Supervisor
from supervisor.supervision import LAST_RECORDS_S
from supervisor.vocabulary import TransitionReason
from supervisor.work import NoSuchEntity

__all__ = ["PlanResult", "PlanRunner", "TaskResult", "run_plan"]

ACTOR = "plan"
ORPHANED = "the supervisor of its session ended"


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
        self._run_id = ""
        self.begun = anyio.Event()
        """It is known what this run goes on with."""
        self._left: dict[str, Interrupted] = {}
        """The tasks that an earlier supervisor left, by name, until they are gone on with."""
        self.taken_over: tuple[str, ...] = ()
        """What this run went on with: a task and its state, in words."""
        self.results: dict[str, TaskResult] = {}

    async def run(self, plan: Plan) -> PlanResult:
        """Run every task of *plan*, and of the plans that are added meanwhile."""
        async with anyio.create_task_group() as self._group:
            self._inherit(plan)
            self.begun.set()
            self.add(plan)
        self._group = None
        return PlanResult({task_id: self.results[task_id] for task_id in self._tasks})

    def check(self, plan: Plan) -> list[str]:
        """Which tasks of *plan* are new.

        Raises:
            BadPlan: a task is not as it was when it was opened; or every task of the run has ended.
        """
        if (plan.workspace, plan.merge_into) != (self._sup.settings.workspace, self._sup.settings.merge_into):
            raise BadPlan("workspace, merge_into: not as they were when the run began; start another run")
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

    def _inherit(self, plan: Plan) -> None:
        """Go on with the run that was interrupted, if this plan does; whoever comes first has it."""
        inherited = self._sup.inherited
        self._run_id = self._sup.new_run()
        tasks = continued(plan, self._sup.settings, inherited.rows)
        ids = {task.entity_id for task in tasks.values() if not task.settled}
        if tasks and ids <= inherited.tasks:
            inherited.tasks.difference_update(ids)
            self._left = dict(tasks)
            self._run_id = next(iter(tasks.values())).data.run
            self.taken_over = tuple(f"{name} ({task.state.value})" for name, task in tasks.items())

    def _open(self, task: TaskConfig) -> None:
        """The task's log begins, or goes on."""
        self._tasks[task.id], self._done[task.id] = task, anyio.Event()
        if (left := self._left.get(task.id)) is not None:
            self._entities[task.id], self._causes[task.id] = left.entity_id, None
            return
        entity_id = self._entities[task.id] = self._sup.new_id(f"task:{task.id}")
        digest = digest_of(task, self._sup.settings)
        data = TaskData(waiting_for=task.depends_on, run=self._run_id, name=task.id, digest=digest)
        born = self._sup.tree.birth(
            TASK_KIND, entity_id, parent_id=None, state=Task.OPEN, data=data, cause=Cause(actor=ACTOR)
        )
        self._causes[task.id] = born.born_seq

    async def _see_through(self, task: TaskConfig) -> None:
        """See one task through. A plan that is given up leaves no task looking alive."""
        try:
            await self._run(task)
        except anyio.get_cancelled_exc_class():
            limit = self._sup.tree.system.timers.limit(LAST_RECORDS_S, shield=True)
            with limit, suppress(NoSuchEntity, Refused, JournalError):  # what is said once is recorded when it can be
                await self._give_up(task)
            raise

    async def _give_up(self, task: TaskConfig) -> None:
        """Cancel the task, unless it is settled already and only its session was still ending."""
        state = self._state(task)
        if Cancelled in TASK.allowed(state):
            await self._post(task, Cancelled(reason="the plan was given up"))

    def _state(self, task: TaskConfig) -> Task:
        return Task(self._sup.tree.entity(self._entities[task.id]).state)

    async def _run(self, task: TaskConfig) -> None:
        began = anyio.current_time()
        left = self._left.get(task.id)
        if left is not None and left.settled:
            self.results[task.id] = _settled_before(left)
            self._done[task.id].set()
            return
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
                session_id, outcome, error = await (self._go_on(task, left) if left is not None else self._work(task))
        took_s = round(anyio.current_time() - began, 6)
        self.results[task.id] = TaskResult(task.id, session_id, outcome, error, took_s)
        self._sup.tree.bury(self._entities[task.id])
        self._done[task.id].set()

    async def _work(self, task: TaskConfig) -> tuple[str, str, str]:
        try:
            session = await self._start(task)
        except Refused as refusal:
            await self._post(task, Cancelled(reason=str(refusal)))
            return "", "aborted", str(refusal)
        await self._post(task, Claimed(by=session.id, reason=f"agent {task.agent}"))
        async with anyio.create_task_group() as group:
            group.start_soon(self._note_start, task, session)
            outcome, error = await self._turn(task, session)
            group.cancel_scope.cancel()
        outcome, error = await self._settle(task, session.id, outcome, error)
        return await self._leave(task, session.id, outcome, error)

    async def _leave(self, task: TaskConfig, session_id: str, outcome: str, error: str) -> tuple[str, str, str]:
        """The task is settled: its session ends, and where it worked is cleared away."""
        await self._sup.close_session(session_id, reason="its task is settled", cause=self._cause(task))
        left = await self._sup.janitor.put_away(session_id, f"what the task {task.id} left")
        if left.branch and outcome != "completed":
            error = f"{error}; its work is on the branch {left.branch}"
        return session_id, outcome, error

    async def _start(self, task: TaskConfig) -> Session:
        """The task's session. A disk that is down is waited for: a plan loses nothing by it but time."""
        while True:
            await self._sup.recovered()
            with suppress(Degraded):  # it went down again in between
                return await self._sup.start_session(task.id, agent=task.agent)

    # ------------------------------------------------------------------ after a crash
    async def _go_on(self, task: TaskConfig, left: Interrupted) -> tuple[str, str, str]:
        """Follow the session that holds it; without one, begin again as far as the policy lets it."""
        session_id = left.data.claimed_by
        if self._state(task) in (Task.CLAIMED, Task.IN_PROGRESS):
            if session_id in self._sup.tree.works:
                return await self._follow(task, self._sup.session(session_id))
            if (ended := await self._ended_before(task, session_id)) is not None:
                return ended
        match self._state(task):
            case Task.CLAIMED:
                recovered = TransitionReason.ORPHAN_RECOVERED
                await self._post(task, Unclaimed(reason=ORPHANED, transition_reason=recovered))
            case Task.IN_PROGRESS:
                await self._post(task, Orphaned(reason=ORPHANED))
            case Task.DONE:
                outcome, error = await self._merge(task, session_id)
                return await self._leave(task, session_id, outcome, error)
        return await (self._adopt(task, left) if self._state(task) is Task.ORPHANED else self._work(task))

    async def _follow(self, task: TaskConfig, session: Session) -> tuple[str, str, str]:
        """Its session goes on: so does the task, with the answer to the prompt that was asked."""
        async with anyio.create_task_group() as group:
            if self._state(task) is Task.CLAIMED:
                group.start_soon(self._note_start, task, session)
            outcome, error = await self._answer(task, session)
            group.cancel_scope.cancel()
        outcome, error = await self._settle(task, session.id, outcome, error)
        return await self._leave(task, session.id, outcome, error)

    async def _answer(self, task: TaskConfig, session: Session) -> tuple[str, str]:
        outcome = await self._sup.last_outcome(session.id)
        answered = outcome or self._sup.inherited.answers.get(session.id)
        if answered is None:  # the prompt had not reached the journal
            return await self._turn(task, session)
        self._causes[task.id] = answered.seq
        return answered.outcome, answered.error

    async def _ended_before(self, task: TaskConfig, session_id: str) -> tuple[str, str, str] | None:
        """Its session was ended on purpose, or had given up, and the task had not heard of that."""
        row = next((row for row in self._sup.inherited.rows if row.id == session_id), None)
        data = msgspec.json.decode(row.data, type=SessionData) if row is not None else None
        if data is None or data.outcome not in ("aborted", "failed") or data.last_error == WHY:
            return None
        outcome, error = await self._settle(task, session_id, data.outcome, data.last_error)
        return await self._leave(task, session_id, outcome, error)

    async def _adopt(self, task: TaskConfig, left: Interrupted) -> tuple[str, str, str]:
        """An orphan: what the policy says, within its retries."""
        session_id = left.data.claimed_by
        match self._sup.settings.recovery.orphans:
            case "done":
                await self._post(task, Recovered(reason="recovery.orphans is done", summary=left.data.summary))
                outcome, error = await self._merge(task, session_id)
                return await self._leave(task, session_id, outcome, error)
            case "open" if left.data.claims <= left.data.max_retries:
                recovered = TransitionReason.ORPHAN_RECOVERED
                await self._post(task, Requeued(reason=ORPHANED, transition_reason=recovered))
                return await self._work(task)
        await self._post(task, RecoveryFailed(reason=ORPHANED))
        return await self._leave(task, session_id, "failed", ORPHANED)

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

    async def _settle(self, task: TaskConfig, session_id: str, outcome: str, error: str) -> tuple[str, str]:
        """Have the work checked and merged, if there is any; how the task ended."""
        match outcome:
            case "completed":
                return await self._judge(task, session_id)
            case "aborted":
                await self._post(task, Cancelled(reason=error))
            case _:
                await self._post(task, Failed(reason=error))
        return outcome, error

    async def _judge(self, task: TaskConfig, session_id: str) -> tuple[str, str]:
        try:
            problem = await self._sup.janitor.check(session_id, [test.value() for test in task.acceptance])
        except Refused as refusal:
            await self._post(task, Cancelled(reason=str(refusal)))
            return "aborted", str(refusal)
        if problem:
            await self._post(task, Failed(reason=f"not accepted: {problem}"))
            return "failed", f"not accepted: {problem}"
        await self._post(task, Completed(reason="the turn was verified"))
        return await self._merge(task, session_id)

    async def _merge(self, task: TaskConfig, session_id: str) -> tuple[str, str]:
        """The task is done; closed it is when its work is where it is for."""
        merge = await self._sup.janitor.merge(session_id, f"{task.id}: the work of session {session_id}")
        if merge.outcome == "refused":
            await self._post(task, VerificationRejected(reason=f"not merged: {merge.why}"))
            return "failed", f"not merged: {merge.why}"
        merged = f"merged into {merge.target} as {merge.commit[:12]}"
        reason = merged if merge.outcome == "merged" else f"nothing to merge: {merge.why}"
        await self._post(task, Closed(reason=reason))
        return "completed", ""

    async def _post(self, task: TaskConfig, event: TaskEvent) -> None:
        record = await self._sup.tree.post(self._entities[task.id], event, cause=self._cause(task))
        self._causes[task.id] = record.seq

    def _cause(self, task: TaskConfig) -> Cause:
        """What the task did last, or what settled its turn."""
        return Cause(self._causes[task.id], None, ACTOR)


def _settled_before(left: Interrupted) -> TaskResult:
    """What became of a task that was settled under an earlier supervisor."""
    match left.state:
        case Task.CLOSED:
            return TaskResult(left.data.name, left.data.claimed_by, "completed", "", 0.0)
        case Task.FAILED:
            return TaskResult(left.data.name, left.data.claimed_by, "failed", left.data.last_failure, 0.0)
        case _:
            words = "cancelled before the supervisor of this run ended"
            return TaskResult(left.data.name, left.data.claimed_by, "aborted", words, 0.0)
