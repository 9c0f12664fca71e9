"""Who listens to the records: each subscriber has a buffer, and one that falls too far behind is let go.

Records are published once they are durable, in order. Nobody who reads slowly delays anybody else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from supervisor.ports import Journal
from supervisor.vocabulary import LifecycleEvent

__all__ = ["SUBSCRIPTION_MAX", "SubscriptionLagged", "Subscriptions"]

SUBSCRIPTION_MAX = 4_096
"""Events a subscriber may be behind before it is let go."""

Sender = MemoryObjectSendStream[LifecycleEvent]


class SubscriptionLagged(Exception):
    """The subscriber read too slowly and was let go; the journal has what it missed."""


class Subscriptions:
    """Everybody who listens to one supervisor."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._senders: list[Sender] = []
        self._lagged: list[Sender] = []
        self._over = False

    def __len__(self) -> int:
        """How many listen."""
        return len(self._senders)

    def publish(self, record: LifecycleEvent) -> None:
        """Give everybody a record that has become durable."""
        for send in list(self._senders):
            try:
                send.send_nowait(record)
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
        send, receive = anyio.create_memory_object_stream[LifecycleEvent](SUBSCRIPTION_MAX)
        self._senders.append(send)
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
            receive.close()

    async def _told(
        self, after_seq: int | None, send: Sender, receive: MemoryObjectReceiveStream[LifecycleEvent]
    ) -> AsyncGenerator[LifecycleEvent, None]:
        last = after_seq or 0
        past = await self._journal.events(after_seq=last) if after_seq is not None else []
        while past:
            for record in past:
                last = record.seq
                yield record
            past = await self._journal.events(after_seq=last)
        async for record in receive:
            if record.seq > last:
                yield record
        if send in self._lagged:
            raise SubscriptionLagged("the subscriber was too slow; read on from the journal")
