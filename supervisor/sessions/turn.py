"""Entity of a turn: its permission requests, its calls and their aborts, its verification and its clean-up.

The agent of the turn is reached through the connection of the session. A turn whose session was given up by an earlier
supervisor has no session: nothing is left that its effects could act on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

import anyio

from actors.machine import Effect
from actors.timers import TimerService
from supervisor.lifecycles.effects import AnswerPermission, AskPermission, CancelTool, CleanUp, Verify
from supervisor.lifecycles.entity_types import TURN_KIND
from supervisor.lifecycles.events import (
    AgentReaped,
    OperatorStop,
    TaskCompleted,
    TaskFailed,
    ToolCompleted,
    UrgentMessage,
)
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.turn import Call, Turn, TurnData
from supervisor.lifecycles.types import (
    AbortReason,
    CancelMode,
    Exit,
    TerminationStage,
    ToolOutcome,
    TransitionReason,
    Verdict,
)
from supervisor.policies.abort_plan import PlannedNode
from supervisor.policies.stage_deadlines import TurnSchedule
from supervisor.policies.turn_outcome import aborted_verdict
from supervisor.ports import Outcome
from supervisor.runtime.entity import EntityActor
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.connection import Connection
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.services import SessionServices
from supervisor.sessions.termination import Termination

BESIDE_MAX: Final = 20
"""Number of calls that a message to the agent names."""
TITLE_CHARS: Final = 200
"""Number of characters of a call's title in such a message."""

ENDED_WITHIN = "it ended with the call that it was made within"
NOT_ASKED = "the turn was interrupted, since the agent runs this call by itself and cannot be asked to end it alone"
NOT_ENDED = "the turn was interrupted, since the agent runs this call by itself and did not end it alone"
"""Descriptions, for a receipt, of the way in which a call was ended."""


class TurnTermination(Termination):
    """Termination of one turn: the agent is requested to interrupt the turn, and killed if the turn has not ended after
    ``grace_s`` seconds. While the kernel is ending a process of the turn's calls, the agent is not killed.

    Args:
        intent: verdict of the turn that is terminated, used if the agent reports no other end.
        on_killed: called when the agent was killed, so that no caller goes on waiting for the end of the agent's turn.
        is_exiting: returns whether the kernel is ending a process of a call.
    """

    __slots__ = ("_abort_id", "_connection", "_intent", "_is_exiting", "_on_killed", "_schedule", "_turn_id")

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
        self._schedule = TurnSchedule(grace_s)
        self._on_killed, self._is_exiting = on_killed, is_exiting

    @property
    def schedule(self) -> TurnSchedule:
        return self._schedule

    def act(self, stage: TerminationStage) -> None:
        if stage is TerminationStage.REQUEST:
            self._connection.interrupt(self._turn_id, self._intent, self._abort_id)
        elif stage is TerminationStage.KILL and self._connection.turn_id == self._turn_id:
            self._connection.kill(self._intent)
            self._on_killed()

    def applies(self, stage: TerminationStage) -> bool:
        return stage is not TerminationStage.EXITING or self._is_exiting()


