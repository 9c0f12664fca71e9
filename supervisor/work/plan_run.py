"""The state of one plan run: tasks, workers and retry budget.

Theory of operation
-------------------
Seven classes work on a run. Each receives only objects of the classes listed before it, so that calls go one way::

    SharedScheduler     backlog, breakers and limits, shared by the plans of the supervisor
    PlanRun             state of the run; offers, claims and ends of tasks change here
    CompletionPipeline  brings a task to its end: checked, reviewed, merged, failed, cancelled, skipped
    AttemptRunner       carries out a claim: session, prompt, attempt after attempt
    PlanRecovery        continues the tasks that an earlier supervisor left
    BlockedTasks        tasks that were begun, and wait for other tasks or for a person
    TaskScheduler       decides which task is next, and how the end of one task affects the others

A class notifies the classes listed after it by an event: ``publish`` calls every subscriber with the event before
``publish`` returns. For example the pipeline settles task ``a``: ``settle`` publishes ``TaskSettled``, and the
scheduler starts to consider ``b``, which depended on ``a``, before ``settle`` returns.

Invariants: a task has at most one claim; a task is settled once (``result``), unless an operator resets the task; no
work is begun when ``running`` is false.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup

from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.host.supervision import HOST, SupervisorCore
from supervisor.lifecycles import task_run
from supervisor.lifecycles.job import Job, SchedulerAssigned
from supervisor.lifecycles.session import Session as SessionState
from supervisor.lifecycles.task import Retried, Task
from supervisor.lifecycles.task_cascade import (
    USUAL,
    Circumstances,
    DrawJitter,
    Question,
    SaveCheckpoint,
    SpendRetry,
    step,
)
from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.types import OWN_ABORTS, USUAL_TIME, ModelFailure, TimeLimit
from supervisor.plans.plan import Plan
from supervisor.plans.task_control import CommandResult
from supervisor.policies.abort_request import AbortRequest
from supervisor.policies.error_classification import PROBLEMS, Failure
from supervisor.policies.fallback_agent import next_agent
from supervisor.policies.retry_budget import RetryBudget
from supervisor.ports.logs import get_logger
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import AssignedTask
from supervisor.sessions.setup import Setup
from supervisor.work import checkpoints
from supervisor.work.held_steps import note_obstacle
from supervisor.work.previous_run import PreviousRun
from supervisor.work.providers import BreakerTransition
from supervisor.work.results import TaskResult, describe_circuit
from supervisor.work.shared_scheduler import SharedScheduler, agent_of_run
from supervisor.work.task_execution import Phase, TaskExecution
from supervisor.work.timeouts import Complexity, Durations, TaskKind, TaskSize, Timeouts
from supervisor.work.workers import Heartbeat, WorkerPool
from supervisor.work.workstream import WorkstreamEntity

_log = get_logger()

LOST = "its worker was lost"
STOPPING = "the supervisor is ending"


class TaskSettled(NamedTuple):
    """Event: a task is settled and has a result."""

    execution: TaskExecution


class TaskReleased(NamedTuple):
    """Event: a task that waits for its subtasks, or is blocked, is not carried out any more; or the delay of such a
    task is over."""

    execution: TaskExecution


class SessionAborted(NamedTuple):
    """Event: a person or the host aborted or closed the session of a task, for that *reason*, at a time when no attempt
    reports the end of the session."""

    execution: TaskExecution
    reason: str


class SubtasksAwaited(NamedTuple):
    """Event: a task that was blocked waits for its subtasks again."""

    execution: TaskExecution


PlanEvent: TypeAlias = TaskSettled | TaskReleased | SessionAborted | SubtasksAwaited


class OwnTaskCommands(Protocol):
    """Protocol of the commands that an agent may give about its own task."""

    @property
    def split(self) -> Callable[..., Awaitable[CommandResult]]: ...

    @property
    def block_own(self) -> Callable[..., Awaitable[CommandResult]]: ...


class PlanRun:
    """The state of one plan run.

    Args:
        sup: the supervisor that the plan runs on.
        plan: the plan. Subtasks that a task is split into are added to the plan.
        commands: object with the commands that agents may give about their own tasks.
        heartbeat: function that sends the heartbeats of the workers, instead of the usual one.
    """

    def __init__(
        self, sup: SupervisorCore, plan: Plan, commands: OwnTaskCommands, *, heartbeat: Heartbeat | None = None
    ) -> None:
        self.sup, self.plan, self._commands = sup, plan, commands
        self.workstream = WorkstreamEntity(sup)
        self.worker_pool = WorkerPool(
            sup,
            plan.workers,
            plan.max_sessions,
            heartbeat=heartbeat,
            on_lost=self.take_from_lost_worker,
            on_free=self.wake,
        )
        self.executions: dict[str, TaskExecution] = {}
        """The tasks by their names in the plan."""
        self.by_id: dict[str, TaskExecution] = {}
        """The tasks that are in the backlog, by their entity ids."""
        self.offered: list[TaskExecution] = []
        """The tasks that were offered to the workers since the scheduler looked last, where limits are set."""
        self.unsettled = 0
        """Number of tasks that have no result yet."""
        self.previous: PreviousRun | None = None
        """The earlier run of the plan that this run resumes, if any."""
        self.scheduler = sup.part(SharedScheduler)
        self.scheduler.set_limits()
        self.backlog, self.providers = self.scheduler.backlog, self.scheduler.providers
        self.budget = RetryBudget(share=plan.retry_budget.share, retries_min=plan.retry_budget.least)
        self.concluded = False
        """Whether every task is settled for good: the workstream is being validated and closed."""
        self.over = OneShotEvent()
        """Set when the run begins no work any more."""
        self.look_again = False
        """Whether the last check for dead ends found a task whose lock was held, so that the check must be repeated."""
        self._asked: dict[str, str] = {}
        """The provider that the current attempt of a task uses, by the task's name."""
        self._began_s: dict[str, float] = {}
        """The time (seconds) at which this process launched the last attempt of a task, by the task's name."""
        self._by_session: dict[str, TaskExecution] = {}
        self._durations = Durations()
        self._timeouts = Timeouts()
        self._random: random.Random = sup.registry.system.rng("plan")
        self._woken = anyio.Event()
        self._group: TaskGroup | None = None
        self._listeners: list[Callable[[PlanEvent], None]] = []

    # ------------------------------------------------------------------ the run
    def begin(self, group: TaskGroup) -> None:
        """Use *group* for all asynchronous tasks that are started from now on."""
        self._group = group
        self.sup.monitors.on_model_failed.append(self._model_failed)
        self.sup.aborts.task_enders.append(self._end_task_of)

    def end(self) -> None:
        """Start no asynchronous task any more."""
        self._group = None
        self.over.set()
        for execution in [self.executions[name] for name in self._asked]:
            self.note_withdrawn(execution)  # else another plan would wait for the reply to its probe
        if self._model_failed in self.sup.monitors.on_model_failed:
            self.sup.monitors.on_model_failed.remove(self._model_failed)
            self.sup.aborts.task_enders.remove(self._end_task_of)

    def start(self, fn: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Start an asynchronous task of the run; do nothing if the run has ended or is ending. (A command may outlive
        the run. A task that is started in a cancelled group of asyncio would spin until the last task of the group has
        ended.)"""
        if self._group is not None and self.begins_work:
            self._group.start_soon(fn, *args)

    async def started(self, fn: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Start an asynchronous task of the run, and wait until it reports that it has begun (``task_status``)."""
        if self._group is not None and self.begins_work:
            await self._group.start(fn, *args)

    @property
    def begins_work(self) -> bool:
        """Whether asynchronous tasks of the run can be started."""
        return self._group is not None and not self._group.cancel_scope.cancel_called

    @property
    def running(self) -> bool:
        return self._group is not None and not self.concluded

    def is_critical(self, execution: TaskExecution) -> bool:
        """Return whether the run ends if the task fails for good."""
        return execution.task.critical or self.plan.fail_fast

    @property
    def results(self) -> list[TaskResult]:
        """The results of the tasks that are settled."""
        return [execution.result for execution in self.executions.values() if execution.result is not None]

    def subscribe(self, listener: Callable[[PlanEvent], None]) -> None:
        """Call *listener* with every event from now on. The listener must not wait for anything."""
        self._listeners.append(listener)

    def publish(self, event: PlanEvent) -> None:
        """Call every listener with *event*."""
        for listener in self._listeners:
            listener(event)

    def wake(self) -> None:
        """Look for work and for dead ends: something may be claimable now, or may have come to its end."""
        self._woken.set()
        self.scheduler.wake()

    async def woken(self) -> None:
        """Wait until ``wake`` is called."""
        await self._woken.wait()
        self._woken = anyio.Event()

    @asynccontextmanager
    async def moving(self, execution: TaskExecution) -> AsyncIterator[None]:
        """Hold the lock of *execution* within the block. At its end begin the effect that is pending then, unless
        somebody carries the task out. Afterwards wake the scheduler to repeat its check for dead ends, if it checked
        meanwhile: while a lock is held, the check finds no dead end, since that task may still bring others forward."""
        try:
            async with execution.lock:
                try:
                    yield
                finally:
                    # Not before: the end of a delay offers the task to the workers, which whoever holds the lock may
                    # be about to prevent.
                    is_free = execution.active is None and not (execution.is_over or execution.cancel_reason)
                    if execution.is_opened and is_free:
                        execution.entity.perform_pending(now=self.sup.stopping.is_set())
        finally:
            if self.look_again:
                self.look_again = False
                self.wake()

    def now(self) -> float:
        """Return the time in seconds of the clock on which decisions are based."""
        return self.sup.journal_writer.clock.now()

    @property
    def setup(self) -> Setup:
        """Agents, settings and working directory of the run."""
        return self.sup.setups.of(self.workstream.id)

    def _limited_agent(self, agent: str) -> str:
        """Return the name by which a limit on the sessions of *agent* counts: agents of a run that has its own are
        counted for themselves, unless the supervisor limits an agent of the name."""
        own = self.sup.setups.of_runs
        if own and self.workstream.id in own and agent not in self.sup.session_limits:
            return agent_of_run(self.workstream.id, agent)
        return agent

    # ------------------------------------------------------------------ claims
    def offer(self, execution: TaskExecution) -> None:
        """Make the task claimable by a worker, unless the task is to be cancelled, is over, or waits for the end of a
        delay: then the end of the delay offers the task."""
        if not (execution.cancel_reason or execution.is_over or execution.is_delayed):
            self.backlog.assign(execution.id, self._limited_agent(execution.agent), self.provider_of(execution.agent))
            self.backlog.ready(execution.id)
            if self.backlog.limits.are_set:
                self.offered.append(execution)
            self.wake()

    def hold(self, execution: TaskExecution) -> None:
        """Prevent claims of the task. (A command may outlive the run, whose items are not in the backlog any more.)"""
        if execution.id in self.backlog:
            self.backlog.hold(execution.id)

    async def give_back(self, execution: TaskExecution) -> None:
        """Release the claim of the task, so that the slot of its worker is free again."""
        claim, execution.claim = execution.claim, None
        self.hold(execution)
        if claim is None:
            return
        try:
            await self.worker_pool.done(claim.worker_id, execution.name, execution.cause)
        finally:
            if self.backlog.holder(execution.id) == claim:
                self.backlog.release(execution.id, claim.token)
            self.wake()

    def take_from_lost_worker(self, worker_id: str, tasks: list[str]) -> None:
        """Take every item from a lost worker, and interrupt the attempts that need the worker."""
        for claim in self.backlog.fence(worker_id):
            execution = self.by_id[claim.item_id]
            if execution.active is None and execution.job is Job.QUEUED:
                continue  # nobody has begun: it can be claimed at once
            self.backlog.hold(execution.id)  # whoever carries it out has to let go of it first
            # What is checked and merged needs no worker any more.
            if execution.active is not None and execution.job in (Job.QUEUED, Job.RUNNING):
                execution.active.interrupt(LOST, lost=True)

    def together(self) -> AbstractContextManager[None]:
        """Write the records made in this block, which must not await, in one append of the journal."""
        return self.sup.journal_writer.together()

    async def advance(self, execution: TaskExecution, *leads: Event, given: Circumstances = USUAL) -> None:
        """Record the events *leads* and everything that follows from them for the task, its run and its job, and wait
        until the records are durable, even if the caller is cancelled.

        Raises:
            Refused: a table does not allow an event; no entity has moved.
        """
        events = await self.decide(execution, *leads, given=given)
        execution.apply(events)
        if events:
            await execution.recorded()

    async def decide(self, execution: TaskExecution, *leads: Event, given: Circumstances = USUAL) -> tuple[Event, ...]:
        """Return the events *leads* and the events that follow from them, in the order of their records
        (``task_cascade.step``), and answer the questions of the cascade. The caller records the events before it awaits
        anything else: else another decision about the task might come between.

        Whether a failed run is tried again is decided here alone: the table of the run grants a retry, and the retry
        budget of the workstream pays for it. A checkpoint that the plan requests is saved on the way, and recorded with
        the decision."""
        leads = tuple(map(self.sup.journal_writer.redactor.event, leads))  # as they will be recorded
        answers: dict[Question, Event | None] = {}
        while True:
            given = given._replace(can_probe=bool(self.budget.left) and not self.sup.stopping.is_set())
            found = step(execution.states, *leads, given=given, answers=answers)
            if found.question is None:
                return found.events
            answers[found.question] = await self._answer(execution, found.question, found.states.run_data)

    async def _answer(self, execution: TaskExecution, question: Question, data: TaskRunData) -> Event | None:
        """Answer a question of the cascade; *data* is that of the run after the events so far."""
        match question:
            case SaveCheckpoint(state=state):
                lifecycle = self.plan.task_lifecycle
                return await checkpoints.make_checkpoint(self.sup, lifecycle, execution, state, data)
            case DrawJitter():
                return task_run.RetryDecided(jitter=1.0 + self._random.uniform(-data.jitter, data.jitter))
            case SpendRetry() if why := self.spend_retry():
                return task_run.CircuitOpened(reason=why)
        return None

    async def open_again(self, execution: TaskExecution, lead: Event) -> None:
        """Record *lead* and what follows from it, and open a new run and a new job for the task. They wait for a
        worker, or first for the end of the delay that *lead* imposes."""
        events = await self.decide(execution, lead)
        with self.together():
            execution.apply(events)
            execution.checkpoint = execution.checkpoint or execution.last_checkpoint
            execution.open_run(self.limits_of(execution))
            execution.open_job()
            if not execution.is_delayed:
                execution.record(self._assigned(execution.task.depends_on))
        await execution.recorded()

    async def delay_claim(self, execution: TaskExecution, reason: str) -> None:
        """Open a failed task again for its next claim, which follows after a delay that doubles with each claim."""
        limits = msgspec.structs.replace(self.limits_of(execution), failures=execution.data.claims)
        delay_s = task_run.retry_delay_s(limits, 1.0 + self._random.uniform(-limits.jitter, limits.jitter))
        await self.open_again(execution, Retried(reason=reason, delay_s=delay_s))
        self.offer(execution)

    async def queue_again(self, execution: TaskExecution, lead: Event) -> None:
        """Record *lead* and what follows from it, and open a new job for the run, which waits for a worker."""
        with self.together():
            execution.record(lead)
            self._open_job(execution, tuple(execution.task.depends_on))
        await execution.recorded()

    async def queue(self, execution: TaskExecution, needed: tuple[str, ...]) -> None:
        """Make the job of a task that was not begun wait for a worker, after the jobs of the *needed* tasks. Open the
        job if there is none."""
        if execution.job is None:
            with self.together():
                self._open_job(execution, needed)
            await execution.recorded()
        else:
            await self.advance(execution, self._assigned(needed))

    def _open_job(self, execution: TaskExecution, needed: tuple[str, ...]) -> None:
        execution.open_job()
        execution.record(self._assigned(needed))

    def _assigned(self, needed: Iterable[str]) -> SchedulerAssigned:
        return SchedulerAssigned(depends_on=self.completed_jobs(needed))

    def completed_jobs(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of the jobs that completed the tasks with these *names*."""
        jobs = (self.executions[name].completed_job for name in names)
        return tuple(one for one in jobs if one)

    def limits_of(self, execution: TaskExecution) -> TaskRunData:
        """Return the limits of the task's next run, with the checkpoint from which the run begins."""
        return checkpoints.with_checkpoint(execution, self.plan.task_lifecycle.value())

    def lives(self, session_id: str) -> bool:
        """Return whether the session is live, not stopping, and so can be prompted."""
        session, entity = self.sup.registry.sessions.get(session_id), self.sup.registry.entities.get(session_id)
        return (
            session is not None
            and entity is not None
            and not session.is_stopping
            and entity.state is not SessionState.STOPPED
        )

    def attach_session(self, execution: TaskExecution, *, may_split: bool) -> None:
        """Allow the session of the task to give commands about the task, and attribute model errors of the session to
        the task."""
        self._by_session[execution.session_id] = execution
        session = self.sup.registry.sessions.get(execution.session_id)
        if session is not None:
            split, state_dir = (self._commands.split, self.sup.state_dir) if may_split else (None, "")
            block, charge = self._commands.block_own, partial(self._charge_launch, execution)
            stopped = partial(self._session_stopped, execution, execution.session_id)
            held = partial(note_obstacle, execution, self.sup.journal_writer.clock.wall)
            session.assigned_task = AssignedTask(
                execution.id, execution.name, split, block, charge, self.spend_retry, stopped, held, state_dir
            )

    def _session_stopped(self, execution: TaskExecution, session_id: str, request: AbortRequest, cause: Cause) -> None:
        """Publish that a person or the host has ended the session of a task, unless an attempt is under way, whose
        outcome then reports the end. (An attempt that is being decided does not.)"""
        own = (request.abort_id is None and cause != HOST) or request.abort_reason in OWN_ABORTS
        is_decided = execution.active is not None and not execution.active.decided.is_set()
        if execution.session_id == session_id and not own and (is_decided or not execution.works):
            self._end_on_purpose(execution, request.reason)

    def _end_on_purpose(self, execution: TaskExecution, reason: str) -> None:
        if self.running and not (self.sup.stopping.is_set() or execution.is_over or execution.cancel_reason):
            self.publish(SessionAborted(execution, reason))

    async def _end_task_of(self, session_id: str, reason: str) -> str:
        """Cancel the task that the session, which has ended or is ending, worked for last, unless the task is settled;
        wait for that a limited time. Return the name of the task, or ``""`` if no task was cancelled. (An abort that
        ends the session has ended the task already.)"""
        session = self.sup.registry.sessions.get(session_id)
        if session is not None and session.stop_request is not None and session.stop_request.abort_id is not None:
            return ""
        for execution in self.executions.values():
            if execution.session_id == session_id and not execution.is_over and execution.is_opened:
                self._end_on_purpose(execution, reason)
                with self.sup.timers.limit(self.sup.aborts.slack_s):
                    await execution.settled.wait()
                is_aborted = execution.result is None or execution.result.outcome == "aborted"
                return execution.name if execution.cancel_reason and is_aborted else ""
        return ""

    def directory_of(self, execution: TaskExecution) -> str:
        """Return the directory in which the task's agent is configured to work."""
        profile = self.sup.profile(execution.agent, execution.id)
        return self.setup.workdir if profile is None else profile.directory

    # ------------------------------------------------------------------ retries
    async def take_back_failed(self, execution: TaskExecution) -> None:
        """Roll back the changes of a failed attempt in the directory itself, if the plan says so. This happens before
        the task is released, while the task owns its files; afterwards another task may work on them."""
        if execution.run in (TaskRun.CIRCUIT_OPEN, TaskRun.RETRYING):
            await checkpoints.take_back(self.sup, execution)

    def spend_retry(self) -> str:
        """Use one retry of the workstream's retry budget. Return the reason why no retry is left, or ``""``."""
        if self.sup.stopping.is_set():
            return STOPPING
        left = self.budget.spend()
        if left is None:
            return self.budget.describe()
        self.budget = left
        return ""

    def _charge_launch(self, execution: TaskExecution, error: str) -> str:
        """Use one retry for a launch that the session of the task repeats by itself within an attempt, and count the
        launch in the task's run. Return the reason why no retry is left, or ``""``."""
        if execution.run is not TaskRun.IN_PROGRESS:
            return ""
        if not (why := self.spend_retry()):
            execution.record(task_run.LaunchRetried(error=error))
        return why

    def agent_of(self, execution: TaskExecution, retries: int) -> str:
        """Return the agent of the attempt after *retries* retries of the task: after each failure the next agent of its
        ``fallback_agents``."""
        return next_agent(execution.task.agent, execution.task.fallback_agents, retries)

    def time_limit(self, execution: TaskExecution) -> TimeLimit:
        """Return the time limit of an attempt: the limit of the task, else of tasks of its size, else of the plan or of
        the supervisor's settings, else of its kind of agent."""
        if execution.task.timeout_s is not None:
            return TimeLimit(execution.task.timeout_s)
        if (kind := _kind_of(execution)) is not None:
            return TimeLimit(self._timeouts.of(kind, self._durations.of(kind)), self._timeouts.hard_cap_s)
        if (given_s := self.plan.task_lifecycle.default_timeout) is not None:
            return TimeLimit(given_s)
        if "turn_timeout_s" in self.setup.settings.limits.model_fields_set:
            return USUAL_TIME
        return TimeLimit(self._timeouts.without_size(is_command=self._is_command(execution)))

    def _is_command(self, execution: TaskExecution) -> bool:
        """Return whether a program that is no agent does the task. An agent of the embedding program is not in the
        plan."""
        if (config := self.plan.agent_configs.get(execution.agent)) is not None:
            return config.is_command
        session = self.sup.registry.sessions.get(execution.session_id)
        return session is not None and session.profile.adapter == "command" and not session.profile.known

    # ------------------------------------------------------------------ providers
    def provider_of(self, agent: str) -> str:
        """Return the provider of an agent: the name that the plan gives it, else the known agent, else the agent's own
        name, so that agents that are started by the same program do not wait for each other."""
        config = self.plan.agent_configs.get(agent)
        return "" if config is None else config.provider or config.known or agent

    def note_claimed(self, execution: TaskExecution) -> None:
        """Count the task as the probe of its provider, if the provider's breaker is open: no other task is launched
        until the provider has replied to this task. (A task that waits for its subtasks is not launched.)"""
        if execution.state is not Task.WAITING_FOR_SUBTASKS:
            self._ask(execution)

    def note_launched(self, execution: TaskExecution) -> None:
        """Register the begin of an attempt: its start time, and its provider."""
        self._began_s[execution.name] = self.now()
        self.backlog.assign(execution.id, self._limited_agent(execution.agent), self.provider_of(execution.agent))
        # Another agent has it than was claimed for, or it is tried again in its slot.
        if self._asked.get(execution.name, "") != self.provider_of(execution.agent):
            self.note_withdrawn(execution)
            self._ask(execution)

    def _ask(self, execution: TaskExecution) -> None:
        key, now_s = self.provider_of(execution.agent), self.now()
        if self.providers.allows(key, now_s):
            self._asked[execution.name] = key
            self._record_transition(execution, self.providers.launched(key, execution.id, now_s))

    def note_ended(self, execution: TaskExecution, failure: Failure | None) -> None:
        """Register the end of an attempt, with *failure* or with success, at the breaker of its provider."""
        now_s, began_s = self.now(), self._began_s.get(execution.name)
        if failure is None and began_s is not None:
            self._durations.note(_kind_of(execution), now_s - began_s)
        asked = self._asked.pop(execution.name, "") or self.provider_of(execution.agent)
        self._record_transition(execution, self.providers.ended(asked, execution.id, now_s, failure))

    def note_withdrawn(self, execution: TaskExecution) -> None:
        """Register that an attempt was ended before it could show whether its provider works."""
        if asked := self._asked.pop(execution.name, ""):
            self.providers.withdrawn(asked, execution.id, self.now())
            self.wake()

    def _model_failed(self, session_id: str, failure: ModelFailure) -> None:
        """Count one error of the model that an agent uses; the agent may try again by itself."""
        execution = self._by_session.get(session_id.partition("/")[0])
        session = self.sup.registry.sessions.get(session_id)
        _, provider, why = PROBLEMS[failure.problem]
        if execution is not None and session is not None and provider:
            key = self.provider_of(session.profile.name)
            self._record_transition(execution, self.providers.troubled(key, execution.id, self.now(), why))

    def _record_transition(self, execution: TaskExecution, transition: BreakerTransition | None) -> None:
        if transition is not None:
            told = {"provider": transition.key, "circuit": transition.state.value, "free_at_s": transition.free_at_s}
            execution.note("ProviderBreaker", told, transition.why)
            _log.warning("the breaker of a provider changed its state", **told)
            self.wake()

    # ------------------------------------------------------------------ ends
    def settle(self, execution: TaskExecution, outcome: str, error: str) -> None:
        """Set the result of the task, unless the task has one."""
        if execution.result is None:
            if outcome == "failed" and execution.knows_run and execution.run is TaskRun.CIRCUIT_OPEN:
                execution.remarks += describe_circuit(execution.run_data)
            execution.result = execution.result_of(str(outcome), error)
            self._by_session.pop(execution.session_id, None)
            self._count(execution)
            self.publish(TaskSettled(execution))

    def _count(self, execution: TaskExecution) -> None:
        execution.phase = Phase.SETTLED
        self.unsettled -= 1
        execution.settled.set()

    def unsettle(self, execution: TaskExecution) -> None:
        """Remove the result of the task: the task is to be done after all, and the run must not end meanwhile."""
        execution.result, execution.settled = None, OneShotEvent()
        execution.phase, execution.cancel_reason = Phase.IDLE, None
        self.unsettled += 1

    def resettle(self, execution: TaskExecution, result: TaskResult) -> None:
        """Set the former result of the task again: the task is not done after all."""
        execution.result = result
        self._count(execution)
        self.wake()


def _kind_of(execution: TaskExecution) -> TaskKind | None:
    task = execution.task
    if task.scope is None:
        return None
    return TaskKind(TaskSize(task.scope), Complexity(task.complexity), task.role or "")
