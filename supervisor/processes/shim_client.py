"""Clients of the fork server and of its shims, in the supervisor.

The client of the fork server starts the fork server with the first program, starts it again if it was lost, and
disconnects at the end. A file in the state directory identifies the fork server by boot, pid and start time, so that
the next supervisor of the directory can wait for it (``containment.sweep``). The fork server is reaped by its pid:
``waitpid(-1)`` would take the exit statuses of the embedding program's other children.

The client of a shim lets the fork server fork the shim, sends orders to the shim, and receives its statuses over the
control socket. An order never blocks and never raises. The order to kill is end of file on the control socket, which
can neither be lost nor fail because of a full buffer.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from actors.waiting import within
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import Launch
from supervisor.ports.logs import get_logger
from supervisor.ports.secure_files import write_private
from supervisor.processes.containment import Containment
from supervisor.processes.descent import Process, identity, identity_of
from supervisor.processes.fork_server import MESSAGE_BYTES
from supervisor.processes.losses import Losses, Watch
from supervisor.processes.shim import exiting_processes

FORK_SERVER_PROGRAM = Path(__file__).with_name("fork_server.py")


LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # some Python builds need them to start


EXIT_WAIT_S = 5.0
"""Seconds that ``close`` waits for the exit of the fork server, which exits at once if no program is left."""


CHUNK_BYTES = 65536

LOSS_S = 1.0
"""Seconds to wait for the end of shims and fork servers that have closed their sockets; it takes a millisecond."""

LOSS_ROUND_S = 0.0005

QUICK_END_S = 1.0
"""Seconds after its start in which the end of a fork server that was started for a lost one is a quick end."""

HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)
"""Event of a socket whose far end is closed, whether or not data waits to be read."""

_log = get_logger()


class ForkServerClient:
    """Connection of one supervisor to its fork server."""

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._identity_written = False
        self._watches: list[Watch] = []
        """Watches over the fork servers that have not ended, the newest last: one, as long as none is lost."""
        self._started = anyio.Event()
        """Event of the next start of a fork server; replaced by a new event then."""
        self._shims: list[ShimClient] = []
        """Shims whose trees may still run, also those of lost fork servers."""
        self.losses = Losses(containment)
        self.was_lost = False
        """Whether a fork server has been lost."""
        self._replaced_at_s = -inf
        """Time at which a fork server was started for a lost one, and not for a program."""

    @property
    def pid(self) -> int:
        """Process id of the fork server; 0 before the first start."""
        return self._fork_server.pid if self._fork_server is not None else 0

    def fork(self, control: int, stdin: int, stdout: int, stderr: int) -> None:
        """Let the fork server fork a shim with copies of these descriptors; the shim reports ``here`` on *control*.

        Raises:
            OSError: no fork server could be started, or the fork server accepts no message.
        """
        descriptors = (control, stdin, stdout, stderr)
        self._notice_own_loss()
        if self._control is None:
            self._start(stderr)
        self._write_identity()
        try:
            self._send(b"fork", descriptors)
        except ConnectionError:  # the fork server was lost just now; its shims go on without it
            self._disconnect()
            self._start(stderr)
            self._write_identity()
            self._send(b"fork", descriptors)

    def _write_identity(self) -> None:
        """Write the fork server's identity to the state directory, before the fork server forks its first shim.

        If the write fails, the launch fails too, and the next launch writes again.
        """
        file = self._containment.fork_server_file
        if not self._identity_written and file is not None and self._containment.is_ours():
            write_private(file, identity_of(self.pid))
        self._identity_written = True

    def rouse(self, pid: int) -> None:
        """Send SIGCONT to the shim *pid* and to the fork server, because a program may have stopped them."""
        if self._control is None:
            return
        self.resume()
        with suppress(OSError):
            self._send(b"rouse %d" % pid, ())

    def resume(self) -> None:
        """Send SIGCONT to the fork server, because a program may have stopped it."""
        if self._fork_server is not None:
            with suppress(OSError):
                self._fork_server.send_signal(signal.SIGCONT)

    # ------------------------------------------------------------------------------------------ losses
    @property
    def watch(self) -> Watch:
        """Watch over the fork server that was started last."""
        return self._watches[-1]

    def ours(self) -> dict[Process, str]:
        """Return the session of each shim whose tree may still run, and ``""`` for each fork server."""
        fork_servers = {watch.process: "" for watch in self._watches}
        return {**fork_servers, **{shim.shim: shim.session for shim in self._shims}}

    def add(self, shim: ShimClient) -> None:
        """Begin to watch a shim that runs."""
        self._shims.append(shim)

    def remove(self, shim: ShimClient) -> None:
        """End the watch over a shim whose tree has ended, or whose loss was noticed."""
        if shim in self._shims:
            self._shims.remove(shim)
            shim.end_watch()

    async def replace_lost(self) -> None:
        """Wait until a fork server is lost, notice that, and start another one; leave that to the next ``fork`` if the
        lost one was started here and has ended at once, since another one would probably end, too."""
        while not self._watches:
            await self._started.wait()
        await self.watch.wait()
        self.notice_losses()
        if self._control is None and time.monotonic() > self._replaced_at_s + QUICK_END_S:
            self._start(subprocess.DEVNULL)
            self._replaced_at_s = time.monotonic()

    def notice_losses(self) -> bool:
        """Notice the fork servers and shims that were lost since the last call, and remember the processes that may
        have escaped; return whether a shim was lost.

        Raises:
            OSError: no file descriptor is left; the next call notices the same shims.
        """
        self._notice_own_loss()
        lost = [shim for shim in self._shims if shim.is_lost]
        if escaping := [shim for shim in lost if not shim.enclosed]:  # the kernel kills what is in a namespace
            # Both close their descriptors first, and then the kernel gives their children away.
            give_up_s = time.monotonic() + LOSS_S
            while not all(shim.is_gone for shim in escaping) and time.monotonic() < give_up_s:
                time.sleep(LOSS_ROUND_S)
            born = min(shim.shim[1] for shim in escaping)
            escaped = self.losses.remember(born, {shim.session for shim in escaping}, self.ours())
            for shim in escaping:
                shim.escaped = escaped
        for shim in [one for one in self._shims if one in lost or (one.is_closed and one.has_ended)]:
            self.remove(shim)
        return bool(escaping)

    def _notice_own_loss(self) -> None:
        for watch in [one for one in self._watches if one.has_ended]:
            self._watches.remove(watch)
            watch.close()
            self.was_lost = True
            _log.warning("the fork server was lost; its programs go on below their shims", pid=watch.process[0])
            if not self._watches:
                self._disconnect()

    def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        assert self._control is not None, "the fork server has been started"
        socket.send_fds(self._control, [message.ljust(MESSAGE_BYTES)], list(descriptors))

    # ------------------------------------------------------------------------------------------ start and end
    def _start(self, stderr: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._fork_server = self._popen(theirs.fileno(), stderr)
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours
        self._identity_written = False
        self._watches.append(Watch(identity(self._fork_server.pid)))
        self._started.set()
        self._started = anyio.Event()

    def _popen(self, control: int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(FORK_SERVER_PROGRAM), str(control), str(os.getpid())),
                *(self._containment.group, "enclose" if self._containment.pid_namespaces else ""),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,  # of the first program: if Python cannot start, the SpawnError quotes what is written here
            cwd="/",
            env={name: os.environ[name] for name in LOADER_VARIABLES if name in os.environ},
            pass_fds=(control,),
            start_new_session=True,
        )

    def _disconnect(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._fork_server is not None:
            self._fork_server.poll()

    async def close(self) -> None:
        """Disconnect and wait up to ``EXIT_WAIT_S`` seconds for the fork server's exit; a slower fork server continues
        by itself. After a loss, kill what has escaped and is proven to be ours."""
        with suppress(OSError):
            self.notice_losses()
        self._disconnect()
        if self._fork_server is not None:
            await within(EXIT_WAIT_S, partial(_wait_exit, self._fork_server))
            self._fork_server.poll()
        if self.losses.count:
            await self.losses.kill_escaped(self.ours())
        for watch in self._watches:
            watch.close()
        for shim in self._shims:
            shim.end_watch()


async def _wait_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait until *process* can be reaped; without a pidfd, let a thread wait for it."""
    try:
        pidfd = os.pidfd_open(process.pid) if sys.platform == "linux" else -1
    except ProcessLookupError:  # a waitpid(-1) of the embedding program was faster
        return
    except OSError:  # an old kernel, or no descriptor is left
        pidfd = -1
    if pidfd < 0:
        await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


