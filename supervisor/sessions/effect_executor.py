"""Execution of effects: the values that state machines return become launches, prompts, cancellations and messages.

Theory of operation
-------------------
A state machine returns effects and does nothing itself. The journal writer releases an effect when the effect's record
is durable (an exempt effect at once), and :meth:`EffectExecutor.perform` performs the effect. Every consequence comes
back as an event in a mailbox, never as a return value: an agent that is ready, for example, as ``SessionStarted``.

* ``perform`` never waits. Work that takes time runs in a task of the actor that the work belongs to, is counted in the
  session's ``busy``, and is cancelled with that actor's scope.
* There are two tables. Effects in ``_performed_always`` end things or only pass something on, and are performed also
  for a session that is terminating. Effects in ``_performed_while_running`` begin something; for a terminating session
  they are dropped. An abort may overtake a launch whose record was not durable yet; this launch then must not happen.
* Every effect with an id is acknowledged, so that the next supervisor does not perform it again. ``SendEvent`` is
  acknowledged by the record of the event that it sends: if that event is lost with its receiver, the next supervisor
  sends it again.

Example: a record of a session is durable with ``LaunchAgent(incarnation=2)``, and the session's agent is idle::

    perform -> _launch -> _reuse: TaskAssigned to the agent; AgentLaunched, SessionStarted to the session
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio

from actors import ActorStopped, Intensity, failpoint
from actors.restart import add_restart
from actors.timers import TimerService
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
from supervisor.lifecycles.entity_types import AGENT_KIND, TURN_KIND
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
from supervisor.lifecycles.session import Message, Request, Session
from supervisor.lifecycles.turn import Turn, TurnData
from supervisor.lifecycles.types import AbortReason, CancelMode, Exit, Kind, TerminationStage, TransitionReason, Verdict
from supervisor.policies.abort_request import EXITING_S
from supervisor.policies.turn_outcome import build_prompt
from supervisor.ports import NO_WORKSPACE, Outcome, Workspace
from supervisor.ports.agent_profile import AgentProfile
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import outlast_shortage
from supervisor.runtime.entity import EntityActor
from supervisor.runtime.journal_writer import Cause, PendingEffect
from supervisor.sessions.approval_queue import ApprovalQueue
from supervisor.sessions.live_session import Connection, LiveSession
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.termination import Termination, TerminationService

CLEANUP_S = 5.0
"""Default of ``EffectExecutor.cleanup_s``, in seconds."""

MakeConnection = Callable[[LiveSession, str, int, str], Connection]
"""Function that makes the connection to a session's next agent: (session, agent id, incarnation, prompt)."""

DRIVING = frozenset({CancelSession, CancelStep, ForceStopSession, TerminateSession, LaunchAgent, SendPrompt})
"""Effects whose record becomes the cause of the agent's actions from then on."""

_log = get_logger()


