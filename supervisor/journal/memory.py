"""Journal in memory: for a supervisor that is embedded without a state directory, and for simulated supervisors.

The journal in memory behaves as the journal on disk, because ``schema.apply_batch`` decides for both; only durability
is missing. Records are kept encoded, so that a later change of a caller's dictionary does not reach the log. A
``MemoryStore`` outlives the journal object that writes to it, as a file would.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, TypeVar

import msgspec
from anyio.lowlevel import cancel_shielded_checkpoint

from supervisor.journal.schema import DERIVED_ID_KINDS, apply_batch, check_generation
from supervisor.lifecycles.record_ids import id_before
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import Append, EntityRow, FollowRecords, JournalError, Reader

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LifecycleEvent).decode


class _Log:
    """Records in order, with access by their numbers."""

    def __init__(self) -> None:
        self.seqs: list[RecordId] = []
        self.records: list[bytes] = []

    def after(self, seq: RecordId, limit: int | None = None) -> list[LifecycleEvent]:
        start = bisect_right(self.seqs, seq)
        return [_decode(record) for record in self.records[start : None if limit is None else start + limit]]


class MemoryStore:
    """Content of a journal in memory. Each journal opened on it is a new generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.log = _Log()
        self.logs: dict[str, _Log] = {}
        self.entities: dict[str, EntityRow] = {}
        self.effects: set[str] = set()
        self.owed: dict[str, tuple[str, str, bytes]] = {}
        self.writing = Lock()
        """Held during a write: a reader in another thread must not see one half of a batch."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: one for name, one in self.__dict__.items() if name != "writing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.writing = Lock()  # each copy has its own

    @property
    def last_seq(self) -> RecordId:
        return self.log.seqs[-1] if self.log.seqs else BEGINNING

    def log_of(self, entity_id: str | None) -> _Log:
        """Return the log of one entity, or of all."""
        return self.log if entity_id is None else self.logs.get(entity_id, _Log())

    def rows(self, ids: Sequence[str] | None, live_only: bool) -> list[EntityRow]:
        # A copy at once: a reader may be in another thread than the writer.
        there = (
            list(self.entities.values()) if ids is None else [self.entities[one] for one in ids if one in self.entities]
        )
        return [row for row in there if not (live_only and row.ended)]

    def write(self, batch: Sequence[Append]) -> None:
        """Write all of *batch*, or raise an error and write none of it."""
        entities = apply_batch(self.entities, self.last_seq, batch)
        records = [_encode(one.record) for one in batch]
        owed = self._new_effects(batch)
        with self.writing:
            self._store(batch, records, entities, owed)

    def _store(
        self,
        batch: Sequence[Append],
        records: Sequence[bytes],
        entities: Mapping[str, EntityRow],
        owed: Mapping[str, tuple[str, str, bytes]],
    ) -> None:
        self.entities.update(entities)
        self.effects.update(owed)  # in place: `|=` with another's keys would make a new set of all of them
        self.owed.update(owed)
        for one, encoded in zip(batch, records, strict=True):
            record = one.record
            log = self.logs.get(record.entity_id)
            if log is None:
                log = self.logs[record.entity_id] = _Log()
            for kept in (self.log, log):
                kept.seqs.append(record.seq)
                kept.records.append(encoded)
            for name in one.settled:
                self.owed.pop(name, None)

    def _new_effects(self, batch: Sequence[Append]) -> dict[str, tuple[str, str, bytes]]:
        owed: dict[str, tuple[str, str, bytes]] = {}
        for one in batch:
            for name, payload in one.owed:
                if name in self.effects or name in owed:
                    raise JournalError(f"effect {name} is already in the journal; nothing was written")
                owed[name] = (name, one.record.entity_id, payload)
        return owed

    def settle(self, effect_ids: Iterable[str]) -> None:
        for name in effect_ids:
            self.owed.pop(name, None)


class _MemoryReader:
    """Reader of a journal in memory (``supervisor.ports.Reader``), which has no archives. The methods may be called in
    another thread than the writer's."""

    def __init__(self, store: MemoryStore, follow: FollowRecords) -> None:
        self._store, self.follow = store, follow

    @property
    def last_seq(self) -> RecordId:
        return self._store.last_seq

    def events(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING, *, archived: bool = False
    ) -> Iterator[LifecycleEvent]:
        return iter(self._store.log_of(entity_id).after(after_seq))

    def record(self, seq: RecordId, *, archived: bool = False) -> LifecycleEvent | None:
        found = next(iter(self._store.log.after(id_before(seq), limit=1)), None)
        return found if found is not None and found.seq == seq else None

    def events_named(self, *names: str, archived: bool = False) -> Iterator[LifecycleEvent]:
        return (event for event in self.events() if event.event in names)

    def entities(
        self,
        *,
        ids: Sequence[str] | None = None,
        live_only: bool = False,
        ended_kinds: Collection[str] | None = None,
        archived: bool = False,
    ) -> list[EntityRow]:
        rows = self._store.rows(ids, live_only)
        return rows if ended_kinds is None else [row for row in rows if not row.ended or row.kind in ended_kinds]

    def entity(self, entity_id: str) -> EntityRow | None:
        return self._store.entities.get(entity_id)

    def snapshot(self) -> tuple[RecordId, list[EntityRow]]:
        with self._store.writing:
            return self._store.last_seq, self._store.rows(None, True)

    def archived_records(self, after_seq: RecordId = BEGINNING) -> int:
        return 0


class MemoryJournal:
    """A journal in memory that ends with its process (``supervisor.ports.Journal``)."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = MemoryStore() if store is None else store
        self._store.generation += 1
        self.generation = self._store.generation
        self._closed = False

    @property
    def last_seq(self) -> RecordId:
        return self._store.last_seq

    async def append(self, batch: Sequence[Append]) -> None:
        self._writable().write(batch)
        await cancel_shielded_checkpoint()

    async def check(self) -> None:
        """Do nothing: memory cannot be deleted or replaced."""

    async def recover(self) -> RecordId:
        store = self._writable()
        await cancel_shielded_checkpoint()
        return store.last_seq

    async def settle(self, effect_ids: Sequence[str]) -> None:
        self._writable().settle(effect_ids)
        await cancel_shielded_checkpoint()

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """Return the effects that were not performed yet, oldest first: (effect id, entity id, payload)."""
        return list(self._reading().owed.values())

    async def events(
        self, *, entity_id: str | None = None, after_seq: RecordId = BEGINNING, limit: int = 10_000
    ) -> list[LifecycleEvent]:
        return self._reading().log_of(entity_id).after(after_seq, limit)

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        return self._reading().rows(ids, live_only)

    async def ids(self) -> set[str]:
        return {row.id for row in self._reading().entities.values() if row.kind not in DERIVED_ID_KINDS}

    def reader(self, follow: FollowRecords) -> AbstractContextManager[Reader]:
        return nullcontext(_MemoryReader(self._reading(), follow))

    async def read(self, follow: FollowRecords, work: Callable[[Reader], _T]) -> _T:
        with self.reader(follow) as reader:
            return work(reader)

    async def close(self) -> None:
        self._closed = True

    def _reading(self) -> MemoryStore:
        if self._closed:
            raise JournalError("the journal in memory is closed; open another one on its store")
        return self._store

    def _writable(self) -> MemoryStore:
        store = self._reading()
        check_generation("the journal in memory", self.generation, store.generation)
        return store
