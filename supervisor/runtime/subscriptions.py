"""Subscribers to the journal's records: each subscriber has a buffer, and is dropped if it falls too far behind.

Records are published once they are durable, in order. A slow reader delays no other reader, and uses no more memory
than its buffer. The buffer is bounded in records and in bytes, since a record may hold a whole prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import Journal

SUBSCRIPTION_MAX = 4_096
"""Largest number of records that may wait for a subscriber; a subscriber with more is dropped."""

SUBSCRIPTION_BYTES_MAX = 8 * 1024 * 1024
"""Largest number of bytes (as JSON) that may wait for a subscriber, as in an actor's mailbox. A single larger record
may wait."""

Sender = MemoryObjectSendStream[tuple[int, LifecycleEvent]]
"""Stream of records for one subscriber, each record with its size in bytes."""


class SubscriptionLagged(Exception):
    """Exception: the subscriber read too slowly and was dropped; the journal has the records that the subscriber
    missed."""


class Subscriptions:
    """Subscribers of one supervisor, each with its buffer of records."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._senders: list[Sender] = []
        self._lagged: list[Sender] = []
        self._waiting: dict[Sender, int] = {}
        """Number of bytes in each subscriber's buffer."""
        self._over = False

    def __len__(self) -> int:
        """Return the number of subscribers."""
        return len(self._senders)

    def publish(self, record: LifecycleEvent) -> None:
        """Send a durable record to every subscriber."""
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
                self._drop(send)
            except anyio.BrokenResourceError:
                self._drop(send)

    def _drop(self, send: Sender) -> None:
        self._senders.remove(send)
        send.close()

    def end(self) -> None:
        """End every subscription; a subscription that is opened later ends at once."""
        self._over = True
        for send in list(self._senders):
            self._drop(send)

    @asynccontextmanager
    async def open(self, after_seq: RecordId | None) -> AsyncIterator[AsyncGenerator[LifecycleEvent, None]]:
        """Subscribe, and iterate over records as they are published; with *after_seq*, first over the past records
        after that number. After ``end`` no records come."""
        send, receive = anyio.create_memory_object_stream[tuple[int, LifecycleEvent]](SUBSCRIPTION_MAX)
        self._senders.append(send)
        self._waiting[send] = 0
        if self._over:
            self._drop(send)
        try:
            async with aclosing(self._records(after_seq, send, receive)) as records:
                yield records
        finally:
            if send in self._senders:
                self._drop(send)
            if send in self._lagged:
                self._lagged.remove(send)
            del self._waiting[send]
            receive.close()

    async def follow(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING
    ) -> AsyncGenerator[LifecycleEvent, None]:
        """Yield the records after *after_seq*, and those to come (``supervisor.ports.Reader.follow``)."""
        async with self.open(after_seq) as records:
            async for record in records:
                if entity_id in (None, record.entity_id):
                    yield record

    async def _records(
        self, after_seq: RecordId | None, send: Sender, receive: MemoryObjectReceiveStream[tuple[int, LifecycleEvent]]
    ) -> AsyncGenerator[LifecycleEvent, None]:
        last = after_seq or BEGINNING
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
