"""The simulated disk of a run: the journal's own store, with commits that take time, fail, or lose their supervisor.

What a commit leaves behind is decided here, never by the code under test: it is durable at one instant, and then the
oracle sees it. A failed commit may be there or not. After a crash the dead supervisor's journal takes nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import anyio

from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.ports import Append, JournalError
from supervisor.simulation.faults import FaultPlan

__all__ = ["DiskFailed", "SimulatedDisk", "SimulatedJournal"]

BUSY_S = 5.0
"""How long a locked database is waited for: the busy time-out of the real journal."""
STRIKING = frozenset({"disk.slow", "disk.busy", "disk.error", "disk.full", "machine.crash"})
"""What may strike a commit."""
RECORDS_KEPT = 50_000
"""Of the records of whoever has ended, this many of the newest are kept at least; a soak's run has some hundreds."""


class DiskFailed(JournalError):
    """The simulated disk failed, by a fault: no other error of the journal is to be expected."""


class SimulatedDisk(MemoryStore):
    """What is durable. *wrote* hears of every batch at the instant at which it becomes so, with the encoded records.

    A day of a large host has a million records: old ones of entities that have ended leave memory. Those of whoever
    lives stay, in its own log, since a recovery reads them.
    """

    def __init__(self, wrote: Callable[[Sequence[Append], Sequence[bytes]], None]) -> None:
        super().__init__()
        self.commits = 0
        self._wrote = wrote
        self._ended: deque[tuple[int, str]] = deque()
        """Who has ended, with which record, oldest first."""
        self._named: deque[tuple[int, str]] = deque()
        """The names of effects, and the records that owe them, oldest first."""

    def write(self, batch: Sequence[Append]) -> None:
        super().write(batch)
        for one in batch:
            if one.ended:
                self._ended.append((one.record.seq, one.record.entity_id))
            for name, _ in one.owed:
                self._named.append((one.record.seq, name))
        self._wrote(batch, self.log.records[-len(batch) :] if batch else ())
        if len(self.log.seqs) >= 2 * RECORDS_KEPT:
            self._forget()

    def _forget(self) -> None:
        log = self.log
        del log.seqs[:-RECORDS_KEPT], log.records[:-RECORDS_KEPT]
        while self._ended and self._ended[0][0] < log.seqs[0]:
            self.logs.pop(self._ended.popleft()[1], None)
        while self._named and self._named[0][0] < log.seqs[0]:
            self.effects.discard(self._named.popleft()[1])


class SimulatedJournal(MemoryJournal):
    """One supervisor's journal on that disk. A commit takes *commit_s* where nothing strikes it; one that takes no time
    is over at once, with no step between."""

    def __init__(self, disk: SimulatedDisk, faults: FaultPlan, crash: Callable[[str], bool], commit_s: float) -> None:
        super().__init__(disk)
        self._disk = disk
        self._faults = faults
        self._crash = crash
        self._commit_s = commit_s
        self.dead = False

    async def append(self, batch: Sequence[Append]) -> None:
        """Commit: durable when this returns, unknown when it raises. A cancellation waits for the end of it."""
        if self.dead:
            self._check_alive()
        disk = self._disk
        disk.commits += 1
        if self._faults.may_strike_any(STRIKING):
            await self._commit(batch, str(disk.commits))
        else:
            if self._commit_s:
                await self._pass(self._commit_s)
            disk.write(batch)

    async def _commit(self, batch: Sequence[Append], place: str) -> None:
        """One that something may strike."""
        await self._pass(self._takes_s(place))
        if self._crash(f"{place}.before"):
            await self._die()
        error = self._error(place)
        if error is None or self._faults.draws(error, place).happens(0.5, "written"):
            self._disk.write(batch)
        if error is not None:
            raise DiskFailed(f"simulated {error}: whether the commit is there is not known")
        if self._crash(f"{place}.after"):
            await self._die()

    async def _pass(self, seconds: float) -> None:
        """The time that a commit takes, which no cancellation shortens."""
        if seconds > 0:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)
            self._check_alive()

    async def settle(self, effect_ids: Sequence[str]) -> None:
        self._check_alive()
        await super().settle(effect_ids)

    def _error(self, place: str) -> str | None:
        for kind in ("disk.error", "disk.full"):
            if self._faults.strikes(kind, place):
                return kind
        return None

    def _takes_s(self, place: str) -> float:
        if self._faults.strikes("disk.slow", place):
            return self._faults.draws("disk.slow", place).between(0.5, 8.0)
        if self._faults.strikes("disk.busy", place):
            return BUSY_S
        return self._commit_s

    async def _die(self) -> None:
        """The supervisor was killed during this commit: it never learns what came of it."""
        await anyio.lowlevel.cancel_shielded_checkpoint()
        self._check_alive()

    def _check_alive(self) -> None:
        if self.dead:
            raise DiskFailed("its supervisor was killed")