class ShimReady(msgspec.Struct, frozen=True, tag="here", tag_field="event"):
    """Status of a shim: the shim runs; ``born`` is its start time in clock ticks since the boot. ``enclosed``: its
    program runs in a pid namespace, whose processes the kernel kills when the shim ends."""

    pid: int
    born: int
    enclosed: bool = False


class Spawned(msgspec.Struct, frozen=True, tag="spawned", tag_field="event"):
    """Status of a shim: the program runs."""

    pid: int


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="event"):
    """Status of a shim: the program did not start; ``step`` is the step that failed (``fork``, ``start``, ``cwd``,
    ``exec``), with its errno."""

    step: str
    errno: int


class Exited(msgspec.Struct, frozen=True, tag="exited", tag_field="event"):
    """Status of a shim: the main process has ended; its descendants may still run."""

    status: int


class Ended(msgspec.Struct, frozen=True, tag="ended", tag_field="event"):
    """Status of a shim: no process of the tree is left. ``ended_by`` is ``exit``, ``terminate``, ``kill``, or ``lost``
    (the shim died)."""

    status: int | None
    ended_by: str
    killed: int
    took_s: float
    outlived: tuple[ProcessSeen, ...] = ()
    """Descendants that were alive when the program had exited by itself."""


class ProcessesListed(msgspec.Struct, frozen=True, tag="seen", tag_field="event"):
    """Status of a shim, the reply to the order ``look``: the program and its descendants, parents first; ``None`` if
    /proc does not show them."""

    processes: tuple[ProcessSeen, ...] | None


