"""The kernel of a simulated machine: its process table, and its signals.

What holds is what holds on Linux: a process that has ended stays in the table, as a zombie, until its parent reaps it;
whoever loses its parent falls to the subreaper above it, or to init; a pipe ends when the last that holds it is gone.
A program is an async function that is given its process; what it returns is its exit status. It sleeps and waits with
plain anyio. SIGKILL, and a SIGTERM that it does not ignore, cancel it; writing into a pipe that nobody reads any more
kills it. It is cut off at the moment of its death: whatever its coroutine still tries changes nothing.
Signals that stop a process are not modelled: nothing happens to whom they are sent.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from actors.waiter import current_backend
from supervisor.agents.protocols.codec_base import signal_name
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import Launch
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.simulation.machine.pipe import Pipe

__all__ = ["Kernel", "OsProcess", "Parent", "Program"]

Program = Callable[["OsProcess"], Awaitable[int]]
"""A simulated program; it returns its exit status, 0 to 255."""
FIRST_PID: Final = 1000
HARMLESS: Final = frozenset(
    {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    | {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
"""Signals without an effect on a program that does not handle them, and those that stop it."""
TICKS_PER_S: Final = 100
"""The births of processes are told in ticks of this machine's clock."""
ASKING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a program may answer; they cancel it."""


class _Died(BaseException):
    """A process went on after its end: unwinds its coroutine, whatever that catches."""


# --------------------------------------------------------------------------------------------------- processes
class Parent(Protocol):
    """Who has children: another process, a subreaper, or init."""

    children: dict[int, OsProcess]

    def child_ended(self, child: OsProcess) -> None:
        """SIGCHLD: *child* is a zombie now, or has come as one."""
        ...

    def heir(self) -> Parent:
        """Who gets the orphans below it."""
        ...


class _Init:
    """Process 1: it reaps whatever comes to it."""

    def __init__(self, kernel: Kernel) -> None:
        self.children: dict[int, OsProcess] = {}
        self._kernel = kernel

    def child_ended(self, child: OsProcess) -> None:
        self._kernel.reap(child)

    def heir(self) -> Parent:
        return self


class OsProcess:
    """One process, as the kernel keeps it, and as its own program sees it."""

    def __init__(
        self,
        kernel: Kernel,
        parent: Parent,
        launch: Launch,
        name: str,
        *,
        owner: str,
        reaper: Parent,
        session: int | None,
    ) -> None:
        self._kernel = kernel
        self._pid = kernel.next_pid()
        self._name = name
        self.launch = launch
        self.owner = owner
        self.parent = parent
        self.reaper = reaper
        self.session = self._pid if session is None else session
        self._born = kernel.ticks()
        self.children: dict[int, OsProcess] = {}
        self.status: int | None = None
        self.ignores_term = False
        self.dead = OneShotEvent()
        self._stdin: Pipe | None = None
        self._stdout: Pipe | None = None
        self._stderr: Pipe | None = None
        self._heard = bytearray()
        self._scope = anyio.CancelScope()
        self._asked = int(signal.SIGTERM)
        self._family: OneShotEvent | None = None

    def hold(self, stdin: Pipe | None, stdout: Pipe | None, stderr: Pipe | None) -> None:
        """Its standard streams; ``None`` is /dev/null. The ends become its own."""
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr

    async def live(self, program: Program) -> None:
        """Run *program*. One that catches the cancellation which SIGTERM is to it has a handler for it."""
        status: int | None = None
        with self._scope:
            try:
                status = await program(self) & 0xFF
            except* _Died:
                pass
        if self.status is None:
            self._exit(-self._asked if status is None else status)

    # ------------------------------------------------------------------ from outside
    def seen(self) -> ProcessSeen:
        """What the kernel tells of it. The parent is of no account where that is a warden, which has no pid here."""
        parent = self.parent.pid if isinstance(self.parent, OsProcess) else 0
        state = "S" if self.status is None else "Z"
        return ProcessSeen(self._pid, parent, self.session, self._born, state, 1, self._name.encode().hex())

    def deliver(self, number: int) -> None:
        """Send it a signal."""
        if self.status is not None or number in HARMLESS:
            return
        self._kernel.note("signalled", self, signal_name(number))
        if number not in ASKING:
            self.end(-number)
        elif number != signal.SIGTERM or not self.ignores_term:
            self._asked = number
            self._scope.cancel()

    def end(self, status: int) -> None:
        """Its death, in this moment, whatever its program is at."""
        if self.status is None:
            self._scope.cancel()
            self._exit(status)

    def _exit(self, status: int) -> None:
        """It becomes a zombie, what it held is let go, and its children are orphans."""
        self.status = status
        self.dead.set()
        self._kernel.note("exited", self, str(status))
        self._close_all()
        self._orphan()
        self.parent.child_ended(self)

    def _close_all(self) -> None:
        if self._stdin is not None:
            self._stdin.close_reading()
        for pipe in (self._stdout, self._stderr):
            if pipe is not None:
                pipe.close_writing()
        self._stdin = self._stdout = self._stderr = None

    def _orphan(self) -> None:
        heir = self.heir()
        for child in list(self.children.values()):
            self._kernel.give(child, heir)

    # ------------------------------------------------------------------ as a parent
    def child_ended(self, child: OsProcess) -> None:
        if self._family is not None:
            self._family.set()
            self._family = None

    def heir(self) -> Parent:
        return self.reaper.heir()

    # ------------------------------------------------------------------ from within
    @property
    def pid(self) -> int:
        return self._pid

    @property
    def name(self) -> str:
        """A stable name for its draws: the same in every run of a seed, whatever else happens."""
        return self._name

    @property
    def argv(self) -> tuple[str, ...]:
        return self.launch.argv

    @property
    def env(self) -> Mapping[str, str]:
        return self.launch.env

    @property
    def cwd(self) -> str:
        return self.launch.cwd

    def _go_on(self) -> None:
        if self.status is not None:
            raise _Died

    async def read(self) -> bytes:
        """The next bytes of its standard input; ``b""`` at the end."""
        self._go_on()
        if self._heard:
            data = bytes(self._heard)
            self._heard.clear()
            return data
        return await self._more()

    async def _more(self) -> bytes:
        data = b"" if self._stdin is None else await self._stdin.read()
        self._go_on()
        return data

    async def read_line(self) -> bytes:
        """The next line of its standard input, with its end; ``b""`` at the end of the input."""
        self._go_on()
        searched = 0
        while (end := self._heard.find(b"\n", searched) + 1) == 0:
            searched = len(self._heard)
            data = await self._more()
            self._heard += data
            if not data:
                end = len(self._heard)
                break
        line = bytes(self._heard[:end])
        del self._heard[:end]
        return line

    async def write(self, data: bytes) -> None:
        """Write all of *data* to its standard output; waits while the pipe is full (64 KiB)."""
        self._go_on()
        await self._write(self._stdout, data)

    async def write_err(self, data: bytes) -> None:
        self._go_on()
        await self._write(self._stderr, data)

    async def _write(self, pipe: Pipe | None, data: bytes) -> None:
        left = memoryview(data)
        while left and pipe is not None:
            if not pipe.has_reader:
                self.die(signal.SIGPIPE)
            left = left[pipe.put(left) :]
            if left:
                await pipe.change()
                self._go_on()

    def close_output(self) -> None:
        """Close standard output, and live on."""
        self._go_on()
        if self._stdout is not None:
            self._stdout.close_writing()
            self._stdout = None

    def ignore_terminate(self) -> None:
        self._go_on()
        self.ignores_term = True

    def fork(self, program: Program, *, name: str, keeps_output: bool = False, new_session: bool = False) -> int:
        """Start a child process; its pid. *keeps_output*: it holds this process's output pipe open."""
        self._go_on()
        child = OsProcess(
            self._kernel,
            self,
            self.launch,
            f"{self._name}/{name}",
            owner=self.owner,
            reaper=self.reaper,
            session=None if new_session else self.session,
        )
        child.ignores_term = self.ignores_term
        if keeps_output:
            child.hold(None, _shared(self._stdout), _shared(self._stderr))
        self._kernel.begin(child, program)
        return child.pid

    async def wait_child(self, pid: int) -> int:
        """Reap a child: its status in Python's form. One that is never waited for is a zombie until its parent ends."""
        self._go_on()
        child = self.children.get(pid)
        if child is None:
            raise ChildProcessError(errno.ECHILD, f"process {self._pid} has no child {pid}")
        while child.status is None:
            if self._family is None:
                self._family = OneShotEvent()
            await self._family.wait()
            self._go_on()
        self._kernel.reap(child)
        return child.status

    def die(self, signal_number: int) -> None:
        """Be killed by that signal, now (a segmentation fault, the OOM killer)."""
        self._go_on()
        self.end(-signal_number)
        raise _Died


