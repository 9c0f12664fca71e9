"""The supervisor that a host holds: sessions are started, prompted, told, aborted, looked at, and ended through it.

It decides nothing about lifecycles: every wish becomes an event in a mailbox, or a plan that is carried out. It knows
how everything ends: a drain finishes what was asked for, an abort climbs the ladder, a journal that is lost ends it
all. While its disk is down nothing new begins, and ends go on.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import anyio
import msgspec

from actors import ActorError, ActorStopped, ActorSystem, AskTimeout, Context, Lane
from actors.waiting import any_of
from supervisor.aborts.service import AbortService
from supervisor.aborts.termination import Heartbeat, TerminationService
from supervisor.agents.codecs import codec_for
from supervisor.agents.mcp_stdio import START_S, McpError, McpResource
from supervisor.diagnostics.visual_state import Inspected
from supervisor.host.actor_failures import ActorFailures
from supervisor.host.factories import ConnectionFactory, clean_env
from supervisor.host.inspection import inspect
from supervisor.host.services import ServiceFailed, Services
from supervisor.host.shutdown import HostedPlan, Shutdown
from supervisor.host.trust_scores import Trust
from supervisor.host.verification import Verification
from supervisor.host.workspace_cleanup import WorkspaceCleanup
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import Session as SessionState
from supervisor.lifecycles.session import SessionData
from supervisor.lifecycles.types import (
    USUAL_TIME,
    AbortPolicy,
    AbortScope,
    CancelMode,
    DeliveryPoint,
    Kind,
    LifecycleEvent,
    TimeLimit,
)
from supervisor.plans import Settings
from supervisor.plans.task_control import WorkControl
from supervisor.plugins import Plugins
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.access import intersect_rights
from supervisor.policies.budgets import Amounts, Budget, BudgetScope
from supervisor.policies.caller_reach import NOWHERE, CallerReach
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.permissions import OpenPermission, OptionChoice
from supervisor.policies.redaction import Redactor, encodable
from supervisor.ports import (
    NO_WORKSPACE,
    Caller,
    Compacted,
    EntityRow,
    JournalError,
    JournalLost,
    Launch,
    McpServer,
    Retention,
    WorkspaceSpec,
)
from supervisor.ports.logs import conceal, get_logger
from supervisor.recovery.journal_state import PLACED
from supervisor.recovery.restore import Recovered
from supervisor.recovery.takeover import Choose, RecoveredWork, Takeover
from supervisor.runtime.availability import Outage, Shortage
from supervisor.runtime.dependencies import Dependencies
from supervisor.runtime.entity import Degraded, Refused
from supervisor.runtime.entity_registry import END_S, EntityRegistry
from supervisor.runtime.entity_types import SESSION_KIND
from supervisor.runtime.id_allocator import IdAllocator
from supervisor.runtime.journal_writer import Cause, Clock, JournalWriter
from supervisor.runtime.live_session import AgentFunction, AgentProfile, LiveSession, NoSuchEntity, Outcome
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.runtime.redacting_transcript import RedactingTranscript
from supervisor.runtime.subscriptions import Subscriptions
from supervisor.sessions.approval_queue import ApprovalQueue, OnPermission
from supervisor.sessions.effect_executor import EffectExecutor
from supervisor.sessions.handle import Session, TurnResult
from supervisor.sessions.monitor_registry import NO_GRANT, BudgetGrant, MonitorRegistry, hosts_scope
from supervisor.sessions.pending_requests import PendingRequests

__all__ = ["Choose", "RecoveredWork", "Session", "Supervisor", "TurnResult"]

_log = get_logger()
_T = TypeVar("_T")

JANITOR = ":janitor"
"""An id that no session can have."""
ID_MAX = 200
"""Characters of a session's id, before the middle of its path is left out: delegation may be thousands deep."""
HOST = Cause(actor="host")


