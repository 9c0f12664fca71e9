"""Hash chain of the journal: no record, effect or entity can change unnoticed.

Theory of operation
-------------------
The row of each record carries a hash (``chain``) of the row itself, of the effects that the record owes and settles,
and of the hash before. The first row is chained to ``START``. The last record of an entity in a batch also carries a
hash of the entity's row (``entity_hash``).

    chain(n) = blake2b(chain(n - 1) + msgpack(row n, owed effects, settled effects))

The chain finds what SQLite's own checks cannot: a page that is well-formed but old, or a row in which a byte has
changed. A disk that reports a sync which it has not made leaves such pages.

Limits: a chain cannot show that its end is missing. A reader that knows the number of a later record can show that;
``transitions.jsonl`` has this number. Where records have gone to an archive, a gap holds the hash before and the hash
after them, in the journal and in the archive, so that each file can be checked by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias

import apsw
import msgspec

from supervisor.journal.schema import ENTITY_FIELDS, EVENT_FIELDS

_SIZE: Final = 16
START: Final = bytes(_SIZE)
"""The hash to which the first row is chained."""

_ROWS: Final = f"SELECT {', '.join(EVENT_FIELDS)}, entity_hash, chain FROM events WHERE seq > ? ORDER BY seq"
_BEYOND: Final = 1 << 63
"""A number larger than that of every record."""
_GAPS: Final = "SELECT first_seq, last_seq, before, after FROM gaps WHERE first_seq > ? ORDER BY first_seq"
_OWED: Final = "SELECT seq, effect_id, entity_id, payload FROM effects WHERE seq > ? ORDER BY seq, rowid"
"""Query for the effects after a record, in the order in which they were written, which is the order of their
records."""
_SETTLED: Final = """
SELECT settled, effect_id FROM effects WHERE settled > max(?1, 0)
UNION ALL SELECT seq, effect_id FROM strays WHERE seq > ?1 ORDER BY 1, 2
"""
_ENTITIES: Final = f"""
SELECT {", ".join(f"one.{name}" for name in ENTITY_FIELDS)}, last.entity_hash FROM entities AS one
LEFT JOIN events AS last ON last.entity_id = one.id AND last.entity_seq = one.entity_seq
"""
_END: Final = "SELECT seq, chain FROM events ORDER BY seq DESC LIMIT 1"
_AT: Final = "SELECT chain FROM events WHERE seq = ?1 UNION ALL SELECT after FROM gaps WHERE last_seq = ?1"
_BEFORE: Final = """
SELECT seq, chain FROM (SELECT seq, chain FROM {0}.events WHERE seq < ?1 ORDER BY seq DESC LIMIT 1)
UNION ALL SELECT last_seq, after FROM (
    SELECT last_seq, after FROM {0}.gaps WHERE first_seq < ?1 ORDER BY first_seq DESC LIMIT 1
) ORDER BY 1 DESC LIMIT 1
"""
# Gaps are disjoint: the last one that begins before a record also ends before it, and the index knows where they begin.
_canonical = msgspec.msgpack.Encoder().encode
"""Encoder of hashed values. MessagePack has one encoding for each value, and a float is its eight bytes, so that the
hash does not depend on how a version formats numbers."""


RecordEffects: TypeAlias = tuple[Sequence[tuple[Any, ...]], Sequence[str]]
"""The effects that a record owes, in order, and the ids of the effects that it settles: both are part of the record's
hash."""


class EffectsByRecord(Protocol):
    """Source of the effects of each record, read in the order of the records."""

    def take(self, seq: int) -> RecordEffects: ...


class BatchEffects:
    """Effects of one batch, by the ``seq`` of the record that owes or settles them."""

    def __init__(self) -> None:
        self._owed: dict[int, list[tuple[str, str, bytes]]] = {}
        self._settled: dict[int, list[str]] = {}

    def add_owed(self, effect_id: str, entity_id: str, seq: int, payload: bytes) -> None:
        self._owed.setdefault(seq, []).append((effect_id, entity_id, payload))

    def add_settled(self, effect_id: str, seq: int) -> None:
        self._settled.setdefault(seq, []).append(effect_id)

    def take(self, seq: int) -> RecordEffects:
        settled = self._settled.pop(seq, None)
        # Sorted as _SETTLED sorts: a later check reads the effects in that order, and has to get the same hash.
        return self._owed.pop(seq, ()), sorted(settled) if settled else ()


class SeqCursor:
    """Cursor over rows that begin with a ``seq``, in the order of ``seq``; only the next row is held in memory."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows = iter(rows)
        self.at: int | None = None
        """The ``seq`` of the next row; ``None`` after the last."""
        self._go_on()

    def _go_on(self) -> None:
        self._next = next(self._rows, ())
        self.at = self._next[0] if self._next else None

    def take(self, seq: int) -> list[tuple[Any, ...]]:
        taken = []
        while self.at == seq:
            taken.append(self._next[1:])
            self._go_on()
        return taken


_NOTHING: Final[RecordEffects] = ((), ())


