"""Integrity check of the journal when it is opened.

Theory of operation
-------------------
A full verification takes seconds per million records, so it is done once after each boot of the machine. Later openings
verify only the records after the last snapshot. A snapshot states up to which record the journal was verified. It is
written by the supervisor that has verified or written every record up to that one: every ``SNAPSHOT_EVERY`` records,
and when the journal is closed.

A snapshot counts only in the boot in which it was written. After a kill the kernel still has every written page; a page
that a power cut or an unreliable disk loses is missing only after the next boot.

Example: 25,000 records, snapshot at 20,000. The supervisor is killed and started again: 5,000 records, the entities in
them and the living entities are verified. After a reboot all 25,000 records are verified.

Damage that old records suffer meanwhile is found by the full check (``supervisor journal check``), by ``validate`` and
``replay``, and before the records go to an archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import apsw
import msgspec

from supervisor.journal.chain import START, check_entities, link_at, walk_chain

SNAPSHOT_EVERY: Final = 10_000
"""Number of records between two snapshots: an opening after a kill verifies at most that many, in about 0.1 s."""

_SIZE: Final = 16
_MODULUS: Final = 1 << (8 * _SIZE)
_READ: Final = "SELECT seq, chain, records, entities, digest, boot FROM snapshot"
_WRITE: Final = "INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?, ?, ?)"
_COUNTS: Final = """
SELECT (SELECT count(*) FROM events) - (SELECT coalesce(sum(entity_seq), 0) FROM entities)
    + (SELECT value FROM meta WHERE key = 'partly')
"""
"""Query for the number of records that belong to no entity in the journal; ``partly`` counts the records that were
archived before their entity."""
_EARLIER: Final = """
SELECT entity_hash FROM events WHERE entity_id = ? AND seq <= ? AND entity_hash <> x'' ORDER BY entity_seq DESC LIMIT 1
"""
_TOUCHED: Final = "WHERE one.ended = 0 OR one.id IN (SELECT value FROM json_each(?))"
_KNOWN: Final = "SELECT count(*) FROM entities WHERE id IN (SELECT value FROM json_each(?))"
_encode = msgspec.json.Encoder().encode


class ChecksumState(msgspec.Struct, frozen=True):
    """Summary of a verified journal: last record and its hash, numbers of records and entities, and the sum of the
    entities' hashes. An append updates the sum without reading any other entity."""

    seq: int
    chain: bytes
    records: int
    entities: int
    digest: int

    def after(
        self, *, seq: int, chain: bytes, records: int, came: Iterable[bytes], went: Iterable[bytes], more: int
    ) -> ChecksumState:
        """Return the checksums after *records* records and *more* entities were added; *went* are the entity hashes
        that were replaced, *came* the new ones."""
        digest = self.digest + sum(map(int.from_bytes, came)) - sum(map(int.from_bytes, went))
        return ChecksumState(seq, chain, self.records + records, self.entities + more, digest % _MODULUS)

    def without(self, records: int, hashes: Sequence[bytes]) -> ChecksumState:
        """Return the checksums after *records* records, and the entities with these *hashes*, were moved to an
        archive."""
        digest = self.digest - sum(map(int.from_bytes, hashes))
        return ChecksumState(
            self.seq, self.chain, self.records - records, self.entities - len(hashes), digest % _MODULUS
        )


def read_snapshot(db: apsw.Connection) -> tuple[ChecksumState, str] | None:
    """Return the last snapshot, and the id of the boot in which it was written; ``None`` if there is no snapshot.

    Raises:
        apsw.CorruptError: the snapshot is malformed, which is possible since it is read before any page is checked.
    """
    row = db.execute(_READ).fetchone()
    if row is None:
        return None
    try:
        seq, chain, records, entities, digest, boot = msgspec.convert(row, tuple[int, bytes, int, int, bytes, str])
    except msgspec.ValidationError as error:
        raise apsw.CorruptError(f"the snapshot is not what was written there: {error}") from error
    return ChecksumState(seq, chain, records, entities, int.from_bytes(digest)), boot


def write_snapshot(db: apsw.Connection, checksums: ChecksumState, boot: str) -> None:
    """Write *checksums* as the snapshot, in the caller's transaction."""
    digest = checksums.digest.to_bytes(_SIZE)
    db.execute(_WRITE, (checksums.seq, checksums.chain, checksums.records, checksums.entities, digest, boot))


