"""Refs: addresses of actors, with the ways to send a message.

``tell`` never waits. ``ask`` waits for room in the mailbox and for the answer, under a deadline; if the asking task
works for an ask with a deadline of its own, the earlier deadline counts. If the target ends, all asks fail at once. An
answer that comes too late is counted and dropped. An idle actor answers in the asking task, without a queue. The
deadline of an ask is a timer of the system, since a cancel scope would take longer than the rest of the ask.
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

_NORMAL = Lane.NORMAL
_INF = float("inf")
_SIZED = (str, bytes)
"""Types of messages with a size, for which the mailbox may have no room."""


class Deferred(Enum):
    """Type of :data:`DEFERRED`."""

    DEFERRED = "the answer comes later"


DEFERRED: Final = Deferred.DEFERRED
"""Return value of ``receive`` that defers the reply: the handler stores the envelope's reply port, and replies
later."""


class Call(NamedTuple):
    """Actor to which the running task belongs, and the deadline of the ask for which the task works."""

    actor_id: str
    deadline: float | None


CALL: ContextVar[Call | None] = ContextVar("actors.call", default=None)


class Target(Protocol):
    """Protocol of the part of an actor that a ref needs."""

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
    """Receiver of the one reply to an ask."""

    __slots__ = ("_answered", "_cancels", "_closed", "_error", "_target", "_value", "_waiter", "deadline", "detached")

    def __init__(self, target: Target, deadline: float, *, detached: bool = False) -> None:
        self._target = target
        self.deadline = deadline
        self.detached = detached
        """True if the message is handled also after the asker has gone."""
        self._waiter: Waiter | None = None
        self._answered = False
        self._closed = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._cancels: list[Callable[[], None]] | None = None

    @property
    def settled(self) -> bool:
        """Whether the ask has its reply, or the asker has stopped waiting."""
        return self._closed or self._answered

    @property
    def answered(self) -> bool:
        """Whether the ask has its reply."""
        return self._answered

    @property
    def live(self) -> bool:
        """Whether the message of the ask is still to be handled."""
        return self.detached or not self.settled

    def detach(self) -> None:
        """Let the message be handled even if the asker stops waiting."""
        self.detached = True

    def resolve(self, value: Any) -> None:
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        self._settle(None, error)

    def on_withdrawal(self, cancel: Callable[[], None]) -> None:
        """Call *cancel* if the asker stops waiting without a reply (at once if it has stopped already); not if the ask
        is detached."""
        if self.detached or self._answered:
            return
        if self._closed:
            cancel()
        elif self._cancels is None:
            self._cancels = [cancel]
        else:
            self._cancels.append(cancel)

    def expire(self, timeout_s: float) -> None:
        """Fail the ask at its deadline; a later reply is dropped."""
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
    """Address of an actor, valid over restarts. After the actor's end every use raises ``ActorStopped``."""

    __slots__ = ("_target",)

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def incarnation(self) -> int:
        """Number of the actor's starts: 1 before its first restart."""
        return self._target.incarnation

    @property
    def late_replies(self) -> int:
        """Number of the actor's replies that came after their asker had stopped waiting."""
        return self._target.late_replies

    def __repr__(self) -> str:
        return f"Ref({self.id!r})"

    def tell(self, message: Any, *, lane: Lane = _NORMAL, cause: Any = None) -> None:
        """Put *message* into the mailbox, without waiting.

        Raises:
            ActorStopped: the actor accepts no more messages.
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

        If the asker is cancelled or its time is over, the message is not handled any more, and tasks that were started
        for a deferred answer are cancelled. With *detach* the message is handled and the tasks go on.

        Raises:
            ActorRestarting: the actor crashed while it handled the message, and is restarted.
            ActorStopped: the actor has stopped, or stopped before it answered.
            AskTimeout: no answer in time.
            InvalidOption: *timeout_s* is no finite number.
            MailboxFull: no room in the mailbox in time.
        """
        target = self._target
        timeout_s = self._timeout(timeout_s)
        rested = target.charge()  # if not, queue the ask, so that the event loop runs before it is handled
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
        """Deliver the *envelope*, if it was not handled yet, and wait for the reply."""
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
        except MailboxFull as full:  # also raised while earlier senders wait
            if not full.passing:
                raise
        with anyio.move_on_after(max(timeout_s, 0.0)):
            target.fast = None  # while a sender waits for room
            await target.mailbox.room(target.backend, lambda: target.deliver(envelope, lane, in_turn=True))
            return None
        raise target.mailbox.full(envelope.size)
