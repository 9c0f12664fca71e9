"""A mailbox: three lanes, FIFO in each, bounded.

CONTROL overtakes URGENT overtakes NORMAL, and one NORMAL goes after every 32 URGENT, so that none starves. CONTROL
is never refused and does not count against the capacity; a full mailbox refuses the rest, or lets a sender wait.
Lanes are built with their first message: an idle mailbox costs a few pointers.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any, Protocol

import anyio

from actors.errors import MailboxFull

__all__ = ["Envelope", "Lane", "Mailbox", "ReplyPort", "Token"]

URGENT_RUN_MAX = 32
"""After this many URGENT messages in a row one NORMAL is served."""


class Lane(IntEnum):
    """The lanes, most important first."""

    CONTROL = 0
    URGENT = 1
    NORMAL = 2


_CONTROL, _URGENT = Lane.CONTROL, Lane.URGENT  # looking up an enum's member costs as much as a deque's append


class Token(Protocol):
    """What makes a message void before it is read: a timer that was cancelled or set again."""

    live: bool


class ReplyPort(Protocol):
    """Where the answer to an ask goes, once."""

    @property
    def settled(self) -> bool: ...

    def resolve(self, value: Any) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class Envelope:
    """A message on its way: where its answer goes, what caused it, and what may still make it void."""

    __slots__ = ("cause", "message", "reply", "token")

    def __init__(
        self, message: Any, *, reply: ReplyPort | None = None, cause: Any = None, token: Token | None = None
    ) -> None:
        self.message = message
        self.reply = reply
        self.cause = cause
        self.token = token


class Mailbox:
    """The three lanes of one actor. Not for use from other threads."""

    __slots__ = ("_control", "_normal", "_room", "_urgent", "_urgent_run", "capacity", "counted", "owner_id")

    def __init__(self, owner_id: str, capacity: int = 256) -> None:
        if capacity < 1:
            raise ValueError(f"mailbox of {owner_id!r}: capacity is {capacity}; give at least 1 message")
        self.owner_id = owner_id
        self.capacity = capacity
        self._control: deque[Envelope] | None = None
        self._urgent: deque[Envelope] | None = None
        self._normal: deque[Envelope] | None = None
        self._urgent_run = 0
        self._room: anyio.Event | None = None
        self.counted = 0
        """The messages that count against the capacity."""

    def __len__(self) -> int:
        return len(self._control or ()) + self.counted

    def put(self, envelope: Envelope, lane: Lane) -> None:
        """Add a message. One with a token (an actor's own timer, one per key) is always taken.

        Raises:
            MailboxFull: the lane is not CONTROL and the capacity is reached; nothing was added.
        """
        if lane is _CONTROL:
            if self._control is None:
                self._control = deque()
            self._control.append(envelope)
            return
        if self.counted >= self.capacity and envelope.token is None:
            raise MailboxFull(self.owner_id, self.capacity)
        self.counted += 1
        if lane is _URGENT:
            if self._urgent is None:
                self._urgent = deque()
            self._urgent.append(envelope)
            return
        if self._normal is None:
            self._normal = deque()
        self._normal.append(envelope)

    def take(self) -> Envelope | None:
        """The next message, or ``None``."""
        if self._control:
            return self._control.popleft()
        if not self.counted:
            return None
        self.counted -= 1
        if self._room is not None:
            self._room.set()
            self._room = None
        if self._urgent and (self._urgent_run < URGENT_RUN_MAX or not self._normal):
            self._urgent_run += 1
            return self._urgent.popleft()
        self._urgent_run = 0
        return self._normal.popleft() if self._normal else None

    async def room(self) -> None:
        """Wait until a message of the counted lanes has been taken, or the mailbox was drained."""
        if self._room is None:
            self._room = anyio.Event()
        await self._room.wait()

    def drain(self) -> list[Envelope]:
        """Take everything that is left, and wake whoever waits for room."""
        left = [*(self._control or ()), *(self._urgent or ()), *(self._normal or ())]
        self._control = self._urgent = self._normal = None
        self.counted = 0
        if self._room is not None:
            self._room.set()
            self._room = None
        return left
