"""File whose closing takes as long as a test wants, so that a process which holds it open takes so long to exit.

On a real machine the kernel takes seconds to end a killed process that has pinned much memory. Here the process has
opened a file on a file system of the test (FUSE): the exit closes the file, and the kernel waits for the file system's
reply to FLUSH, uninterruptibly. The process is in the state that matters (``PF_EXITING``: it runs no code any more),
for exactly as long as the test does not release it.

Example::

    with slow_file(tmp_path / "slow") as file:     # skips the test where file systems cannot be mounted
        process = subprocess.Popen(["sh", "-c", f"exec 9< {file.path}; echo up; exec sleep 1000"], ...)
        process.kill()                              # the process is exiting
        file.release()                              # the process is gone
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

MNT_DETACH: Final = 2
REQUEST: Final = struct.Struct("<IIQQIIII")
REPLY: Final = struct.Struct("<IiQ")
LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT, OPENDIR, BATCH_FORGET = 1, 2, 3, 14, 18, 25, 26, 27, 42
"""Numbers of the requests that the file system answers (linux/fuse.h)."""
ENOSYS: Final = 38
ROOT, FILE = 1, 2
"""Numbers of the two inodes: the directory and the file in it."""


class SlowFile:
    """The file on its mounted file system. *device* is the open descriptor of /dev/fuse."""

    def __init__(self, device: int, path: Path) -> None:
        self.path = path
        self._device = device
        self._released = threading.Event()

    def release(self) -> None:
        """Let every close of the file end, those in progress and later ones."""
        self._released.set()

    def serve(self) -> None:
        """Answer the kernel's requests until the file system is unmounted."""
        with suppress(OSError):
            while data := os.read(self._device, 1 << 20):
                _, request, unique, inode, *_ = REQUEST.unpack_from(data)
                if request == FLUSH:
                    threading.Thread(target=self._flush, args=(unique,), daemon=True).start()
                elif request not in (FORGET, BATCH_FORGET):
                    self._answer(request, unique, inode)

    def _flush(self, unique: int) -> None:
        self._released.wait()
        self._reply(unique)

    def _answer(self, request: int, unique: int, inode: int) -> None:
        match request:
            case _ if request == INIT:
                self._reply(unique, struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 10, 10, 4096, 0, 0, 0, 0, *[0] * 7))
            case _ if request == LOOKUP:
                self._reply(unique, struct.pack("<QQQQII", FILE, 0, 0, 0, 0, 0) + _attributes(FILE))
            case _ if request == GETATTR:
                self._reply(unique, struct.pack("<QII", 0, 0, 0) + _attributes(inode))
            case _ if request in (OPEN, OPENDIR):
                self._reply(unique, struct.pack("<QII", 1, 0, 0))
            case _ if request == RELEASE:
                self._reply(unique)
            case _:
                self._reply(unique, error=ENOSYS)

    def _reply(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        with suppress(OSError):  # the process that asked is gone, or the file system is unmounted
            os.write(self._device, REPLY.pack(REPLY.size + len(body), -error, unique) + body)


def _attributes(inode: int) -> bytes:
    mode = 0o40755 if inode == ROOT else 0o100644
    return struct.pack(
        "<QQQQQQIIIIIIIIII", inode, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(), os.getgid(), 0, 4096, 0
    )


@contextmanager
def slow_file(directory: Path) -> Iterator[SlowFile]:
    """Mount a file system with one slow file at *directory*, which is made; at the end the file is released, so that
    no process is left. The test is skipped where no file system can be mounted (other systems, other users than
    root)."""
    if sys.platform != "linux" or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no /dev/fuse")
    directory.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other".encode()
        if libc.mount(b"slow", os.fsencode(directory), b"fuse.slow", 0, options) != 0:
            pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
        file = SlowFile(device, directory / "file")
        server = threading.Thread(target=file.serve, daemon=True)
        server.start()
        try:
            yield file
        finally:
            file.release()
            libc.umount2(os.fsencode(directory), MNT_DETACH)
    finally:
        os.close(device)
