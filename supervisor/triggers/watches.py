"""Watched folders: which files have changed and settled.

Theory of operation
-------------------
What counts is a comparison of two scans; notices of the kernel (``watchfiles``) only say when to scan. So a file that
an editor replaces by a rename, a folder that is removed and made again, and a watch that goes deaf are no special
cases: the next scan, at the latest after ``RESCAN_S``, finds what is different.

    change noticed -> scan differs from the last settled one -> no difference between scans for ``settle_s`` -> changed

While a run of the trigger goes on nothing is compared, and at its end a scan is only remembered: what the run writes,
or merges into the folder, fires nothing. Files that were removed fire nothing.

Not watched are the state directory, ``.git``, hidden files, and files with the names that editors give to unfinished
ones. Symbolic links are not followed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from watchfiles import awatch

from supervisor.triggers.definitions import WatchConfig

RESCAN_S: Final = 5.0
"""Seconds after which a folder is scanned without a notice."""
FILES_MAX: Final = 10_000
"""Largest number of files of a folder that is watched."""
WAKE_MS: Final = 200
"""Milliseconds for which the thread that waits for notices may not notice that it is cancelled."""
_UNFINISHED: Final = ("~", ".tmp", ".swp", ".part", ".new")

Snapshot = Mapping[str, tuple[int, int, int]]
"""Time of the last change (ns), size and inode of each file, by its path below the folder."""


class TooManyFiles(Exception):
    """Error: the folder has more files than are watched."""


def scan(folder: Path, match: Collection[str], without: Path) -> Snapshot | None:
    """Return the matching files below *folder*, except those below *without*; ``None`` if the folder is not there.

    Raises:
        TooManyFiles: there are more than ``FILES_MAX``.
    """
    if not folder.is_dir():
        return None
    found: dict[str, tuple[int, int, int]] = {}
    for above, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and Path(above, one) != without]
        for name in names:
            path = os.path.join(above, name)
            below = os.path.relpath(path, folder)
            if name.startswith(".") or name.endswith(_UNFINISHED) or not any(fnmatch(below, one) for one in match):
                continue
            try:
                status = os.lstat(path)
            except OSError:  # removed meanwhile
                continue
            found[below] = (status.st_mtime_ns, status.st_size, status.st_ino)
            if len(found) > FILES_MAX:
                raise TooManyFiles(f"{folder} has more than {FILES_MAX} matching files; watch fewer by match")
    return found


class Watch:
    """Comparison of the scans of one folder."""

    def __init__(self, config: WatchConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self._settled: Snapshot | None = None
        """The last settled scan; ``None``: there was none yet, and the first one is only remembered."""
        self._newest: Snapshot | None = None
        self._since = self._scanned_at = 0.0
        self._is_noticed = False
        self.is_lost = False
        """Whether the folder could not be scanned: it is not there, or has too many files."""

    def begin(self, snapshot: Snapshot | None) -> None:
        """Remember *snapshot*, so that only what changes from here on counts."""
        if snapshot is not None:
            self._settled = self._newest = snapshot

    def notice(self) -> None:
        self._is_noticed = True

    def wants_scan(self, now: float) -> bool:
        """Return whether the folder must be scanned at *now* (seconds)."""
        return self._is_noticed or self._newest is not self._settled or now - self._scanned_at >= RESCAN_S

    def compare(self, snapshot: Snapshot | None, now: float) -> tuple[str, ...]:
        """Take the scan of the time *now*, and return the files that have changed and settled."""
        self._is_noticed, self._scanned_at = False, now
        self.is_lost = snapshot is None
        if snapshot is None:
            return ()
        if self._settled is None:
            self.begin(snapshot)
            return ()
        if snapshot == self._settled:
            self._newest = self._settled
            return ()
        if snapshot != self._newest:
            self._newest, self._since = snapshot, now
        if now - self._since < self.config.settle_s:
            return ()
        before, self._settled, self._newest = self._settled, snapshot, snapshot
        return tuple(sorted(name for name, there in snapshot.items() if before.get(name) != there))


async def notices(folders: Collection[Path]) -> AsyncGenerator[Collection[str], None]:
    """Yield, five times a second at least, the paths below *folders* about which the kernel has sent notices. A folder
    that was made again is watched again."""
    while True:
        watched = _identities(folders)
        if not watched:
            await anyio.sleep(WAKE_MS / 1000)
            yield ()
            continue
        # The timeout is short, since a thread waits for the notices, and a cancellation waits for the thread.
        quick: dict[str, Any] = {"debounce": WAKE_MS, "step": 50, "rust_timeout": WAKE_MS, "yield_on_timeout": True}
        async with aclosing(awatch(*(path for path, *_ in watched), watch_filter=None, **quick)) as changes:
            async for found in changes:
                yield [path for _, path in found]
                if _identities(folders) != watched:
                    break


def _identities(folders: Collection[Path]) -> list[tuple[Path, int, int]]:
    found = []
    for path in folders:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path, status.st_dev, status.st_ino))
    return found
