"""Temporary outages: a journal that cannot be written, and file descriptors, processes or memory that are used up.

Both are states and not failures. A journal outage begins with the first write that fails because of the disk, and ends
with the first write that is durable again. Meanwhile no record is released and no work begins, but aborts and kills
continue. During a shortage the launch that needs the resource is tried again after a pause. In both cases the operator
is informed of the cause, and the supervisor continues by itself as soon as the outage ends.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Final

import anyio
from msgspec.structs import replace

from actors.one_shot_event import OneShotEvent, first_of
from supervisor.lifecycles.types import RecordId
from supervisor.ports import (
    Append,
    Journal,
    JournalUnavailable,
    Launch,
    OnExiting,
    Process,
    ProcessHost,
    SpawnShortage,
    WallClock,
)
from supervisor.ports.logs import get_logger
from supervisor.ports.outages import Outage, Shortage
from supervisor.ports.shortages import RETRY

_log = get_logger()

HELD_BYTES_MAX: Final = 64 * 2**20
"""Largest number of bytes of records that may wait in memory for the disk before the run is given up: some 25,000
records of 2.6 KiB. Few records come during an outage: an agent waits at its next call for that call's record, and the
end of a session adds three or four. So this is enough to abort 5,000 sessions, and little compared with the memory of a
host with that many sessions."""

RECORD_BYTES: Final = 2048
"""Estimated bytes of a waiting record, without its entity's data: the record's objects take 1.8 KiB, measured over the
10,172 records of 15 simulated runs (CPython 3.11), and the rest is the record's place in a queue."""


class JournalAvailability:
    """State of the journal: writable, or in an outage; includes the retries that end an outage."""

    def __init__(self, journal: Journal, wall: WallClock) -> None:
        self._journal, self._wall = journal, wall
        self._bytes = self._waiting = 0
        """Number of bytes, and number, of the records that wait in memory."""
        self._pressed = OneShotEvent()
        """Event that is set when too many bytes wait, or when the supervisor gives up waiting for the end of the
        outage."""
        self.outage: Outage | None = None
        self.outages = 0
        """Number of outages that have ended."""
        self.down, self.up = OneShotEvent(), OneShotEvent()
        """``down`` is the event of the next begin of an outage, ``up`` the event of the end of the present outage. Each
        is replaced by a new event after it was set."""
        self.up.set()

    def count_waiting(self, appends: Iterable[Append]) -> None:
        """Count *appends* among the records that wait in memory until the disk has recovered."""
        for one in appends:
            self._waiting += 1
            self._bytes += held_bytes(one)
        if self._bytes > HELD_BYTES_MAX:
            self._pressed.set()

    def give_up(self) -> None:
        """Stop waiting for the end of an outage: the next try raises an error."""
        self._pressed.set()

    async def retry_until_durable(
        self, error: JournalUnavailable, write: Callable[[RecordId], Awaitable[None]]
    ) -> None:
        """Recover the journal and call *write* again, after pauses that become longer, until the records are durable.

        Args:
            error: error of the first try.
            write: called with the number of the last durable record; returns when its records are durable.

        Raises:
            JournalError: retrying does not help, or too many bytes wait.
        """
        began = anyio.current_time()
        self._begin(error)
        try:
            while not await self._tried(write):
                pass
        finally:
            waited = self._end()
        _log.displayed(
            "the journal can be written again",
            state="recovered",
            after_s=round(anyio.current_time() - began, 3),
            records_waited=waited,
        )

    def _begin(self, error: JournalUnavailable) -> None:
        self.outage = Outage(since=self._wall.time(), why=str(error), attempts=1, waiting=self._waiting)
        self.up = OneShotEvent()
        _log.displayed("the journal cannot be written", state="degraded", why=str(error), records_wait=self._waiting)
        self.down.set()

    def _end(self) -> int:
        """End the outage, because the journal works again or is given up; return the number of records that waited."""
        waited, self._waiting, self._bytes = self._waiting, 0, 0
        self.outage = None
        self.outages += 1
        self.down, self._pressed = OneShotEvent(), OneShotEvent()
        self.up.set()
        return waited

    async def _tried(self, write: Callable[[RecordId], Awaitable[None]]) -> bool:
        """Pause, then try the write once more; return whether the write is durable."""
        assert self.outage is not None, "an outage begins before a second try"
        with anyio.move_on_after(RETRY.ceiling_s(self.outage.attempts)):
            await self._pressed.wait()
        if self._pressed.is_set():
            raise JournalUnavailable(f"{self.outage.why}; {self._waiting} records waited for it: {_TOO_MUCH}")
        try:
            await write(await self._journal.recover())
        except JournalUnavailable as error:
            attempts = self.outage.attempts + 1
            self.outage = replace(self.outage, why=str(error), attempts=attempts, waiting=self._waiting)
            return False
        return True

    async def wait_down(self) -> Outage:
        """Wait until the journal cannot be written, and return the outage; return at once while it cannot."""
        while (outage := self.outage) is None:
            await self.down.wait()
        return outage

    async def wait_unless_down(self, moment: OneShotEvent) -> bool:
        """Wait until the event *moment* is set or an outage begins; return whether *moment* is set."""
        while not moment.is_set() and self.outage is None:
            await first_of(moment, self.down)
        return moment.is_set()


