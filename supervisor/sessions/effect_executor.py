"""The one place that performs effects: a decision's value in, something done in the world out.

What comes of it returns through a mailbox, as an event. Effects of a session that is ending are not begun any more;
what ends things is always done. An effect says its own name here once, and its method is short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from actors import ActorStopped, Intensity, failpoint
from actors.restart import add_restart
from supervisor.aborts.termination import TerminationService
from supervisor.lifecycles.agent import Agent, AgentData
from supervisor.lifecycles.effects import (
    AnswerPermission,
    AskPermission,
    BuildPrompt,
    CancelSession,
    CancelStep,
    CancelTool,
    CleanUp,
    FinalizeEntity,
    ForceStopSession,
    LaunchAgent,
    LogFatal,
    OpenTurn,
    PrepareWorktree,
    ReplyToRequest,
    SendEvent,
    SendPrompt,
    StartTimer,
    SteerAgent,
    StorePrompt,
    TerminateSession,
    Verify,
)
from supervisor.lifecycles.events import (
    AgentExited,
    AgentLaunched,
    AgentReaped,
    FatalError,
    OperatorStop,
    PromptReady,
    TaskAssigned,
    TaskClaimed,
    TaskCompleted,
    TaskFailed,
    WorktreeReady,
)
from supervisor.lifecycles.session import Message, Session
from supervisor.lifecycles.turn import Turn, TurnData
from supervisor.lifecycles.types import AbortReason, CancelMode, Exit, Kind, TransitionReason, Verdict
from supervisor.policies.turn_outcome import build_prompt
from supervisor.ports import NO_WORKSPACE, Workspace
from supervisor.ports.logs import get_logger
from supervisor.runtime.availability import outlast_shortage
from supervisor.runtime.entity import Entity
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.entity_types import AGENT_KIND, TURN_KIND
from supervisor.runtime.journal_writer import Cause, PendingEffect
from supervisor.runtime.live_session import Connection, LiveSession, Outcome
from supervisor.sessions.approval_queue import ApprovalQueue

__all__ = ["CLEANUP_S", "EffectExecutor", "MakeConnection"]

CLEANUP_S = 5.0
"""The clean-up budget of a turn."""

MakeConnection = Callable[[LiveSession, str, int, str], Connection]
"""Makes the link for a session's next agent: (work, agent id, incarnation, prompt)."""

DRIVING = frozenset({CancelSession, CancelStep, ForceStopSession, TerminateSession, LaunchAgent, SendPrompt})
"""Effects after which what the agent does, or stops doing, has a new reason."""

_log = get_logger()


