"""A ref is all that one actor may hold of another: an id, and ways to send.

``tell`` never waits; ``ask`` waits for room and for an answer, under a deadline, and where it is asked on behalf of a
task that has a deadline too, the smaller counts. The death of the target answers every ask at once.
An answer that comes too late is counted and dropped. An idle actor answers in the asker's own task: nothing is queued
that could be handled now. The deadline of an ask is a timer of the system and not a cancel scope, which would cost
more than the rest of the ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import anyio

from actors import failpoint
from actors.errors import AskTimeout, InvalidOption, MailboxFull
from actors.mailbox import Envelope, Lane, Mailbox
from actors.timers import Timer
from actors.waiter import Backend, Waiter

__all__ = ["CALL", "DEFERRED", "Call", "Deferred", "Ref", "Reply", "Target"]

_NORMAL = Lane.NORMAL
_INF = float("inf")
_SIZED = (str, bytes)
"""What has a size, and so may find no room though there are few messages."""


class Deferred(Enum):
    """The type of :data:`DEFERRED`."""

    DEFERRED = "the answer comes later"


DEFERRED: Final = Deferred.DEFERRED
"""Returned by ``receive``: the envelope's reply will be settled later, by somebody who kept it."""


class Call(NamedTuple):
    """On whose behalf the present task runs: its actor, and the deadline that its work inherits."""

    actor_id: str
    deadline: float | None


CALL: ContextVar[Call | None] = ContextVar("actors.call", default=None)


class Target(Protocol):
    """What a ref needs of the actor behind it."""

    id: str
    fast: deque[Any] | None
    capacity: int
    queued: bool
    late_replies: int
    incarnation: int

    @property
    def backend(self) -> Backend: ...

    @property
    def mailbox(self) -> Mailbox: ...

    def queue(self) -> None: ...

    def deliver(self, envelope: Envelope, lane: Lane, *, in_turn: bool = False) -> None: ...

    def can_answer_in_place(self) -> bool: ...

    def answer_in_place(self, message: Any, cause: Any, timeout_s: float, detach: bool) -> Any: ...

    def set_deadline(self, timeout_s: float, expire: Callable[[], None]) -> Timer: ...

    def cancel_deadline(self, timer: Timer) -> None: ...

    def charge(self) -> bool: ...


class Reply:
    """A one-shot port for an answer."""

    __slots__ = ("_answered", "_cancels", "_closed", "_error", "_target", "_value", "_waiter", "deadline", "detached")

    def __init__(self, target: Target, deadline: float, *, detached: bool = False) -> None:
        self._target = target
        self.deadline = deadline
        self.detached = detached
        """Its asker may go: the message is handled all the same."""
        self._waiter: Waiter | None = None
        self._answered = False
        self._closed = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._cancels: list[Callable[[], None]] | None = None

    @property
    def settled(self) -> bool:
        """Nobody waits any more: it was answered, or the asker has gone."""
        return self._closed or self._answered

    @property
    def answered(self) -> bool:
        """It has its answer: what is still done for it is done for nobody."""
        return self._answered

    @property
    def live(self) -> bool:
        """The message is still worth handling."""
        return self.detached or not self.settled

    def detach(self) -> None:
        """Who handles the message takes it over: from here on its asker may go."""
        self.detached = True

    def resolve(self, value: Any) -> None:
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        self._settle(None, error)

    def on_withdrawal(self, cancel: Callable[[], None]) -> None:
        """Call *cancel* if the asker goes without an answer, unless it detached; at once if it has gone already."""
        if self.detached or self._answered:
            return
        if self._closed:
            cancel()
        elif self._cancels is None:
            self._cancels = [cancel]
        else:
            self._cancels.append(cancel)

    def expire(self, timeout_s: float) -> None:
        """The deadline has come: nothing that follows is heard."""
        if not self.settled:
            self._error = AskTimeout(self._target.id, timeout_s)
            self._close()
            self._wake()

    def _close(self) -> None:
        self._closed = True
        cancels, self._cancels = self._cancels, None
        for cancel in () if self._answered or self.detached else cancels or ():
            cancel()

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self._answered:
            return
        self._answered = True
        if self._closed:
            self._target.late_replies += 1
            return
        self._value, self._error = value, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    async def wait(self) -> Any:
        try:
            if not self.settled:
                self._waiter = self._target.backend.new_waiter()
                await self._waiter.wait()
        finally:
            if not self._closed:
                self._close()
        if self._error is not None:
            raise self._error
        return self._value


