"""Batches of records as a host mirrors them: one entry of the fleet's log each, in JSON.

An *epoch* is one account of a host's journal from its beginning: batch 1 begins it, and each batch goes on where the
one before ended. A host begins a new epoch when most of the present one is about entities that its journal has moved to
the archive, or when its journal is another one than before. The batches of earlier epochs are then removed, so the log
holds about as much as the journals do.

A batch has records and, for each entity in them, its row: parent, data, and whether it has ended. The row may be newer
than the records; later batches then repeat it. Positions are ids of records; the number of a batch counts from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from supervisor.fleet.ports import FleetError
from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.ports import Append, EntityRow

FORMAT: Final = 1
"""Format of batches that this version writes, and the only one that it reads."""
VALUE_BYTES_MAX: Final = 1_000
"""Largest value that is kept, as JSON, of a record or row that is too large for a batch."""
BATCH_BYTES: Final = 256 * 1024
"""Size in bytes at which a batch is full."""


class BadBatch(FleetError):
    """Error: an entry of the log is no batch that this version can read."""


class MirroredRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of an entity: ``entity_seq`` is the last one that the row has taken in."""

    parent_id: str | None
    state: str
    data: msgspec.Raw
    entity_seq: int
    ended: bool


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a host after ``after`` up to ``last``; ``until`` was the journal's last record when the epoch began,
    and ``count`` counts the records of the epoch, these included."""

    format: int
    epoch: str
    number: int
    after: RecordId
    last: RecordId
    until: RecordId
    count: int
    records: list[LifecycleEvent]
    rows: dict[str, MirroredRow]


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    format: int


_encode = msgspec.json.Encoder().encode
_decode_format = msgspec.json.Decoder(_Format).decode
_decode = msgspec.json.Decoder(Batch).decode


def encode_batch(batch: Batch) -> bytes:
    return _encode(batch)


def decode_batch(body: bytes) -> Batch:
    """Read a batch.

    Raises:
        BadBatch: it has another format, or is malformed.
    """
    try:
        found = _decode_format(body).format
        if found != FORMAT:
            raise BadBatch(f"its records have format {found}, and this version reads {FORMAT}; upgrade the older host")
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadBatch(f"an entry of the log is no batch of records: {error}") from None


def fill_batch(
    records: Sequence[LifecycleEvent], rows: Mapping[str, EntityRow], bytes_max: int
) -> tuple[list[LifecycleEvent], dict[str, MirroredRow]]:
    """Return the first of *records* that fit into ``BATCH_BYTES``, at least one if there is any, and the rows of their
    entities. Whatever is larger than half of *bytes_max* by itself is shortened."""
    taken: list[LifecycleEvent] = []
    found: dict[str, MirroredRow] = {}
    size, full = 0, min(BATCH_BYTES, bytes_max // 2)
    for record in records:
        record, added = _bounded_record(record, bytes_max // 4)
        row = None
        if record.entity_id not in found and (stored := rows.get(record.entity_id)) is not None:
            row = _mirrored(stored, bytes_max // 4)
            added += len(row.data) + 200
        if taken and size + added > full:
            break
        taken.append(record)
        size += added
        if row is not None:
            found[record.entity_id] = row
    return taken, found


def _bounded_record(record: LifecycleEvent, bytes_max: int) -> tuple[LifecycleEvent, int]:
    size = len(_encode(record))
    if size > bytes_max:
        record = msgspec.structs.replace(record, metadata=_small_values(record.metadata))
        size = len(_encode(record))
    return record, size


def _mirrored(row: EntityRow, bytes_max: int) -> MirroredRow:
    data = row.data or b"{}"
    if len(data) > bytes_max:
        data = _encode(_small_values(msgspec.json.decode(data)))
    return MirroredRow(
        parent_id=row.parent_id, state=row.state, data=msgspec.Raw(data), entity_seq=row.entity_seq, ended=row.ended
    )


def _small_values(values: Any) -> dict[str, Any]:
    """Return the values that are small, and the names of the others as ``left_out``."""
    sizes = {name: len(_encode(value)) for name, value in values.items()}
    left_out = [name for name, size in sizes.items() if size > VALUE_BYTES_MAX]
    return {**{name: value for name, value in values.items() if name not in left_out}, "left_out": left_out}


def appends_of(batch: Batch, after: RecordId) -> list[Append]:
    """Return the changes of a journal that the records of *batch* after the record *after* stand for."""
    return list(_appends(batch, (one for one in batch.records if one.seq > after)))


def _appends(batch: Batch, records: Iterable[LifecycleEvent]) -> Iterable[Append]:
    for record in records:
        row = batch.rows.get(record.entity_id)
        # A row that is newer than the record has its later state; the data of an earlier record is nowhere.
        is_last = row is not None and row.entity_seq == record.entity_seq
        yield Append(
            record=record,
            parent_id=row.parent_id if row is not None else None,
            state=row.state if row is not None and is_last else record.to_status,
            data=bytes(row.data) if row is not None else b"{}",
            ended=row is not None and row.ended and row.entity_seq <= record.entity_seq,
        )
