"""The end of a session's scope, rung by rung: request, cancel, terminate, kill, abandon.

Each rung has a budget, and the next begins when it is used up. The first two are climbed here; terminate and kill
are the shielded end of every process context, so they happen however a scope is left. A hurried end starts at kill.
Nothing here waits, for a disk or for anything else: an end goes on when the last task or child of its session has
ended, or when a timer says that the rung's time is up. So ten thousand ends are as many values, and no task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio

from actors import Context
from supervisor.lifecycles.events import Ended, OperatorStop
from supervisor.lifecycles.types import AbortReason, CancelMode, Exit, TerminationStage, TransitionReason, Verdict
from supervisor.policies.abort_deadline import StageDeadlines, stage_deadlines
from supervisor.policies.abort_plan import ProcessFate, total_survivors
from supervisor.policies.abort_request import AbortState, same_abort
from supervisor.ports.logs import get_logger
from supervisor.runtime.availability import JournalAvailability
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession, SessionPhase, TerminationReport

__all__ = ["SLACK_S", "Heartbeat", "TerminationService", "highest"]

SLACK_S = 5.0
"""What a loaded machine may add to the terminate and kill rungs before a scope is given up."""

RECORDED_S = 60.0
"""How long a session's last record waits for those of its turns and agents: they need a disk, its end does not. While
the disk is down it waits on: its own record needs the same disk."""

_log = get_logger()

ROUNDING_S = 1e-6
"""Two deadlines that differ by less are the same one, taken there and back through a difference."""


class Termination:
    """One session's end under way: the rung it is on, since when, and why. ``rung`` is ``None`` once it is over."""

    __slots__ = ("abort_id", "began", "cause", "fates_before", "outages", "rung", "session")

    def __init__(self, session: LiveSession, cause: Cause, abort_id: str | None, began: float) -> None:
        self.session = session
        self.cause = cause
        self.abort_id = abort_id
        self.rung: TerminationStage | None = TerminationStage.REQUEST
        self.began = began
        self.fates_before = len(session.fates)
        self.outages = 0
        """How many outages of the journal's disk were over when it began to wait for last records."""

    @property
    def due(self) -> StageDeadlines:
        """When each rung is over, in seconds after it began. Looked up again whenever its end is pressed."""
        asked = self.session.stop_request
        within_s = asked.deadline - self.began if asked is not None else None
        return stage_deadlines(self.session.policy.ladder, within_s)


class Heartbeat:
    """A message that only shows, by being handled, that the actor and the kernel's dispatcher are alive."""

    def __init__(self) -> None:
        self.handled = anyio.Event()


class StageBudgetSpent(NamedTuple):
    """The time of a rung is up; with ``None``, that of the last records below a session which is over."""

    session_id: str
    rung: TerminationStage | None


