"""The end of a session's scope, rung by rung: request, cancel, terminate, kill, abandon.

Each rung has a budget, and the next begins when it is used up. The first two are climbed here; terminate and kill
are the shielded end of every process context, so they happen however a scope is left. A hurried end starts at kill.
Nothing here waits, for a disk or for anything else: an end goes on when the last task or child of its session has
ended, or when a timer says that the rung's time is up. So ten thousand ends are as many values, and no task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import anyio

from actors import Context
from supervisor.abort import ProcessFate
from supervisor.ledger import Cause
from supervisor.lifecycles.events import Ended, OperatorStop
from supervisor.logs import get_logger
from supervisor.tree import EndReport, Tree, Work
from supervisor.vocabulary import AbortReason, Exit, Rung, TransitionReason, Verdict

__all__ = ["SLACK_S", "Endings", "highest"]

SLACK_S = 5.0
"""What a loaded machine may add to the terminate and kill rungs before a scope is given up."""

RECORDED_S = 60.0
"""How long a session's last record waits for those of its turns and agents: they need a disk, its end does not."""

_log = get_logger()


class _Climb:
    """One session's end under way: the rung it is on, since when, and why. ``rung`` is ``None`` once it is over."""

    __slots__ = ("abort_id", "began", "cause", "fates_before", "rung", "work")

    def __init__(self, work: Work, cause: Cause, abort_id: str | None) -> None:
        self.work = work
        self.cause = cause
        self.abort_id = abort_id
        self.rung: Rung | None = Rung.REQUEST
        self.began: float | None = None
        self.fates_before = len(work.fates)


class _Overdue(NamedTuple):
    """The time of a rung is up; with ``None``, that of the last records below a session which is over."""

    session_id: str
    rung: Rung | None