def verify_journal(db: apsw.Connection, boot: str) -> ChecksumState:
    """Verify the journal and return its checksums; *boot* is the id of this boot, ``""`` if unknown.

    Raises:
        apsw.CorruptError: a part of the journal is not as it was written; the message names the part.
    """
    found = read_snapshot(db)
    if found is not None and boot and found[1] == boot:
        return _check_since(db, found[0])
    return check_all(db)


# ------------------------------------------------------------------------------------------------ since the snapshot
def _check_since(db: apsw.Connection, last: ChecksumState) -> ChecksumState:
    """Verify the records after *last*, the entities in them, and the living entities."""
    if link_at(db, last.seq) != last.chain:
        raise apsw.CorruptError(f"record {last.seq} is not what was written there")
    records, seq, chain = 0, last.seq, last.chain
    came: dict[str, bytes] = {}
    for row in walk_chain(db, last.seq, last.chain):
        seq, chain, records = row[0], row[-1], records + 1
        came[row[_WHO]] = row[-2] or came.get(row[_WHO], b"")
    touched = (_encode(list(came)).decode(),)
    _raise_for_stray(check_entities(db, _TOUCHED, touched)[0])
    if (known := db.execute(_KNOWN, touched).get) != len(came):
        raise apsw.CorruptError(f"{len(came) - known} entities that have records are not there")
    went = [old for who in came if (old := db.execute(_EARLIER, (who, last.seq)).get) is not None]
    more = len(came) - len(went)
    return last.after(seq=seq, chain=chain, records=records, came=came.values(), went=went, more=more)


_WHO: Final = 4
"""Index of the entity's id in a row of ``events``."""


def _raise_for_stray(entity_id: str | None) -> None:
    if entity_id is not None:
        raise apsw.CorruptError(f"{entity_id} is not as its last record left it")


# -------------------------------------------------------------------------------------------------------- all of it
def check_all(db: apsw.Connection) -> ChecksumState:
    """Verify pages and indexes, then records, entities, and the last snapshot.

    A million records take about 3 s in SQLite's own check and 8 s in the rest of this function (one core, 2026).

    Raises:
        apsw.CorruptError: a part of the journal is not as it was written; the message names the part.
    """
    if (verdict := db.execute("PRAGMA integrity_check(1)").get) != "ok":
        raise apsw.CorruptError(str(verdict))
    found = read_snapshot(db)
    last = found[0] if found is not None else _EMPTY
    end, folded = _walk_records(db, last.seq)
    astray, digest = check_entities(db)
    _raise_for_stray(astray)
    if uncounted := db.execute(_COUNTS).get:
        raise apsw.CorruptError(f"{uncounted} records more than the entities have")
    if last != folded:
        raise apsw.CorruptError(f"up to record {last.seq} it is not what its snapshot says")
    entities = db.execute("SELECT count(*) FROM entities").get
    return ChecksumState(end.seq, end.chain, end.records, entities, digest % _MODULUS)


_EMPTY: Final = ChecksumState(0, START, 0, 0, 0)


def _walk_records(db: apsw.Connection, up_to: int) -> tuple[ChecksumState, ChecksumState]:
    """Check the chain; return the checksums of the whole journal (without entities), and of the records up to
    *up_to*."""
    seq, chain, records = 0, START, 0
    folded = _EMPTY
    kept: dict[str, bytes] = {}
    """The hash of each entity as of the current record."""
    for row in walk_chain(db):
        if records and seq <= up_to < row[0]:
            folded = _entity_checksums(seq, chain, records, kept)
        seq, chain, records = row[0], row[-1], records + 1
        if row[-2] and seq <= up_to:
            kept[row[_WHO]] = row[-2]
    if records and seq <= up_to:
        folded = _entity_checksums(seq, chain, records, kept)
    return ChecksumState(seq, chain, records, 0, 0), folded


def _entity_checksums(seq: int, chain: bytes, records: int, kept: dict[str, bytes]) -> ChecksumState:
    return ChecksumState(seq, chain, records, len(kept), sum(map(int.from_bytes, kept.values())) % _MODULUS)
