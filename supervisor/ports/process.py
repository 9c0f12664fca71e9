"""Processes: a program to start, a running program under its shim, and its fate."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from supervisor.policies.call_processes import ProcessSeen

__all__ = [
    "SERVER_VARIABLE",
    "Caller",
    "Launch",
    "Origin",
    "Process",
    "ProcessHost",
    "ProcessReport",
    "SpawnError",
    "SpawnShortage",
]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start: its argv, working directory, and whole environment (nothing is inherited).

    ``spare`` descriptors must be left to the supervisor when it is started: those that commands of agents need.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    spare: int = 0
    session: str = ""
    """Session that the program works for, ``""`` for none; requests of the program to the supervisor count as made by
    that session's agent."""


class Origin(StrEnum):
    """Origin of a program that makes a request to the supervisor."""

    OPERATOR = "operator"
    """Not from the supervisor: a person's terminal, or the program that embeds it."""
    AGENT = "agent"
    """The supervisor started it, or it descends from what the supervisor started."""
    UNTOLD = "untold"
    """Nobody can tell: it had ended when it was looked at."""


class Caller(NamedTuple):
    """A program that asks something of the supervisor, and the session that it was started for (``""``: for none)."""

    origin: Origin
    pid: int
    session: str = ""

    def named(self, said: str) -> str:
        """Return the name of the caller for the records. *said*, the name that the caller gives itself, counts for an
        operator only, not for an agent."""
        if self.origin is Origin.OPERATOR:
            return said
        if self.origin is Origin.UNTOLD:
            return "a process that cannot be told"
        return f"agent of {self.session}" if self.session else "a program of the supervisor"


SERVER_VARIABLE: Final = "SUPERVISOR_SERVER"
"""The environment variable that marks a server which an agent keeps from turn to turn, such as an MCP server that the
plan declares; what the server starts has it too."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a process and of everything it started.

    ``status`` is the main process's exit status in Python's form (negative: signal), ``None`` when it is not known
    (the warden itself died). ``ended_by`` is ``exit`` (by itself), ``terminate`` or ``kill`` (by us).
    ``killed`` counts the descendants that had to be killed, ``survivors`` those that are still there: 0, or -1 when
    nobody can say. In a pid namespace whose warden was lost the kernel kills: ``killed`` is of the main process only.
    ``outlived`` are the descendants that still ran when the main process had exited by itself, and were killed then.
    """

    pid: int
    status: int | None
    ended_by: str
    killed: int
    survivors: int
    took_s: float
    outlived: tuple[ProcessSeen, ...] = ()


class SpawnError(Exception):
    """A program could not be started; the message says which, and why."""


class SpawnShortage(SpawnError):
    """The machine lacks what every program needs to start, such as file descriptors: nothing was started, and the same
    launch may succeed later. ``lacks`` names what."""

    def __init__(self, message: str, lacks: str) -> None:
        super().__init__(message)
        self.lacks = lacks


class Process(Protocol):
    """A running program under its warden. ``signal``, ``terminate`` and ``kill`` never wait and never raise."""

    @property
    def pid(self) -> int: ...

    async def receive(self) -> bytes:
        """The next bytes of its standard output, at most 64 KiB; ``b""`` at the end."""
        ...

    async def receive_err(self) -> bytes:
        """The next bytes of its standard error; ``b""`` at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of *data* to its standard input; a closed input drops it silently (the exit tells why)."""
        ...

    def close_input(self) -> None:
        """End of its standard input."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the main process only."""
        ...

    def terminate(self) -> None:
        """SIGTERM, then SIGCONT, to the whole tree."""
        ...

    def kill(self) -> None:
        """SIGKILL the whole tree until nothing is left."""
        ...

    def clock(self) -> int:
        """Now, in the ticks in which the births of processes are told."""
        ...

    @property
    def written_between(self) -> tuple[int, int]:
        """The ticks between which the bytes that were received last were written, the second one included."""
        ...

    async def list_processes(self) -> tuple[ProcessSeen, ...] | None:
        """The main process and all its descendants, parents before their children: a snapshot. Nothing after the end of
        the main process: then all of them are being ended. ``None`` where the platform cannot tell."""
        ...

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send the signal *number* to these descendants, to each only if it is still the process that was seen."""
        ...

    async def wait_gone(self, pid: int) -> None:
        """Wait until the descendant *pid* (of :meth:`list_processes`) has ended; it may return early, so look again."""
        ...

    async def wait_exit(self) -> int | None:
        """The exit status of the main process (Python's form), ``None`` when the warden was lost."""
        ...

    async def wait_ended(self) -> ProcessReport:
        """Its fate, once the whole tree is gone and reaped."""
        ...


class ProcessHost(Protocol):
    """Starts programs, each under a warden of its own."""

    def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0
    ) -> AbstractAsyncContextManager[Process]:
        """Start *launch*. Leaving the context ends the whole tree (terminate, then kill) under a bounded shield.

        Raises:
            SpawnError: the program is missing, not executable, or the working directory does not exist.
            SpawnShortage: descriptors, processes or memory have run out.
        """
        ...
