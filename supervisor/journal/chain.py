"""The chain: each record's row carries a hash of itself, its effects and the row before: none can change unnoticed.

SQLite's own checks see a page that is malformed; they do not see one that is old, or a row with another byte in it,
which is what a disk that lies about its syncs leaves behind. A chain cannot tell that its end is missing: whoever kept
the number of a later record can, as ``transitions.jsonl`` does. Where records have gone to an archive a gap carries the
hashes before and after them, here and there: both halves can be checked, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias

import apsw
import msgspec

from supervisor.journal.schema import ENTITY_FIELDS, EVENT_FIELDS

__all__ = [
    "START",
    "BatchEffects",
    "BrokenChain",
    "EffectsByRecord",
    "RecordEffects",
    "SeqCursor",
    "check_chain",
    "check_entities",
    "entity_hash",
    "hash_rows",
    "link_at",
    "link_before",
    "read_end",
    "walk_chain",
]

_SIZE: Final = 16
START: Final = bytes(_SIZE)
"""What the first row is chained to."""

_ROWS: Final = f"SELECT {', '.join(EVENT_FIELDS)}, entity_hash, chain FROM events WHERE seq > ? ORDER BY seq"
_BEYOND: Final = 1 << 63
"""No record has so high a number."""
_GAPS: Final = "SELECT first_seq, last_seq, before, after FROM gaps WHERE first_seq > ? ORDER BY first_seq"
_OWED: Final = "SELECT seq, effect_id, entity_id, payload FROM effects WHERE seq > ? ORDER BY seq, rowid"
"""In the order in which they were written, which is that of their records."""
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
"""MessagePack: one encoding for each value, and a float is its eight bytes, so no version's way to print it matters."""


RecordEffects: TypeAlias = tuple[Sequence[tuple[Any, ...]], Sequence[str]]
"""What a record owes, in order, and what it settles, by name: part of what its hash is over."""


class EffectsByRecord(Protocol):
    """Effects that are taken record by record."""

    def take(self, seq: int) -> RecordEffects: ...


class BatchEffects:
    """The effects that the records of a batch owe and settle, by the record's ``seq``."""

    def __init__(self) -> None:
        self._owed: dict[int, list[tuple[str, str, bytes]]] = {}
        self._settled: dict[int, list[str]] = {}

    def add_owed(self, effect_id: str, entity_id: str, seq: int, payload: bytes) -> None:
        self._owed.setdefault(seq, []).append((effect_id, entity_id, payload))

    def settle(self, effect_id: str, seq: int) -> None:
        self._settled.setdefault(seq, []).append(effect_id)

    def take(self, seq: int) -> RecordEffects:
        settled = self._settled.pop(seq, None)
        return self._owed.pop(seq, ()), sorted(settled) if settled else ()


class SeqCursor:
    """Rows in the order of the ``seq`` that each begins with, taken along with the records of a journal: only the next
    one is held."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows = iter(rows)
        self.at: int | None = None
        """What the next row begins with; ``None`` after the last."""
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
    """The effects of a journal after some record, as they were written; taken in the order of the records."""

    def __init__(self, db: apsw.Connection, after_seq: int) -> None:
        self._owed = SeqCursor(db.execute(_OWED, (after_seq,)))
        self._settled = SeqCursor(db.execute(_SETTLED, (after_seq,)))

    def take(self, seq: int) -> RecordEffects:
        if self._owed.at != seq and self._settled.at != seq:  # three times in four
            return _NOTHING
        return self._owed.take(seq), [effect_id for (effect_id,) in self._settled.take(seq)]

    def cross(self, last_seq: int) -> None:
        """Go on behind a gap: what its records settled is not asked for here."""
        while (at := self._settled.at) is not None and at <= last_seq:
            self._settled.take(at)

    def left(self) -> int | None:
        """The ``seq`` of an effect that belongs to no record, or to none in its place."""
        return min((one.at for one in (self._owed, self._settled) if one.at is not None), default=None)


class BrokenChain(apsw.CorruptError):
    """Record ``seq`` is not what was written, or its effects are not."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        super().__init__(f"record {seq} is not what was written there")


