"""The chain: each record's row carries a hash of itself, its effects and the row before: none can change unnoticed.

SQLite's own checks see a page that is malformed; they do not see one that is old, or a row with another byte in it,
which is what a disk that lies about its syncs leaves behind. A chain cannot tell that its end is missing: whoever kept
the number of a later record can, as ``transitions.jsonl`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

import apsw
import msgspec

from supervisor.journal.schema import ENTITY_FIELDS, EVENT_FIELDS

__all__ = ["START", "Dues", "chained", "check_chain", "check_entities", "entity_hash", "read_end"]

_SIZE: Final = 16
START: Final = bytes(_SIZE)
"""What the first row is chained to."""

_ROWS: Final = f"SELECT {', '.join(EVENT_FIELDS)}, entity_hash, chain FROM events ORDER BY seq"
_OWED: Final = "SELECT seq, effect_id, entity_id, payload FROM effects ORDER BY rowid"
"""In the order in which they were written, which is that of their records."""
_SETTLED: Final = "SELECT settled, effect_id FROM effects WHERE settled > 0 ORDER BY settled, effect_id"
_ENTITIES: Final = f"""
SELECT {", ".join(f"one.{name}" for name in ENTITY_FIELDS)}, last.entity_hash FROM entities AS one
LEFT JOIN events AS last ON last.entity_id = one.id AND last.entity_seq = one.entity_seq
"""
_END: Final = "SELECT seq, chain FROM events ORDER BY seq DESC LIMIT 1"
_canonical = msgspec.msgpack.Encoder().encode
"""MessagePack: one encoding for each value, and a float is its eight bytes, so no version's way to print it matters."""


Due = tuple[Sequence[tuple[Any, ...]], Sequence[str]]
"""What a record owes, in order, and what it settles, by name: part of what its hash is over."""


class _Taken(Protocol):
    """Effects that are taken record by record."""

    def take(self, seq: int) -> Due: ...


class Dues:
    """The effects that the records of a batch owe and settle, by the record's ``seq``."""

    def __init__(self) -> None:
        self._owed: dict[int, list[tuple[str, str, bytes]]] = {}
        self._settled: dict[int, list[str]] = {}

    def owe(self, effect_id: str, entity_id: str, seq: int, payload: bytes) -> None:
        self._owed.setdefault(seq, []).append((effect_id, entity_id, payload))

    def settle(self, effect_id: str, seq: int) -> None:
        self._settled.setdefault(seq, []).append(effect_id)

    def take(self, seq: int) -> Due:
        settled = self._settled.pop(seq, None)
        return self._owed.pop(seq, ()), sorted(settled) if settled else ()


class _Merged:
    """Rows in the order of the ``seq`` that each begins with, taken along with the records of a journal: only the next
    one is held."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows = iter(rows)
        self.next = next(self._rows, None)

    def take(self, seq: int) -> list[tuple[Any, ...]]:
        taken = []
        while self.next is not None and self.next[0] == seq:
            taken.append(self.next[1:])
            self.next = next(self._rows, None)
        return taken


class _ReadDues:
    """The effects of a whole journal, as they were written; taken in the order of the records."""

    def __init__(self, db: apsw.Connection) -> None:
        self._owed, self._settled = _Merged(db.execute(_OWED)), _Merged(db.execute(_SETTLED))

    def take(self, seq: int) -> Due:
        return self._owed.take(seq), [effect_id for (effect_id,) in self._settled.take(seq)]

    def left(self) -> int | None:
        """The ``seq`` of an effect that belongs to no record, or to none in its place."""
        return min((one.next[0] for one in (self._owed, self._settled) if one.next is not None), default=None)


def chained(rows: Iterable[tuple[Any, ...]], dues: Dues, after: bytes) -> list[tuple[Any, ...]]:
    """*rows* of ``events`` with their hashes, the first chained to *after*."""
    made = []
    for row in rows:
        after = _link(after, row, dues)
        made.append((*row, after))
    return made


def _link(before: bytes, row: tuple[Any, ...], dues: _Taken) -> bytes:
    return blake2b(before + _canonical((row, dues.take(row[0]))), digest_size=_SIZE).digest()


def entity_hash(row: tuple[Any, ...]) -> bytes:
    """Of a row of ``entities``: kept with the record that left the entity like that."""
    return blake2b(_canonical(row), digest_size=_SIZE).digest()


def read_end(db: apsw.Connection) -> tuple[int, bytes]:
    """The number and the hash of the last record: what the next one continues."""
    seq, link = db.execute(_END).fetchone() or (0, START)
    return seq, link


def check_chain(db: apsw.Connection) -> int | None:
    """The ``seq`` of the first record that is not what was written, or whose effects are not; ``None`` if all are."""
    dues, before = _ReadDues(db), START
    for row in db.execute(_ROWS):
        if _link(before, row[:-1], dues) != row[-1]:
            return int(row[0])
        before = row[-1]
    return dues.left()


def check_entities(db: apsw.Connection) -> str | None:
    """The id of an entity that is not as its last record left it, ``None`` if there is none."""
    rows = db.execute(_ENTITIES)
    return next((str(row[1]) for row in rows if entity_hash(row[:-1]) != row[-1]), None)
