"""The supervisor's end of one warden: its start, the orders to it, what it says, and its own end.

An order never blocks and never raises. The order to kill is the end of the lifeline: nothing can fill it up or lose it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import msgspec

from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import Launch
from supervisor.processes.descent import Process
from supervisor.processes.fork_server_client import ForkServerClient

__all__ = ["Ended", "Exited", "Failed", "Seen", "ShimClient", "Spawned", "Status", "encoded"]

CHUNK_BYTES = 65536


class Here(msgspec.Struct, frozen=True, tag="here", tag_field="event"):
    """The warden runs; ``born`` in ticks since the boot."""

    pid: int
    born: int


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
    """Nothing is left. By whom: ``exit``, ``terminate``, ``kill``; or ``lost``, the warden was."""

    status: int | None
    ended_by: str
    killed: int
    took_s: float
    outlived: tuple[ProcessSeen, ...] = ()
    """Descendants that were alive when the program had exited by itself."""


class Seen(msgspec.Struct, frozen=True, tag="seen", tag_field="event"):
    """The reply to ``look``: the program and its descendants, parents first; ``None``: they cannot be seen."""

    processes: tuple[ProcessSeen, ...] | None


Status = Spawned | Failed | Exited | Seen | Ended
_decode = msgspec.json.Decoder(Here | Status).decode


def encoded(launch: Launch) -> bytes:
    """*launch* as the warden reads it: the very bytes that the kernel will be given."""
    env = [f"{name}={value}" for name, value in launch.env.items()]
    body = b"\0".join(os.fsencode(word) for word in (launch.cwd, *launch.argv, *env))
    return b"%d %d\n%s" % (len(launch.argv), len(body), body)


class ShimClient:
    """One warden, seen from the supervisor. Its 0, 1 and 2 are the program's."""

    def __init__(self, keeping: ForkServerClient, stdin: int, stdout: int, stderr: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                keeping.fork(theirs.fileno(), stdin, stdout, stderr)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours
        self._keeping = keeping
        self.pid = 0
        """The warden's own pid, 0 until it has said that it is there."""
        self.shim: Process = (0, 0)
        """That pid and its birth."""

    async def send(self, data: bytes) -> None:
        """The launch, which may be larger than the socket's buffer."""
        left = memoryview(data)
        with suppress(ConnectionError):  # the warden died: its silence tells
            while left:
                with suppress(BlockingIOError):
                    left = left[self._control.send(left) :]
                if left:
                    await anyio.wait_writable(self._control)

    def order(self, line: bytes) -> bool:
        """Send one line to the warden; lost if there is none any more. Return ``False`` where the lifeline is full: a
        warden that was stopped reads nothing."""
        with suppress(OSError):
            try:
                return self._control.send(line + b"\n") > len(line)
            except BlockingIOError:
                return False
        return True

    def terminate(self) -> None:
        self.order(b"term")
        self._rouse()

    def kill(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._rouse()

    def _rouse(self) -> None:
        """A program may have stopped its warden."""
        self._keeping.rouse(self.pid)

    async def statuses(self) -> AsyncIterator[Status]:
        """What the warden says, until it is gone and reaped: the keeper holds the far end for so long."""
        heard = b""
        while data := await self._receive():
            *lines, heard = (heard + data).split(b"\n")
            for line in lines:
                status = _decode(line)
                if isinstance(status, Here):
                    self.pid, self.shim = status.pid, (status.pid, status.born)
                else:
                    yield status

    async def _receive(self) -> bytes:
        while True:
            await anyio.wait_readable(self._control)
            with suppress(BlockingIOError):
                try:
                    return self._control.recv(CHUNK_BYTES)
                except ConnectionError:  # it left an order unread: no more than an end
                    return b""

    def close(self) -> None:
        """Let go of it. It goes on alone until nothing is left."""
        self._control.close()
