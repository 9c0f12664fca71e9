"""The supervisor that a host holds: sessions are started, prompted, told, aborted, looked at, and ended through it.

It decides nothing about lifecycles: every wish becomes an event in a mailbox, or a plan that is carried out. It knows
how everything ends: a drain finishes what was asked for, an abort climbs the ladder, a journal that is lost ends it
all. While its disk is down nothing new begins, and ends go on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import assert_never

import anyio
import msgspec

from actors import (
    Abandoned,
    ActorCrashed,
    ActorError,
    ActorSystem,
    CancelSwallowed,
    Context,
    DeadLetter,
    GraceExceeded,
    KernelEvent,
    Lane,
    Paused,
    Poisoned,
    fault,
)
from actors.waiting import any_of
from supervisor.abort import AbortPlan, Receipt
from supervisor.aborts import Aborts
from supervisor.access import narrowed
from supervisor.adapters.catalogue import codec_for
from supervisor.adapters.mcp_stdio import START_S, McpError, McpResource
from supervisor.budgets import Amounts, Budget, Scope
from supervisor.clean_transcript import CleanTranscript
from supervisor.entity import Degraded, Entity, Refused
from supervisor.equipment import LinkMaker, clean_env
from supervisor.handle import Session, TurnResult
from supervisor.hands import Hands
from supervisor.inheritance import LOST, PLACED
from supervisor.inspecting import inspect
from supervisor.janitor import Janitor
from supervisor.kinds import SESSION_KIND
from supervisor.ladder import SLACK_S, Endings
from supervisor.ledger import Cause, Clock, Ledger, Owed
from supervisor.lifecycles.events import FatalError, MessageReceived, OperatorStop, TurnRequested, UrgentMessage
from supervisor.lifecycles.session import Request, SessionData
from supervisor.lifecycles.session import Session as SessionState
from supervisor.liveness import Patience
from supervisor.logs import conceal, get_logger
from supervisor.moments import Moment, first_of
from supervisor.names import Names
from supervisor.outage import Outage
from supervisor.overseer import NO_ALLOWANCE, Allowance, Overseer
from supervisor.parts import Parts
from supervisor.permission_desk import OnPermission, PermissionDesk
from supervisor.permissions import Choice, OpenPermission
from supervisor.plans import Settings
from supervisor.plugins import Plugins
from supervisor.ports import NO_PLACE, Compacted, EntityRow, JournalError, Launch, McpServer, Place, Retention
from supervisor.projection import Inspected
from supervisor.recovery import Recovered
from supervisor.redaction import Redactor
from supervisor.subscriptions import Subscriptions
from supervisor.succession import Choose, Inherited, Succession
from supervisor.tree import END_S, Tree
from supervisor.trust import Trust
from supervisor.vocabulary import (
    USUAL_TIME,
    AbortPolicy,
    AbortScope,
    CancelMode,
    DeliveryPoint,
    LifecycleEvent,
    TimeLimit,
)
from supervisor.work import AgentFunction, AgentProfile, NoSuchEntity, Outcome, Work

__all__ = ["LAST_RECORDS_S", "Choose", "Inherited", "Session", "Supervisor", "TurnResult"]

_log = get_logger()

JANITOR = ":janitor"
"""An id that no session can have."""
ID_MAX = 200
"""Characters of a session's id, before the middle of its path is left out: delegation may be thousands deep."""
HOST = Cause(actor="host")
KERNEL = Cause(actor="kernel")
"""Who says that an actor of ours has crashed."""
LAST_RECORDS_S = 10.0
"""How long the end of a supervisor waits for the disk, once everything else has ended."""


