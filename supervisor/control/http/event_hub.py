"""Records of one supervisor for all event streams: one subscription, each record encoded once, readers woken in groups.

Theory of operation
-------------------
Hundreds of readers must not delay an abort. So no reader is woken by a record: the hub puts the record, encoded, into a
buffer that all readers share, and ``PACE_S`` seconds later wakes the readers that wait, ``GROUP`` of them at a time
with a pause in between. A reader then takes everything after its own position at once.

The buffer has the newest records, bounded in number and bytes. A reader whose position lies before the buffer reads the
journal, as a reader that has just begun does. So a slow reader costs no memory, and misses nothing.

::

    base <= position: hub.after(position)      else: the journal
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Final, NamedTuple

import anyio
import msgspec
from fastapi.sse import format_sse_event

from actors import ActorStopped, Restart
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.record_ids import id_after
from supervisor.lifecycles.types import LifecycleEvent, RecordId

SERVICE: Final = "events"
PACE_S: Final = 0.05
"""Seconds from a record until the readers are woken: an abort, whose records come within milliseconds, is over then."""
GROUP: Final = 8
"""Number of readers that are woken at once."""
PAUSE_S: Final = 0.002
"""Seconds between two groups, in which everything else goes on."""
RECORDS_MAX: Final = 4_096
BYTES_MAX: Final = 8 * 1024 * 1024
"""Bounds of the buffer; a single larger record may be in it."""


class EncodedRecord(NamedTuple):
    """A record, and its event as bytes of the stream."""

    record: LifecycleEvent
    data: bytes


def encode_record(record: LifecycleEvent) -> EncodedRecord:
    text = msgspec.json.encode(record).decode()
    return EncodedRecord(record, format_sse_event(event="record", data_str=text, id=str(record.seq)))


class EventHub:
    """The hub of one supervisor (``SupervisorCore.part``). The hub runs from the first reader on, as a service."""

    def __init__(self, core: SupervisorCore) -> None:
        self._core = core
        self._buffer: deque[EncodedRecord] = deque()
        self._bytes = 0
        self._base = core.journal.last_seq
        self._is_running = False
        self.is_over = False
        """Whether no record follows those in the buffer: the supervisor has ended its sessions."""
        self._waiting: dict[anyio.Event, None] = {}
        self._news = anyio.Event()

    async def start(self) -> None:
        """Start the hub, unless it runs."""
        if self._is_running or self.is_over:
            return
        self._is_running = True
        self._base = self._core.journal.last_seq
        try:
            await self._core.services.add(SERVICE, self._run, restart=Restart.TRANSIENT)
        except ActorStopped:  # the supervisor has ended
            self._end()

    # ------------------------------------------------------------------ readers
    def has(self, position: RecordId) -> bool:
        """Return whether the buffer has every record after *position*."""
        return self._base <= position <= self._last

    def after(self, position: RecordId) -> Sequence[EncodedRecord] | None:
        """Return the records of the buffer after *position*; ``None`` if there may be others before them, which the
        journal has."""
        if position < self._base:
            return None
        return list(takewhile(lambda encoded: encoded.record.seq > position, reversed(self._buffer)))[::-1]

    @property
    def _last(self) -> RecordId:
        """Id of the newest record of the buffer, or of the record before the buffer."""
        return self._buffer[-1].record.seq if self._buffer else self._base

    async def wait(self) -> None:
        """Wait until there are records after those that :meth:`after` returned just now, or the hub is over."""
        event = anyio.Event()
        if self.is_over:
            return
        self._waiting[event] = None
        try:
            await event.wait()
        finally:
            self._waiting.pop(event, None)

    # ------------------------------------------------------------------ the service
    async def _run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._wake_readers)
            async with self._core.subscriptions.open(self._last) as records, aclosing(records):
                async for record in records:
                    self._add(encode_record(record))
            self._end()
            group.cancel_scope.cancel()

    def _add(self, encoded: EncodedRecord) -> None:
        assert encoded.record.seq == id_after(self._last), (encoded.record.seq, self._last)
        self._buffer.append(encoded)
        self._bytes += len(encoded.data)
        while len(self._buffer) > RECORDS_MAX or (self._bytes > BYTES_MAX and len(self._buffer) > 1):
            oldest = self._buffer.popleft()
            self._bytes -= len(oldest.data)
            self._base = oldest.record.seq
        self._news.set()

    def _end(self) -> None:
        self.is_over = True
        for one in list(self._waiting):
            one.set()

    async def _wake_readers(self) -> None:
        while True:
            await self._news.wait()
            await anyio.sleep(PACE_S)
            self._news = anyio.Event()
            waiting = list(self._waiting)
            for first in range(0, len(waiting), GROUP):
                for one in waiting[first : first + GROUP]:
                    one.set()
                await anyio.sleep(PAUSE_S)