class StoppedCall:
    """A call that an abort has stopped, or requested its agent to stop.

    Attributes:
        connection: connection to the agent that made the call.
        way: the way in which the call ends, for the receipt; ``""``: by its scope.
        is_interrupted: the call could not be ended alone, so its turn was interrupted.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.way = ""
        self.is_interrupted = False


class TurnEntity(EntityActor):
    """Entity of one turn. *session* is the session of the turn; ``None`` if it is not alive any more."""

    __slots__ = ("_registry", "_services", "_session")

    data: TurnData

    def __init__(
        self, services: SessionServices, session: LiveSession | None, data: TurnData, *, state: Turn = Turn.IDLE
    ) -> None:
        super().__init__(TURN_KIND, data.id, data.session_id, state, data, services.registry.journal_writer)
        self._services, self._registry, self._session = services, services.registry, session

    def perform(self, effect: Effect, cause: Cause) -> None:
        session = self._session
        if session is None or session.phase is SessionPhase.RECORDED:
            return
        match effect:
            case AskPermission():
                self._services.approvals.open(session, self.id, effect, cause)
            case AnswerPermission():
                self._services.approvals.close(self.id, effect.number)
                if session.connection is not None:
                    session.connection.answer_permission(self.id, effect.request_id, effect.option)
            case CancelTool():
                self._cancel_tool(session, effect, cause)
            case Verify():
                self._verify(session, cause)
            case CleanUp():
                self._clean_up(session, cause)
            case _:
                super().perform(effect, cause)

    # ------------------------------------------------------------------ calls
    def _cancel_tool(self, session: LiveSession, effect: CancelTool, cause: Cause) -> None:
        tool_id = f"{self.id}:c{effect.number}"
        for child in list(session.children.values()):
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
            child.request_stop(stop, cause=cause)
        if child.mode is not CancelMode.WAIT_COMPLETED and session.connection is not None:
            lives = "lives on" if child.mode is CancelMode.ABANDON else "was told to end"
            session.connection.answer_delegation(effect.call_id, Outcome("aborted", f"{child.session_id} {lives}", ""))

    def stop_call(
        self, node: PlannedNode, stop: OperatorStop, cause: Cause, *, ends: Container[str], is_bounded: bool
    ) -> StoppedCall:
        """Stop one open call of the turn for an abort. Never awaits.

        A call whose work the supervisor runs, or a child session does, gets its result and ends with its scope. The
        agent is requested to end a call that it runs by itself; if the agent cannot end that call alone, the turn is
        interrupted, and the next turn continues without the result.

        Args:
            node: the call in the plan of the abort.
            ends: ids of all nodes of the plan.
            is_bounded: the deadline of the abort is not that of the policy; an interrupted turn ends by it, too.
        """
        session = self._session
        connection = session.connection if session is not None else None
        assert session is not None, "an open call has a session"
        assert connection is not None, "an open call has a connection"
        assert node.due is not None, "the plan gives a call its deadlines"
        call = next(call for call in self.data.open if f"{self.id}:c{call.number}" == node.id)
        stopped = StoppedCall(connection)
        if connection.runs_call(call.call_id) or any(one.started_by == node.id for one in session.children.values()):
            result = ToolCompleted(
                call_id=call.call_id, outcome=ToolOutcome.ABORTED, reason=stop.reason, abort_id=stop.abort_id
            )
            connection.abandon_call(call.call_id, stop.reason)
            self._registry.send(self.id, result, cause=cause)
            return stopped
        connection.abort_own_call(call.call_id, stop.reason, stop.abort_id, cause.seq)
        above = next((one for one in self.data.open if one.number == call.within), None)
        if above is not None and f"{self.id}:c{above.number}" in ends and not connection.runs_call(above.call_id):
            stopped.way = ENDED_WITHIN
            return stopped
        ends_at = self._registry.system.timers.now() + node.due.kill_s if is_bounded else None

        def interrupt(why: str) -> None:
            if not stopped.is_interrupted and self._is_open(call):
                stopped.is_interrupted, stopped.way = True, why
                self._interrupt_for(session, call, stop, cause, why, ends_at)

        way = connection.terminate_call(
            call.call_id, lambda problem: interrupt(f"{NOT_ENDED}: {problem}"), now=stop.now, within_s=node.due.kill_s
        )
        if not way:
            interrupt(NOT_ASKED)
        elif not stopped.is_interrupted:  # otherwise the termination has failed at once
            stopped.way = way
        return stopped

    def _is_open(self, call: Call) -> bool:
        return self.id in self._registry.entities and any(one.number == call.number for one in self.data.open)

    def _interrupt_for(
        self, session: LiveSession, call: Call, stop: OperatorStop, cause: Cause, why: str, ends_at: float | None
    ) -> None:
        """Interrupt the turn because of a call that the agent does not end alone. The agent has until *ends_at* (kernel
        clock) to stop; ``None``: the grace period of its session."""
        tool_id = f"{self.id}:c{call.number}"
        record = self.record_fact(
            "TurnInterrupted", cause, {"call": tool_id, "why": why}, abort_id=stop.abort_id, reason=why
        )
        message = UrgentMessage(
            message_id=f"abort of {tool_id}",
            sender="supervisor",
            text=_abort_message(call, stop.reason, [one for one in self.data.open if one.number != call.number]),
            grace_s=None if ends_at is None else max(0.0, ends_at - self._registry.system.timers.now()),
            blamed=AbortReason(stop.abort_reason or AbortReason.USER_INTERRUPT),
        )
        self._registry.send(session.id, message, cause=cause._replace(seq=record.seq))

    # ------------------------------------------------------------------ end
    @property
    def can_finish(self) -> bool:
        """Whether the agent works on the turn, and neither an end nor a message is on its way to the agent."""
        session = self._session
        if session is None or session.connection is None or session.is_stopping:
            return False
        is_running = self._registry.entity(session.session_id).state is Session.RUNNING
        is_running = is_running and self.state in (Turn.RUNNING, Turn.TOOL_USE)
        return is_running and session.connection.turn_id == self.id and not session.data.inbox

    def finish(self, reason: str) -> None:
        """Have the agent stop its work on the turn, which has then succeeded with what is done."""
        if self.can_finish and self._session is not None:
            done = Verdict(exit=Exit.SUCCESS, error=reason)
            self._session.start_in(self._services.background.actor_id, self._stop_agent, self._session, done)

    def _verify(self, session: LiveSession, cause: Cause) -> None:
        """Verify the turn, unless the task of the session does. The time that the agent had for its work is over."""
        if self.state is not Turn.VERIFYING:
            return
        if (ctx := self._registry.system.context(self.id)) is not None:
            self.end_deadline(ctx)
        current = session.data.current
        if current is not None and current.once and session.data.turn_id == self.id:
            session.start_in(self._services.background.actor_id, self._verify_unless_handed_over, session, cause)
        elif session.data.verifying != self.id:
            self._decide(session, cause)

    async def _verify_unless_handed_over(self, session: LiveSession, cause: Cause) -> None:
        """Verify the turn, unless its session hands the work over to the task. The session, which has been told of the
        end of the turn, decides that; a session that is being interrupted or stopped does not hand over."""
        await self._registry.wait_processed(session.id)
        if session.data.verifying != self.id:
            self._decide(session, cause)

    def _decide(self, session: LiveSession, cause: Cause) -> None:
        """Decide whether the turn has succeeded: its agent has reported a successful end, and no tool call may have
        been opened since.

        This method decides, without an await, whether an abort came in time. If the session is stopping by now, its
        turn has failed. A later abort comes too late: ``TaskCompleted`` is in the turn's mailbox before the events of
        the abort. A turn that must compact the context first is verified after the compaction.
        """
        if self.state is not Turn.VERIFYING:
            return
        if session.is_stopping and session.stop_request is not None:
            verdict = aborted_verdict(session.stop_request.reason, session.stop_request.abort_reason)
            because = cause._replace(seq=session.stopped_by_seq)
            failed = TaskFailed(verdict=verdict, abort_id=session.stop_request.abort_id)
            self._registry.send(self.id, failed, cause=because)
        elif self.data.open:
            verdict = Verdict(exit=Exit.ERROR, error="a tool call was opened after the turn had ended")
            self._registry.send(self.id, TaskFailed(verdict=verdict), cause=cause)
        else:
            self._registry.send(self.id, TaskCompleted(), cause=cause)

    def _clean_up(self, session: LiveSession, cause: Cause) -> None:
        """Clean up after the turn. Most turns leave nothing behind; no task is started for such a turn."""
        at_work = session.connection is not None and session.connection.turn_id == self.id
        if at_work or self._registry.system.children(self.id):
            session.start_in(self._services.background.actor_id, self._clean_up_later, session, cause)
        else:
            self._registry.send(self.id, AgentReaped(), cause=cause)

    async def _clean_up_later(self, session: LiveSession, cause: Cause) -> None:
        """Stop an agent that still works on the turn, then end the scopes of the turn's calls and report the
        clean-up."""
        intent = self.data.verdict or Verdict(exit=Exit.ERROR, error="the turn is over")
        await self._stop_agent(session, intent)
        system, cleanup_s = self._registry.system, self._services.cleanup_s
        with system.timers.limit(cleanup_s) as budget:
            for tool_id in system.children(self.id):
                system.stop(tool_id, "its turn ended")
            for tool_id in system.children(self.id):
                await system.join(tool_id)
        note = f"not clean after {cleanup_s:g} s" if budget.cancelled_caught else ""
        reaped = AgentReaped(degraded=budget.cancelled_caught, note=note)
        self._registry.send(self.id, reaped, cause=cause)

    async def _stop_agent(self, session: LiveSession, intent: Verdict) -> None:
        """Make the agent stop its work on the turn, which ends with *intent*: it has failed while the agent was still
        working, for example at its time-out, or is to end now."""
        connection = session.connection
        if connection is None or connection.turn_id != self.id:
            return
        grace_s = session.data.limits.grace_s
        with anyio.CancelScope() as scope:
            termination = TurnTermination(
                self._registry.system.timers,
                connection,
                self.id,
                intent,
                self.data.abort_id,
                grace_s,
                on_killed=scope.cancel,
                is_exiting=lambda: any(owner.startswith(f"{self.id}:") for owner in session.exiting),
            )
            try:
                termination.enter(TerminationStage.REQUEST)
                await connection.wait_turn_over(self.id)
            finally:
                termination.finish()


def _abort_message(call: Call, reason: str, beside: Sequence[Call]) -> str:
    """Return the text for the agent whose turn was interrupted to end *call*, with the calls *beside*, which were cut
    off. A model knows its calls by what they do, and not by their ids."""
    text = f"The tool call {_named(call)} was aborted ({reason})."
    if not beside:
        return f"{text} Go on without its result."
    ones, results = ("call", "its result") if len(beside) == 1 else ("calls", "their results")
    shown = ", ".join(map(_named, beside[:BESIDE_MAX]))
    more = f" and {len(beside) - BESIDE_MAX} more" if len(beside) > BESIDE_MAX else ""
    return (
        f"{text} Go on without its result. To end it, your turn was interrupted, which cut off the {ones} beside it:"
        f" {shown}{more}. Make {'it' if len(beside) == 1 else 'them'} again if you need {results}."
    )


def _named(call: Call) -> str:
    return f"`{call.title[:TITLE_CHARS]}` ({call.call_id})" if call.title else call.call_id
