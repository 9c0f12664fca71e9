"""The wire between a link and its program: what the program is to be told, and what it said, each in order.

Bytes for the program go out on a path of their own, so that an interrupt never waits behind anything, least of all a
disk. What it said is heard one word at a time, whoever is at it: an agent is not read faster than it is understood.
When the wire is closed, who writes ends by itself; only where the program does not take what it is sent is he cut off.

An agent that asks and does not read would have us keep replies without end. So what waits for it is counted in bytes,
and whoever hears it looks at that first (:attr:`AgentIO.full`): it is not heard while too much waits. A signal does not
wait behind bytes that nobody takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from anyio.abc import TaskGroup

from actors.waiter import AutoResetEvent
from supervisor.ports import CloseInput, Out, Process, Send, Signal
from supervisor.ports.input_limits import UNREAD_BYTES_MAX, bounded

__all__ = ["AgentIO"]

PIECE_BYTES = 256 * 1024
"""A large message is written in pieces of this size: each that the program takes shows that it reads."""
_WRITTEN = (Send, CloseInput, Signal)
"""What a codec has for the program; the rest is what the program said."""


class AgentIO:
    """What is on its way between one program and its link."""

    def __init__(self) -> None:
        self.process: Process | None = None
        """The program, while it is there."""
        self._writes: deque[Send | CloseInput | Signal] = deque()
        self._said: deque[Out] = deque()
        self.unread_bytes = 0
        """What is to be written to the program, and was not taken yet."""
        self.taken_bytes = 0
        """What it has taken in all."""
        self._taken = AutoResetEvent()
        self._to_write = AutoResetEvent()
        self._heard = AutoResetEvent()
        self._sending = False
        """The program has not taken all yet that it is being sent."""
        self._hearing = False
        """Somebody deals with a word now."""
        self._open: tuple[TaskGroup, Callable[[Out], Awaitable[None]]] | None = None
        """Where tasks are started, and what a word is told to."""

    def open(self, group: TaskGroup, process: Process, hear: Callable[[Out], Awaitable[None]]) -> None:
        """Write to *process*, and have *hear* deal with what is said, in tasks of *group*, until it is closed."""
        self._open = group, hear
        group.start_soon(self._write_to, process)

    def close(self) -> None:
        """Nothing more is written, and no further word heard. Nobody waits for a program to take what it was sent."""
        if self._open is not None and self._sending:
            group, _ = self._open
            group.cancel_scope.cancel()
        self._open = None
        self._to_write.set()

    @property
    def full(self) -> bool:
        """True while more than ``UNREAD_BYTES_MAX`` wait for the program."""
        return self.unread_bytes > UNREAD_BYTES_MAX

    async def wait_taken(self) -> None:
        """Wait until the program takes more of what waits for it."""
        self._taken.clear()
        await self._taken.wait()

    # ------------------------------------------------------------------ either way
    def put(self, outs: Iterable[Out]) -> None:
        """Bytes go to the program; what it said is heard, whoever may be reading meanwhile."""
        self.enqueue(outs)
        if self._said and not self._hearing and self._open is not None:
            group, _ = self._open
            group.start_soon(self.process_received)

    def enqueue(self, outs: Iterable[Out]) -> None:
        """The same, where what was said is then heard by whoever calls this."""
        for out in outs:
            if isinstance(out, Signal) and self._sending and self.process is not None:
                self.process.signal(out.number)
            elif isinstance(out, _WRITTEN):
                if isinstance(out, Send):
                    self.unread_bytes += len(out.data)
                self._writes.append(out)
                self._to_write.set()
            else:
                self._said.append(bounded(out))

    async def _write_to(self, process: Process) -> None:
        while self._open is not None:
            if not self._writes:
                self._to_write.clear()
                await self._to_write.wait()
                continue
            match self._writes.popleft():
                case Send(data):
                    self._sending = True
                    for at in range(0, max(len(data), 1), PIECE_BYTES):
                        piece = data[at : at + PIECE_BYTES]
                        await process.send(piece)
                        self.unread_bytes -= len(piece)
                        self.taken_bytes += len(piece)
                        self._taken.set()
                    self._sending = False
                case CloseInput():
                    process.close_input()
                case Signal(number):
                    process.signal(number)

    async def process_received(self) -> None:
        """Deal with everything said so far, in order, one word at a time, whoever is at it."""
        while self._hearing:
            self._heard.clear()
            await self._heard.wait()
        self._hearing = True
        try:
            while self._said and self._open is not None:
                _, hear = self._open
                await hear(self._said.popleft())
        finally:
            self._hearing = False
            self._heard.set()