class Endings:
    """All the ends that are under way, and the actor that hears their timers. It outlives every session."""

    def __init__(self, tree: Tree, actor_id: str) -> None:
        self._tree = tree
        self._actor_id = actor_id
        self._climbs: dict[str, _Climb] = {}
        self._rested: deque[_Climb] = deque()
        self._looking = False
        tree.on_rest, tree.on_recorded = self._rest, self._recorded

    def __len__(self) -> int:
        """How many ends are under way."""
        return len(self._climbs)

    def receive(self, ctx: object, message: object) -> None:
        if not isinstance(message, _Overdue):
            _log.error("an end could not be joined", what=str(message))
            return
        climb = self._climbs.get(message.session_id)
        if climb is not None and climb.rung is message.rung:
            self._overdue(climb)

    # ------------------------------------------------------------------ the climb
    def begin(self, work: Work, cause: Cause, abort_id: str | None, *, now: bool) -> None:
        """End everything below a session, then have its last record written. *now*: if that is under way, at once."""
        if now:
            self._hurry(work)
        if work.ending:
            return
        work.ending = work.told = True
        climb = self._climbs[work.session_id] = _Climb(work, cause, abort_id)
        self._end_children(climb)
        if not work.busy:
            climb.rung = Rung.KILL if work.hurried else Rung.REQUEST
            self._rest(work)
        else:
            climb.began = anyio.current_time()
            self._step_to(climb, Rung.KILL if work.hurried else Rung.REQUEST)

    def _end_children(self, climb: _Climb) -> None:
        work, stop = climb.work, None
        for child in work.children.values():
            if not child.told:
                stop = stop or OperatorStop(
                    reason=f"its parent {work.session_id} ended",
                    abort_id=climb.abort_id,
                    abort_reason=AbortReason.PARENT_ABORTED,
                    transition_reason=TransitionReason.ABORTED,
                )
                self._tree.end(child.session_id, stop, cause=climb.cause)

    def _step_to(self, climb: _Climb, rung: Rung) -> None:
        """Do what the rung does, and set the timer for the next one."""
        work, ladder, climb.rung = climb.work, climb.work.policy.ladder, rung
        if rung is Rung.REQUEST:
            if work.link is not None:
                work.link.finish()
            budget_s = ladder.request_s
        elif rung is Rung.CANCEL:
            self._tree.cancel_scope(work.session_id, climb.abort_id or Rung.CANCEL)
            budget_s = ladder.cancel_s + ladder.terminate_s + ladder.kill_s + SLACK_S
        else:
            self._kill(work)
            self._tree.cancel_scope(work.session_id, climb.abort_id or Rung.KILL)
            budget_s = ladder.kill_s + SLACK_S
        self._context.set_timer(work.session_id, budget_s, _Overdue(work.session_id, rung))

    def _kill(self, work: Work) -> None:
        words = "it was ended at once"
        if work.link is not None:
            work.link.kill(Verdict(exit=Exit.ERROR, error=words, abort_reason=AbortReason.SHUTDOWN_SIGNAL))

    def _overdue(self, climb: _Climb) -> None:
        match climb.rung:
            case Rung.REQUEST:
                self._step_to(climb, Rung.CANCEL)
            case Rung.CANCEL:
                self._step_to(climb, Rung.KILL)
            case Rung.KILL:
                climb.rung = Rung.ABANDON
                self._rest(climb.work)
            case _:
                self._conclude(climb)

    def _hurry(self, work: Work) -> None:
        """What is ending below it, and it itself, goes on at the kill rung; what is to end will begin there."""
        pending = [work]
        while pending:
            one = pending.pop()
            one.hurried = True
            climb = self._climbs.get(one.session_id)
            if climb is not None and climb.rung in (Rung.REQUEST, Rung.CANCEL):
                self._step_to(climb, Rung.KILL)
            pending += one.children.values()

    # ------------------------------------------------------------------ the end
    def _rest(self, work: Work) -> None:
        """Nothing works for it any more. The end of one may be what its parent waited for: depth is no recursion."""
        climb = self._climbs.get(work.session_id)
        if climb is None or climb.rung is None:
            return
        self._rested.append(climb)
        if not self._looking:
            self._looking = True
            try:
                while self._rested:
                    self._be_over(self._rested.popleft())
            finally:
                self._looking = False

    def _be_over(self, climb: _Climb) -> None:
        work, rung, took_s = climb.work, climb.rung, 0.0
        if rung is None:
            return
        if climb.began is not None:
            took_s = anyio.current_time() - climb.began
            self._context.cancel_timer(work.session_id)
        if rung is Rung.CANCEL:
            rung = highest(work.fates[climb.fates_before :])
        survivors = sum(abs(fate.survivors) for fate in work.fates)
        work.report = EndReport(rung, took_s, self._tree.ledger.clock.wall.time(), survivors)
        climb.rung = None
        work.leave()
        if work.unrecorded:
            self._context.set_timer(work.session_id, RECORDED_S, _Overdue(work.session_id, None))
        else:
            self._conclude(climb)

    def _recorded(self, work: Work) -> None:
        """Everything below it has its last record."""
        climb = self._climbs.get(work.session_id)
        if climb is not None and climb.rung is None:
            self._context.cancel_timer(work.session_id)
            self._conclude(climb)

    def _conclude(self, climb: _Climb) -> None:
        report = climb.work.report
        assert report is not None, "what is over has a report"
        del self._climbs[climb.work.session_id]
        ended = Ended(rung=report.rung.value, took_s=round(report.took_s, 6), survivors=report.survivors)
        self._tree.tell(climb.work.session_id, ended, cause=climb.cause)

    @property
    def _context(self) -> Context:
        ctx = self._tree.system.context(self._actor_id)
        assert ctx is not None, "it outlives every session"
        return ctx


def highest(fates: Sequence[ProcessFate]) -> Rung:
    """The rung that it took to end these processes, once their scope was cancelled."""
    ended_by = {fate.ended_by for fate in fates}
    if "kill" in ended_by:
        return Rung.KILL
    return Rung.TERMINATE if "terminate" in ended_by else Rung.CANCEL
