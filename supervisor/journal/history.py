"""History: a journal together with its archives, read as if it were one file.

A history has the methods of :class:`JournalReader`. The journal takes precedence for an entity in both places; a record
that is in both, because a compaction was interrupted, is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from heapq import merge
from pathlib import Path
from typing import Final, Self

import msgspec

from supervisor.journal.archive import digest_of
from supervisor.journal.reader import Damage, JournalReader
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import EntityRow, JournalDamaged, JournalError, JournalUnavailable

_CHANGED: Final = "it is not as it was archived"


class FileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check of one file. ``gaps`` counts the ranges of records that are in another file; ``problem`` is
    ``None`` if the file is undamaged."""

    file: str
    records: int = 0
    entities: int = 0
    last_seq: int = 0
    gaps: int = 0
    problem: str | None = None


def archives_beside(journal: Path) -> Path:
    """Return the folder of the archives that belong to the journal at *journal* in a state directory."""
    return journal.parent.parent / "archive"


class History:
    """The journal at *path* and its archives in *folder*, read-only; a context manager.

    Raises:
        JournalError: the journal cannot be read.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self._path, self._folder = path, folder or archives_beside(path)
        self._open = ExitStack()
        self.live = self._open.enter_context(JournalReader(path))
        """The journal alone."""
        self._archives: dict[str, JournalReader] = {}

    def _readers(self) -> list[JournalReader]:
        """Return the readers of the archives, oldest first, and of the journal.

        Raises:
            JournalDamaged: an archive is missing, or the file is no archive.
            JournalUnavailable: an archive cannot be read now.
        """
        for name in self.live.archives():
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
        return [*self._archives.values(), self.live]

    @property
    def _missing(self) -> str:
        """Error text for an archive without a file."""
        return f"is not there: {self._path} has records in it; put the file back"

    @property
    def is_part(self) -> bool:
        """Whether the file is an archive read by itself: other files have records between its records."""
        return self.live.gaps > 0 and not self.live.archives()

    def events(self, entity_id: str | None = None, after_seq: int = 0) -> Iterator[LifecycleEvent]:
        """Yield the records after *after_seq* in order, each record once; only those of *entity_id* if that is
        given."""
        with (
            self.live.read_transaction()
        ):  # a record that leaves the journal meanwhile is in an archive that is not read yet
            yield from _each_once(one.events(entity_id, after_seq) for one in self._readers())

    def events_named(self, *names: str) -> Iterator[LifecycleEvent]:
        """Yield the records of events with one of these names, in order, each record once."""
        with self.live.read_transaction():
            yield from _each_once(one.events_named(*names) for one in self._readers())

    def entities(self) -> list[EntityRow]:
        """Return every entity; the entities of each file are in the order of creation."""
        with self.live.read_transaction():
            return list({row.id: row for one in self._readers() for row in one.entities()}.values())

    def entity(self, entity_id: str) -> EntityRow | None:
        """Return one entity; ``None`` if neither the journal nor an archive has it."""
        found = self.live.entity(entity_id)
        if found is None and self.live.archives():
            found = next((row for one in self._readers() if (row := one.entity(entity_id)) is not None), None)
        return found

    def effects(self) -> dict[str, bytes]:
        """Return every effect, including performed ones, as JSON by the id of the effect."""
        with self.live.read_transaction():
            return {name: payload for one in self._readers() for name, payload in one.effects().items()}

    def find_damage(self) -> list[Damage]:
        """Return the details of the damage in each file in which :meth:`check` finds damage."""
        return [_find_damage(one) for one in self.check() if one.problem is not None]

    def check(self) -> Iterator[FileCheck]:
        """Check the journal, then each archive: pages, chain, entities, snapshot, and whether the archive is the file
        that the journal names."""
        yield check_file(self._path)
        for name, digest in self.live.archives().items():
            path = self._folder / name
            found = check_file(path) if path.is_file() else FileCheck(file=str(path), problem=self._missing)
            if found.problem is None and digest_of(path) != digest:
                found = msgspec.structs.replace(found, problem=_CHANGED)
            yield found

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
                last_seq=checksums.seq,
                gaps=reader.gaps,
            )
    except JournalError as error:
        return FileCheck(file=str(path), problem=str(error).removeprefix(f"{path} "))
