"""Entity of a session: performs the effects of the session's table.

Theory of operation
-------------------
A state machine returns effects and does nothing itself. The journal writer releases an effect when the effect's record
is durable (an exempt effect at once), and :meth:`SessionEntity.perform` performs the effect. Every consequence comes
back as an event in a mailbox, never as a return value: an agent that is ready, for example, as ``SessionStarted``.

* ``perform`` never waits. Work that takes time runs in a task of the actor that the work belongs to, is counted in
  ``busy``, and is cancelled with that actor's scope.
* Effects that end things, or only pass something on, are performed also for a session that is terminating. Effects that
  begin something are then dropped. An abort may overtake a launch whose record was not durable yet; this launch then
  must not happen.

Example: a record of a session is durable with ``LaunchAgent(incarnation=2)``, and the session's agent is idle::

    perform -> _launch -> _reuse: TaskAssigned to the agent; AgentLaunched, SessionStarted to the session
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from actors import ActorStopped, Context, Intensity, failpoint
from actors.machine import Effect
from actors.restart import add_restart
from supervisor.lifecycles.agent import Agent, AgentData
from supervisor.lifecycles.effects import (
    BuildPrompt,
    CancelSession,
    CancelStep,
    ForceStopSession,
    LaunchAgent,
    LogFatal,
    OpenTurn,
    PrepareWorktree,
    ReplyToRequest,
    SendPrompt,
    StartTimer,
    SteerAgent,
    StorePrompt,
    TerminateSession,
)
from supervisor.lifecycles.entity_types import AGENT_KIND
from supervisor.lifecycles.events import (
    AgentExited,
    AgentLaunched,
    FatalError,
    OperatorStop,
    PromptReady,
    TaskAssigned,
    TaskClaimed,
    WorktreeReady,
)
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.session_data import Message, Request, SessionData
from supervisor.lifecycles.turn import TurnData
from supervisor.lifecycles.types import SUPERVISOR_ENDED, AbortPolicy, AbortReason, CancelMode, Exit, HeldBy, Verdict
from supervisor.policies.turn_outcome import aborted_verdict, build_prompt
from supervisor.ports import NO_WORKSPACE, Outcome, TranscriptSink
from supervisor.ports.agent_profile import AgentProfile
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import outlast_shortage
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.connection import Connection
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.obstacles import outlast_obstacles
from supervisor.sessions.services import SessionServices
from supervisor.sessions.turn import TurnEntity

DRIVING = frozenset({CancelSession, CancelStep, ForceStopSession, TerminateSession, LaunchAgent, SendPrompt})
"""Effects whose record becomes the cause of the agent's actions from then on."""

_log = get_logger()
_T = TypeVar("_T")


class FailureCount:
    """Failures of a session's agents that count towards the restart limit, and those that were charged to the plan."""

    __slots__ = ("charged", "crashes", "prompted")

    def __init__(self) -> None:
        self.prompted = 0
        """Incarnation that received its prompt last: a failure after the prompt is a crash, not a failed launch."""
        self.charged = 0
        """Errors of the session, in all, that were charged to the retry budget of its plan, or need not be."""
        self.crashes: tuple[float, ...] = ()
        """Times of crashes within the restart window (journal clock)."""

    def add(self, data: SessionData, at_s: float) -> tuple[bool, bool]:
        """Count the failure that the session with *data* had at *at_s* (journal clock). Return whether it is an error
        that was not charged yet, and whether it is one of a launch."""
        period_s = data.limits.restarts_within_s
        self.crashes = tuple(at for at in self.crashes if at_s - at <= period_s)
        is_charged = data.total_errors > self.charged
        is_launch = is_charged and data.incarnation != self.prompted
        self.charged = data.total_errors
        if data.incarnation == self.prompted and not data.spent:
            self.crashes = add_restart(self.crashes, at_s, period_s)
            self.prompted = 0
        return is_charged, is_launch


