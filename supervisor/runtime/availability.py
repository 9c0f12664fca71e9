"""Surroundings that fail for a while: a disk that is down, and file descriptors that have run out.

Both are states with a name, not an end, and nobody's failure. While a disk is down nothing is released, nothing new
begins, ends go on, and whoever runs this is told; that is entered with the first write that fails by the disk's own
trouble, and left with the first one that is durable again. While descriptors (or processes, or memory) have run out,
what needs some is tried again after a pause, whoever runs this is told what it waits for, and it goes on by itself.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType
from typing import Final, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from actors.backoff import Backoff
from supervisor.ports import (
    Append,
    Journal,
    JournalUnavailable,
    Launch,
    Process,
    ProcessHost,
    SpawnShortage,
    WallClock,
)
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import DESCRIPTORS, shortage_of
from supervisor.runtime.one_shot_event import OneShotEvent, first_of

__all__ = [
    "HELD_BYTES_MAX",
    "RETRY",
    "JournalAvailability",
    "Outage",
    "RetryingProcessHost",
    "Shortage",
    "held_bytes",
    "outlast_shortage",
]

_log = get_logger()
_T = TypeVar("_T")

RETRY: Final = Backoff(base_s=0.1, factor=2.0, cap_s=5.0)
"""Its ceilings are the pauses between two tries: a hiccup costs a tenth of a second, and a disk that was mended is
found out within 5 s. There is one writer, so nothing is gained by jitter."""

HELD_BYTES_MAX: Final = 64 * 2**20
"""What may wait in memory for a disk before the run is given up: some 25,000 records of 2.6 KiB each. What comes while
a disk is down is little: an agent waits at its next call for the record of it, and an end leaves three or four records.
So it is enough to abort 5,000 sessions, and far from what a host with that many has in memory anyway."""

RECORD_BYTES: Final = 2048
"""A record on its way, without what is in its entity: the objects of one are 1.8 KiB, measured over the 10,172 records
of 15 simulated runs (CPython 3.11), and it has a place in a queue."""


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """An outage of the journal's disk: since when (Unix time), what the disk said last, how often it was tried, and how
    many records waited when it was tried last."""

    since: float
    why: str
    attempts: int
    waiting: int

    @property
    def words(self) -> str:
        """One sentence for whoever runs this: what is, since when, why, and what still works."""
        at = datetime.fromtimestamp(self.since).astimezone().strftime("%H:%M:%S")
        return (
            f"degraded since {at}: {self.why}; {self.waiting} {'record waits' if self.waiting == 1 else 'records wait'}"
            " in memory, nothing new begins, aborts and kills go on; it recovers by itself when the disk does"
        )


class JournalAvailability:
    """Whether the journal can be written now: for the ledger, which writes it, and for all who ask."""

    def __init__(self, journal: Journal, wall: WallClock) -> None:
        self._journal, self._wall = journal, wall
        self._bytes = self._waiting = 0
        """What waits in memory."""
        self._pressed = OneShotEvent()
        """More waits than may, or it is not to be waited any longer."""
        self.outage: Outage | None = None
        self.outages = 0
        """How many are over."""
        self.down, self.up = OneShotEvent(), OneShotEvent()
        """The next outage begins; the one that lasts is over. Each is another one after it has come."""
        self.up.set()

    def count_waiting(self, appends: Iterable[Append]) -> None:
        """These wait in memory until the disk has recovered."""
        for one in appends:
            self._waiting += 1
            self._bytes += held_bytes(one)
        if self._bytes > HELD_BYTES_MAX:
            self._pressed.set()

    def give_up(self) -> None:
        """Do not wait any longer."""
        self._pressed.set()

    async def retry_until_durable(self, error: JournalUnavailable, write: Callable[[int], Awaitable[None]]) -> None:
        """Look at the disk and *write* again, ever more seldom, until that is durable.

        Args:
            error: what a first try has met with.
            write: given the number of the last record that is durable; what it writes is there, or it raises.

        Raises:
            JournalError: it is no use, or too much waits by now.
        """
        began = anyio.current_time()
        self._begin(error)
        try:
            while not await self._tried(write):
                pass
        finally:
            waited = self._end()
        _log.warning(
            "the journal can be written again",
            state="recovered",
            after_s=round(anyio.current_time() - began, 3),
            records_waited=waited,
        )

    def _begin(self, error: JournalUnavailable) -> None:
        self.outage = Outage(since=self._wall.time(), why=str(error), attempts=1, waiting=self._waiting)
        self.up = OneShotEvent()
        _log.warning("the journal cannot be written", state="degraded", why=str(error), records_wait=self._waiting)
        self.down.set()

    def _end(self) -> int:
        """It is over, or will never be: there is nothing to wait for any more. How many records waited."""
        waited, self._waiting, self._bytes = self._waiting, 0, 0
        self.outage = None
        self.outages += 1
        self.down, self._pressed = OneShotEvent(), OneShotEvent()
        self.up.set()
        return waited

    async def _tried(self, write: Callable[[int], Awaitable[None]]) -> bool:
        """One more try, after its pause; whether what was to be written is durable."""
        assert self.outage is not None, "what is tried again has failed"
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

    async def wait_unless_down(self, moment: OneShotEvent) -> bool:
        """Wait until *moment* has come, or the disk is down; whether it has come."""
        while not moment.is_set() and self.outage is None:
            await first_of(moment, self.down)
        return moment.is_set()


_TOO_MUCH: Final = (
    f"more than may wait in memory ({HELD_BYTES_MAX >> 20} MiB). Those of the first batch may be in the journal,"
    " the others are not"
)


def held_bytes(append: Append) -> int:
    """About how much memory a record on its way takes."""
    return RECORD_BYTES + len(append.data) + sum(len(payload) for _, payload in append.owed)


# -------------------------------------------------------------------------------------------------- descriptors
async def outlast_shortage(do: Callable[[], Awaitable[_T]], until: OneShotEvent | None = None) -> _T:
    """Do it, and again after a pause as long as descriptors are lacking for it, and *until* has not come; *do* can be
    begun anew.

    Raises:
        OSError: another one; or the shortage, where *until* has come.
    """
    until = until or OneShotEvent()
    tries = 0
    while True:
        try:
            return await do()
        except OSError as error:
            if shortage_of(error) != DESCRIPTORS:
                raise
            tries += 1
            if tries == 1:
                _log.warning("no file descriptor is left: it is tried again until there is one", error=str(error))
            with anyio.move_on_after(RETRY.ceiling_s(tries)):
                await until.wait()
            if until.is_set():
                raise


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A shortage that launches wait for: since when (Unix time), of what, and how many launches."""

    since: float
    lacks: str
    waiting: int

    @property
    def words(self) -> str:
        """One sentence for whoever runs this: what is, since when, and what to do."""
        at = datetime.fromtimestamp(self.since).astimezone().strftime("%H:%M:%S")
        who = "1 program waits" if self.waiting == 1 else f"{self.waiting} programs wait"
        return (
            f"since {at} {who} for {self.lacks} to start: no task fails by that, and it goes on by itself when some are"
            " free; raise the limit (`ulimit`), or run fewer tasks at once"
        )