def hash_rows(rows: Iterable[tuple[Any, ...]], effects: EffectsByRecord, after: bytes) -> list[tuple[Any, ...]]:
    """*rows* of ``events`` with their hashes, the first chained to *after*."""
    made = []
    for row in rows:
        after = _link_hash(after, row, effects)
        made.append((*row, after))
    return made


def _link_hash(before: bytes, row: tuple[Any, ...], effects: EffectsByRecord) -> bytes:
    return blake2b(before + _canonical((row, effects.take(row[0]))), digest_size=_SIZE).digest()


def entity_hash(row: tuple[Any, ...]) -> bytes:
    """Of a row of ``entities``: kept with the record that left the entity like that."""
    return blake2b(_canonical(row), digest_size=_SIZE).digest()


def read_end(db: apsw.Connection) -> tuple[int, bytes]:
    """The number and the hash of the last record: what the next one continues."""
    seq, link = db.execute(_END).fetchone() or (0, START)
    return seq, link


def link_at(db: apsw.Connection, seq: int) -> bytes | None:
    """The hash of record *seq*, also of one behind which a gap ends; ``None`` if neither is there."""
    if seq == 0:
        return START
    found = db.execute(_AT, (seq,)).fetchone()
    return found[0] if found is not None else None


def link_before(db: apsw.Connection, seq: int, schema: str = "main") -> tuple[int, bytes]:
    """The number and the hash of what record *seq* continues: the record before it, or the end of a gap."""
    last_seq, link = db.execute(_BEFORE.format(schema), (seq,)).fetchone() or (0, START)
    return last_seq, link


def walk_chain(db: apsw.Connection, after_seq: int = 0, link: bytes = START) -> Iterator[tuple[Any, ...]]:
    """The rows of ``events`` after *after_seq*, whose hash is *link*, each as soon as it is known to be sound.

    Raises:
        Broken: one is not.
    """
    effects, gaps = StoredEffects(db, after_seq), SeqCursor(db.execute(_GAPS, (after_seq,)))
    for row in db.execute(_ROWS, (after_seq,)):
        if gaps.at is not None and gaps.at < row[0]:
            link = _cross_gaps(gaps, row[0], link, effects)
        if _link_hash(link, row[:-1], effects) != row[-1]:
            raise BrokenChain(row[0])
        link = row[-1]
        yield row
    _cross_gaps(gaps, _BEYOND, link, effects)
    if (left := effects.left()) is not None:
        raise BrokenChain(left)


def _cross_gaps(gaps: SeqCursor, before_seq: int, link: bytes, effects: StoredEffects) -> bytes:
    """The hash that record *before_seq* continues: that of the last gap before it."""
    while (first_seq := gaps.at) is not None and first_seq < before_seq:
        ((last_seq, before, after),) = gaps.take(first_seq)
        if before != link or not first_seq <= last_seq < before_seq:
            raise BrokenChain(first_seq)
        effects.cross(last_seq)
        link = after
    return link


def check_chain(db: apsw.Connection) -> int | None:
    """The ``seq`` of the first record that is not what was written, or whose effects are not; ``None`` if all are."""
    try:
        for _ in walk_chain(db):
            pass
    except BrokenChain as broken:
        return broken.seq
    return None


def check_entities(db: apsw.Connection, where: str = "", values: Sequence[str] = ()) -> tuple[str | None, int]:
    """The id of an entity that is not as its last record left it, ``None`` if there is none; and the sum of the hashes
    of all that were looked at. *where* is SQL that says which, of ``one``."""
    total = 0
    for row in db.execute(f"{_ENTITIES} {where}", values):
        found = entity_hash(row[:-1])
        if found != row[-1]:
            return str(row[1]), total
        total += int.from_bytes(found)
    return None, total
