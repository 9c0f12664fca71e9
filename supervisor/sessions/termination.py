"""Terminate sessions, turns and tool calls within a bounded time.

Theory of operation
-------------------
A :class:`Termination` passes through stages, gentlest first. Each stage has an action and a deadline; at the deadline
the next stage begins. There are three kinds, each with its own table of stages:

==========  ============================  ==================================  =============================
stage       session (this module)         turn (``sessions.turn``)            tool call (``tool_calls``)
==========  ============================  ==================================  =============================
request     the agent closes when idle    the agent is asked to interrupt      the agent is asked to end it
cancel      the session's scope is left
kill        the agent is killed           the agent is killed                  its processes are killed
exiting     the kernel is waited for      the same, before the kill            the kernel is waited for
abandon     what still runs is reported                                        its turn is interrupted
==========  ============================  ==================================  =============================

TERMINATE is no stage of these tables: when the session's scope is left, each process context sends SIGTERM and, after
the budget of that stage, SIGKILL. The shim of each process has the same two budgets, since the shim acts also when the
supervisor is dead.

EXITING is entered only if a killed process is still there that runs no code any more, since the kernel is releasing
what the process holds (``LiveSession.waits_for_kernel``). The stage has a budget of its own, ``EXITING_S``, which no
deadline of an abort counts.

Terminating a session ends everything below it and then appends the session's last record, ``Ended``. A stage ends early
as soon as nothing works for the session. Example: a child session, and a tool of the parent that ignores SIGTERM:

    0.0 s   begin(parent): the child is requested to stop; stage request
    0.1 s   the child's agent exits                                      -> Ended(child, request)
   10.0 s   request budget spent: cancel; the tool's process context is left and sends SIGTERM
   12.0 s   SIGKILL; the shim reports that the process tree is gone      -> Ended(parent, kill)

Invariants
----------
* A termination is one object and one timer. Ten thousand sessions may be aborted at once, so the termination of a
  session has no task.
* Nothing here awaits: an abort does not depend on the disk (docs/spec, rule 13). Only ``Ended`` needs the journal.
  ``Ended`` comes after the last records of the session's turns and agents, so that no reader of the journal sees a
  session end before its parts; while the journal cannot be written the wait for these records is extended.
* Stages only advance and deadlines only become earlier.
* Finishing a child may finish its parent, and so on upwards. Such follow-up checks are queued, not called: a session
  tree may be deeper (2,000 levels are tested) than the Python stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import ClassVar, NamedTuple

import anyio

from actors import ActorSystem, Context
from actors.timers import Timer, TimerService
from supervisor.lifecycles.events import Ended, OperatorStop, StageBegan
from supervisor.lifecycles.types import AbortReason, CancelMode, Exit, TerminationStage, TransitionReason, Verdict
from supervisor.policies.abort_plan import ProcessFate, total_survivors
from supervisor.policies.abort_request import EXITING_S, AbortRequest, StageDeadlines, same_abort, stage_deadlines
from supervisor.ports.logs import get_logger
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase, TerminationReport

SLACK_S = 5.0
"""Default, in seconds, of the time that a slow, loaded machine may add to the stages terminate and kill of a session
before its scope is abandoned."""

RECORDED_S = 60.0
"""Seconds that ``Ended`` waits for the last records of the session's turns and agents. The wait is extended while the
journal cannot be written."""

ROUNDING_S = 1e-6
"""Largest difference, in seconds, of two deadlines that count as equal: a deadline is converted to a difference and
back."""

_log = get_logger()


class Termination(ABC):
    """Base class of a termination that is being carried out. A subclass defines the table: the ``stages``, their
    actions and their deadlines."""

    __slots__ = ("_timer", "stage", "timers")

    stages: ClassVar[tuple[TerminationStage, ...]]

    def __init__(self, timers: TimerService) -> None:
        self.timers = timers
        self.stage: TerminationStage | None = None
        """Present stage; ``None`` before the first stage, and after the end of the termination."""
        self._timer: Timer | None = None

    @abstractmethod
    def act(self, stage: TerminationStage) -> None:
        """Perform the action of *stage*. An implementation must not wait."""

    @abstractmethod
    def deadline(self, stage: TerminationStage) -> float | None:
        """Return the time at which *stage* is over (monotonic seconds); ``None`` for the last stage."""

    def applies(self, stage: TerminationStage) -> bool:
        """Return whether *stage* is needed now; a stage that is not needed is skipped."""
        return True

    def enter(self, stage: TerminationStage) -> None:
        """Begin *stage*: perform its action, then set the timer for the next stage."""
        self.stage = stage
        self.act(stage)
        if self.stage is stage:  # the action may have ended the termination
            self.reschedule()

    def reschedule(self) -> None:
        """Set the timer of the present stage again, because the stage's deadline has changed."""
        assert self.stage is not None, "a termination that is over has no timer"
        ends_at = self.deadline(self.stage)
        if ends_at is None:
            self.cancel_timer()
        else:
            self.call_at(ends_at, self._advance)

    def finish(self) -> None:
        """End the termination, so that no further stage begins."""
        self.stage = None
        self.cancel_timer()

    def call_at(self, moment: float, call: Callable[[], None]) -> None:
        """Call the function *call* at the time *moment* (monotonic seconds), by the one timer of this termination."""
        self.cancel_timer()
        self.set_timer(max(moment - self.timers.now(), 0.0), call)

    def _advance(self) -> None:
        assert self.stage is not None, "the timer is cancelled when the termination is over"
        later = self.stages[self.stages.index(self.stage) + 1 :]
        self.enter(next(stage for stage in later if self.applies(stage)))

    def set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        def fire(_: Timer) -> None:
            self._timer = None  # a timer that has fired must not be cancelled
            try:
                call()
            except Exception:  # here it would end the task that fires all timers
                _log.exception("a stage of a termination failed")

        self._timer = self.timers.set(None, None, delay_s, fire)

    def cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self.timers.cancel(timer)