class SessionEntity(LiveSession):
    """Entity of one session. The arguments after *services* are those of :class:`LiveSession`."""

    def __init__(
        self,
        services: SessionServices,
        data: SessionData,
        *,
        state: Session,
        parent: LiveSession | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        transcript: TranscriptSink,
        mode: CancelMode,
    ) -> None:
        super().__init__(
            services.registry,
            services.background,
            data,
            state=state,
            parent=parent,
            profile=profile,
            policy=policy,
            started_by=started_by,
            transcript=transcript,
            mode=mode,
        )
        self._services = services
        self.failures = FailureCount()

    def perform(self, effect: Effect, cause: Cause) -> None:
        # A request that only shortens a termination is not its cause.
        if type(effect) in DRIVING and not self.is_terminating:
            self.cause_seq = cause.seq
        match effect:
            case ReplyToRequest():
                self._reply(effect, cause)
            case StorePrompt():
                self.write_transcript("prompt", effect.prompt.rstrip("\n") + "\n")
            case CancelSession():
                self._interrupt(effect)
            case CancelStep():
                self._cancel_launch()
            case ForceStopSession():
                self._kill(effect.reason)
            case TerminateSession():
                self.terminate(cause, effect.abort_id, now=effect.now)
            case LogFatal():
                if effect.message != SUPERVISOR_ENDED:  # the takeover names these sessions, which have not failed
                    # For a task this is a warning: it goes on with another session, or its failure is logged as an
                    # error.
                    log = _log.error if self.assigned_task is None else _log.displayed
                    log("session gave up", session=self.id, reason=effect.message)
            case _ if self.is_terminating:
                return  # the effects below begin something
            case PrepareWorktree():
                self._prepare(cause)
            case OpenTurn():
                self._open_turn(effect, cause)
            case BuildPrompt():
                self._build_prompt(cause)
            case LaunchAgent():
                self._launch(effect, cause)
            case SendPrompt():
                self._send_prompt(effect)
            case SteerAgent():
                self._steer(effect)
            case _:
                super().perform(effect, cause)

    def start_timer(self, ctx: Context, effect: StartTimer, epoch: int, cause: Cause) -> None:
        if effect.name == "backoff":
            self.check_retry(cause)
        super().start_timer(ctx, effect, epoch, cause)

    # ------------------------------------------------------------------ tries
    def _is_too_late(self, request: Request | None) -> bool:
        """Return whether a turn for *request* must not begin, since the supervisor drains. The turn of a
        parent waits for the turns of its children, a plan decides about its own prompts, and a message (without a
        prompt) may begin a turn."""
        if self._services.last_requests is None or request is None or not request.prompt or request.once:
            return False
        return self.parent is None and request.id not in self._services.last_requests

    def check_retry(self, cause: Cause) -> None:
        """Let a failed session try again, unless the session fails too often, the supervisor drains, or the plan of its
        task has no retry left for another launch.

        The time of the failure is the time in the record, not the time at which the effect is performed: the write to
        the disk may have taken long.
        """
        data = self.data
        is_charged, is_launch = self.failures.add(data, self.since_s)
        if self.monitor is not None:
            self.monitor.start_request()  # what the next launch repeats is no repetition of the agent
        if self._services.last_requests is not None:
            stop = OperatorStop(reason=f"no further try while draining: {data.last_error}", outcome="failed")
            self.request_stop(stop, cause=cause)
        elif Intensity(data.limits.restarts_max, data.limits.restarts_within_s).exceeded(self.failures.crashes):
            counted = f"{len(self.failures.crashes)} failures within {data.limits.restarts_within_s:g} s"
            message = f"restart limit exceeded ({counted}): {data.last_error}"
            self.registry.send(self.id, FatalError(message=message), cause=cause)
        elif why := self._charge_retry(data.last_error, is_launch=is_launch, is_charged=is_charged and not data.spent):
            message = f"{data.last_error} (no further try: {why})"
            self.registry.send(self.id, FatalError(message=message), cause=cause)

    def _charge_retry(self, error: str, *, is_launch: bool, is_charged: bool) -> str:
        """Charge a retry of the session, after a failure with *error*, to the plan for whose task the session, or a
        session above it, works. Return the reason why no retry is left, or ``""``.

        The plan decides about the attempts of its own session, and charges them itself: only a launch that failed is
        charged here. A review or another child session tries again by itself: each of its failures is charged here.
        """
        if (own := self.assigned_task) is not None:
            return own.charge_launch(error) if is_launch else ""
        above = self.parent
        while above is not None and above.assigned_task is None:
            above = above.parent
        if above is None or above.assigned_task is None or not is_charged:
            return ""
        return above.assigned_task.charge_child()

    # ------------------------------------------------------------------ from the turn to its agent
    def _open_turn(self, effect: OpenTurn, cause: Cause) -> None:
        turn_id, request, limits = effect.turn_id, self.data.current, self.data.limits
        if self._is_too_late(request):
            stop = OperatorStop(reason="no turn begins while draining", abort_reason="shutdown_signal")
            self.request_stop(stop, cause=cause)
            return
        timeout_s, source = limits.turn_timeout_s, ""
        if request is not None and request.timeout_s is not None:
            timeout_s, source = request.timeout_s, request.timeout_source
        data = TurnData(
            id=turn_id,
            session_id=self.id,
            timeout_s=timeout_s,
            timeout_source=source,
            hard_cap_s=None if request is None else request.hard_cap_s,
            due_s=effect.due_s,
            most_s=effect.most_s,
        )
        self.registry.add_entity(TurnEntity(self._services, self, data), cause=cause)
        if self.monitor is not None:
            self.monitor.turn_opened(turn_id)
        self.registry.send(turn_id, TaskClaimed(request_id=effect.request_id), cause=cause)

    def _prepare(self, cause: Cause) -> None:
        request = self.data.current
        # Over a turn that answered a message, the steps against silence and loops count on.
        if self.monitor is not None and not (request is not None and request.goes_on):
            self.monitor.start_request()
        self.start_in(self.id, self._prepare_directory, cause)

    async def _prepare_directory(self, cause: Cause) -> None:
        try:
            workspace = self._services.workspace
            if self.workspace_spec != NO_WORKSPACE and self.state is Session.INITIALIZING:
                await self._make_step(partial(workspace.begin, self.id, self.workspace_spec))
            prepare = partial(workspace.prepare, self.id, self.profile.directory, root_id=self.root_id)
            self.directory = await self._make_step(prepare)
        except OSError as error:
            self.registry.send(self.id, FatalError(message=str(error)), cause=cause)
        else:
            self.registry.send(self.id, WorktreeReady(path=self.directory), cause=cause)

    async def _make_step(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Call *step*, which makes the workspace, until neither the machine nor anything outside of the work prevents
        it. The end of the session ends the wait."""
        clock = self.registry.journal_writer.clock.wall
        return await outlast_obstacles(partial(outlast_shortage, step), self._note_obstacle, clock, anyio.Event())

    def _note_obstacle(self, held_by: HeldBy | None) -> None:
        told = {"held_by": None if held_by is None else msgspec.to_builtins(held_by)}
        reason = "the obstacle is gone" if held_by is None else f"held by {held_by.what}; {held_by.fix}"
        self.registry.record_fact(self.id, "WorkspaceHeld", self.cause, told, reason=reason)
        if self.assigned_task is not None:
            self.assigned_task.note_obstacle(held_by)
        elif held_by is not None:
            _log.warning("a session is held", session=self.id, by=held_by.what, fix=held_by.fix)

    def _build_prompt(self, cause: Cause) -> None:
        data = self.data
        asked = data.current.prompt if data.current is not None else ""
        selected = data.inbox if self.monitor is None else self.monitor.select_messages(data.inbox)
        # an empty prompt is never sent: then every message is in it
        messages = selected if asked or selected else data.inbox
        explains = self._services.setups.of(self.plan_run).settings.explain_retries and self.profile.explains_retries
        reason = data.current.reason if data.current is not None and explains else ""
        # An agent that begins anew may find what the agent before had begun; a program may execute its prompt.
        again = self.interrupted and (self.resume_id is not None or self.profile.explains_retries)
        goes_on = data.current is not None and data.current.goes_on
        prompt = build_prompt(asked, messages, reason=reason, again=again, open_calls=self.open_calls, goes_on=goes_on)
        if self.monitor is not None:
            prompt = self.monitor.complete_prompt(prompt)
        self.registry.send(self.id, PromptReady(prompt=prompt, messages=len(data.inbox)), cause=cause)

    def _launch(self, effect: LaunchAgent, cause: Cause) -> None:
        """Reuse an idle agent at once; otherwise start a task that waits for the agent, or launches a new agent."""
        connection, incarnation = self.connection, effect.incarnation
        at_once = connection is not None and connection.turn_id is None and connection.reusable
        if connection is not None and at_once and not failpoint.active("agent.not_reused", connection.agent_id):
            if self._is_awaited(incarnation):
                self._reuse(connection, incarnation, cause)
        else:
            self.start_in(self.id, self._launch_later, effect, cause, not at_once)

    async def _launch_later(self, effect: LaunchAgent, cause: Cause, may_reuse: bool) -> None:
        connection, incarnation = self.connection, effect.incarnation
        if connection is not None:  # wait until the agent is idle, if it may be reused, or else gone
            await connection.wait_turn_over()
            if not (may_reuse and connection.reusable) or failpoint.active("agent.not_reused", connection.agent_id):
                connection.close_when_idle()
                await connection.ended.wait()
        if not self._is_awaited(incarnation):
            return
        if connection is not None and connection.reusable:
            self._reuse(connection, incarnation, cause)
        else:
            self._launch_agent(incarnation, effect.prompt, cause)

    def _is_awaited(self, incarnation: int) -> bool:
        """Return whether the session still waits for an agent for that incarnation."""
        data = self.data
        return not self.is_terminating and incarnation == data.incarnation and incarnation > data.concluded

    def _launch_agent(self, incarnation: int, prompt: str, cause: Cause) -> None:
        self.launches += 1
        agent_id = f"{self.id}:a{self.launches}"
        connection = self._services.make_connection(self, agent_id, incarnation, prompt)
        data = AgentData(id=agent_id, session_id=self.id, adapter=self.profile.adapter)
        try:
            self.registry.create_entity(
                AGENT_KIND, agent_id, parent_id=self.id, state=Agent.STARTING, data=data, cause=cause
            )
        except ActorStopped:
            return
        self.connection = connection
        if not self.start_in(agent_id, connection.run, clean_up_s=connection.clean_up_s):
            connection.ended.set()
            self.registry.send(agent_id, AgentExited(reason="its session ended before it was launched"), cause=cause)

    def _reuse(self, connection: Connection, incarnation: int, cause: Cause) -> None:
        self.registry.send(connection.agent_id, TaskAssigned(turn_id=self.data.turn_id), cause=cause)
        launched = AgentLaunched(incarnation=incarnation, agent_id=connection.agent_id)
        self.registry.send(self.id, launched, cause=cause)
        connection.report_started(incarnation)

    def _send_prompt(self, effect: SendPrompt) -> None:
        if self.connection is not None:
            self.failures.prompted = effect.incarnation
            current = self.data.current
            self.answer.begin_prompt(
                current.id if current is not None else None, goes_on=current is not None and current.goes_on
            )
            self.first_prompt_sent.set()
            self.connection.start_turn(effect.turn_id, effect.incarnation, effect.prompt)

    def _steer(self, effect: SteerAgent) -> None:
        """Send a message within the turn, in the same wording as in a prompt."""
        if self.connection is not None:
            message = Message(id=effect.message_id, sender=effect.sender, text=effect.text, urgent=True)
            self.connection.steer(effect.message_id, effect.incarnation, build_prompt("", [message]))

    def _reply(self, effect: ReplyToRequest, cause: Cause) -> None:
        text, exception = self.answer.to(effect.request_id)
        outcome = Outcome(effect.outcome, effect.error, text, cause.seq, effect.how, exception)
        self._services.reply(effect.request_id, outcome)

    # ------------------------------------------------------------------ cancellation
    def _interrupt(self, effect: CancelSession) -> None:
        intent = aborted_verdict(effect.reason, effect.abort_reason)
        if self.connection is not None:
            self.connection.interrupt(self.data.turn_id, intent, effect.abort_id)

    def _cancel_launch(self) -> None:
        """Kill an agent that is not ready yet. An idle agent is not killed here: it closes in the regular way with its
        session."""
        if self.connection is not None and not self.connection.is_ready:
            self._kill("the launch was cancelled")

    def _kill(self, reason: str) -> None:
        if self.connection is not None and not self.connection.ended.is_set():
            self.connection.kill(Verdict(exit=Exit.ERROR, error=reason, abort_reason=AbortReason.SHUTDOWN_SIGNAL))
