"""Rows of the journal, and the meaning of an append; the tables are in ``tables``.

The columns of a table are the fields of its record, in order; a row of ``events`` has two more columns, its hashes
(``supervisor.journal.chain``). ``apply_batch`` decides for every implementation of the journal whether a batch may be
written, and computes the entities after the batch. No function here opens a file or reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from supervisor.journal.tables import VERSION
from supervisor.lifecycles.types import ABORT_RECORD, Kind, LifecycleEvent, RecordId
from supervisor.ports import Append, EntityRow, Fenced, JournalDamaged, JournalError, JournalUnavailable

EVENT_FIELDS: Final = LifecycleEvent.__struct_fields__
ENTITY_FIELDS: Final = EntityRow.__struct_fields__


def _insert(table: str, fields: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))})"


_CHANGED: Final = ", ".join(f"{name} = excluded.{name}" for name in ENTITY_FIELDS if name != "id")
WRITE_ENTITY: Final = f"{_insert('entities', ENTITY_FIELDS)} ON CONFLICT (id) DO UPDATE SET {_CHANGED}"
WRITE_EVENT: Final = _insert("events", (*EVENT_FIELDS, "entity_hash", "chain"))
WRITE_EFFECT: Final = _insert("effects", ("effect_id", "entity_id", "seq", "payload"))

_EVENTS: Final = f"SELECT {', '.join(EVENT_FIELDS)} FROM events"
_ENTITIES: Final = f"SELECT {', '.join(ENTITY_FIELDS)} FROM entities"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

DERIVED_ID_KINDS: Final = (Kind.TURN, Kind.AGENT)
"""Kinds of entities whose ids are derived from their session's id, so that no user can choose such an id again."""
_MADE_JSON: Final = _encode(DERIVED_ID_KINDS).decode()
_IDS: Final = """
SELECT id FROM entities WHERE kind NOT IN (SELECT value FROM json_each(?)) UNION ALL SELECT id FROM ids
"""


# ------------------------------------------------------------------------------------------------------- meaning
def check_generation(where: object, ours: int, found: int) -> None:
    """Check that a writer still owns the journal.

    Raises:
        Fenced: a later supervisor owns the journal.
    """
    if found != ours:
        raise Fenced(f"{where}: generation {found} owns this journal now, ours was {ours}; this supervisor must stop")


def apply_batch(rows: Mapping[str, EntityRow], last_seq: RecordId, batch: Iterable[Append]) -> dict[str, EntityRow]:
    """Return the rows of the entities in *batch* after the batch. *rows* are the existing rows, *last_seq* is the
    number of the last record.

    Raises:
        Fenced: a record does not continue its entity's log, or the journal.
    """
    after: dict[str, EntityRow] = {}
    for one in batch:
        record = one.record
        before = after.get(record.entity_id) or rows.get(record.entity_id)
        entity_seq = before.entity_seq if before else 0
        if record.entity_seq != entity_seq + 1 or record.seq <= last_seq:
            raise _out_of_order(record, entity_seq, last_seq)
        last_seq = record.seq
        after[record.entity_id] = _next_row(before, one)
    return after


def _out_of_order(record: LifecycleEvent, entity_seq: int, last_seq: RecordId) -> Fenced:
    who = f"{record.entity_type} {record.entity_id}"
    if record.entity_seq != entity_seq + 1:
        return Fenced(
            f"{who}: expected entity_seq {entity_seq + 1}, found {record.entity_seq}; nothing was written, read its log"
            " again"
        )
    return Fenced(
        f"{who}: expected a seq above {last_seq}, found {record.seq}; nothing was written, read last_seq again"
    )


def _next_row(before: EntityRow | None, one: Append) -> EntityRow:
    # What is only recorded about an entity that has ended (a refusal, a late fact) does not bring it back to life.
    stays_ended = before is not None and before.ended and one.record.outcome != "transition"
    return EntityRow(
        kind=one.record.entity_type,
        id=one.record.entity_id,
        parent_id=one.parent_id,
        state=one.state,
        data=one.data,
        entity_seq=one.record.entity_seq,
        ended=one.ended or stays_ended,
        born_seq=before.born_seq if before else one.record.seq,
        born_at=before.born_at if before else one.record.timestamp,
        changed_at=one.record.timestamp,
    )