class StoredEffects:
    """Effects that the journal holds after some record; must be read in the order of the records."""

    def __init__(self, db: apsw.Connection, after_seq: int) -> None:
        self._owed = SeqCursor(db.execute(_OWED, (after_seq,)))
        self._settled = SeqCursor(db.execute(_SETTLED, (after_seq,)))

    def take(self, seq: int) -> RecordEffects:
        if self._owed.at != seq and self._settled.at != seq:  # three times in four
            return _NOTHING
        return self._owed.take(seq), [effect_id for (effect_id,) in self._settled.take(seq)]

    def cross(self, last_seq: int) -> None:
        """Skip the effects that the records of a gap settled, up to *last_seq*."""
        while (at := self._settled.at) is not None and at <= last_seq:
            self._settled.take(at)

    def left(self) -> int | None:
        """Return the ``seq`` of an effect that was not read since no record has that number; ``None`` if every effect
        was read."""
        return min((one.at for one in (self._owed, self._settled) if one.at is not None), default=None)


class BrokenChain(apsw.CorruptError):
    """Error: record ``seq``, or one of its effects, is not as it was written."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        super().__init__(f"record {seq} is not what was written there")


def hash_rows(rows: Iterable[tuple[Any, ...]], effects: EffectsByRecord, after: bytes) -> list[tuple[Any, ...]]:
    """Append to each of *rows* of ``events`` its hash; the first row is chained to *after*."""
    made = []
    for row in rows:
        after = _link_hash(after, row, effects)
        made.append((*row, after))
    return made


def _link_hash(before: bytes, row: tuple[Any, ...], effects: EffectsByRecord) -> bytes:
    return blake2b(before + _canonical((row, effects.take(row[0]))), digest_size=_SIZE).digest()


def entity_hash(row: tuple[Any, ...]) -> bytes:
    """Return the hash of a row of ``entities``, which is stored with the last record of the entity."""
    return blake2b(_canonical(row), digest_size=_SIZE).digest()


def read_end(db: apsw.Connection) -> tuple[int, bytes]:
    """Return the number and the hash of the last record, to which the next record is chained."""
    # From the database each time, and not from memory: after a commit that was reported as failed, only the disk knows
    # which record is the last.
    seq, link = db.execute(_END).fetchone() or (0, START)
    return seq, link


def link_at(db: apsw.Connection, seq: int) -> bytes | None:
    """Return the hash of record *seq*, or of a gap that ends with it; ``None`` if neither exists."""
    if seq == 0:
        return START
    found = db.execute(_AT, (seq,)).fetchone()
    return found[0] if found is not None else None


def link_before(db: apsw.Connection, seq: int, schema: str = "main") -> tuple[int, bytes]:
    """Return the number and the hash of the record, or the end of the gap, to which record *seq* is chained."""
    last_seq, link = db.execute(_BEFORE.format(schema), (seq,)).fetchone() or (0, START)
    return last_seq, link


def walk_chain(db: apsw.Connection, after_seq: int = 0, link: bytes = START) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``events`` after record *after_seq*, whose hash is *link*; each row is verified before.

    Raises:
        BrokenChain: a row, an effect or a gap is not as it was written.
    """
    effects, gaps = StoredEffects(db, after_seq), SeqCursor(db.execute(_GAPS, (after_seq,)))
    for row in db.execute(_ROWS, (after_seq,)):
        # A gap first: the row after it is chained to the end of the gap, whose records an archive has.
        if gaps.at is not None and gaps.at < row[0]:
            link = _cross_gaps(gaps, row[0], link, effects)
        if _link_hash(link, row[:-1], effects) != row[-1]:
            raise BrokenChain(row[0])
        link = row[-1]
        yield row  # only now: nobody works on a row that is not as it was written
    _cross_gaps(gaps, _BEYOND, link, effects)
    # A power cut under a disk that lies may take whole pages. A lost record in the middle breaks the chain; a lost end
    # does not, but an effect of a lost record may be left.
    if (left := effects.left()) is not None:
        raise BrokenChain(left)


def _cross_gaps(gaps: SeqCursor, before_seq: int, link: bytes, effects: StoredEffects) -> bytes:
    """Check the gaps before record *before_seq*; return the hash to which that record is chained."""
    while (first_seq := gaps.at) is not None and first_seq < before_seq:
        ((last_seq, before, after),) = gaps.take(first_seq)
        # A gap that does not continue the chain hides records that were deleted and are in no archive.
        if before != link or not first_seq <= last_seq < before_seq:
            raise BrokenChain(first_seq)
        effects.cross(last_seq)
        link = after
    return link


def check_chain(db: apsw.Connection) -> int | None:
    """Return the ``seq`` of the first record that differs from its hash, itself or in its effects; ``None`` if none
    does."""
    try:
        for _ in walk_chain(db):
            pass
    except BrokenChain as broken:
        return broken.seq
    return None


def check_entities(db: apsw.Connection, where: str = "", values: Sequence[str] = ()) -> tuple[str | None, int]:
    """Return the id of an entity whose row differs from its hash (``None``: no row does), and the sum of all hashes.

    *where* is SQL that selects entities, whose table is named ``one``.
    """
    total = 0
    for row in db.execute(f"{_ENTITIES} {where}", values):
        found = entity_hash(row[:-1])
        if found != row[-1]:
            return str(row[1]), total
        total += int.from_bytes(found)
    return None, total
