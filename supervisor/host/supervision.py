"""Core of a supervisor: its parts, and the operations that other packages of this project carry out on it.

An embedding program uses :class:`supervisor.host.api.Supervisor`, which calls the core. Neither makes decisions about
lifecycles: each call becomes an event in a mailbox, or an abort plan that is executed. While the journal cannot be
written, nothing new begins; terminations go on.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, cast

import anyio
import msgspec

from actors import ActorError, ActorStopped, ActorSystem, AskTimeout, Lane
from actors.one_shot_event import OneShotEvent
from actors.waiting import any_of
from supervisor.agents.codecs import codec_for
from supervisor.host.dependencies import Dependencies
from supervisor.host.factories import ConnectionFactory
from supervisor.host.recovered_work import RecoveredWork
from supervisor.host.services import ServiceFailed, Services
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.run_ids import RUN_PREFIX
from supervisor.lifecycles.types import (
    USUAL_TIME,
    AbortPolicy,
    CancelMode,
    DeliveryPoint,
    LifecycleEvent,
    TimeLimit,
    choice_of,
)
from supervisor.plans import Settings
from supervisor.plans.daemon_control import DaemonControl
from supervisor.plans.earlier_runs import find_earlier_runs
from supervisor.plans.task_control import WorkControl
from supervisor.plugins import Plugins
from supervisor.policies.access import AccessLevel
from supervisor.policies.argument_checks import check_name, check_text, check_type, check_types, delivery_point
from supervisor.policies.budgets import Amounts, Budget, BudgetScope
from supervisor.policies.caller_reach import NOWHERE, CallerReach
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.redaction import KnownSecrets
from supervisor.ports import (
    NO_WORKSPACE,
    Caller,
    Compacted,
    EntityRow,
    JournalError,
    JournalLost,
    Outcome,
    Retention,
    WorkspaceSpec,
)
from supervisor.ports.agent_profile import AgentFunction, AgentProfile
from supervisor.ports.logs import conceal, get_logger
from supervisor.ports.outages import Outage, Shortage
from supervisor.runtime.entity import Degraded, NoSuchEntity, Refused
from supervisor.runtime.entity_registry import END_S, IdAllocator
from supervisor.runtime.journal_writer import Cause, Clock, JournalWriter
from supervisor.runtime.subscriptions import Subscriptions
from supervisor.sessions.abort_service import AbortService
from supervisor.sessions.actor_failures import ActorFailures
from supervisor.sessions.approval_queue import ApprovalQueue, OnPermission
from supervisor.sessions.handle import Session, TurnResult
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.monitor_registry import BudgetGrant, MonitorRegistry
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.restore import Recovered, Recovery
from supervisor.sessions.services import SessionServices
from supervisor.sessions.session_factory import SessionFactory
from supervisor.sessions.setup import Setup, Setups
from supervisor.sessions.shutdown import HostedPlan, Shutdown
from supervisor.sessions.takeover import Choice, Takeover
from supervisor.sessions.termination import Background, Heartbeat
from supervisor.sessions.trust_scores import Trust
from supervisor.sessions.turn import TurnEntity
from supervisor.sessions.verification import Verification
from supervisor.sessions.workspace_cleanup import WorkspaceCleanup

_log = get_logger()
_T = TypeVar("_T")

BACKGROUND_ACTOR = ":janitor"
"""Id of the actor that terminates sessions and runs asynchronous tasks that outlive them, as logs have it. No session
can have this id."""
HOST = Cause(actor="host")


class SupervisorCore:
    """The parts of one running supervisor, and operations on them. Not for use from other threads."""

    def __init__(
        self,
        *,
        system: ActorSystem,
        parts: Dependencies,
        agents: Mapping[str, AgentProfile],
        settings: Settings,
        taken: set[str],
        from_s: float,
        plugins: Plugins,
        on_permission: OnPermission | None = None,
    ) -> None:
        self.plugins = plugins
        self.journal = journal = parts.journal
        self._system = system
        self.processes = parts.processes
        self._caller_at = parts.caller_at
        self.unidentified = parts.unidentified
        self.upkeep = parts.upkeep
        self.workdir = parts.workdir
        self.state_dir = parts.state_dir
        self.subscriptions = Subscriptions(journal)
        self.journal_writer = JournalWriter(
            journal,
            Clock(parts.wall, from_s),
            perform=lambda owed: self.registry.perform(owed),
            publish=self._publish if plugins.listens else self.subscriptions.publish,
            failed=self._journal_failed,
        )
        self._secrets = KnownSecrets()
        self.configured = OneShotEvent()
        """Set, and replaced, whenever the settings change."""
        self.registry = SessionRegistry(system, self.journal_writer, IdAllocator(taken))
        self.background = Background(system, BACKGROUND_ACTOR)
        self._pending_requests = PendingRequests(
            self.registry, journal.generation, lambda: self.settings.limits.waiting_max
        )
        make_connection = ConnectionFactory(
            self.registry,
            self._delegate,
            parts.processes,
            parts.files,
            lambda profile: codec_for(
                profile.adapter,
                plugins.adapters,
                agent_options=profile.agent_options,
                mapping=profile.mapping,
                quirks=profile.quirks,
            ),
        )
        self.setups = Setups(Setup(agents, settings, parts.workdir))
        """Agents, settings and working directory of sessions: those of this supervisor, and of runs."""
        self.approvals = ApprovalQueue(self.registry, self.background, on_permission)
        self.session_services = SessionServices(
            self.registry,
            self.background,
            parts.workspace,
            make_connection,
            self.approvals,
            self._pending_requests.complete_request,
            self.setups,
        )
        self.trust = Trust(self.registry)
        self.configure(agents, settings)
        self._shutdown = Shutdown(self.registry, self._pending_requests, self.session_services)
        self.plan_commands: list[WorkControl] = []
        """Objects that carry out commands about the tasks of each running plan, oldest first."""
        self.daemon: DaemonControl | None = None
        """Control of the daemon that holds this supervisor, if one does."""
        self.read_tokens_again: Callable[[], None] | None = None
        """Function that reads the token file of the HTTP API again, if tokens are served."""
        self.suspended = anyio.Event()
        """Set when a daemon ends: no task is claimed any more, and what is open is left to the next daemon."""
        self.stopping, self.stop_now = self._shutdown.begun, self._shutdown.now
        self.timers = system.timers
        self.aborts = AbortService(self.registry, journal, self._shutdown.wait_finished)
        self.monitors = MonitorRegistry(self.registry, self.aborts.abort_session)
        self.cleanup = WorkspaceCleanup(self.registry, parts.workspace)
        self.verification = Verification(
            self.registry, parts.processes, parts.workspace, self.cleanup, plugins.verified
        )
        self.session_factory = SessionFactory(
            self.registry,
            self.session_services,
            self.monitors,
            self.cleanup,
            self.trust,
            self._shutdown,
            parts.transcript_of,
        )
        self._takeover = Takeover(
            self.registry,
            journal,
            self.session_services,
            self.session_factory,
            self.monitors,
            self._shutdown,
            self._pending_requests,
        )
        self.recovered_work = RecoveredWork(work=set(), answers={}, rows={}, earlier=find_earlier_runs(()))
        """Work of an earlier supervisor's plans that was recovered."""
        system.spawn(self.background, BACKGROUND_ACTOR, shutdown_s=END_S)
        system.on_event = ActorFailures(self.registry, self._pending_requests).handle
        self.services = Services(system, self._service_failed)
        self._parts: dict[Callable[[SupervisorCore], object], object] = {}
        self._service_failure: ServiceFailed | None = None

    @property
    def settings(self) -> Settings:
        """Settings for every session that starts from now on."""
        return self.setups.common.settings

    def configure(self, agents: Mapping[str, AgentProfile], settings: Settings) -> None:
        """Set the agents and settings for every session that starts from now on.

        The secrets of the former agents are still redacted.
        """
        self.setups.common = Setup(dict(agents), settings, self.workdir)
        self.configured.set()
        self.configured = OneShotEvent()
        self.trust.policy = settings.access.value() if settings.access is not None else None
        self.hide_values([*_secrets(agents.values()), *(dict(one.headers) for one in settings.notice_targets)])

    def configure_run(self, run: str, setup: Setup) -> None:
        """Set the agents, settings and working directory of the sessions of *run*."""
        self.setups.of_runs[run] = setup
        self.hide_values(list(_secrets(setup.agents.values())))

    @property
    def session_limits(self) -> Mapping[str, int]:
        """The largest number of tasks that may be at work at once with an agent, by the agent's name."""
        limits = {name: profile.max_sessions for name, profile in self.setups.common.agents.items()}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def hide_values(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Redact the secrets among the values of *environments* from now on, in records, transcripts and logs. Secrets
        that no agent has any more are dropped when there are many newer ones."""
        if not self._secrets.add(environments):  # runs of a daemon often have the same
            return
        setups = (self.setups.common, *self.setups.of_runs.values())
        self._secrets.drop_oldest(env for one in setups for env in _secrets(one.agents.values()))
        self.journal_writer.redactor = self._secrets.redactor
        conceal(environments)

    # ------------------------------------------------------------------ sessions
    async def start_session(
        self,
        name: str,
        *,
        agent: str | AgentFunction | None = None,
        parent: str | None = None,
        policy: AbortPolicy | None = None,
        cancel_mode: CancelMode | str = CancelMode.WAIT_COMPLETED,
        directory: str | None = None,
        cause: Cause = HOST,
        budget: Budget | None = None,
        within: BudgetScope | None = None,
        patience: StallProfileName | str = StallProfileName.DEFAULT,
        workspace_spec: WorkspaceSpec = NO_WORKSPACE,
        plan_run: str = "",
    ) -> Session:
        """Start a session; implements ``Supervisor.start_session``, where the other arguments are described.

        Args:
            cause: record, and actor, that the start follows from.
            workspace_spec: workspace wanted for the session.
            plan_run: run of a plan that the session belongs to, if it has no parent.
        """
        check_name(name)
        check_types(str, parent=parent, directory=directory)
        mode = choice_of(CancelMode, "cancel_mode", cancel_mode)
        if parent is None and mode is not CancelMode.WAIT_COMPLETED:
            raise ValueError(
                f"cancel_mode: session {name!r} has no parent whose end could mean {mode} to it; leave it out"
            )
        above = self.registry.session(parent) if parent is not None else None
        agents = self.setups.of(above.plan_run if above is not None else plan_run).agents
        profile = self.session_factory.profile_of(agent, parent, agents)
        if directory is not None:
            profile = msgspec.structs.replace(profile, directory=directory)
        check_types(AbortPolicy, policy=policy)
        check_types(Budget, budget=budget)
        check_types(BudgetScope, within=within)
        check_type("cause", cause, Cause)
        check_type("workspace_spec", workspace_spec, WorkspaceSpec)
        if parent is not None or not self.stopping.is_set():
            self.check_disk(f"session {name!r}")
        allowance = BudgetGrant(budget, within, choice_of(StallProfileName, "patience", patience))
        session_id = self.session_factory.create(
            name, profile, parent, policy, None, cause, mode, allowance, workspace_spec, plan_run
        )
        try:
            await self.journal_writer.flush()
        except anyio.get_cancelled_exc_class():
            withdrawn = OperatorStop(reason="the caller that started it was cancelled", abort_reason="user_interrupt")
            if (created := self.registry.sessions.get(session_id)) is not None:
                created.request_stop(withdrawn, cause=cause)
            raise
        return Session(self, session_id)

    @property
    def outage(self) -> Outage | None:
        """The reason why the journal cannot be written now, and the time since when; ``None`` while it can be
        written."""
        return self.journal_writer.disk.outage

    @property
    def shortage(self) -> Shortage | None:
        """The resource, such as file descriptors, whose shortage prevents the start of programs now; ``None`` if there
        is none."""
        return self.processes.shortage

    async def degraded(self) -> Outage:
        """Wait until the journal cannot be written, and return the outage; return at once while it cannot."""
        while (outage := self.outage) is None:
            await self.journal_writer.disk.down.wait()
        return outage

    @property
    def failure(self) -> JournalError | ServiceFailed | None:
        """The error that ended every session, ``None`` if there was none. Either the journal is lost, or a service
        crashed too often."""
        return self._shutdown.failure or self._service_failure

    async def journal_lost(self) -> JournalError:
        """Wait until the journal has failed for good, and return the error."""
        await self._shutdown.failed.wait()
        assert self._shutdown.failure is not None, "set before the event"
        return self._shutdown.failure

    async def recovered(self) -> None:
        """Wait until the journal can be written again, or this supervisor is ending."""
        while self.outage is not None and not self.stopping.is_set():
            await any_of(self.journal_writer.disk.up, self.stopping)

    def check_disk(self, what: str) -> None:
        """Raise Degraded if the journal cannot be written now; *what* names what is refused."""
        if self.outage is not None:
            raise Degraded(what, self.outage)

    async def result_of(self, session_id: str) -> TurnResult | None:
        """Wait for the last prompt of a session, and return its result; ``None`` if the session has no prompt."""
        outcome = await self.last_outcome(session_id)
        return None if outcome is None else TurnResult.of(outcome)

    def profile(self, name: str, entity_id: str = "") -> AgentProfile | None:
        """Return the profile of the configured agent with that name, or ``None``. *entity_id* is the run or the task
        that the agent works for."""
        return self.setups.of(entity_id).agents.get(name)

    def access_levels(self) -> list[AccessLevel]:
        """Return the trust level of each configured agent, and of each agent with a score."""
        return self.trust.levels(self.setups.common.agents)

    def part(self, make: Callable[[SupervisorCore], _T]) -> _T:
        """Return the part of this supervisor that *make* makes: the same object at every call. For parts whose classes
        are in packages above this one."""
        if make not in self._parts:
            self._parts[make] = make(self)
        return cast(_T, self._parts[make])

    def new_id(self, wanted: str, *, below: str | None = None) -> str:
        """Return an id for an entity that is not a session; a number is appended if *wanted* was used in this
        journal. *below* is the run of a plan that the entity belongs to."""
        return self.registry.names.new(wanted, below=below)

    def new_run_id(self) -> str:
        """Return the id of the next run of a plan."""
        return self.registry.names.number(RUN_PREFIX)

    # ------------------------------------------------------------------ budgets
    def left_of(self, session_id: str) -> Budget:
        """Return the amounts that a session may still use; an amount without a limit is ``None``.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self.monitors.left_of(self.registry.session(session_id))

    def used_by(self, session_id: str) -> Amounts:
        """Return the amounts that the agents of a session have used so far, without the amounts of its child sessions.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self.monitors.used_by(self.registry.session(session_id))

    # ------------------------------------------------------------------ takeover
    async def restore_sessions(
        self, rows: Sequence[EntityRow], live: Sequence[EntityRow], runs: Mapping[str, str], choice: Choice
    ) -> Recovery:
        """Restore the entities *live* that an earlier supervisor left, and continue or stop the sessions among them, as
        *choice* and the setting ``recovery.sessions`` say. The work among them is restored as it is.

        Args:
            rows: every entity of the journal.
            runs: the runs of plans, by the ids of the sessions that work for them.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        return await self._takeover.restore(rows, live, self.setups, runs, choice)

    async def finish_recovery(self, recovery: Recovery) -> Recovered:
        """Wait for the ends of the sessions that *recovery* stopped, and return its result.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        recovered = await recovery.finish()
        self.monitors.close_ended()
        for session_id in recovered.resumed:
            self._close_when_answered(session_id)
        return recovered

    def _close_when_answered(self, session_id: str) -> None:
        """Close a delegated child session once its prompts are answered: the tool call that would close the session
        does not exist any more."""
        session, ctx = self.registry.sessions.get(session_id), self._system.context(BACKGROUND_ACTOR)
        if session is not None and session.started_by is not None and ctx is not None:
            ctx.start_task(self._close_answered, session_id, name=f"child {session_id}")

    async def _close_answered(self, session_id: str) -> None:
        outcome = await self.last_outcome(session_id)
        cause = Cause(outcome.seq if outcome is not None else None, None, "recovery")
        with suppress(JournalError):
            await self.close_session(session_id, reason="its work is done", cause=cause)

    async def last_outcome(self, session_id: str, *, once: bool = False) -> Outcome | None:
        """Wait for the last prompt of a session, and return its outcome; ``None`` if the session has no prompt. The
        prompt may have been sent under an earlier supervisor; then its outcome is returned even if the session has
        ended.

        Args:
            once: consider only prompts of plans, which may be tried only once.
        """
        return await self._pending_requests.last_outcome(session_id, once=once)

    # ------------------------------------------------------------------ prompts and messages
    async def request(self, session_id: str, prompt: str) -> TurnResult:
        """Send *prompt* to a session, wait for the end of its turn, and return the result.

        Raises:
            NoSuchEntity: there is no such session.
            Refused: the session has ended, or it is a root session and the supervisor is ending. As :class:`Degraded`:
                the journal cannot be written now.
        """
        self._check_request(session_id, prompt)
        return TurnResult.of(await self.outcome_of(session_id, prompt, HOST))

    def begin_request(self, session_id: str, prompt: str, *, actor: str) -> Callable[[], Awaitable[TurnResult]]:
        """Send *prompt* to a session for *actor*; return a function that waits for the result. The request goes on when
        the caller is cancelled, or never calls the function.

        Raises:
            NoSuchEntity, Refused: as for :meth:`request`.
        """
        self._check_request(session_id, prompt)

        async def outcome() -> TurnResult:
            return TurnResult.of(await self.outcome_of(session_id, prompt, Cause(actor=actor)))

        return self._begin(outcome, f"prompt {session_id}")

    def _check_request(self, session_id: str, prompt: str) -> None:
        session = self.registry.session(session_id)
        check_text("prompt", prompt)
        if self.stopping.is_set() and session.parent is None:  # the turn of a parent waits for its children
            raise Refused(f"the prompt is not taken: the supervisor is ending, and begins no turn of {session_id}")
        self.check_disk(f"a prompt for {session_id}")

    async def outcome_of(
        self,
        session_id: str,
        prompt: str,
        cause: Cause,
        *,
        once: bool = False,
        limit: TimeLimit = USUAL_TIME,
        reason: str = "",
    ) -> Outcome:
        """Send *prompt* to a session, and return the outcome of its turn with the number of the record of that outcome.
        Wait while the journal cannot be written.

        Args:
            once: if a turn fails after its agent was ready, do not try again.
            limit: time limit of a turn.
            reason: why the prompt is sent again; it becomes part of the prompt where ``explains_retries`` allows that.

        Raises:
            NoSuchEntity: there is no such session.
            Refused: the session has ended.
        """
        self.registry.session(session_id)
        check_text("prompt", prompt)
        return await self._pending_requests.outcome_of(session_id, prompt, cause, once=once, limit=limit, reason=reason)

    async def send(
        self, session_id: str, text: str, *, urgent: bool, sender: str, at: DeliveryPoint | str | None = None
    ) -> str:
        """Send a message, which becomes part of the session's next prompt; return the message's id once the message is
        durable.

        An urgent message interrupts the running turn, at the delivery point *at*.

        Raises:
            ValueError: *at* is no delivery point, or is given for a message that is not urgent.
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or its queue of messages is full. As :class:`Degraded`: the journal cannot
                be written now.
        """
        point = delivery_point(urgent, at)
        self.registry.session(session_id)
        check_text("text", text)
        check_type("sender", sender, str)
        self.check_disk(f"a message for {session_id}")
        return await self._pending_requests.send(session_id, text, sender=sender, urgent=point if urgent else None)

    def can_finish_turn(self, session_id: str) -> bool:
        """Return whether the agent of a session works on a turn that no message has changed."""
        turn = self._turn_at_work(session_id)
        return turn is not None and turn.can_finish

    def finish_turn(self, session_id: str, reason: str) -> None:
        """Have the agent of a session stop its turn, which has then succeeded with what is done. An agent that does not
        stop within ``grace_s`` is killed. Without effect if no turn is under way any more."""
        if (turn := self._turn_at_work(session_id)) is not None:
            turn.finish(reason)

    def _turn_at_work(self, session_id: str) -> TurnEntity | None:
        session: LiveSession | None = self.registry.sessions.get(session_id)
        turn = self.registry.entities.get(session.connection.turn_id or "") if session and session.connection else None
        return turn if isinstance(turn, TurnEntity) else None

    # ------------------------------------------------------------------ callers on the control socket
    def caller_at(self, connection: socket.socket, pid: int) -> Caller:
        """Identify the process at the other end of *connection*, given the pid that the operating system reports."""
        return self._caller_at(connection, pid)

    def reach_of(self, caller: Caller) -> CallerReach:
        """Return the sessions and operations that *caller* may request. A child session may request no operation that a
        session above it may not."""
        session: LiveSession | None = self.registry.sessions.get(caller.session)
        if session is None:
            return NOWHERE
        own = session.assigned_task
        splits = frozenset({own.name, own.id} if own is not None and own.split is not None else ())
        sessions, operates = [session], frozenset(session.profile.operates)
        for one in sessions:  # the list grows while it is read: children follow their parents
            sessions += one.children.values()
        while (session := session.parent) is not None:
            operates &= frozenset(session.profile.operates)
        return CallerReach(frozenset(one.session_id for one in sessions), splits, operates)

    def note_refused(self, caller: Caller, asked: str, why: str) -> None:
        """Log that a request of *caller* was refused, and record the refusal for the caller's session, if there
        is one."""
        name = caller.named("nobody")
        _log.warning("a request to the supervisor was refused", by=name, asked=asked, why=why)
        metadata = {"asked": asked, "pid": caller.pid}
        self.registry.record_fact(caller.session, "RequestRefused", Cause(actor=name), metadata, reason=why)

    def _delegate(
        self,
        session: LiveSession,
        name: str,
        prompt: str,
        agent: str | AgentFunction | None,
        started_by: str | None,
        answer: Callable[[Outcome], None],
        cause: Cause,
        mode: CancelMode,
    ) -> None:
        """Start a child session for an agent that delegates *prompt*; when the prompt is answered, call *answer* with
        the outcome and close the child session.

        Raises:
            InvalidArgument: the name has characters that ids may not have, or there is no such agent.
            TypeError: an argument has a wrong type.
        """
        ctx = self.background.context
        check_text("prompt", prompt)
        try:
            agents = self.setups.of(session.plan_run).agents
            profile = self.session_factory.profile_of(agent, session.session_id, agents)
            child_id = self.session_factory.create(name, profile, session.session_id, None, started_by, cause, mode)
        except (Refused, NoSuchEntity) as error:
            answer(Outcome("failed", str(error), ""))
            return
        ctx.start_task(self._run_child, child_id, prompt, answer, cause, name=f"child {child_id}")

    async def _run_child(self, child_id: str, prompt: str, answer: Callable[[Outcome], None], cause: Cause) -> None:
        """Prompt the child session, and pass the outcome to the delegating agent exactly once, also if this task is
        cancelled."""
        outcome = Outcome("aborted", "its child session was lost", "")
        try:
            outcome = await self.outcome_of(child_id, prompt, cause)
        except (NoSuchEntity, Refused, ActorError, JournalError) as error:
            outcome = Outcome("aborted", str(error), "")
        finally:
            answer(outcome)
        await self.close_session(child_id, reason="its work is done", cause=Cause(outcome.seq, None, child_id))

    async def run_to_completion(self, do: Callable[[], Awaitable[_T]], name: str) -> _T:
        """Run *do* in an asynchronous task of its own, so that a cancellation of the caller does not cancel *do*;
        return the result of *do*.

        Raises:
            Refused: the supervisor ended before *do* returned.
            Exception: the exception that *do* raised.
        """
        return await self._begin(do, name)()

    def _begin(self, do: Callable[[], Awaitable[_T]], name: str) -> Callable[[], Awaitable[_T]]:
        """Run *do* in an asynchronous task of its own; return a function that waits for its result, and raises as
        :meth:`run_to_completion`."""
        over, results = OneShotEvent(), list[_T | Exception]()

        async def run() -> None:
            try:
                results.append(await do())
            except Exception as error:  # raised in the caller, if that is still waiting
                results.append(error)
            finally:
                over.set()

        async def result() -> _T:
            if began:
                await over.wait()
            if not results:
                raise Refused(f"{name}: the supervisor has ended")
            if isinstance(results[0], Exception):
                raise results[0]
            return results[0]

        ctx, began = self._system.context(BACKGROUND_ACTOR), False
        if ctx is not None:
            with suppress(ActorStopped):
                ctx.start_task(run, name=name)
                began = True
        return result

    # ------------------------------------------------------------------ ends
    async def close_session(self, session_id: str, *, reason: str, cause: Cause = HOST) -> None:
        """End a session as completed, and wait until everything below the session has ended; do nothing if the session
        has ended. A close by the host (*cause*) also cancels the task that the session was the last to work for.

        Raises:
            JournalError: the journal was lost meanwhile; nevertheless the session was ended.
        """
        check_type("reason", reason, str)
        session = self.registry.sessions.get(session_id)
        if cause == HOST and (session is None or session.is_stopping):
            await self.aborts.end_task(session_id, reason)
        if session is None:
            return
        stop = OperatorStop(reason=reason, outcome="completed", transition_reason="completed")
        session.request_stop(stop, cause=cause)
        await self._shutdown.wait_recorded(session)

    async def stop(self, *, now: bool = False, actor: str = "operator") -> None:
        """Begin the end of this supervisor: a drain within ``drain_s``; with *now*, or at the second call, an abort of
        every session.

        A drain finishes the turns that run; a session that waits for its next try gives up. The supervisor has ended
        when the block of ``open_supervisor`` has been left. A daemon ends otherwise (``DaemonControl.stop``).
        """
        check_type("actor", actor, str)
        if self._system.context(BACKGROUND_ACTOR) is None:  # the supervisor has ended: a late command
            return
        if self.daemon is not None:
            self.daemon.stop(by=actor, now=now)
            return
        with suppress(ActorStopped):  # the last actors are ending
            self._shutdown.stop(actor, now=now)

    async def finish(self) -> None:
        """Wait until the open requests are finished, at most ``drain_s``; no new work begins meanwhile."""
        await self._shutdown.finish()

    def begin_plan(self, plan: HostedPlan, run: Callable[[], Awaitable[None]]) -> None:
        """Start *run* as an asynchronous task of this supervisor; the task ends with the supervisor at the latest.

        Raises:
            Refused: the supervisor ends, or has ended.
        """
        if self._shutdown.plans_over:
            raise Refused("no plan begins: the supervisor has ended")

        async def run_to_the_end() -> None:
            try:
                await run()
            finally:
                self._shutdown.plans.remove(plan)

        self._shutdown.plans.append(plan)
        self._system.group.start_soon(run_to_the_end)

    async def end_plans(self) -> None:
        """Cancel the plan runs that have not ended, and wait for their end."""
        await self._shutdown.end_plans()

    def under_way(self) -> int:
        """Return the number of requests that have no reply yet."""
        return len(self._pending_requests.waiting)

    @property
    def unanswered(self) -> bool:
        """Whether a request waits for its reply, or a message is being handled in a turn."""
        return self._pending_requests.unanswered

    async def answer_or_stop(self) -> None:
        """Wait until a request receives its reply, or until every session is to stop now."""
        await any_of(self._pending_requests.answer_given, self.stop_now)

    async def heartbeat(self, *, timeout_s: float) -> None:
        """Wait until the actor that terminates sessions has handled a message, which shows that the event loop, the
        dispatcher of the actor system and this actor work.

        Raises:
            ActorStopped: the actor has ended.
            AskTimeout: the message was not handled within *timeout_s*.
        """
        background, beat = self._system.ref(BACKGROUND_ACTOR), Heartbeat()
        if background is None:
            raise ActorStopped(BACKGROUND_ACTOR)
        background.tell(beat, lane=Lane.CONTROL)  # not `ask`: an ask of an idle actor bypasses the dispatcher
        with self._system.timers.limit(timeout_s):
            await beat.handled.wait()
            return
        raise AskTimeout(BACKGROUND_ACTOR, timeout_s)

    async def close_all(self, end_work: Callable[[], Awaitable[None]] | None = None) -> None:
        """End every session as completed, within the stage budgets. Meanwhile await *end_work*, which ends the work
        that an earlier supervisor left; ``None`` if there is no such work."""
        self.stopping.set()
        self._shutdown.close_all()
        await self._ended(end_work)

    async def abort_all(self, reason: str, end_work: Callable[[], Awaitable[None]] | None = None) -> None:
        """Abort every session with the given reason, within the stage budgets; *end_work* as for :meth:`close_all`."""
        check_type("reason", reason, str)
        self.stopping.set()
        self._shutdown.stop_all(reason, "host", now=False)
        await self._ended(end_work)

    async def _ended(self, end_work: Callable[[], Awaitable[None]] | None) -> None:
        """Wait for the end of every session, and of the work that *end_work* ends."""
        await self._shutdown.all_ended(end_work)
        await self.cleanup.wait_until_done()
        for session in self.registry.sessions.values():  # sessions whose last record was lost
            session.transcript.close()

    # ------------------------------------------------------------------ queries
    def state_of(self, entity_id: str) -> str:
        """Return the state of a live entity.

        Raises:
            NoSuchEntity: no live entity has that id.
        """
        return str(self.registry.entity(entity_id).state.value)

    async def compact(self, retention: Retention | None = None) -> Compacted:
        """Move entities that ended long ago from the journal to the archive; by default, the entities that the
        settings' retention does not keep.

        Raises:
            Refused: the journal is not on a disk.
            JournalError: the compaction failed, maybe in part; sessions go on.
        """
        if self.upkeep is None:
            raise Refused("this supervisor's journal is not on a disk: there is nothing to compact")
        compacted = await self.upkeep.compact(
            retention or self.settings.retention.value(), lambda: list(self.registry.entities)
        )
        if compacted.entities:
            await self._forget_archived_keys()
        return compacted

    async def _forget_archived_keys(self) -> None:
        """Forget the idempotency keys of the runs that the journal does not have any more, as the next supervisor
        would not know them either."""
        by_key = self.recovered_work.earlier.by_key
        ended = dict(by_key)
        await self.journal_writer.durable()  # a run that has ended just now is in the journal then
        kept = {row.id for row in await self.journal.entities(ids=[one.workstream for one in ended.values()])}
        for key in [key for key, one in ended.items() if one.workstream not in kept]:
            del by_key[key]

    # ------------------------------------------------------------------ parts
    def _publish(self, record: LifecycleEvent) -> None:
        self.subscriptions.publish(record)
        self.plugins.publish(record)

    def _journal_failed(self, error: JournalError) -> None:
        if isinstance(error, JournalLost):
            _log.critical(str(error))
        else:
            _log.critical("the journal is lost; every session is ended", error=str(error))
        self._shutdown.journal_lost(error)

    def _service_failed(self, error: ServiceFailed) -> None:
        _log.critical(str(error))
        self.cleanup.give_up()
        self._service_failure = error
        self._shutdown.end_sessions(str(error))


def _secrets(agents: Iterable[AgentProfile]) -> Iterator[Mapping[str, str]]:
    """Yield the environments and headers of *agents* and of their MCP servers, in which there may be secrets."""
    for profile in agents:
        yield profile.env
        for one in profile.agent_options.mcp_servers:
            yield from (one.env, one.headers)