class Supervisor:
    """A running supervisor. Made by :func:`open_supervisor`; not for use from other threads."""

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
        self._transcript_of = parts.transcript_of
        self._processes = parts.processes
        self._caller_at = parts.caller_at
        self.upkeep = parts.upkeep
        self.workdir = parts.workdir
        self.state_dir = parts.state_dir
        self.subscriptions = Subscriptions(journal)
        self.journal_writer = JournalWriter(
            journal,
            Clock(parts.wall, from_s),
            perform=lambda owed: self.effect_executor.perform(owed),
            publish=self._publish if plugins.listens else self.subscriptions.publish,
            failed=self._journal_failed,
        )
        self._environments: list[Mapping[str, str]] = []
        self.trust = Trust(self.journal_writer.clock, self._note_standing)
        self.configure(agents, settings)
        self.registry = EntityRegistry(system, self.journal_writer, IdAllocator(taken))
        self._prompting = PendingRequests(self.registry, journal.generation, lambda: self.settings.limits.waiting_max)
        self._shutdown = Shutdown(self.registry, self._prompting, lambda: self.settings.drain_s, lambda: self._janitor)
        self.plan_commands: list[WorkControl] = []
        """Commands of each plan that runs, oldest first."""
        self.stopping, self.stop_now = self._shutdown.begun, self._shutdown.now
        self.timers = system.timers
        self.aborts = AbortService(self.registry, journal, self._shutdown.wait_finished)
        self.monitors = MonitorRegistry(self.registry, self.aborts.abort_session)
        self.terminations = TerminationService(self.registry, JANITOR)
        make_connection = ConnectionFactory(
            self.registry,
            self._delegate,
            parts.processes,
            parts.files,
            lambda profile: codec_for(
                profile.adapter, plugins.adapters, wishes=profile.wishes, mapping=profile.mapping
            ),
        )
        self.cleanup = WorkspaceCleanup(self.registry, parts.workspace)
        self.verification = Verification(
            self.registry, parts.processes, parts.workspace, self.cleanup, plugins.verified
        )
        self._approvals = ApprovalQueue(self.registry, lambda: self._janitor, on_permission)
        answered = self._prompting.complete_request
        self.effect_executor = EffectExecutor(
            self.registry, JANITOR, self.terminations, make_connection, parts.workspace, answered, self._approvals
        )
        self._succession = Takeover(
            self.registry,
            journal,
            self.effect_executor,
            self.terminations,
            admit=self._admit,
            ended=self._shutdown.wait_recorded,
            revived=lambda session, past: self.monitors.restore_monitor(
                session, self.settings.monitor_settings, past.budget
            ),
            inherit=self._prompting.track_recovered,
        )
        system.spawn(self.terminations, JANITOR, shutdown_s=END_S)
        system.on_event = ActorFailures(self.registry, self._prompting).heard
        self.services = Services(system, self._service_failed)

    def configure(self, agents: Mapping[str, AgentProfile], settings: Settings) -> None:
        """Other agents and settings for every session that starts from now on. Secrets of the former stay secrets."""
        self._agents, self.settings = dict(agents), settings
        self.trust.policy = settings.access.value() if settings.access is not None else None
        self._environments += [profile.env for profile in agents.values()]
        servers = [one for profile in agents.values() for one in profile.wishes.mcp_servers]
        self._environments += [secrets for one in servers for secrets in (one.env, one.headers)]
        self.journal_writer.redactor = Redactor(self._environments)
        conceal(self._environments)

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
        patience: StallProfileName = StallProfileName.DEFAULT,
        workspace_spec: WorkspaceSpec = NO_WORKSPACE,
    ) -> Session:
        """Start a session and wait until its first record is durable. A name that was used gets a number.

        Whoever is cancelled meanwhile does not know of a session: it is ended.

        Args:
            name: its id, or the last part of it below *parent*.
            agent: the name of a configured agent, or an async function; by default the parent's.
            parent: the id of the session that it is delegated by.
            policy: which levels aborts may cross here; by default the parent's, or the settings'.
            cancel_mode: what the parent's end means to it (``CancelMode``); a session without a parent has none.
            directory: where its agent works instead of where it is configured to.
            cause: what it is started for.
            budget: what it may use, with all below it; by default what the settings say of each session.
            within: whose budget that lies in (:meth:`scope`); by default the parent's.
            patience: how long it may be silent before it is taken for stuck.
            workspace_spec: the workspace wanted for the session.

        Raises:
            ValueError: the name has characters that ids may not have, or there is no such agent or cancel mode.
            TypeError: something given is of another type.
            NoSuchEntity: the parent does not live.
            Refused: the parent, or the supervisor, is ending: nothing is born under it. As :class:`Degraded`: the
                journal cannot be written now.
            JournalError: the journal was lost before the record was durable; the session is ended.
        """
        mode = CancelMode.named(cancel_mode)
        if parent is None and mode is not CancelMode.WAIT_COMPLETED:
            raise ValueError(
                f"cancel_mode: session {name!r} has no parent whose end could mean {mode} to it; leave it out"
            )
        profile = self._profile(agent, parent)
        if directory is not None:
            profile = msgspec.structs.replace(profile, directory=directory)
        _check_name(name)
        _check_types(AbortPolicy, policy=policy)
        _check_types(Budget, budget=budget)
        _check_types(BudgetScope, within=within)
        _check_types(str, directory=directory)
        _check_type("cause", cause, Cause)
        _check_type("patience", patience, StallProfileName)
        _check_type("workspace_spec", workspace_spec, WorkspaceSpec)
        if parent is not None or not self.stopping.is_set():
            self._check_disk(f"session {name!r}")
        allowance = BudgetGrant(budget, within, patience)
        session_id = self._start(name, profile, parent, policy, None, cause, mode, allowance, workspace_spec)
        try:
            await self.journal_writer.flush()
        except anyio.get_cancelled_exc_class():
            withdrawn = OperatorStop(reason="whoever started it was cancelled", abort_reason="user_interrupt")
            self.registry.request_stop(session_id, withdrawn, cause=cause)
            raise
        return Session(self, session_id)

    @property
    def outage(self) -> Outage | None:
        """Why the journal cannot be written now, and since when; ``None`` while it can."""
        return self.journal_writer.disk.outage

    @property
    def shortage(self) -> Shortage | None:
        """What programs wait for that cannot be started now, such as file descriptors; ``None``: nothing."""
        return self._processes.shortage

    async def degraded(self) -> Outage:
        """Wait until the journal cannot be written; at once while it cannot."""
        while (outage := self.outage) is None:
            await self.journal_writer.disk.down.wait()
        return outage

    @property
    def failure(self) -> JournalError | ServiceFailed | None:
        """Error that ended every session: the journal is lost, or a service crashed too often; ``None`` if none did."""
        return self._shutdown.failure or self._shutdown.service_failure

    async def journal_lost(self) -> JournalError:
        """Wait until the journal has failed for good; how."""
        await self._shutdown.failed.wait()
        assert self._shutdown.failure is not None, "that is what it waits for"
        return self._shutdown.failure

    async def recovered(self) -> None:
        """Wait until the journal can be written again, or this supervisor is ending."""
        while self.outage is not None and not self.stopping.is_set():
            await any_of(self.journal_writer.disk.up, self.stopping)

    def _check_disk(self, what: str) -> None:
        if self.outage is not None:
            raise Degraded(what, self.outage)

    def session(self, session_id: str) -> Session:
        """A handle on a session by its id."""
        return Session(self, session_id)

    def sessions(self) -> list[Session]:
        """The sessions that are alive, oldest first: also those of an earlier supervisor that go on."""
        return [Session(self, session_id) for session_id in self.registry.sessions]

    async def result_of(self, session_id: str) -> TurnResult | None:
        """How the last prompt ends that a session has, whoever asked for it; ``None`` if it has none."""
        outcome = await self.last_outcome(session_id)
        return None if outcome is None else TurnResult(*outcome[:4])

    def profile(self, name: str) -> AgentProfile | None:
        """The configured agent of that name."""
        return self._agents.get(name)

    def _profile(self, agent: str | AgentFunction | None, parent: str | None) -> AgentProfile:
        if agent is None and parent is not None:
            return self.registry.session(parent).profile
        if isinstance(agent, str):
            profile = self._agents.get(agent)
            if profile is None:
                known = ", ".join(sorted(self._agents)) or "none"
                raise ValueError(f"agent: no agent is named {agent!r}; known: {known}")
            return profile
        if agent is None:
            raise ValueError("agent: missing; name a configured agent or give an async function")
        name = encodable(getattr(agent, "__name__", "function"))
        return AgentProfile(name=name, adapter="inprocess", function=agent)

    def _start(
        self,
        name: str,
        profile: AgentProfile,
        parent: str | None,
        policy: AbortPolicy | None,
        started_by: str | None,
        cause: Cause,
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
        allowance: BudgetGrant = NO_GRANT,
        workspace_spec: WorkspaceSpec = NO_WORKSPACE,
    ) -> str:
        _check_name(name)
        above = self.registry.session(parent) if parent is not None else None
        if above is not None and above.is_stopping:
            raise Refused(f"session {name!r} is not started: its parent {parent} is ending")
        if started_by is not None and not self.registry.is_open(started_by):
            raise Refused(f"session {name!r} is not started: the call {started_by} that asks for it is over")
        if self.stop_now.is_set() or (self.stopping.is_set() and above is None):
            raise Refused(f"session {name!r} is not started: the supervisor is ending")
        session_id = self.registry.names.new(name) if above is None else self._child_id(above, name)
        contained = above is not None and mode is CancelMode.WAIT_COMPLETED
        inherited = above.policy if above is not None else self.settings.policy.value()
        session = self._admit(session_id, above, profile, policy or inherited, started_by, mode)
        session.workspace_spec = workspace_spec
        self.monitors.start_monitor(session, self.settings.monitor_settings, allowance)
        data = SessionData(id=session_id, agent=profile.name, limits=self.settings.limits.value())
        try:
            self.registry.create_entity(
                SESSION_KIND,
                session_id,
                parent_id=parent,
                state=SessionState.INITIALIZING,
                data=data,
                cause=cause,
                home=above.root_id if above is not None else None,
                contained=contained,
            )
        except ActorError as error:
            self.registry.remove_session(session)
            raise Refused(f"session {name!r} is not started: {error}") from error
        if mode is not CancelMode.WAIT_COMPLETED or policy not in (None, inherited) or workspace_spec != NO_WORKSPACE:
            placed = {
                "mode": mode.value,
                "policy": msgspec.to_builtins(policy),
                "place": msgspec.to_builtins(workspace_spec),
            }
            self.registry.record_fact(session_id, PLACED, cause, placed)
        self.monitors.note_budget(session, allowance, cause)
        return session_id

    def _admit(
        self,
        session_id: str,
        above: LiveSession | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        mode: CancelMode,
    ) -> LiveSession:
        session = LiveSession(
            self.registry,
            session_id=session_id,
            parent=above,
            profile=profile,
            policy=policy,
            started_by=started_by,
            transcript=RedactingTranscript(self._transcript_of(session_id), self.journal_writer),
            mode=mode,
        )
        session.rights = intersect_rights(above.rights if above is not None else None, self.trust.rights(profile.name))
        self.registry.add_session(session)
        self.cleanup.remove_after(session)
        return session

    def _note_standing(self, task_id: str, name: str, cause: Cause, told: dict[str, object], reason: str) -> None:
        self.registry.record_fact(task_id, name, cause, told, reason=reason)

    def _child_id(self, above: LiveSession, name: str) -> str:
        """Its path, or ``root/~/name`` where that would be too long to be written in every record."""
        path = f"{above.session_id}/{name}"
        if len(path) <= ID_MAX:
            return self.registry.names.new(path, below=above.session_id)
        return self.registry.names.new(f"{above.root_id}/~/{name}", below=above.root_id)

    def new_id(self, wanted: str) -> str:
        """An id for an entity that is not a session; numbered if it was used in this journal."""
        return self.registry.names.new(wanted)

    # ------------------------------------------------------------------ budgets
    def scope(self, scope_id: str, title: str, budget: Budget, parent: BudgetScope | None = None) -> BudgetScope | None:
        """A budget that sessions can be started *within*: the one of that id, or a new one below *parent*.

        It is the host's, and on record as ``host:ID``: a session may have the same id.

        Returns:
            The scope; *parent*, where *budget* bounds nothing.
        """
        _check_text("scope_id", scope_id)
        _check_text("title", title)
        _check_type("budget", budget, Budget)
        _check_types(BudgetScope, parent=parent)
        return self.monitors.scope(hosts_scope(scope_id), title, budget, parent)

    def close_scope(self, scope_id: str) -> None:
        """The next :meth:`scope` of that id is a new one, of which nothing is used.

        Who is in this one goes on counting there. Unknown ids are no mistake.
        """
        self.monitors.close(hosts_scope(scope_id))

    def left_of(self, session_id: str) -> Budget:
        """What a session may still use; ``None`` where nothing bounds it.

        Raises:
            NoSuchEntity: it has ended.
        """
        return self.monitors.left_of(self.registry.session(session_id))

    def used_by(self, session_id: str) -> Amounts:
        """What the agents of a session have used so far, without those of its child sessions.

        Raises:
            NoSuchEntity: it has ended.
        """
        return self.monitors.used_by(self.registry.session(session_id))

    # ------------------------------------------------------------------ what an earlier one left
    async def take_over(self, rows: Sequence[EntityRow], choose: Choose | None = None) -> Recovered:
        """Continue the sessions that an earlier supervisor left, as ``recovery.sessions`` says; stop the others. Tasks
        wait to be taken up by a run of their plan.

        Args:
            rows: every entity of the journal.
            choose: the ids of the sessions that may go on, each with those below it, and of tasks; by default all.

        Raises:
            JournalError: the journal failed meanwhile.
        """
        recovered = await self._succession.take_over(rows, self._agents, self.settings, choose)
        self.monitors.close_ended()
        for session_id in recovered.resumed:
            self._see_child_out(session_id)
        return recovered

    @property
    def inherited(self) -> RecoveredWork:
        """What an earlier supervisor left of its plans."""
        return self._succession.left

    def _see_child_out(self, session_id: str) -> None:
        """A child session that was delegated is closed when its prompts are answered: who asked for it is gone."""
        session, ctx = self.registry.sessions.get(session_id), self._system.context(JANITOR)
        if session is not None and session.started_by is not None and ctx is not None:
            ctx.start_task(self._close_answered, session_id, name=f"child {session_id}")

    async def _close_answered(self, session_id: str) -> None:
        outcome = await self.last_outcome(session_id)
        cause = Cause(outcome.seq if outcome is not None else None, None, "recovery")
        with suppress(JournalError):
            await self.close_session(session_id, reason="its work is done", cause=cause)

    async def last_outcome(self, session_id: str, *, once: bool = False) -> Outcome | None:
        """How the last prompt ends that a session has, whoever asked for it (with *once*: of those that plans ask for);
        ``None`` if it has none. Of one that was asked of an earlier supervisor, also after it has ended."""
        return await self._prompting.last_outcome(session_id, once=once)

    # ------------------------------------------------------------------ prompts and messages
    async def request(self, session_id: str, prompt: str) -> TurnResult:
        """Have a session work on *prompt*; how that ended.

        Raises:
            NoSuchEntity: there is no such session.
            Refused: the session has ended. As :class:`Degraded`: the journal cannot be written now.
        """
        self.registry.session(session_id)
        _check_text("prompt", prompt)
        self._check_disk(f"a prompt for {session_id}")
        outcome = await self.outcome_of(session_id, prompt, HOST)
        return TurnResult(*outcome[:4])

    async def outcome_of(
        self, session_id: str, prompt: str, cause: Cause, *, once: bool = False, limit: TimeLimit = USUAL_TIME
    ) -> Outcome:
        """Have a session work on *prompt* for that cause; how that ended, and which record settled it. A disk that is
        down is waited for. With *once* a turn that fails after its agent was ready is not tried again; *limit* is what
        a turn may take.

        Raises:
            NoSuchEntity: there is no such session.
            Refused: the session has ended.
        """
        self.registry.session(session_id)
        _check_text("prompt", prompt)
        return await self._prompting.outcome_of(session_id, prompt, cause, once=once, limit=limit)

    async def send(
        self, session_id: str, text: str, *, urgent: bool, sender: str, at: DeliveryPoint | str | None = None
    ) -> str:
        """Leave a message for the session's next prompt; an urgent one interrupts the turn that runs, when *at* says.

        Returns:
            The message's id; the message is durable.

        Raises:
            ValueError: *at* is no delivery point, or is given for a message that is not urgent.
            NoSuchEntity: no living session has that id.
            Refused: the session has ended, or as many messages as may be wait for it already. As :class:`Degraded`:
                the journal cannot be written now.
        """
        point = _point(urgent, at)
        self.registry.session(session_id)
        _check_text("text", text)
        _check_type("sender", sender, str)
        self._check_disk(f"a message for {session_id}")
        return await self._prompting.send(session_id, text, sender=sender, urgent=point if urgent else None)

    # ------------------------------------------------------------------ permissions
    def permissions(self) -> list[OpenPermission]:
        """The permissions that wait for a human, oldest first."""
        return self._approvals.listed()

    async def answer(
        self, permission_id: str, *, allow: bool, always: bool = False, because: str = "", by: str = "host"
    ) -> OptionChoice:
        """Answer a permission that waits for a human. The answer is durable, and the agent is about to be told; whoever
        is cancelled meanwhile has answered it all the same.

        Args:
            always: as often as the agent asks for the same again in its session.
            because: why, for the record.
            by: who says so.

        Returns:
            Which of the agent's options was chosen.

        Raises:
            Refused: it does not wait for an answer, or not any more; or the agent offers no such answer. As
                :class:`Degraded`: the journal cannot be written now.
            TypeError: *allow* is neither yes nor no.
        """
        _check_text("because", because)
        _check_text("by", by)
        self._check_disk(f"an answer to {permission_id}")
        return await self.see_through(
            lambda: self._approvals.answer(permission_id, allow=allow, always=always, because=because, by=by),
            f"answer {permission_id}",
        )

    # ------------------------------------------------------------------ who asks, over the control socket
    def caller_at(self, connection: socket.socket, pid: int) -> Caller:
        """Tell who is at the other end of *connection*, given the pid that the kernel names."""
        return self._caller_at(connection, pid)

    def reach_of(self, caller: Caller) -> CallerReach:
        """What *caller* may ask for: a session below another one, no more than either's plan lets it."""
        session = self.registry.sessions.get(caller.session)
        if session is None:
            return NOWHERE
        own = session.assigned_task
        splits = frozenset({own.name, f"{Kind.TASK}:{own.name}"} if own is not None and own.split is not None else ())
        sessions, operates = [session], frozenset(session.profile.operates)
        for one in sessions:  # the list grows as we walk along it
            sessions += one.children.values()
        while (session := session.parent) is not None:
            operates &= frozenset(session.profile.operates)
        return CallerReach(frozenset(one.session_id for one in sessions), splits, operates)

    def note_refused(self, caller: Caller, asked: str, why: str) -> None:
        """Record that a request was refused to *caller*: in the log of its session, if it has one, and for people."""
        _log.warning("a request to the supervisor was refused", by=caller.named("nobody"), asked=asked, why=why)
        told = {"asked": asked, "pid": caller.pid}
        self.registry.record_fact(
            caller.session, "RequestRefused", Cause(actor=caller.named("nobody")), told, reason=why
        )

    # ------------------------------------------------------------------ resources
    async def start_mcp_server(
        self,
        session_id: str,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        start_s: float = START_S,
    ) -> McpResource:
        """Have a stdio MCP server for as long as a session lives; it is there when this returns. Where this is
        cancelled, the server is given up.

        Args:
            name: what it is called in the records.
            command: its argv.
            env: variables that it gets beside a clean environment.
            start_s: how long it may take, each time, until it has answered ``initialize``.

        Raises:
            NoSuchEntity: the session has ended.
            Refused: the session is ending. As :class:`Degraded`: the journal cannot be written now.
            McpError: the server could not be started, or did not answer in time, and was given up.
        """
        session, ctx = self.registry.session(session_id), self._system.context(session_id)
        self._check_disk(f"an MCP server for {session_id}")
        server = McpServer(name=name, command=tuple(command), env=dict(env or {}))
        self._environments.append(server.env)
        self.journal_writer.redactor = Redactor(self._environments)
        conceal(self._environments)
        launch = Launch(
            argv=server.command, cwd=session.directory, env={**clean_env(), **server.env}, session=session_id
        )
        resource = McpResource(self.registry, self._processes, session, server, launch, start_s)
        if ctx is None or session.is_stopping:
            raise Refused(f"{session_id} is ending: it has no server {name!r} any more")
        resource.begin(ctx)
        try:
            await resource.settled.wait()
        except anyio.get_cancelled_exc_class():
            resource.give_up("whoever started it was cancelled")
            raise
        if resource.given_up:
            raise McpError(f"{name}: {resource.given_up}")
        return resource

    def _delegate(
        self,
        session: LiveSession,
        name: str,
        prompt: str,
        agent: str | None,
        started_by: str | None,
        answer: Callable[[Outcome], None],
        cause: Cause,
        mode: CancelMode,
    ) -> None:
        """An agent asks for a sub-agent: a child session, closed when its prompt is answered."""
        ctx = self._janitor
        try:
            _check_text("prompt", prompt)
            profile = self._profile(agent, session.session_id)
            child_id = self._start(name, profile, session.session_id, None, started_by, cause, mode)
        except (ValueError, Refused, NoSuchEntity) as error:
            answer(Outcome("failed", str(error), ""))
            return
        ctx.start_task(self._run_child, child_id, prompt, answer, cause, name=f"child {child_id}")

    async def _run_child(self, child_id: str, prompt: str, answer: Callable[[Outcome], None], cause: Cause) -> None:
        """Whatever happens, the agent that asked gets one answer."""
        outcome = Outcome("aborted", "its child session was lost", "")
        try:
            outcome = await self.outcome_of(child_id, prompt, cause)
        except (NoSuchEntity, Refused, ActorError, JournalError) as error:
            outcome = Outcome("aborted", str(error), "")
        finally:
            answer(outcome)
        await self.close_session(child_id, reason="its work is done", cause=Cause(outcome.seq, None, child_id))

    async def see_through(self, do: Callable[[], Awaitable[_T]], name: str) -> _T:
        """Have something done to its end, whoever is cancelled while he waits for that; what came of it.

        Raises:
            Refused: the supervisor has ended before it was.
            Exception: what *do* raises.
        """
        over, said = OneShotEvent(), list[_T | Exception]()

        async def carry_out() -> None:
            try:
                said.append(await do())
            except Exception as error:  # it is the caller's, if he is still there
                said.append(error)
            finally:
                over.set()

        ctx = self._system.context(JANITOR)
        if ctx is not None:
            with suppress(ActorStopped):
                ctx.start_task(carry_out, name=name)
                await over.wait()
        if not said:
            raise Refused(f"{name}: the supervisor has ended")
        if isinstance(said[0], Exception):
            raise said[0]
        return said[0]

    # ------------------------------------------------------------------ ends
    def plan_abort(self, target: str, scope: AbortScope | str, *, now: bool = False) -> AbortPlan:
        """What an abort would end, without ending anything; with *now*, at once, and also what is ending already.

        Raises:
            UnknownTarget: nothing alive has that id.
            UnknownValue: no scope has that name.
            NoSiblings: SIBLING of a root session.
        """
        return self.aborts.plan(target, scope, now=now)

    async def abort(
        self,
        target: str,
        scope: AbortScope | str,
        *,
        reason: str = "",
        actor: str = "operator",
        now: bool = False,
        within_s: float | None = None,
        plan_id: str | None = None,
    ) -> Receipt:
        """End what the scope reaches from *target*; the receipt says how. What has ended is no error.

        Args:
            now: start at the kill rung, also where an earlier abort is still climbing towards it.
            within_s: have less patience than the ladders; the gentlest rungs give way first.
            plan_id: only if it would do exactly what the plan of that id said.

        Raises:
            UnknownTarget: nothing alive has that id, and nothing that has ended had.
            UnknownValue: no scope has that name.
            NoSiblings: SIBLING of a root session.
            Refused: the plan of that id would not be carried out; nothing was ended.
        """
        _check_type("reason", reason, str)
        _check_type("actor", actor, str)
        reason = reason or f"aborted by {actor}"
        return await self.aborts.abort(
            target, scope, reason=reason, actor=actor, now=now, within_s=within_s, plan_id=plan_id
        )

    async def execute(
        self,
        plan: AbortPlan,
        *,
        reason: str,
        actor: str = "operator",
        now: bool = False,
        within_s: float | None = None,
    ) -> Receipt:
        """Carry out a plan. Whether it came in time is decided before this first waits.

        Raises:
            Refused: the tree has changed since the plan was made; nothing was ended. Make a new plan.
        """
        _check_type("plan", plan, AbortPlan)
        _check_type("reason", reason, str)
        _check_type("actor", actor, str)
        return await self.aborts.execute(plan, reason=reason, actor=actor, now=now, within_s=within_s)

    async def close_session(self, session_id: str, *, reason: str, cause: Cause = HOST) -> None:
        """End a session in order and wait until everything below it has ended; no error if it already has.

        Raises:
            JournalError: the journal was lost meanwhile; the session was ended all the same.
        """
        _check_type("reason", reason, str)
        session = self.registry.sessions.get(session_id)
        if session is None:
            return
        stop = OperatorStop(reason=reason, outcome="completed", transition_reason="completed")
        self.registry.request_stop(session_id, stop, cause=cause)
        await self._shutdown.wait_recorded(session)

    async def stop(self, *, now: bool = False, actor: str = "operator") -> None:
        """Ask this supervisor to end: by draining within ``drain_s``, or *now*, or if asked again, by aborting it all.

        A drain finishes the turns that run; a session that waits to try again gives up.

        It returns when that is under way; the supervisor has ended when its block has been left. One that has ended
        already stays so.
        """
        _check_type("actor", actor, str)
        if self._system.context(JANITOR) is None:  # a command may come as its socket closes
            return
        with suppress(ActorStopped):  # or as the last of its actors end
            self._shutdown.stop(actor, now=now, give_up_retries=self.effect_executor.give_up_retries)

    async def drain(self) -> None:
        """Finish what was asked for within the drain deadline, then end every session in order."""
        await self.finish()
        await self.close_all()

    async def finish(self) -> None:
        """Wait until what was asked for is finished, at most ``drain_s``; nothing new begins."""
        await self._shutdown.finish()

    def begin_plan(self, plan: HostedPlan, run: Callable[[], Awaitable[None]]) -> None:
        """Start *run* as a task of this supervisor, which ends with the supervisor at the latest."""

        async def run_to_the_end() -> None:
            try:
                await run()
            finally:
                self._shutdown.plans.remove(plan)

        self._shutdown.plans.append(plan)
        self._system.group.start_soon(run_to_the_end)

    async def end_plans(self) -> None:
        """Cancel the plans that run, and wait for their end."""
        await self._shutdown.end_plans()

    def under_way(self) -> int:
        """How many requests are not answered yet."""
        return len(self._prompting.waiting)

    @property
    def unanswered(self) -> bool:
        """Somebody waits for an answer, or a message has a turn that nobody waits for."""
        return self._prompting.unanswered

    async def answer_or_stop(self) -> None:
        """Wait until somebody is answered, or everything is to stop now."""
        await any_of(self._prompting.answer_given, self.stop_now)

    async def heartbeat(self, *, timeout_s: float) -> None:
        """Wait until the actor that ends sessions has handled a message: then the event loop, the kernel's dispatcher
        and that actor are alive.

        The message is told and not asked: an ask of an idle actor does not go through the dispatcher.

        Raises:
            ActorStopped: the actor has ended.
            AskTimeout: not within *timeout_s*.
        """
        janitor, beat = self._system.ref(JANITOR), Heartbeat()
        if janitor is None:
            raise ActorStopped(JANITOR)
        janitor.tell(beat, lane=Lane.CONTROL)
        with self._system.timers.limit(timeout_s):
            await beat.handled.wait()
            return
        raise AskTimeout(JANITOR, timeout_s)

    async def close_all(self) -> None:
        """End every session in order; bounded by the ladder."""
        self.stopping.set()
        self._shutdown.close_all()
        await self._ended()

    async def abort_all(self, reason: str) -> None:
        """End every session by the ladder, with that cause; bounded."""
        _check_type("reason", reason, str)
        self.stopping.set()
        self._shutdown.stop_all(reason, "host", now=False)
        await self._ended()

    async def _ended(self) -> None:
        """Everything was told to end; the tasks that nobody has taken up end as well."""
        await self._shutdown.all_ended(self._succession.end_work if self.inherited.work else None)
        await self.cleanup.wait_until_done()
        for session in self.registry.sessions.values():  # whose last record was lost
            session.transcript.close()

    # ------------------------------------------------------------------ looking
    def state_of(self, entity_id: str) -> str:
        """The state of a living entity.

        Raises:
            NoSuchEntity: it has ended, or never was.
        """
        return str(self.registry.entity(entity_id).state.value)

    def inspect(self, entity_id: str) -> Inspected:
        """What goes on in a living session, turn, agent, task or tool call: its mailbox, its tasks and their stacks.

        Raises:
            NoSuchEntity: nothing alive has that id.
        """
        return inspect(self.registry, entity_id)

    async def compact(self, retention: Retention | None = None) -> Compacted:
        """Move what ended long ago from the journal to the archive; by default, what the settings do not keep.

        Raises:
            Refused: the journal is not on a disk.
            JournalError: it could not be done, or not to the end; sessions go on.
        """
        if self.upkeep is None:
            raise Refused("this supervisor's journal is not on a disk: there is nothing to compact")
        return await self.upkeep.compact(retention or self.settings.retention.value(), self._living)

    def _living(self) -> list[str]:
        return list(self.registry.entities)

    def rows(self, *, data: bool = True) -> list[EntityRow]:
        """Every living entity, parents first; of a large host, without their *data* for who does not read it."""
        return self.registry.rows(data=data)

    def subscribe(
        self, after_seq: int | None = None
    ) -> AbstractAsyncContextManager[AsyncGenerator[LifecycleEvent, None]]:
        """Durable records as they come; from *after_seq* on, those of the past first. At most 4,096 behind.

        Raises:
            SubscriptionLagged: (while iterating) the subscriber was too slow.
        """
        return self.subscriptions.open(after_seq)

    # ------------------------------------------------------------------ parts
    @property
    def _janitor(self) -> Context:
        ctx = self._system.context(JANITOR)
        assert ctx is not None, "the janitor outlives every session"
        return ctx

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
        self._shutdown.service_failed(error)


