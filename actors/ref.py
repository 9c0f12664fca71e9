"""A ref is all that one actor may hold of another: an id, and ways to send.

``tell`` never waits, ``send`` waits for room, ``ask`` waits for an answer; whatever waits has a deadline. The death
of the target answers every ask at once. An answer that comes too late is counted and dropped. The deadline of an ask
is a timer of the target's system and not a cancel scope, which would cost more than the rest of the ask.
"""

from __future__ import annotations

from typing import Any, Protocol

import anyio

from actors.errors import AskTimeout, MailboxFull
from actors.mailbox import Envelope, Lane, Mailbox
from actors.timers import Timer

__all__ = ["Ref", "Reply", "Target"]


class Target(Protocol):
    """What a ref needs of the actor behind it."""

    id: str
    mailbox: Mailbox
    late_replies: int

    def deliver(self, envelope: Envelope, lane: Lane) -> None: ...

    def set_deadline(self, reply: Reply, timeout_s: float) -> Timer: ...

    def cancel_deadline(self, timer: Timer) -> None: ...


class Reply:
    """A one-shot port for an answer."""

    __slots__ = ("_answered", "_closed", "_done", "_error", "_target", "_value")

    def __init__(self, target: Target) -> None:
        self._target = target
        self._done = anyio.Event()
        self._answered = False
        self._closed = False
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Nobody waits any more: it was answered, or the asker has gone."""
        return self._closed or self._answered

    def resolve(self, value: Any) -> None:
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        self._settle(None, error)

    def expire(self, timeout_s: float) -> None:
        """The deadline has come: nothing that follows is heard."""
        if not self.settled:
            self._closed, self._error = True, AskTimeout(self._target.id, timeout_s)
            self._done.set()

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self._answered:
            return
        self._answered = True
        if self._closed:
            self._target.late_replies += 1
            return
        self._value, self._error = value, error
        self._done.set()

    async def wait(self) -> Any:
        try:
            await self._done.wait()
        finally:
            self._closed = True
        if self._error is not None:
            raise self._error
        return self._value


class Ref:
    """The address of an actor."""

    __slots__ = ("_target",)

    def __init__(self, target: Target) -> None:
        self._target = target

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def late_replies(self) -> int:
        """How many of its answers came after their asker had gone."""
        return self._target.late_replies

    def __repr__(self) -> str:
        return f"Ref({self.id!r})"

    def tell(self, message: Any, *, lane: Lane = Lane.NORMAL, cause: Any = None) -> None:
        """Put *message* into the mailbox and go on.

        Raises:
            ActorStopped: the actor takes no more messages.
            MailboxFull: the mailbox is full (never on the CONTROL lane).
        """
        self._target.deliver(Envelope(message, cause=cause), lane)

    async def send(self, message: Any, *, timeout_s: float, lane: Lane = Lane.NORMAL, cause: Any = None) -> None:
        """Put *message* into the mailbox, waiting at most *timeout_s* seconds for room.

        Raises:
            ActorStopped: the actor takes no more messages.
            MailboxFull: there was no room in time.
        """
        await self._deliver(Envelope(message, cause=cause), lane, timeout_s)

    async def ask(self, message: Any, *, timeout_s: float, lane: Lane = Lane.NORMAL, cause: Any = None) -> Any:
        """Send *message* and wait at most *timeout_s* seconds for room and the answer together.

        A message that was taken in may still be handled after its asker has gone.

        Raises:
            ActorStopped: the actor has stopped, or stopped before it answered.
            AskTimeout: no answer in time.
            MailboxFull: not even room in time.
        """
        reply = Reply(self._target)
        deadline = self._target.set_deadline(reply, timeout_s)
        try:
            await self._deliver(Envelope(message, reply=reply, cause=cause), lane, timeout_s)
            return await reply.wait()
        finally:
            self._target.cancel_deadline(deadline)

    async def _deliver(self, envelope: Envelope, lane: Lane, timeout_s: float) -> None:
        try:
            self._target.deliver(envelope, lane)
        except MailboxFull:
            with anyio.move_on_after(timeout_s):
                return await self._deliver_later(envelope, lane)
            raise

    async def _deliver_later(self, envelope: Envelope, lane: Lane) -> None:
        while True:
            await self._target.mailbox.room()
            try:
                return self._target.deliver(envelope, lane)
            except MailboxFull:
                continue
