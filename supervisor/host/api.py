"""The supervisor object of an embedding program: starts, finds, aborts and inspects sessions, and answers permissions.

The supervisor object makes no decisions about lifecycles: each call becomes an event in a mailbox, or an abort plan
that is executed. While the journal cannot be written, nothing new begins; terminations go on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import anyio

from supervisor.diagnostics.causal_trace import Explanation, explain
from supervisor.diagnostics.outcomes import EndedSession, ended_sessions
from supervisor.diagnostics.tree_view import Node, tree
from supervisor.diagnostics.visual_state import Inspected
from supervisor.host.factories import clean_env
from supervisor.host.handle import Session
from supervisor.host.journal_services import compact
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, LifecycleEvent, NoSuchEntity, RecordId
from supervisor.plans import BudgetConfig, PolicyConfig, Settings
from supervisor.plans.fields import convert_value
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.access import AccessLevel
from supervisor.policies.argument_checks import check_items, check_text, check_type, check_types
from supervisor.policies.budgets import Amounts, Budget, BudgetScope
from supervisor.policies.liveness import SilentAgent, StallProfileName
from supervisor.policies.permissions import OpenPermission, OptionChoice
from supervisor.policies.usage import UsageTotals
from supervisor.ports import Compacted, JournalError, Launch, McpServer, Reader, Retention, UnidentifiedProcess
from supervisor.ports.agent_profile import AgentFunction
from supervisor.ports.outages import Outage, Shortage
from supervisor.runtime.entity import Refused
from supervisor.sessions.inspection import LiveProcesses, inspect, list_processes
from supervisor.sessions.journal_state import records_of
from supervisor.sessions.mcp_stdio import START_S, McpError, McpResource
from supervisor.sessions.monitor_registry import hosts_scope
from supervisor.sessions.shutdown import ServiceFailed


class Supervisor:
    """A running supervisor, made by :func:`open_supervisor`. Not for use from other threads."""

    def __init__(self, core: SupervisorCore) -> None:
        self.core = core
        """Parts of the supervisor, for the packages of this project. A host does not need them; they may change."""
        self.stopping = core.stopping
        """Event that is set when a drain or a stop has begun. No new root session can begin then."""

    def __repr__(self) -> str:
        where = self.core.state_dir or "in memory"
        state = "stopping" if self.stopping.is_set() else "running"
        return f"<Supervisor {where}, {state}, sessions: {len(self.core.registry.sessions)}>"

    # ------------------------------------------------------------------ sessions
    async def start_session(
        self,
        name: str,
        *,
        agent: str | AgentFunction | None = None,
        parent: str | None = None,
        policy: AbortPolicy | PolicyConfig | Mapping[str, Any] | None = None,
        cancel_mode: CancelMode | str = CancelMode.WAIT_COMPLETED,
        directory: str | None = None,
        budget: Budget | BudgetConfig | Mapping[str, Any] | None = None,
        within: BudgetScope | None = None,
        patience: StallProfileName | str = StallProfileName.DEFAULT,
    ) -> Session:
        """Start a session and wait until its first record is durable. If the name was used before, a number is
        appended.

        If the caller is cancelled meanwhile, the session is ended.

        Args:
            name: id of the session, or the last part of the id below *parent*.
            agent: name of a configured agent, or an async function; by default the parent's.
            parent: id of the session that delegates work to the new one.
            policy: levels that aborts may cross here, as ``AbortPolicy`` or as a mapping, for example
                ``{"tool_to_sibling": True}``; by default the parent's policy, or the policy of the settings.
            cancel_mode: effect of the parent's end on the session (``CancelMode``); only with a parent.
            directory: working directory of the agent, instead of the configured one.
            budget: amounts that the session and all sessions below it may use, as ``Budget`` or as a mapping; by
                default the budget of the settings.
            within: budget scope that contains *budget* (:meth:`scope`); by default the scope of the parent.
            patience: stall profile, which sets the time without a sign of life after which the session counts as stuck.

        Raises:
            ValueError: the name has characters that ids may not have, or is that of a root session and has the form of
                the id of a run (``r1``), or there is no such agent, cancel mode or stall profile.
            TypeError: an argument has a wrong type.
            NoSuchEntity: the parent is not alive.
            Refused: the parent, or the supervisor, is ending. As :class:`Degraded`: the journal cannot be written now.
            JournalError: the journal was lost before the record was durable; the session is ended.
        """
        session_id = await self.core.session_factory.start(
            name,
            agent=agent,
            parent=parent,
            policy=policy,
            cancel_mode=cancel_mode,
            directory=directory,
            budget=budget,
            within=within,
            patience=patience,
        )
        return Session(self.core, session_id)

    def session(self, session_id: str) -> Session:
        """Return a handle for a session, given its id."""
        check_type("session_id", session_id, str)
        return Session(self.core, session_id)

    def sessions(self) -> list[Session]:
        """Return handles for the live sessions, oldest first; sessions taken over from an earlier supervisor are
        included."""
        return [self.session(session_id) for session_id in self.core.registry.sessions]

    @property
    def settings(self) -> Settings:
        """Settings for sessions that start from now on; :func:`reconfigure` replaces them."""
        return self.core.settings

    # ------------------------------------------------------------------ ends
    def plan_abort(self, target: str, scope: AbortScope | str, *, now: bool = False) -> AbortPlan:
        """Return the plan of an abort (the entities that the abort would end), without ending anything; with *now*, the
        plan includes sessions that are terminating.

        Raises:
            NoSuchEntity: no live entity has that id.
            UnknownValue: no abort scope has that name.
            NoSiblings: the abort scope is SIBLING, and *target* is a root session.
        """
        check_type("target", target, str)
        return self.core.aborts.plan(target, scope, now=now)

    async def abort(
        self,
        target: str,
        scope: AbortScope | str,
        *,
        reason: str = "",
        actor: str = "host",
        now: bool = False,
        within_s: float | None = None,
        plan_id: str | None = None,
    ) -> Receipt:
        """Abort everything that the abort scope reaches from *target*, and return a receipt. It is no error if *target*
        has ended.

        Args:
            reason: reason, for the agents and the records.
            actor: name of the person or program that aborts, for the records.
            now: start at the kill stage, also for sessions that an earlier abort is terminating.
            within_s: seconds that the termination may take, if that is less than the stage budgets allow; the earliest
                stages are shortened first.
            plan_id: execute only if the abort is identical to the abort plan with that id.

        Raises:
            NoSuchEntity: no entity has that id, neither a live one nor one that has ended.
            UnknownValue: no abort scope has that name.
            NoSiblings: the abort scope is SIBLING, and *target* is a root session.
            Refused: the abort differs from the abort plan with that id; nothing was ended.
        """
        return await self.core.aborts.abort(
            target, scope, reason=reason, actor=actor, now=now, within_s=within_s, plan_id=plan_id
        )

    async def stop(self, *, now: bool = False, actor: str = "host") -> None:
        """Begin the end of this supervisor: a drain within ``drain_s``; with *now*, or at the second call, an abort of
        every session.

        ``stopping`` is set at once. A drain finishes the turns in progress (with the turns of child sessions that they
        wait for) and begins no other: new sessions, prompts and tasks are refused, prompts that wait behind a turn get
        the result ``aborted``, and a session that waits for its next try gives up. A session that still lives when
        ``drain_s`` is over is stopped. The code in the block of ``open_supervisor`` is not cancelled, unless
        ``stop_cancels_host`` is set there. The supervisor has ended when that block has been left. A daemon ends
        otherwise: it leaves what is open to the next daemon.
        """
        check_type("now", now, bool)
        check_type("actor", actor, str)
        daemon = self.core.daemon
        if daemon is not None and not self.core.background.has_ended:
            daemon.stop(by=actor, now=now)
        else:
            self.core.shutdown.stop(actor, now=now)

    # ------------------------------------------------------------------ budgets
    def scope(
        self,
        scope_id: str,
        title: str,
        budget: Budget | BudgetConfig | Mapping[str, Any],
        parent: BudgetScope | None = None,
    ) -> BudgetScope | None:
        """Return the budget scope with that id, or make a scope below *parent*, for use in :meth:`start_session`.

        Records name the scope ``host:ID``, since a session may have the same id. If *budget* has no limit, *parent* is
        returned.
        """
        check_text("scope_id", scope_id)
        check_text("title", title)
        limits = convert_value("budget", budget, Budget) or Budget()
        check_types(BudgetScope, parent=parent)
        return self.core.monitors.scope(hosts_scope(scope_id), title, limits, parent)

    def close_scope(self, scope_id: str) -> None:
        """Close the budget scope with that id, so that the next :meth:`scope` of the same id starts unused. Unknown ids
        are ignored.

        Sessions that were started within the closed scope still count in the closed scope.
        """
        check_type("scope_id", scope_id, str)
        self.core.monitors.close(hosts_scope(scope_id))

    # ------------------------------------------------------------------ permissions
    def permissions(self) -> list[OpenPermission]:
        """Return the permission requests that wait for a human, oldest first."""
        return self.core.approvals.list_open()

    async def answer(
        self, permission_id: str, *, allow: bool, always: bool = False, because: str = "", by: str = "host"
    ) -> OptionChoice:
        """Answer a permission request that waits for a human. Return, once the answer is durable, the option of the
        agent that was chosen. A cancellation of the caller does not withdraw the answer.

        Args:
            always: give the same answer each time that the agent repeats the request in its session.
            because: reason, for the record.
            by: name of the person or program that answers, for the record.

        Raises:
            Refused: the request does not wait for an answer, or the agent offers no such answer. As :class:`Degraded`:
                the journal cannot be written now.
            TypeError: *allow* is no bool.
        """
        check_type("permission_id", permission_id, str)
        check_type("allow", allow, bool)
        check_type("always", always, bool)
        check_text("because", because)
        check_text("by", by)
        self.core.registry.check_disk(f"an answer to {permission_id}")
        return await self.core.background.run_to_completion(
            lambda: self.core.approvals.answer(permission_id, allow=allow, always=always, because=because, by=by),
            f"answer {permission_id}",
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
        """Run a stdio MCP server for as long as a session lives; return when the server has replied to ``initialize``.
        If the caller is cancelled before that, the server is ended.

        Args:
            name: name of the server in the records.
            command: argv of the server.
            env: environment variables of the server, added to a clean environment.
            start_s: seconds that each start may take until the server has replied to ``initialize``.

        Raises:
            NoSuchEntity: the session has ended.
            Refused: the session is ending. As :class:`Degraded`: the journal cannot be written now.
            McpError: the server could not be started, or did not reply in time, and was given up.
        """
        check_type("session_id", session_id, str)
        check_text("name", name)
        check_items("command", command, str)
        check_types(Mapping, env=env)
        check_type("start_s", start_s, int, float)
        session, ctx = self.core.registry.session(session_id), self.core.registry.system.context(session_id)
        self.core.registry.check_disk(f"an MCP server for {session_id}")
        server = McpServer(name=name, command=tuple(command), env=dict(env or {}))
        self.core.setups.hide_values([server.env])
        launch = Launch(
            argv=server.command, cwd=session.directory, env={**clean_env(), **server.env}, session=session_id
        )
        resource = McpResource(self.core.registry, self.core.processes, session, server, launch, start_s)
        if ctx is None or session.is_stopping:
            raise Refused(f"{session_id} is ending: server {name!r} is not started")
        resource.begin(ctx)
        try:
            await resource.settled.wait()
        except anyio.get_cancelled_exc_class():
            resource.give_up("the caller that started it was cancelled")
            raise
        if resource.given_up:
            raise McpError(f"{name}: {resource.given_up}")
        return resource

    # ------------------------------------------------------------------ queries
    def tree(self) -> tuple[Node, ...]:
        """Return the live entities, as ``supervisor tree`` shows them: root nodes with the nodes below them."""
        return tree(self.core.registry.rows())

    def inspect(self, entity_id: str) -> Inspected:
        """Return state, mailbox and asynchronous tasks with their stacks of a live session, turn, agent, task or tool
        call.

        Raises:
            NoSuchEntity: no live entity has that id.
        """
        check_type("entity_id", entity_id, str)
        return inspect(self.core.registry, entity_id)

    async def processes(self, session_id: str | None = None) -> LiveProcesses:
        """Return the processes of every live session, or of one session and the sessions below it, each with the open
        calls that it belongs to, or may belong to. The processes are those of this moment: they come and go.

        Raises:
            NoSuchEntity: no live session has that id.
        """
        check_types(str, session_id=session_id)
        return await list_processes(self.core.registry, session_id)

    async def ended_sessions(self, *, archived: bool = False) -> list[EndedSession]:
        """Return the sessions of the journal that have ended, those of earlier supervisors included, in the order in
        which they ended; with *archived*, the sessions in archives, too.

        Raises:
            JournalError: the journal cannot be read.
        """
        check_type("archived", archived, bool)

        def read() -> list[EndedSession]:
            with self.reader() as reader:
                return ended_sessions(reader.entities(archived=archived))

        return await anyio.to_thread.run_sync(read)

    async def why(self, entity_id: str) -> Explanation:
        """Return the causes of the last change of a session, turn, agent, tool call, task (``r1#fix``) or run, as
        ``supervisor why`` does, also long after its end.

        Raises:
            NoSuchEntity: no record is about *entity_id*.
            JournalError: the journal cannot be read.
        """
        check_type("entity_id", entity_id, str)

        def read() -> Explanation | None:
            with self.reader() as reader:
                return explain(reader, entity_id)

        if (explanation := await anyio.to_thread.run_sync(read)) is None:
            raise NoSuchEntity(entity_id)
        return explanation

    async def usage(self) -> Mapping[str, Amounts]:
        """Return the amounts used (tokens, money, turns) by the id of each session, turn, task and run, whether or not
        it has ended; an amount includes everything below the entity.

        Raises:
            JournalError: the journal cannot be read.
        """
        return UsageTotals(await records_of(self.core.journal)).sums()

    def stalls(self) -> list[SilentAgent]:
        """Return the agents at work that make no progress, those that have been silent for longest first: the snapshots
        without progress, the action taken against each, and the next one."""
        return self.core.monitors.silences()

    def access_levels(self) -> list[AccessLevel]:
        """Return the trust level of each agent, by name, and what it permits; none without graduated access (``access``
        in the settings)."""
        return self.core.trust.levels()

    def subscribe(
        self, after_seq: RecordId | None = None
    ) -> AbstractAsyncContextManager[AsyncGenerator[LifecycleEvent, None]]:
        """Subscribe to durable records; with *after_seq*, past records with a higher number come first.

        Raises:
            SubscriptionLagged: (while iterating) the subscriber was more than 4,096 records behind.
        """
        check_types(int, after_seq=after_seq)
        return self.core.subscriptions.open(after_seq)

    def reader(self) -> AbstractContextManager[Reader]:
        """Return read access to the journal, archives included, as a context manager.

        Raises:
            JournalError: the journal cannot be opened for reading.
        """
        return self.core.journal.reader(self.core.subscriptions.follow)

    async def compact(self, retention: Retention | None = None) -> Compacted:
        """Move entities that ended long ago from the journal to the archive; by default, the entities that the
        settings' retention does not keep.

        Raises:
            Refused: the journal is not on a disk.
            JournalError: the compaction failed, maybe in part; sessions go on.
        """
        check_types(Retention, retention=retention)
        return await compact(self.core, retention)

    def reload_tokens(self) -> bool:
        """Read the token file of the HTTP API again, and return whether there is one. From then on the removed tokens
        are not valid: who follows the events with one of them is disconnected.

        Raises:
            BadHttpOptions: the file cannot be used; the tokens stay as they were.
        """
        if self.core.read_tokens_again is None:
            return False
        self.core.read_tokens_again()
        return True

    # ------------------------------------------------------------------ the journal
    @property
    def outage(self) -> Outage | None:
        """The reason why the journal cannot be written now, and the time since when; ``None`` while it can be
        written."""
        return self.core.journal_writer.disk.outage

    @property
    def shortage(self) -> Shortage | None:
        """The resource, such as file descriptors, whose shortage prevents the start of programs now; ``None`` if there
        is none."""
        return self.core.processes.shortage

    @property
    def unidentified(self) -> tuple[UnidentifiedProcess, ...]:
        """The running processes of unknown origin, which may have escaped from an agent that has killed its shim and
        the fork server, or be the user's. They may only read, and are never killed."""
        return self.core.unidentified()

    async def degraded(self) -> Outage:
        """Wait until the journal cannot be written, and return the outage; return at once while it cannot."""
        return await self.core.journal_writer.disk.wait_down()

    async def recovered(self) -> None:
        """Wait until the journal can be written again, or this supervisor is ending."""
        await self.core.shutdown.wait_writable()

    @property
    def failure(self) -> JournalError | ServiceFailed | None:
        """The error that ended every session, ``None`` if there was none. Either the journal is lost, or a service
        crashed too often."""
        return self.core.shutdown.error
