"""Deletion of archived records from the journal, in slices: after each slice the journal can be verified.

A gap takes the place of the records; if a remaining record settled a deleted effect, the effect's id stays
(``strays``); ids stay reserved; and the snapshot is updated to the remaining records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import apsw
import msgspec

from supervisor.journal.chain import entity_hash, link_before
from supervisor.journal.database import Database
from supervisor.journal.integrity import read_snapshot
from supervisor.journal.schema import DERIVED_ID_KINDS, ENTITY_FIELDS

_ROW: Final = f"SELECT {', '.join(ENTITY_FIELDS)} FROM entities WHERE id = ? AND entity_seq = ? AND ended = 1"
_LOG: Final = "SELECT seq, chain FROM events WHERE entity_id = ? ORDER BY entity_seq LIMIT ?"
_STRAYS: Final = """
INSERT OR IGNORE INTO strays SELECT one.settled, one.effect_id FROM effects AS one
WHERE one.seq IN (SELECT value FROM json_each(?1)) AND one.settled > 0
AND one.settled NOT IN (SELECT value FROM json_each(?1)) AND EXISTS (SELECT 1 FROM events WHERE seq = one.settled)
"""
_DELETE: Final = "DELETE FROM {} WHERE seq IN (SELECT value FROM json_each(?))"
_BEFORE: Final = "SELECT seq FROM events WHERE seq < ? ORDER BY seq DESC LIMIT 1"
_LEFT: Final = "SELECT first_seq, last_seq, before FROM gaps WHERE first_seq < ? ORDER BY first_seq DESC LIMIT 1"
_RIGHT: Final = "SELECT first_seq, last_seq, after FROM gaps WHERE first_seq > ? ORDER BY first_seq LIMIT 1"
_AFTER: Final = "SELECT seq FROM events WHERE seq > ? ORDER BY seq LIMIT 1"
_KIND, _ID, _SEQ = (ENTITY_FIELDS.index(name) for name in ("kind", "id", "entity_seq"))
_encode = msgspec.json.Encoder().encode


def delete_slice(database: Database, selected: list[tuple[str, int]], most: int) -> tuple[int, int]:
    """Delete up to *most* records of the *selected* entities (id and number of records, children first).

    Entities that are completely deleted are removed from the list. An entity that differs from its archived copy stays.
    Returns the numbers of records and entities that were deleted.

    Raises:
        Fenced: a later supervisor owns the journal.
    """
    db = database.db
    links, rows, rest = _next_slice(db, selected, most)
    checksums = database.checksums.without(len(links), [entity_hash(row) for row in rows])
    db.pragma("foreign_keys", "off")  # nothing is left that points here, and to look for it takes a scan for each
    try:
        with database.writing():
            _delete_records(db, sorted(links))
            _delete_entities(db, rows, len(links))
            database.write_snapshot(checksums)
    finally:
        db.pragma("foreign_keys", "on")
        if (found := read_snapshot(db)) is not None and found[
            0
        ] == checksums:  # also after a commit that was reported as failed
            database.checksums = checksums
    selected[:] = rest
    return len(links), len(rows)


def _next_slice(
    db: apsw.Connection, selected: list[tuple[str, int]], most: int
) -> tuple[list[tuple[int, bytes]], list[tuple[Any, ...]], list[tuple[str, int]]]:
    """Return the numbers and hashes of the next records to delete, the rows of the entities that are deleted with them,
    and the entities left for later. An entity with many records is deleted in several slices, its oldest records
    first."""
    links: list[tuple[int, bytes]] = []
    rows: list[tuple[Any, ...]] = []
    for number, (who, records) in enumerate(selected):
        row = db.execute(_ROW, (who, records)).fetchone()
        if row is None:
            continue
        log: list[Any] = db.execute(_LOG, (who, most - len(links) + 1)).fetchall()
        if len(links) + len(log) > most:
            return [*links, *log[:-1]], rows, selected[number:]
        links += log
        rows.append(row)
    return links, rows, []


def _delete_records(db: apsw.Connection, links: list[tuple[int, bytes]]) -> None:
    seqs = (_encode([seq for seq, _ in links]).decode(),)
    db.execute(_STRAYS, seqs)
    for table in ("effects", "strays"):
        db.execute(_DELETE.format(table), seqs)
    runs = list(_consecutive_runs(links))
    ends = [link_before(db, run[0][0])[1] for run in runs]
    db.execute(_DELETE.format("events"), seqs)
    for run, before in zip(runs, ends, strict=True):
        _insert_gap(db, run[0][0], run[-1][0], before, run[-1][1])


def _consecutive_runs(links: Iterable[tuple[int, bytes]]) -> Iterable[list[tuple[int, bytes]]]:
    run: list[tuple[int, bytes]] = []
    for one in links:
        if run and one[0] != run[-1][0] + 1:
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _insert_gap(db: apsw.Connection, first: int, last: int, before: bytes, after: bytes) -> None:
    """Insert a gap from *first* to *last*, merged with the neighbouring gaps if no record lies between them."""
    below, above = db.execute(_BEFORE, (first,)).get, db.execute(_AFTER, (last,)).get
    left, right = db.execute(_LEFT, (first,)).fetchone(), db.execute(_RIGHT, (last,)).fetchone()
    if left is not None and (below is None or left[1] > below):
        first, before = left[0], left[2]
        db.execute("DELETE FROM gaps WHERE first_seq = ?", (first,))
    if right is not None and (above is None or right[0] < above):
        last, after = right[1], right[2]
        db.execute("DELETE FROM gaps WHERE first_seq = ?", (right[0],))
    db.execute("INSERT INTO gaps VALUES (?, ?, ?, ?)", (first, last, before, after))


def _delete_entities(db: apsw.Connection, rows: list[tuple[Any, ...]], records: int) -> None:
    ids = (_encode([row[_ID] for row in rows]).decode(),)
    db.execute("DELETE FROM entities WHERE id IN (SELECT value FROM json_each(?))", ids)
    db.executemany(
        "INSERT OR IGNORE INTO ids VALUES (?)", [(row[_ID],) for row in rows if row[_KIND] not in DERIVED_ID_KINDS]
    )
    of_whole = sum(int(row[_SEQ]) for row in rows)
    db.execute("UPDATE meta SET value = value + ? WHERE key = 'partly'", (records - of_whole,))
