"""Process port: a program to start, a running program under its shim, and the report of its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from supervisor.policies.call_processes import ProcessSeen


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start: its argv, working directory, and whole environment (nothing is inherited).

    ``has_input``: standard input is a pipe from the supervisor; else it is /dev/null, so that a program which reads it
    meets the end of file at once, and one that looks (ripgrep searches a pipe instead of the directory) sees that
    nothing comes. ``spare`` is the number of file descriptors that must remain free in the supervisor after the start:
    commands of agents need them.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    has_input: bool = True
    spare: int = 0
    session: str = ""
    """Session that the program works for, ``""`` for none; requests of the program to the supervisor count as requests
    of that session's agent."""


class Origin(StrEnum):
    """Origin of a program that sends a request to the supervisor."""

    OPERATOR = "operator"
    """A program that the supervisor did not start: a program on a person's terminal, or the embedding program."""
    AGENT = "agent"
    """A program that the supervisor started, or a descendant of one."""
    UNIDENTIFIED = "unidentified"
    """Unknown: the program had ended before its ancestors could be read, or it may have escaped from a shim that was
    killed."""


class Caller(NamedTuple):
    """A program that sends a request to the supervisor, and the session that the program was started for (``""``:
    none). ``why`` is the reason why a living program is unidentified."""

    origin: Origin
    pid: int
    session: str = ""
    why: str = ""

    def named(self, said: str) -> str:
        """Return the name of the caller for the records. *said*, the name that the caller claims, counts for an
        operator only; an agent is named by its session."""
        if self.origin is Origin.OPERATOR:
            return said
        if self.origin is Origin.UNIDENTIFIED:
            return "an unidentified process"
        return f"agent of {self.session}" if self.session else "a program of the supervisor"


class UnidentifiedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Process that may have escaped from an agent, or may be the user's: the supervisor neither obeys nor kills it.

    A shim and the fork server above it were killed, so that the kernel made their descendants children of init. The
    process is such a child, or below one, and was started after the shim; nothing shows whether the agent started it.
    ``name`` is the kernel's name of the process, ``since`` the time of the loss (Unix time), and ``sessions`` are the
    sessions of the shims that were lost.
    """

    pid: int
    name: str
    since: float
    sessions: tuple[str, ...] = ()


SERVER_VARIABLE: Final = "SUPERVISOR_SERVER"
"""The environment variable that marks a server which an agent keeps from turn to turn, such as an MCP server that the
plan declares; the descendants of the server inherit the variable."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of the end of a program and of everything it started.

    ``status`` is the main process's exit status in Python's form (negative: signal), ``None`` if the status is unknown
    (the shim itself died). ``ended_by`` is ``exit`` (by itself), ``terminate`` or ``kill`` (by the supervisor).
    ``killed`` counts the descendants that had to be killed, ``survivors`` the descendants that are still alive: 0, or
    -1 if the number is unknown. In a pid namespace whose shim was lost the kernel kills: then ``killed`` counts the
    main process only. ``outlived`` are the descendants that still ran when the main process had exited by itself, and
    were killed then. ``exiting_s`` is the number of seconds from the kill to the end of the last process, if the kernel
    needed longer to end the processes than ``ProcessHost.spawn`` allows to processes that can run; else 0.
    """

    pid: int
    status: int | None
    ended_by: str
    killed: int
    survivors: int
    took_s: float
    outlived: tuple[ProcessSeen, ...] = ()
    exiting_s: float = 0.0


OnExiting = Callable[[tuple[int, ...]], None]
"""Function that is called once, with pids, when all that is left of a killed tree is processes that the kernel is still
ending. They run no code any more, and are waited for."""


class SpawnError(Exception):
    """Error: a program could not be started; the message names the program and the reason."""


class InvalidLaunch(SpawnError):
    """Error: the launch itself is wrong, such as a program or a working directory that does not exist: the same launch
    fails until somebody corrects it."""


class SpawnShortage(SpawnError):
    """Error: the machine lacks a resource that every program needs to start (``lacks``), such as file descriptors:
    nothing was started, and the same launch may succeed later."""

    def __init__(self, message: str, lacks: str) -> None:
        super().__init__(message)
        self.lacks = lacks


class Process(Protocol):
    """A running program under its shim. ``signal``, ``terminate`` and ``kill`` never wait and never raise."""

    @property
    def pid(self) -> int: ...

    async def receive(self) -> bytes:
        """Return the next bytes of standard output, at most 64 KiB; ``b""`` at the end."""
        ...

    async def receive_err(self) -> bytes:
        """Return the next bytes of standard error; ``b""`` at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of *data* to standard input; if the input is closed, the data is dropped silently, since the exit
        gives the reason."""
        ...

    def close_input(self) -> None:
        """Close standard input."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the process group of the main process, as a terminal does at Ctrl-C. If the main process
        then exits, the processes below it that take no notice of the signal get SIGTERM, and all of them have
        ``terminate_s`` (of ``spawn``) before SIGKILL."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM, then SIGCONT, to the whole tree. The exit of the main process alone does not end the wait for
        the others."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to the whole tree until no process is left."""
        ...

    def clock(self) -> int:
        """Return the current time, in the clock ticks of processes' start times."""
        ...

    @property
    def written_between(self) -> tuple[int, int]:
        """The two clock ticks between which the bytes that were received last were written, both included."""
        ...

    async def list_processes(self) -> tuple[ProcessSeen, ...] | None:
        """Return the main process and its descendants, parents first: a snapshot. Empty after the end of the main
        process, since all of them are being ended then; ``None`` if the platform cannot list them."""
        ...

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send the signal *number* to each of these descendants that is still the process that was listed."""
        ...

    async def wait_gone(self, pid: int) -> None:
        """Wait until the descendant *pid* (of :meth:`list_processes`) has ended; may return early, so the caller must
        list the processes again."""
        ...

    async def wait_exit(self) -> int | None:
        """Wait for the main process; return its exit status (Python's form), ``None`` if the shim was lost."""
        ...

    async def wait_ended(self) -> ProcessReport:
        """Wait until the whole tree is gone and reaped; return the report."""
        ...


class ProcessHost(Protocol):
    """Starts programs, each under a shim of its own."""

    def spawn(
        self,
        launch: Launch,
        *,
        terminate_s: float = 2.0,
        kill_s: float = 1.0,
        on_exiting: OnExiting | None = None,
    ) -> AbstractAsyncContextManager[Process]:
        """Start *launch*. Leaving the context ends the whole tree (terminate, then kill) under a bounded shield. After
        the kill, processes that the kernel is ending are waited for, at most ``EXITING_S`` seconds.

        Raises:
            InvalidLaunch: the program is missing, not executable, or the working directory does not exist.
            SpawnShortage: descriptors, processes or memory have run out.
            SpawnError: the program could not be started for another reason.
        """
        ...
