"""The supervisor's end of one warden: its start, the orders to it, what it says, and its own end.

The warden is reaped by its own pid, never by ``waitpid(-1)``, which would steal other exit statuses of the host. An
order never blocks and never raises. The order to kill is the end of the lifeline: nothing can fill it up or lose it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from supervisor.ports import Launch

__all__ = ["Ended", "Exited", "Failed", "Lifeline", "Spawned", "Status", "encoded"]

WARDEN = Path(__file__).with_name("warden.py")
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # all that a Python may need to start at all
CHUNK_BYTES = 65536


class Spawned(msgspec.Struct, frozen=True, tag="spawned", tag_field="event"):
    """The program runs."""

    pid: int


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="event"):
    """The program did not start: the step (``fork``, ``start``, ``cwd``, ``exec``) and its errno."""

    step: str
    errno: int


class Exited(msgspec.Struct, frozen=True, tag="exited", tag_field="event"):
    """The main process ended; its descendants may not have."""

    status: int


class Ended(msgspec.Struct, frozen=True, tag="ended", tag_field="event"):
    """Nothing is left."""

    status: int | None
    ended_by: str
    killed: int
    took_s: float


Status = Spawned | Failed | Exited | Ended
_decode = msgspec.json.Decoder(Status).decode


def encoded(launch: Launch) -> bytes:
    """*launch* as the warden reads it: the very bytes that the kernel will be given."""
    env = [f"{name}={value}" for name, value in launch.env.items()]
    body = b"\0".join(os.fsencode(word) for word in (launch.cwd, *launch.argv, *env))
    return b"%d %d\n%s" % (len(launch.argv), len(body), body)


class Lifeline:
    """One warden, seen from the supervisor. Its 0, 1 and 2 are the program's."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._warden = _start(theirs.fileno(), stdin, stdout, stderr)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours

    @property
    def pid(self) -> int:
        """The warden's own pid."""
        return self._warden.pid

    async def send(self, data: bytes) -> None:
        """The launch, which may be larger than the socket's buffer."""
        left = memoryview(data)
        with suppress(ConnectionError):  # the warden died: its silence tells
            while left:
                with suppress(BlockingIOError):
                    left = left[self._control.send(left) :]
                if left:
                    await anyio.wait_writable(self._control)

    def order(self, line: bytes) -> None:
        """One line for the warden; lost if there is none any more."""
        with suppress(OSError):
            self._control.send(line + b"\n")

    def terminate(self) -> None:
        self.order(b"term")
        self._rouse()

    def kill(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._rouse()

    def _rouse(self) -> None:
        """A program may have stopped its warden."""
        with suppress(OSError):
            self._warden.send_signal(signal.SIGCONT)

    async def statuses(self) -> AsyncIterator[Status]:
        """What the warden says, until it is gone."""
        heard = b""
        while data := await self._receive():
            *lines, heard = (heard + data).split(b"\n")
            for line in lines:
                yield _decode(line)

    async def _receive(self) -> bytes:
        while True:
            await anyio.wait_readable(self._control)
            with suppress(BlockingIOError):
                try:
                    return self._control.recv(CHUNK_BYTES)
                except ConnectionError:  # it left an order unread: no more than an end
                    return b""

    async def reap(self) -> None:
        """Wait for the warden's own end, without blocking the loop."""
        if self._warden.poll() is None:
            await _died(self._warden)
            self._warden.wait()

    def reaped(self) -> bool:
        return self._warden.poll() is not None

    def close(self) -> None:
        """Let go of it. It goes on alone until nothing is left."""
        self._control.close()


def _start(control: int, stdin: int, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(WARDEN), str(control), str(os.getpid())],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd="/",
        env=_loader_environment(os.environ),
        pass_fds=(control,),
        start_new_session=True,
    )


def _loader_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in LOADER_VARIABLES if name in environ}


async def _died(process: subprocess.Popen[bytes]) -> None:
    """Until *process* can be reaped at once."""
    if sys.platform != "linux":
        await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    with suppress(ProcessLookupError):  # somebody else's waitpid(-1) was faster
        pidfd = os.pidfd_open(process.pid)
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)
