"""Test kit that connects a codec directly to a simulated program, on virtual time: the codec is given the program's
output, and the program the codec's.

Every request of the codec is fulfilled at once: permissions are granted, child sessions complete, and terminals run
simulated commands. Every report of the codec is recorded, with its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from supervisor.ports import (
    ChildRequested,
    CloseInput,
    Codec,
    Launch,
    Malformed,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    Signal,
    StrayLine,
    TerminalKilled,
    TerminalOpened,
    Text,
    TurnEnded,
    TurnEnding,
)
from supervisor.ports.input_limits import QUIET_S
from supervisor.simulation.machine.kernel import Program

T = TypeVar("T")

LONG_S = 100_000.0
"""Time limit in virtual seconds that is longer than anything in these tests takes."""


class _Died(Exception):
    """Exception that ends a program that has sent itself a signal."""


class Machine:
    """Simulated process, with the interface that its program uses; *hear* is called with the program's output."""

    def __init__(self, group: anyio.abc.TaskGroup, name: str, argv: tuple[str, ...], hear: Callable[[bytes], None]):
        self.name, self.argv, self.pid, self.cwd = name, argv, 1, "/"
        self.env: Mapping[str, str] = {}
        self.status: int | None = None
        self.deaf = False
        self.errors = b""
        self.children: list[Machine] = []
        self.holds_output = self.own_session = False
        self.ended, self.closed = anyio.Event(), anyio.Event()
        self._group, self._told = group, hear
        self._input, self._news, self._eof = bytearray(), anyio.Event(), False
        self._scope = anyio.CancelScope()

    async def run(self, program: Program) -> None:
        with self._scope:
            try:
                self.status = await program(self)
            except* _Died:
                pass
        self.ended.set()

    # ------------------------------------------------------------------ from outside
    def send(self, data: bytes) -> None:
        self._input += data
        self._news.set()

    def close_input(self) -> None:
        self._eof = True
        self._news.set()

    def kill(self) -> None:
        self.status = -9
        self._scope.cancel()
        for child in self.children:
            child.kill()

    # ------------------------------------------------------------------ from within
    async def read(self) -> bytes:
        return await self._taken(lambda: len(self._input))

    async def read_line(self) -> bytes:
        return await self._taken(lambda: self._input.find(b"\n") + 1)

    async def _taken(self, size: Callable[[], int]) -> bytes:
        while not size() and not self._eof:
            self._news = anyio.Event()
            await self._news.wait()
        end = size() or len(self._input)
        data = bytes(self._input[:end])
        del self._input[:end]
        return data

    async def write(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        assert not self.closed.is_set()
        self._told(data)

    async def write_err(self, data: bytes) -> None:
        self.errors += data

    def close_output(self) -> None:
        self.closed.set()

    def ignore_terminate(self) -> None:
        self.deaf = True

    def fork(self, program: Program, *, name: str, keeps_output: bool = False, new_session: bool = False) -> int:
        child = Machine(self._group, name, self.argv, self._told)
        child.holds_output, child.own_session = keeps_output, new_session
        self.children.append(child)
        self._group.start_soon(child.run, program)
        return len(self.children)

    async def wait_child(self, pid: int) -> int:
        child = self.children[pid - 1]
        await child.ended.wait()
        assert child.status is not None
        return child.status

    def die(self, signal_number: int) -> None:
        self.status = -signal_number
        raise _Died


class Talk:
    """Conversation of *codec* with the simulated program that is launched for *command*."""

    def __init__(self, codec: Codec, find: Callable[[Launch], Program], command: tuple[str, ...]) -> None:
        self.said: list[tuple[float, Out]] = []
        self.terminals: dict[str, Machine] = {}
        self.killed: list[str] = []
        self.codec = codec
        self._find = find
        self._command = command
        self._change = anyio.Event()
        self._watched = anyio.Event()

    async def __aenter__(self) -> Talk:
        self._group = await anyio.create_task_group().__aenter__()
        argv = self.codec.argv(self._command, "work")
        self.machine = self._started(argv, "s:a1", lambda data: self.do(self.codec.feed(data)))
        self._group.start_soon(self._watch)
        self.do(self.codec.start("/"))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)

    async def _watch(self) -> None:
        """Wait for the end of the program, and report the end to the codec."""
        await self.machine.ended.wait()
        self.do(self.codec.feed(b""))
        self._watched.set()
        self.do(self.codec.exited(self.machine.status))

    def _started(self, argv: tuple[str, ...], name: str, hear: Callable[[bytes], None]) -> Machine:
        machine = Machine(self._group, name, argv, hear)
        self._group.start_soon(machine.run, self._find(Launch(argv=argv, cwd="/", env={})))
        return machine

    # ------------------------------------------------------------------ what is to be done
    def do(self, outs: Iterable[Out]) -> None:
        for out in outs:
            self._do(out)
        self._change.set()
        self._change = anyio.Event()

    def _do(self, out: Out) -> None:
        match out:
            case Send(data):
                self.machine.send(data)
            case CloseInput():
                self.machine.close_input()
            case Signal():
                self.machine.kill()
            case _:
                self.said.append((anyio.current_time(), out))
                self._answer(out)

    def _answer(self, out: Out) -> None:
        match out:
            case PermissionNeeded(request_id):
                self.do(self.codec.permission(request_id, "allow_once"))
            case TurnEnding() if not self.codec.one_shot:
                self._group.start_soon(self._settle)
            case ChildRequested(request_id):
                self.do(self.codec.child_ended(request_id, "completed", "did it"))
            case TerminalOpened(terminal_id):
                self._group.start_soon(self._terminal, terminal_id, out.argv)
            case TerminalKilled(terminal_id):
                self.killed.append(terminal_id)
                self.terminals[terminal_id].kill()

    async def _settle(self) -> None:
        await anyio.sleep(QUIET_S)
        self.do(self.codec.settled())

    async def _terminal(self, terminal_id: str, argv: tuple[str, ...]) -> None:
        machine = self._started(argv, argv[1], lambda data: self.do(self.codec.terminal_output(terminal_id, data)))
        self.terminals[terminal_id] = machine
        await machine.ended.wait()
        self.do(self.codec.terminal_exited(terminal_id, machine.status))

    # ------------------------------------------------------------------ what was said
    def heard(self, kind: type[T]) -> list[T]:
        return [out for _, out in self.said if isinstance(out, kind)]

    @property
    def turns(self) -> list[TurnEnded]:
        return self.heard(TurnEnded)

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.heard(Text))

    @property
    def malformed(self) -> str:
        """Reason for which the codec ended the conversation; empty if the conversation goes on."""
        return " ".join(one.why for one in self.heard(Malformed))

    @property
    def strays(self) -> str:
        """Faults of the lines that were no messages."""
        return " ".join(one.why for one in self.heard(StrayLine))

    @property
    def over(self) -> bool:
        """Return whether the program has ended, or the codec has rejected its output."""
        return bool(self.malformed) or self._watched.is_set()

    async def _until(self, kind: type[T], count: int, within_s: float) -> T | None:
        """Wait for report number *count* of that kind and return it; return ``None`` if the report does not come in
        time, or the conversation ends."""
        with anyio.move_on_after(within_s):
            while len(self.heard(kind)) < count and not self.over:
                await self._change.wait()
        found = self.heard(kind)
        return found[count - 1] if len(found) >= count else None

    async def ready(self, within_s: float = LONG_S) -> Ready | None:
        return await self._until(Ready, 1, within_s)

    async def ended(self, count: int = 1, within_s: float = LONG_S) -> str:
        """Wait for the end of turn number *count* and return its outcome; empty if the turn did not end in time."""
        ended = await self._until(TurnEnded, count, within_s)
        return "" if ended is None else ended.stop

    async def turn(self, within_s: float = LONG_S) -> str:
        """Send a prompt, wait for the end of its turn, and return the outcome of the turn."""
        count = len(self.turns) + 1
        self.do(self.codec.prompt("work"))
        return await self.ended(count, within_s)

    async def exited(self) -> int:
        """Wait until the codec has processed the end of the program, and return the exit status."""
        await self._watched.wait()
        assert self.machine.status is not None
        return self.machine.status
