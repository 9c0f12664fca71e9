"""What a run of a plan works on: its tasks, the backlog, the workers, and what all of them share.

Everything here is done at once, without an await, but for the words to the workers: so whoever claims, offers or
settles sees one picture.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.host.supervision import Supervisor
from supervisor.lifecycles import task_run
from supervisor.lifecycles.job import JobData, SchedulerAssigned
from supervisor.lifecycles.session import Session as SessionState
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.types import Kind, ModelFailure, TimeLimit
from supervisor.plans.plan import Plan
from supervisor.plans.task_control import CommandResult
from supervisor.policies.error_classification import PROBLEMS, Failure
from supervisor.policies.fallback_agent import next_agent
from supervisor.policies.retry_budget import RetryBudget
from supervisor.ports.logs import get_logger
from supervisor.runtime.live_session import AssignedTask
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.work import checkpoints
from supervisor.work.backlog import Backlog
from supervisor.work.providers import BreakerTransition, ProviderBreakers, provider_key
from supervisor.work.results import TaskResult
from supervisor.work.task_execution import TaskExecution
from supervisor.work.timeouts import Complexity, Durations, TaskKind, TaskSize, Timeouts
from supervisor.work.workers import WorkerPool
from supervisor.work.workstream import WorkstreamEntity

__all__ = ["PlanRun"]

_log = get_logger()


class PlanRun:
    """The work of one run.

    Args:
        sup: the supervisor that it runs on.
        plan: what it runs.
        pool: who has slots.
        stream: what it is done for.
    """

    def __init__(self, sup: Supervisor, plan: Plan, worker_pool: WorkerPool, workstream: WorkstreamEntity) -> None:
        self.sup, self.plan, self.worker_pool, self.workstream = sup, plan, worker_pool, workstream
        self.executions: dict[str, TaskExecution] = {}
        self.unsettled = 0
        """How many of them have no result yet."""
        self.backlog = Backlog(last_token=_last_token(sup))
        self.budget = RetryBudget(share=plan.retry_budget.share, retries_min=plan.retry_budget.least)
        self.providers = ProviderBreakers()
        self._at_work: dict[str, TaskExecution] = {}
        """Whose each session is."""
        self.durations = Durations()
        self._timeouts = Timeouts()
        self._random: random.Random = sup.registry.system.rng("plan")
        self._woken = anyio.Event()
        self._group: TaskGroup | None = None
        self.concluded = False
        """Every task is settled, and stays so: what is to be said of the whole is being said."""
        self.over = OneShotEvent()
        """When nothing is begun of it any more."""
        self.on_settled: Callable[[TaskExecution], None] = lambda execution: None
        """Called when a task is settled."""
        self.split: Callable[..., Awaitable[CommandResult]] | None = None
        """How a task is split."""
        self.block: Callable[..., Awaitable[CommandResult]] | None = None
        """How its own agent has a task blocked."""
        self.on_let_go: Callable[[TaskExecution], None] = lambda execution: None
        """Called when nobody carries a task out any more, and it waits for its subtasks, or is blocked."""

    # ------------------------------------------------------------------ the run
    def have(self, group: TaskGroup | None) -> None:
        """What is begun runs in *group*; ``None``: nothing is begun any more."""
        self._group = group
        heard = self.sup.monitors.on_model_failed
        if group is not None:
            heard.append(self._model_failed)
            return
        self.over.set()
        if self._model_failed in heard:
            heard.remove(self._model_failed)

    def start(self, fn: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Begin something of the run; nothing, where the run has ended, or is ending: a command may outlive it. (What
        is begun in a cancelled group of asyncio's would spin until the last of those that are there have ended.)"""
        if self._group is not None and not self._group.cancel_scope.cancel_called:
            self._group.start_soon(fn, *args)

    async def started(self, fn: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Begin something of the run, and wait until it says that it has begun (``task_status``)."""
        if self._group is not None and not self._group.cancel_scope.cancel_called:
            await self._group.start(fn, *args)

    @property
    def results(self) -> list[TaskResult]:
        """Of the tasks that are settled."""
        return [execution.result for execution in self.executions.values() if execution.result is not None]

    @property
    def running(self) -> bool:
        return self._group is not None and not self.concluded

    def wake(self) -> None:
        """Something may be claimable now."""
        self._woken.set()

    async def woken(self) -> None:
        """Wait until something may be claimable, or a provider may be probed."""
        now_s = self.now()
        free_at_s = self.providers.free_at_s(now_s)
        with anyio.move_on_after(None if free_at_s is None else free_at_s - now_s):
            await self._woken.wait()
        self._woken = anyio.Event()

    def now(self) -> float:
        """Seconds of the clock that decisions are made with."""
        return self.sup.journal_writer.clock.now()

    async def sleep(self, delay_s: float) -> None:
        """So long, or until nothing is begun any more."""
        with anyio.move_on_after(delay_s):
            await self.sup.stopping.wait()

    # ------------------------------------------------------------------ claims
    def offer(self, execution: TaskExecution) -> None:
        """It can be claimed, as far as it is concerned; what nobody wants any more cannot."""
        if execution.unwanted or execution.is_over:
            return
        self.backlog.ready(execution.name)
        self.wake()

    async def give_back(self, execution: TaskExecution) -> None:
        """Nobody works on it any more: its worker has a slot again."""
        claim, execution.claim = execution.claim, None
        self.backlog.hold(execution.name)
        if claim is None:
            return
        try:
            await self.worker_pool.done(claim.worker_id, execution.name, execution.cause)
        finally:
            if self.backlog.holder(execution.name) == claim:
                self.backlog.release(execution.name, claim.token)
            self.wake()

    async def open_again(self, execution: TaskExecution) -> None:
        """The task is open again: a new run and a new job, for its agent, who tries next."""
        execution.checkpoint = execution.checkpoint or execution.last_checkpoint
        execution.open_run(self.limits_of(execution))
        await self.queue_again(execution)

    def limits_of(self, execution: TaskExecution) -> TaskRunData:
        """The bounds of its next run, and what that begins with."""
        return checkpoints.follow_up(execution, self.plan.task_lifecycle.value())

    async def queue_again(self, execution: TaskExecution) -> None:
        """Its run is to be tried: a new job, for whoever tries next."""
        execution.open_job()
        await self.queue(execution)

    async def queue(self, execution: TaskExecution) -> None:
        """Its job, which is new, waits for whoever tries next."""
        needed = (self.executions[name] for name in execution.task.depends_on)
        depends_on = tuple(one.completed_job for one in needed if one.completed_job)
        await execution.post_job(SchedulerAssigned(depends_on=depends_on))
        self.offer(execution)

    def lives(self, session_id: str) -> bool:
        """Whether that session can be asked for something."""
        work, entity = self.sup.registry.sessions.get(session_id), self.sup.registry.entities.get(session_id)
        return (
            work is not None
            and entity is not None
            and not work.is_stopping
            and entity.state is not SessionState.STOPPED
        )

    # ------------------------------------------------------------------ attempts
    async def decide(self, execution: TaskExecution, *, charged: bool = True, spent: str = "") -> None:
        """Leave the states in which the run decides; a retry that nobody may spend opens its circuit, as does what is
        *spent* already."""
        while execution.run in (TaskRun.FAILED, TaskRun.TIMEOUT):
            await self.keep(execution, execution.run)
            await execution.post_run(task_run.RetryDecided(jitter=self._jitter(execution)))
        if charged and execution.run is TaskRun.RETRYING and (why := spent or self.spend_retry()):
            await execution.post_run(task_run.CircuitOpened(reason=why))
        if execution.run is TaskRun.CIRCUIT_OPEN:
            await self.keep(execution, TaskRun.CIRCUIT_OPEN)
        if execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):  # while nobody else can have what it owns
            await checkpoints.take_back(self.sup, execution)

    async def keep(self, execution: TaskExecution, state: TaskRun) -> None:
        """Its run enters *state*: keep what the plan wants kept there."""
        await checkpoints.keep(self.sup, self.plan.task_lifecycle, execution, state)

    async def kept(self, execution: TaskExecution, state: TaskRun) -> task_run.CheckpointSaved | None:
        """The same, but for the record of it."""
        return await checkpoints.kept(self.sup, self.plan.task_lifecycle, execution, state)

    def _jitter(self, execution: TaskExecution) -> float:
        return 1.0 + self._random.uniform(-execution.run_data.jitter, execution.run_data.jitter)

    def spend_retry(self) -> str:
        """Spend one of the workstream's retries; why there is none, if so."""
        if self.sup.stopping.is_set():
            return "the supervisor is ending"
        left = self.budget.spend()
        if left is None:
            return self.budget.describe()
        self.budget = left
        return ""

    def agent_of(self, execution: TaskExecution) -> str:
        """Who tries next: those that it falls back on have their turn after a failure each."""
        return next_agent(execution.task.agent, execution.task.fallback_agents, execution.data.retries)

    def time_limit(self, execution: TaskExecution) -> TimeLimit:
        """What an attempt may take: what its task says, or its scope; else the plan, or the limits of its session."""
        lifecycle = self.plan.task_lifecycle
        if execution.task.timeout_s is not None:
            return TimeLimit(execution.task.timeout_s)
        if (kind := _kind_of(execution)) is not None:
            return TimeLimit(self._timeouts.of(kind, self.durations.of(kind)), self._timeouts.hard_cap_s)
        return TimeLimit(lifecycle.default_timeout if "default_timeout" in lifecycle.model_fields_set else None)

    def provider_of(self, agent: str) -> str:
        """Whose trouble is the trouble of that agent: everybody who runs the same program by the same adapter."""
        config = self.plan.agents.get(agent)
        return provider_key(config.adapter, config.command[0] if config.command else "") if config is not None else ""

    def claimed(self, execution: TaskExecution) -> None:
        """It is about to be launched: of those that wait for a provider that failed, nobody else is, until it has an
        answer. (A task that waits for its subtasks is not: what they made is only looked at.)"""
        if execution.state is not Task.WAITING_FOR_SUBTASKS:
            self._ask(execution)

    def launched(self, execution: TaskExecution) -> None:
        execution.began_s = self.now()
        if execution.asks != self.provider_of(
            execution.agent
        ):  # another agent has it, or it is tried again in its slot
            self.withdrawn(execution)
            self._ask(execution)

    def _ask(self, execution: TaskExecution) -> None:
        key, now_s = self.provider_of(execution.agent), self.now()
        if self.providers.allows(key, now_s):
            execution.asks = key
            self._record_transition(execution, self.providers.launched(key, execution.name, now_s))

    def ended(self, execution: TaskExecution, failure: Failure | None) -> None:
        """An attempt has ended, with *failure* or well."""
        now_s = self.now()
        if failure is None and execution.began_s is not None:
            self.durations.note(_kind_of(execution), now_s - execution.began_s)
        asked, execution.asks = execution.asks or self.provider_of(execution.agent), ""
        self._record_transition(execution, self.providers.ended(asked, execution.name, now_s, failure))

    def _model_failed(self, session_id: str, failure: ModelFailure) -> None:
        """The model of somebody's agent failed once; the agent may try again by itself."""
        execution = self._at_work.get(session_id.partition("/")[0])
        work = self.sup.registry.sessions.get(session_id)
        _, provider, why = PROBLEMS[failure.problem]
        if execution is not None and work is not None and provider:
            key = self.provider_of(work.profile.name)
            self._record_transition(execution, self.providers.troubled(key, execution.name, self.now(), why))

    def withdrawn(self, execution: TaskExecution) -> None:
        """An attempt was ended before it could say anything."""
        asked, execution.asks = execution.asks, ""
        if asked:
            self.providers.withdrawn(asked, execution.name, self.now())
            self.wake()

    def _record_transition(self, execution: TaskExecution, turned: BreakerTransition | None) -> None:
        if turned is not None:
            told = {"provider": turned.key, "circuit": turned.state.value, "free_at_s": turned.free_at_s}
            execution.note("ProviderBreaker", told, turned.why)
            _log.warning("the breaker of a provider has turned", **told)
            self.wake()

    def directory_of(self, execution: TaskExecution) -> str:
        """Where the agent of that task is configured to work."""
        profile = self.sup.profile(execution.agent)
        return self.sup.workdir if profile is None else profile.directory

    def attach_session(self, execution: TaskExecution, *, may_split: bool) -> None:
        """Its session may say that it is blocked, and perhaps split it. What its model meets is its."""
        self._at_work[execution.session_id] = execution
        work = self.sup.registry.sessions.get(execution.session_id)
        if work is not None and self.block is not None:
            split, state_dir = (self.split, self.sup.state_dir) if may_split else (None, "")
            work.assigned_task = AssignedTask(execution.name, split, self.block, state_dir)

    # ------------------------------------------------------------------ ends
    def settle(self, execution: TaskExecution, outcome: str, error: str) -> None:
        """Nothing more becomes of it in this run. What it was settled as first stands."""
        if execution.result is not None:
            return
        execution.result = execution.ended(outcome, error)
        self._at_work.pop(execution.session_id, None)
        self._count(execution)
        self.on_settled(execution)

    def _count(self, execution: TaskExecution) -> None:
        self.unsettled -= 1
        execution.settled.set()

    def unsettle(self, execution: TaskExecution) -> None:
        """Something may become of it after all: the run does not end before that is known."""
        execution.result, execution.settled = None, OneShotEvent()
        execution.ending, execution.unwanted = False, ""
        self.unsettled += 1

    def resettle(self, execution: TaskExecution, result: TaskResult) -> None:
        """Nothing became of it: it is settled as it was."""
        execution.result = result
        self._count(execution)
        self.wake()


def _last_token(sup: Supervisor) -> int:
    """The largest fencing token that an earlier supervisor granted, as far as it is remembered."""
    jobs = (row for row in sup.inherited.rows.values() if row.kind == Kind.JOB)
    return max((msgspec.json.decode(row.data, type=JobData).token for row in jobs), default=0)


def _kind_of(execution: TaskExecution) -> TaskKind | None:
    task = execution.task
    if task.scope is None:
        return None
    return TaskKind(TaskSize(task.scope), Complexity(task.complexity), task.role or "")