class TurnTermination(Termination):
    """Termination of one turn: the agent is requested to interrupt the turn, and killed if the turn has not ended after
    ``grace_s`` seconds. While the kernel is ending a process of the turn's calls, the agent is not killed.

    Args:
        intent: verdict of the turn that is terminated, used if the agent reports no other end.
        on_killed: called when the agent was killed, so that no caller goes on waiting for the end of the agent's turn.
        is_exiting: returns whether the kernel is ending a process of a call.
    """

    __slots__ = ("_abort_id", "_connection", "_grace_s", "_intent", "_is_exiting", "_on_killed", "_turn_id")

    stages = (TerminationStage.REQUEST, TerminationStage.EXITING, TerminationStage.KILL)

    def __init__(
        self,
        timers: TimerService,
        connection: Connection,
        turn_id: str,
        intent: Verdict,
        abort_id: str | None,
        grace_s: float,
        on_killed: Callable[[], None],
        is_exiting: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(timers)
        self._connection, self._turn_id = connection, turn_id
        self._intent, self._abort_id = intent, abort_id
        self._grace_s, self._on_killed, self._is_exiting = grace_s, on_killed, is_exiting

    def act(self, stage: TerminationStage) -> None:
        if stage is TerminationStage.REQUEST:
            self._connection.interrupt(self._turn_id, self._intent, self._abort_id)
        elif stage is TerminationStage.KILL and self._connection.turn_id == self._turn_id:
            self._connection.kill(self._intent)
            self._on_killed()

    def applies(self, stage: TerminationStage) -> bool:
        return stage is not TerminationStage.EXITING or self._is_exiting()

    def deadline(self, stage: TerminationStage) -> float | None:
        match stage:
            case TerminationStage.REQUEST:
                return self.timers.now() + self._grace_s
            case TerminationStage.EXITING:
                return self.timers.now() + EXITING_S
            case _:
                return None


class EffectExecutor:
    """Executor of effects: starts the action that each effect stands for.

    Args:
        background: id of the actor in whose scope turns are cleaned up; this actor outlives every session.
        terminations: terminates sessions.
        make_connection: makes the connection to an agent.
        workspace: prepares the directories of sessions.
        on_reply: called with (request id, outcome) when a request is complete.
        approvals: queue of permission requests for a human.
        explains: returns whether the prompts of an agent may tell why a request is tried again.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        background: str,
        terminations: TerminationService,
        make_connection: MakeConnection,
        workspace: Workspace,
        on_reply: Callable[[str, Outcome], None],
        approvals: ApprovalQueue,
        explains: Callable[[AgentProfile], bool],
    ) -> None:
        self._registry = registry
        self._background = background
        self._explains = explains
        self._make_connection = make_connection
        self._workspace = workspace
        self._on_reply = on_reply
        self._approvals = approvals
        self._last_requests: frozenset[str] | None = None
        """Ids of the requests that were in progress when a drain began; ``None`` before."""
        self.cleanup_s = CLEANUP_S
        """Time budget, in seconds, for the clean-up of a turn."""
        self._performed_always: Mapping[type, Callable[[LiveSession, str, Any, Cause], None]] = {
            ReplyToRequest: self._reply,
            AnswerPermission: self._answer_permission,
            AskPermission: approvals.open,
            CancelSession: self._cancel_session,
            CancelStep: lambda session, entity_id, effect, cause: self._cancel_launch(session),
            CancelTool: self._cancel_tool,
            CleanUp: self._clean_up,
            TerminateSession: lambda session, entity_id, effect, cause: terminations.begin(
                session, cause, effect.abort_id, now=effect.now
            ),
            ForceStopSession: lambda session, entity_id, effect, cause: self._kill(session, effect.reason),
            LogFatal: lambda session, entity_id, effect, cause: _log_end(session, effect.message),
            StorePrompt: lambda session, entity_id, effect, cause: registry.write_transcript(
                session, "prompt", effect.prompt.rstrip("\n") + "\n"
            ),
            Verify: self._verify,
        }
        """Functions for effects that are performed even for a terminating session: (session, entity id, effect,
        cause)."""
        self._performed_while_running: Mapping[type, Callable[[LiveSession, Any, Cause], None]] = {
            BuildPrompt: self._build_prompt,
            LaunchAgent: self._launch,
            OpenTurn: self._open_turn,
            PrepareWorktree: self._prepare,
            SendPrompt: self._send_prompt,
            SteerAgent: self._steer,
        }
        """Functions for effects that are dropped for a terminating session: (session, effect, cause)."""

    def perform(self, pending: PendingEffect) -> None:
        """Perform one effect, or start a task that performs it, and acknowledge the effect."""
        entity = self._registry.entities.get(pending.entity_id)
        if entity is None:
            return
        effect = pending.effect
        if isinstance(effect, SendEvent):
            if self.forward(effect, Cause(pending.seq, pending.effect_id, pending.entity_id)):
                return
        elif type(effect) is FinalizeEntity:
            self._registry.remove(pending.entity_id)
        else:
            session_id = pending.entity_id if entity.kind is Kind.SESSION else getattr(entity.data, "session_id", "")
            session = self._registry.sessions.get(session_id)
            cause = Cause(pending.seq, None, pending.entity_id)
            if isinstance(effect, StartTimer):
                if effect.name == "backoff" and session is not None:
                    self._check_retry(session, cause)
                ctx = self._registry.system.context(entity.id)
                if ctx is not None and isinstance(entity, EntityActor):
                    entity.start_timer(ctx, effect, pending.epoch, cause)
            elif session is not None:
                self._perform_for(session, pending.entity_id, effect, cause)
        self._registry.journal_writer.acknowledge(pending.effect_id)

    def forward(self, effect: SendEvent, cause: Cause) -> bool:
        """Send the event of *effect*; return ``False`` if the receiver does not accept the event. The record of the
        event acknowledges the effect.

        A receiver that has ended may be removed before it reads its mailbox, and would then never acknowledge the
        effect; no event is sent to it. If the receiver's actor is cancelled with its supervisor, the next supervisor
        sends the event again.
        """
        entity = self._registry.entities.get(effect.to)
        if entity is None or entity.ended or not self._registry.accepts(effect.to, effect.event):
            return False
        self._registry.send(effect.to, effect.event, cause=cause)
        return True

    def _perform_for(self, session: LiveSession, entity_id: str, effect: object, cause: Cause) -> None:
        kind = type(effect)
        # A request that only shortens a termination is not its cause.
        if kind in DRIVING and not session.is_terminating:
            session.cause_seq = cause.seq
        if kind in self._performed_always:
            self._performed_always[kind](session, entity_id, effect, cause)
        elif not session.is_terminating:
            if kind not in self._performed_while_running:
                raise AssertionError(f"nothing performs {kind.__name__}")
            self._performed_while_running[kind](session, effect, cause)

    # ------------------------------------------------------------------ replies
    def _reply(self, session: LiveSession, entity_id: str, effect: ReplyToRequest, cause: Cause) -> None:
        text, exception = (session.text, session.exception) if session.text_of == effect.request_id else ("", None)
        self._on_reply(effect.request_id, Outcome(effect.outcome, effect.error, text, cause.seq, effect.how, exception))

    def _answer_permission(self, session: LiveSession, turn_id: str, effect: AnswerPermission, cause: Cause) -> None:
        self._approvals.close(turn_id, effect.number)
        if session.connection is not None:
            session.connection.answer_permission(turn_id, effect.request_id, effect.option)

    # ------------------------------------------------------------------ tasks
    def _start(
        self,
        session: LiveSession,
        actor_id: str,
        fn: Callable[..., object],
        *args: object,
        clean_up_s: float = 0.0,
    ) -> bool:
        """Start a task in the scope of the actor *actor_id*; return ``False`` if this scope has ended."""
        ctx = self._registry.system.context(actor_id)
        if ctx is None:
            return False
        try:
            # every fn here is a coroutine function
            session.start(ctx, fn, *args, clean_up_s=clean_up_s)  # type: ignore[arg-type]
        except ActorStopped:
            _log.debug("not begun: its scope has ended", actor=actor_id)
            return False
        return True

    # ------------------------------------------------------------------ drain
    def begin_drain(self, actor: str) -> None:
        """Make the requests in progress the last ones: stop every session that waits for its next try, and prevent
        later tries, and turns for the prompts that wait in a root session."""
        sessions = [
            (session, self._registry.entity(session.session_id)) for session in self._registry.sessions.values()
        ]
        self._last_requests = frozenset(one.data.current.id for _, one in sessions if one.data.current is not None)
        for session, entity in sessions:
            if entity.state is Session.COOLING_DOWN:
                self._check_retry(session, Cause(actor=actor))

    def _is_too_late(self, session: LiveSession, asked: Request | None) -> bool:
        """Return whether a turn for the request *asked* must not begin, since the supervisor drains. The turn of a
        parent waits for the turns of its children, a plan decides about its own prompts, and a message (without a
        prompt) may begin a turn."""
        if self._last_requests is None or asked is None or not asked.prompt or asked.once:
            return False
        return session.parent is None and asked.id not in self._last_requests

    def _check_retry(self, session: LiveSession, cause: Cause) -> None:
        """Let a failed session try again, unless the session fails too often, the supervisor drains, or the plan of its
        task has no retry left for another launch.

        The time of the failure is the time in the record, not the time at which the effect is performed: the write to
        the disk may have taken long.
        """
        entity = self._registry.entity(session.session_id)
        data = entity.data
        intensity = Intensity(data.limits.restarts_max, data.limits.restarts_within_s)
        session.crashes = tuple(at for at in session.crashes if entity.since_s - at <= intensity.period_s)
        is_charged = data.total_errors > session.errors_charged
        is_launch = is_charged and data.incarnation != session.prompted
        session.errors_charged = data.total_errors
        if session.monitor is not None:
            session.monitor.start_request()  # what the next launch repeats is no repetition of the agent
        if data.incarnation == session.prompted and not data.spent:
            session.crashes = add_restart(session.crashes, entity.since_s, intensity.period_s)
            session.prompted = 0
        if self._last_requests is not None:
            stop = OperatorStop(reason=f"no further try while draining: {data.last_error}", outcome="failed")
            self._registry.request_stop(session.session_id, stop, cause=cause)
        elif intensity.exceeded(session.crashes):
            counted = f"{len(session.crashes)} failures within {intensity.period_s:g} s"
            message = f"restart limit exceeded ({counted}): {data.last_error}"
            self._registry.send(session.session_id, FatalError(message=message), cause=cause)
        elif why := self._charge_retry(
            session, data.last_error, is_launch=is_launch, is_charged=is_charged and not data.spent
        ):
            message = f"{data.last_error} (no further try: {why})"
            self._registry.send(session.session_id, FatalError(message=message), cause=cause)

    def _charge_retry(self, session: LiveSession, error: str, *, is_launch: bool, is_charged: bool) -> str:
        """Charge a retry of the session, after a failure with *error*, to the plan for whose task the session, or a
        session above it, works. Return the reason why no retry is left, or ``""``.

        The plan decides about the attempts of its own session, and charges them itself: only a launch that failed is
        charged here. A review or another child session tries again by itself: each of its failures is charged here.
        """
        if (own := session.assigned_task) is not None:
            return own.charge_launch(error) if is_launch else ""
        above = session.parent
        while above is not None and above.assigned_task is None:
            above = above.parent
        if above is None or above.assigned_task is None or not is_charged:
            return ""
        return above.assigned_task.charge_child()

    # ------------------------------------------------------------------ from the turn to its agent
    def _open_turn(self, session: LiveSession, effect: OpenTurn, cause: Cause) -> None:
        turn_id = effect.turn_id
        entity = self._registry.entity(session.session_id)
        asked, limits = entity.data.current, entity.data.limits
        if self._is_too_late(session, asked):
            stop = OperatorStop(reason="no turn begins while draining", abort_reason="shutdown_signal")
            self._registry.request_stop(session.session_id, stop, cause=cause)
            return
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

    def _prepare(self, session: LiveSession, effect: PrepareWorktree, cause: Cause) -> None:
        asked = self._registry.entity(session.session_id).data.current
        # Over a turn that answered a message, the steps against silence and loops count on.
        if session.monitor is not None and not (asked is not None and asked.goes_on):
            session.monitor.start_request()
        self._start(session, session.session_id, self._prepare_directory, session, cause)

    async def _prepare_directory(self, session: LiveSession, cause: Cause) -> None:
        try:
            configured = session.profile.directory
            if (
                session.workspace_spec != NO_WORKSPACE
                and self._registry.entity(session.session_id).state is Session.INITIALIZING
            ):
                await outlast_shortage(partial(self._workspace.begin, session.session_id, session.workspace_spec))
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
        selected = data.inbox if session.monitor is None else session.monitor.select_messages(data.inbox)
        # an empty prompt is never sent: then every message is in it
        messages = selected if asked or selected else data.inbox
        reason = data.current.reason if data.current is not None and self._explains(session.profile) else ""
        goes_on = data.current is not None and data.current.goes_on
        prompt = build_prompt(asked, messages, reason=reason, again=again, goes_on=goes_on)
        if session.monitor is not None:
            prompt = session.monitor.complete_prompt(prompt)
        self._registry.send(session.session_id, PromptReady(prompt=prompt, messages=len(data.inbox)), cause=cause)

    def _launch(self, session: LiveSession, effect: LaunchAgent, cause: Cause) -> None:
        """Reuse an idle agent at once; otherwise start a task that waits for the agent, or launches a new agent."""
        connection, incarnation = session.connection, effect.incarnation
        at_once = connection is not None and connection.turn_id is None and connection.reusable
        if connection is not None and at_once and not failpoint.active("agent.not_reused", connection.agent_id):
            if self._is_awaited(session, incarnation):
                self._reuse(session, connection, incarnation, cause)
        else:
            self._start(session, session.session_id, self._launch_later, session, effect, cause, not at_once)

    async def _launch_later(self, session: LiveSession, effect: LaunchAgent, cause: Cause, may_reuse: bool) -> None:
        connection, incarnation = session.connection, effect.incarnation
        if connection is not None:  # wait until the agent is idle, if it may be reused, or else gone
            await connection.wait_turn_over()
            if not (may_reuse and connection.reusable) or failpoint.active("agent.not_reused", connection.agent_id):
                connection.close_when_idle()
                await connection.ended.wait()
        if not self._is_awaited(session, incarnation):
            return
        if connection is not None and connection.reusable:
            self._reuse(session, connection, incarnation, cause)
        else:
            self._launch_agent(session, incarnation, effect.prompt, cause)

    def _is_awaited(self, session: LiveSession, incarnation: int) -> bool:
        """Return whether the session still waits for an agent for that incarnation."""
        data = self._registry.entity(session.session_id).data
        return not session.is_terminating and incarnation == data.incarnation and incarnation > data.concluded

    def _launch_agent(self, session: LiveSession, incarnation: int, prompt: str, cause: Cause) -> None:
        session.launches += 1
        agent_id = f"{session.session_id}:a{session.launches}"
        connection = self._make_connection(session, agent_id, incarnation, prompt)
        data = AgentData(id=agent_id, session_id=session.session_id, adapter=session.profile.adapter)
        try:
            self._registry.create_entity(
                AGENT_KIND, agent_id, parent_id=session.session_id, state=Agent.STARTING, data=data, cause=cause
            )
        except ActorStopped:
            return
        session.connection = connection
        if not self._start(session, agent_id, connection.run, clean_up_s=connection.clean_up_s):
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
            session.answered = session.said if current is not None and current.goes_on else ""
            session.text_of, session.exception = asked, None
            session.first_prompt_sent.set()
            session.connection.start_turn(effect.turn_id, effect.incarnation, effect.prompt)

    def _steer(self, session: LiveSession, effect: SteerAgent, cause: Cause) -> None:
        """Send a message within the turn, in the same wording as in a prompt."""
        if session.connection is not None:
            message = Message(id=effect.message_id, sender=effect.sender, text=effect.text, urgent=True)
            session.connection.steer(effect.message_id, effect.incarnation, build_prompt("", [message]))

    # ------------------------------------------------------------------ end of a turn
    def _verify(self, session: LiveSession, turn_id: str, effect: Verify, cause: Cause) -> None:
        """Decide whether a turn has succeeded: its agent has reported a successful end, and no tool call may have been
        opened since.

        This method decides, without an await, whether an abort came in time. If the session is stopping by now, its
        turn has failed. A later abort comes too late: ``TaskCompleted`` is in the turn's mailbox before the events of
        the abort. A turn that must compact the context first is verified after the compaction.
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

    def _clean_up(self, session: LiveSession, turn_id: str, effect: CleanUp, cause: Cause) -> None:
        """Clean up after a turn. Most turns leave nothing behind; no task is started for such a turn."""
        at_work = session.connection is not None and session.connection.turn_id == turn_id
        if at_work or self._registry.system.children(turn_id):
            self._start(session, self._background, self._clean_up_later, session, turn_id, cause)
        else:
            self._registry.send(turn_id, AgentReaped(), cause=cause)

    async def _clean_up_later(self, session: LiveSession, turn_id: str, cause: Cause) -> None:
        """Stop an agent that still works on the turn, then end the scopes of the turn's calls and report the
        clean-up."""
        await self._terminate_turn(session, turn_id)
        with self._registry.system.timers.limit(self.cleanup_s) as budget:
            for tool_id in self._registry.system.children(turn_id):
                self._registry.system.stop(tool_id, "its turn ended")
            for tool_id in self._registry.system.children(turn_id):
                await self._registry.system.join(tool_id)
        note = f"not clean after {self.cleanup_s:g} s" if budget.cancelled_caught else ""
        reaped = AgentReaped(degraded=budget.cancelled_caught, note=note)
        self._registry.send(turn_id, reaped, cause=cause)

    async def _terminate_turn(self, session: LiveSession, turn_id: str) -> None:
        """Make the agent stop its work on a turn that has failed while the agent was still working, for example at its
        time-out."""
        connection, turn = session.connection, self._registry.entity(turn_id)
        if connection is None or connection.turn_id != turn_id:
            return
        intent = turn.data.verdict or Verdict(exit=Exit.ERROR, error="the turn is over")
        grace_s = self._registry.entity(session.session_id).data.limits.grace_s
        with anyio.CancelScope() as scope:
            termination = TurnTermination(
                self._registry.system.timers,
                connection,
                turn_id,
                intent,
                turn.data.abort_id,
                grace_s,
                on_killed=scope.cancel,
                is_exiting=lambda: any(owner.startswith(f"{turn_id}:") for owner in session.exiting),
            )
            try:
                termination.enter(TerminationStage.REQUEST)
                await connection.wait_turn_over(turn_id)
            finally:
                termination.finish()

    # ------------------------------------------------------------------ cancellation
    def _cancel_session(self, session: LiveSession, entity_id: str, effect: CancelSession, cause: Cause) -> None:
        intent = _aborted(effect.reason, effect.abort_reason)
        turn_id = self._registry.entity(session.session_id).data.turn_id
        if session.connection is not None:
            session.connection.interrupt(turn_id, intent, effect.abort_id)

    def _cancel_launch(self, session: LiveSession) -> None:
        """Kill an agent that is not ready yet. An idle agent is not killed here: it closes in the regular way with its
        session."""
        if session.connection is not None and not session.connection.is_ready:
            self._kill(session, "the launch was cancelled")

    def _kill(self, session: LiveSession, reason: str) -> None:
        if session.connection is not None and not session.connection.ended.is_set():
            session.connection.kill(Verdict(exit=Exit.ERROR, error=reason, abort_reason=AbortReason.SHUTDOWN_SIGNAL))

    def _cancel_tool(self, session: LiveSession, turn_id: str, effect: CancelTool, cause: Cause) -> None:
        tool_id = f"{turn_id}:c{effect.number}"
        for child in self._registry.children_of(session.session_id):
            if child.started_by == tool_id:
                self._stop_started(session, child, effect, cause)
        if session.connection is not None:
            session.connection.abandon_call(effect.call_id, effect.reason)
        self._registry.system.stop(tool_id, effect.abort_id or effect.reason)

    def _stop_started(self, session: LiveSession, child: LiveSession, effect: CancelTool, cause: Cause) -> None:
        """Stop a child session because the call that started the child was aborted, and complete that call, both as the
        child's cancel mode says."""
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


def _log_end(session: LiveSession, reason: str) -> None:
    """Log that a session gave up. For a task this is a warning: the task goes on with another session, or its failure
    is logged as an error."""
    log = _log.error if session.assigned_task is None else _log.warning
    log("session gave up", session=session.session_id, reason=reason)


def _aborted(reason: str, abort_reason: str | None) -> Verdict:
    return Verdict(
        exit=Exit.ERROR,
        error=reason,
        transition_reason=TransitionReason.ABORTED,
        abort_reason=AbortReason(abort_reason) if abort_reason else None,
    )
