"""Mirror: the records of this host's journal, in order, into the fleet's log. The journal itself is the outbox.

Theory of operation
-------------------
The position is not stored anywhere on this host: the host's last entry in the log has it. So a record is neither lost
nor doubled, whatever is killed when:

    start     read the last entry; its epoch is this journal's (``epoch.json``): go on behind it, else begin an epoch
    step      read records after the position; append them as one entry, expecting the last entry's number
    unknown   the same entry is appended again, with the same id, until the engine says what became of it
    conflict  the last entry is not this process's: read it and judge again; if it is another's, the place is taken

Nothing waits for the mirror. It reads the journal on a thread and a connection of its own, like any reader.
"""

from __future__ import annotations

import secrets
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from supervisor.fleet.batches import FORMAT, BadBatch, Batch, decode_batch, encode_batch, fill_batch
from supervisor.fleet.ports import Conflict, Entry, EventLog, FleetError
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import EntityRow, FollowRecords, Journal, Reader
from supervisor.ports.secure_files import write_private

RECORDS_MAX: Final = 500
"""Largest number of records that are read for a batch."""
RENEW_MIN: Final = 10_000
"""Smallest number of records of an epoch that are worth a new one."""


class SecondWriter(FleetError):
    """Error: another process writes this host's records."""


class Epoch(msgspec.Struct, kw_only=True):
    """Epoch of this journal: its name, the number of its first entry (0: not appended yet), and the number of records
    that the archive had when it began."""

    name: str = ""
    first: int = 0
    archived: int = 0


class _Page(NamedTuple):
    """Records after a position, the rows of their entities, the position after them if all fit into a batch, whether
    there are more, and the number of archived records."""

    records: list[LifecycleEvent]
    rows: dict[str, EntityRow]
    last: RecordId
    has_more: bool
    archived: int


