"""Content of a simulated disk across a power cut: durable content, content that only the cache has, and the outcome of
a cut.

Until a sync, only the cache has a write; when the power is cut, any of its sectors may be durable, in any order, and
the last one may be torn (half written). File names behave as in a journalling file system: creations, renames and
removals survive in their order, and are certain after a sync of the directory. As SQLite does by default, this module
assumes that a torn write damages nothing outside itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from random import Random
from typing import Any, Final

import msgspec

SECTOR_BYTES: Final = 512
"""Bytes that an honest disk writes as a whole or not at all: the smallest sector size in use, so torn writes are most
frequent."""

Step = tuple[Callable[..., None], tuple[Any, ...]]
"""Change of the disk: a method of :class:`DurablePages` and its arguments."""

Pending = tuple[int, bytes | None]
"""Unsynced write: an offset and the bytes for it; ``None`` truncates the file at the offset."""


class Survivors(msgspec.Struct, gc=False):
    """State after a power cut: files by name, and the numbers of unsynced sectors that were lost or torn.

    Two cuts of one disk with the same ``key`` left equal files: since the same sync, the same sectors of the same
    writes became durable. A cut that tore a sector has the key ``None``, and is equal to no other cut.
    """

    files: dict[str, bytearray]
    lost: int
    torn: int
    key: tuple[int, ...] | None


class DurablePages:
    """Durable contents of a disk, and the writes that wait in its cache, in order.

    Args:
        files: the first content of the disk, all of it durable.
    """

    def __init__(self, files: Mapping[str, bytes | bytearray]) -> None:
        self._durable = [bytearray(content) for content in files.values()]
        self._cached: list[list[Pending]] = [[] for _ in files]  # sector by sector
        self._names = {name: number for number, name in enumerate(files)}
        self._renamed: list[tuple[str | None, str | None, int]] = []  # (name that goes, name that comes, its file)
        self._version = 0
        """Number of syncs so far: only a sync changes the durable contents, and between two syncs the cache only
        grows."""

    # -------------------------------------------------------------------------------------------------- steps
    def create(self, name: str) -> None:
        self._renamed.append((None, name, len(self._durable)))
        self._durable.append(bytearray())
        self._cached.append([])

    def remove(self, name: str) -> None:
        self._renamed.append((name, None, -1))

    def rename(self, old: str, new: str, number: int) -> None:
        self._renamed.append((old, new, number))

    def write(self, number: int, offset: int, data: bytes) -> None:
        self._cached[number] += _sectors(offset, data)

    def truncate(self, number: int, size: int) -> None:
        self._cached[number].append((size, None))

    def sync(self, number: int) -> None:
        self._version += 1
        put(self._durable[number], self._cached[number])
        self._cached[number].clear()

    def sync_names(self) -> None:
        self._version += 1
        _name(self._names, self._renamed)
        self._renamed.clear()

    def fail_sync(self, number: int, seed: int) -> None:
        """Fail a sync as Linux does: some sectors are written; the others never will be, since no later sync tries
        again."""
        self._version += 1
        draws = Random(seed)
        put(self._durable[number], [one for one in self._cached[number] if draws.random() < 0.5])
        self._cached[number].clear()

    def make(self, steps: Iterable[Step]) -> None:
        """Apply *steps* in order."""
        for step, told in steps:
            step(self, *told)

    # ---------------------------------------------------------------------------------------------------- cut
    def content(self, number: int) -> bytearray:
        """Return the content of the file as a program reads it while the power is on."""
        content = bytearray(self._durable[number])
        put(content, self._cached[number])
        return content

    def cut(self, draws: Random) -> Survivors:
        """Draw the state after a power cut at this point; the disk itself is not changed."""
        names, renamed = dict(self._names), _below(draws, len(self._renamed) + 1)
        _name(names, self._renamed[:renamed])
        found = Survivors({}, 0, 0, (self._version, renamed))
        for name, number in names.items():
            content = bytearray(self._durable[number])
            if self._cached[number]:
                _survive(content, self._cached[number], draws, found)
            found.files[name] = content
        return found


def _below(draws: Random, end: int) -> int:
    return int(draws.random() * end)


def put(content: bytearray, writes: list[Pending]) -> None:
    """Apply *writes* to a file's *content*."""
    for offset, data in writes:
        if data is None:
            del content[offset:]
            continue
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data


def _name(names: dict[str, int], changes: list[tuple[str | None, str | None, int]]) -> None:
    for gone, come, number in changes:
        if gone is not None:
            names.pop(gone, None)
        if come is not None:
            names[come] = number


def _sectors(offset: int, data: bytes) -> list[Pending]:
    """Split a write into writes of single sectors."""
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    if len(data) <= first:
        return [(offset, data)]
    starts = (0, *range(first, len(data), SECTOR_BYTES))
    return [(offset + start, data[start:end]) for start, end in zip(starts, (*starts[1:], len(data)), strict=True)]


def _survive(content: bytearray, pieces: list[Pending], draws: Random, found: Survivors) -> None:
    """Draw which unsynced writes survive: none, all, all up to a sector that may be torn, or any part of them."""
    style = draws.random()
    if style >= 0.7:
        share = draws.random()
        taken = [draws.random() < share for _ in pieces]
        kept = list(compress(pieces, taken))
        which = int("".join(["01"[one] for one in reversed(taken)]), 2)
    else:
        end = 0 if style < 0.2 else len(pieces) if style < 0.3 else _below(draws, len(pieces) + 1)
        kept, which = pieces[:end], (1 << end) - 1
        if kept and style >= 0.5:
            kept[-1] = _torn(kept[-1], draws, found)
    found.key = None if found.key is None else (*found.key, which)
    found.lost += len(pieces) - len(kept)
    put(content, kept)


def _torn(piece: Pending, draws: Random, found: Survivors) -> Pending:
    offset, data = piece
    if data is None:
        return piece
    found.torn += 1
    found.key = None
    whole = _below(draws, len(data))
    return offset, data[:whole] + draws.getrandbits(8 * (len(data) - whole)).to_bytes(len(data) - whole, "big")
