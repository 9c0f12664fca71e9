"""What a simulated program sees of its machine: its arguments, its pipes, its children, and the signals it is sent.

A program is an async function of this face; what it returns is its exit status. It sleeps and waits with plain anyio.
SIGKILL, and a SIGTERM that it does not ignore, cancel it; writing into a pipe that nobody reads any more kills it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

__all__ = ["Inside", "Program"]


class Inside(Protocol):
    """A simulated process, from within."""

    @property
    def pid(self) -> int: ...

    @property
    def name(self) -> str:
        """A stable name for its draws: the same in every run of a seed, whatever else happens."""
        ...

    @property
    def argv(self) -> tuple[str, ...]: ...

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def cwd(self) -> str: ...

    async def read(self) -> bytes:
        """The next bytes of its standard input; ``b""`` at the end."""
        ...

    async def read_line(self) -> bytes:
        """The next line of its standard input, with its end; ``b""`` at the end of the input."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of *data* to its standard output; waits while the pipe is full (64 KiB)."""
        ...

    async def write_err(self, data: bytes) -> None:
        """The same for standard error."""
        ...

    def close_output(self) -> None:
        """Close standard output, and live on."""
        ...

    def ignore_terminate(self) -> None:
        """SIGTERM does nothing from now on."""
        ...

    def fork(self, program: Program, *, name: str, keeps_output: bool = False, new_session: bool = False) -> int:
        """Start a child process; its pid. *keeps_output*: it holds this process's output pipe open."""
        ...

    async def wait_child(self, pid: int) -> int:
        """Reap a child: its status in Python's form. A child that is never waited for is a zombie until its parent
        ends."""
        ...

    def die(self, signal_number: int) -> None:
        """Be killed by that signal, now (a segmentation fault, the OOM killer)."""
        ...


Program = Callable[[Inside], Awaitable[int]]
"""A simulated program; it returns its exit status, 0 to 255."""
