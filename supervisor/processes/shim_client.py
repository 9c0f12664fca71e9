"""Client of one shim: has the shim forked, sends it orders, and receives its statuses over the control socket.

An order never blocks and never raises. The order to kill is end of file on the control socket, which can neither be
lost nor meet a full buffer.
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

__all__ = ["Ended", "Exited", "Failed", "ProcessesListed", "ShimClient", "Spawned", "Status", "encode_launch"]

CHUNK_BYTES = 65536


class ShimReady(msgspec.Struct, frozen=True, tag="here", tag_field="event"):
    """The shim runs; ``born`` is its start time in clock ticks since the boot."""

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
    """No process of the tree is left. ``ended_by`` is ``exit``, ``terminate``, ``kill``, or ``lost``: the shim died."""

    status: int | None
    ended_by: str
    killed: int
    took_s: float
    outlived: tuple[ProcessSeen, ...] = ()
    """Descendants that were alive when the program had exited by itself."""


class ProcessesListed(msgspec.Struct, frozen=True, tag="seen", tag_field="event"):
    """The reply to ``look``: the program and its descendants, parents first; ``None``: /proc does not show them."""

    processes: tuple[ProcessSeen, ...] | None


Status = Spawned | Failed | Exited | ProcessesListed | Ended
_decode = msgspec.json.Decoder(ShimReady | Status).decode


def encode_launch(launch: Launch) -> bytes:
    """Encode *launch* as the shim reads it: NUL-separated, as execve(2) takes argv and environ."""
    env = [f"{name}={value}" for name, value in launch.env.items()]
    body = b"\0".join(os.fsencode(word) for word in (launch.cwd, *launch.argv, *env))
    return b"%d %d\n%s" % (len(launch.argv), len(body), body)


class ShimClient:
    """The supervisor's connection to one shim. The descriptors *stdin*, *stdout* and *stderr* become the program's."""

    def __init__(self, fork_server: ForkServerClient, stdin: int, stdout: int, stderr: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                fork_server.fork(theirs.fileno(), stdin, stdout, stderr)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours
        self._fork_server = fork_server
        self.pid = 0
        """The pid of the shim; 0 until the shim has reported that it runs."""
        self.shim: Process = (0, 0)
        """The pid and the start time of the shim."""

    async def send(self, data: bytes) -> None:
        """Send the encoded launch, which may be larger than the socket's buffer."""
        left = memoryview(data)
        with suppress(ConnectionError):  # the shim died: ``statuses`` ends without ``spawned``
            while left:
                with suppress(BlockingIOError):
                    left = left[self._control.send(left) :]
                if left:
                    await anyio.wait_writable(self._control)

    def order(self, line: bytes) -> bool:
        """Send one line to the shim; a line to a shim that is gone is lost.

        Return ``False`` if the socket's buffer is full, since a stopped shim reads nothing.
        """
        with suppress(OSError):
            try:
                return self._control.send(line + b"\n") > len(line)
            except BlockingIOError:
                return False
        return True

    def terminate(self) -> None:
        self.order(b"term")
        self._resume_shim()

    def kill(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._resume_shim()

    def _resume_shim(self) -> None:
        """Send SIGCONT to the shim: its program may have stopped it."""
        self._fork_server.rouse(self.pid)

    async def statuses(self) -> AsyncIterator[Status]:
        """Iterate over the shim's statuses until the shim is reaped: so long the fork server holds the far end open."""
        received = b""
        while data := await self._receive():
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                status = _decode(line)
                if isinstance(status, ShimReady):
                    self.pid, self.shim = status.pid, (status.pid, status.born)
                else:
                    yield status

    async def _receive(self) -> bytes:
        while True:
            await anyio.wait_readable(self._control)
            with suppress(BlockingIOError):
                try:
                    return self._control.recv(CHUNK_BYTES)
                except ConnectionError:  # the shim ended with an order unread: the same as end of file
                    return b""

    def close(self) -> None:
        """Close the socket. The shim kills its tree, and ends once no process is left."""
        self._control.close()
