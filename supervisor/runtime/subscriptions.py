"""Who listens to the records: each subscriber has a buffer, and one that falls too far behind is let go.

Records are published once they are durable, in order. Nobody who reads slowly delays anybody else, or makes us hold
more than its buffer: that has a bound in records, and one in bytes, since a record may hold a whole prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Journal

__all__ = ["SUBSCRIPTION_MAX", "SubscriptionLagged", "Subscriptions"]

SUBSCRIPTION_MAX = 4_096
"""Events a subscriber may be behind before it is let go."""

SUBSCRIPTION_BYTES_MAX = 8 * 1024 * 1024
"""Bytes, as JSON, that may wait for a subscriber: as for an actor (the mailbox). A single larger record may."""

Sender = MemoryObjectSendStream[tuple[int, LifecycleEvent]]
"""Takes records with their sizes in bytes."""


class SubscriptionLagged(Exception):
    """The subscriber read too slowly and was let go; the journal has what it missed."""


class Subscriptions:
    """Everybody who listens to one supervisor."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._senders: list[Sender] = []
        self._lagged: list[Sender] = []
        self._waiting: dict[Sender, int] = {}
        """Bytes in the buffer of each."""
        self._over = False

    def __len__(self) -> int:
        """How many listen."""
        return len(self._senders)

    def publish(self, record: LifecycleEvent) -> None:
        """Give everybody a record that has become durable."""
        if not self._senders:
            return
        size = len(msgspec.json.encode(record))
        for send in list(self._senders):
            try:
                if self._waiting[send] and self._waiting[send] + size > SUBSCRIPTION_BYTES_MAX:
                    raise anyio.WouldBlock
                send.send_nowait((size, record))
                self._waiting[send] += size
            except anyio.WouldBlock:
                self._lagged.append(send)
                self._let_go(send)
            except anyio.BrokenResourceError:
                self._let_go(send)

    def _let_go(self, send: Sender) -> None:
        self._senders.remove(send)
        send.close()

    def end(self) -> None:
        """Nothing more will come, whoever asks from now on."""
        self._over = True
        for send in list(self._senders):
            self._let_go(send)

    @asynccontextmanager
    async def open(self, after_seq: int | None) -> AsyncIterator[AsyncGenerator[LifecycleEvent, None]]:
        """Records as they come; from *after_seq* on, those of the past first. None come after the end."""
        send, receive = anyio.create_memory_object_stream[tuple[int, LifecycleEvent]](SUBSCRIPTION_MAX)
        self._senders.append(send)
        self._waiting[send] = 0
        if self._over:
            self._let_go(send)
        try:
            async with aclosing(self._told(after_seq, send, receive)) as told:
                yield told
        finally:
            if send in self._senders:
                self._let_go(send)
            if send in self._lagged:
                self._lagged.remove(send)
            del self._waiting[send]
            receive.close()

    async def _told(
        self, after_seq: int | None, send: Sender, receive: MemoryObjectReceiveStream[tuple[int, LifecycleEvent]]
    ) -> AsyncGenerator[LifecycleEvent, None]:
        last = after_seq or 0
        past = await self._journal.events(after_seq=last) if after_seq is not None else []
        while past:
            for record in past:
                last = record.seq
                yield record
            past = await self._journal.events(after_seq=last)
        async for size, record in receive:
            self._waiting[send] -= size
            if record.seq > last:
                yield record
        if send in self._lagged:
            raise SubscriptionLagged("the subscriber was too slow; read on from the journal")