Status = Spawned | Failed | Exited | ProcessesListed | Ended


_decode = msgspec.json.Decoder(ShimReady | Status).decode


def encode_launch(launch: Launch) -> bytes:
    """Return *launch* in the encoding that the shim reads: NUL-separated, as execve(2) takes argv and environ."""
    env = [f"{name}={value}" for name, value in launch.env.items()]
    body = b"\0".join(os.fsencode(word) for word in (launch.cwd, *launch.argv, *env))
    return b"%d %d\n%s" % (len(launch.argv), len(body), body)


class ShimClient:
    """Connection of the supervisor to one shim. The descriptors *stdin*, *stdout* and *stderr* become those of the
    program, which works for *session*."""

    def __init__(self, fork_server: ForkServerClient, stdin: int, stdout: int, stderr: int, session: str = "") -> None:
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
        self._launch_bytes_sent = 0
        self.pid = 0
        """Process id of the shim; 0 until the shim has reported that it runs."""
        self.session = session
        self.shim: Process = (0, 0)
        """Identity of the shim: its pid and its start time."""
        self._watch: Watch | None = None
        self.fork_server = fork_server.watch
        """Watch over the fork server of the shim."""
        self.enclosed = False
        self.escaped: tuple[Process, ...] | None = None
        """Processes that may have escaped when the shim was lost; ``None`` before."""
        self.is_closed = False
        self._rest = b""
        """Begin of a status whose end has not been received yet."""
        self._end_reported = False

    def exiting(self) -> tuple[int, ...]:
        """Return the processes that are left below the shim, if the kernel is ending all of them; else nothing.

        The processes of a lost shim are below the fork server, like those of all lost shims.
        """
        if identity(self.pid) == self.shim:
            return exiting_processes([self.pid])
        return exiting_processes([self._fork_server.pid], {pid for pid, _ in self._fork_server.ours()})

    async def send_launch(self, launch: Launch) -> None:
        """Send *launch*, which may be larger than the socket's buffer; a call after a call that was cancelled sends
        what is left."""
        data = encode_launch(launch)
        with suppress(ConnectionError):  # the shim died: ``statuses`` ends without ``spawned``
            while self._launch_bytes_sent < len(data):
                with suppress(BlockingIOError):
                    self._launch_bytes_sent += self._control.send(memoryview(data)[self._launch_bytes_sent :])
                if self._launch_bytes_sent < len(data):
                    await anyio.wait_writable(self._control)

    def order(self, line: bytes) -> bool:
        """Send one line to the shim; a line to a shim that is gone is lost.

        Return ``False`` if the socket's buffer is full, which happens when a stopped shim reads nothing.
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
        """Send SIGCONT to the shim, because the shim's program may have stopped it."""
        self._fork_server.rouse(self.pid)

    async def statuses(self) -> AsyncIterator[Status]:
        """Iterate over the shim's statuses until the shim is reaped: until then the fork server holds the far end of
        the socket open."""
        while data := await self._receive():
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                status = _decode(line)
                if isinstance(status, ShimReady):
                    self.pid, self.shim, self.enclosed = status.pid, (status.pid, status.born), status.enclosed
                    self._watch = Watch(self.shim)
                    self._fork_server.add(self)
                else:
                    self._end_reported = self._end_reported or isinstance(status, Ended)
                    yield status

    async def _receive(self) -> bytes:
        while True:
            await anyio.wait_readable(self._control)
            with suppress(BlockingIOError):
                try:
                    return self._control.recv(CHUNK_BYTES)
                except ConnectionError:  # the shim ended with an order unread: the same as end of file
                    return b""

    @property
    def has_ended(self) -> bool:
        """Whether the shim was started and has ended."""
        return self._watch is not None and self._watch.has_ended

    @property
    def is_gone(self) -> bool:
        """Whether both the shim and its fork server have ended."""
        return self.has_ended and self.fork_server.has_ended

    @property
    def is_lost(self) -> bool:
        """Whether the shim and its fork server end, or have ended, before one of them has reported that no process of
        the tree is left. Both hold the far end of the socket, so that the socket hangs up before a process escapes."""
        if self.is_closed:
            return self.is_gone
        poll = select.poll()
        poll.register(self._control, HUNG_UP)
        if not poll.poll(0):
            return False
        waiting = b""
        with suppress(OSError):
            waiting = self._control.recv(CHUNK_BYTES, socket.MSG_PEEK)
        return not self._end_reported and b'"event":"ended"' not in self._rest + waiting

    async def wait_end(self) -> None:
        """Wait for the end of the shim, which has been started; return at once if it has not."""
        if self._watch is not None:
            await self._watch.wait()

    def end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def close(self) -> None:
        """Close the socket. The shim then kills its tree, and ends once no process is left. A shim that has not ended
        is given up: its programs work for no session any more."""
        if self._end_reported:
            self._fork_server.remove(self)
        self._control.close()
        self.is_closed, self.session = True, ""
