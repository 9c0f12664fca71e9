"""How an actor ends, and how it comes back: the last room of a cell, which is the actor as the system holds it.

An end goes on in steps that the dispatcher takes: what is unread, the children, the tasks, then the actor itself, which
its supervisor may start again in the same place, with the same ref and mailbox. Nothing waits for ever: a task that
swallows its cancellation is reported with its stack, and abandoned at the deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from actors.actor import (
    Abandoned,
    ActorCrashed,
    CancelSwallowed,
    DeadLetter,
    Down,
    GraceExceeded,
    Killed,
    Normal,
    Shutdown,
)
from actors.errors import ActorRestarting, ActorStopped, StartFailed
from actors.host import stack_of
from actors.mailbox import Envelope
from actors.parking import RAISED, as_error
from actors.place import LazyFields, Phase, Place, RestartHook
from actors.timers import Timer
from actors.working import Workplace

__all__ = ["Cell"]

SWALLOWED_AFTER_S = 0.25
"""A task that still runs this long after its cancel has swallowed it."""
KILL_S = 0.25
"""What a cancelled task gets at least before it is abandoned, however late it is."""

_LIVE, _STOPPING, _EXITED, _STOPPED = Phase.LIVE, Phase.STOPPING, Phase.EXITED, Phase.STOPPED


class Cell(Workplace):
    """One actor as the system holds it. It is the actor's :class:`~actors.actor.Context` and its refs' target."""

    __slots__ = ()

    # ------------------------------------------------------------------ the end
    def stop(self, cause: object = None) -> None:
        self.begin_stop(Shutdown(cause))

    def exit(self) -> None:
        self.begin_stop(Normal())

    def fail(self, error: Exception) -> None:
        """End with *error*, as if the handler had raised it."""
        self.system.report(ActorCrashed(self.id, error))
        self.begin_stop(error)

    def begin_stop(self, reason: object, *, stop_by: float = inf, returning: bool | None = None) -> None:
        """Begin the end. *stop_by* is absolute; a second call may only make it sooner, and give up a return.

        *returning*: whether the supervisor starts it again; if not said, its restart type and the reason decide.
        """
        if self.phase is _LIVE:
            self.returning = self.may_return(reason) if returning is None else returning
            self.phase = _STOPPING
            self.fast, self.going = None, False
            self.reason = reason
            if stop_by < inf:
                self.rare.stop_by = stop_by
            self.advance()
        elif self.phase is not _STOPPED:
            self.hasten(stop_by, give_up=self.phase is _EXITED or returning is False)

    def hasten(self, stop_by: float, *, give_up: bool) -> None:
        if give_up:
            self.returning = False
            if self.phase is _EXITED:
                self.finish()
                return
            self.advance()
        before = self._rare.stop_by if self._rare is not None else inf
        if stop_by < before:
            self.rare.stop_by = stop_by
            for child in (self.below or {}).values():
                child.hasten(stop_by, give_up=False)
            if self.host is not None and self.host.closing:
                self.rare.stop_by = min(before, max(stop_by, self.system.timers.now() + KILL_S))
                self._watch_end()

    def may_return(self, reason: object) -> bool:
        return (
            self.ward is not None
            and self.parent is not None
            and self.parent.phase is _LIVE
            and self.ward.returns(reason)
        )

    def advance(self) -> None:
        """Have the dispatcher look at how far this actor's end has come."""
        if self.phase is _STOPPING:
            self.dispatcher.make_advance(self)

    def step_down(self) -> None:
        """One step of an orderly end: what is unread, the children, then the tasks, then the actor itself."""
        if self.phase is not _STOPPING:
            return
        if not self.returning and self.box is not None and len(self.box):
            self._bounce(self.box.drain())
        if self.below:
            self._stop_children(self.below)
        elif self.host is None or self.host.over:
            self._over()
        elif not self.host.closing:
            self.scope.cancel(self.reason)
            self.host.close()
            self._watch_end()

    def _stop_children(self, below: dict[str, Place]) -> None:
        """The youngest first, one after the other."""
        reason = self.reason if isinstance(self.reason, Shutdown | Killed) else Shutdown(self.reason)
        stop_by = self._rare.stop_by if self._rare is not None else inf
        next(reversed(below.values())).end_with_parent(reason, stop_by)

    def end_with_parent(self, reason: Shutdown | Killed, stop_by: float) -> None:
        """End for good, by a deadline that is the smaller of one's own and the parent's."""
        if self.ward is None:
            self.begin_stop(reason, stop_by=stop_by, returning=False)
        else:
            own = self.system.timers.now() + self.ward.shutdown_s
            why = reason if self.ward.shutdown_s > 0 else Killed(reason.cause)
            self.begin_stop(why, stop_by=min(stop_by, own), returning=False)

    # ------------------------------------------------------------------ tasks that do not end
    def _watch_end(self) -> None:
        """Look again when the tasks should have ended, and before that for those that swallow their cancellation."""
        rare, now = self.rare, self.system.timers.now()
        cancelled_at = now
        if rare.look is not None:
            self.system.timers.cancel(rare.look)
            cancelled_at = rare.look.message
        else:
            rare.stop_by = max(min(rare.stop_by, now + self.shutdown_s), now + KILL_S)
        delay_s = max(min(SWALLOWED_AFTER_S, rare.stop_by - now), 0.0)
        rare.look = self.system.timers.set(self.id, cancelled_at, delay_s, self._look)

    def _look(self, timer: Timer) -> None:
        if self.phase is not _STOPPING or self.host is None:
            return
        if self.host.over:
            self.advance()
            return
        now = self.system.timers.now()
        for task in [one for one in self.rare.tasks if not one.reported]:
            task.reported = True
            after_s = now - timer.message
            self.system.report(CancelSwallowed(self.id, task.name, after_s, stack_of(task.coroutine)))
        if now < self.rare.stop_by:
            self._watch_end()
        else:
            self._abandon()

    def _abandon(self) -> None:
        self.system.report(GraceExceeded(self.id, "cancel", self.shutdown_s))
        self.system.report(Abandoned(self.id, tuple(task.name for task in self.rare.tasks)))
        self._over()

    # ------------------------------------------------------------------ one incarnation is over
    def _over(self) -> None:
        """Nothing of this incarnation is left but its words; then it is down, or gone."""
        if self.host is not None:
            if not (self.host.closing or self.host.ended):
                self.scope.close(self.reason)
                self.host.close()
            self.host.leave_home()
        self._run_stopped()
        if self._rare is not None:
            self._let_go(self._rare)
        if self.returning and self.parent is not None and self.parent.phase is _LIVE and self.ward is not None:
            self._go_down(self.ward)
        else:
            self.finish()

    def _run_stopped(self) -> None:
        stopped = getattr(self.actor, "stopped", None)
        if stopped is not None and not isinstance(self.reason, Killed):
            try:
                self.dispatcher.context.copy().run(stopped, self, self.reason)
            except RAISED as error:
                self.system.report(ActorCrashed(self.id, as_error(error)))

    def _let_go(self, rare: LazyFields) -> None:
        for timer in (*rare.timers.values(), *((rare.look,) if rare.look is not None else ())):
            self.system.timers.cancel(timer)
        rare.timers.clear()
        rare.look = None

    def _go_down(self, ward: RestartHook) -> None:
        """It has ended and may come back: its ref, its mailbox and its place in the tree are kept."""
        self.phase = _EXITED
        rare = self._rare
        if rare is not None:
            for envelope in rare.asks:
                if envelope.reply is not None and not envelope.reply.settled:
                    envelope.reply.fail(ActorRestarting(self.id, self.reason, started=True))
        ward.is_down(self.reason)

    def revive(self) -> None:
        """Start the next incarnation. A factory or a ``started`` that raises is its end."""
        assert self.ward is not None
        assert self.phase is _EXITED
        rare = self._rare
        self.incarnation += 1
        self.host, self.reason, self.returning = None, None, False
        if rare is not None:
            self._rare = fresh = LazyFields()
            fresh.watchers = rare.watchers
        try:
            actor = self.ward.make()
        except RAISED as error:
            failed = StartFailed(self.id, as_error(error))
            self.phase, self.reason, self.returning = _EXITED, failed, True
            self.ward.is_down(failed)
            return
        self.actor = actor
        self.phase, self.going = _LIVE, True
        self.begin()

    def begin(self) -> bool:
        """Run ``started``; ``False`` if it raised, and the actor ends with that error."""
        started = getattr(self.actor, "started", None)
        if started is not None:
            try:
                started(self)
            except RAISED as error:
                failed = error if isinstance(error, StartFailed) else StartFailed(self.id, as_error(error))
                self.begin_stop(failed, returning=self.incarnation > 1)
                return False
        if self.box is not None and len(self.box):
            self.dispatcher.make_runnable(self, first=bool(self.box.control))
        return True

    def finish(self) -> None:
        """The end: nothing waits for this actor any more."""
        if self.phase is _STOPPED:
            return
        self.phase = _STOPPED
        self.returning = False
        rare, box = self._rare, self.box
        self._ref = None  # it and the asks hold this actor, which is freed with its last holder, not by the collector
        if rare is not None:
            left, rare.asks = rare.asks, []
            self._bounce(left)
        if box is not None and (len(box) or box.awaited):
            self._bounce(box.drain())
        self.system.forget(self.id)
        parent = self.parent
        if parent is not None:
            assert parent.below is not None
            del parent.below[self.id]
            if parent.phase is _STOPPING:
                parent.advance()
            elif parent.phase is _LIVE and self.ward is not None:
                self.ward.is_down(self.reason)
        if rare is not None:
            for watcher in [*rare.watchers.values()]:
                watcher(Down(self.id, self.reason, self.incarnation))

    def _bounce(self, envelopes: Sequence[Envelope]) -> None:
        """Nobody will handle these: fail the asks, report the rest."""
        for envelope in envelopes:
            if envelope.reply is None:
                if envelope.token is None:
                    self.system.report(DeadLetter(self.id, envelope.message))
            elif not envelope.reply.settled:
                envelope.reply.fail(ActorStopped(self.id, self.reason))
