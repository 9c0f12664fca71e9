"""How a journal of an earlier schema becomes one of this: forwards only, one step and one transaction for each schema.

All of it happens on a copy, which takes the journal's name when it is whole and on the disk; the journal as it was
stays beside it (``journal.db.schema-1``). A crash at any point leaves the old journal or the new one under its name,
and the next opening begins anew or finds it done. What an old schema did not keep is never made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from supervisor.journal.chain import START, Due, Merged, chained, entity_hash
from supervisor.journal.files import Files
from supervisor.journal.schema import ENTITY_FIELDS, EVENT_FIELDS, transaction
from supervisor.journal.tables import ADDED_IN_3, VERSION
from supervisor.ports import JournalError

__all__ = ["MIGRATIONS", "bring_up"]

_BUSY_MS: Final = 5_000
_PAGES: Final = 1_000
"""Pages of a file that are copied at a time."""
_ROWS: Final = 1_000


def bring_up(path: Path, found: int, files: Files) -> None:
    """Make the journal at *path*, which has schema *found*, one of this version; nobody else may use it.

    Raises:
        JournalError: somebody reads it just now.
        apsw.Error, OSError: the disk refused; the journal is as it was.
    """
    kept, new = path.with_name(f"{path.name}.schema-{found}"), path.with_name(f"{path.name}.new")
    with closing(files.connect(path, apsw.SQLITE_OPEN_READWRITE)) as db:
        _whole(db, path)
        for copy in (new, kept.with_name(f"{kept.name}.new")):
            _copied(db, copy, files)
    _become(kept.with_name(f"{kept.name}.new"), kept, files)
    with closing(files.connect(new, apsw.SQLITE_OPEN_READWRITE)) as db:
        _quietly(db)
        for version in range(found, VERSION):
            with transaction(db):
                MIGRATIONS[version](db)
                db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version + 1,))
    _become(new, path, files)


def _whole(db: apsw.Connection, path: Path) -> None:
    """Bring what is in the write-ahead log into the file, so that the log goes: it must not be taken for the new one's.

    That it can says that nobody else reads it.
    """
    db.set_busy_timeout(_BUSY_MS)
    try:
        db.pragma("journal_mode", "delete")
    except apsw.BusyError:
        raise JournalError(
            f"{path} has an older schema and is being read; end what reads it, and start again to bring it up to date"
        ) from None


def _copied(db: apsw.Connection, path: Path, files: Files) -> None:
    for left in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}-journal")):
        files.remove(left)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with closing(files.connect(path, flags)) as copy, copy.backup("main", db, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)


def _quietly(db: apsw.Connection) -> None:
    db.pragma("synchronous", "full")
    db.pragma("temp_store", "memory")
    db.pragma("foreign_keys", "off")


def _become(new: Path, path: Path, files: Files) -> None:
    files.sync(new)
    files.rename(new, path)
    files.sync(path.parent)


# ------------------------------------------------------------------------------------------------------------ 1 to 2
_EVENTS_2: Final = """
CREATE TABLE chained (
    seq INTEGER PRIMARY KEY, timestamp REAL NOT NULL, monotonic_s REAL NOT NULL,
    entity_type TEXT NOT NULL, entity_id TEXT NOT NULL REFERENCES entities (id), entity_seq INTEGER NOT NULL,
    event TEXT NOT NULL, from_status TEXT NOT NULL, to_status TEXT NOT NULL, outcome TEXT NOT NULL,
    actor TEXT NOT NULL, reason TEXT NOT NULL, transition_reason TEXT, abort_reason TEXT, abort_id TEXT,
    cause_id INTEGER, severity TEXT NOT NULL, metadata TEXT NOT NULL,
    entity_hash BLOB NOT NULL, chain BLOB NOT NULL,
    UNIQUE (entity_id, entity_seq)
) STRICT;
"""
_INTO: Final = f"INSERT INTO chained VALUES ({', '.join('?' * (len(EVENT_FIELDS) + 2))})"
_LAST: Final = f"SELECT {', '.join(ENTITY_FIELDS)} FROM entities"


class _Owed:
    """What records owe; schema 1 did not keep which record settled it."""

    def __init__(self, db: apsw.Connection) -> None:
        rows = db.execute("SELECT seq, effect_id, entity_id, payload FROM effects ORDER BY seq, rowid").fetchall()
        self._rows = Merged(rows)

    def take(self, seq: int) -> Due:
        return self._rows.take(seq), ()


def _chain(db: apsw.Connection) -> None:
    """Schema 2 has the hashes: they are worked out now, from what is there now."""
    db.execute("UPDATE effects SET settled = -1 WHERE settled = 1")
    db.execute(_EVENTS_2)
    hashes = {(row[1], row[_ENTITY_SEQ]): entity_hash(row) for row in db.execute(_LAST)}
    owed, link, seq = _Owed(db), START, 0
    while page := _page(db, seq, hashes):
        made = chained(page, owed, link)
        db.executemany(_INTO, made)
        seq, link = made[-1][0], made[-1][-1]
    db.execute("DROP TABLE events")
    db.execute("ALTER TABLE chained RENAME TO events")
    db.execute("INSERT INTO meta VALUES ('vouched_after', ?)", (seq,))


_ENTITY_SEQ: Final = ENTITY_FIELDS.index("entity_seq")


def _page(db: apsw.Connection, seq: int, hashes: Mapping[tuple[Any, Any], bytes]) -> Sequence[tuple[Any, ...]]:
    rows = db.execute(f"SELECT {', '.join(EVENT_FIELDS)} FROM events WHERE seq > ? ORDER BY seq LIMIT {_ROWS}", (seq,))
    return [(*row, hashes.get((row[4], row[5]), b"")) for row in rows]


# ------------------------------------------------------------------------------------------------------------ 2 to 3
def _grow(db: apsw.Connection) -> None:
    """Schema 3 has what archives need, snapshots, and the views."""
    db.execute("DROP INDEX effects_owed")
    db.execute(ADDED_IN_3)
    db.execute("INSERT OR IGNORE INTO meta VALUES ('vouched_after', 0)")
    db.execute("INSERT INTO meta VALUES ('partly', 0)")


MIGRATIONS: Final[Mapping[int, Callable[[apsw.Connection], None]]] = {1: _chain, 2: _grow}
"""From each earlier schema to the next."""
