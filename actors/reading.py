"""Reading of an actor: messages in, answers out, asks that are answered in place, crashes, timers.

One message at a time, by the dispatcher, or by the asker's own task where the actor is idle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from actors.actor import DEFERRED, ActorCrashed, Crashed, DeadLetter
from actors.errors import ActorRestarting, ActorStopped
from actors.mailbox import Envelope, Lane
from actors.parking import RAISED, as_error
from actors.place import NOTHING, Phase, Place
from actors.ref import Ref, Reply
from actors.scopes import Scope
from actors.timers import Timer

__all__ = ["Reader"]

_CONTROL, _URGENT, _NORMAL = Lane.CONTROL, Lane.URGENT, Lane.NORMAL
_LIVE = Phase.LIVE


class Reader(Place):
    """An actor that handles one message after the other."""

    __slots__ = ()

    def _make_ref(self) -> Ref:
        return Ref(self)

    @property
    @abstractmethod
    def scope(self) -> Scope: ...

    @abstractmethod
    def start_task(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "") -> None: ...

    # ------------------------------------------------------------------ messages in
    def queue(self) -> None:
        """Have a turn, behind those who wait for one already."""
        self.queued = True
        self.dispatcher.runnable.append(self)
        if self.dispatcher.parked is not None:
            self.dispatcher.rouse()

    def deliver(self, envelope: Envelope, lane: Lane, *, in_turn: bool = False) -> None:
        """Put a message into the mailbox. *in_turn*: it has waited for its room, or may go ahead of those who do.

        Raises:
            ActorStopped, MailboxFull: it was not put there.
        """
        if self.phase is not _LIVE and not self.returning:
            raise ActorStopped(self.id, self.reason)
        box = self.box
        (self.mailbox if box is None else box).put(envelope, lane, in_turn=in_turn)
        if lane is _URGENT:
            self.fast = None  # the capacity is no longer that of one lane
        elif lane is _NORMAL and self.fast is None:
            self._open_fast_lane()
        if self.phase is _LIVE:
            if lane is _CONTROL:
                self.dispatcher.make_runnable(self, first=True)
            elif not self.queued:
                self.queue()

    def _open_fast_lane(self) -> None:
        """From now on a message that needs no envelope can go straight into the NORMAL lane."""
        box = self.mailbox
        if self.phase is _LIVE and box.plain and not box.urgent and not box.waiters:
            self.fast = box.normal

    # ------------------------------------------------------------------ messages out
    def ready(self) -> bool:
        """The dispatcher has something to do for it."""
        box = self.box
        return self.going and box is not None and bool(box.normal or box.control or box.urgent)

    def pressing(self) -> bool:
        return self.box is not None and bool(self.box.control)

    def drain(self, most: int) -> int:
        """Handle up to *most* messages; how many were taken."""
        box = self.box
        if box is None:
            return 0
        receive, taken = self.actor.receive, 0
        while self.going:
            normal = box.normal
            if box.pressing:
                item = box.take()
                if item is None:
                    break
                self._handle(item)
            elif normal:
                self.current = item = normal.popleft()
                if type(item) is Envelope:
                    box.left(item, _NORMAL)
                    self._handle(item)
                else:
                    try:
                        receive(self, item)
                    except RAISED as error:
                        self.crash(error)
            else:
                break
            taken += 1
            if taken == most:
                break
        if box.urgent_run and not box.urgent:
            box.urgent_run = 0
        self.current = NOTHING
        self.handled += taken
        return taken

    def _handle(self, item: Any) -> None:
        """Handle one message that may carry more than itself."""
        message = item
        if type(item) is Envelope:
            if (item.token is not None or item.reply is not None) and not self.due(item):
                self.handled -= 1  # it was taken, and no more
                return
            message = item.message
        self.current = item
        try:
            answer = self.actor.receive(self, message)
        except RAISED as error:
            self.crash(error)
        else:
            if type(item) is Envelope and item.reply is not None:
                self.answer(answer)
        finally:
            self.current = NOTHING

    def answer(self, answer: Any) -> None:
        """Settle the ask in hand, if it is one, with what the handler returned."""
        envelope = self.current
        if type(envelope) is Envelope and envelope.reply is not None:
            if answer is DEFERRED:
                self.defer(envelope)
            else:
                envelope.reply.resolve(answer)

    def due(self, envelope: Envelope) -> bool:
        """Is it still to be handled? A timer is done with its message; whoever asked may have gone."""
        reply, timer = envelope.reply, envelope.token
        if isinstance(reply, Reply) and not reply.live:
            return False
        if timer is None:
            return True
        if not timer.live:
            return False
        if isinstance(timer, Timer):
            timer.live = False
            self.rare.timers.pop(timer.key, None)
        return True

    def defer(self, envelope: Envelope) -> None:
        """Remember an ask that will be answered later, so that it fails if it never is."""
        asks = self.rare.asks
        if len(asks) & (len(asks) - 1) == 0:
            asks = self.rare.asks = [one for one in asks if one.reply is not None and not one.reply.settled]
        asks.append(envelope)

    # ------------------------------------------------------------------ asks that are answered in place
    def charge(self) -> bool:
        return self.dispatcher.charge()

    def can_answer(self) -> bool:
        """It is idle, so that an ask can be handled at once."""
        return self.going and self.current is NOTHING and (self.box is None or not (len(self.box) or self.box.waiters))

    def answer_now(self, message: Any, cause: Any, timeout_s: float, detach: bool) -> Any:
        """Handle an ask in the asker's task; the answer, or the :class:`Reply` that will have it, or its error."""
        self.handled += 1
        self.current = message
        self._asked = (timeout_s, detach, cause)
        try:
            answer = self.dispatcher.context.copy().run(self.actor.receive, self, message)
            if answer is not DEFERRED and type(self._asked) is tuple:
                return answer
            envelope = self._asked_envelope()
            self.answer(answer)
        except RAISED as error:
            envelope = self._asked_envelope()
            self.crash(error)
        finally:
            self.current, self._asked = NOTHING, None
        return envelope.reply

    @property
    def envelope(self) -> Envelope | None:
        """The message being handled, as it came. A plain one gets its envelope when it is looked at."""
        if self.current is NOTHING:
            return None
        if type(self.current) is not Envelope:
            self.current = Envelope(self.current)
        envelope: Envelope = self.current
        if type(self._asked) is tuple:
            timeout_s, detached, envelope.cause = self._asked
            envelope.reply = Reply(self, self.backend.now() + timeout_s, detached=detached)
            self._asked = envelope
        return envelope

    def _asked_envelope(self) -> Envelope:
        """The envelope of the ask that is answered in place."""
        envelope = self._asked if type(self._asked) is Envelope else self.envelope
        assert type(envelope) is Envelope
        return envelope

    def set_deadline(self, timeout_s: float, expire: Callable[[], None]) -> Timer:
        return self.system.timers.set(self.id, None, max(timeout_s, 0.0), lambda timer: expire())

    def cancel_deadline(self, timer: Timer) -> None:
        self.system.timers.cancel(timer)

    # ------------------------------------------------------------------ crashes
    def crash(self, error: BaseException) -> None:
        """The handler raised with the message in hand: that is this actor's end, or the end of this incarnation."""
        error = as_error(error)  # whoever asked must not take it for its own cancellation
        self.system.report(ActorCrashed(self.id, error))
        envelope, reason = self.envelope, Crashed(error)
        returns = self.may_return(reason) if self.phase is _LIVE else self.returning
        if envelope is not None:
            self._lost(envelope, error, returns)
        self.current = NOTHING
        self.begin_stop(reason)

    def _lost(self, envelope: Envelope, error: Exception, returns: bool) -> None:
        if envelope.reply is None:
            self.system.report(DeadLetter(self.id, envelope.message, "crashed"))
        elif returns:
            failed = ActorRestarting(self.id, Crashed(error), started=True)
            failed.__cause__ = error
            envelope.reply.fail(failed)
        else:
            envelope.reply.fail(error)

    # ------------------------------------------------------------------ timers
    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None:
        timer = self.system.timers.set(key, (message, cause), delay_s, self._fire)
        self.cancel_timer(key)
        self.rare.timers[key] = timer

    def cancel_timer(self, key: str) -> None:
        timer = self._rare.timers.pop(key, None) if self._rare is not None else None
        if timer is not None:
            self.system.timers.cancel(timer)

    def read_timer(self, key: str) -> float | None:
        timer = self._rare.timers.get(key) if self._rare is not None else None
        return None if timer is None else max(0.0, timer.deadline - self.system.timers.now())

    def _fire(self, timer: Timer) -> None:
        if self.phase is _LIVE:
            message, cause = timer.message
            self.deliver(Envelope(message, token=timer, cause=cause), Lane.URGENT)

    # ------------------------------------------------------------------ oneself
    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None:
        self.deliver(Envelope(message), lane, in_turn=True)