# ---------------------------------------------------------------------------------------------------------- rows
def event_values(record: LifecycleEvent) -> tuple[Any, ...]:
    """Return *record* as a row of ``events``, without its hashes: exactly the values that SQLite returns."""
    seq, timestamp, monotonic_s, *rest, metadata = msgspec.structs.astuple(record)
    # Adding 0.0 is what a REAL column does: a whole number becomes a float, and minus zero is zero.
    return (seq, timestamp + 0.0, monotonic_s + 0.0, *rest, _encode(metadata).decode())


def entity_values(row: EntityRow) -> tuple[Any, ...]:
    """Return *row* as a row of ``entities``: exactly the values that SQLite returns."""
    *values, ended, born_seq, born_at, changed_at = msgspec.structs.astuple(row)
    return (*values, int(ended), born_seq, born_at + 0.0, changed_at + 0.0)


def effect_rows(batch: Iterable[Append]) -> list[tuple[str, str, int, bytes]]:
    """Return the effects that *batch* adds to the outbox, as rows of ``effects``."""
    return [(name, one.record.entity_id, one.record.seq, payload) for one in batch for name, payload in one.owed]


def _event(row: tuple[Any, ...]) -> LifecycleEvent:
    fields = dict(zip(EVENT_FIELDS, row, strict=True))
    try:
        fields["metadata"] = _decode(fields["metadata"])
        return msgspec.convert(fields, LifecycleEvent)
    except (msgspec.MsgspecError, UnicodeError, TypeError, RecursionError) as wrong:
        raise apsw.CorruptError(f"record {row[0]}: {wrong}") from None


def _entity(row: tuple[Any, ...]) -> EntityRow:
    fields = dict(zip(ENTITY_FIELDS, row, strict=True))
    fields["ended"] = bool(fields["ended"])
    try:
        if fields["data"]:
            _decode(fields["data"])
        return msgspec.convert(fields, EntityRow)
    except (msgspec.MsgspecError, UnicodeError, TypeError, RecursionError) as wrong:
        raise apsw.CorruptError(f"entity {fields['id']}: {wrong}") from None


# ------------------------------------------------------------------------------------------------------- reading
def read_events(db: apsw.Connection, entity_id: str | None, after_seq: RecordId, limit: int) -> list[LifecycleEvent]:
    """Return up to *limit* records after *after_seq*, in order: of one entity, or of all."""
    if entity_id is None:
        rows = db.execute(f"{_EVENTS} WHERE seq > ? ORDER BY seq LIMIT ?", (after_seq, limit))
    else:
        where = f"{_EVENTS} WHERE entity_id = ? AND seq > ? ORDER BY entity_seq LIMIT ?"
        rows = db.execute(where, (entity_id, after_seq, limit))
    return [_event(row) for row in rows]


def read_record(db: apsw.Connection, seq: RecordId) -> LifecycleEvent | None:
    """Return one record; ``None`` if it is not in this file."""
    return next((_event(row) for row in db.execute(f"{_EVENTS} WHERE seq = ?", (seq,))), None)


def read_named(db: apsw.Connection, names: Sequence[str]) -> Iterator[LifecycleEvent]:
    """Yield the records of events with one of *names*, in order; no other record is decoded."""
    if tuple(names) == (ABORT_RECORD,):  # as a literal, since only that lets SQLite use the index of these records
        return (_event(row) for row in db.execute(f"{_EVENTS} WHERE event = '{ABORT_RECORD}' ORDER BY seq"))
    where = f"{_EVENTS} WHERE event IN (SELECT value FROM json_each(?)) ORDER BY seq"
    return (_event(row) for row in db.execute(where, (_encode(names).decode(),)))


def read_entities(
    db: apsw.Connection,
    *,
    ids: Sequence[str] | None = None,
    live_only: bool = False,
    ended_kinds: Collection[str] | None = None,
) -> list[EntityRow]:
    """Return entities in the order of creation: all, only those with *ids*, only those that have not ended, or of those
    that have ended only the ones of these kinds."""
    terms, values = ["1"], list[str]()
    if ids is not None:
        terms.append("id IN (SELECT value FROM json_each(?))")
        values.append(_encode(ids).decode())
    if live_only:
        terms.append("ended = 0")
    if ended_kinds is not None:
        terms.append("(ended = 0 OR kind IN (SELECT value FROM json_each(?)))")
        values.append(_encode(list(ended_kinds)).decode())
    where = " AND ".join(terms)
    return [_entity(row) for row in db.execute(f"{_ENTITIES} WHERE {where} ORDER BY born_seq", values)]


