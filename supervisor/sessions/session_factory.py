"""Creation of sessions: id, rights, policy, budget, and the first record of each; and of child sessions for agents that
delegate work.

A session is added to the registry before its entity exists, so that policy, transcript and monitor of the session are
available when the entity handles its first event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import msgspec

from actors import ActorError
from supervisor.journal.transcript import RedactingTranscript
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.run_ids import is_run_id
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.session_data import SessionData
from supervisor.lifecycles.types import AbortPolicy, CancelMode, InvalidArgument, NoSuchEntity, choice_of
from supervisor.plans import BudgetConfig, PolicyConfig
from supervisor.plans.fields import convert_value
from supervisor.policies.access import intersect_rights
from supervisor.policies.argument_checks import check_agent_function, check_name, check_text, check_type, check_types
from supervisor.policies.budgets import Budget, BudgetScope
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.redaction import encodable
from supervisor.ports import NO_WORKSPACE, JournalError, Outcome, TranscriptSink, WorkspaceSpec
from supervisor.ports.agent_profile import AgentFunction, AgentProfile
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import HOST, Cause
from supervisor.sessions.abort_service import AbortService
from supervisor.sessions.journal_state import PLACED
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.monitor_registry import NO_GRANT, BudgetGrant, MonitorRegistry
from supervisor.sessions.pending_requests import PendingRequests
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.services import SessionServices
from supervisor.sessions.session import SessionEntity
from supervisor.sessions.shutdown import Shutdown
from supervisor.sessions.trust_scores import Trust
from supervisor.sessions.workspace_cleanup import WorkspaceCleanup

ID_MAX: Final = 200
"""Maximal number of characters of a session's id; in a longer id the middle of the path is left out: delegation may be
thousands of levels deep."""


class SessionFactory:
    """Creates the sessions of one supervisor.

    Args:
        transcript_of: function that opens the transcript of a session, given its id.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        services: SessionServices,
        monitors: MonitorRegistry,
        cleanup: WorkspaceCleanup,
        trust: Trust,
        requests: PendingRequests,
        shutdown: Shutdown,
        aborts: AbortService,
        transcript_of: Callable[[str], TranscriptSink],
    ) -> None:
        self._registry = registry
        self._services = services
        self._monitors = monitors
        self._cleanup = cleanup
        self._trust = trust
        self._requests = requests
        self._shutdown = shutdown
        self._aborts = aborts
        self._transcript_of = transcript_of

    # ------------------------------------------------------------------ start
    async def start(
        self,
        name: str,
        *,
        agent: str | AgentFunction | None = None,
        parent: str | None = None,
        policy: AbortPolicy | PolicyConfig | Mapping[str, Any] | None = None,
        cancel_mode: CancelMode | str = CancelMode.WAIT_COMPLETED,
        directory: str | None = None,
        cause: Cause = HOST,
        budget: Budget | BudgetConfig | Mapping[str, Any] | None = None,
        within: BudgetScope | None = None,
        patience: StallProfileName | str = StallProfileName.DEFAULT,
        workspace_spec: WorkspaceSpec = NO_WORKSPACE,
        plan_run: str = "",
    ) -> str:
        """Start a session, and return its id; implements ``Supervisor.start_session``, where the other arguments are
        described.

        Args:
            cause: record, and actor, that the start follows from.
            workspace_spec: workspace wanted for the session.
            plan_run: run of a plan that the session belongs to, if it has no parent.
        """
        check_name(name)
        check_types(str, parent=parent, directory=directory)
        mode = choice_of(CancelMode, "cancel_mode", cancel_mode)
        if parent is None and mode is not CancelMode.WAIT_COMPLETED:
            raise InvalidArgument(
                f"cancel_mode: session {name!r} has no parent whose end could mean {mode} to it; leave it out"
            )
        profile = self._profile_of(agent, parent, plan_run)
        if directory is not None:
            profile = msgspec.structs.replace(profile, directory=directory)
        own_policy, own_budget = convert_value("policy", policy, AbortPolicy), convert_value("budget", budget, Budget)
        check_types(BudgetScope, within=within)
        check_type("cause", cause, Cause)
        check_type("workspace_spec", workspace_spec, WorkspaceSpec)
        if parent is not None or not self._shutdown.begun.is_set():
            self._registry.check_disk(f"session {name!r}")
        allowance = BudgetGrant(own_budget, within, choice_of(StallProfileName, "patience", patience))
        session_id = self._create(
            name, profile, parent, own_policy, None, cause, mode, allowance, workspace_spec, plan_run
        )
        try:
            await self._registry.journal_writer.flush()
        except anyio.get_cancelled_exc_class():
            withdrawn = OperatorStop(reason="the caller that started it was cancelled", abort_reason="user_interrupt")
            if (created := self._registry.sessions.get(session_id)) is not None:
                created.request_stop(withdrawn, cause=cause)
            raise
        return session_id

    def delegate(
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
        ctx = self._services.background.context
        check_text("prompt", prompt)
        try:
            profile = self._profile_of(agent, session.session_id, "")
            child_id = self._create(name, profile, session.session_id, None, started_by, cause, mode)
        except (Refused, NoSuchEntity) as error:
            answer(Outcome("failed", str(error), ""))
            return
        ctx.start_task(self._run_child, child_id, prompt, answer, cause, name=f"child {child_id}")

    async def _run_child(self, child_id: str, prompt: str, answer: Callable[[Outcome], None], cause: Cause) -> None:
        """Prompt the child session, and pass the outcome to the delegating agent exactly once, also if this task is
        cancelled."""
        outcome = Outcome("aborted", "its child session was lost", "")
        try:
            outcome = await self._requests.outcome_of(child_id, prompt, cause)
        except (NoSuchEntity, Refused, ActorError, JournalError) as error:
            outcome = Outcome("aborted", str(error), "")
        finally:
            answer(outcome)
        done = Cause(outcome.seq, None, child_id)
        await self._aborts.close_session(child_id, reason="its work is done", cause=done)

    # ------------------------------------------------------------------ creation
    def _profile_of(self, agent: str | AgentFunction | None, parent: str | None, plan_run: str) -> AgentProfile:
        """Return the profile of *agent*: the name of an agent of the run of the session *parent*, or of *plan_run*; an
        async function; or ``None`` for the agent of *parent*.

        Raises:
            InvalidArgument: there is no such agent, or neither an agent nor a parent is given.
            TypeError: *agent* is neither a name nor a function that can be an in-process agent.
            NoSuchEntity: the parent is not alive.
        """
        above = self._registry.session(parent) if parent is not None else None
        if agent is None and above is not None:
            return above.profile
        if agent is None:
            raise InvalidArgument("agent: missing; name a configured agent or give an async function")
        if not isinstance(agent, str):
            check_agent_function("agent", agent)
            name = encodable(getattr(agent, "__name__", "function"))
            return AgentProfile(name=name, adapter="inprocess", function=agent)
        agents = self._services.setups.of(above.plan_run if above is not None else plan_run).agents
        if agent not in agents:
            known = ", ".join(sorted(agents)) or "none, since the supervisor was given no agents"
            fix = "agents are given to open_supervisor(agents=...), or in the configuration of a daemon"
            raise InvalidArgument(f"agent: no agent is named {agent!r}; known: {known}; {fix}")
        return agents[agent]

    def _create(
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
        plan_run: str = "",
    ) -> str:
        """Create a session and return its id; its first record may not be durable yet.

        Args:
            policy: abort policy; ``None``: the policy of the parent, or of the settings.
            started_by: id of the tool call that requests the session.
            plan_run: run of a plan that the session belongs to, if it has no parent.

        Raises:
            ValueError: the name has characters that ids may not have, or that of a root session has the form of the id
                of a run.
            NoSuchEntity: the parent is not alive.
            Refused: the parent, the supervisor or the call is ending.
        """
        check_name(name)
        if parent is None and is_run_id(name):
            raise InvalidArgument(f"name: {name!r} has the form of the id of a plan's run; use another name")
        above = self._registry.session(parent) if parent is not None else None
        settings = self._services.setups.of(above.plan_run if above is not None else plan_run).settings
        if above is not None and above.is_stopping:
            raise Refused(f"session {name!r} is not started: its parent {parent} is ending")
        if started_by is not None and not self._registry.is_open(started_by):
            raise Refused(f"session {name!r} is not started: the call {started_by} that asks for it is over")
        if self._shutdown.now.is_set() or (self._shutdown.begun.is_set() and above is None):
            raise Refused(f"session {name!r} is not started: the supervisor is ending")
        session_id = self._registry.names.new(name) if above is None else self._child_id(above, name)
        inherited = above.policy if above is not None else settings.abort_policy
        data = SessionData(id=session_id, agent=profile.name, limits=settings.limits.value(), one_shot=profile.one_shot)
        session = self.admit(data, Session.INITIALIZING, above, profile, policy or inherited, started_by, mode)
        session.workspace_spec = workspace_spec
        session.plan_run = plan_run if above is None else above.plan_run
        self._monitors.start_monitor(session, settings.monitor_settings, allowance)
        try:
            self._registry.add_entity(
                session,
                cause=cause,
                home=above.root_id if above is not None else None,
                contained=above is not None and mode is CancelMode.WAIT_COMPLETED,
            )
        except ActorError as error:
            self._registry.remove_session(session)
            raise Refused(f"session {name!r} is not started: {error}") from error
        if mode is not CancelMode.WAIT_COMPLETED or policy not in (None, inherited) or workspace_spec != NO_WORKSPACE:
            placed = {
                "mode": mode.value,
                "policy": msgspec.to_builtins(policy),
                "place": msgspec.to_builtins(workspace_spec),
            }
            self._registry.record_fact(session_id, PLACED, cause, placed)
        self._monitors.note_budget(session, allowance, cause)
        return session_id

    def admit(
        self,
        data: SessionData,
        state: Session,
        above: LiveSession | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        mode: CancelMode,
    ) -> SessionEntity:
        """Add a session, new or recovered, to the registry; *above* is the session's parent."""
        journal_writer = self._registry.journal_writer
        session = SessionEntity(
            self._services,
            data,
            state=state,
            parent=above,
            profile=profile,
            policy=policy,
            started_by=started_by,
            transcript=RedactingTranscript(self._transcript_of(data.id), lambda: journal_writer.redactor),
            mode=mode,
        )
        session.rights = intersect_rights(above.rights if above is not None else None, self._trust.rights(profile.name))
        self._registry.add_session(session)
        self._cleanup.remove_after(session)
        return session

    def _child_id(self, above: LiveSession, name: str) -> str:
        """Return the id of a child session: its path, or ``root/~/name`` if the path is too long to be written in every
        record."""
        path = f"{above.session_id}/{name}"
        if len(path) <= ID_MAX:
            return self._registry.names.new(path, below=above.session_id)
        return self._registry.names.new(f"{above.root_id}/~/{name}", below=above.root_id)
