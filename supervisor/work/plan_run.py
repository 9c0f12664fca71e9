"""The state of one plan run: tasks, workers and retry budget.

Theory of operation
-------------------
Seven classes work on a run. Each receives only objects of the classes listed before it, so that calls go one way::

    SharedScheduler     backlog, breakers and limits, shared by the plans of the supervisor
    PlanRun             state of the run; offers, claims and ends of tasks change here
    CompletionPipeline  brings a task to its end: checked, reviewed, merged, failed, cancelled, skipped, put away
    Attempts            makes an attempt: session, prompt, outcome
    PlanRecovery        continues the tasks that an earlier supervisor left
    BlockedTasks        tasks that were begun, and wait for other tasks or for a person
    TaskScheduler       decides which task is next, and how the end of one task affects the others

A class notifies the classes listed after it by an event: ``publish`` calls every subscriber with the event before
``publish`` returns. For example the pipeline settles task ``a``: ``settle`` publishes ``TaskSettled``, and the
scheduler starts to consider ``b``, which depended on ``a``, before ``settle`` returns.

What is done for a task follows from its states (``work.task_entity``), so whoever moves a task calls ``record`` and
nothing else. Every record is made without an await after its decision, so that no lock is needed.

Invariants: a task has at most one claim; a task is claimable exactly while it waits for a worker (``look``); a task is
settled once (``result``), unless an operator has the task tried again; no work is begun when ``running`` is false.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup

from actors.machine import Event
from actors.one_shot_event import OneShotEvent, first_of
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles import task_run
from supervisor.lifecycles.job import Job, WorkerStarted
from supervisor.lifecycles.session import Session as SessionState
from supervisor.lifecycles.task import Retried, Task, TaskEnd
from supervisor.lifecycles.task_cascade import (
    USUAL,
    CascadeStep,
    Circumstances,
    Lost,
    Saved,
    WorkersLost,
    step,
)
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import OWN_ABORTS, HeldBy, ModelFailure, TimeLimit
from supervisor.plans.plan import Plan
from supervisor.plans.task_control import CommandResult
from supervisor.policies.abort_request import AbortRequest
from supervisor.policies.error_classification import PROBLEMS, Failure
from supervisor.policies.fallback_agent import next_agent
from supervisor.policies.retry_budget import RetryBudget
from supervisor.ports.logs import get_logger
from supervisor.runtime.journal_writer import HOST, Cause
from supervisor.sessions.live_session import AssignedTask
from supervisor.sessions.setup import Setup
from supervisor.work import checkpoints
from supervisor.work.attempt_limits import choose_limit, kind_of
from supervisor.work.held_steps import note_obstacle
from supervisor.work.leases import Claim
from supervisor.work.previous_run import PreviousRun
from supervisor.work.providers import BreakerTransition
from supervisor.work.results import TaskResult, describe_circuit
from supervisor.work.shared_scheduler import SharedScheduler, agent_of_run
from supervisor.work.task_execution import TaskExecution
from supervisor.work.task_history import TaskHistory
from supervisor.work.workers import Heartbeat, WorkerPool
from supervisor.work.workstream import WorkstreamEntity

_log = get_logger()

LOST = "its worker was lost"
LOSSES_MAX: Final = 3
"""Number of workers that may be lost while they have the same job; with the last one its task has failed. (A worker
that is lost again and again would start a healthy task anew without end.)"""
STOPPING = "the supervisor is ending"


class TaskSettled(NamedTuple):
    """Event: a task is settled and has a result."""

    execution: TaskExecution


class TaskReleased(NamedTuple):
    """Event: an effect of a task that waits for its subtasks, or is blocked, is over; or the delay of such a task."""

    execution: TaskExecution


class SessionAborted(NamedTuple):
    """Event: a person or the host aborted or closed the session of a task, for that *reason*; *cause* is the record of
    the request."""

    execution: TaskExecution
    reason: str
    cause: Cause


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
        self.opened = OneShotEvent()
        """Set when the tasks of the run are opened, or continued from an earlier run."""
        self.over = OneShotEvent()
        """Set when the run begins no work any more."""
        self._asked: dict[str, str] = {}
        """The provider that the current attempt of a task uses, by the task's name."""
        self._began_s: dict[str, float] = {}
        """The time (seconds) at which this process launched the last attempt of a task, by the task's name."""
        self._took_s: dict[str, float] = {}
        """The seconds that the last attempt took whose work was done, by the task's name."""
        self._by_session: dict[str, TaskExecution] = {}
        self.history = TaskHistory()
        """History of the plan, from earlier runs and this run; read when the run begins, if a task has a size."""
        self._random: random.Random = sup.registry.system.rng("plan")
        self._woken = anyio.Event()
        self._group: TaskGroup | None = None
        self._listeners: list[Callable[[PlanEvent], None]] = []

    # ------------------------------------------------------------------ the run
    def begin(self, group: TaskGroup) -> None:
        """Use *group* for all asynchronous tasks that are started from now on."""
        self._group = group
        self.sup.monitors.on_model_failed.append(self._model_failed)

    def end(self) -> None:
        """Start no asynchronous task any more."""
        self._group = None
        self.over.set()
        for execution in [self.executions[name] for name in self._asked]:
            self.note_withdrawn(execution)  # else another plan would wait for the reply to its probe
        if self._model_failed in self.sup.monitors.on_model_failed:
            self.sup.monitors.on_model_failed.remove(self._model_failed)

    def start(self, fn: Callable[..., Coroutine[Any, Any, object]], *args: object) -> bool:
        """Start an asynchronous task of the run; do nothing, and return false, if the run has ended or is ending. (A
        command may outlive the run. A task that is started in a cancelled group of asyncio would spin until the last
        task of the group has ended.)"""
        if self._group is None or not self.begins_work:
            return False
        self._group.start_soon(fn, *args)
        return True

    @property
    def begins_work(self) -> bool:
        """Whether asynchronous tasks of the run can be started."""
        return self._group is not None and not self._group.cancel_scope.cancel_called

    @property
    def running(self) -> bool:
        return self.begins_work and not self.concluded

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

    def now(self) -> float:
        """Return the time in seconds of the clock on which decisions are based."""
        return self.sup.journal_writer.clock.now()

    @property
    def setup(self) -> Setup:
        """Agents, settings and working directory of the run."""
        return self.sup.setups.of(self.workstream.id)

    @property
    def files_root(self) -> str:
        """Directory that owned files of the run are relative to, where runs work in directories of their own; else
        ``""``."""
        own = self.sup.setups.of_runs.get(self.workstream.id)
        return os.path.realpath(own.workdir) if own is not None else ""

    def _limited_agent(self, agent: str) -> str:
        """Return the name by which a limit on the sessions of *agent* counts: agents of a run that has its own are
        counted for themselves, unless the supervisor limits an agent of the name."""
        own = self.sup.setups.of_runs
        if own and self.workstream.id in own and agent not in self.sup.setups.session_limits:
            return agent_of_run(self.workstream.id, agent)
        return agent

    # ------------------------------------------------------------------ claims
    def look(self, execution: TaskExecution, *, now: bool = False) -> None:
        """Begin the effect that is pending for the task, and let workers claim the task exactly while it waits for one.
        *now*: let the delay of the task end."""
        execution.entity.look(now=now)
        if execution.id in self.backlog and execution.is_claimable:
            self.backlog.assign(execution.id, self._limited_agent(execution.agent), self.provider_of(execution.agent))
            if self.backlog.ready(execution.id) and self.backlog.limits.are_set:
                self.offered.append(execution)
            self.wake()
        else:
            self.hold(execution)

    def begin_claim(self, execution: TaskExecution, claim: Claim) -> None:
        """Record that a worker has the task. Without an await: the task is still as it was when it was claimed."""
        self.worker_pool.reserve(claim.worker_id, execution.name)
        self.note_claimed(execution)
        execution.begin_claim(claim)
        needs = execution.job_data.capabilities
        with self.together():
            # First the worker, then the job: while a job runs, its worker is busy.
            self.worker_pool.assign(claim.worker_id, execution.name, execution.cause, needs)
            self.record(execution, WorkerStarted(worker_id=claim.worker_id, capabilities=needs, token=claim.token))
            self.workstream.record_begun(execution)

    def hold(self, execution: TaskExecution) -> None:
        """Prevent claims of the task. (A command may outlive the run, whose items are not in the backlog any more.)"""
        if execution.id in self.backlog:
            self.backlog.hold(execution.id)
            if execution.entity.running is None:  # else a session that is put away keeps its slot until it has ended
                self.backlog.end_at_work(execution.id)

    async def give_back(self, execution: TaskExecution) -> None:
        """Release the claim of the task, so that the slot of its worker is free again."""
        self.note_withdrawn(execution)  # without effect where an attempt has ended: that says more
        claim, execution.claim = execution.claim, None
        if claim is None:
            if execution.id in self.backlog:  # its session went on after a takeover, and had no worker yet
                self.backlog.end_at_work(execution.id)
            return
        try:
            await self.worker_pool.done(claim.worker_id, execution.name, execution.cause)
        finally:
            if self.backlog.holder(execution.id) == claim:
                self.backlog.release(execution.id, claim.token)
            self.wake()

    def take_from_lost_worker(self, worker_id: str, tasks: list[str]) -> None:
        """Take every item from a lost worker. What is checked and merged needs no worker any more."""
        for claim in self.backlog.fence(worker_id):
            execution = self.by_id[claim.item_id]
            if execution.job is Job.RUNNING:
                self.record(execution, _loss_of(execution), given=Circumstances(is_silent=True))

    def together(self) -> AbstractContextManager[None]:
        """Write the records made in this block, which must not await, in one append of the journal."""
        return self.sup.journal_writer.together()

    async def advance(self, execution: TaskExecution, *leads: Event, given: Circumstances = USUAL) -> None:
        """Save the checkpoint that the plan wants with this decision, record the events *leads* and everything that
        follows from them for the task, its run and its job, and wait until the records are durable, even if the caller
        is cancelled.

        Raises:
            Refused: a table does not allow an event; no entity has moved.
        """
        given = await self.with_checkpoint(execution, *leads, given=given)
        self.record(execution, *leads, given=given)
        await execution.recorded()

    async def report(self, execution: TaskExecution, *leads: Event, given: Circumstances = USUAL) -> None:
        """Record the outcome *leads* of the effect under way, with the checkpoint that the plan wants; do nothing if
        the effect was stopped meanwhile."""
        given = await self.with_checkpoint(execution, *leads, given=given)
        if not execution.is_stopped:
            self.record(execution, *leads, given=given)

    async def with_checkpoint(
        self, execution: TaskExecution, *leads: Event, given: Circumstances = USUAL
    ) -> Circumstances:
        """Save the checkpoint that the plan wants with the decision of the events *leads*; return *given* with it. The
        task may move meanwhile: the decision is made afterwards, as the task is then."""
        lifecycle = self.plan.task_lifecycle
        wanted = lifecycle.checkpoint.save_on_states if lifecycle.checkpoint.enabled else ()
        trial = given._replace(saved=Saved(wanted, execution.session_id, ""))
        events = self._decide(execution, leads, trial).events
        return given._replace(saved=await checkpoints.save(self.sup, lifecycle, execution, events))

    def record(self, execution: TaskExecution, *leads: Event, given: Circumstances = USUAL) -> None:
        """Record the events *leads* and everything that follows from them, without waiting for the journal, and begin
        the effect that is pending then.

        Raises:
            Refused: a table does not allow an event; no entity has moved.
        """
        found = self._decide(execution, leads, given)
        execution.apply(found.events)
        if found.uses_retry:
            self.budget = self.budget.spend() or self.budget
        self.look(execution)

    def _decide(self, execution: TaskExecution, leads: tuple[Event, ...], given: Circumstances) -> CascadeStep:
        """Return the events *leads* and the events that follow from them, in the order of their records. Whether a
        failed run is tried again is decided here alone: the table of the run grants a retry, and the retry budget of
        the workstream pays for it."""
        if execution.state is Task.WAITING_FOR_SUBTASKS:
            # It was split while the end of its turn was judged: its subtasks do the rest, however that turn ended.
            failed = (task_run.ExecutionFailed, task_run.ExecutionTimedOut)
            leads = tuple(
                task_run.ExecutionCompleted(turn=getattr(one, "turn", "")) if isinstance(one, failed) else one
                for one in leads
            )
        clean = map(self.sup.journal_writer.redactor.event, leads)  # as they will be recorded
        given = given._replace(
            can_probe=bool(self.budget.left) and not self.sup.stopping.is_set(),
            no_retry=given.no_retry or self.no_retry,
            draw=self._random.uniform(-1.0, 1.0),
            completed_jobs=self._completed_jobs(execution),
            limits=self.plan.task_lifecycle.value(),
        )
        return step(execution.states, *clean, given=given)

    def delay_claim(self, execution: TaskExecution, reason: str) -> None:
        """Open a failed task again for its next claim, which follows after a delay that doubles with each claim."""
        limits = msgspec.structs.replace(self.plan.task_lifecycle.value(), failures=execution.data.claims)
        delay_s = task_run.retry_delay_s(limits, 1.0 + self._random.uniform(-limits.jitter, limits.jitter))
        self.record(execution, Retried(reason=reason, delay_s=delay_s))

    def _completed_jobs(self, execution: TaskExecution) -> tuple[str, ...]:
        """Return the ids of the jobs that completed the tasks which *execution* waited for: its subtasks, or those that
        it depends on."""
        is_split = execution.state is Task.WAITING_FOR_SUBTASKS
        needed = execution.subtasks if is_split else [self.executions[name] for name in execution.task.depends_on]
        return tuple(one.completed_job for one in needed if one.completed_job)

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
            held = partial(self._note_obstacle, execution, execution.session_id)
            session.assigned_task = AssignedTask(
                execution.id, execution.name, split, block, charge, self.spend_retry, stopped, held, state_dir
            )

    def _note_obstacle(self, execution: TaskExecution, session_id: str, held_by: HeldBy | None) -> None:
        """Record of the task what holds the workspace of its session, unless the task was taken from that session: it
        may take its time to end."""
        is_claiming = execution.job is Job.RUNNING  # the claim of a new session is not on record yet
        if execution.session_id == session_id and (is_claiming or execution.data.claimed_by == session_id):
            note_obstacle(execution, self.sup.journal_writer.clock.wall, held_by)

    def _session_stopped(self, execution: TaskExecution, session_id: str, request: AbortRequest, cause: Cause) -> None:
        """Publish that a person or the host has ended the session of a task."""
        own = (request.abort_id is None and cause != HOST) or request.abort_reason in OWN_ABORTS
        if execution.session_id == session_id and not own:
            self._end_on_purpose(execution, request.reason, cause)

    def _end_on_purpose(self, execution: TaskExecution, reason: str, cause: Cause) -> None:
        if self.running and not self.sup.stopping.is_set() and execution.result is None:
            self.publish(SessionAborted(execution, reason, cause))

    async def end_task_of(self, session_id: str, reason: str) -> str:
        """Cancel the task that the session, which has ended or is ending, worked for last, unless the task is settled;
        wait for that a limited time, also until the run knows its tasks. Return the name of the task, or ``""`` if no
        task was cancelled. (An abort that ends the session has ended the task already.)"""
        with self.sup.timers.limit(self.sup.aborts.slack_s):
            await first_of(self.opened, self.over)
        session = self.sup.registry.sessions.get(session_id)
        if session is not None and session.stop_request is not None and session.stop_request.abort_id is not None:
            return ""
        for execution in self.executions.values():
            if execution.session_id == session_id and execution.result is None and execution.is_opened:
                self._end_on_purpose(execution, reason, Cause())
                with self.sup.timers.limit(self.sup.aborts.slack_s):
                    await execution.settled.wait()
                is_ended = execution.ending is not None and execution.ending.outcome is TaskEnd.ABORTED
                return execution.name if is_ended else ""
        return ""

    def directory_of(self, execution: TaskExecution) -> str:
        """Return the directory in which the task's agent is configured to work."""
        profile = self.sup.setups.profile(execution.agent, execution.id)
        return self.setup.workdir if profile is None else profile.directory

    # ------------------------------------------------------------------ retries
    @property
    def no_retry(self) -> str:
        """Reason why the workstream's retry budget pays no retry now; ``""`` if it pays one."""
        if self.sup.stopping.is_set():
            return STOPPING
        return self.budget.describe() if self.budget.spend() is None else ""

    def spend_retry(self) -> str:
        """Use one retry of the workstream's retry budget. Return the reason why no retry is left, or ``""``."""
        if not (why := self.no_retry):
            self.budget = self.budget.spend() or self.budget
        return why

    def _charge_launch(self, execution: TaskExecution, error: str) -> str:
        """Use one retry for a launch that the session of the task repeats by itself within an attempt, and count the
        launch in the task's run. Return the reason why no retry is left, or ``""``."""
        if execution.run is not TaskRun.IN_PROGRESS:
            return ""
        if not (why := self.spend_retry()):
            self.record(execution, task_run.LaunchRetried(error=error))
        return why

    def agent_of(self, execution: TaskExecution, retries: int) -> str:
        """Return the agent of the attempt after *retries* retries of the task: after each failure the next agent of its
        ``fallback_agents``."""
        return next_agent(execution.task.agent, execution.task.fallback_agents, retries)

    def time_limit(self, execution: TaskExecution) -> TimeLimit:
        """Return the time limit of the next attempt (``attempt_limits.choose_limit``)."""
        kind, limits = kind_of(execution.task), self.setup.settings.limits
        size = kind.words if kind is not None else ""
        chosen = choose_limit(
            execution.task,
            self.plan.agent_configs.get(execution.agent),
            self.history.durations(execution.name, execution.agent, size),
            default_s=self.plan.task_lifecycle.default_timeout,
            turn_s=limits.turn_timeout_s if "turn_timeout_s" in limits.model_fields_set else None,
            is_command=self._is_command(execution),
        )
        return chosen.limit._replace(timeout_source=chosen.why)

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
            self._took_s[execution.name] = now_s - began_s
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
            told: dict[str, Any] = {"provider": transition.key, "circuit": transition.state.value}
            told["free_at_s"] = transition.free_at_s
            execution.note("ProviderBreaker", told, transition.why)
            _log.displayed("the breaker of a provider changed its state", **told)
            self.wake()

    # ------------------------------------------------------------------ ends
    def settle(self, execution: TaskExecution, outcome: str, error: str) -> None:
        """Set the result of the task, unless the task has one."""
        if execution.result is None:
            if outcome == "failed" and execution.knows_run and execution.run is TaskRun.CIRCUIT_OPEN:
                execution.remarks += describe_circuit(execution.run_data)
            execution.result = execution.result_of(str(outcome), error)
            took_s, kind = self._took_s.get(execution.name), kind_of(execution.task)
            if outcome == TaskEnd.COMPLETED and took_s is not None and kind is not None:
                self.history.note(execution.name, execution.agent, kind.words, took_s)
            self._by_session.pop(execution.session_id, None)
            self._count(execution)
            self.publish(TaskSettled(execution))

    def _count(self, execution: TaskExecution) -> None:
        self.unsettled -= 1
        execution.settled.set()

    def unsettle(self, execution: TaskExecution) -> None:
        """Remove the result of the task: the task is to be done after all, and the run must not end meanwhile."""
        execution.result, execution.settled, execution.ending = None, OneShotEvent(), None
        self.unsettled += 1


def _loss_of(execution: TaskExecution) -> Event:
    """Return the decision that takes a task from a lost worker, or fails the task if too many workers were lost."""
    if execution.state in (Task.CLAIMED, Task.IN_PROGRESS) and execution.job_data.losses + 1 >= LOSSES_MAX:
        error = f"its worker was lost {LOSSES_MAX} times, each time without heartbeats (workers.*.heartbeat_s, check_s)"
        return WorkersLost(reason=error)
    return Lost(reason=LOST)
