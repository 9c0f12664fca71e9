"""Base class of connections to agents: turns the agent's actions into events of the session, turn and agent entity.

A connection decides nothing about lifecycles. It guarantees that the end of a turn that was started is reported exactly
once, whatever the agent does: ``_conclude`` is called when the agent reports the end, when its process has exited, and
when the connection ends; only the first call has an effect. For each tool call the connection creates an actor with a
scope of its own, below the scope of the turn, so that a call can be cancelled alone.

``sessions.inprocess`` (functions) and ``process_connection`` (programs) derive from this class, and add ``run``
and the commands of ``Connection``. Of the methods that they override, this class itself calls ``runs_call``,
``_drop_call`` and ``_conclude``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from actors import ActorStopped, Context
from actors.machine import Event
from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.events import (
    AgentExited,
    AgentReady,
    FatalError,
    SessionExited,
    SessionStarted,
    SteerElapsed,
    TaskFailed,
    TaskFinished,
    ToolCompleted,
    ToolStarted,
    VerifyRequested,
)
from supervisor.lifecycles.types import AbortReason, CancelMode, Exit, ModelProblem, RecordId, ToolOutcome, Verdict
from supervisor.policies.abort_plan import PlannedProcess
from supervisor.policies.call_processes import LiveProcess, ProcessSeen
from supervisor.policies.loop_detection import FinishedCall
from supervisor.policies.turn_outcome import decide_verdict
from supervisor.ports import Outcome
from supervisor.ports.agent_profile import AgentFunction
from supervisor.runtime.entity_registry import END_S
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.connection import Connection
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry

SHELL_KIND: Final = "execute"
"""Kind of a tool call that runs a command of a shell, in ACP's terms."""


class Delegate(Protocol):
    """Function that starts a child session for an agent, and calls *answer* with the child's outcome. It raises
    InvalidArgument or TypeError if an argument is wrong; *answer* is not called then."""

    def __call__(
        self,
        session: LiveSession,
        name: str,
        prompt: str,
        agent: str | AgentFunction | None,
        started_by: str | None,
        answer: Callable[[Outcome], None],
        cause: Cause,
        mode: CancelMode,
    ) -> None: ...


class ToolCallActor:
    """Actor of a tool call. The actor has a scope but no state machine: the results of the call are events of its
    turn."""

    def receive(self, ctx: Context, message: object) -> None:
        return None


class ConnectionPhase(IntEnum):
    """Phases of a connection, in order. A connection never returns to an earlier phase."""

    OPEN = 0
    CLOSING = 1
    """The agent is to end as soon as it works on no turn."""
    EXITED = 2
    """The agent's program has exited; the connection still processes the program's output."""
    OVER = 3
    """The end of the agent was reported."""


class _AbortedCall(NamedTuple):
    """Abort of a call whose work the agent runs by itself."""

    reason: str
    abort_id: str | None
    cause_seq: RecordId | None
    """Number of the record that the call's result follows from: the record of the abort."""

    def result(self, call_id: str, said: ToolOutcome) -> ToolCompleted:
        """Return the call's result: ``aborted`` if the agent reports that the call failed, otherwise ``unknown``,
        because the effect of the call may have happened, or may still happen."""
        outcome = ToolOutcome.ABORTED if said is ToolOutcome.FAILED else ToolOutcome.UNKNOWN
        return ToolCompleted(call_id=call_id, outcome=outcome, reason=self.reason, abort_id=self.abort_id, over=True)


