"""The kernel of a simulated machine: process table and signals.

The rules are those of Linux. A process that has ended stays in the table as a zombie until its parent reaps it. A
process that loses its parent is adopted by the subreaper above it, or by init. A pipe ends when its last holder is
gone. Signals that stop a process are not modelled: they have no effect.

A program is an async function that is called with its process and returns its exit status. A program sleeps and waits
with plain anyio. SIGKILL, and a SIGTERM that the program does not ignore, cancel the program; so does a write to a pipe
without a reader. A killed process is dead at that instant: any operation that its coroutine still tries raises
``_Died``, and changes nothing. The end of a process with ``exit_s`` takes so many seconds, as on a real machine that
has much memory to release: the process is *exiting* meanwhile, runs nothing, and keeps its pipes and its children.

Example: a shim starts ``agent`` (pid 1001), which forks ``tool`` (1002). SIGKILL to 1001: its pipes are closed, 1002
gets the shim as its parent, the shim's ``child_ended`` is called, and 1001 stays a zombie until the shim reaps it.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from actors.one_shot_event import OneShotEvent
from actors.waiter import current_backend
from supervisor.agents.protocols.codec_base import signal_name
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import Launch
from supervisor.simulation.machine.pipe import Pipe

Program = Callable[["OsProcess"], Awaitable[int]]
"""Simulated program: an async function that is called with its process and returns its exit status, 0 to 255."""
FIRST_PID: Final = 1000
HARMLESS: Final = frozenset(
    {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    | {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
"""Signals without an effect here: signals that do nothing to a program without a handler, and signals that would stop a
program."""
TICKS_PER_S: Final = 100
"""Ticks of the simulated machine's clock per second; the start times of processes are reported in ticks."""
ASKING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a program may handle; such a signal cancels the program."""


class _Died(BaseException):
    """Exception that unwinds the coroutine of a simulated process that has ended."""


# --------------------------------------------------------------------------------------------------- processes
class Parent(Protocol):
    """Interface of a parent of processes: another process, a subreaper, or init."""

    children: dict[int, OsProcess]

    def child_ended(self, child: OsProcess) -> None:
        """React to SIGCHLD: *child* is a zombie now, or was a zombie when this parent adopted it."""
        ...

    def adopter(self) -> Parent:
        """Return the parent that adopts orphans below this parent."""
        ...


class _Init:
    """Process 1 (init): reaps every process that it adopts."""

    def __init__(self, kernel: Kernel) -> None:
        self.children: dict[int, OsProcess] = {}
        self._kernel = kernel

    def child_ended(self, child: OsProcess) -> None:
        self._kernel.reap(child)

    def adopter(self) -> Parent:
        return self


class OsProcess:
    """Simulated process: the kernel's entry, and the interface that the process's program uses."""

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
        self.pid = kernel.next_pid()
        self.name = name
        """Name of the process for draws: the same in every run of a seed."""
        self.launch = launch
        self.argv, self.env, self.cwd = launch.argv, launch.env, launch.cwd
        self.owner = owner
        self.parent = parent
        self.reaper = reaper
        self.session = self.pid if session is None else session
        self._born = kernel.ticks()
        self.children: dict[int, OsProcess] = {}
        self.status: int | None = None
        self.ignores_term = False
        self.exit_s = 0.0
        """Seconds that the kernel takes to end this process."""
        self.exiting = False
        self.dead = OneShotEvent()
        self._stdin: Pipe | None = None
        self._stdout: Pipe | None = None
        self._stderr: Pipe | None = None
        self._buffered = bytearray()
        self._scope = anyio.CancelScope()
        self._asked = int(signal.SIGTERM)
        self._child_exit: OneShotEvent | None = None

    def hold(self, stdin: Pipe | None, stdout: Pipe | None, stderr: Pipe | None) -> None:
        """Give the process its ends of the standard streams; ``None`` stands for /dev/null."""
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr

    async def run(self, program: Program) -> None:
        """Run *program* in this process to its end. A program that catches the cancellation counts as having a handler
        for SIGTERM."""
        status: int | None = None
        with self._scope:
            try:
                status = await program(self) & 0xFF
            except* _Died:
                pass
        if self.runs:
            self._exit(-self._asked if status is None else status)

    # ------------------------------------------------------------------ from outside
    @property
    def runs(self) -> bool:
        """Whether the program of this process may run: the process is neither a zombie nor exiting."""
        return self.status is None and not self.exiting

    def seen(self) -> ProcessSeen:
        """Describe the process as the kernel would show the process. The parent's pid is 0 if the parent is a shim,
        which has no pid here."""
        parent = self.parent.pid if isinstance(self.parent, OsProcess) else 0
        state = "Z" if self.status is not None else "D" if self.exiting else "S"
        command = "" if self.exiting else self.name.encode().hex()
        exiting = self.exiting and self.status is None
        return ProcessSeen(self.pid, parent, self.session, self._born, state, 1, command, exiting=exiting)

    def deliver(self, number: int) -> None:
        """Deliver a signal to the process."""
        if not self.runs or number in HARMLESS:
            return
        self._kernel.note("signalled", self, signal_name(number))
        if number not in ASKING:
            self.end(-number)
        elif number != signal.SIGTERM or not self.ignores_term:
            self._asked = number
            self._scope.cancel()

    def end(self, status: int) -> None:
        """End the process at this instant with *status*, whatever its program does. (With ``exit_s``: begin its
        end.)"""
        if self.runs:
            self._scope.cancel()
            self._exit(status)

    def _exit(self, status: int) -> None:
        """End the process, at once or after ``exit_s`` seconds."""
        if self.exit_s:
            self.exiting = True
            self._kernel.note("exiting", self, str(status))
            self._kernel.start_soon(self._exit_later, status)
        else:
            self._become_zombie(status)

    async def _exit_later(self, status: int) -> None:
        await anyio.sleep(self.exit_s)
        self._become_zombie(status)

    def _become_zombie(self, status: int) -> None:
        """Make the process a zombie: close its pipes, and give its children to their adopter."""
        self.status = status
        self.dead.set()
        self._kernel.note("exited", self, str(status))
        self._close_all()
        adopter = self.adopter()
        for child in list(self.children.values()):
            self._kernel.reparent(child, adopter)
        self.parent.child_ended(self)

    def _close_all(self) -> None:
        if self._stdin is not None:
            self._stdin.close_reading()
        for pipe in (self._stdout, self._stderr):
            if pipe is not None:
                pipe.close_writing()
        self._stdin = self._stdout = self._stderr = None

    # ------------------------------------------------------------------ as a parent
    def child_ended(self, child: OsProcess) -> None:
        if self._child_exit is not None:
            self._child_exit.set()
            self._child_exit = None

    def adopter(self) -> Parent:
        return self.reaper.adopter()

    # ------------------------------------------------------------------ from within
    def _check_alive(self) -> None:
        if not self.runs:
            raise _Died

    async def read(self) -> bytes:
        """Read the next bytes of standard input; ``b""`` at the end of the input."""
        self._check_alive()
        if self._buffered:
            data = bytes(self._buffered)
            self._buffered.clear()
            return data
        return await self._more()

    async def _more(self) -> bytes:
        data = b"" if self._stdin is None else await self._stdin.read()
        self._check_alive()
        return data

    async def read_line(self) -> bytes:
        """Read the next line of standard input, with its line end; ``b""`` at the end of the input."""
        self._check_alive()
        searched = 0
        while (end := self._buffered.find(b"\n", searched) + 1) == 0:
            searched = len(self._buffered)
            data = await self._more()
            self._buffered += data
            if not data:
                end = len(self._buffered)
                break
        line = bytes(self._buffered[:end])
        del self._buffered[:end]
        return line

    async def write(self, data: bytes) -> None:
        """Write all of *data* to standard output; wait while the pipe is full (64 KiB)."""
        self._check_alive()
        await self._write(self._stdout, data)

    async def write_err(self, data: bytes) -> None:
        self._check_alive()
        await self._write(self._stderr, data)

    async def _write(self, pipe: Pipe | None, data: bytes) -> None:
        left = memoryview(data)
        while left and pipe is not None:
            if not pipe.has_reader:
                self.die(signal.SIGPIPE)
            left = left[pipe.put(left) :]
            if left:
                await pipe.change()
                self._check_alive()

    def close_output(self) -> None:
        """Close standard output; the process goes on."""
        self._check_alive()
        if self._stdout is not None:
            self._stdout.close_writing()
            self._stdout = None

    def ignore_terminate(self) -> None:
        self._check_alive()
        self.ignores_term = True

    def fork(self, program: Program, *, name: str, keeps_output: bool = False, new_session: bool = False) -> int:
        """Start a child process and return its pid. With *keeps_output* the child holds this process's output pipes
        open."""
        self._check_alive()
        child = OsProcess(
            self._kernel,
            self,
            self.launch,
            f"{self.name}/{name}",
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
        """Wait for the end of a child, reap the child, and return its status in Python's form (negative for a signal).
        A child for which nobody waits stays a zombie until its parent ends."""
        self._check_alive()
        child = self.children.get(pid)
        if child is None:
            raise ChildProcessError(errno.ECHILD, f"process {self.pid} has no child {pid}")
        while child.status is None:
            if self._child_exit is None:
                self._child_exit = OneShotEvent()
            await self._child_exit.wait()
            self._check_alive()
        self._kernel.reap(child)
        return child.status

    def die(self, signal_number: int) -> None:
        """End this process at once by that signal (a segmentation fault, the OOM killer)."""
        self._check_alive()
        self.end(-signal_number)
        raise _Died


def _shared(pipe: Pipe | None) -> Pipe | None:
    if pipe is not None:
        pipe.writers += 1
    return pipe


# ----------------------------------------------------------------------------------------------------- the table
class Kernel:
    """Process table of a simulated machine. Processes run in *group*; *note* is called with each event (name of the
    event, process, detail)."""

    def __init__(self, group: TaskGroup, note: Callable[[str, OsProcess, str], None]) -> None:
        self.table: dict[int, OsProcess] = {}
        self.init = _Init(self)
        self.note = note
        backend = current_backend()
        self.now, self.checkpoint = backend.now, backend.checkpoint
        """Functions: the time of the machine's clock, in seconds, and a step in which other tasks run."""
        self.start_soon = group.start_soon
        self._last_pid = FIRST_PID

    def ticks(self) -> int:
        """Return the time of the machine's clock in ticks."""
        return int(self.now() * TICKS_PER_S)

    def next_pid(self) -> int:
        self._last_pid += 1
        return self._last_pid

    def begin(self, process: OsProcess, program: Program) -> None:
        """Enter *process* into the table, and start *program* in the process."""
        self.table[process.pid] = process
        process.parent.children[process.pid] = process
        self.note("spawned", process, process.name)
        self.start_soon(process.run, program)

    def reparent(self, child: OsProcess, parent: Parent) -> None:
        """Give *child*, whose parent has ended, to another parent."""
        del child.parent.children[child.pid]
        child.parent = parent
        parent.children[child.pid] = child
        if child.status is not None:
            parent.child_ended(child)

    def reap(self, process: OsProcess) -> None:
        """Remove a zombie from the table."""
        del self.table[process.pid]
        del process.parent.children[process.pid]
        self.note("reaped", process, str(process.status))
        process.parent = process.reaper = self.init  # what has left must not keep anybody in memory

    def below(self, parent: Parent) -> list[OsProcess]:
        """Return all descendants of *parent*, parents before children."""
        found = list(parent.children.values())
        for process in found:  # the list grows as we walk along it
            found += process.children.values()
        return found