class StageBudgetSpent(NamedTuple):
    """Message that the timer of a session's termination sends at the end of a stage; ``call`` is the function to call
    then."""

    call: Callable[[], None]


class Heartbeat:
    """Message that shows, by being handled, that the actor and the kernel's dispatcher are alive."""

    def __init__(self) -> None:
        self.handled = anyio.Event()


class Background:
    """Actor in whose scope the tasks run that outlive every session.

    Args:
        actor_id: id of the actor, which the caller starts.
    """

    def __init__(self, system: ActorSystem, actor_id: str) -> None:
        self.actor_id = actor_id
        self._system = system
        self._checks: deque[Callable[[], None]] = deque()
        self._is_checking = False

    def receive(self, ctx: object, message: object) -> None:
        if isinstance(message, StageBudgetSpent):
            message.call()
        elif isinstance(message, Heartbeat):
            message.handled.set()
        else:
            _log.error("a task of the supervisor failed", what=str(message))

    @property
    def context(self) -> Context:
        ctx = self._system.context(self.actor_id)
        assert ctx is not None, "this actor outlives every session"
        return ctx

    def enqueue(self, check: Callable[[], None]) -> None:
        """Run *check* after the checks that are queued already. A check may queue other checks, so that a deep tree
        causes no recursion."""
        self._checks.append(check)
        if not self._is_checking:
            self._is_checking = True
            try:
                while self._checks:
                    self._checks.popleft()()
            finally:
                self._is_checking = False


