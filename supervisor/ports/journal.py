"""Journal port: appends, rows, errors, and the archiver that keeps a journal small."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from supervisor.lifecycles.types import LifecycleEvent


class JournalError(Exception):
    """The journal cannot be used, and retrying does not help: it is another supervisor's, damaged, or no journal."""


class JournalDamaged(JournalError):
    """The file is a journal, but its content is not as it was written."""


class JournalLost(JournalError):
    """The journal, or the lock beside it, was deleted or replaced while the supervisor had it open. What the supervisor
    has committed may be lost; it stops everything, and writes nothing more into its state directory."""


class JournalUnavailable(JournalError):
    """The disk is full, failing, read-only, locked or unreachable. That may pass; whether the last write is durable is
    unknown until :meth:`Journal.recover` has read the disk."""


class Fenced(JournalError):
    """Another writer was first: the entity's version is not the expected one, or a later supervisor owns the
    journal."""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Changes of one event to one entity, written all or not at all.

    ``record.entity_seq`` must be the entity's last one plus 1. ``state`` and ``data`` are the entity after it
    (``data`` encoded as JSON), ``owed`` the effects it now owes as (effect id, JSON), ``settled`` the ids of effects
    that are no longer owed, ``ended`` marks the entity's last record.
    """

    record: LifecycleEvent
    parent_id: str | None
    state: str
    data: bytes
    owed: tuple[tuple[str, bytes], ...] = ()
    settled: tuple[str, ...] = ()
    ended: bool = False


class EntityRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row of an entity in the journal."""

    kind: str
    id: str
    parent_id: str | None
    state: str
    data: bytes
    entity_seq: int
    ended: bool
    born_seq: int
    born_at: float
    changed_at: float


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the ended entities that a journal keeps; others go to the archive. ``None`` is no bound.

    ``keep_s`` is for how long after its last record (a week by default), ``records_max`` how many records the journal
    has at most before the oldest of them go earlier.
    """

    keep_s: float | None = 604_800.0
    records_max: int | None = 1_000_000


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a compaction: the archives that were made or completed, what was moved there, and what the journal has
    left."""

    archives: tuple[str, ...] = ()
    records: int = 0
    entities: int = 0
    records_left: int = 0
    entities_left: int = 0


class Journal(Protocol):
    """Journal with a log per entity and a single writer. ``append`` returns when everything is durable, or raises; then
    it is unknown what is durable."""

    @property
    def generation(self) -> int:
        """The number of supervisors that have owned this journal, including the current one."""
        ...

    @property
    def last_seq(self) -> int: ...

    async def append(self, batch: Sequence[Append]) -> None:
        """Write *batch* in one transaction.

        Raises:
            Fenced: some entity's version is not the expected one; nothing was written.
            JournalUnavailable: the disk failed; the outcome is unknown: all of it is there, or none.
        """
        ...

    async def recover(self) -> int:
        """Read from the disk what a failed append has left; return the number of the last durable record.

        Raises:
            Fenced: another supervisor owns the journal by now.
            JournalUnavailable: the disk cannot be read yet; try again later.
        """
        ...

    async def check(self) -> None:
        """Check that the journal lies where it was opened. Every write checks that, too.

        Raises:
            JournalLost: it was deleted or replaced.
        """
        ...

    async def settle(self, effect_ids: Sequence[str]) -> None:
        """Record that these effects were performed. A settled effect is not changed.

        Raises:
            JournalUnavailable: as for an append.
        """
        ...

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]: ...

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        """Return all entities, those that have not ended, or those of *ids*; none that went to an archive."""
        ...

    async def ids(self) -> set[str]:
        """Return every id that was ever used, archived ones too, without those of turns and agents, which no caller
        chooses."""
        ...

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """Return the effects that are owed and not settled: (effect id, entity id, JSON), oldest first."""
        ...

    async def close(self) -> None: ...


class Archiver(Protocol):
    """Compaction of a journal while it is written, and copies of records in the archive."""

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        """Move to the archive what *retention* does not keep, except the *living* entities (by id).

        Raises:
            JournalError: nothing more was moved; the next compaction finishes what was begun.
        """
        ...

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        """Write a copy of *records* to the archive, a line of JSON each, in a file of that *name*.

        Raises:
            OSError: it cannot be written; an earlier file of that name is unchanged.
            JournalLost: the state directory is not ours any more.
        """
        ...
