"""Simulated disk under the real SQLite: a VFS (SQLite's interface to files), and the few other file operations of the
journal.

Every operation may fail as on a real disk, by chance. Every step that changes the disk is recorded, so that the power
can be cut at each step of the same work: a ``DurablePages`` that repeats the steps determines the content that would
survive there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from supervisor.journal.files import JournalFiles
from supervisor.simulation.keyed_random import KeyedRandom
from tests.verification.power_cuts.durable_pages import SECTOR_BYTES, DurablePages, Step, put


class DiskFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities that an operation of each kind fails, 0 to 1."""

    full: float = 0.0
    """Probability that a write fails with ENOSPC, partly done."""
    read_error: float = 0.0
    write_error: float = 0.0
    """Probability that a write fails with EIO, partly done."""
    sync_error: float = 0.0
    """Probability that a sync fails with EIO; the content that it did not write is lost."""
    lie: float = 0.0
    """Probability that a sync reports success and does nothing."""


class SimulatedDisk(JournalFiles):
    """Simulated disk that is mounted, written and cut, for use by one thread. ``steps`` has all changes since the disk
    was mounted.

    Args:
        name: name of the disk as a SQLite VFS; only one disk of a process may have the name at a time.
        random: source of the random draws; each operation draws by its number.
        connection: class of the connections, so that a test can plant a mistake in it.
    """

    def __init__(
        self, name: str, random: KeyedRandom | None = None, connection: type[apsw.Connection] = apsw.Connection
    ) -> None:
        self._name = name
        self._random = random or KeyedRandom(0)
        self._connection = connection
        self._vfs = _Vfs(name, self)
        self.faults = DiskFaults()
        self.checkpoint_pages = 1_000
        self.errors = self.lies = self._operations = 0
        self.killed = False
        self._boots = 0
        self.mount({})

    def mount(self, files: Mapping[str, bytes | bytearray]) -> None:
        """Start the disk with *files*, all of them durable, as when a machine boots."""
        self._boots += 1
        self.steps: list[Step] = []
        self._numbers = {name: number for number, name in enumerate(files)}
        self._mounted = files
        self._views = [bytearray(content) for content in files.values()]

    def heal(self) -> None:
        """Let no further operation fail."""
        self.faults = DiskFaults()

    def unregister(self) -> None:
        """Remove the VFS from SQLite; every connection must be closed."""
        self._vfs.unregister()

    # ------------------------------------------------------------------------------------------------- `JournalFiles`
    def exists(self, path: Path) -> bool:
        return str(path) in self._numbers

    def connect(self, path: Path, flags: int) -> apsw.Connection:
        db = self._connection(str(path), flags=flags, vfs=self._name)
        db.pragma("locking_mode", "exclusive")  # a WAL without shared memory, which this disk has not got
        db.wal_autocheckpoint(self.checkpoint_pages)
        return db

    def remove(self, path: Path) -> None:
        self.unlink(str(path))

    def rename(self, old: Path, new: Path) -> None:
        number = self._numbers[str(new)] = self._numbers.pop(str(old))
        self._did(DurablePages.rename, str(old), str(new), number)

    def sync(self, path: Path) -> None:
        if (number := self._numbers.get(str(path))) is not None:
            self.sync_file(number)
        elif not self._sync_goes_wrong(None):
            self._did(DurablePages.sync_names)

    def boot(self) -> str:
        return f"boot {self._boots} of {self._name}"

    def reread(self, path: Path) -> None:
        if (number := self._numbers.get(str(path))) is None:
            return
        self.sync_file(number)
        if any(step is DurablePages.fail_sync for step, _ in self.steps):
            pages = DurablePages(self._mounted)
            pages.make(self.steps)
            self._views[number][:] = pages.content(number)

    # -------------------------------------------------------------------------------------------------- for SQLite
    def content(self, name: str) -> bytearray | None:
        number = self._numbers.get(name)
        return None if number is None else self._views[number]

    def opened(self, name: str) -> tuple[int, bytearray]:
        """Return number and content of the file *name*, which is created if it does not exist."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._views)
            self._views.append(bytearray())
            self._did(DurablePages.create, name)
        return number, self._views[number]

    def unlink(self, name: str) -> None:
        if self._numbers.pop(name, None) is not None:
            self._did(DurablePages.remove, name)

    def write(self, number: int, offset: int, data: bytes) -> None:
        error = self._write_error()
        if error is not None:  # some sectors are done
            data = data[: self._random.integer(0, len(data) // SECTOR_BYTES, "part", self._operations) * SECTOR_BYTES]
        put(self._views[number], [(offset, data)])
        self._did(DurablePages.write, number, offset, data)
        if error is not None:
            raise error

    def truncate(self, number: int, size: int) -> None:
        if (error := self._write_error()) is not None:
            raise error
        del self._views[number][size:]
        self._did(DurablePages.truncate, number, size)

    def sync_file(self, number: int, *, names: bool = False) -> None:
        """Make a file durable; with *names*, its directory too."""
        if not self._sync_goes_wrong(number):
            self._did(DurablePages.sync, number)
            if names:
                self._did(DurablePages.sync_names)

    def read(self) -> None:
        """Raise a read error, if that fault strikes."""
        if (self.killed or self.faults.read_error) and self._strikes(self.faults.read_error, "read"):
            raise self._error()

    def _did(self, step: Callable[..., None], *told: Any) -> None:
        self.steps.append((step, told))

    # ------------------------------------------------------------------------------------------------------- faults
    def _strikes(self, rate: float, kind: str) -> bool:
        if self.killed:
            raise apsw.IOError("the process was killed")
        self._operations += 1
        return self._random.happens(rate, kind, self._operations)

    def _error(self) -> apsw.Error:
        self.errors += 1
        return apsw.IOError("input/output error (simulated)")

    def _write_error(self) -> apsw.Error | None:
        if self._strikes(self.faults.full, "full"):
            self.errors += 1
            return apsw.FullError("no space left on device (simulated)")
        return self._error() if self._strikes(self.faults.write_error, "write") else None

    def _sync_goes_wrong(self, number: int | None) -> bool:
        """Return whether a sync does nothing and hides that; raise an error if the sync fails and reports it."""
        if self._strikes(self.faults.sync_error, "sync"):
            if number is not None:
                self._did(
                    DurablePages.fail_sync, number, self._random.integer(0, 1 << 30, "unwritten", self._operations)
                )
            raise self._error()
        lies = self._strikes(self.faults.lie, "lie")
        self.lies += lies
        return lies


_LOGS: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


class _Vfs(apsw.VFS):
    """Registration of the disk as a VFS of SQLite, which defines the methods' names and results."""

    def __init__(self, name: str, disk: SimulatedDisk) -> None:
        self._disk = disk
        super().__init__(name, base="")

    def excepthook(self, *error: object) -> bool:
        """Suppress the report of an error that SQLite hides, such as that of a sync while a connection is closed."""
        return True

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        flags[1] = flags[0]
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        assert path is not None, "the journal has no temporary files"
        return _File(self._disk, path, flags[0])

    def xDelete(self, name: str, sync_names: bool) -> None:
        self._disk.read()
        self._disk.unlink(name)

    def xAccess(self, name: str, flags: int) -> bool:
        return bool(self._disk.content(name))

    def xFullPathname(self, name: str) -> str:
        return name

    def xSleep(self, microseconds: int) -> int:
        return microseconds


class _File:
    """Open file of the VFS. The first sync of a log also syncs the directory, whoever created the log, as SQLite does
    on POSIX."""

    def __init__(self, disk: SimulatedDisk, name: str, flags: int) -> None:
        self._disk = disk
        self._number, self._view = disk.opened(name)
        self._syncs_names = bool(flags & _LOGS)

    excepthook = _Vfs.excepthook

    def xRead(self, amount: int, offset: int) -> bytearray:
        self._disk.read()
        return self._view[offset : offset + amount]

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.write(self._number, offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        self._disk.truncate(self._number, size)

    def xSync(self, flags: int) -> None:
        self._disk.sync_file(self._number, names=self._syncs_names)
        self._syncs_names = False

    def xFileSize(self) -> int:
        return len(self._view)

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE  # what SQLite takes for granted everywhere

    def xLock(self, level: int) -> None: ...

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, operation: int, pointer: int) -> bool:
        return False

    def xClose(self) -> None: ...