class Mirror:
    """Mirror of *journal* as the records of *host* in *log*. ``epoch.json`` lies in *folder*."""

    def __init__(self, log: EventLog, journal: Journal, follow: FollowRecords, host: str, folder: Path) -> None:
        self._log, self._journal, self._follow, self._host = log, journal, follow, host
        self._file = folder / "epoch.json"
        self._epoch = _read(self._file)
        self._last: Batch | None = None
        """The batch of the last entry; ``None`` at the beginning of an epoch."""
        self._number = 0
        """Number of the last entry."""
        self._until = BEGINNING
        self._pending: Batch | None = None
        """Batch whose append has an unknown outcome."""
        self._is_loaded = False

    @property
    def position(self) -> RecordId:
        """The id of the last mirrored record."""
        return self._last.last if self._last is not None else BEGINNING

    @property
    def is_behind(self) -> bool:
        """Whether the journal has records that are not mirrored."""
        return self._last is None or self.position < self._journal.last_seq

    async def step(self) -> bool:
        """Mirror the next batch; return whether there is more to mirror.

        Raises:
            EngineUnavailable: not mirrored yet; the next step goes on.
            SecondWriter: another process writes this host's records.
            JournalError: the journal cannot be read now.
        """
        if not self._is_loaded:
            await self._load()
        batch, has_more = self._pending, True
        if batch is None:
            page = await self._journal.read(self._follow, self._read_page)
            batch, has_more = self._batch_of(page)
            if batch is None:
                if self._is_worn(page.archived):
                    self._begin()
                    return True
                return False
            self._pending = batch
        await self._append(batch)
        return has_more

    async def _append(self, batch: Batch) -> None:
        try:
            message_id = f"{batch.epoch}:{batch.number}"
            body = encode_batch(batch)
            self._number = await self._log.append(self._host, body, expected=self._number, message_id=message_id)
        except Conflict:
            self._is_loaded, self._pending = False, None
            epoch = self._epoch.name
            entry = await self._log.last(self._host)
            if entry is not None and _epoch_of(entry) != epoch:
                raise SecondWriter(f"another process writes the records of host {self._host}; end it") from None
            return  # the entry is this process's after all, or the log was emptied: the next step judges again
        self._last, self._pending = batch, None
        if not self._epoch.first:
            self._epoch.first = self._number
            write_private(self._file, msgspec.json.encode(self._epoch).decode())
            await self._log.remove_before(self._host, self._number)

    async def _load(self) -> None:
        """Find the position in the log; begin an epoch if the log does not have this one's."""
        entry = await self._log.last(self._host)
        self._number, self._last = (entry.number if entry is not None else 0), None
        batch = _decoded(entry) if entry is not None else None
        if batch is not None and self._goes_on(batch) and await self._is_whole():
            self._last, self._until = batch, batch.until
        else:
            self._begin()
        self._is_loaded = True

    def _goes_on(self, batch: Batch) -> bool:
        # A position that the journal has not reached is that of another journal: this one was restored from a copy.
        return batch.epoch == self._epoch.name and self._epoch.first > 0 and batch.last <= self._journal.last_seq

    async def _is_whole(self) -> bool:
        """Return whether the log still has the first entry of the epoch; entries before it are removed."""
        first = await self._log.following(0, self._host)
        if first is not None and first.number < self._epoch.first:
            await self._log.remove_before(self._host, self._epoch.first)
        return first is not None and first.number <= self._epoch.first

    def _begin(self) -> None:
        self._epoch = Epoch(name=secrets.token_hex(8))
        write_private(self._file, msgspec.json.encode(self._epoch).decode())
        self._last, self._pending, self._until = None, None, self._journal.last_seq

    def _is_worn(self, archived: int) -> bool:
        """Return whether most of the epoch is about what the journal does not have any more."""
        count = self._last.count if self._last is not None else 0
        return count > RENEW_MIN and (archived - self._epoch.archived) * 2 > count

    def _read_page(self, reader: Reader) -> _Page:
        """Read the records after the position, on a thread."""
        end = reader.last_seq  # first: every record up to it is among those that are read then
        records = list(islice(reader.events(None, self.position), RECORDS_MAX))
        ids = list(dict.fromkeys(one.entity_id for one in records))
        rows = {row.id: row for row in reader.entities(ids=ids)}
        for missing in [one for one in ids if one not in rows]:  # moved to the archive meanwhile
            if (row := reader.entity(missing)) is not None:
                rows[missing] = row
        has_more = len(records) == RECORDS_MAX
        last = records[-1].seq if has_more else max([end, *(one.seq for one in records[-1:])])
        return _Page(records, rows, last, has_more, reader.archived_records())

    def _batch_of(self, page: _Page) -> tuple[Batch | None, bool]:
        """Return the next batch, and whether there is more; no batch if nothing is new."""
        if self._last is not None and page.last <= self.position:
            return None, False
        if self._last is None:
            self._epoch.archived = page.archived  # written with the number of the epoch's first entry
        records, rows = fill_batch(page.records, page.rows, self._log.body_bytes_max)
        is_cut = len(records) < len(page.records)
        batch = Batch(
            format=FORMAT,
            epoch=self._epoch.name,
            number=self._last.number + 1 if self._last is not None else 1,
            after=self.position,
            last=records[-1].seq if is_cut else page.last,
            until=self._until,
            count=len(records) + (self._last.count if self._last is not None else 0),
            records=records,
            rows=rows,
        )
        return batch, is_cut or page.has_more


def _decoded(entry: Entry) -> Batch | None:
    """Return the batch in an entry; ``None`` if it is of another version, which ran here before."""
    try:
        return decode_batch(entry.body or b"")
    except BadBatch:
        return None


def _epoch_of(entry: Entry) -> str:
    batch = _decoded(entry)
    return batch.epoch if batch is not None else ""


def _read(path: Path) -> Epoch:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Epoch)
    except (OSError, msgspec.MsgspecError):
        return Epoch()  # a new one begins
