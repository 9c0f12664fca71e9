"""Scripts for test programs: a list of steps that both a real program and a simulated program can execute.

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
    """Step: write *data* to standard output."""

    data: bytes


class Complain(_Step, frozen=True, tag="complain"):
    """Step: write *data* to standard error."""

    data: bytes


class Dribble(_Step, frozen=True, tag="dribble"):
    """Step: write *data* to standard output byte by byte, with a pause of ``every_s`` seconds after each byte."""

    data: bytes
    every_s: float


class Flood(_Step, frozen=True, tag="flood"):
    """Step: write *size* bytes to standard output."""

    size: int


class ReadLine(_Step, frozen=True, tag="read_line"):
    """Step: wait for a line on standard input, or for the end of the input."""


class ReadAll(_Step, frozen=True, tag="read_all"):
    """Step: read standard input to its end, and write the number of bytes to standard output."""


class Echo(_Step, frozen=True, tag="echo"):
    """Step: write all bytes of standard input to standard output, up to the end of the input."""


class CloseOutput(_Step, frozen=True, tag="close_output"):
    """Step: close standard output."""


class IgnoreTerm(_Step, frozen=True, tag="ignore_term"):
    """Step: ignore SIGTERM from now on, also in children that are forked later."""


class Fork(_Step, frozen=True, tag="fork"):
    """Step: start a child that executes *steps*, and wait until the child executes the step ``Ready``, or ends.

    The child's standard streams are /dev/null, but with *keeps_output* the child holds the output of this program open.
    """

    steps: tuple[Step, ...]
    new_session: bool = False
    keeps_output: bool = False


class Ready(_Step, frozen=True, tag="mark_ready"):
    """Step: report to the parent, which waits in ``Fork``, that this child is ready."""


class Reap(_Step, frozen=True, tag="reap"):
    """Step: wait for the end of the oldest child, and write its status to standard output."""


class Hang(_Step, frozen=True, tag="hang"):
    """Step: do nothing, without end."""


class Exit(_Step, frozen=True, tag="exit"):
    """Step: exit with *status*; the end of a script is the same as ``Exit(0)``."""

    status: int


class Die(_Step, frozen=True, tag="die"):
    """Step: end this process by the signal *signal*."""

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
    """Return the command line of a program, real or simulated, that executes *steps*."""
    return (*PREFIX, msgspec.json.encode(steps).decode())


def script_of(argv: tuple[str, ...]) -> tuple[Step, ...] | None:
    """Return the steps of a command line that ``argv_of`` has made; ``None`` for any other command line."""
    return msgspec.json.decode(argv[-1], type=tuple[Step, ...]) if argv[: len(PREFIX)] == PREFIX else None


def simulated(steps: tuple[Step, ...], ready: Callable[[], None] = lambda: None) -> Program:
    """Return a simulated program that executes *steps*."""

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
