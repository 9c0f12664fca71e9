"""Reader port: read access to a journal for everyone but the supervisor that owns it.

Commands, other interfaces and embedding programs read through a :class:`Reader`, wherever the journal lies: in a file
with archives, in an archive, or in the memory of a running supervisor. A reader never changes a journal, and never
delays the owner. The owner itself reads through :class:`supervisor.ports.Journal`, in the order of its writes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId


class EntityRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row of an entity in the journal."""

    kind: str
    id: str
    parent_id: str | None
    state: str
    data: bytes
    entity_seq: int
    ended: bool
    born_seq: RecordId
    born_at: float
    changed_at: float

    @property
    def lasted_s(self) -> float:
        """Seconds from the first to the last record, by the wall clock, since several supervisors may have written
        them; 0 if the wall clock was set back meanwhile."""
        return round(max(0.0, self.changed_at - self.born_at), 6)


class FollowRecords(Protocol):
    """Function that yields the records after a number, and those to come, until the journal's owner has ended. Only
    records of the entity *entity_id* if that is given."""

    def __call__(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING
    ) -> AsyncGenerator[LifecycleEvent, None]: ...


class Reader(Protocol):
    """Read access to a journal. Every method returns what is durable now.

    The methods wait for the disk; in an event loop, call them in a thread. Only :meth:`follow` is for an event loop.
    Records and entities that were moved to archives are read with *archived*, and by :meth:`entity`. The owner of the
    journal may write, and compact, while a result is read: each record is read once.

    Each method may raise an error:

    Raises:
        JournalDamaged: the journal, or an archive, is not as it was written, or an archive is missing.
        JournalUnavailable: the journal cannot be read now; a later try may succeed.
    """

    @property
    def last_seq(self) -> RecordId:
        """The id of the last record; ``BEGINNING`` in an empty journal."""
        ...

    def events(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING, *, archived: bool = False
    ) -> Iterator[LifecycleEvent]:
        """Yield the records after *after_seq* in order, only those of *entity_id* if that is given."""
        ...

    def record(self, seq: RecordId, *, archived: bool = False) -> LifecycleEvent | None:
        """Return the record with that number; ``None`` if it is not there."""
        ...

    def events_named(self, *names: str, archived: bool = False) -> Iterator[LifecycleEvent]:
        """Yield the records of events with one of these *names*, in order."""
        ...

    def entities(
        self,
        *,
        ids: Sequence[str] | None = None,
        live_only: bool = False,
        ended_kinds: Collection[str] | None = None,
        archived: bool = False,
    ) -> list[EntityRow]:
        """Return every entity in the order of creation; with *ids* only these, with *live_only* only the entities that
        have not ended, with *ended_kinds* of those that have ended only the ones of these kinds: ended turns and agents
        are most of the entities, and few readers need them. With *archived*, entities of archives come first."""
        ...

    def entity(self, entity_id: str) -> EntityRow | None:
        """Return the entity with that id; ``None`` if neither the journal nor an archive has it."""
        ...

    def snapshot(self) -> tuple[RecordId, list[EntityRow]]:
        """Return the id of the last record, and the entities that had not ended at that record: the records after it
        lead from these entities to the present."""
        ...

    def archived_records(self, after_seq: RecordId = BEGINNING) -> int:
        """Return the number of records after *after_seq* that are in archives only."""
        ...

    def follow(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING
    ) -> AsyncGenerator[LifecycleEvent, None]:
        """Yield the records after *after_seq* in order, and then those to come, until the journal's owner has ended; at
        once if nobody owns the journal. Only records of *entity_id* if that is given; archives are not read.

        Raises:
            SubscriptionLagged: the caller was more than 4,096 records behind; read on from the journal.
            ControlError: the supervisor is in another process, and was killed or does not reply.
        """
        ...


class Damage(NamedTuple):
    """Damage of a journal: the first record that differs from its hash, an entity that differs from the hash in its
    last record, and the message of the check (*problem*), which may concern neither."""

    seq: RecordId | None
    entity_id: str | None
    problem: str


class FileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check of one file. ``gaps`` counts the ranges of records that are in another file; ``problem`` is
    ``None`` if the file is undamaged."""

    file: str
    records: int = 0
    entities: int = 0
    last_seq: RecordId = BEGINNING
    gaps: int = 0
    problem: str | None = None
