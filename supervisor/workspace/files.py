"""The text files of this machine that an agent asks for: bounded, regular files only, and never waited for on the loop.

What is written replaces a file whole: whoever reads it meanwhile sees the old text or the new one. Whether a path may
be read or written at all has been decided before; nothing here asks who wants it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

import anyio

from supervisor.bounds import FILE_BYTES_MAX

__all__ = ["DiskFiles"]

THREADS: Final = 4
"""Files at once, as for directories: each new thread has a heap of its own."""


class DiskFiles:
    """``supervisor.ports.Files`` over this machine's."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(THREADS)

    async def read(self, path: str) -> str:
        return await anyio.to_thread.run_sync(_read, path, limiter=self._limiter, abandon_on_cancel=True)

    async def write(self, path: str, text: str) -> None:
        await anyio.to_thread.run_sync(_write, path, text, limiter=self._limiter)


def _read(path: str) -> str:
    """A pipe would be waited for until somebody writes: it is opened without waiting, and refused."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path!r} is not a regular file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(f"{path!r} is longer than {FILE_BYTES_MAX} bytes, the most that is read for an agent")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise OSError(f"{path!r} is not UTF-8: {error}") from None


def _write(name: str, text: str) -> None:
    path = Path(name).resolve()  # what a link leads to is written, not the link
    if path.exists() and not path.is_file():
        raise OSError(f"{str(path)!r} is not a regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(text.encode(errors="replace"))
        os.chmod(made, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def _umask() -> int:
    """The umask, which can only be read by setting it: so it is read from the kernel's file where there is one."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0o022
    return next((int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:")), 0o022)
