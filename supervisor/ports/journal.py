"""Journal port: what the owner of a journal needs: appends, errors, and the archiver that keeps a journal small.
``reader`` is the port of everyone else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from supervisor.lifecycles.types import BEGINNING, InvalidArgument, LifecycleEvent, RecordId, check_duration
from supervisor.ports.reader import EntityRow, FollowRecords, Reader

_T = TypeVar("_T")


class JournalError(Exception):
    """Error: the journal cannot be used, and a retry does not help: another supervisor owns it, it is damaged, or the
    file is no journal."""


class JournalDamaged(JournalError):
    """Error: the file is a journal, but its content is not as it was written."""


class CompactionFailed(JournalError):
    """Error: a compaction did not finish. Nothing is lost, and the next compaction continues it."""


class JournalLost(JournalError):
    """Error: the journal, or the lock file beside it, was deleted or replaced while the supervisor had it open, or
    another program has written into the journal. Committed records may be lost; the supervisor stops everything, and
    writes nothing more into its state directory."""


class JournalUnavailable(JournalError):
    """Error: the disk is full, failing, read-only, locked or unreachable. The condition may pass; whether the last
    write is durable is unknown until :meth:`Journal.recover` has read the disk."""


class Fenced(JournalError):
    """Error: another writer was first: the entity's version is not the expected one, or a later supervisor owns the
    journal."""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Changes of one event to one entity, written all or not at all.

    ``record.entity_seq`` must be the entity's last one plus 1. ``state`` and ``data`` are those of the entity after the
    event (``data`` encoded as JSON), ``owed`` the effects that the entity owes from now on, as (effect id, JSON),
    ``settled`` the ids of effects that are no longer owed, ``ended`` marks the entity's last record.
    """

    record: LifecycleEvent
    parent_id: str | None
    state: str
    data: bytes
    owed: tuple[tuple[str, bytes], ...] = ()
    settled: tuple[str, ...] = ()
    ended: bool = False


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the ended entities in a journal; entities beyond a bound are moved to the archive. ``None`` is no
    bound.

    ``keep_s`` is the time that an entity stays after its last record (a week by default); above ``records_max`` records
    in the journal, the oldest entities are moved earlier.

    Raises:
        InvalidArgument: a bound is negative, infinite or no number.
        TypeError: a bound has a wrong type.
    """

    keep_s: float | None = 604_800.0
    records_max: int | None = 1_000_000

    def __post_init__(self) -> None:
        if self.keep_s is not None:
            check_duration("Retention: keep_s", self.keep_s)
        if self.records_max is not None:
            if isinstance(self.records_max, bool) or not isinstance(self.records_max, int):
                wrong = f"{self.records_max!r} is of type {type(self.records_max).__name__}"
                raise TypeError(f"Retention: records_max: {wrong}; give an int, or None for no bound")
            if self.records_max < 0:
                raise InvalidArgument(f"Retention: records_max: {self.records_max} is no count; give 0 or more")


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a compaction: the archives that were made or completed, the numbers of records and entities moved
    there, and the numbers left in the journal."""

    archives: tuple[str, ...] = ()
    records: int = 0
    entities: int = 0
    records_left: int = 0
    entities_left: int = 0


@runtime_checkable
class Journal(Protocol):
    """Journal with a log per entity and a single writer. ``append`` returns when everything is durable; if it raises,
    the batch may be durable or not."""

    @property
    def generation(self) -> int:
        """The number of supervisors that have owned this journal, including the current one."""
        ...

    @property
    def last_seq(self) -> RecordId: ...

    async def append(self, batch: Sequence[Append]) -> None:
        """Write *batch* in one transaction.

        Raises:
            Fenced: some entity's version is not the expected one; nothing was written.
            JournalUnavailable: the disk failed; the outcome is unknown: all of it is there, or none.
        """
        ...

    async def recover(self) -> RecordId:
        """After a failed append, read from the disk which records are durable; return the number of the last durable
        record.

        Raises:
            Fenced: another supervisor owns the journal by now.
            JournalUnavailable: the disk cannot be read yet; try again later.
        """
        ...

    async def check(self) -> None:
        """Check that the journal lies where it was opened, and that no other program has written into it. Every write
        makes the same check.

        Raises:
            JournalLost: the journal was deleted, replaced or changed.
        """
        ...

    async def settle(self, effect_ids: Sequence[str]) -> None:
        """Record that these effects were performed. An effect that is recorded so already is not changed.

        Raises:
            JournalUnavailable: as for an append.
        """
        ...

    async def events(
        self, *, entity_id: str | None = None, after_seq: RecordId = BEGINNING, limit: int = 10_000
    ) -> list[LifecycleEvent]: ...

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        """Return all entities, only the living ones (*live_only*), or only those with *ids*; archived entities are not
        returned."""
        ...

    async def ids(self) -> set[str]:
        """Return every id that was ever used, archived ones too, except the ids of turns and agents, which no caller
        chooses."""
        ...

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """Return the effects that are still to be performed: (effect id, entity id, JSON), oldest first."""
        ...

    def reader(self, follow: FollowRecords) -> AbstractContextManager[Reader]:
        """Return read access to this journal and its archives for everyone but its owner; *follow* has the records to
        come.

        Raises:
            JournalError: the journal cannot be opened for reading.
        """
        ...

    async def read(self, follow: FollowRecords, work: Callable[[Reader], _T]) -> _T:
        """Return the result of *work*, which is called with a reader, as of :meth:`reader`; on a thread if the reader
        waits for a disk.

        Raises:
            JournalError: the journal cannot be opened for reading, or *work* has failed to read.
        """
        ...

    async def close(self) -> None: ...


class Archiver(Protocol):
    """Compaction of a journal while it is in use, and copies of records in the archive."""

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        """Move to the archive the entities that *retention* does not keep in the journal, except the *living* ones (by
        id).

        Raises:
            JournalError: nothing more was moved; the next compaction completes this one.
        """
        ...

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        """Write a copy of *records* to the archive, a line of JSON each, in a file of that *name*.

        Raises:
            OSError: the copy cannot be written; an earlier file of that name is unchanged.
            JournalLost: the state directory no longer belongs to this supervisor.
        """
        ...
