"""A disk that is down: a state with a name, not an end.

While it lasts nothing is released, nothing new begins, ends go on, and whoever runs this is told. It is entered with
the first write that fails by the disk's own trouble, and left with the first one that is durable again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from actors.backoff import Backoff
from supervisor.logs import get_logger
from supervisor.moments import Moment, first_of
from supervisor.ports import Append, Journal, JournalUnavailable, WallClock

__all__ = ["HELD_BYTES_MAX", "RETRY", "DiskWatch", "Outage", "held_bytes"]

_log = get_logger()

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


class DiskWatch:
    """Whether the journal can be written now: for the ledger, which writes it, and for all who ask."""

    def __init__(self, journal: Journal, wall: WallClock) -> None:
        self._journal, self._wall = journal, wall
        self._bytes = self._waiting = 0
        """What waits in memory."""
        self._pressed = Moment()
        """More waits than may, or it is not to be waited any longer."""
        self.outage: Outage | None = None
        self.outages = 0
        """How many are over."""
        self.down, self.up = Moment(), Moment()
        """The next outage begins; the one that lasts is over. Each is another one after it has come."""
        self.up.set()

    def hold(self, appends: Iterable[Append]) -> None:
        """These wait in memory until the disk has recovered."""
        for one in appends:
            self._waiting += 1
            self._bytes += held_bytes(one)
        if self._bytes > HELD_BYTES_MAX:
            self._pressed.set()

    def give_up(self) -> None:
        """Do not wait any longer."""
        self._pressed.set()

    async def outlast(self, error: JournalUnavailable, write: Callable[[int], Awaitable[None]]) -> None:
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
        self.up = Moment()
        _log.warning("the journal cannot be written", state="degraded", why=str(error), records_wait=self._waiting)
        self.down.set()

    def _end(self) -> int:
        """It is over, or will never be: there is nothing to wait for any more. How many records waited."""
        waited, self._waiting, self._bytes = self._waiting, 0, 0
        self.outage = None
        self.outages += 1
        self.down, self._pressed = Moment(), Moment()
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

    async def unless_down(self, moment: Moment) -> bool:
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
