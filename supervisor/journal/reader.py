"""Read-only access to one file of a journal: while a supervisor writes, and after it has ended. ``history`` reads a
journal together with its archives.

The connection holds no transaction between two queries, so it never delays a supervisor; each page of a result is
consistent (and all pages together are consistent inside ``read_transaction``). The write-ahead log of a killed
supervisor is read as well. Two helper files of SQLite may stay beside the journal; the next supervisor removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import apsw

from supervisor.journal.chain import check_chain, check_entities
from supervisor.journal.files import DISK
from supervisor.journal.integrity import ChecksumState, check_all
from supervisor.journal.schema import (
    check_version,
    read_entities,
    read_events,
    read_last_seq,
    read_named,
    read_record,
    translate_errors,
)
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import Damage, EntityRow, JournalError

_PAGE: Final = 1_000
_BUSY_MS: Final = 5_000
_ELSEWHERE: Final = "SELECT coalesce(sum(last_seq - max(first_seq - 1, ?1)), 0) FROM gaps WHERE last_seq > ?1"


class JournalReader:
    """The journal at *path*, read-only; a context manager. Every method returns the current content.

    Raises:
        JournalError: the file does not exist, has another schema, is damaged, or is no journal.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise JournalError(f"no journal at {path}: run `supervisor run` there first, or name another directory")
        self._path = path
        with translate_errors(self._path):
            self._db = DISK.connect(path, apsw.SQLITE_OPEN_READONLY)
        try:
            with translate_errors(self._path):
                self._db.set_busy_timeout(_BUSY_MS)
                check_version(self._db, path)
        except BaseException:
            self._db.close()
            raise

    @property
    def last_seq(self) -> RecordId:
        with translate_errors(self._path):
            return read_last_seq(self._db)

    @property
    def gaps(self) -> int:
        """The number of ranges of records that were moved to archives."""
        with translate_errors(self._path):
            return int(self._db.execute("SELECT count(*) FROM gaps").get)

    def records_in_gaps(self, after_seq: RecordId = BEGINNING) -> int:
        """Return the number of records after *after_seq* that are in archives."""
        with translate_errors(self._path):
            return int(self._db.execute(_ELSEWHERE, (after_seq,)).get)

    def archives(self) -> dict[str, bytes]:
        """Return the archives that hold records of this journal, oldest first: file name and hash of the file."""
        with translate_errors(self._path):
            return dict(self._db.execute("SELECT file, digest FROM archives ORDER BY number"))

    def events(self, entity_id: str | None = None, after_seq: RecordId = BEGINNING) -> Iterator[LifecycleEvent]:
        """Yield the records after *after_seq* in order, only those of *entity_id* if that is given."""
        while page := self._page(entity_id, after_seq):
            yield from page
            after_seq = page[-1].seq

    def _page(self, entity_id: str | None, after_seq: RecordId) -> list[LifecycleEvent]:
        with translate_errors(self._path):
            return read_events(self._db, entity_id, after_seq, _PAGE)

    def record(self, seq: RecordId) -> LifecycleEvent | None:
        """Return the record with that number; ``None`` if it is not in this file."""
        with translate_errors(self._path):
            return read_record(self._db, seq)

    def events_named(self, *names: str) -> Iterator[LifecycleEvent]:
        """Yield the records of events with one of these names, in order."""
        with translate_errors(self._path):
            yield from read_named(self._db, names)

    def entities(
        self, *, ids: Sequence[str] | None = None, live_only: bool = False, ended_kinds: Collection[str] | None = None
    ) -> list[EntityRow]:
        """Return entities in the order of creation; the arguments are those of the port."""
        with translate_errors(self._path):
            return read_entities(self._db, ids=ids, live_only=live_only, ended_kinds=ended_kinds)

    def entity(self, entity_id: str) -> EntityRow | None:
        """Return the entity with that id; ``None`` if the journal does not have it."""
        return next(iter(self.entities(ids=[entity_id])), None)

    def effects(self) -> dict[str, bytes]:
        """Return every effect, including performed ones, as JSON by the id of the effect."""
        with translate_errors(self._path):
            return dict(self._db.execute("SELECT effect_id, payload FROM effects"))

    def find_damage(self) -> Damage | None:
        """Return the details of the damage that :meth:`check` would find; ``None`` if the journal is undamaged."""
        with translate_errors(self._path), self.read_transaction():
            try:
                check_all(self._db)
            except apsw.CorruptError as error:
                seq = check_chain(self._db)
                return Damage(None if seq is None else RecordId(seq), check_entities(self._db)[0], str(error))
        return None

    def check(self) -> ChecksumState:
        """Verify the state of the journal at one moment: pages, chain, entities, snapshot.

        Raises:
            JournalError: the journal is damaged; the message names the place.
        """
        with translate_errors(self._path), self.read_transaction():
            return check_all(self._db)

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Make all queries in the body read the state of one moment. A supervisor can write meanwhile, but its
        write-ahead log is not cleared."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            with suppress(apsw.ConnectionClosedError):
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()