def read_last_seq(db: apsw.Connection) -> RecordId:
    """Return the number of the last record; 0 in an empty journal."""
    return RecordId(db.execute("SELECT coalesce(max(seq), 0) FROM events").get)


def read_ids(db: apsw.Connection) -> set[str]:
    """Return every id that was ever used, archived ones too, except the ids of turns and agents."""
    return {str(one) for (one,) in db.execute(_IDS, (_MADE_JSON,))}


def read_meta(db: apsw.Connection, key: str) -> int:
    """Return a number of the journal itself: ``schema_version``, ``generation``, ``partly``."""
    if (found := db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get) is None:
        raise apsw.CorruptError(f"meta has no {key}")
    return int(found)


_FORGED: Final = """
SELECT name FROM sqlite_schema WHERE type = 'view' AND name IN
    ('meta', 'entities', 'events', 'effects', 'gaps', 'strays', 'archives', 'ids', 'snapshot') LIMIT 1
"""


def check_version(db: apsw.Connection, path: Path) -> None:
    """Check that this code can read the journal; nothing is changed.

    Raises:
        JournalError: the file is a database of another program, or has another schema.
    """
    if not db.table_exists(None, "meta"):
        raise JournalError(f"{path} is not a supervisor's journal; move it away or use another state directory")
    if view := db.execute(_FORGED).get:  # whose rows may have no end
        raise JournalError(f"{path} is no journal: {view!r} is a view there, and no table")
    found = read_meta(db, "schema_version")
    if found != VERSION:
        raise JournalError(
            f"{path} has schema {found}, this version reads {VERSION}; use the supervisor-runtime that wrote it, or"
            " another state directory"
        )


_THE_DISKS: Final = (
    OSError,
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.ConnectionClosedError,  # by a look at the disk which could not open it again
    apsw.FullError,
    apsw.IOError,
    apsw.LockedError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)
"""Errors of the disk, which may pass. Any other error is an error of the journal or of this code."""
_LOST: Final = ("no such table", "no such column")
"""Messages of SQLite that prove a missing part of the journal, since the runtime's statements name only tables and
columns that exist."""
_Errors = apsw.Error | OSError | UnicodeDecodeError
"""Errors of reading. UnicodeDecodeError: SQLite does not examine texts, so a flipped bit in a text leaves the page
valid."""


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """Run the body in one transaction: all changes are written, or none."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):  # the first error is the one to report; SQLite itself rolls back after most
            if db.in_transaction:
                db.execute("ROLLBACK")
        raise


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise errors of the driver and of the system as a :class:`JournalError` that names the file: those that may pass
    as a :class:`JournalUnavailable`, damage as a :class:`JournalDamaged`."""
    try:
        yield
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        raise _error_class(error)(f"{path} {_sentence(error)}") from error
    except UnicodeEncodeError as error:
        if error.object != str(path):
            raise
        raise JournalError(f"{path} cannot be opened: its name is not UTF-8; rename it") from error


def _error_class(error: _Errors) -> type[JournalError]:
    if isinstance(error, _THE_DISKS):
        return JournalUnavailable
    return JournalDamaged if is_damage(error) else JournalError


def is_damage(error: _Errors) -> bool:
    """Return whether *error* proves that the file is not as the journal was written."""
    lost = isinstance(error, apsw.SQLError) and str(error).startswith(_LOST)
    return lost or isinstance(error, apsw.CorruptError | UnicodeDecodeError)


def _sentence(error: _Errors) -> str:
    match error:
        case apsw.NotADBError():
            return f"is not a journal ({error}); move it away or use another state directory"
        case _ if is_damage(error):
            return f"is damaged ({error}); restore a copy or use another state directory"
        case apsw.FullError():
            return f"could not be written ({error}); make room on its disk"
        case apsw.BusyError() | apsw.LockedError():
            return f"could not be written ({error}); another program holds a lock on it: find that one and end it"
        case apsw.ReadOnlyError():
            return f"could not be written ({error}); make its file system writable again"
        case _:
            return f"could not be used ({type(error).__name__}: {error}); see to the disk"
