"""The supervisor's end of its keeper: started with the first program, again if it was lost, let go of at the end.

A keeper is known across restarts by its pid, its start time and the boot: whoever starts on the same state directory
waits for it (``sweep``). It is reaped by its own pid, never by ``waitpid(-1)``, which would steal other exit statuses.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from actors.waiting import within
from supervisor.ports.secure_files import write_private
from supervisor.processes.containment import Containment
from supervisor.processes.descent import Process, identity
from supervisor.processes.fork_server import MESSAGE_BYTES
from supervisor.processes.process_identity import identity_of

__all__ = ["ForkServerClient"]

KEEPER = Path(__file__).with_name("fork_server.py")
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # all that a Python may need to start at all
LEAVE_S = 5.0
"""How long a keeper that has been let go of is waited for: it ends at once where no program is left."""


class ForkServerClient:
    """One supervisor's keeper."""

    def __init__(self, containment: Containment) -> None:
        self._containment = containment
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._noted = False
        self.fork_servers: list[Process] = []
        """The keeper, and those that were lost before it: what they had forked may be theirs still."""

    @property
    def pid(self) -> int:
        """The keeper's, 0 before there is one."""
        return self._fork_server.pid if self._fork_server is not None else 0

    def fork(self, lifeline: int, stdin: int, stdout: int, stderr: int) -> None:
        """Have a warden forked on these descriptors, which remain the caller's. It says on *lifeline* who it is.

        Raises:
            OSError: no keeper could be started, or it takes nothing.
        """
        descriptors = (lifeline, stdin, stdout, stderr)
        if self._control is None:
            self._start(stderr)
        self._note()
        try:
            self._send(b"fork", descriptors)
        except ConnectionError:  # it was lost; its wardens go on alone
            self._let_go()
            self._start(stderr)
            self._note()
            self._send(b"fork", descriptors)

    def _note(self) -> None:
        """Write down who the keeper is, before it has anything to keep; where that fails, the launch fails with it, and
        it is written with the next one."""
        if not self._noted and self._containment.keeper_file is not None and self._containment.is_ours():
            write_private(self._containment.keeper_file, identity_of(self.pid))
        self._noted = True

    def rouse(self, pid: int) -> None:
        """Let that warden go on, and the keeper itself, if a program has stopped them."""
        if self._fork_server is None or self._control is None:
            return
        with suppress(OSError):
            self._fork_server.send_signal(signal.SIGCONT)
            self._send(b"rouse %d" % pid, ())

    def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        assert self._control is not None, "a keeper has been started"
        socket.send_fds(self._control, [message.ljust(MESSAGE_BYTES)], list(descriptors))

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
        self._noted = False
        self.fork_servers.append(identity(self._fork_server.pid))

    def _popen(self, control: int, stderr: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), str(control), str(os.getpid()), *self._manner()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,  # of the first program: if it cannot even start, that is where the refusal finds its words
            cwd="/",
            env=_loader_environment(os.environ),
            pass_fds=(control,),
            start_new_session=True,
        )

    def _manner(self) -> tuple[str, str]:
        return self._containment.group, "enclose" if self._containment.pid_namespaces else ""

    def _let_go(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._fork_server is not None:
            self._fork_server.poll()

    async def close(self) -> None:
        """Let go of it, and wait until it has seen everything out; one that takes too long goes on alone."""
        self._let_go()
        if self._fork_server is not None:
            await within(LEAVE_S, partial(died, self._fork_server))
            self._fork_server.poll()


def _loader_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in LOADER_VARIABLES if name in environ}


async def died(process: subprocess.Popen[bytes]) -> None:
    """Until *process* can be reaped at once; without a descriptor to wait on, a thread waits."""
    try:
        pidfd = os.pidfd_open(process.pid) if sys.platform == "linux" else -1
    except ProcessLookupError:  # somebody else's waitpid(-1) was faster
        return
    except OSError:  # no descriptor is left
        pidfd = -1
    if pidfd < 0:
        await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)
