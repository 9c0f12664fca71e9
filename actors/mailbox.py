"""A mailbox: three lanes, FIFO in each, bounded in messages and in bytes.

CONTROL overtakes URGENT overtakes NORMAL, and one NORMAL goes after every 32 URGENT, so that none starves. CONTROL
is never refused, never dropped, and does not count against the capacity; messages with one key replace each other.
A full mailbox does with the rest what its overflow policy says. Who waits for room is served in the order of arrival.
A plain message is queued as it is; an :class:`Envelope` goes around one that carries more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from itertools import chain, islice
from typing import Any, Final, NamedTuple, Protocol

from actors.errors import InvalidOption, MailboxFull
from actors.parking import Backend, Parker

__all__ = [
    "DEFAULT_LIMITS",
    "Coalesce",
    "Envelope",
    "Lane",
    "Limits",
    "Mailbox",
    "Overflow",
    "ReplyPort",
    "SizeOf",
    "Token",
]

URGENT_RUN_MAX = 32
"""After this many URGENT messages in a row one NORMAL is served."""

SizeOf = Callable[[Any], int]


class Lane(IntEnum):
    """The lanes, most important first."""

    CONTROL = 0
    URGENT = 1
    NORMAL = 2


_CONTROL, _URGENT, _NORMAL = Lane.CONTROL, Lane.URGENT, Lane.NORMAL  # an enum's member costs as much as an append


class Overflow(Enum):
    """What a full mailbox does with one message more."""

    BLOCK = "block"
    """``tell`` is refused, ``send`` and ``ask`` wait for room until their deadline."""
    REJECT = "reject"
    """All are refused at once: for senders from outside."""
    DROP_OLDEST = "drop_oldest"
    """It takes the place of the oldest message of its own lane, or of a lesser one."""
    DROP_NEWEST = "drop_newest"
    """It is dropped itself."""


class Coalesce(NamedTuple):
    """A message replaces the one in the queue that has the same ``key(message)``, in its place; ``None`` has no key.

    Keys that are new to a full mailbox wait or are refused as with ``BLOCK``.
    """

    key: Callable[[Any], Any]


class Limits(NamedTuple):
    """The bounds of a mailbox: URGENT and NORMAL messages, their bytes, and what happens beyond.

    ``size_of`` says how large a message is, in bytes; without it only ``str`` and ``bytes`` have a size.
    """

    capacity: int = 256
    capacity_bytes: int = 8 * 2**20
    overflow: Overflow | Coalesce = Overflow.BLOCK
    size_of: SizeOf | None = None

    def checked(self, owner_id: str) -> Limits:
        """These limits.

        Raises:
            InvalidOption: a bound below one, or an overflow policy that is none.
        """
        whose = f"mailbox of {owner_id!r}"
        if self.capacity < 1:
            raise InvalidOption(whose, "capacity", self.capacity, "give at least 1 message")
        if self.capacity_bytes < 1:
            raise InvalidOption(whose, "capacity_bytes", self.capacity_bytes, "give at least 1 byte")
        if not isinstance(self.overflow, Overflow | Coalesce):
            known = ", ".join(one.value for one in Overflow)
            raise InvalidOption(whose, "overflow", self.overflow, f"give an Overflow ({known}) or Coalesce(key)")
        return self


DEFAULT_LIMITS: Final = Limits()


class Token(Protocol):
    """What makes a message void before it is read: a timer that was cancelled or set again."""

    @property
    def live(self) -> bool: ...


class ReplyPort(Protocol):
    """Where the answer to an ask goes, once."""

    @property
    def settled(self) -> bool: ...

    def resolve(self, value: Any) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class Envelope:
    """A message on its way: where its answer goes, what caused it, and what may still make it void."""

    __slots__ = ("attempts", "cause", "key", "message", "reply", "size", "token")

    def __init__(
        self,
        message: Any,
        *,
        reply: ReplyPort | None = None,
        cause: Any = None,
        token: Token | None = None,
        key: Any = None,
    ) -> None:
        self.message = message
        self.reply = reply
        self.cause = cause
        self.token = token
        self.key = key
        self.size = 0
        self.attempts = 0
        """How often it was in hand when its actor crashed."""


class Mailbox:
    """The three lanes of one actor. Not for use from other threads."""

    __slots__ = (
        "_keys",
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
        """CONTROL and URGENT messages, and waiting senders: while there are none, NORMAL ones just leave in order."""
        self.bytes = 0
        """The size of those that have one."""
        self._keys: dict[tuple[Lane, Any], Envelope] | None = None
        self.waiters: deque[Parker] | None = None

    @property
    def plain(self) -> bool:
        """True if a message that is neither ``str`` nor ``bytes`` needs only room for one more."""
        return self._limits.size_of is None and not isinstance(self._limits.overflow, Coalesce)

    @property
    def counted(self) -> int:
        """The messages that count against the capacity."""
        return len(self.urgent or ()) + len(self.normal or ())

    @property
    def _keyed(self) -> dict[tuple[Lane, Any], Envelope]:
        """The queued messages that have a key."""
        if self._keys is None:
            self._keys = {}
        return self._keys

    def __len__(self) -> int:
        return len(self.control or ()) + self.counted

    # ------------------------------------------------------------------ in
    def put(self, envelope: Envelope, lane: Lane) -> Sequence[Envelope]:
        """Add a message; what was dropped for it, if anything: older ones, or itself.

        One with a token of its own (an actor's timer, one per key) is always taken.

        Raises:
            MailboxFull: there is no room, and the policy drops nothing; nothing was added.
        """
        if lane is not _CONTROL:
            return self._put_counted(envelope, lane)
        if envelope.key is not None and (old := self._replace(envelope, lane)) is not None:
            return (old,)
        if self.control is None:
            self.control = deque()
        self.control.append(envelope)
        self.pressing += 1
        return ()

    def _put_counted(self, envelope: Envelope, lane: Lane) -> Sequence[Envelope]:
        envelope.size = self._size(envelope.message)
        if envelope.key is None and isinstance(self._limits.overflow, Coalesce):
            envelope.key = self._limits.overflow.key(envelope.message)
        if envelope.key is not None and (old := self._replace(envelope, lane)) is not None:
            return (old,)
        dropped: Sequence[Envelope] = ()
        if envelope.token is None and not self._has_room(envelope.size):
            dropped = self._overflow(envelope, lane)
            if envelope in dropped:
                return dropped
        if envelope.key is not None:
            self._keyed[(lane, envelope.key)] = envelope
        self.bytes += envelope.size
        self.pressing += lane is _URGENT
        self._lane(lane).append(envelope)
        return dropped

    def put_back(self, items: list[Any]) -> None:
        """Put messages that were taken out at the head of the NORMAL lane, the first one first; always taken."""
        for item in reversed(items):
            self.bytes += _size_of(item)
            self._lane(_NORMAL).appendleft(item)

    def _lane(self, lane: Lane) -> deque[Any]:
        if lane is _NORMAL:
            if self.normal is None:
                self.normal = deque()
            return self.normal
        if self.urgent is None:
            self.urgent = deque()
        return self.urgent

    def _size(self, message: Any) -> int:
        if self._limits.size_of is not None:
            return self._limits.size_of(message)
        return len(message) if isinstance(message, str | bytes) else 0

    def _has_room(self, size: int) -> bool:
        return self.counted < self.capacity and self.bytes + size <= self._limits.capacity_bytes

    def _overflow(self, envelope: Envelope, lane: Lane) -> Sequence[Envelope]:
        """Make room as the policy says; what has to go. Raises :class:`MailboxFull` if nothing may."""
        if envelope.size <= self._limits.capacity_bytes:
            if self._limits.overflow is Overflow.DROP_NEWEST:
                return (envelope,)
            if self._limits.overflow is Overflow.DROP_OLDEST:
                return self._drop_oldest(envelope, lane)
        passing = self._limits.overflow is not Overflow.REJECT and envelope.size <= self._limits.capacity_bytes
        if self.counted < self.capacity:
            raise MailboxFull(self.owner_id, self._limits.capacity_bytes, "bytes", passing=passing)
        raise MailboxFull(self.owner_id, self.capacity, passing=passing)

    def _drop_oldest(self, envelope: Envelope, lane: Lane) -> Sequence[Envelope]:
        """As many of the oldest as it takes, of the lesser lane first; itself, if all of them were not enough."""
        queues = [self.normal, self.urgent] if lane is _URGENT else [self.normal]
        older = [item for queue in queues if queue for item in queue]
        freed = sum(map(_size_of, older))
        if not older or self.bytes - freed + envelope.size > self._limits.capacity_bytes:
            return (envelope,)
        dropped: list[Envelope] = []
        for queue in queues:
            while queue and not self._has_room(envelope.size):
                item = queue.popleft()
                self.left(item, _NORMAL if queue is self.normal else _URGENT)
                dropped.append(item if type(item) is Envelope else Envelope(item))
        return dropped

    def _replace(self, envelope: Envelope, lane: Lane) -> Envelope | None:
        """Let *envelope* take the place of the queued one with its key; the old one, in an envelope of its own."""
        queued = self._keyed.get((lane, envelope.key))
        if queued is None:
            if lane is _CONTROL:
                self._keyed[(lane, envelope.key)] = envelope
            return None
        old = Envelope(queued.message, reply=queued.reply, cause=queued.cause)
        self.bytes += envelope.size - queued.size
        queued.message, queued.reply, queued.cause = envelope.message, envelope.reply, envelope.cause
        queued.token, queued.size = envelope.token, envelope.size
        return old

    # ------------------------------------------------------------------ out
    def take(self) -> Any:
        """The next message, plain or in its envelope, or ``None``."""
        if self.control:
            item = self.control.popleft()
            self.pressing -= 1
            if item.key is not None:
                self._keyed.pop((_CONTROL, item.key), None)
            return item
        if not self.urgent and not self.normal:
            return None
        if self.urgent and (self.urgent_run < URGENT_RUN_MAX or not self.normal):
            self.urgent_run += 1
            item, lane = self.urgent.popleft(), _URGENT
        else:
            assert self.normal, "what is counted is in a lane"
            self.urgent_run = 0
            item, lane = self.normal.popleft(), _NORMAL
        self.left(item, lane)
        return item

    def left(self, item: Any, lane: Lane) -> None:
        """It was taken from that lane and counts no more: whoever has waited longest for room may try."""
        self.pressing -= lane is _URGENT
        if type(item) is Envelope:
            self.bytes -= item.size
            if item.key is not None:
                self._keyed.pop((lane, item.key), None)
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        if self.waiters:
            self.pressing -= 1
            self.waiters.popleft().unpark()

    def peek(self, most: int) -> list[Any]:
        """The messages in the order of their lanes, at most that many; nothing is taken."""
        items = list(islice(chain(self.control or (), self.urgent or (), self.normal or ()), most))
        return [item.message if type(item) is Envelope else item for item in items]

    def lengths(self) -> dict[str, int]:
        return {lane.name.lower(): len(queue or ()) for lane, queue in zip(Lane, self._lanes(), strict=True)}

    def _lanes(self) -> tuple[deque[Any] | None, ...]:
        return self.control, self.urgent, self.normal

    def drain(self) -> list[Envelope]:
        """Take everything that is left, and wake whoever waits for room."""
        left = [item for queue in self._lanes() if queue for item in queue]
        self.control = self.urgent = self.normal = self._keys = None
        self.bytes = 0
        while self.waiters:
            self._wake_waiter()
        self.pressing = 0
        return [item if type(item) is Envelope else Envelope(item) for item in left]

    # ------------------------------------------------------------------ room
    @property
    def awaited(self) -> bool:
        """Somebody waits for room already; a newcomer goes behind."""
        return bool(self.waiters)

    async def room(self, backend: Backend, *, first: bool = False) -> None:
        """Wait until a message of the counted lanes has gone, or all have. One waiter wakes for each, in order.

        *first*: it has waited before, and the room was too small.
        """
        if self.waiters is None:
            self.waiters = deque()
        parker = backend.parker()
        if first:
            self.waiters.appendleft(parker)
        else:
            self.waiters.append(parker)
        self.pressing += 1
        try:
            await parker.wait()
        except BaseException:
            if parker in self.waiters:
                self.waiters.remove(parker)
                self.pressing -= 1
            else:  # it was woken and cancelled at once: the next one may try instead
                self._wake_waiter()
            raise


def _size_of(item: Any) -> int:
    return item.size if type(item) is Envelope else 0
