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
from supervisor.lifecycles.task_run import Run, RunData
from supervisor.lifecycles.types import Kind, ModelFailure, TimeLimit
from supervisor.plans.plan import Plan
from supervisor.plans.task_control import CommandResult
from supervisor.policies.error_classification import PROBLEMS, Failure
from supervisor.policies.fallback_agent import next_agent
from supervisor.policies.retry_budget import RetryBudget
from supervisor.ports.logs import get_logger
from supervisor.runtime.live_session import OwnTask
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.work import checkpoints
from supervisor.work.backlog import Backlog
from supervisor.work.providers import BreakerTransition, Providers, provider_key
from supervisor.work.results import TaskResult
from supervisor.work.task_execution import TaskExecution
from supervisor.work.timeouts import Complexity, Durations, Scope, TaskKind, Timeouts
from supervisor.work.workers import Pool
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

    def __init__(self, sup: Supervisor, plan: Plan, pool: Pool, stream: WorkstreamEntity) -> None:
        self.sup, self.plan, self.pool, self.stream = sup, plan, pool, stream
        self.cases: dict[str, TaskExecution] = {}
        self.unsettled = 0
        """How many of them have no result yet."""
        self.backlog = Backlog(last_token=_last_token(sup))
        self.budget = RetryBudget(share=plan.retry_budget.share, retries_min=plan.retry_budget.least)
        self.providers = Providers()
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
        self.on_settled: Callable[[TaskExecution], None] = lambda case: None
        """Called when a task is settled."""
        self.split: Callable[..., Awaitable[CommandResult]] | None = None
        """How a task is split."""
        self.block: Callable[..., Awaitable[CommandResult]] | None = None
        """How its own agent has a task blocked."""
        self.on_let_go: Callable[[TaskExecution], None] = lambda case: None
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
        return [case.result for case in self.cases.values() if case.result is not None]

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
    def offer(self, case: TaskExecution) -> None:
        """It can be claimed, as far as it is concerned; what nobody wants any more cannot."""
        if case.unwanted or case.is_over:
            return
        self.backlog.ready(case.name)
        self.wake()

    async def give_back(self, case: TaskExecution) -> None:
        """Nobody works on it any more: its worker has a slot again."""
        claim, case.claim = case.claim, None
        self.backlog.hold(case.name)
        if claim is None:
            return
        try:
            await self.pool.done(claim.worker_id, case.name, case.cause)
        finally:
            if self.backlog.holder(case.name) == claim:
                self.backlog.release(case.name, claim.token)
            self.wake()

    async def open_again(self, case: TaskExecution) -> None:
        """The task is open again: a new run and a new job, for its agent, who tries next."""
        case.checkpoint = case.checkpoint or case.last_checkpoint
        case.open_run(self.limits_of(case))
        await self.queue_again(case)

    def limits_of(self, case: TaskExecution) -> RunData:
        """The bounds of its next run, and what that begins with."""
        return checkpoints.follow_up(case, self.plan.task_lifecycle.value())

    async def queue_again(self, case: TaskExecution) -> None:
        """Its run is to be tried: a new job, for whoever tries next."""
        case.open_job()
        await self.queue(case)

    async def queue(self, case: TaskExecution) -> None:
        """Its job, which is new, waits for whoever tries next."""
        needed = (self.cases[name] for name in case.task.depends_on)
        depends_on = tuple(one.completed_job for one in needed if one.completed_job)
        await case.post_job(SchedulerAssigned(depends_on=depends_on))
        self.offer(case)

    def lives(self, session_id: str) -> bool:
        """Whether that session can be asked for something."""
        work, entity = self.sup.registry.works.get(session_id), self.sup.registry.entities.get(session_id)
        return (
            work is not None
            and entity is not None
            and not (work.told or work.ending)
            and entity.state is not SessionState.STOPPED
        )

    # ------------------------------------------------------------------ attempts
    async def decide(self, case: TaskExecution, *, charged: bool = True, spent: str = "") -> None:
        """Leave the states in which the run decides; a retry that nobody may spend opens its circuit, as does what is
        *spent* already."""
        while case.run in (Run.FAILED, Run.TIMEOUT):
            await self.keep(case, case.run)
            await case.post_run(task_run.RetryDecided(jitter=self._jitter(case)))
        if charged and case.run is Run.RETRYING and (why := spent or self.spend_retry()):
            await case.post_run(task_run.CircuitOpened(reason=why))
        if case.run is Run.CIRCUIT_OPEN:
            await self.keep(case, Run.CIRCUIT_OPEN)
        if case.run in (Run.CIRCUIT_OPEN, Run.RETRYING):  # while nobody else can have what it owns
            await checkpoints.take_back(self.sup, case)

    async def keep(self, case: TaskExecution, state: Run) -> None:
        """Its run enters *state*: keep what the plan wants kept there."""
        await checkpoints.keep(self.sup, self.plan.task_lifecycle, case, state)

    async def kept(self, case: TaskExecution, state: Run) -> task_run.CheckpointSaved | None:
        """The same, but for the record of it."""
        return await checkpoints.kept(self.sup, self.plan.task_lifecycle, case, state)

    def _jitter(self, case: TaskExecution) -> float:
        return 1.0 + self._random.uniform(-case.run_data.jitter, case.run_data.jitter)

    def spend_retry(self) -> str:
        """Spend one of the workstream's retries; why there is none, if so."""
        if self.sup.stopping.is_set():
            return "the supervisor is ending"
        left = self.budget.spend()
        if left is None:
            return self.budget.describe()
        self.budget = left
        return ""

    def agent_of(self, case: TaskExecution) -> str:
        """Who tries next: those that it falls back on have their turn after a failure each."""
        return next_agent(case.task.agent, case.task.fallback_agents, case.data.retries)

    def time_limit(self, case: TaskExecution) -> TimeLimit:
        """What an attempt may take: what its task says, or its scope; else the plan, or the limits of its session."""
        lifecycle = self.plan.task_lifecycle
        if case.task.timeout_s is not None:
            return TimeLimit(case.task.timeout_s)
        if (kind := _kind_of(case)) is not None:
            return TimeLimit(self._timeouts.of(kind, self.durations.of(kind)), self._timeouts.hard_cap_s)
        return TimeLimit(lifecycle.default_timeout if "default_timeout" in lifecycle.model_fields_set else None)

    def provider_of(self, agent: str) -> str:
        """Whose trouble is the trouble of that agent: everybody who runs the same program by the same adapter."""
        config = self.plan.agents.get(agent)
        return provider_key(config.adapter, config.command[0] if config.command else "") if config is not None else ""

    def claimed(self, case: TaskExecution) -> None:
        """It is about to be launched: of those that wait for a provider that failed, nobody else is, until it has an
        answer. (A task that waits for its subtasks is not: what they made is only looked at.)"""
        if case.state is not Task.WAITING_FOR_SUBTASKS:
            self._ask(case)

    def launched(self, case: TaskExecution) -> None:
        case.began_s = self.now()
        if case.asks != self.provider_of(case.agent):  # another agent has it, or it is tried again in its slot
            self.withdrawn(case)
            self._ask(case)

    def _ask(self, case: TaskExecution) -> None:
        key, now_s = self.provider_of(case.agent), self.now()
        if self.providers.allows(key, now_s):
            case.asks = key
            self._tell(case, self.providers.launched(key, case.name, now_s))

    def ended(self, case: TaskExecution, failure: Failure | None) -> None:
        """An attempt has ended, with *failure* or well."""
        now_s = self.now()
        if failure is None and case.began_s is not None:
            self.durations.note(_kind_of(case), now_s - case.began_s)
        asked, case.asks = case.asks or self.provider_of(case.agent), ""
        self._tell(case, self.providers.ended(asked, case.name, now_s, failure))

    def _model_failed(self, session_id: str, failure: ModelFailure) -> None:
        """The model of somebody's agent failed once; the agent may try again by itself."""
        case = self._at_work.get(session_id.partition("/")[0])
        work = self.sup.registry.works.get(session_id)
        _, provider, why = PROBLEMS[failure.problem]
        if case is not None and work is not None and provider:
            key = self.provider_of(work.profile.name)
            self._tell(case, self.providers.troubled(key, case.name, self.now(), why))

    def withdrawn(self, case: TaskExecution) -> None:
        """An attempt was ended before it could say anything."""
        asked, case.asks = case.asks, ""
        if asked:
            self.providers.withdrawn(asked, case.name, self.now())
            self.wake()

    def _tell(self, case: TaskExecution, turned: BreakerTransition | None) -> None:
        if turned is not None:
            told = {"provider": turned.key, "circuit": turned.state.value, "free_at_s": turned.free_at_s}
            case.note("ProviderBreaker", told, turned.why)
            _log.warning("the breaker of a provider has turned", **told)
            self.wake()

    def directory_of(self, case: TaskExecution) -> str:
        """Where the agent of that task is configured to work."""
        profile = self.sup.profile(case.agent)
        return self.sup.workdir if profile is None else profile.directory

    def equip(self, case: TaskExecution, *, may_split: bool) -> None:
        """Its session may say that it is blocked, and perhaps split it. What its model meets is its."""
        self._at_work[case.session_id] = case
        work = self.sup.registry.works.get(case.session_id)
        if work is not None and self.block is not None:
            split, state_dir = (self.split, self.sup.state_dir) if may_split else (None, "")
            work.own_task = OwnTask(case.name, split, self.block, state_dir)

    # ------------------------------------------------------------------ ends
    def settle(self, case: TaskExecution, outcome: str, error: str) -> None:
        """Nothing more becomes of it in this run. What it was settled as first stands."""
        if case.result is not None:
            return
        case.result = case.ended(outcome, error)
        self._at_work.pop(case.session_id, None)
        self._count(case)
        self.on_settled(case)

    def _count(self, case: TaskExecution) -> None:
        self.unsettled -= 1
        case.settled.set()

    def unsettle(self, case: TaskExecution) -> None:
        """Something may become of it after all: the run does not end before that is known."""
        case.result, case.settled = None, OneShotEvent()
        case.ending, case.unwanted = False, ""
        self.unsettled += 1

    def resettle(self, case: TaskExecution, result: TaskResult) -> None:
        """Nothing became of it: it is settled as it was."""
        case.result = result
        self._count(case)
        self.wake()


def _last_token(sup: Supervisor) -> int:
    """The largest fencing token that an earlier supervisor granted, as far as it is remembered."""
    jobs = (row for row in sup.inherited.rows.values() if row.kind == Kind.JOB)
    return max((msgspec.json.decode(row.data, type=JobData).token for row in jobs), default=0)


def _kind_of(case: TaskExecution) -> TaskKind | None:
    task = case.task
    if task.scope is None:
        return None
    return TaskKind(Scope(task.scope), Complexity(task.complexity), task.role or "")