class Ref:
    """The address of an actor: valid over restarts, and after the end, when it only says so."""

    __slots__ = ("_target",)

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def incarnation(self) -> int:
        """How often it was started: 1 before its first restart."""
        return self._target.incarnation

    @property
    def late_replies(self) -> int:
        """How many of its answers came after their asker had gone."""
        return self._target.late_replies

    def __repr__(self) -> str:
        return f"Ref({self.id!r})"

    def tell(self, message: Any, *, lane: Lane = _NORMAL, cause: Any = None) -> None:
        """Put *message* into the mailbox and go on.

        Raises:
            ActorStopped: the actor takes no more messages.
            MailboxFull: the mailbox is full (never on the CONTROL lane).
        """
        target = self._target
        fast = target.fast
        plain = lane is _NORMAL and cause is None
        if fast is not None and plain and len(fast) < target.capacity and not isinstance(message, _SIZED):
            fast.append(message)
            if not target.queued:
                target.queue()
            return
        target.deliver(Envelope(message, cause=cause), lane)

    async def ask(
        self, message: Any, *, timeout_s: float, lane: Lane = _NORMAL, cause: Any = None, detach: bool = False
    ) -> Any:
        """Send *message* and wait at most *timeout_s* seconds for room and the answer together.

        Where the asker is cancelled or gives up, the message is not handled any more, and the tasks that were started
        for a deferred answer are cancelled; with *detach* all of that goes on.

        Raises:
            ActorRestarting: the actor crashed while it had the message in hand, and is started again.
            ActorStopped: the actor has stopped, or stopped before it answered.
            AskTimeout: no answer in time.
            InvalidOption: *timeout_s* is no time.
            MailboxFull: not even room in time.
        """
        target = self._target
        timeout_s = self._timeout(timeout_s)
        rested = target.charge()  # else it is queued, which gives the loop up: in the order in which it was asked
        if rested and target.can_answer_in_place() and not failpoint.active("ask.queued", target.id):
            answer = target.answer_in_place(message, cause, timeout_s, detach)
            if type(answer) is not Reply:
                return answer
            return await self._answer(answer, timeout_s)
        reply = Reply(target, target.backend.now() + timeout_s, detached=detach)
        return await self._answer(reply, timeout_s, Envelope(message, reply=reply, cause=cause), lane)

    async def _answer(
        self, reply: Reply, timeout_s: float, envelope: Envelope | None = None, lane: Lane = _NORMAL
    ) -> Any:
        """Deliver the *envelope*, if it was not handled yet, and wait for the answer."""
        target = self._target
        deadline = target.set_deadline(timeout_s, lambda: reply.expire(timeout_s))
        try:
            if envelope is not None:
                await self._deliver(envelope, lane, timeout_s)
            return await reply.wait()
        finally:
            target.cancel_deadline(deadline)

    def _timeout(self, timeout_s: float) -> float:
        try:
            finite = timeout_s < _INF
        except TypeError:
            finite = False
        if not finite:
            raise InvalidOption(f"ask of {self.id!r}", "timeout_s", timeout_s, "give a finite number of seconds")
        call = CALL.get()
        if call is None or call.deadline is None:
            return timeout_s
        return min(timeout_s, call.deadline - self._target.backend.now())

    async def _deliver(self, envelope: Envelope, lane: Lane, timeout_s: float) -> None:
        target = self._target
        try:
            return target.deliver(envelope, lane)
        except MailboxFull as full:  # as it is for a newcomer while somebody waits
            if not full.passing:
                raise
        with anyio.move_on_after(max(timeout_s, 0.0)):
            target.fast = None  # until nobody waits any more
            await target.mailbox.room(target.backend, lambda: target.deliver(envelope, lane, in_turn=True))
            return None
        raise target.mailbox.full(envelope.size)