def _shared(pipe: Pipe | None) -> Pipe | None:
    if pipe is not None:
        pipe.writers += 1
    return pipe


# ----------------------------------------------------------------------------------------------------- the table
class Kernel:
    """The process table. Processes live in *group*; *note* is told what happens to them (what, whom, detail)."""

    def __init__(self, group: TaskGroup, note: Callable[[str, OsProcess, str], None]) -> None:
        self.table: dict[int, OsProcess] = {}
        self.init = _Init(self)
        self.note = note
        self.now = current_backend().now
        """The machine's clock."""
        self._group = group
        self._last_pid = FIRST_PID

    def ticks(self) -> int:
        """Now, in ticks."""
        return int(self.now() * TICKS_PER_S)

    def next_pid(self) -> int:
        self._last_pid += 1
        return self._last_pid

    def begin(self, process: OsProcess, program: Program) -> None:
        """*process* is there from now on, and runs *program*."""
        self.table[process.pid] = process
        process.parent.children[process.pid] = process
        self.note("spawned", process, process.name)
        self._group.start_soon(process.live, program)

    def give(self, child: OsProcess, parent: Parent) -> None:
        """*child* has lost its parent, and gets another one."""
        del child.parent.children[child.pid]
        child.parent = parent
        parent.children[child.pid] = child
        if child.status is not None:
            parent.child_ended(child)

    def reap(self, process: OsProcess) -> None:
        """A zombie leaves the table."""
        del self.table[process.pid]
        del process.parent.children[process.pid]
        self.note("reaped", process, str(process.status))
        process.parent = process.reaper = self.init  # what has left must not keep anybody in memory

    def below(self, parent: Parent) -> list[OsProcess]:
        """Everything below *parent*, parents first."""
        found = list(parent.children.values())
        for process in found:  # the list grows as we walk along it
            found += process.children.values()
        return found
