"""The simulated disk of a run, and the journal of each supervisor on that disk: commits take time or fail, or the
supervisor is killed during a commit.

Theory of operation: the disk (:class:`SimulatedDisk`) outlives supervisors; a journal (:class:`SimulatedJournal`)
belongs to one supervisor. A batch becomes durable at one instant, in ``SimulatedDisk.write``, and the oracle sees the
batch then. This module decides whether and when a batch becomes durable, never the code under test. A commit that fails
begins an outage, during which every other commit fails too. After EIO or ENOSPC the failed batch may be on the disk
nevertheless: this is found out when the disk is read again, or when the next supervisor starts. After a kill the
journal of the dead supervisor refuses every operation.

Example: commit 7 fails with ``disk.full`` for 30 s, and its batch is written. Commits until then fail; the commit at 31
s succeeds, after ``recover`` has returned the batch of commit 7 as durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import anyio

from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.ports import Append, Compacted, EntityRow, JournalError, JournalUnavailable, Retention
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom

BUSY_S = 5.0
"""Seconds that a commit waits for a locked database: the busy time-out of the real journal."""
FAILING = ("disk.error", "disk.full", "disk.readonly", "disk.locked")
"""Faults that begin an outage."""
UNKNOWN = frozenset({"disk.error", "disk.full"})
"""Faults after which the batch of the failed commit may be on the disk."""
LASTS_S = ((0.0, 0.5), (1.0, 30.0), (30.0, 900.0))
"""Ranges for the length of an outage in seconds: very short, short, or as long as a person needs to free disk space."""
STRIKING = frozenset({"disk.slow", "disk.busy", *FAILING, "machine.crash", "machine.crash_then", "host.cancelled"})
"""Faults that may strike a commit."""
ARCHIVES_S = 0.05
"""Seconds to write a file of the archive."""
RECORDS_KEPT = 50_000
"""Number of newest records that stay in memory at least; a run of a soak has some hundreds of records."""


class DiskFailed(JournalUnavailable):
    """Error: the simulated disk failed by a fault. Any other error of the journal is unexpected."""


class SupervisorKilled(JournalError):
    """Error: the supervisor that calls was killed. The error keeps the unwinding tasks of a dead supervisor from
    changing anything."""


class SimulatedDisk(MemoryStore):
    """Durable store of a run. *wrote* is called with each batch, and the batch's encoded records, at the instant at
    which the batch becomes durable.

    A day of a large host has a million records: old records of ended entities are removed from memory. Records of live
    entities stay, in the log of the entity, since a recovery reads these records.
    """

    def __init__(self, wrote: Callable[[Sequence[Append], Sequence[bytes]], None]) -> None:
        super().__init__()
        self.commits = 0
        self.living: dict[str, EntityRow] = {}
        """Entities that have not ended, by id."""
        self._wrote = wrote
        self._ended: deque[tuple[int, str]] = deque()
        """Sequence number of the last record, and id, of each ended entity, oldest first."""
        self._named: deque[tuple[int, str]] = deque()
        """Sequence number of the record that put an effect into the outbox, and name of the effect, oldest first."""

    def write(self, batch: Sequence[Append]) -> None:
        super().write(batch)
        for one in batch:
            entity_id = one.record.entity_id
            row = self.entities[entity_id]
            if row.ended:
                self.living.pop(entity_id, None)
            else:
                self.living[entity_id] = row
            if one.ended:
                self._ended.append((one.record.seq, entity_id))
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


class _Down(NamedTuple):
    """Outage of the disk: the kind of fault, the start, and the earliest end (seconds of the run)."""

    kind: str
    since_s: float
    until_s: float


class SimulatedJournal(MemoryJournal):
    """Journal of one supervisor on the simulated disk. A commit that no fault strikes takes *commit_s* seconds; with 0
    seconds the commit is done at once, without a step of the event loop between. *was_down* is called with the length
    of each outage. *crash_at* is a state, ``KIND STATE``, so short that a kill at a random time rarely meets the state.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        faults: FaultPlan,
        crash: Callable[[str, str], bool],
        commit_s: float,
        was_down: Callable[[float], None],
        crash_at: str,
    ) -> None:
        super().__init__(disk)
        self._disk = disk
        self._faults = faults
        self._crash = crash
        self._commit_s = commit_s
        self._was_down = was_down
        self._down: _Down | None = None
        self._lasted_s = 0.0
        self._written_unknown: Sequence[Append] = ()
        """Batch of a failed commit that is on the disk nevertheless."""
        self.refuses = False
        """Whether the journal refused its last operation."""
        self._dead = False
        self._crash_at = tuple(crash_at.split(" "))

    @property
    def outage_s(self) -> float:
        """Length of the newest outage in seconds, up to now if the outage goes on; 0 if there was no outage."""
        return self._lasted_s if self._down is None else anyio.current_time() - self._down.since_s

    def detach(self) -> None:
        """Refuse every operation from now on, since the supervisor is gone. A failed batch that is on the disk becomes
        visible."""
        self._dead = True
        self._note_end()  # before what comes of it: that comes as much later
        self._write_unknown()

    async def append(self, batch: Sequence[Append]) -> None:
        """Commit a batch. The batch is durable when this method returns; when this method raises, it is unknown whether
        the batch is durable. A cancellation waits for the end of the commit."""
        if self._dead:
            self._check_alive()
        disk = self._disk
        disk.commits += 1
        if self._down is not None or self._faults.may_strike_any(STRIKING):
            await self._commit(batch, str(disk.commits))
        else:
            if self._commit_s:
                await self._spend(self._commit_s)
            disk.write(batch)

    async def _commit(self, batch: Sequence[Append], place: str) -> None:
        """Commit a batch while a fault may strike the commit, or while an outage lasts."""
        await self._spend(self._takes_s(place))
        if self._crash(f"{place}.before", "machine.crash"):
            await self._die()
        self._crash(f"{place}.before", "host.cancelled")
        self._check_up()
        kind = next((one for one in FAILING if self._faults.strikes(one, place)), None)
        if kind is not None:
            self._go_down(kind, batch, self._faults.draws(kind, place))
            raise DiskFailed(f"simulated {kind}: whether the commit is there is not known")
        self._disk.write(batch)
        self.refuses = False
        if self._crash(f"{place}.after", "machine.crash") or self._crashes_then(batch):
            await self._die()
        self._crash(f"{place}.after", "host.cancelled")

    def _crashes_then(self, batch: Sequence[Append]) -> bool:
        """Decide whether the supervisor is killed because a record of the batch leads to the state *crash_at* of this
        journal."""
        if not self._faults.may_strike("machine.crash_then"):
            return False
        at = self._crash_at
        come = (one.record for one in batch if (one.record.entity_type, one.record.to_status) == at)
        return any(self._crash(f"{one.to_status}.{one.seq}", "machine.crash_then") for one in come)

    async def recover(self) -> RecordId:
        """Find out which records are durable, and return the last sequence number. A disk that is full, locked or
        read-only can be read during the outage; a disk that fails with EIO cannot."""
        await self._spend(self._commit_s)
        self._check_alive()
        if self._down is None or self._down.kind == "disk.error":
            self._check_up()
        self._write_unknown()
        self.refuses = False
        return self.last_seq

    async def _spend(self, seconds: float) -> None:
        """Let the time of a commit pass; a cancellation does not shorten that time."""
        if seconds > 0:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)
            self._check_alive()

    async def settle(self, effect_ids: Sequence[str]) -> None:
        self._check_alive()
        self._check_up()
        await super().settle(effect_ids)

    # ------------------------------------------------------------------ outages
    def _go_down(self, kind: str, batch: Sequence[Append], random: KeyedRandom) -> None:
        low, high = random.choice(LASTS_S, "how long")
        now = anyio.current_time()
        self._down, self.refuses = _Down(kind, now, now + random.between(low, high, "lasts")), True
        if kind in UNKNOWN and random.happens(0.5, "written"):
            self._written_unknown = batch

    def _check_up(self) -> None:
        down = self._down
        if down is not None and anyio.current_time() < down.until_s and not self._faults.healed:
            self.refuses = True
            raise DiskFailed(f"simulated {down.kind}: it lasts")
        self._note_end()

    def _note_end(self) -> None:
        down, self._down = self._down, None
        if down is not None:
            self._lasted_s = anyio.current_time() - down.since_s
            self._was_down(self._lasted_s)

    def _write_unknown(self) -> None:
        landed, self._written_unknown = self._written_unknown, ()
        if landed:
            self._disk.write(landed)

    def _takes_s(self, place: str) -> float:
        if self._down is not None:
            return BUSY_S if self._down.kind == "disk.locked" else self._commit_s
        if self._faults.strikes("disk.slow", place):
            return self._faults.draws("disk.slow", place).between(0.5, 8.0)
        if self._faults.strikes("disk.busy", place):
            return BUSY_S
        return self._commit_s

    async def _die(self) -> None:
        """Raise an error, since the supervisor was killed during this commit and must not receive the result."""
        await anyio.lowlevel.cancel_shielded_checkpoint()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._dead:
            raise SupervisorKilled("its supervisor was killed")


class SimulatedArchive:
    """Archive of a simulated journal (``supervisor.ports.Archiver``). The journal never grows too long, so nothing is
    compacted. *preserved* is called with the name and the records of each file of the archive."""

    def __init__(self, preserved: Callable[[str, Sequence[LifecycleEvent]], None]) -> None:
        self._preserved = preserved

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        return Compacted()

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        await anyio.sleep(ARCHIVES_S)
        self._preserved(name, records)
