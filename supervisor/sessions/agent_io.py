"""Ordered messages between a connection and its agent's program, in both directions.

Direction of calls: the codec produces values of both kinds, output for the program and messages from the program;
``AgentIO`` keeps them in order; the connection processes the messages. ``AgentIO`` does not depend on sessions, and
calls back only the ``handle`` function that ``open`` was given.

* Output is written by a task of its own. An interrupt never waits for a message that is being processed, nor for the
  disk. A signal is sent ahead of bytes that the program does not read.
* Messages are processed one at a time, in order, by the task that finds them first; other tasks wait. So an agent is
  read no faster than its messages are recorded.
* Replies to a program that sends requests and never reads would pile up without end. Bytes that wait for the program
  are counted; the connection stops reading while too many wait (:attr:`AgentIO.full`).
* After ``close`` nothing is written and no message is processed; a write that has begun is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from anyio.abc import TaskGroup

from actors.timers import Timer, TimerService
from actors.waiter import ResettableEvent
from supervisor.ports import CloseInput, Out, Process, Send, Signal
from supervisor.ports.input_limits import UNREAD_BYTES_MAX, bounded

PIECE_BYTES = 256 * 1024
"""Number of bytes per piece in which a large message is written: each piece that the program reads shows that the
program is reading."""
_WRITTEN = (Send, CloseInput, Signal)
"""Types of output for the program; every other value of a codec is a message from the program."""


class AgentIO:
    """Queues of the messages in both directions between one program and its connection."""

    def __init__(self) -> None:
        self.process: Process | None = None
        """Process of the program while the program runs, otherwise ``None``."""
        self._writes: deque[Send | CloseInput | Signal] = deque()
        self._received: deque[Out] = deque()
        self.unread_bytes = 0
        """Number of bytes for the program that the program has not read yet."""
        self.taken_bytes = 0
        """Number of bytes that the program has read in all."""
        self._taken = ResettableEvent()
        self._to_write = ResettableEvent()
        self._processed = ResettableEvent()
        self._sending = False
        """True while a write is being done."""
        self._is_processing = False
        """True while a task processes a message."""
        self._open: tuple[TaskGroup, Callable[[Out], Awaitable[None]]] | None = None
        """Task group, and the function that processes messages; ``None`` before ``open`` and after ``close``."""

    def open(self, group: TaskGroup, process: Process, handle: Callable[[Out], Awaitable[None]]) -> None:
        """Begin to write output to *process*, and to call *handle* for each message, in tasks of *group*, until
        ``close``."""
        self._open = group, handle
        group.start_soon(self._write_to, process)

    def close(self) -> None:
        """Stop writing output and processing messages. A write that the program does not read is cancelled."""
        if self._open is not None and self._sending:
            group, _ = self._open
            group.cancel_scope.cancel()
        self._open = None
        self._to_write.set()

    @property
    def full(self) -> bool:
        """True while more than ``UNREAD_BYTES_MAX`` bytes wait for the program."""
        return self.unread_bytes > UNREAD_BYTES_MAX

    async def wait_taken(self) -> None:
        """Wait until the program reads more of the bytes that wait for it."""
        self._taken.clear()
        await self._taken.wait()

    # ------------------------------------------------------------------ either way
    def put(self, outs: Iterable[Out]) -> None:
        """Queue *outs*, and start a task that processes the messages among them, unless one is running."""
        self.enqueue(outs)
        if self._received and not self._is_processing and self._open is not None:
            group, _ = self._open
            group.start_soon(self.process_received)

    def enqueue(self, outs: Iterable[Out]) -> None:
        """Queue *outs*; the caller must then have the messages among them processed (:meth:`process_received`)."""
        for out in outs:
            if isinstance(out, Signal) and self._sending and self.process is not None:
                self.process.signal(out.number)
            elif isinstance(out, _WRITTEN):
                if isinstance(out, Send):
                    self.unread_bytes += len(out.data)
                self._writes.append(out)
                self._to_write.set()
            else:
                self._received.append(bounded(out))

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
        """Process every message received so far, after the messages that another task is processing now."""
        while self._is_processing:
            self._processed.clear()
            await self._processed.wait()
        self._is_processing = True
        try:
            while self._received and self._open is not None:
                _, handle = self._open
                await handle(self._received.popleft())
        finally:
            self._is_processing = False
            self._processed.set()


class ReportedEnd:
    """Wait, after an agent has reported the end of its turn, for what belongs to the turn and is still to come.

    Some agents send the last words of a turn, or the end of a call, after the report. Some programs that serve one
    prompt report their result and stay. Both are waited for, until a time has passed without output. The whole wait is
    bounded, whatever the agent writes. *over* is called when the wait ends, unless the wait is cancelled before.
    """

    def __init__(self, timers: TimerService, over: Callable[[], None]) -> None:
        self._timers = timers
        self._over = over
        self._quiet_s = 0.0
        self._until: float | None = None
        """Time of the timers' clock at which the wait ends in any case; ``None`` while nothing is waited for."""
        self._timer: Timer | None = None

    def begin(self, *, quiet_s: float, within_s: float) -> None:
        """Begin to wait until *quiet_s* seconds pass without output, for *within_s* seconds at most. A wait that is
        running already keeps its bound."""
        self._quiet_s = quiet_s
        if self._until is None:
            self._until = self._timers.now() + within_s
        self.note_output()

    def note_output(self) -> None:
        """Count the silence anew, if a wait is running."""
        if self._until is not None:
            self._cancel_timer()
            delay_s = min(self._quiet_s, max(0.0, self._until - self._timers.now()))
            self._timer = self._timers.set(None, None, delay_s, self._fire)

    def cancel(self) -> None:
        """End the wait without a call of *over*."""
        self._until = None
        self._cancel_timer()

    def _fire(self, timer: Timer) -> None:
        timer.live = False  # it has left the heap
        self._until = None
        self._over()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timers.cancel(self._timer)
        self._timer = None
