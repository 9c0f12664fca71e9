"""A mailbox: three lanes, FIFO in each, bounded in messages and in bytes.

CONTROL overtakes URGENT overtakes NORMAL, and one NORMAL goes after every 32 URGENT, so that none starves. CONTROL
is never refused, never dropped, and does not count against the capacity; messages with one key replace each other.
A full mailbox does with the rest what its overflow policy says. Who waits for room is served in the order of arrival.
What an actor has sent itself by a timer always gets in, has no size, and is never dropped for another message.
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
    "Drop",
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
        if not isinstance(self.capacity, int) or self.capacity < 1:
            raise InvalidOption(whose, "capacity", self.capacity, "give at least 1 message")
        if not isinstance(self.capacity_bytes, int) or self.capacity_bytes < 1:
            raise InvalidOption(whose, "capacity_bytes", self.capacity_bytes, "give at least 1 byte")
        if not isinstance(self.overflow, Overflow | Coalesce):
            known = ", ".join(one.value for one in Overflow)
            raise InvalidOption(whose, "overflow", self.overflow, f"give an Overflow ({known}) or Coalesce(key)")
        if isinstance(self.overflow, Coalesce) and not callable(self.overflow.key):
            raise InvalidOption(whose, "overflow.key", self.overflow.key, "give a function of the message")
        if self.size_of is not None and not callable(self.size_of):
            raise InvalidOption(whose, "size_of", self.size_of, "give a function of the message, or None")
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

    def detach(self) -> None: ...

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


class Drop(NamedTuple):
    """A message that had to go, and why: ``dropped_oldest``, ``dropped_newest`` or ``coalesced``."""

    envelope: Envelope
    why: str


class _Waiter:
    """Somebody who waits for room."""

    __slots__ = ("parker",)

    def __init__(self, parker: Parker) -> None:
        self.parker = parker


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
        self.waiters: deque[_Waiter] | None = None
        """Those who wait for room, in order; each stays until its message is in, or it gives up."""

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
    def put(self, envelope: Envelope, lane: Lane, *, in_turn: bool = False) -> Sequence[Drop]:
        """Add a message; what was dropped for it, if anything: older ones, or itself.

        One with a token of its own (an actor's timer, one per key) is always taken.

        Raises:
            InvalidOption: there is no such lane.
            MailboxFull: there is no room, and the policy drops nothing; nothing was added.
        """
        if lane is not _CONTROL:
            return self._put_counted(envelope, lane, in_turn)
        if envelope.key is not None:
            queued = self._keyed.setdefault((lane, envelope.key), envelope)
            if queued is not envelope:
                return self._exchange(queued, envelope)
        if self.control is None:
            self.control = deque()
        self.control.append(envelope)
        self.pressing += 1
        return ()

    def _put_counted(self, envelope: Envelope, lane: Lane, in_turn: bool) -> Sequence[Drop]:
        if lane is not _NORMAL and lane is not _URGENT:
            known = ", ".join(f"Lane.{one.name}" for one in Lane)
            raise InvalidOption(f"message to {self.owner_id!r}", "lane", lane, f"give one of: {known}")
        dropped: Sequence[Drop] = ()
        if envelope.token is None:
            envelope.size = self._size(envelope.message)
            queued = self._same_key(envelope, lane)
            if queued is not None and self._fits(envelope.size - queued.size):
                return self._exchange(queued, envelope)
            if self.waiters and not in_turn:  # the next room is theirs
                raise self.full(envelope.size)
            if queued is not None or not self._has_room(envelope.size):
                dropped = self._overflow(envelope, lane, in_place=queued is not None)
                if dropped[0].envelope is envelope:
                    return dropped
            if envelope.key is not None:
                self._keyed[(lane, envelope.key)] = envelope
        self.bytes += envelope.size
        self.pressing += lane is _URGENT
        self._lane(lane).append(envelope)
        return dropped

    def _same_key(self, envelope: Envelope, lane: Lane) -> Envelope | None:
        """The message of that lane that this one takes the place of, if there is one."""
        if envelope.key is None and isinstance(self._limits.overflow, Coalesce):
            envelope.key = self._limits.overflow.key(envelope.message)
        return None if envelope.key is None else self._keyed.get((lane, envelope.key))

    def put_back(self, envelopes: Sequence[Envelope]) -> None:
        """Put messages that were taken out at the head of the NORMAL lane, the first one first; always taken."""
        for envelope in reversed(envelopes):
            self.bytes += envelope.size
            self._lane(_NORMAL).appendleft(envelope)

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

    def _fits(self, size: int) -> bool:
        return self.bytes + size <= self._limits.capacity_bytes

    def _has_room(self, size: int) -> bool:
        return self.counted < self.capacity and self._fits(size)

    def full(self, size: int) -> MailboxFull:
        """The error that says why a message of that size does not get in."""
        most = self._limits.capacity_bytes
        if size > most:
            fix = f"a message of {size} bytes never fits: give it a larger capacity_bytes"
            return MailboxFull(self.owner_id, most, "bytes", passing=False, fix=fix)
        passing = self._limits.overflow is not Overflow.REJECT
        if self.counted < self.capacity:
            return MailboxFull(self.owner_id, most, "bytes", passing=passing)
        return MailboxFull(self.owner_id, self.capacity, passing=passing)

    def _overflow(self, envelope: Envelope, lane: Lane, *, in_place: bool) -> Sequence[Drop]:
        """What has to go, by the policy; :class:`MailboxFull` if nothing may. *in_place*: it would replace another."""
        policy = self._limits.overflow
        if envelope.size <= self._limits.capacity_bytes:
            if policy is Overflow.DROP_OLDEST and not in_place:
                return self._drop_oldest(envelope, lane)
            if policy is Overflow.DROP_NEWEST or policy is Overflow.DROP_OLDEST:
                return (Drop(envelope, "dropped_newest"),)
        raise self.full(envelope.size)

    def _drop_oldest(self, envelope: Envelope, lane: Lane) -> Sequence[Drop]:
        """As many of the oldest as it takes, of the lesser lane first; itself, if all of them were not enough."""
        lanes = (_NORMAL, _URGENT) if lane is _URGENT else (_NORMAL,)
        if not self._can_make_room(envelope.size, lanes):
            return (Drop(envelope, "dropped_newest"),)
        dropped: list[Drop] = []
        while not self._has_room(envelope.size):
            dropped.append(Drop(self._take_oldest(lanes), "dropped_oldest"))
        return dropped

    def _can_make_room(self, size: int, lanes: Sequence[Lane]) -> bool:
        """Would there be room if all that may be dropped were?"""
        counted, needed = self.counted, self.bytes + size
        for item in chain.from_iterable(self._lane(lane) for lane in lanes):
            if counted < self.capacity and needed <= self._limits.capacity_bytes:
                break
            if not _is_own(item):
                counted -= 1
                needed -= _size_of(item)
        return counted < self.capacity and needed <= self._limits.capacity_bytes

    def _take_oldest(self, lanes: Sequence[Lane]) -> Envelope:
        lane = next(lane for lane in lanes if not all(map(_is_own, self._lane(lane))))
        queue, own = self._lane(lane), []
        while _is_own(queue[0]):
            own.append(queue.popleft())
        item = queue.popleft()
        queue.extendleft(reversed(own))
        self.left(item, lane)
        return item if type(item) is Envelope else Envelope(item)

    def _exchange(self, queued: Envelope, envelope: Envelope) -> Sequence[Drop]:
        """Let *envelope* take the place of the queued one with its key; the old one gets an envelope of its own."""
        old = Envelope(queued.message, reply=queued.reply, cause=queued.cause, key=queued.key)
        old.attempts, queued.attempts = queued.attempts, envelope.attempts
        queued.message, queued.reply, queued.cause = envelope.message, envelope.reply, envelope.cause
        smaller = envelope.size < queued.size
        self.bytes += envelope.size - queued.size
        queued.size = envelope.size
        if smaller and self.waiters:
            self.waiters[0].parker.unpark()
        return (Drop(old, "coalesced"),)

    # ------------------------------------------------------------------ out
    def take(self) -> Any:
        """The next message, plain or in its envelope, or ``None``."""
        if self.control:
            item = self.control.popleft()
            self.pressing -= 1
            if item.key is not None:
                self._forget_key(item, _CONTROL)
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
                self._forget_key(item, lane)
        if self.waiters:
            self.waiters[0].parker.unpark()

    def _forget_key(self, item: Envelope, lane: Lane) -> None:
        """It is no longer the one to be replaced; another with its key, which came meanwhile, still is."""
        if self._keyed.get((lane, item.key)) is item:
            del self._keyed[(lane, item.key)]

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
        self.pressing = len(self.waiters or ())
        for waiter in self.waiters or ():
            waiter.parker.unpark()
        return [item if type(item) is Envelope else Envelope(item) for item in left]

    # ------------------------------------------------------------------ room
    @property
    def awaited(self) -> bool:
        """Somebody waits for room already; a newcomer goes behind."""
        return bool(self.waiters)

    async def room(self, backend: Backend, put: Callable[[], object]) -> None:
        """Call *put* when there may be room, behind all who came first; again, if it was too small after all.

        Only the first of them tries: it is woken by each message that goes, and when it leaves, served or not, it wakes
        the next. So none is overtaken by another, and no room is left unused.
        """
        if self.waiters is None:
            self.waiters = deque()
        waiter = _Waiter(backend.parker())
        self.waiters.append(waiter)
        self.pressing += 1
        try:
            while True:
                await waiter.parker.wait()
                waiter.parker = backend.parker()
                if self.waiters[0] is waiter and _served(put):
                    return
        finally:
            self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """It waits no more; if it was the first, the one behind it may have room, or replace what is queued."""
        waiters = self.waiters
        assert waiters is not None, "it is in there"
        was_first = waiters[0] is waiter
        waiters.remove(waiter)
        self.pressing -= 1
        if was_first and waiters and (self.counted < self.capacity or self._keys):
            waiters[0].parker.unpark()


def _served(put: Callable[[], object]) -> bool:
    """Whether there was room."""
    try:
        put()
    except MailboxFull as full:
        if not full.passing:
            raise
        return False
    return True


def _is_own(item: Any) -> bool:
    """The actor has sent it to itself by a timer."""
    return type(item) is Envelope and item.token is not None


def _size_of(item: Any) -> int:
    return item.size if type(item) is Envelope else 0