class EffectExecutor:
    """Performs effects.

    Args:
        tree: whom they concern.
        janitor: the actor in whose scope turns are cleaned up after; it outlives every session.
        endings: how sessions end.
        make_link: how an agent is had.
        workspace: where sessions work.
        answered: called with (request id, outcome) when a request has its answer.
        desk: where permissions wait for a human.
    """

    def __init__(
        self,
        registry: EntityRegistry,
        janitor: str,
        endings: TerminationService,
        make_link: MakeConnection,
        workspace: Workspace,
        answered: Callable[[str, Outcome], None],
        approvals: ApprovalQueue,
    ) -> None:
        self._registry = registry
        self._janitor = janitor
        self._endings = endings
        self._make_link = make_link
        self._workspace = workspace
        self._answered = answered
        self._approvals = approvals
        self._no_retries = False
        self._always: Mapping[type, Callable[[LiveSession, str, Any, Cause], None]] = {
            ReplyToRequest: self._answer,
            AnswerPermission: self._answer_permission,
            AskPermission: lambda session, turn_id, effect, cause: approvals.open(session, turn_id, effect, cause),
            CancelSession: lambda session, entity_id, effect, cause: self._cancel_session(session, effect),
            CancelStep: lambda session, entity_id, effect, cause: self._cancel_launch(session),
            CancelTool: self._cancel_tool,
            CleanUp: self._reap,
            TerminateSession: self._end_scope,
            ForceStopSession: lambda session, entity_id, effect, cause: self._kill(session, effect.reason),
            LogFatal: self._log_fatal,
            StorePrompt: self._store_prompt,
            Verify: self._verify,
        }
        """Who performs what, also for a session that is ending."""
        self._begun: Mapping[type, Callable[[LiveSession, Any, Cause], None]] = {
            BuildPrompt: self._build_prompt,
            LaunchAgent: self._launch,
            OpenTurn: self._open_turn,
            PrepareWorktree: lambda session, effect, cause: self._prepare(session, cause),
            SendPrompt: self._send_prompt,
            SteerAgent: lambda session, effect, cause: self._steer(session, effect),
        }
        """And what an ending session does not begin any more."""

    def perform(self, owed: PendingEffect) -> None:
        """Do it, or begin it; nothing here waits."""
        entity = self._registry.entities.get(owed.entity_id)
        if entity is None:
            return
        effect = owed.effect
        if isinstance(effect, SendEvent):
            if self.forward(effect, Cause(owed.seq, owed.effect_id, owed.entity_id)):
                return
        elif type(effect) is FinalizeEntity:
            self._registry.remove(owed.entity_id)
        else:
            session_id = owed.entity_id if entity.kind is Kind.SESSION else getattr(entity.data, "session_id", "")
            session = self._registry.sessions.get(session_id)
            cause = Cause(owed.seq, None, owed.entity_id)
            if isinstance(effect, StartTimer):
                self._set_timer(session, entity, effect, owed.epoch, cause)
            elif session is not None:
                self._perform_for(session, owed.entity_id, effect, cause)
        self._registry.journal_writer.acknowledge(owed.effect_id)

    def _set_timer(
        self, session: LiveSession | None, entity: Entity, effect: StartTimer, epoch: int, cause: Cause
    ) -> None:
        if effect.name == "backoff" and session is not None:
            self._look_before_retry(session, cause)
        ctx = self._registry.system.context(entity.id)
        if ctx is not None:
            entity.start_timer(ctx, effect, epoch, cause)

    def forward(self, told: SendEvent, cause: Cause) -> bool:
        """Tell it, to be settled with the record of that event; ``False`` if it is no news to anybody.

        Who has ended may be buried before it reads its mail, and its mail settles nothing then. Who has not, and whose
        actor was cancelled with its supervisor, is told by the next one.
        """
        entity = self._registry.entities.get(told.to)
        if entity is None or entity.ended or not self._registry.accepts(told.to, told.event):
            return False
        self._registry.send(told.to, told.event, cause=cause)
        return True

    def _perform_for(self, session: LiveSession, entity_id: str, effect: object, cause: Cause) -> None:
        kind = type(effect)
        if kind in DRIVING and not session.is_terminating:  # the first reason wins: who hurries an end is not its cause
            session.cause_seq = cause.seq
        if kind in self._always:
            self._always[kind](session, entity_id, effect, cause)
        elif not session.is_terminating:
            if kind not in self._begun:
                raise AssertionError(f"no hand for {kind.__name__}")
            self._begun[kind](session, effect, cause)

    # ------------------------------------------------------------------ words
    def _answer(self, session: LiveSession, entity_id: str, effect: ReplyToRequest, cause: Cause) -> None:
        text = session.text if session.text_of == effect.request_id else ""
        self._answered(effect.request_id, Outcome(effect.outcome, effect.error, text, cause.seq, effect.how))

    def _answer_permission(self, session: LiveSession, turn_id: str, effect: AnswerPermission, cause: Cause) -> None:
        self._approvals.close(turn_id, effect.number)
        if session.connection is not None:
            session.connection.answer_permission(turn_id, effect.request_id, effect.option)

    def _log_fatal(self, session: LiveSession, entity_id: str, effect: LogFatal, cause: Cause) -> None:
        _log.error("session gave up", session=session.session_id, reason=effect.message)

    def _store_prompt(self, session: LiveSession, entity_id: str, effect: StorePrompt, cause: Cause) -> None:
        self._registry.write_transcript(session, "prompt", effect.prompt.rstrip("\n") + "\n")

    # ------------------------------------------------------------------ tasks
    def _start(self, session: LiveSession, actor_id: str, fn: Callable[..., object], *args: object) -> bool:
        """Begin a task in an actor's scope; ``False`` if that has ended."""
        ctx = self._registry.system.context(actor_id)
        if ctx is None:
            return False
        try:
            session.start(ctx, fn, *args)  # type: ignore[arg-type]  # every fn here is a coroutine function
        except ActorStopped:
            _log.debug("not begun: its scope has ended", actor=actor_id)
            return False
        return True

    # ------------------------------------------------------------------ another try
    def give_up_retries(self, actor: str) -> None:
        """A drain has begun: what waits to try again ends now, and nothing will try again."""
        self._no_retries = True
        for session in list(self._registry.sessions.values()):
            if self._registry.entity(session.session_id).state is Session.COOLING_DOWN:
                self._look_before_retry(session, Cause(actor=actor))

    def _look_before_retry(self, session: LiveSession, cause: Cause) -> None:
        """A session that failed may try again, unless it does so too often, or the supervisor drains. It failed when
        that was recorded, however long the disk took, or nobody ran."""
        entity = self._registry.entity(session.session_id)
        data = entity.data
        intensity = Intensity(data.limits.restarts_max, data.limits.restarts_within_s)
        session.crashes = tuple(at for at in session.crashes if entity.since_s - at <= intensity.period_s)
        if data.incarnation == session.prompted and not data.spent:
            session.crashes = add_restart(session.crashes, entity.since_s, intensity.period_s)
            session.prompted = 0
        if self._no_retries:
            stop = OperatorStop(reason=f"no further try while draining: {data.last_error}", outcome="failed")
            self._registry.request_stop(session.session_id, stop, cause=cause)
        elif intensity.exceeded(session.crashes):
            counted = f"{len(session.crashes)} failures within {intensity.period_s:g} s"
            words = f"restart limit exceeded ({counted}): {data.last_error}"
            self._registry.send(session.session_id, FatalError(message=words), cause=cause)

    # ------------------------------------------------------------------ a turn's way to its agent
    def _open_turn(self, session: LiveSession, effect: OpenTurn, cause: Cause) -> None:
        turn_id = effect.turn_id
        entity = self._registry.entity(session.session_id)
        asked, limits = entity.data.current, entity.data.limits
        timeout_s = limits.turn_timeout_s if asked is None or asked.timeout_s is None else asked.timeout_s
        data = TurnData(
            id=turn_id,
            session_id=session.session_id,
            timeout_s=timeout_s,
            hard_cap_s=None if asked is None else asked.hard_cap_s,
            due_s=effect.due_s,
            most_s=effect.most_s,
        )
        self._registry.create_entity(
            TURN_KIND, turn_id, parent_id=session.session_id, state=Turn.IDLE, data=data, cause=cause
        )
        if session.monitor is not None:
            session.monitor.turn_opened(turn_id)
        self._registry.send(turn_id, TaskClaimed(request_id=effect.request_id), cause=cause)

    def _prepare(self, session: LiveSession, cause: Cause) -> None:
        if session.monitor is not None:
            session.monitor.start_request()
        self._start(session, session.session_id, self._have_directory, session, cause)

    async def _have_directory(self, session: LiveSession, cause: Cause) -> None:
        try:
            configured = session.profile.directory
            if (
                session.place != NO_WORKSPACE
                and self._registry.entity(session.session_id).state is Session.INITIALIZING
            ):
                await outlast_shortage(partial(self._workspace.begin, session.session_id, session.place))
            prepare = partial(self._workspace.prepare, session.session_id, configured, root_id=session.root_id)
            session.directory = await outlast_shortage(prepare)
        except OSError as error:
            self._registry.send(session.session_id, FatalError(message=str(error)), cause=cause)
        else:
            self._registry.send(session.session_id, WorktreeReady(path=session.directory), cause=cause)

    def _build_prompt(self, session: LiveSession, effect: BuildPrompt, cause: Cause) -> None:
        data = self._registry.entity(session.session_id).data
        again = session.interrupted and session.resume_id is not None
        asked = data.current.prompt if data.current is not None else ""
        meant = data.inbox if session.monitor is None else session.monitor.select_messages(data.inbox)
        # where nothing would be left to say, all is said that was
        prompt = build_prompt(asked, meant if asked or meant else data.inbox, again=again)
        if session.monitor is not None:
            prompt = session.monitor.complete_prompt(prompt)
        self._registry.send(session.session_id, PromptReady(prompt=prompt, messages=len(data.inbox)), cause=cause)

    def _launch(self, session: LiveSession, effect: LaunchAgent, cause: Cause) -> None:
        """An agent that is idle is had at once; whoever has to wait for one, or to make one, does it in a task."""
        connection, incarnation = session.connection, effect.incarnation
        at_once = connection is not None and connection.turn_id is None and connection.reusable
        if connection is not None and at_once and not failpoint.active("agent.not_reused", connection.agent_id):
            if self._is_wanted(session, incarnation):
                self._reuse(session, connection, incarnation, cause)
        else:
            self._start(session, session.session_id, self._launch_later, session, effect, cause, not at_once)

    async def _launch_later(self, session: LiveSession, effect: LaunchAgent, cause: Cause, may_reuse: bool) -> None:
        connection, incarnation = session.connection, effect.incarnation
        if connection is not None:
            await self._settled(connection, may_reuse)
        if not self._is_wanted(session, incarnation):
            return
        if connection is not None and connection.reusable:
            self._reuse(session, connection, incarnation, cause)
        else:
            self._have(session, incarnation, effect.prompt, cause)

    def _is_wanted(self, session: LiveSession, incarnation: int) -> bool:
        """``False`` if the session did not wait that long."""
        data = self._registry.entity(session.session_id).data
        return not session.is_terminating and incarnation == data.incarnation and incarnation > data.concluded

    async def _settled(self, connection: Connection, may_reuse: bool) -> None:
        """Wait until the agent is idle, if it may be that, or gone."""
        await connection.wait_turn_over()
        if not (may_reuse and connection.reusable) or failpoint.active("agent.not_reused", connection.agent_id):
            connection.close_when_idle()
            await connection.ended.wait()

    def _have(self, session: LiveSession, incarnation: int, prompt: str, cause: Cause) -> None:
        session.launches += 1
        agent_id = f"{session.session_id}:a{session.launches}"
        connection = self._make_link(session, agent_id, incarnation, prompt)
        data = AgentData(id=agent_id, session_id=session.session_id, adapter=session.profile.adapter)
        try:
            self._registry.create_entity(
                AGENT_KIND, agent_id, parent_id=session.session_id, state=Agent.STARTING, data=data, cause=cause
            )
        except ActorStopped:
            return
        session.connection = connection
        if not self._start(session, agent_id, connection.run):
            connection.ended.set()
            self._registry.send(agent_id, AgentExited(reason="its session ended before it was launched"), cause=cause)

    def _reuse(self, session: LiveSession, connection: Connection, incarnation: int, cause: Cause) -> None:
        turn_id = self._registry.entity(session.session_id).data.turn_id
        self._registry.send(connection.agent_id, TaskAssigned(turn_id=turn_id), cause=cause)
        launched = AgentLaunched(incarnation=incarnation, agent_id=connection.agent_id)
        self._registry.send(session.session_id, launched, cause=cause)
        connection.report_started(incarnation)

    def _send_prompt(self, session: LiveSession, effect: SendPrompt, cause: Cause) -> None:
        if session.connection is not None:
            session.prompted = effect.incarnation
            current = self._registry.entity(session.session_id).data.current
            asked = current.id if current is not None else None
            session.said = session.said if asked == session.text_of else ""
            session.text_of = asked
            session.first_prompt_sent.set()
            session.connection.start_turn(effect.turn_id, effect.incarnation, effect.prompt)

    def _steer(self, session: LiveSession, effect: SteerAgent) -> None:
        """What is said within a turn is said as in a prompt."""
        if session.connection is not None:
            said = Message(id=effect.message_id, sender=effect.sender, text=effect.text, urgent=True)
            session.connection.steer(effect.message_id, effect.incarnation, build_prompt("", [said]))

    # ------------------------------------------------------------------ the end of a turn
    def _verify(self, session: LiveSession, turn_id: str, effect: Verify, cause: Cause) -> None:
        """All completion signals: the agent's word was judged by the link; no call may have opened since.

        Whether an abort came in time is decided here, without an await: a session that was told to end by now loses
        its turn; who comes later finds the success in the turn's mailbox, before anything of its own. A turn that must
        compact first is verified when it has.
        """
        turn = self._registry.entity(turn_id)
        if turn.state is not Turn.VERIFYING:
            return
        if session.is_stopping and session.stop_request is not None:
            verdict = _aborted(session.stop_request.reason, session.stop_request.abort_reason)
            because = cause._replace(seq=session.stopped_by_seq)
            self._registry.send(
                turn_id, TaskFailed(verdict=verdict, abort_id=session.stop_request.abort_id), cause=because
            )
        elif turn.data.open:
            verdict = Verdict(exit=Exit.ERROR, error="a tool call was opened after the turn had ended")
            self._registry.send(turn_id, TaskFailed(verdict=verdict), cause=cause)
        else:
            self._registry.send(turn_id, TaskCompleted(), cause=cause)

    def _reap(self, session: LiveSession, turn_id: str, effect: CleanUp, cause: Cause) -> None:
        """Most turns leave nothing behind, and need no task to clean up after them."""
        at_work = session.connection is not None and session.connection.turn_id == turn_id
        if at_work or self._registry.system.children(turn_id):
            self._start(session, self._janitor, self._clean_up, session, turn_id, cause)
        else:
            self._registry.send(turn_id, AgentReaped(), cause=cause)

    async def _clean_up(self, session: LiveSession, turn_id: str, cause: Cause) -> None:
        """End what the turn left behind: an agent that still works on it, and its calls' scopes."""
        await self._take_away(session, turn_id)
        with self._registry.system.timers.limit(CLEANUP_S) as budget:
            for tool_id in self._registry.system.children(turn_id):
                self._registry.system.stop(tool_id, "its turn ended")
            for tool_id in self._registry.system.children(turn_id):
                await self._registry.system.join(tool_id)
        note = f"not clean after {CLEANUP_S:g} s" if budget.cancelled_caught else ""
        reaped = AgentReaped(degraded=budget.cancelled_caught, note=note)
        self._registry.send(turn_id, reaped, cause=cause)

    async def _take_away(self, session: LiveSession, turn_id: str) -> None:
        """A turn that failed without its agent's word, at its time-out: the agent is asked to stop, then killed."""
        connection, turn = session.connection, self._registry.entity(turn_id)
        if connection is None or connection.turn_id != turn_id:
            return
        intent = turn.data.verdict or Verdict(exit=Exit.ERROR, error="the turn is over")
        connection.interrupt(turn_id, intent, turn.data.abort_id)
        grace_s = self._registry.entity(session.session_id).data.limits.grace_s
        with self._registry.system.timers.limit(grace_s):
            await connection.wait_turn_over(turn_id)
        if connection.turn_id == turn_id:
            connection.kill(intent)

    # ------------------------------------------------------------------ ends
    def _end_scope(self, session: LiveSession, entity_id: str, effect: TerminateSession, cause: Cause) -> None:
        self._endings.begin(session, cause, effect.abort_id, now=effect.now)

    def _cancel_session(self, session: LiveSession, effect: CancelSession) -> None:
        intent = _aborted(effect.reason, effect.abort_reason)
        turn_id = self._registry.entity(session.session_id).data.turn_id
        if session.connection is not None:
            session.connection.interrupt(turn_id, intent, effect.abort_id)

    def _cancel_launch(self, session: LiveSession) -> None:
        """An agent that is not ready yet is ended; one that is idle ends in order, with its session."""
        if session.connection is not None and not session.connection.is_ready:
            self._kill(session, "the launch was cancelled")

    def _kill(self, session: LiveSession, reason: str) -> None:
        if session.connection is not None and not session.connection.ended.is_set():
            session.connection.kill(Verdict(exit=Exit.ERROR, error=reason, abort_reason=AbortReason.SHUTDOWN_SIGNAL))

    def _cancel_tool(self, session: LiveSession, turn_id: str, effect: CancelTool, cause: Cause) -> None:
        tool_id = f"{turn_id}:c{effect.number}"
        for child in self._registry.children_of(session.session_id):
            if child.started_by == tool_id:
                self._end_started(session, child, effect, cause)
        if session.connection is not None:
            session.connection.abandon_call(effect.call_id)
        self._registry.system.stop(tool_id, effect.abort_id or effect.reason)

    def _end_started(self, session: LiveSession, child: LiveSession, effect: CancelTool, cause: Cause) -> None:
        """A child session whose starting call is over: its cancel mode says whether it ends, and who waits for that."""
        if child.mode is not CancelMode.ABANDON:
            stop = OperatorStop(
                reason=f"the call {child.started_by} that started it was aborted",
                abort_id=effect.abort_id,
                abort_reason=AbortReason.PARENT_ABORTED,
                transition_reason=TransitionReason.ABORTED,
            )
            self._registry.request_stop(child.session_id, stop, cause=cause)
        if child.mode is not CancelMode.WAIT_COMPLETED and session.connection is not None:
            lives = "lives on" if child.mode is CancelMode.ABANDON else "was told to end"
            session.connection.answer_delegation(effect.call_id, Outcome("aborted", f"{child.session_id} {lives}", ""))


def _aborted(reason: str, abort_reason: str | None) -> Verdict:
    return Verdict(
        exit=Exit.ERROR,
        error=reason,
        transition_reason=TransitionReason.ABORTED,
        abort_reason=AbortReason(abort_reason) if abort_reason else None,
    )