def _check_text(field: str, text: str) -> None:
    """Text goes into the journal as UTF-8; half a surrogate pair cannot."""
    _check_type(field, text, str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        words = f"{field}: character {error.start} is half a surrogate pair; give valid Unicode text"
        raise ValueError(words) from None


def _check_type(field: str, value: object, wanted: type) -> None:
    """What is of another type would be found out on its way to the journal, where it ended every session."""
    if not isinstance(value, wanted):
        raise TypeError(f"{field}: {value!r} is no {wanted.__name__}")


def _check_types(wanted: type, **given: object) -> None:
    for field, value in given.items():
        if value is not None:
            _check_type(field, value, wanted)


def _point(urgent: bool, at: DeliveryPoint | str | None) -> DeliveryPoint:
    """When an urgent message is delivered; at once if nobody says otherwise."""
    try:
        point = DeliveryPoint.NOW if at is None else DeliveryPoint(at)
    except ValueError:
        known = ", ".join(DeliveryPoint)
        raise ValueError(f"at: {at!r} is no delivery point of an urgent message; allowed: {known}") from None
    if at is not None and not urgent:
        raise ValueError(f"at: {point} is for urgent messages only; make it urgent, or leave it for the next prompt")
    return point


def _check_name(name: str) -> None:
    _check_type("name", name, str)
    bad = [char for char in name if not (char.isalnum() or char in "._-")]
    if not name or bad or len(name) > 64:
        raise ValueError(f"name: {name!r} cannot be a session's name; use up to 64 letters, digits, '.', '_' and '-'")
