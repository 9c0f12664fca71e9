"""Scripts: what a program does, step by step, in a vocabulary that a real program and a simulated one both speak.

The real program is ``interpreter.py``, in a process of its own; ``simulated`` is the same for a simulated process.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec

from supervisor.simulation.machine.kernel import OsProcess, Program

INTERPRETER = str(Path(__file__).with_name("interpreter.py"))
PREFIX = (sys.executable, "-I", "-S", INTERPRETER)


class _Step(msgspec.Struct, frozen=True, tag_field="do"):
    pass


class Say(_Step, frozen=True, tag="say"):
    """Write to standard output."""

    data: bytes


class Complain(_Step, frozen=True, tag="complain"):
    """Write to standard error."""

    data: bytes


class Dribble(_Step, frozen=True, tag="dribble"):
    """Write to standard output a byte at a time, with a pause of ``every_s`` after each."""

    data: bytes
    every_s: float


class Flood(_Step, frozen=True, tag="flood"):
    """Write so many bytes to standard output."""

    size: int


class ReadLine(_Step, frozen=True, tag="read_line"):
    """Wait for a line on standard input, or its end."""


class ReadAll(_Step, frozen=True, tag="read_all"):
    """Read standard input to its end, and say how many bytes that were."""


class Echo(_Step, frozen=True, tag="echo"):
    """Write whatever is read, up to the end of standard input."""


class CloseOutput(_Step, frozen=True, tag="close_output"):
    """Close standard output."""


class IgnoreTerm(_Step, frozen=True, tag="ignore_term"):
    """Ignore SIGTERM from now on, also in children that are forked later."""


class Fork(_Step, frozen=True, tag="fork"):
    """Start a child that does *steps*, and wait until it is ``Ready``, or ends.

    Its standard streams are /dev/null, but with *keeps_output* it holds the output of this program.
    """

    steps: tuple[Step, ...]
    new_session: bool = False
    keeps_output: bool = False


class Ready(_Step, frozen=True, tag="mark_ready"):
    """Let the parent go on."""


class Reap(_Step, frozen=True, tag="reap"):
    """Wait for the oldest child's end, and say its status."""


class Hang(_Step, frozen=True, tag="hang"):
    """Do nothing, for ever."""


class Exit(_Step, frozen=True, tag="exit"):
    """Exit; the end of the script is ``Exit(0)``."""

    status: int


class Die(_Step, frozen=True, tag="die"):
    """Be killed by that signal."""

    signal: int


Step = (
    Say
    | Complain
    | Dribble
    | Flood
    | ReadLine
    | ReadAll
    | Echo
    | CloseOutput
    | IgnoreTerm
    | Fork
    | Ready
    | Reap
    | Hang
    | Exit
    | Die
)


def argv_of(*steps: Step) -> tuple[str, ...]:
    """Return the command line of a program that does *steps*, real or simulated."""
    return (*PREFIX, msgspec.json.encode(steps).decode())


def script_of(argv: tuple[str, ...]) -> tuple[Step, ...] | None:
    """Return the steps of a command line that ``argv_of`` has made; ``None`` for any other command line."""
    return msgspec.json.decode(argv[-1], type=tuple[Step, ...]) if argv[: len(PREFIX)] == PREFIX else None


def simulated(steps: tuple[Step, ...], ready: Callable[[], None] = lambda: None) -> Program:
    """Return a simulated program that does *steps*."""

    async def program(inside: OsProcess) -> int:
        return await _Life(inside, ready).do(steps)

    return program


class _Life:
    def __init__(self, inside: OsProcess, ready: Callable[[], None]) -> None:
        self._inside = inside
        self._ready = ready
        self._children: list[int] = []

    async def do(self, steps: tuple[Step, ...]) -> int:
        try:
            for step in steps:
                if isinstance(step, Exit):
                    return step.status
                await self._do(step)
            return 0
        finally:
            self._ready()

    async def _do(self, step: Step) -> None:
        inside = self._inside
        match step:
            case Say(data):
                await inside.write(data)
            case Complain(data):
                await inside.write_err(data)
            case Dribble(data, every_s):
                for byte in data:
                    await inside.write(bytes([byte]))
                    await anyio.sleep(every_s)
            case Flood(size):
                await inside.write(b"x" * size)
            case ReadLine():
                await inside.read_line()
            case ReadAll():
                size = 0
                while data := await inside.read():
                    size += len(data)
                await inside.write(b"%d\n" % size)
            case Echo():
                await self._copy(inside.read, inside.write)
            case CloseOutput():
                inside.close_output()
            case IgnoreTerm():
                inside.ignore_terminate()
            case Fork():
                await self._fork(step)
            case Ready():
                self._ready()
            case Reap():
                await inside.write(b"%d\n" % await inside.wait_child(self._children.pop(0)))
            case Hang():
                await anyio.sleep_forever()
            case Die(number):
                inside.die(number)

    async def _copy(self, read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]) -> None:
        while data := await read():
            await write(data)

    async def _fork(self, step: Fork) -> None:
        ready = anyio.Event()
        program = simulated(step.steps, ready.set)
        name = str(len(self._children))
        pid = self._inside.fork(program, name=name, keeps_output=step.keeps_output, new_session=step.new_session)
        self._children.append(pid)
        await ready.wait()
