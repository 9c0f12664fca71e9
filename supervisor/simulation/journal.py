"""The simulated disk of a run, and the journal of each supervisor on it: commits take time, fail, or lose their
supervisor.

Theory of operation: the disk (:class:`SimulatedDisk`) outlives supervisors; a journal (:class:`SimulatedJournal`)
belongs to one. A batch becomes durable at one instant, in ``SimulatedDisk.write``, and the oracle sees it then. Whether
and when that happens is decided here, never by the code under test. A commit that fails begins an outage, during which
every other commit fails too. After EIO or ENOSPC the failed batch may be on the disk all the same: that is found out by
whoever reads the disk again, or starts on it. After a kill the journal of the dead supervisor refuses everything.

Example: commit 7 fails with ``disk.full`` for 30 s, and its batch is written. Commits until then fail; the commit at 31
s succeeds, after ``recover`` has returned the batch of commit 7 as durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import anyio

from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, Compacted, EntityRow, JournalError, JournalUnavailable, Retention
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom

BUSY_S = 5.0
"""Seconds that a commit waits for a locked database: the busy time-out of the real journal."""
FAILING = ("disk.error", "disk.full", "disk.readonly", "disk.locked")
"""Faults that begin an outage."""
UNKNOWN = frozenset({"disk.error", "disk.full"})
"""Faults after which the commit may be on the disk."""
LASTS_S = ((0.0, 0.5), (1.0, 30.0), (30.0, 900.0))
"""Ranges for the length of an outage in seconds: a hiccup, a moment, or until somebody has made room."""
STRIKING = frozenset({"disk.slow", "disk.busy", *FAILING, "machine.crash", "machine.crash_then", "host.cancelled"})
"""Faults that may strike a commit."""
ARCHIVES_S = 0.05
"""Seconds to write a file of the archive."""
RECORDS_KEPT = 50_000
"""Records of ended entities that are kept at least, newest first; a run of a soak has some hundreds."""


class DiskFailed(JournalUnavailable):
    """The simulated disk failed by a fault; any other error of the journal is unexpected."""


class SupervisorKilled(JournalError):
    """The supervisor that asks was killed: its tasks change nothing while they unwind."""


class SimulatedDisk(MemoryStore):
    """Durable store. *wrote* is called with each batch, and its encoded records, at the instant at which it becomes
    durable.

    A day of a large host has a million records: old ones of entities that have ended leave memory. Those of whoever
    lives stay, in its own log, since a recovery reads them.
    """

    def __init__(self, wrote: Callable[[Sequence[Append], Sequence[bytes]], None]) -> None:
        super().__init__()
        self.commits = 0
        self.living: dict[str, EntityRow] = {}
        """Entities that have not ended."""
        self._wrote = wrote
        self._ended: deque[tuple[int, str]] = deque()
        """Ended entities and the sequence numbers of their last records, oldest first."""
        self._named: deque[tuple[int, str]] = deque()
        """Names of effects and the sequence numbers of the records that owe them, oldest first."""

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
    """An outage: its fault, its start, and its end at the earliest (seconds of the run)."""

    kind: str
    since_s: float
    until_s: float


class SimulatedJournal(MemoryJournal):
    """Journal of a supervisor on that disk. A commit takes *commit_s* where nothing strikes it; one that takes no time
    is done at once, without a step between.

    A commit that fails begins an outage, in which every other one fails as well. Where it is there all the same, that
    is seen by whoever looks at the disk again, or starts on it. *was_down* hears how long each outage was. *crash_at*
    is a state, ``KIND STATE``, that is over before a kill that comes at any time meets it.
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
        """A failed batch that is on the disk."""
        self.refuses = False
        """Whether the last operation was refused."""
        self._dead = False
        self._crash_at = tuple(crash_at.split(" "))

    @property
    def outage_s(self) -> float:
        """Seconds for which the newest outage has lasted, or lasted; 0 if there was none."""
        return self._lasted_s if self._down is None else anyio.current_time() - self._down.since_s

    def detach(self) -> None:
        """Refuse everything from now on, since the supervisor is gone; a failed batch that is on the disk becomes
        visible."""
        self._dead = True
        self._note_end()  # before what comes of it: that comes as much later
        self._write_unknown()

    async def append(self, batch: Sequence[Append]) -> None:
        """Commit a batch: durable when this returns, unknown when it raises. A cancellation waits for the end of the
        commit."""
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
        """Commit a batch that a fault may strike, or that falls into an outage."""
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
        """Whether the supervisor is killed since a record of the batch leads to the short state that was drawn for
        it."""
        if not self._faults.may_strike("machine.crash_then"):
            return False
        at = self._crash_at
        come = (one.record for one in batch if (one.record.entity_type, one.record.to_status) == at)
        return any(self._crash(f"{one.to_status}.{one.seq}", "machine.crash_then") for one in come)

    async def recover(self) -> int:
        """Find out what is durable. A disk that is full, locked or read-only can be read meanwhile, one that fails
        cannot."""
        await self._spend(self._commit_s)
        self._check_alive()
        if self._down is None or self._down.kind == "disk.error":
            self._check_up()
        self._write_unknown()
        self.refuses = False
        return self.last_seq

    async def _spend(self, seconds: float) -> None:
        """Let the time of a commit pass, which no cancellation shortens."""
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
        """Raise, since the supervisor was killed during this commit and never learns its result."""
        await anyio.lowlevel.cancel_shielded_checkpoint()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._dead:
            raise SupervisorKilled("its supervisor was killed")


class SimulatedArchive:
    """Upkeep of a simulated journal (``supervisor.ports.Archiver``), which never grows too long. *preserved* is called
    with each file of the archive."""

    def __init__(self, preserved: Callable[[str, Sequence[LifecycleEvent]], None]) -> None:
        self._preserved = preserved

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        return Compacted()

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        await anyio.sleep(ARCHIVES_S)
        self._preserved(name, records)