class Supervisor:
    """A running supervisor. Made by :func:`open_supervisor`; not for use from other threads."""

    def __init__(
        self,
        *,
        system: ActorSystem,
        parts: Parts,
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
        self.upkeep = parts.upkeep
        self.workdir = parts.workdir
        self.state_dir = parts.state_dir
        self._waiting: dict[str, Callable[[Outcome], None]] = {}
        self.subscriptions = Subscriptions(journal)
        self._messages = 0
        self._runs = 0
        self._drains = False
        self._answer_given = anyio.Event()
        self._failed = Moment()
        self.stopping = anyio.Event()
        self.stop_now = anyio.Event()
        self.failure: JournalError | None = None
        self.ledger = Ledger(
            journal,
            Clock(parts.wall, from_s),
            perform=self._perform,
            publish=self._publish if plugins.listens else self.subscriptions.publish,
            failed=self._journal_failed,
        )
        self._environments: list[Mapping[str, str]] = []
        self.trust = Trust(self.ledger.clock, self._note_standing)
        self.configure(agents, settings)
        self.tree = Tree(system, self.ledger, Names(taken))
        self._aborts = Aborts(self.tree, journal, self._over)
        self.overseer = Overseer(self.tree, self._aborts.order)
        self._endings = Endings(self.tree, JANITOR)
        make_link = LinkMaker(
            self.tree,
            self._delegate,
            parts.processes,
            parts.files,
            lambda profile: codec_for(
                profile.adapter, plugins.adapters, wishes=profile.wishes, mapping=profile.mapping
            ),
        )
        self.janitor = Janitor(self.tree, JANITOR, parts.processes, parts.workspace, plugins.verified)
        self._desk = PermissionDesk(self.tree, lambda: self._janitor, on_permission)
        self._hands = Hands(self.tree, JANITOR, self._endings, make_link, parts.workspace, self._answered, self._desk)
        self._succession = Succession(
            self.tree,
            journal,
            self._hands,
            self._endings,
            admit=self._admit,
            ended=self._ended,
            revived=lambda work, past: self.overseer.revive(work, self.settings.oversight, past.budget),
        )
        system.spawn(self._endings, JANITOR, shutdown_s=END_S)
        system.on_event = self._kernel_event

    def configure(self, agents: Mapping[str, AgentProfile], settings: Settings) -> None:
        """Other agents and settings for every session that starts from now on. Secrets of the former stay secrets."""
        self._agents, self.settings = dict(agents), settings
        self.trust.policy = settings.access.value() if settings.access is not None else None
        self._environments += [profile.env for profile in agents.values()]
        servers = [one for profile in agents.values() for one in profile.wishes.mcp_servers]
        self._environments += [secrets for one in servers for secrets in (one.env, one.headers)]
        self.ledger.redactor = Redactor(self._environments)
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
        within: Scope | None = None,
        patience: Patience = Patience.DEFAULT,
        place: Place = NO_PLACE,
    ) -> Session:
        """Start a session and wait until its first record is durable. A name that was used gets a number.

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
            place: what is asked of the place where it works.

        Raises:
            ValueError: the name has characters that ids may not have, or there is no such agent or cancel mode.
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
        if parent is not None or not self.stopping.is_set():
            self._check_disk(f"session {name!r}")
        allowance = Allowance(budget, within, patience)
        session_id = self._start(name, profile, parent, policy, None, cause, mode, allowance, place)
        await self.ledger.flush()
        return Session(self, session_id)

    @property
    def outage(self) -> Outage | None:
        """Why the journal cannot be written now, and since when; ``None`` while it can."""
        return self.ledger.disk.outage

    async def degraded(self) -> Outage:
        """Wait until the journal cannot be written; at once while it cannot."""
        while (outage := self.outage) is None:
            await self.ledger.disk.down.wait()
        return outage

    async def journal_lost(self) -> JournalError:
        """Wait until the journal has failed for good; how."""
        await self._failed.wait()
        assert self.failure is not None, "that is what it waits for"
        return self.failure

    async def recovered(self) -> None:
        """Wait until the journal can be written again, or this supervisor is ending."""
        while self.outage is not None and not self.stopping.is_set():
            await any_of(self.ledger.disk.up, self.stopping)

    def _check_disk(self, what: str) -> None:
        if self.outage is not None:
            raise Degraded(what, self.outage)

    def session(self, session_id: str) -> Session:
        """A handle on a session by its id."""
        return Session(self, session_id)

    def sessions(self) -> list[Session]:
        """The sessions that are alive, oldest first: also those of an earlier supervisor that go on."""
        return [Session(self, session_id) for session_id in self.tree.works]

    async def result_of(self, session_id: str) -> TurnResult | None:
        """How the last prompt ends that a session has, whoever asked for it; ``None`` if it has none."""
        outcome = await self.last_outcome(session_id)
        return None if outcome is None else TurnResult(*outcome[:4])

    def profile(self, name: str) -> AgentProfile | None:
        """The configured agent of that name."""
        return self._agents.get(name)

    def _profile(self, agent: str | AgentFunction | None, parent: str | None) -> AgentProfile:
        if agent is None and parent is not None:
            return self._work(parent).profile
        if isinstance(agent, str):
            profile = self._agents.get(agent)
            if profile is None:
                known = ", ".join(sorted(self._agents)) or "none"
                raise ValueError(f"agent: no agent is named {agent!r}; known: {known}")
            return profile
        if agent is None:
            raise ValueError("agent: missing; name a configured agent or give an async function")
        return AgentProfile(name=getattr(agent, "__name__", "function"), adapter="inprocess", function=agent)

    def _work(self, session_id: str) -> Work:
        work = self.tree.works.get(session_id)
        if work is None:
            raise NoSuchEntity(session_id)
        return work

    def _start(
        self,
        name: str,
        profile: AgentProfile,
        parent: str | None,
        policy: AbortPolicy | None,
        started_by: str | None,
        cause: Cause,
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
        allowance: Allowance = NO_ALLOWANCE,
        place: Place = NO_PLACE,
    ) -> str:
        _check_name(name)
        above = self._work(parent) if parent is not None else None
        if above is not None and (above.ending or above.told):
            raise Refused(f"session {name!r} is not started: its parent {parent} is ending")
        if started_by is not None and not self.tree.is_open(started_by):
            raise Refused(f"session {name!r} is not started: the call {started_by} that asks for it is over")
        if self.stop_now.is_set() or (self.stopping.is_set() and above is None):
            raise Refused(f"session {name!r} is not started: the supervisor is ending")
        session_id = self.tree.names.new(name) if above is None else self._child_id(above, name)
        contained = above is not None and mode is CancelMode.WAIT_COMPLETED
        inherited = above.policy if above is not None else self.settings.policy.value()
        work = self._admit(session_id, above, profile, policy or inherited, started_by, mode)
        work.place = place
        self.overseer.oversee(work, self.settings.oversight, allowance)
        data = SessionData(id=session_id, agent=profile.name, limits=self.settings.limits.value())
        try:
            self.tree.birth(
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
            self.tree.dismiss(work)
            raise Refused(f"session {name!r} is not started: {error}") from error
        if mode is not CancelMode.WAIT_COMPLETED or policy not in (None, inherited) or place != NO_PLACE:
            placed = {"mode": mode.value, "policy": msgspec.to_builtins(policy), "place": msgspec.to_builtins(place)}
            self.tree.note(session_id, PLACED, cause, placed)
        self.overseer.note_budget(work, cause)
        return session_id

    def _admit(
        self,
        session_id: str,
        above: Work | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        mode: CancelMode,
    ) -> Work:
        work = Work(
            self.tree,
            session_id=session_id,
            parent=above,
            profile=profile,
            policy=policy,
            started_by=started_by,
            transcript=CleanTranscript(self._transcript_of(session_id), self.ledger),
            mode=mode,
        )
        work.rights = narrowed(above.rights if above is not None else None, self.trust.rights(profile.name))
        self.tree.admit(work)
        self.janitor.follow(work)
        return work

    def _note_standing(self, task_id: str, name: str, cause: Cause, told: dict[str, object], reason: str) -> None:
        self.tree.note(task_id, name, cause, told, reason=reason)

    def _child_id(self, above: Work, name: str) -> str:
        """Its path, or ``root/~/name`` where that would be too long to be written in every record."""
        path = f"{above.session_id}/{name}"
        if len(path) <= ID_MAX:
            return self.tree.names.new(path, below=above.session_id)
        return self.tree.names.new(f"{above.root_id}/~/{name}", below=above.root_id)

    def new_run(self) -> str:
        """A name for a run of a plan that no other one has in this journal."""
        self._runs += 1
        return f"{self.journal.generation}.{self._runs}"

    def new_id(self, wanted: str) -> str:
        """An id for an entity that is not a session; numbered if it was used in this journal."""
        return self.tree.names.new(wanted)

    # ------------------------------------------------------------------ budgets
    def scope(self, scope_id: str, title: str, budget: Budget, parent: Scope | None = None) -> Scope | None:
        """A budget that sessions can be started *within*: the one of that id, or a new one below *parent*.

        Returns:
            The scope; *parent*, where *budget* bounds nothing.
        """
        return self.overseer.scope(scope_id, title, budget, parent)

    def left_of(self, session_id: str) -> Budget:
        """What a session may still use; ``None`` where nothing bounds it.

        Raises:
            NoSuchEntity: it has ended.
        """
        return self.overseer.left_of(self._work(session_id))

    def used_by(self, session_id: str) -> Amounts:
        """What the agents of a session have used so far, without those of its child sessions.

        Raises:
            NoSuchEntity: it has ended.
        """
        return self.overseer.used_by(self._work(session_id))

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
        for session_id in recovered.resumed:
            self._see_child_out(session_id)
        return recovered

    @property
    def inherited(self) -> Inherited:
        """What an earlier supervisor left of its plans."""
        return self._succession.left

    def _see_child_out(self, session_id: str) -> None:
        """A child session that was delegated is closed when its prompts are answered: who asked for it is gone."""
        work, ctx = self.tree.works.get(session_id), self._system.context(JANITOR)
        if work is not None and work.started_by is not None and ctx is not None:
            ctx.start_task(self._close_answered, session_id, name=f"child {session_id}")

    async def _close_answered(self, session_id: str) -> None:
        outcome = await self.last_outcome(session_id)
        cause = Cause(outcome.seq if outcome is not None else None, None, "recovery")
        with suppress(JournalError):
            await self.close_session(session_id, reason="its work is done", cause=cause)

    async def last_outcome(self, session_id: str, *, once: bool = False) -> Outcome | None:
        """How the last prompt ends that a session has, whoever asked for it (with *once*: of those that plans ask for);
        ``None`` if it has none. Of one that was asked of an earlier supervisor, also after it has ended."""
        waiting = [one for one in _asked_of(self.tree.entities.get(session_id)) if one.once or not once]
        if not waiting:
            if session_id in self._succession.unheard:
                with suppress(JournalError):
                    await self.ledger.flush()  # the record of its answer may be on its way
            return self._succession.unheard.get(session_id)
        answered, outcomes = anyio.Event(), list[Outcome]()
        request_id, before = waiting[-1].id, self._waiting.get(waiting[-1].id)

        def answer(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()
            if before is not None:
                before(outcome)

        self._waiting[request_id] = answer
        await answered.wait()
        return outcomes[0]

    # ------------------------------------------------------------------ prompts and messages
    async def request(self, session_id: str, prompt: str) -> TurnResult:
        """Have a session work on *prompt*; how that ended.

        Raises:
            NoSuchEntity: there is no such session.
            Refused: the session has ended. As :class:`Degraded`: the journal cannot be written now.
        """
        self._work(session_id)
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
        answered = anyio.Event()
        outcomes: list[Outcome] = []

        def answer(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        await self._request(session_id, prompt, answer, cause, once=once, limit=limit)
        await answered.wait()
        return outcomes[0]

    async def _request(
        self,
        session_id: str,
        prompt: str,
        answer: Callable[[Outcome], None],
        cause: Cause,
        *,
        once: bool = False,
        limit: TimeLimit = USUAL_TIME,
    ) -> None:
        work = self._work(session_id)
        _check_text("prompt", prompt)
        data: SessionData = self.tree.entity(session_id).data
        has = {one.id for one in (*data.queue, data.current) if one is not None}
        await self._check_waiting(session_id, "prompts", len(data.queue) + len(work.asking.keys() - has))
        work.requests += 1
        self._succession.unheard.pop(session_id, None)
        request_id = f"{session_id}:r{work.requests}"
        self._waiting[request_id] = answer
        work.asking[request_id] = None
        try:
            requested = TurnRequested(request_id=request_id, prompt=prompt, once=once, **limit._asdict())
            await self.tree.post(session_id, requested, cause=cause)
        except BaseException:
            self._waiting.pop(request_id, None)
            raise
        finally:
            del work.asking[request_id]

    async def _check_waiting(self, session_id: str, what: str, waiting: int) -> None:
        """Push back; whoever tries again and again does not keep the loop either."""
        most = self.settings.limits.waiting_max
        if waiting >= most or fault.point("session.full", session_id):
            await anyio.lowlevel.checkpoint()
            words = f"{session_id} has {waiting} {what} waiting already (limits.waiting_max); wait until it takes some"
            raise Refused(words)

    def _answered(self, request_id: str, outcome: Outcome) -> None:
        answer = self._waiting.pop(request_id, None)
        if answer is not None:
            answer(outcome)
        session_id = request_id.rpartition(":r")[0]
        if session_id in self._succession.unheard:
            self._succession.unheard[session_id] = outcome
        self._answer_given.set()
        self._answer_given = anyio.Event()

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
        work = self._work(session_id)
        _check_text("text", text)
        self._check_disk(f"a message for {session_id}")
        has = {one.id for one in self.tree.entity(session_id).data.inbox}
        await self._check_waiting(session_id, "messages", len(has | work.sending.keys()))
        self._messages += 1
        message_id = f"m{self.journal.generation}.{self._messages}"
        event: UrgentMessage | MessageReceived
        if urgent:
            steer = work.link is not None and work.link.steers
            event = UrgentMessage(message_id=message_id, sender=sender, text=text, point=point, steer=steer)
        else:
            event = MessageReceived(message_id=message_id, sender=sender, text=text)
        lane = Lane.URGENT if urgent else Lane.NORMAL
        work.sending[message_id] = None
        try:
            await self.tree.post(session_id, event, cause=Cause(actor=sender), lane=lane)
        finally:
            del work.sending[message_id]
        return message_id

    # ------------------------------------------------------------------ permissions
    def permissions(self) -> list[OpenPermission]:
        """The permissions that wait for a human, oldest first."""
        return self._desk.listed()

    async def answer(
        self, permission_id: str, *, allow: bool, always: bool = False, because: str = "", by: str = "host"
    ) -> Choice:
        """Answer a permission that waits for a human. The answer is durable, and the agent is about to be told.

        Args:
            always: as often as the agent asks for the same again in its session.
            because: why, for the record.
            by: who says so.

        Returns:
            Which of the agent's options was chosen.

        Raises:
            Refused: it does not wait for an answer, or not any more; or the agent offers no such answer. As
                :class:`Degraded`: the journal cannot be written now.
        """
        _check_text("because", because)
        self._check_disk(f"an answer to {permission_id}")
        return await self._desk.answer(permission_id, allow=allow, always=always, because=because, by=by)

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
        """Have a stdio MCP server for as long as a session lives; it is there when this returns.

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
        work, ctx = self._work(session_id), self._system.context(session_id)
        self._check_disk(f"an MCP server for {session_id}")
        server = McpServer(name=name, command=tuple(command), env=dict(env or {}))
        self._environments.append(server.env)
        self.ledger.redactor = Redactor(self._environments)
        conceal(self._environments)
        launch = Launch(argv=server.command, cwd=work.directory, env={**clean_env(), **server.env})
        resource = McpResource(self.tree, self._processes, work, server, launch, start_s)
        if ctx is None or work.told or work.ending:
            raise Refused(f"{session_id} is ending: it has no server {name!r} any more")
        resource.begin(ctx)
        await resource.settled.wait()
        if resource.given_up:
            raise McpError(f"{name}: {resource.given_up}")
        return resource

    def _delegate(
        self,
        work: Work,
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
            profile = self._profile(agent, work.session_id)
            child_id = self._start(name, profile, work.session_id, None, started_by, cause, mode)
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

    # ------------------------------------------------------------------ ends
    def plan_abort(self, target: str, scope: AbortScope | str, *, now: bool = False) -> AbortPlan:
        """What an abort would end, without ending anything; with *now*, at once, and also what is ending already.

        Raises:
            UnknownTarget: nothing alive has that id.
            UnknownWord: no scope has that name.
            NoSiblings: SIBLING of a root session.
        """
        return self._aborts.plan(target, scope, now=now)

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
            UnknownWord: no scope has that name.
            NoSiblings: SIBLING of a root session.
            Refused: the plan of that id would not be carried out; nothing was ended.
        """
        reason = reason or f"aborted by {actor}"
        return await self._aborts.abort(
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
        return await self._aborts.execute(plan, reason=reason, actor=actor, now=now, within_s=within_s)

    async def close_session(self, session_id: str, *, reason: str, cause: Cause = HOST) -> None:
        """End a session in order and wait until everything below it has ended; no error if it already has.

        Raises:
            JournalError: the journal was lost meanwhile; the session was ended all the same.
        """
        work = self.tree.works.get(session_id)
        if work is None:
            return
        stop = OperatorStop(reason=reason, outcome="completed", transition_reason="completed")
        self.tree.end(session_id, stop, cause=cause)
        await self._ended(work)

    async def _ended(self, work: Work) -> None:
        """Wait for a session's last record, which a journal that has failed will never hold."""
        await first_of(work.ended, self._failed)
        if self.failure is not None and not work.ended.is_set():
            raise self.failure

    async def _over(self, work: Work) -> bool:
        """Wait for a session's last record; while the disk is down, until its end is over, and no longer. Whether the
        record is durable."""
        disk = self.ledger.disk
        while not work.ended.is_set() and self.failure is None:
            if disk.outage is None:
                await first_of(work.ended, self._failed, disk.down)
            elif not work.over.is_set():
                await first_of(work.over, work.ended, self._failed, disk.up)
            else:
                return False
        if self.failure is not None and not work.ended.is_set():
            raise self.failure
        return True

    async def stop(self, *, now: bool = False, actor: str = "operator") -> None:
        """Ask this supervisor to end: by draining within ``drain_s``, or *now*, or if asked again, by aborting it all.

        A drain finishes the turns that run; a session that waits to try again gives up.

        It returns when that is under way; the supervisor has ended when its block has been left.
        """
        if now or self._drains:
            self.stopping.set()
            self.stop_now.set()
            self._stop_all("stopped at once", actor, now=True)
            self._janitor.start_task(self._see_out, name="last records")
        else:
            self._drains = True
            self.stopping.set()
            self._hands.give_up_retries(actor)
            self._janitor.start_task(self._limit_drain, actor, name="drain deadline")

    async def _limit_drain(self, actor: str) -> None:
        """What is still under way at the drain deadline is stopped."""
        with self._system.timers.limit(self.settings.drain_s):
            await self.stop_now.wait()
            return
        self._stop_all(f"the drain took longer than drain_s ({self.settings.drain_s:g} s)", actor, now=False)
        await self._see_out()

    async def _see_out(self) -> None:
        """Everything was told to end: whoever waits for a record waits no longer than the end may take."""
        await self._all_ended()
        while self.failure is None:
            await first_of(self.ledger.disk.down, self._failed)
            if not await self._recovers_soon():
                self.ledger.abandon()

    async def _recovers_soon(self) -> bool:
        """Whether the journal can be written within the time that an end has for its last records."""
        with anyio.move_on_after(LAST_RECORDS_S):
            await first_of(self.ledger.disk.up, self._failed)
        return self.outage is None

    def _stop_all(self, reason: str, actor: str, *, now: bool) -> None:
        """Tell every session, leaves first: at once, a parent's scope ends before its word would be passed on."""
        for work in reversed(list(self.tree.works.values())):
            stop = OperatorStop(reason=reason, abort_reason="shutdown_signal", now=now)
            self.tree.end(work.session_id, stop, cause=Cause(actor=actor))

    async def drain(self) -> None:
        """Finish what was asked for within the drain deadline, then end every session in order."""
        await self.finish()
        await self.close_all()

    async def finish(self) -> None:
        """Wait until what was asked for is finished, at most ``drain_s``; nothing new begins."""
        self.stopping.set()
        with self._system.timers.limit(self.settings.drain_s):
            while self._unanswered() and not self.stop_now.is_set() and self.failure is None:
                await any_of(self._answer_given, self.stop_now)

    def _unanswered(self) -> bool:
        """True while somebody waits for an answer, or a message has a turn that nobody waits for."""
        sessions = (self.tree.entities.get(session_id) for session_id in self.tree.works)
        return bool(self._waiting) or any(one is not None and one.data.current is not None for one in sessions)

    def under_way(self) -> int:
        """How many requests are not answered yet."""
        return len(self._waiting)

    async def answer_or_stop(self) -> None:
        """Wait until somebody is answered, or everything is to stop now."""
        await any_of(self._answer_given, self.stop_now)

    async def heartbeat(self, *, timeout_s: float) -> None:
        """Wait until an actor has handled a message: then the loop and the kernel's dispatcher are alive.

        Raises:
            AskTimeout: not within *timeout_s*.
        """
        await self._system.stats(JANITOR, timeout_s=timeout_s)

    async def close_all(self) -> None:
        """End every session in order; bounded by the ladder."""
        self.stopping.set()
        for work in list(self.tree.works.values()):
            if work.root_id == work.session_id:
                stop = OperatorStop(reason="the supervisor is closing", outcome="completed")
                self.tree.end(work.session_id, stop, cause=Cause(actor="host"))
        await self._end_work()
        await self._all_ended()
        await self.janitor.rest()

    async def abort_all(self, reason: str) -> None:
        """End every session by the ladder, with that cause; bounded."""
        self.stopping.set()
        self._stop_all(reason, "host", now=False)
        await self._end_work()
        await self._all_ended()
        await self.janitor.rest()

    async def _end_work(self) -> None:
        """End the tasks that nobody has taken up; a disk that is down is waited for as it is for the sessions."""
        if self.inherited.work:
            async with anyio.create_task_group() as group:
                group.start_soon(self._see_out)
                await self._succession.end_work()
                group.cancel_scope.cancel()

    async def _all_ended(self) -> None:
        """Wait for every session's last record; a journal that cannot be written does not hold up the end."""
        bound_s = max((work.policy.ladder.total_s for work in self.tree.works.values()), default=0.0)
        with self._system.timers.limit(bound_s + 3 * SLACK_S):
            while self.tree.works and self.failure is None:
                await self._next_end()
        if self.failure is not None:
            with self._system.timers.limit(bound_s + 3 * SLACK_S):
                for work in list(self.tree.works.values()):
                    await work.quiet()

    async def _next_end(self) -> None:
        """Wait for a session's last record; while the disk is down, for its end, then for the disk, but not long."""
        disk, works = self.ledger.disk, list(self.tree.works.values())
        alive = next((work for work in works if not work.over.is_set()), None)
        if disk.outage is None:
            await first_of(works[0].ended, self._failed, disk.down)
        elif alive is not None:
            await first_of(alive.over, alive.ended, self._failed, disk.up)
        elif not await self._recovers_soon():
            self.ledger.abandon()

    # ------------------------------------------------------------------ looking
    def state_of(self, entity_id: str) -> str:
        """The state of a living entity.

        Raises:
            NoSuchEntity: it has ended, or never was.
        """
        return str(self.tree.entity(entity_id).state.value)

    def inspect(self, entity_id: str) -> Inspected:
        """What goes on in a living session, turn, agent, task or tool call: its mailbox, its tasks and their stacks.

        Raises:
            NoSuchEntity: nothing alive has that id.
        """
        return inspect(self.tree, entity_id)

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
        return list(self.tree.entities)

    def rows(self) -> list[EntityRow]:
        """Every living entity, parents first."""
        return self.tree.rows()

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

    def _perform(self, owed: Owed) -> None:
        self._hands.perform(owed)

    def _publish(self, record: LifecycleEvent) -> None:
        self.subscriptions.publish(record)
        self.plugins.publish(record)

    def _journal_failed(self, error: JournalError) -> None:
        """Nothing can be promised any more: everything is ended, without waiting for the disk."""
        self.failure = error
        self._failed.set()
        _log.critical("the journal is lost; every session is ended", error=str(error))
        self.stopping.set()
        self.stop_now.set()
        self._stop_all(f"the journal cannot be written: {error}", "supervisor", now=True)
        for answer in list(self._waiting.values()):
            answer(Outcome("failed", f"the journal cannot be written: {error}", ""))
        self._waiting.clear()

    def _kernel_event(self, event: KernelEvent) -> None:
        """What the kernel has to say of our own actors."""
        match event:
            case ActorCrashed(actor_id, error):
                self._crashed(actor_id, error)
            case CancelSwallowed() | GraceExceeded() | Abandoned():
                _log.warning("a cancelled task goes on", what=type(event).__name__, **event._asdict())
            case Paused(late_s):
                _log.warning("nobody ran for a while: no timer has counted that time", seconds=round(late_s, 3))
            case DeadLetter() | Poisoned():
                _log.debug("a message was not handled", actor=event.actor_id, message=type(event.message).__name__)
            case _:
                assert_never(event)

    def _crashed(self, actor_id: str, error: BaseException) -> None:
        """An actor of ours has a bug. Its session ends, with all below it, and whoever waits for that is answered."""
        _log.error("an actor crashed", actor=actor_id, error=repr(error), exc_info=error)
        work, entity = self.tree.works.get(actor_id), self.tree.entities.get(actor_id)
        if work is not None:
            cause = KERNEL
            with suppress(TypeError):  # what it knew may be what is broken
                if entity is not None:
                    cause = KERNEL._replace(seq=entity.note(LOST, KERNEL, {"error": repr(error)}).seq)
            self._lost(work, f"the session's actor crashed: {error!r}", cause)
        elif entity is not None:
            self.tree.forget(entity)
            if entity.parent_id is not None:
                words = f"the actor of {actor_id} crashed: {error!r}"
                self.tree.tell(entity.parent_id, FatalError(message=words), cause=KERNEL)

    def _lost(self, work: Work, why: str, cause: Cause) -> None:
        """The actor of a session has crashed, and those below it can hear nothing any more: the next start on this
        journal stops it: who waited for it was told so. Who may outlive the session does."""
        lost = [work]
        for one in lost:  # it grows as it is read: parents first
            one.ending = one.told = True
            lost += [child for child in one.children.values() if child.mode is CancelMode.WAIT_COMPLETED]
        for one in reversed(lost):
            for child in [child for child in one.children.values() if child.mode is not CancelMode.WAIT_COMPLETED]:
                self.tree.rehome(child, cause, None)
                if child.mode is not CancelMode.ABANDON:
                    stop = OperatorStop(reason=f"its parent {one.session_id} was lost")
                    self.tree.end(child.session_id, stop, cause=cause)
            for below in [self.tree.entities.get(below) for below in self._system.children(one.session_id)]:
                if below is not None and below.id not in self.tree.works:
                    self.tree.forget(below)
            self.tree.bury(one.session_id)
            words = why if one is work else f"its parent was lost: {why}"
            for request_id in [each for each in self._waiting if each.rpartition(":r")[0] == one.session_id]:
                self._answered(request_id, Outcome("failed", words, ""))


def _asked_of(session: Entity | None) -> list[Request]:
    """The prompts that a session works on, or has waiting."""
    asked = (session.data.current, *session.data.queue) if session is not None else ()
    return [one for one in asked if one is not None]


def _check_text(field: str, text: str) -> None:
    """Text goes into the journal as UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        words = f"{field}: character {error.start} is half a surrogate pair; give valid Unicode text"
        raise ValueError(words) from None


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
    bad = [char for char in name if not (char.isalnum() or char in "._-")]
    if not name or bad or len(name) > 64:
        raise ValueError(f"name: {name!r} cannot be a session's name; use up to 64 letters, digits, '.', '_' and '-'")