_TOO_MUCH: Final = (
    f"more than may wait in memory ({HELD_BYTES_MAX >> 20} MiB). Those of the first batch may be in the journal,"
    " the others are not"
)


def held_bytes(append: Append) -> int:
    """Estimate the bytes of memory that a waiting record takes."""
    return RECORD_BYTES + len(append.data) + sum(len(payload) for _, payload in append.owed)


# -------------------------------------------------------------------------------------------------- launches
class RetryingProcessHost:
    """Process host that starts programs by *host*, and waits while the machine lacks a resource (implements
    ``supervisor.ports.ProcessHost``).

    A launch that lacks a resource is tried again when a program has ended, and otherwise after a pause that grows to 5
    s. The log says once that a program waits, and for which resource.
    """

    def __init__(self, host: ProcessHost, wall: WallClock) -> None:
        self._host, self._wall = host, wall
        self.shortage: Shortage | None = None
        """Shortage that launches are waiting for now, or ``None``."""
        self.freed = OneShotEvent()
        """Event that is set when a program has ended and its resources are free. Replaced by a new event after it was
        set."""

    def spawn(
        self,
        launch: Launch,
        *,
        terminate_s: float = 2.0,
        kill_s: float = 1.0,
        on_exiting: OnExiting | None = None,
        patience_s: float = math.inf,
        until: OneShotEvent | None = None,
    ) -> AbstractAsyncContextManager[Process]:
        """Start *launch*, as *host* does. If a resource is lacking, wait for it for at most *patience_s* seconds, and
        at most until *until* is set.

        Raises:
            SpawnError: the program cannot be started.
            SpawnShortage: the resource was still lacking at the end of the wait.
        """
        start = partial(self._host.spawn, launch, terminate_s=terminate_s, kill_s=kill_s, on_exiting=on_exiting)
        return _RetryingSpawn(self, start, patience_s, until or OneShotEvent())

    def notify_freed(self) -> None:
        """Make every waiting launch try again at once, because a program has ended."""
        freed, self.freed = self.freed, OneShotEvent()
        freed.set()

    def begin_wait(self, lacks: str) -> None:
        """Count one more launch that waits for the resource *lacks*."""
        if self.shortage is None:
            self.shortage = Shortage(since=self._wall.time(), lacks=lacks, waiting=0)
            words = (
                f"a program waits for {lacks} to start; no task fails by that: raise the limit, or run fewer at once"
            )
            _log.warning(words, state="waiting")
        self.shortage = replace(self.shortage, waiting=self.shortage.waiting + 1)

    def end_wait(self, *, started: bool) -> None:
        """Count one waiting launch less, because the launch has *started* or was given up."""
        assert self.shortage is not None, "a launch that ends its wait has begun it"
        self.shortage = replace(self.shortage, waiting=self.shortage.waiting - 1)
        if self.shortage.waiting == 0:
            if started:
                _log.warning(f"no program waits for {self.shortage.lacks} any more", state="recovered")
            self.shortage = None


class _RetryingSpawn(AbstractAsyncContextManager[Process]):
    """Context manager that ``RetryingProcessHost.spawn`` returns: starts the program, with retries during a
    shortage."""

    def __init__(
        self,
        host: RetryingProcessHost,
        start: Callable[[], AbstractAsyncContextManager[Process]],
        patience_s: float,
        until: OneShotEvent,
    ) -> None:
        self._host, self._start, self._until = host, start, until
        self._patience_s = patience_s
        self._started: AbstractAsyncContextManager[Process]

    async def __aenter__(self) -> Process:
        self._started = self._start()
        try:
            return await self._started.__aenter__()
        except SpawnShortage as error:
            first = error
        return await self._outlast(first)

    async def _outlast(self, error: SpawnShortage) -> Process:
        give_up_s = anyio.current_time() + self._patience_s
        tries, started = 1, False
        self._host.begin_wait(error.lacks)
        try:
            while anyio.current_time() < give_up_s and not self._until.is_set():
                with anyio.move_on_after(min(RETRY.ceiling_s(tries), give_up_s - anyio.current_time())):
                    await first_of(self._until, self._host.freed)
                if self._until.is_set():
                    break
                self._started = self._start()
                try:
                    process = await self._started.__aenter__()
                except SpawnShortage as again:
                    error, tries = again, tries + 1
                else:
                    started = True
                    return process
            raise error
        finally:
            self._host.end_wait(started=started)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._started.__aexit__(kind, error, trace)
        finally:
            self._host.notify_freed()