class SessionTermination(Termination):
    """Termination of one session and of everything below it.

    Args:
        slack_s: seconds that a slow, loaded machine may add to the stages terminate and kill.
        abort_id, cause: abort that the termination belongs to, and the cause of everything that it does.
        began: time at which the termination began (monotonic seconds); earlier than now if an earlier supervisor began
            it.
    """

    __slots__ = (
        "_background",
        "_fates_before",
        "_is_over",
        "_outages",
        "_slack_s",
        "abort_id",
        "began",
        "cause",
        "session",
    )

    stages = (
        TerminationStage.REQUEST,
        TerminationStage.CANCEL,
        TerminationStage.KILL,
        TerminationStage.EXITING,
        TerminationStage.ABANDON,
    )

    def __init__(
        self,
        session: LiveSession,
        background: Background,
        cause: Cause,
        abort_id: str | None,
        *,
        began: float,
        slack_s: float,
    ) -> None:
        super().__init__(session.registry.system.timers)
        self._background, self.session, self._slack_s = background, session, slack_s
        self.cause, self.abort_id, self.began = cause, abort_id, began
        self._fates_before = len(session.fates)
        self._is_over = False
        self._outages = 0
        """Number of journal outages that had ended when ``Ended`` began to wait for the last records of turns and
        agents."""

    def begin(self) -> None:
        """Stop the children, give another parent to those that may outlive the session, and enter the first stage."""
        session = self.session
        if session.stop_request is None:  # the session's own last error is the reason
            session.stop_request = AbortRequest(
                abort_id=None,
                reason=session.data.last_error,
                severity=TerminationStage.REQUEST,
                deadline=self.began + session.policy.ladder.total_s,
            )
        session.advance(SessionPhase.TERMINATING)
        self._stop_children()
        self._detach_survivors()
        first = TerminationStage.KILL if session.kill_at_once else TerminationStage.REQUEST
        if session.busy:
            self.enter(first)
        else:
            self.stage = first
            self.on_idle()

    # ------------------------------------------------------------------ stages
    @property
    def due(self) -> StageDeadlines:
        """Deadlines of all stages, in seconds after ``began``; a later request to stop may make them earlier."""
        request = self.session.stop_request
        within_s = request.deadline - self.began if request is not None else None
        return stage_deadlines(self.session.policy.ladder, within_s)

    def act(self, stage: TerminationStage) -> None:
        session = self.session
        match stage:
            case TerminationStage.REQUEST:
                if session.connection is not None:
                    session.connection.close_when_idle()
            case TerminationStage.CANCEL:
                session.registry.cancel_scope(session.session_id, self.abort_id or stage)
            case TerminationStage.KILL:
                if session.connection is not None:
                    words = "it was ended at once"
                    intent = Verdict(exit=Exit.ERROR, error=words, abort_reason=AbortReason.SHUTDOWN_SIGNAL)
                    session.connection.kill(intent)
                session.registry.cancel_scope(session.session_id, self.abort_id or stage)
            case TerminationStage.ABANDON:
                self.on_idle()

    def applies(self, stage: TerminationStage) -> bool:
        return stage is not TerminationStage.EXITING or self.session.waits_for_kernel

    def deadline(self, stage: TerminationStage) -> float | None:
        ladder, due = self.session.policy.ladder, self.due
        match stage:
            case TerminationStage.REQUEST:
                return self.began + due.request_s
            case TerminationStage.CANCEL if due.kill_s < ladder.total_s - ROUNDING_S:
                return self.began + due.terminate_s  # no time for the process contexts to terminate first
            case TerminationStage.CANCEL:
                return self.began + due.kill_s + self._slack_s
            case TerminationStage.KILL:
                return self.timers.now() + ladder.kill_s + self._slack_s
            case TerminationStage.EXITING:
                return self.timers.now() + EXITING_S + self._slack_s
            case _:
                return None

    def reschedule(self) -> None:
        super().reschedule()
        self._report_stage()

    def _report_stage(self) -> None:
        """Tell the session in which stage its termination is, and until when, unless its data say so already."""
        assert self.stage is not None, "the stage has just been entered"
        ends_at, known = self.deadline(self.stage), self.session.data.ending
        wall = self.session.registry.journal_writer.clock.wall
        until = None if ends_at is None else wall.time() + ends_at - self.timers.now()
        is_sooner = until is not None and known is not None and until < (known.deadline or inf) - ROUNDING_S
        if known is None or known.stage is not self.stage or is_sooner:
            began = StageBegan(stage=self.stage, until=until)
            self.session.registry.send(self.session.session_id, began, cause=self.cause)

    def set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        # As a message to an actor: what the dispatcher has for others at that moment comes first.
        self._background.context.set_timer(self.session.session_id, delay_s, StageBudgetSpent(call))

    def cancel_timer(self) -> None:
        self._background.context.cancel_timer(self.session.session_id)

    def _is_gentle(self) -> bool:
        """Return whether the present stage is one that a more urgent request can still shorten."""
        return self.stage in (TerminationStage.REQUEST, TerminationStage.CANCEL)

    # ------------------------------------------------------------------ children
    def _stop_children(self) -> None:
        """Request every child session to stop, except children with the cancel mode ABANDON.

        A child that the session waits for gets the same deadline. A child that the same abort has already requested
        to stop, with a deadline that is not later, is not requested again.
        """
        session, stop = self.session, None
        if not session.children:
            return
        deadline = self.began + self.due.kill_s
        for child in list(session.children.values()):
            waits, known = child.mode is CancelMode.WAIT_COMPLETED, child.stop_request
            is_asked = known is not None and same_abort(known, self.abort_id)
            in_time = not waits or (known is not None and known.deadline <= deadline + ROUNDING_S)
            if child.mode is CancelMode.ABANDON or (is_asked and in_time):
                continue
            stop = stop or OperatorStop(
                reason=f"its parent {session.session_id} ended",
                abort_id=self.abort_id,
                abort_reason=AbortReason.PARENT_ABORTED,
                transition_reason=TransitionReason.ABORTED,
            )
            within_s = deadline - self.timers.now() if waits else None
            child.request_stop(stop, cause=self.cause, within_s=within_s)

    def _detach_survivors(self) -> None:
        """Give another parent to every child session that may outlive the session."""
        session = self.session
        for child in [one for one in session.children.values() if one.mode is not CancelMode.WAIT_COMPLETED]:
            if child.ended:
                continue  # its last record is on its way: nothing is left that could outlive this session
            if child.mode is CancelMode.WAIT_REQUESTED:
                session.hold_until(child.reached(SessionPhase.TERMINATING))
            child.reparent(self.cause, self.abort_id)

    # ------------------------------------------------------------------ more urgent
    def skip_to_kill(self) -> None:
        """Enter the kill stage, unless the termination is there already or over."""
        if self._is_gentle():
            self.enter(TerminationStage.KILL)

    def on_deadline_shortened(self) -> None:
        """Set the timer, and the deadlines of the children, by the stop request, whose deadline is earlier now."""

        def shorten() -> None:
            if self._is_gentle():
                self.reschedule()
                self._stop_children()

        if self._is_gentle():
            self._background.enqueue(shorten)

    # ------------------------------------------------------------------ finish
    def on_idle(self) -> None:
        """Finish the termination: no task and no child works for the session any more."""
        if self.stage is not None:
            self._background.enqueue(self._finish)

    def _finish(self) -> None:
        session, stage = self.session, self.stage
        if stage is None:
            return
        took_s = max(0.0, self.timers.now() - self.began)
        fates = session.fates[self._fates_before :]
        if stage is TerminationStage.CANCEL or (stage is TerminationStage.KILL and any(one.exiting_s for one in fates)):
            stage = stage_of_fates(fates)
        survivors = total_survivors(fate.survivors for fate in session.fates)
        session.report = TerminationReport(stage, took_s, session.registry.journal_writer.clock.wall.time(), survivors)
        self.finish()
        session.advance(SessionPhase.FINISHED)  # only after the report is there: the abort's receipt reads it
        if session.unrecorded:
            self._await_records()
        else:
            self._append_ended()

    def _await_records(self) -> None:
        disk = self.session.registry.journal_writer.disk
        self._outages = disk.outages

        def give_up() -> None:
            if disk.outage is not None or disk.outages > self._outages:
                self._await_records()  # the records have only just begun to be written, or cannot be yet
            else:
                self._append_ended()

        self.call_at(self.timers.now() + RECORDED_S, give_up)

    def on_recorded(self) -> None:
        """Append ``Ended`` to the session's log, because every turn, agent and child of the session has its last
        record."""
        if self.stage is None and not self._is_over:
            self.finish()
            self._append_ended()

    def _append_ended(self) -> None:
        session, report = self.session, self.session.report
        assert report is not None, "a session that has finished has a report"
        self._is_over = True
        ended = Ended(rung=report.stage.value, took_s=round(report.took_s, 6), survivors=report.survivors)
        session.registry.send(session.session_id, ended, cause=self.cause)


def stage_of_fates(fates: Sequence[ProcessFate]) -> TerminationStage:
    """Return the most forceful stage that was needed to end the processes with these *fates*, after their scope was
    cancelled."""
    ended_by = {fate.ended_by for fate in fates}
    if any(fate.exiting_s for fate in fates):
        return TerminationStage.EXITING
    if "kill" in ended_by:
        return TerminationStage.KILL
    return TerminationStage.TERMINATE if "terminate" in ended_by else TerminationStage.CANCEL