class RetryingProcessHost:
    """Starts programs by *host*, and waits where the machine lacks what they need (``supervisor.ports.ProcessHost``).

    The launch is tried again when a program has ended, and after a pause that grows to 5 s; the log says once that
    something waits, and for what.
    """

    def __init__(self, host: ProcessHost, wall: WallClock) -> None:
        self._host, self._wall = host, wall
        self.shortage: Shortage | None = None
        """What launches wait for now."""
        self.freed = OneShotEvent()
        """A program has ended, and what it took is free. Another one after it has come."""

    def spawn(
        self,
        launch: Launch,
        *,
        terminate_s: float = 2.0,
        kill_s: float = 1.0,
        patience_s: float = math.inf,
        until: OneShotEvent | None = None,
    ) -> AbstractAsyncContextManager[Process]:
        """Start *launch*, as *host* does; wait *patience_s* for what it lacks, and no longer than *until* comes.

        Raises:
            SpawnError: it cannot be started.
            SpawnShortage: it could not be started by then.
        """
        start = lambda: self._host.spawn(launch, terminate_s=terminate_s, kill_s=kill_s)  # noqa: E731
        return _RetryingSpawn(self, start, patience_s, until or OneShotEvent())

    def notify_freed(self) -> None:
        """A program has ended: whoever waits tries again at once."""
        freed, self.freed = self.freed, OneShotEvent()
        freed.set()

    def begin_wait(self, lacks: str) -> None:
        """One launch more waits."""
        if self.shortage is None:
            self.shortage = Shortage(since=self._wall.time(), lacks=lacks, waiting=0)
            words = (
                f"a program waits for {lacks} to start; no task fails by that: raise the limit, or run fewer at once"
            )
            _log.warning(words, state="waiting")
        self.shortage = replace(self.shortage, waiting=self.shortage.waiting + 1)

    def end_wait(self, *, started: bool) -> None:
        """One launch waits no longer: it is *started*, or was given up."""
        assert self.shortage is not None, "it has waited for that"
        self.shortage = replace(self.shortage, waiting=self.shortage.waiting - 1)
        if self.shortage.waiting == 0:
            if started:
                _log.warning(f"no program waits for {self.shortage.lacks} any more", state="recovered")
            self.shortage = None


class _RetryingSpawn(AbstractAsyncContextManager[Process]):
    """One ``async with host.spawn(...)``."""

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