class AgentConnection(Connection):
    """Connection to an agent, without the transport of messages, which subclasses add."""

    def __init__(self, registry: SessionRegistry, session: LiveSession, agent_id: str, incarnation: int) -> None:
        self.registry = registry
        self.session = session
        self.agent_id = agent_id
        self.ended = OneShotEvent()
        self.is_ready = False
        self.steers = False
        self.clean_up_s = 0.0
        self.outlived: tuple[ProcessSeen, ...] = ()
        self.turn_id: str | None = None
        self._incarnation = incarnation
        self._intent: Verdict | None = None
        self._abort_id: str | None = None
        self._phase = ConnectionPhase.OPEN
        self._killed = OneShotEvent()
        """Event that ``kill`` sets, in any phase of the connection."""
        self._assigned = False
        self._concluded: str | None = None
        self._succeeded = False
        """True if the turn that ended last has succeeded and is to be verified."""
        self._refused: list[str] = []
        self._freed = OneShotEvent()
        self._calls: dict[str, str] = {}
        self._named: dict[str, str] = {}
        """Actor ids of all calls of the turn, ended calls included: a request for a child session may arrive late."""
        self._opened: dict[str, tuple[str, str, int]] = {}
        """Title and kind of each open call, and the number of calls that had finished before it, by the call's id."""
        self._aborting: dict[str, _AbortedCall] = {}
        self._delegations: dict[str, list[Callable[[Outcome], None]]] = {}
        self._causes: dict[str, RecordId | None] = {}
        self._numbers = 0

    @property
    def reusable(self) -> bool:
        is_open = self._phase is ConnectionPhase.OPEN and not self._killed.is_set()
        return self.is_ready and self.turn_id is None and is_open

    def _advance(self, phase: ConnectionPhase) -> None:
        self._phase = max(self._phase, phase)

    async def wait_turn_over(self, turn_id: str | None = None) -> None:
        """Wait until the agent works on no turn; with *turn_id*, only until the agent no longer works on that turn."""
        while self.turn_id is not None and turn_id in (None, self.turn_id):
            await self._freed.wait()

    # ------------------------------------------------------------------ reports
    def _send(self, entity_id: str, event: Event) -> None:
        self.registry.send(entity_id, event, cause=self.session.cause)

    def _report(self, entity_id: str, event: Event) -> Coroutine[Any, Any, RecordId | None]:
        return self.registry.report(entity_id, event, cause=self.session.cause)

    # ------------------------------------------------------------------ the session's start
    def _report_ready(self, info: str) -> None:
        self.is_ready = True
        self._send(self.agent_id, AgentReady(info=info))
        self.report_started(self._incarnation)

    def report_started(self, incarnation: int) -> None:
        """Report that the agent is ready for the prompt of the launch with number *incarnation*."""
        self._incarnation = incarnation
        self._assigned = True
        seq = self.session.data.session_seq
        started = SessionStarted(seq=seq, incarnation=incarnation, agent_id=self.agent_id)
        self._send(self.session.session_id, started)

    def _report_not_started(self, verdict: Verdict) -> None:
        """Report that the agent could not become ready: the session launches another one, or, after a permanent error,
        fails at once."""
        incarnation = self._incarnation
        if verdict.permanent:
            self._send(self.session.session_id, FatalError(message=verdict.error, incarnation=incarnation))
        else:
            self._send(self.session.session_id, SessionExited(incarnation=incarnation, verdict=verdict))

    # ------------------------------------------------------------------ the turn
    def _begin(self, turn_id: str, incarnation: int) -> bool:
        """Begin a turn: reset the state of the turn before. Return ``False`` if the turn was cancelled before it began,
        or if the agent has ended or is being killed."""
        if turn_id in self._refused:
            return False
        self.turn_id, self._incarnation = turn_id, incarnation
        self._freed = OneShotEvent()
        self._intent = self._intent if self._killed.is_set() else None
        self._abort_id = None
        self._calls.clear()
        self._named.clear()
        self._opened.clear()
        self._aborting.clear()
        self._delegations.clear()
        self._causes.clear()
        self._numbers = 0
        self.session.answer.text = self.session.answer.said
        if self.session.monitor is not None:
            self.session.monitor.turn_began()
        if self._phase is ConnectionPhase.OVER or self._killed.is_set():
            self._conclude("error", "the agent is gone")
            return False
        return True

    def _note_intent(self, turn_id: str, intent: Verdict, abort_id: str | None) -> bool:
        """Store the verdict of a turn that is to end. Return ``False`` if the turn has ended already, or has not begun;
        a turn that has not begun will then never begin."""
        if self.turn_id == turn_id:
            self._intent, self._abort_id = intent, abort_id
            return True
        if turn_id not in (self._concluded, *self._refused):
            self._refused.append(turn_id)
            # The turn must first process that its agent is ready: that event is still on its way to the disk.
            self.registry.journal_writer.when_durable(lambda: self._fail_unbegun(turn_id, intent, abort_id))
        return False

    def _fail_unbegun(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        self._send(turn_id, TaskFailed(verdict=intent, abort_id=abort_id))
        self._release()

    def _release(self) -> None:
        """Report that the agent is idle. For an agent that is ending nothing is reported here: its end is reported
        instead."""
        if self._assigned and self._phase < ConnectionPhase.EXITED and not self._killed.is_set():
            self._assigned = False
            self._send(self.agent_id, TaskFinished())

    def _conclude(
        self,
        stop: str,
        error: str,
        status: int | None = None,
        *,
        problem: ModelProblem | None = None,
        http_status: int | None = None,
        last_words: str = "",
    ) -> None:
        """Report the end of the turn; a second call for the same turn has no effect."""
        turn_id, self.turn_id = self.turn_id, None
        if turn_id is None:
            return
        self._concluded = turn_id
        self._freed.set()
        open_calls = tuple(self._calls)
        for call_id in [one for one in open_calls if one in self._aborting]:
            aborted = self._aborting[call_id]
            cause = self.session.cause._replace(seq=aborted.cause_seq)
            self.registry.send(turn_id, aborted.result(call_id, ToolOutcome.UNKNOWN), cause=cause)
            self._drop_call(call_id)
        children = [child.started_by for child in self.session.children.values()]
        stopped = tuple(one for one, tool_id in self._calls.items() if self.runs_call(one) or tool_id in children)
        if self._intent is not None and self._intent.exit is Exit.SUCCESS:
            # The turn is to end well with what is done, so no call may be open then; what stops is cancelled.
            for call_id in list(self._calls):
                outcome = ToolOutcome.ABORTED if call_id in stopped else ToolOutcome.UNKNOWN
                over = call_id not in stopped
                cut = ToolCompleted(call_id=call_id, outcome=outcome, reason=self._intent.error, over=over)
                self._send(turn_id, cut)
                if over:
                    self._drop_call(call_id)
            open_calls = ()
        verdict = decide_verdict(
            stop,
            error,
            open_calls=open_calls,
            status=status,
            intent=self._intent,
            problem=problem,
            http_status=http_status,
            text=self.session.answer.text,
            reports=self.session.profile.reports,
            last_words=last_words,
        )
        if verdict is not self._intent and self.session.monitor is not None:
            verdict = self.session.monitor.model.judge(verdict)
        self._succeeded = verdict.exit is Exit.SUCCESS
        if self._succeeded:
            self.session.answer.said = self.session.answer.text
            self.session.interrupted, self.session.open_calls = False, ()
            self._send(turn_id, VerifyRequested(verdict=verdict))
        else:
            self._send(turn_id, TaskFailed(verdict=verdict, abort_id=self._abort_id, stopped=stopped))
        if self.session.monitor is not None:
            self.session.monitor.turn_ended()
        self._release()

    # ------------------------------------------------------------------ tool calls
    async def _open_call(self, call_id: str, title: str, tool_kind: str, parent: str = "") -> str | None:
        """Begin a call: create its actor, below the actor of the open call *parent* if there is one, and wait until the
        record of the call is durable.

        Returns:
            The id of the call's actor; ``None`` if the turn accepts no call now.
        """
        turn_id = self.turn_id
        if turn_id is None or call_id in self._calls:
            return None
        if self.session.monitor is not None and not self.session.monitor.admit_call():
            return None
        self._numbers += 1
        number, above = self._numbers, self._calls.get(parent)
        tool_id = f"{turn_id}:c{number}"
        try:
            self.registry.system.spawn(ToolCallActor(), tool_id, parent=above or turn_id, shutdown_s=END_S)
        except ActorStopped:
            return None
        self._calls[call_id] = self._named[call_id] = tool_id
        finished = self.session.monitor.finished_calls if self.session.monitor is not None else 0
        self._opened[call_id] = (title, tool_kind, finished)
        within = int(above.rpartition(":c")[2]) if above is not None else 0
        started = ToolStarted(number=number, call_id=call_id, title=title[:200], tool_kind=tool_kind, within=within)
        recorded: RecordId | None = None
        try:
            recorded = self._causes[tool_id] = await self._report(turn_id, started)
        finally:
            if recorded is None:  # refused, or the journal failed: a call without a record does not run
                self._drop_call(call_id)
                self._named.pop(call_id, None)
        if recorded is None:
            return None
        if call_id in self._calls and self.session.monitor is not None:
            self.session.monitor.call_opened(tool_id, tool_kind)
        return tool_id if call_id in self._calls else None  # it may have been aborted meanwhile

    async def _close_call(
        self, call_id: str, outcome: ToolOutcome, reason: str = "", *, asked: str = "", answered: str = ""
    ) -> None:
        """End a call, with a durable record. *asked* and *answered* are digests of the call's arguments and of its
        result.

        A call that was abandoned already has a result, from the abort. The present result is then late, and is reported
        after the result of the abort is durable.
        """
        turn_id, intent = self.turn_id, self._intent
        opened = self._opened.pop(call_id, None)
        if opened is not None and turn_id is not None and intent is None and self.session.monitor is not None:
            title, kind, after = opened
            ended = FinishedCall(title, kind, asked, answered and f"{outcome} {answered}")
            self.session.monitor.record_call(ended, after)
        tool_id = self._calls.get(call_id)
        self._drop_call(call_id)
        if turn_id is None:
            return
        if tool_id is None:
            await self.registry.journal_writer.durable()
        because = self._causes.get(tool_id or "")
        failed_command = outcome is ToolOutcome.FAILED and opened is not None and opened[1] == SHELL_KIND
        blamed = AbortReason.BASH_ERROR if failed_command else None
        completed = ToolCompleted(call_id=call_id, outcome=outcome, reason=reason, abort_reason=blamed)
        aborted = self._aborting.get(call_id)
        if aborted is None and intent is not None and outcome in (ToolOutcome.FAILED, ToolOutcome.UNKNOWN):
            # The agent was asked to stop: for that reason the call failed, or its result is unknown.
            aborted = _AbortedCall(intent.error, self._abort_id, self.session.cause_seq)
        if aborted is not None:
            because, completed = aborted.cause_seq, aborted.result(call_id, outcome)
        cause = self.session.cause if because is None else self.session.cause._replace(seq=because)
        await self.registry.report(turn_id, completed, cause=cause)

    # ------------------------------------------------------------------ messages within a turn
    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        """Report that the message cannot be delivered within the turn; the session then interrupts the turn."""
        self._report_not_steered(message_id, incarnation, "the agent cannot be told anything within a turn")

    def _report_not_steered(self, message_id: str, incarnation: int, why: str) -> None:
        self._send(self.session.session_id, SteerElapsed(incarnation=incarnation, message_id=message_id, reason=why))

    # ------------------------------------------------------------------ permissions
    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        """Do nothing: the agents of this base class request no permissions."""
        return

    # ------------------------------------------------------------------ aborts of calls
    def runs_call(self, call_id: str) -> bool:
        """Return whether the supervisor runs the work of the call *call_id*, and can end the call by its scope."""
        return False

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        """Return whether the work of the call *call_id* is over, so that an abort comes too late."""
        return self.turn_id != turn_id or call_id not in self._calls

    def abandon_call(self, call_id: str, reason: str) -> None:
        """Drop the call *call_id*, so that a later result of the call is ignored. An in-process agent is given the
        *reason*."""
        self._calls.pop(call_id, None)

    def abort_own_call(self, call_id: str, reason: str, abort_id: str | None, cause_seq: RecordId | None) -> None:
        self._aborting.setdefault(call_id, _AbortedCall(reason, abort_id, cause_seq))

    def terminate_call(
        self, call_id: str, not_ended: Callable[[str], None], *, now: bool = False, within_s: float | None = None
    ) -> str:
        """Return ``""``, which means: the agents of this base class cannot end a single call."""
        return ""

    def _register_delegation(self, call_id: str, answer: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Return *answer* as a function whose first call alone has an effect. The function is called at the child's
        end, or when the wait for the child ends."""
        answered: list[Outcome] = []

        def once(outcome: Outcome) -> None:
            if not answered:
                answered.append(outcome)
                answer(outcome)

        self._delegations.setdefault(call_id, []).append(once)
        return once

    def answer_delegation(self, call_id: str, outcome: Outcome) -> None:
        """Complete the wait for the child session that the call *call_id* started, with *outcome*, while the child
        still runs."""
        for answer in self._delegations.pop(call_id, ()):
            answer(outcome)

    def processes(self) -> tuple[PlannedProcess, ...]:
        """Return no processes: the agent of this base class is a function."""
        return ()

    async def list_processes(self) -> tuple[LiveProcess, ...] | None:
        """Return no processes: the agent of this base class is a function."""
        return ()

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        """Return no processes: the agent of this base class is a function."""
        return ()

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Do nothing: an agent that is a function has no process."""

    async def wait_process_exit(self, pid: int) -> None:
        """Do nothing: an agent that is a function has no process."""
        return

    def _drop_call(self, call_id: str) -> None:
        tool_id = self._calls.pop(call_id, None)
        if tool_id is not None:
            if self.session.monitor is not None:
                self.session.monitor.call_closed(tool_id)
            self.registry.system.stop(tool_id, "returned")

    # ------------------------------------------------------------------ the end
    def _report_end(self, exited: AgentExited) -> None:
        """Report the end of the agent, and the end of the turn that the agent was still working on, if any."""
        self._advance(ConnectionPhase.OVER)
        self._conclude("error", exited.reason, exited.status)
        self._send(self.agent_id, exited)
        agent = self.registry.entities.get(self.agent_id)
        if agent is None or agent.ended:
            self.ended.set()
        else:  # the next agent is not created before the last record of this one is appended
            agent.on_ended = self.ended.set
