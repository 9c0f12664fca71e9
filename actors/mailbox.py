"""Mailbox with three priority lanes, FIFO in each, bounded in messages and in bytes.

CONTROL overtakes URGENT, URGENT overtakes NORMAL, but after 32 URGENT messages one NORMAL message is taken, so that no
NORMAL message waits for ever. CONTROL is never refused and does not count against the capacity. A full mailbox refuses
``tell``; ``ask`` waits for room, in the order of arrival. The message of an actor's own timer is never refused, and has
no size. A message without cause, reply, token or size is queued as it is, any other in an :class:`Envelope`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from actors.errors import InvalidOption, MailboxFull
from actors.waiter import Backend, Waiter

URGENT_RUN_MAX = 32
"""Number of URGENT messages in a row, after which one NORMAL message is taken."""

SizeOf = Callable[[Any], int]


class Lane(IntEnum):
    """Priority lanes, most important first."""

    CONTROL = 0
    URGENT = 1
    NORMAL = 2


_CONTROL, _URGENT, _NORMAL = Lane.CONTROL, Lane.URGENT, Lane.NORMAL  # a member's lookup takes as long as an append


class Limits(NamedTuple):
    """Bounds of a mailbox: the number of URGENT and NORMAL messages, and their bytes.

    ``size_of`` returns the size of a message in bytes; without it only ``str`` and ``bytes`` have a size.
    """

    capacity: int = 256
    capacity_bytes: int = 8 * 2**20
    size_of: SizeOf | None = None

    def checked(self, owner_id: str) -> Limits:
        """Return these limits if they are valid.

        Raises:
            InvalidOption: a bound is below one, or ``size_of`` is no function.
        """
        whose = f"mailbox of {owner_id!r}"
        if not isinstance(self.capacity, int) or self.capacity < 1:
            raise InvalidOption(whose, "capacity", self.capacity, "give at least 1 message")
        if not isinstance(self.capacity_bytes, int) or self.capacity_bytes < 1:
            raise InvalidOption(whose, "capacity_bytes", self.capacity_bytes, "give at least 1 byte")
        if self.size_of is not None and not callable(self.size_of):
            raise InvalidOption(whose, "size_of", self.size_of, "give a function of the message, or None")
        return self


DEFAULT_LIMITS: Final = Limits()


class Token(Protocol):
    """Token of a queued message; the message is void once the token is not live, because its timer was cancelled or set
    again."""

    @property
    def live(self) -> bool: ...


class ReplyPort(Protocol):
    """Receiver of the one reply to an ask."""

    @property
    def settled(self) -> bool: ...

    def detach(self) -> None: ...

    def resolve(self, value: Any) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class Envelope:
    """Message with its reply port, its cause and its token."""

    __slots__ = ("cause", "message", "reply", "size", "token")

    def __init__(
        self, message: Any, *, reply: ReplyPort | None = None, cause: Any = None, token: Token | None = None
    ) -> None:
        self.message = message
        self.reply = reply
        self.cause = cause
        self.token = token
        self.size = 0


class _WaitingSender:
    """A sender that waits for room in a full mailbox."""

    __slots__ = ("wakeup",)

    def __init__(self, wakeup: Waiter) -> None:
        self.wakeup = wakeup


class Mailbox:
    """Mailbox of one actor; must not be used from other threads."""

    __slots__ = (
        "_limits",
        "bytes",
        "capacity",
        "control",
        "normal",
        "owner_id",
        "pressing",
        "urgent",
        "urgent_run",
        "waiters",
    )

    def __init__(self, owner_id: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self.owner_id = owner_id
        self.capacity = limits.capacity
        self.control: deque[Envelope] | None = None  # an empty deque takes 760 bytes
        self.urgent: deque[Any] | None = None
        self.normal: deque[Any] | None = None
        self.urgent_run = 0
        self.pressing = 0
        """Number of CONTROL and URGENT messages and waiting senders; while it is 0, NORMAL messages leave in order."""
        self.bytes = 0
        """Bytes of the queued messages that have a size."""
        self.waiters: deque[_WaitingSender] | None = None
        """Senders that wait for room, in order; each stays until its message is in, or it gives up."""

    @property
    def plain(self) -> bool:
        """Whether the number of messages alone decides if there is room for a message that is neither ``str`` nor
        ``bytes``."""
        return self._limits.size_of is None

    @property
    def counted(self) -> int:
        """Number of messages that count against the capacity."""
        return len(self.urgent or ()) + len(self.normal or ())

    def __len__(self) -> int:
        return len(self.control or ()) + self.counted

    # ------------------------------------------------------------------ in
    def put(self, envelope: Envelope, lane: Lane, *, in_turn: bool = False) -> None:
        """Add a message. A message with a token (an actor's timer, one per key) is never refused. *in_turn*: the
        message goes ahead of the senders that wait for room.

        Raises:
            InvalidOption: there is no such lane.
            MailboxFull: there is no room; nothing was added.
        """
        if lane is _CONTROL:
            if self.control is None:
                self.control = deque()
            self.control.append(envelope)
            self.pressing += 1
            return
        if lane is not _NORMAL and lane is not _URGENT:
            known = ", ".join(f"Lane.{one.name}" for one in Lane)
            raise InvalidOption(f"message to {self.owner_id!r}", "lane", lane, f"give one of: {known}")
        if envelope.token is None:
            envelope.size = self._size(envelope.message)
            if (self.waiters and not in_turn) or not self._has_room(envelope.size):  # waiting senders come first
                raise self.full(envelope.size)
        self.bytes += envelope.size
        if lane is _URGENT:
            self.pressing += 1
            if self.urgent is None:
                self.urgent = deque()
            self.urgent.append(envelope)
        else:
            if self.normal is None:
                self.normal = deque()
            self.normal.append(envelope)

    def _size(self, message: Any) -> int:
        if self._limits.size_of is not None:
            return self._limits.size_of(message)
        return len(message) if isinstance(message, str | bytes) else 0

    def _has_room(self, size: int) -> bool:
        return self.counted < self.capacity and self.bytes + size <= self._limits.capacity_bytes

    def full(self, size: int) -> MailboxFull:
        """Return the error for a message of *size* bytes that the mailbox refuses."""
        most = self._limits.capacity_bytes
        if size > most:
            fix = f"a message of {size} bytes never fits: give it a larger capacity_bytes"
            return MailboxFull(self.owner_id, most, "bytes", passing=False, fix=fix)
        if self.counted < self.capacity:
            return MailboxFull(self.owner_id, most, "bytes")
        return MailboxFull(self.owner_id, self.capacity)

    # ------------------------------------------------------------------ out
    def take(self) -> Any:
        """Remove and return the next message, plain or in its envelope; ``None`` if the mailbox is empty."""
        if self.control:
            self.pressing -= 1
            return self.control.popleft()
        if not self.urgent and not self.normal:
            return None
        if self.urgent and (self.urgent_run < URGENT_RUN_MAX or not self.normal):
            self.urgent_run += 1
            item, lane = self.urgent.popleft(), _URGENT
        else:
            assert self.normal, "one of the two lanes has a message"
            self.urgent_run = 0
            item, lane = self.normal.popleft(), _NORMAL
        self.left(item, lane)
        return item

    def left(self, item: Any, lane: Lane) -> None:
        """Stop counting a message taken from *lane*; wake the sender that has waited longest for room."""
        self.pressing -= lane is _URGENT
        if type(item) is Envelope:
            self.bytes -= item.size
        if self.waiters:
            self.waiters[0].wakeup.wake()

    def lengths(self) -> dict[str, int]:
        return {lane.name.lower(): len(queue or ()) for lane, queue in zip(Lane, self._lanes(), strict=True)}

    def _lanes(self) -> tuple[deque[Any] | None, ...]:
        return self.control, self.urgent, self.normal

    def drain(self) -> list[Envelope]:
        """Remove and return all messages, and wake each sender that waits for room."""
        left = [item for queue in self._lanes() if queue for item in queue]
        self.control = self.urgent = self.normal = None
        self.bytes = 0
        self.pressing = len(self.waiters or ())
        for waiter in self.waiters or ():
            waiter.wakeup.wake()
        return [item if type(item) is Envelope else Envelope(item) for item in left]

    # ------------------------------------------------------------------ room
    @property
    def awaited(self) -> bool:
        """Whether a sender waits for room; a later sender queues behind it."""
        return bool(self.waiters)

    async def room(self, backend: Backend, put: Callable[[], object]) -> None:
        """Call *put* when there may be room, after all earlier senders; repeat while there is too little room.

        Only the first waiting sender tries. Each message that leaves the mailbox wakes that sender, and when the sender
        leaves the queue, served or not, it wakes the next one. So senders do not overtake each other, and no room is
        left unused.
        """
        if self.waiters is None:
            self.waiters = deque()
        waiter = _WaitingSender(backend.new_waiter())
        self.waiters.append(waiter)
        self.pressing += 1
        try:
            while True:
                await waiter.wakeup.wait()
                waiter.wakeup = backend.new_waiter()
                if self.waiters[0] is waiter and _served(put):
                    return
        finally:
            self._leave(waiter)

    def _leave(self, waiter: _WaitingSender) -> None:
        """Remove *waiter* from the queue; if *waiter* was the first, wake the next one, which may have room."""
        waiters = self.waiters
        assert waiters is not None, "*waiter* is in the queue"
        was_first = waiters[0] is waiter
        waiters.remove(waiter)
        self.pressing -= 1
        if was_first and waiters and self.counted < self.capacity:
            waiters[0].wakeup.wake()


def _served(put: Callable[[], object]) -> bool:
    """Call *put*; return whether there was room for the message."""
    try:
        put()
    except MailboxFull as full:
        if not full.passing:
            raise
        return False
    return True
