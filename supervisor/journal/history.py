"""History: a journal on disk together with its archives (``supervisor.ports.Reader``).

The journal takes precedence for an entity in both places; a record that is in both, because a compaction was
interrupted, is read once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, suppress
from heapq import merge
from pathlib import Path
from typing import Final, Self

import msgspec

from supervisor.journal.archive import digest_of
from supervisor.journal.reader import JournalReader
from supervisor.lifecycles.types import BEGINNING, LifecycleEvent, RecordId
from supervisor.ports import (
    Damage,
    EntityRow,
    FileCheck,
    FollowRecords,
    JournalDamaged,
    JournalError,
    JournalUnavailable,
)

_CHANGED: Final = "it is not as it was archived"


def archives_beside(journal: Path) -> Path:
    """Return the folder of the archives that belong to the journal at *journal* in a state directory."""
    return journal.parent.parent / "archive"


class History:
    """The journal at *path*, which may be an archive, and its archives in *folder*; a context manager. *follow* has the
    records to come; without it nobody is known to write the journal.

    Raises:
        JournalError: the journal cannot be read.
    """

    def __init__(self, path: Path, folder: Path | None = None, follow: FollowRecords | None = None) -> None:
        self._path, self._folder, self._follow = path, folder or archives_beside(path), follow
        self._open = ExitStack()
        self._live = self._open.enter_context(JournalReader(path))
        self._archives: dict[str, JournalReader] = {}

    def _readers(self) -> list[JournalReader]:
        """Return the readers of the archives, oldest first, and of the journal.

        Raises:
            JournalDamaged: an archive is missing, or the file is no archive.
            JournalUnavailable: an archive cannot be read now.
        """
        for name in self._live.archives():
            if name not in self._archives:
                path = self._folder / name
                if not path.is_file():
                    raise JournalDamaged(f"{path} {self._missing}")
                try:
                    self._archives[name] = self._open.enter_context(JournalReader(path))
                except JournalUnavailable:
                    raise
                except JournalError as error:
                    raise JournalDamaged(str(error)) from error
        return [*self._archives.values(), self._live]

    @property
    def _missing(self) -> str:
        """Error text for an archive without a file."""
        return f"is not there: {self._path} has records in it; put the file back"

    @property
    def is_part(self) -> bool:
        """Whether the file is an archive read by itself: other files have records between its records."""
        return self._live.gaps > 0 and not self._live.archives()

    @property
    def last_seq(self) -> RecordId:
        return self._live.last_seq

    def archived_records(self, after_seq: RecordId = BEGINNING) -> int:
        return self._live.records_in_gaps(after_seq)

    def events(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING, *, archived: bool = False
    ) -> Iterator[LifecycleEvent]:
        if not archived:
            yield from self._live.events(entity_id, after_seq)
            return
        # A record that leaves the journal meanwhile would be in an archive that is not read yet.
        with self._live.read_transaction():
            yield from _each_once(one.events(entity_id, after_seq) for one in self._readers())

    def record(self, seq: RecordId, *, archived: bool = False) -> LifecycleEvent | None:
        # No transaction, since the caller may be in the midst of a result: a record that leaves the journal after the
        # first look is in an archive by then.
        if (found := self._live.record(seq)) is not None or not archived:
            return found
        return next((found for one in self._readers() if (found := one.record(seq)) is not None), None)

    def events_named(self, *names: str, archived: bool = False) -> Iterator[LifecycleEvent]:
        if not archived:
            yield from self._live.events_named(*names)
            return
        with self._live.read_transaction():
            yield from _each_once(one.events_named(*names) for one in self._readers())

    def entities(
        self,
        *,
        ids: Sequence[str] | None = None,
        live_only: bool = False,
        ended_kinds: Collection[str] | None = None,
        archived: bool = False,
    ) -> list[EntityRow]:
        if not archived:
            return self._live.entities(ids=ids, live_only=live_only, ended_kinds=ended_kinds)
        with self._live.read_transaction():
            found = [one.entities(ids=ids, live_only=live_only, ended_kinds=ended_kinds) for one in self._readers()]
        return list({row.id: row for rows in found for row in rows}.values())

    def entity(self, entity_id: str) -> EntityRow | None:
        found = self._live.entity(entity_id)
        if found is None and self._live.archives():
            found = next((row for one in self._readers() if (row := one.entity(entity_id)) is not None), None)
        return found

    def snapshot(self) -> tuple[RecordId, list[EntityRow]]:
        with self._live.read_transaction():
            return self._live.last_seq, self._live.entities(live_only=True)

    async def follow(
        self, entity_id: str | None = None, after_seq: RecordId = BEGINNING
    ) -> AsyncGenerator[LifecycleEvent, None]:
        if self._follow is None:
            for event in self.events(entity_id, after_seq):
                yield event
            return
        async with aclosing(self._follow(entity_id, after_seq)) as events:
            async for event in events:
                yield event

    def effects(self) -> dict[str, bytes]:
        """Return every effect, including performed ones, as JSON by the id of the effect."""
        with self._live.read_transaction():
            return {name: payload for one in self._readers() for name, payload in one.effects().items()}

    def find_damage(self) -> list[Damage]:
        """Return the details of the damage in each file in which :meth:`check` finds damage."""
        return [_find_damage(one) for one in self.check() if one.problem is not None]

    def check(self) -> Iterator[FileCheck]:
        """Check the journal, then each archive: pages, chain, entities, snapshot, and whether the archive is the file
        that the journal names."""
        yield check_file(self._path)
        for name, digest in self._live.archives().items():
            path = self._folder / name
            found = check_file(path) if path.is_file() else FileCheck(file=str(path), problem=self._missing)
            if found.problem is None and digest_of(path) != digest:
                found = msgspec.structs.replace(found, problem=_CHANGED)
            yield found

    def check_archives(self) -> None:
        """Check that each archive is there, and is the file that the journal names; nothing in it is checked.

        Raises:
            JournalDamaged: one is missing, or another file.
            JournalUnavailable: one cannot be read now.
        """
        self._readers()
        for name, digest in self._live.archives().items():
            if digest_of(self._folder / name) != digest:
                raise JournalDamaged(f"{self._folder / name}: {_CHANGED}; put the file back that was archived")

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()


def _each_once(streams: Iterable[Iterator[LifecycleEvent]]) -> Iterator[LifecycleEvent]:
    last = 0
    for event in merge(*streams, key=lambda one: one.seq):
        if event.seq != last:
            last = event.seq
            yield event


def _find_damage(one: FileCheck) -> Damage:
    with suppress(JournalError), JournalReader(Path(one.file)) as reader:
        if (found := reader.find_damage()) is not None:
            return found
    return Damage(None, None, f"{one.file} {one.problem}")


def check_file(path: Path) -> FileCheck:
    """Check one file, a journal or an archive, and return the result."""
    try:
        with JournalReader(path) as reader:
            checksums = reader.check()
            return FileCheck(
                file=str(path),
                records=checksums.records,
                entities=checksums.entities,
                last_seq=RecordId(checksums.seq),
                gaps=reader.gaps,
            )
    except JournalError as error:
        return FileCheck(file=str(path), problem=str(error).removeprefix(f"{path} "))