class TerminationService:
    """All the ends that are under way, and the actor that hears their timers. It outlives every session."""

    def __init__(self, registry: EntityRegistry, actor_id: str) -> None:
        self._registry = registry
        self._actor_id = actor_id
        self._climbs: dict[str, Termination] = {}
        self._rested: deque[Callable[[], None]] = deque()
        self._looking = False
        registry.on_idle, registry.on_recorded, registry.on_deadline_shortened = (
            self._rest,
            self._recorded,
            self._pressed,
        )

    def __len__(self) -> int:
        """How many ends are under way."""
        return len(self._climbs)

    def receive(self, ctx: object, message: object) -> None:
        if isinstance(message, Heartbeat):
            message.handled.set()
            return
        if not isinstance(message, StageBudgetSpent):
            _log.error("an end could not be joined", what=str(message))
            return
        climb = self._climbs.get(message.session_id)
        if climb is not None and climb.rung is message.rung:
            self._overdue(climb)

    # ------------------------------------------------------------------ the climb
    def begin(
        self, session: LiveSession, cause: Cause, abort_id: str | None, *, now: bool, elapsed_s: float = 0.0
    ) -> None:
        """End everything below a session, then have its last record written. *now*: if that is under way, at once.

        *elapsed_s*: an end that an earlier supervisor began goes on, and is that many seconds old already.
        """
        if now:
            self._hurry(session)
        if session.is_terminating:
            return
        began = self._registry.system.timers.now() - elapsed_s
        if not session.is_stopping:
            session.stopped_by_seq = cause.seq  # by itself, or before its supervisor was killed
        session.stop_request = session.stop_request or self._unasked(session, began)
        session.advance(SessionPhase.TERMINATING)
        climb = Termination(session, cause, abort_id, began)
        self._end_children(climb)
        self._climbs[session.session_id] = climb
        first = TerminationStage.KILL if session.kill_at_once else TerminationStage.REQUEST
        if session.busy:
            self._step_to(climb, first)
        else:
            climb.rung = first
            self._rest(session)

    def _unasked(self, session: LiveSession, began: float) -> AbortState:
        """It ends by itself: its own last error is the first reason."""
        reason = self._registry.entity(session.session_id).data.last_error
        deadline = began + session.policy.ladder.total_s
        return AbortState(abort_id=None, reason=reason, severity=TerminationStage.REQUEST, deadline=deadline)

    def _end_children(self, climb: Termination) -> None:
        """Tell the child sessions, each as its cancel mode says; who may outlive this session gets another parent."""
        session = climb.session
        self._tell_children(climb)
        for child in [one for one in session.children.values() if one.mode is not CancelMode.WAIT_COMPLETED]:
            entity = self._registry.entities.get(child.session_id)
            if entity is not None and entity.ended:
                continue  # there is nothing of it to live on: its last record is on its way
            if child.mode is CancelMode.WAIT_REQUESTED:
                session.hold_until(child.reached(SessionPhase.TERMINATING))
            self._registry.reparent(child, climb.cause, climb.abort_id)

    def _tell_children(self, climb: Termination) -> None:
        """Who is waited for has no longer than this session; who was told so already is not told again."""
        session, stop = climb.session, None
        if not session.children:
            return
        deadline = climb.began + climb.due.kill_s
        for child in list(session.children.values()):
            waits = child.mode is CancelMode.WAIT_COMPLETED
            known = child.stop_request
            if child.mode is CancelMode.ABANDON or (
                known is not None
                and same_abort(known, climb.abort_id)
                and (not waits or known.deadline <= deadline + ROUNDING_S)
            ):
                continue
            stop = stop or _parent_ended(session, climb.abort_id)
            within_s = deadline - self._registry.system.timers.now() if waits else None
            self._registry.request_stop(child.session_id, stop, cause=climb.cause, within_s=within_s)

    def _step_to(self, climb: Termination, rung: TerminationStage) -> None:
        """Do what the rung does, and set the timer for the next one."""
        session, climb.rung = climb.session, rung
        if rung is TerminationStage.REQUEST:
            if session.connection is not None:
                session.connection.close_when_idle()
        elif rung is TerminationStage.CANCEL:
            self._registry.cancel_scope(session.session_id, climb.abort_id or TerminationStage.CANCEL)
        else:
            self._kill(session)
            self._registry.cancel_scope(session.session_id, climb.abort_id or TerminationStage.KILL)
        self._set_timer(climb, rung)

    def _set_timer(self, climb: Termination, rung: TerminationStage) -> None:
        ladder, due = climb.session.policy.ladder, climb.due
        if rung is TerminationStage.REQUEST:
            left_s = climb.began + due.request_s - self._registry.system.timers.now()
        elif rung is TerminationStage.CANCEL:
            # Process contexts climb terminate and kill by themselves; where there is no time for that, they are told.
            give_way_s = due.terminate_s if due.kill_s < ladder.total_s - ROUNDING_S else due.kill_s + SLACK_S
            left_s = climb.began + give_way_s - self._registry.system.timers.now()
        else:
            left_s = ladder.kill_s + SLACK_S
        session_id = climb.session.session_id
        self._context.set_timer(session_id, max(left_s, 0.0), StageBudgetSpent(session_id, rung))

    def _kill(self, session: LiveSession) -> None:
        words = "it was ended at once"
        if session.connection is not None:
            session.connection.kill(Verdict(exit=Exit.ERROR, error=words, abort_reason=AbortReason.SHUTDOWN_SIGNAL))

    def _overdue(self, climb: Termination) -> None:
        match climb.rung:
            case TerminationStage.REQUEST:
                self._step_to(climb, TerminationStage.CANCEL)
            case TerminationStage.CANCEL:
                self._step_to(climb, TerminationStage.KILL)
            case TerminationStage.KILL:
                climb.rung = TerminationStage.ABANDON
                self._rest(climb.session)
            case _ if self._disk.outage is not None or self._disk.outages > climb.outages:
                self._await_records(climb)  # what waited for the disk has only just begun to be written
            case _:
                self._conclude(climb)

    def _await_records(self, climb: Termination) -> None:
        climb.outages = self._disk.outages
        session_id = climb.session.session_id
        self._context.set_timer(session_id, RECORDED_S, StageBudgetSpent(session_id, None))

    # ------------------------------------------------------------------ more urgent than before
    def _hurry(self, session: LiveSession) -> None:
        """What is ending below it, and it itself, goes on at the kill rung; what is to end will begin there."""
        pending = [session]
        while pending:
            one = pending.pop()
            one.kill_at_once = True
            climb = self._climbs.get(one.session_id)
            if climb is not None and climb.rung in (TerminationStage.REQUEST, TerminationStage.CANCEL):
                self._step_to(climb, TerminationStage.KILL)
            pending += [child for child in one.children.values() if child.mode is CancelMode.WAIT_COMPLETED]

    def _pressed(self, session: LiveSession) -> None:
        """Its deadline is sooner now: so is that of each rung, and of whom it waits for."""
        climb = self._climbs.get(session.session_id)
        if climb is not None and climb.rung in (TerminationStage.REQUEST, TerminationStage.CANCEL):
            self._soon(lambda: self._press(climb))

    def _press(self, climb: Termination) -> None:
        if climb.rung in (TerminationStage.REQUEST, TerminationStage.CANCEL):
            self._set_timer(climb, climb.rung)
            self._tell_children(climb)

    # ------------------------------------------------------------------ the end
    def _rest(self, session: LiveSession) -> None:
        """Nothing works for it any more. The end of one may be what its parent waited for."""
        climb = self._climbs.get(session.session_id)
        if climb is not None and climb.rung is not None:
            self._soon(lambda: self._be_over(climb))

    def _soon(self, look: Callable[[], None]) -> None:
        """One after the other: what follows from a look is looked at next, so that depth is no recursion."""
        self._rested.append(look)
        if not self._looking:
            self._looking = True
            try:
                while self._rested:
                    self._rested.popleft()()
            finally:
                self._looking = False

    def _be_over(self, climb: Termination) -> None:
        session, rung = climb.session, climb.rung
        if rung is None:
            return
        took_s = max(0.0, self._registry.system.timers.now() - climb.began)
        self._context.cancel_timer(session.session_id)
        if rung is TerminationStage.CANCEL:
            rung = highest(session.fates[climb.fates_before :])
        survivors = total_survivors(fate.survivors for fate in session.fates)
        session.report = TerminationReport(rung, took_s, self._registry.journal_writer.clock.wall.time(), survivors)
        climb.rung = None
        session.advance(SessionPhase.FINISHED)
        if session.unrecorded:
            self._await_records(climb)
        else:
            self._conclude(climb)

    def _recorded(self, session: LiveSession) -> None:
        """Everything below it has its last record."""
        climb = self._climbs.get(session.session_id)
        if climb is not None and climb.rung is None:
            self._context.cancel_timer(session.session_id)
            self._conclude(climb)

    def _conclude(self, climb: Termination) -> None:
        report = climb.session.report
        assert report is not None, "what is over has a report"
        del self._climbs[climb.session.session_id]
        ended = Ended(rung=report.rung.value, took_s=round(report.took_s, 6), survivors=report.survivors)
        self._registry.send(climb.session.session_id, ended, cause=climb.cause)

    @property
    def _disk(self) -> JournalAvailability:
        return self._registry.journal_writer.disk

    @property
    def _context(self) -> Context:
        ctx = self._registry.system.context(self._actor_id)
        assert ctx is not None, "it outlives every session"
        return ctx


def _parent_ended(session: LiveSession, abort_id: str | None) -> OperatorStop:
    return OperatorStop(
        reason=f"its parent {session.session_id} ended",
        abort_id=abort_id,
        abort_reason=AbortReason.PARENT_ABORTED,
        transition_reason=TransitionReason.ABORTED,
    )


def highest(fates: Sequence[ProcessFate]) -> TerminationStage:
    """The rung that it took to end these processes, once their scope was cancelled."""
    ended_by = {fate.ended_by for fate in fates}
    if "kill" in ended_by:
        return TerminationStage.KILL
    return TerminationStage.TERMINATE if "terminate" in ended_by else TerminationStage.CANCEL
