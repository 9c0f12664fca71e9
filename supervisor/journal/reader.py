"""The journal for those who only look: the command line, while a supervisor writes and after it has ended.

The connection is read-only and holds no transaction between two questions, so it never keeps a supervisor waiting;
each page of an answer is one consistent moment (and all of them are, inside ``moment``). What a killed supervisor left
in its write-ahead log is read as well. SQLite's two helper files may stay beside the journal; the next supervisor
clears them away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

import apsw

from supervisor.journal.chain import check_chain, check_entities
from supervisor.journal.integrity import ChecksumState, check_all
from supervisor.journal.schema import (
    check_version,
    read_entities,
    read_events,
    read_last_seq,
    read_meta,
    read_named,
    translate_errors,
)
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import EntityRow, JournalError

__all__ = ["Damage", "JournalReader", "last_seq_of"]

_PAGE: Final = 1_000
_BUSY_MS: Final = 5_000
_ELSEWHERE: Final = "SELECT coalesce(sum(last_seq - max(first_seq - 1, ?1)), 0) FROM gaps WHERE last_seq > ?1"


class Damage(NamedTuple):
    """What is not as it was written: the first such record, and an entity that is not as its last record left it;
    *problem* is what the check says, which may be neither."""

    seq: int | None
    entity_id: str | None
    problem: str


def last_seq_of(path: Path) -> int:
    """The number of the last record of the journal at *path*.

    Raises:
        JournalError: of another schema, damaged, or no journal.
    """
    with translate_errors(path), closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        db.set_busy_timeout(_BUSY_MS)
        check_version(db, path)
        return read_last_seq(db)


class JournalReader:
    """The journal at *path*, read-only; a context manager. Every answer is as of now.

    Raises:
        JournalError: there is none, it has the schema of another version, is damaged, or no journal.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise JournalError(f"no journal at {path}: run `supervisor run` there first, or give --state-dir")
        self._path = path
        with translate_errors(self._path):
            self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            with translate_errors(self._path):
                self._db.set_busy_timeout(_BUSY_MS)
                check_version(self._db, path)
        except BaseException:
            self._db.close()
            raise

    @property
    def generation(self) -> int:
        """How many supervisors have owned this journal."""
        with translate_errors(self._path):
            return read_meta(self._db, "generation")

    @property
    def last_seq(self) -> int:
        with translate_errors(self._path):
            return read_last_seq(self._db)

    @property
    def gaps(self) -> int:
        """How many ranges of records are elsewhere."""
        with translate_errors(self._path):
            return int(self._db.execute("SELECT count(*) FROM gaps").get)

    def elsewhere(self, after_seq: int = 0) -> int:
        """How many records after *after_seq* are in those."""
        with translate_errors(self._path):
            return int(self._db.execute(_ELSEWHERE, (after_seq,)).get)

    def archives(self) -> dict[str, bytes]:
        """The names of the archives that have records of this journal, oldest first, and the digests of their files."""
        with translate_errors(self._path):
            return dict(self._db.execute("SELECT file, digest FROM archives ORDER BY number"))

    def events(self, entity_id: str | None = None, after_seq: int = 0) -> Iterator[LifecycleEvent]:
        """Records after *after_seq* in order, those of *entity_id* only if it is given."""
        while page := self._page(entity_id, after_seq):
            yield from page
            after_seq = page[-1].seq

    def _page(self, entity_id: str | None, after_seq: int) -> list[LifecycleEvent]:
        with translate_errors(self._path):
            return read_events(self._db, entity_id, after_seq, _PAGE)

    def named(self, *names: str) -> Iterator[LifecycleEvent]:
        """The records of events with one of these names, in order."""
        with translate_errors(self._path):
            yield from read_named(self._db, names)

    def entities(self, *, live_only: bool = False) -> list[EntityRow]:
        """Every entity in the order of birth, or those that have not ended."""
        with translate_errors(self._path):
            return read_entities(self._db, live_only=live_only)

    def entity(self, entity_id: str) -> EntityRow | None:
        """One entity, if the journal knows it."""
        with translate_errors(self._path):
            return next(iter(read_entities(self._db, ids=[entity_id])), None)

    def effects(self) -> dict[str, bytes]:
        """Every effect that was ever owed, by its id, as JSON; settled ones too."""
        with translate_errors(self._path):
            return dict(self._db.execute("SELECT effect_id, payload FROM effects"))

    def changed(self) -> Damage | None:
        """What :meth:`check` finds, looked at closer; ``None`` if it finds nothing. As of one moment."""
        with translate_errors(self._path), self.moment():
            try:
                check_all(self._db)
            except apsw.CorruptError as error:
                return Damage(check_chain(self._db), check_entities(self._db)[0], str(error))
        return None

    def check(self) -> ChecksumState:
        """Check all there is to check, as of one moment: pages, chain, entities, snapshot.

        Raises:
            JournalError: it is damaged; it says where.
        """
        with translate_errors(self._path), self.moment():
            return check_all(self._db)

    @contextmanager
    def moment(self) -> Iterator[None]:
        """All answers inside are as of the same moment. A supervisor goes on, but its log is not cleared meanwhile."""
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
