"""The journal: its appends, its rows, its errors, and the upkeep that keeps it small."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from supervisor.lifecycles.types import LifecycleEvent

__all__ = [
    "Append",
    "Archiver",
    "Compacted",
    "EntityRow",
    "Fenced",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalLost",
    "JournalUnavailable",
    "Retention",
]


class JournalError(Exception):
    """The journal could not answer, and it is no use to ask again: it is another's, damaged, or none."""


class JournalDamaged(JournalError):
    """The file is a journal, but its content is not as it was written."""


class JournalLost(JournalError):
    """The journal, or the lock beside it, was deleted or replaced under the supervisor that has it open. What it has
    committed may be nowhere; it ends everything, and writes nothing more into its state directory."""


class JournalUnavailable(JournalError):
    """The disk's own trouble: full, failing, read-only, locked, not to be had. It may pass; of what was being written
    nothing is known until :meth:`Journal.recover` has looked."""


class Fenced(JournalError):
    """Another writer was there first: the entity's version is not the expected one, or the epoch is over."""


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
    """An entity as the journal knows it."""

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
    """Journal with a log per entity and a single writer. ``append`` returns when all of it is durable, or raises and
    nothing is known."""

    @property
    def generation(self) -> int:
        """Counts the supervisors that have owned this journal, from 1."""
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
        """After an append that failed, look at what the disk itself holds; the number of the last durable record.

        Raises:
            Fenced: another supervisor owns the journal by now.
            JournalUnavailable: the disk cannot be asked yet; look again later.
        """
        ...

    async def check(self) -> None:
        """Look whether it still lies where it was opened. Every write does that, too.

        Raises:
            JournalLost: it was deleted or replaced.
        """
        ...

    async def settle(self, effect_ids: Sequence[str]) -> None:
        """These effects have been performed. That of one which was settled already changes nothing.

        Raises:
            JournalUnavailable: as for an append.
        """
        ...

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]: ...

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        """All entities, those that have not ended, or those of *ids*; none that went to an archive."""
        ...

    async def ids(self) -> set[str]:
        """Every id that was ever used, archived ones too, but for those of turns and agents: nobody chooses them."""
        ...

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """The effects that are owed and not settled: (effect id, entity id, JSON), oldest first."""
        ...

    async def close(self) -> None: ...


class Archiver(Protocol):
    """Compaction of a journal while it is written, and copies of records in the archive."""

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        """Move what *retention* does not keep, and who is not among the *living* (by id), to the archive.

        Raises:
            JournalError: nothing more was moved; what was begun is finished by the next one.
        """
        ...

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        """Write a copy of *records* to the archive, a line of JSON each, in a file of that *name*.

        Raises:
            OSError: it cannot be written; there is no such file then, or the one that was there before.
            JournalLost: the state directory is not ours any more.
        """
        ...
